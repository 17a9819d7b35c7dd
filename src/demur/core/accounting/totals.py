"""Totals of an event: its atoms added up, kind by kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from demur.core.accounting import events
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    Event,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Sampled,
    TruncatedPoissonGaussian,
)
from demur.core.rounding import float_up, quotient_up


@dataclass(frozen=True)
class Total:
    """A multiset of atoms, sorted by what is known about each kind."""

    mu_squared: float
    pure: Mapping[float, int]
    approx: Mapping[tuple[float, float], int]
    sampled: Mapping[Sampled, int]

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
    return Total(float_up(mu_squared), pure, approx, sampled)


def as_event(work: Event | Iterable[Event]) -> Event:
    """One event for what may be several."""
    if isinstance(work, Iterable):
        return events.compose(work)
    return work
