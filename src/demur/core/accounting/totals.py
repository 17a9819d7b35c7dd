"""Totals of an event: its atoms added up, kind by kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from demur.core.accounting import events
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    BestOf,
    Event,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Sampled,
    TruncatedPoissonGaussian,
)
from demur.core.rounding import down, float_up, quotient_up, up


@dataclass(frozen=True)
class Total:
    """A multiset of atoms, sorted by what is known about each kind."""

    mu_squared: float
    pure: Mapping[float, int]
    approx: Mapping[tuple[float, float], int]
    sampled: Mapping[Sampled, int]
    searches: Mapping[BestOf, int] = field(default_factory=dict)

    @property
    def block_epsilon(self) -> Fraction:
        """The sum of epsilon over (epsilon, delta) pairs."""
        return sum((Fraction(e) * n for (e, _), n in self.approx.items()), Fraction(0))

    @property
    def epsilon_sum(self) -> Fraction:
        """The sum of epsilon over pairs and pure epsilons."""
        pure = (Fraction(e) * n for e, n in self.pure.items())
        return sum(pure, self.block_epsilon)

    @property
    def delta_sum(self) -> Fraction:
        """The sum of delta over (epsilon, delta) pairs."""
        return sum((Fraction(d) * n for (_, d), n in self.approx.items()), Fraction(0))


def inverse_square_up(multiplier: float) -> Fraction:
    """mu^2 = 1 / multiplier^2 as a dyadic fraction that is not below it."""
    mu = quotient_up(1.0, multiplier)
    return Fraction(2) ** 4096 if math.isinf(mu) else Fraction(mu) ** 2


def total_of(event: Event) -> Total:
    """The atoms of an event, sorted; those that cost nothing are left out."""
    mu_squared = Fraction(0)
    pure: dict[float, int] = {}
    approx: dict[tuple[float, float], int] = {}
    sampled: dict[Sampled, int] = {}
    searches: dict[BestOf, int] = {}
    for atom, count in events.atoms(event).items():
        match atom:
            case GaussianEvent(multiplier=z):
                mu_squared += inverse_square_up(z) * count
            case Pure(epsilon=0.0):
                pass
            case Pure(epsilon=eps):
                pure[eps] = pure.get(eps, 0) + count
            case ApproxDP(epsilon=eps, delta=0.0):
                pure[eps] = pure.get(eps, 0) + count
            case ApproxDP(epsilon=eps, delta=d):
                approx[eps, d] = approx.get((eps, d), 0) + count
            case PoissonGaussian(probability=0.0):
                pass
            case TruncatedPoissonGaussian(probability=0.0):
                pass
            case PoissonGaussian(probability=1.0):
                mu_squared += inverse_square_up(atom.whole_multiplier) * count
            case AllocatedGaussian(steps=1):
                mu_squared += inverse_square_up(atom.multiplier) * count
            case PoissonGaussian() | TruncatedPoissonGaussian() | AllocatedGaussian():
                sampled[atom] = sampled.get(atom, 0) + count
            case BestOf():
                searches[atom] = searches.get(atom, 0) + count
    return Total(float_up(mu_squared), pure, approx, sampled, searches)


def as_event(work: Event | Iterable[Event]) -> Event:
    """One event for what may be several."""
    if isinstance(work, Iterable):
        return events.compose(work)
    return work


def event_of(total: Total) -> Event:
    """An event with these totals."""
    parts: dict[events.Atom, int] = {}
    if total.mu_squared:
        parts[GaussianEvent(down(1.0 / up(math.sqrt(total.mu_squared))))] = 1
    parts |= {Pure(epsilon): count for epsilon, count in total.pure.items()}
    parts |= {ApproxDP(e, d): count for (e, d), count in total.approx.items()}
    for atom, count in [*total.sampled.items(), *total.searches.items()]:
        parts[atom] = count
    return events.from_atoms(parts) if parts else Pure(0.0)
