"""Meters: sums that a filter adds up, and what each sum means as an epsilon.

Write L for the privacy loss after the entries so far and h(x) = max(0, 1 - e^-x), so
that delta at epsilon is E[h(L - epsilon)]. Entries are chosen adaptively.

- `GaussianMeter`: stop before sum mu_i^2 exceeds mu*^2, where mu* is the largest mu
  of (epsilon, delta). Given the past, each entry is dominated by a Gaussian pair, so
  L is a drifted Brownian motion at the adapted time t = sum mu_i^2 <= mu*^2. Now
  Z = e^-L is a martingale and z -> max(0, 1 - e^epsilon z) is convex, so
  E[h(L - epsilon)] never falls in t: its value at the stop is at most the one at
  mu*^2, which is delta. (Koskela, Tobaben, Honkela 2023; Smith and Thakurta 2022.)
  A pure epsilon enters with the mu of `gdp.mu_of_pure`, which dominates it, and so does
  the best of several pure runs, which is pure.
- `RenyiMeter(order)`: stop before the Renyi divergences at one fixed order add up to
  more than the conversion to (epsilon, delta) allows. (Feldman and Zrnic 2021.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from demur.core import accounting, validate
from demur.core.accounting import gaussian, gdp, renyi
from demur.core.accounting.events import (
    Atom,
    BestOf,
    GaussianEvent,
    PoissonGaussian,
    Pure,
)
from demur.core.rounding import down, up
from demur.ledger.rules.budget import Budget


@dataclass(frozen=True)
class GaussianMeter:
    """The sum of mu^2."""

    @property
    def account(self) -> str:
        """The name of what it adds up."""
        return "mu squared"

    @property
    def words(self) -> str:
        """The meter in a few words."""
        return "gaussian (squares of mu add up)"

    def capacity(self, budget: Budget) -> Fraction:
        """The largest sum that keeps the budget."""
        if budget.delta <= 0.0:
            return Fraction(0)
        return Fraction(gaussian.gaussian_mu(budget.epsilon, budget.delta)) ** 2

    def amount(self, atom: Atom) -> Fraction | None:
        """What one event adds."""
        match atom:
            case GaussianEvent(multiplier=z):
                return accounting.inverse_square_up(z)
            case PoissonGaussian(probability=1.0):
                return accounting.inverse_square_up(atom.whole_multiplier)
            case Pure(epsilon=0.0) | PoissonGaussian(probability=0.0):
                return Fraction(0)
            case Pure(epsilon=epsilon):
                return Fraction(gdp.mu_of_pure(epsilon)) ** 2
            case BestOf():
                # The best of pure runs is pure; that of Gaussian runs is not Gaussian.
                epsilon = accounting.price(atom, 0.0)
                if math.isfinite(epsilon):
                    return Fraction(gdp.mu_of_pure(epsilon)) ** 2
        return None

    def epsilon(self, total: Fraction, delta: float) -> float:
        """What a sum means, as an epsilon."""
        if not total:
            return 0.0
        mu = up(math.sqrt(total), 2) if total < 10**300 else math.inf
        if delta <= 0 or math.isinf(mu):
            return math.inf
        return gaussian.gaussian_epsilon(mu, delta)


@dataclass(frozen=True)
class RenyiMeter:
    """The sum of Renyi divergences at one order."""

    order: int

    def __post_init__(self) -> None:
        validate.count(order=self.order)
        if not 2 <= self.order <= 1024:
            raise ValueError(f"order must be from 2 to 1024; got {self.order}")

    @property
    def account(self) -> str:
        """The name of what it adds up."""
        return f"renyi {self.order}"

    @property
    def words(self) -> str:
        """The meter in a few words."""
        return f"rdp (Renyi divergences of order {self.order} add up)"

    def capacity(self, budget: Budget) -> Fraction:
        """The largest sum that keeps the budget."""
        if budget.delta <= 0.0:
            return Fraction(0)
        a, delta = self.order, budget.delta
        most = budget.epsilon - math.log1p(-1.0 / a) + math.log(delta * a) / (a - 1)
        return Fraction(max(0.0, down(most - 1e-12 * (1 + abs(most)))))

    def amount(self, atom: Atom) -> Fraction | None:
        """What one event adds."""
        if atom == Pure(0.0):
            return Fraction(0)
        if isinstance(atom, BestOf):
            divergence = accounting.search_divergence(atom, self.order)
        else:
            divergence = renyi.divergence(atom, self.order)
        if divergence is None or math.isinf(divergence):
            return None
        # The square of a tiny epsilon underflows, but no event is free.
        return Fraction(max(divergence, math.ulp(0.0)))

    def epsilon(self, total: Fraction, delta: float) -> float:
        """What a sum means, as an epsilon."""
        if not total:
            return 0.0
        if delta <= 0 or total > 10**300:
            return math.inf
        return renyi.to_epsilon(up(float(total)), self.order, delta)


Meter: TypeAlias = GaussianMeter | RenyiMeter


def meter_named(name: object) -> Meter:
    """The meter whose account has this name; anything else is a ValueError."""
    if name == "mu squared":
        return GaussianMeter()
    if isinstance(name, str) and name.startswith("renyi "):
        return RenyiMeter(int(name.removeprefix("renyi ")))
    raise ValueError(f"not a meter: {str(name)[:40]}")


def best_order(budget: Budget) -> int:
    """The integer order at which a Renyi filter admits most Gaussian releases."""
    if budget.delta <= 0:
        raise ValueError(f"an 'rdp' filter needs a positive delta; got {budget}")
    return max(
        range(2, 1025),
        key=lambda a: RenyiMeter(a).capacity(budget) / a,
    )
