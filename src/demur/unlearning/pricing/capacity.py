"""Deletion capacity and noise multipliers, for four ways to compose deletions.

Every deletion is a Gaussian of the same multiplier z = sigma / Delta. `capacity` is the
largest m whose composition stays within (epsilon, delta), `multiplier` the smallest z
for a given m; each is the inverse of the other. Nothing else in the engine sizes noise.

- gdp: m Gaussians are exactly one Gaussian with mu = sqrt(m) / z, so m / z^2 <= mu*^2.
- zcdp, rdp: the Renyi divergences of order a, a / (2 z^2) each, add up to at most what
  the conversion of Canonne, Kamath and Steinke 2020 (Prop. 12) allows at that order.
- basic: each deletion is (epsilon/m, delta/m), z = sqrt(2 ln(1.25 m / delta)) m /
  epsilon (Dwork and Roth 2014, Theorem A.1, proved up to epsilon/m = 1; where the exact
  Gaussian needs more than that, it gets more).

**The multiplier is the least one that the ledger's filter admits.** What is charged has
to fit the filter, so limit and amounts are those of its meter (`ledger.GaussianMeter`,
`ledger.RenyiMeter`), roundings included: m charges of `multiplier(m)` fit a ledger that
was opened for the budget, and those of a z that is 2^-40 smaller do not. For gdp that
is the exact composition. A Renyi filter is valid for one order that is fixed when the
ledger is opened, a whole number up to 1024 (a best order chosen on the way is no valid
filter). So zcdp and rdp share the noise of the best such order. The best *real* order
of the zCDP conversion would allow a little less noise (40.45131 instead of 40.45386 for
100 deletions at epsilon 1, delta 1e-5), and an "rdp" ledger would decline the last of
them. A *reading* of what was spent is bound to no filter, and rho-zCDP implies the
conversion at every order at once: there (`total_epsilon`) zcdp takes the best real
order, rdp the best whole one.

All of it is rounded to the private side: capacities down, multipliers up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from scipy.optimize import minimize_scalar

from demur.core import validate
from demur.core.accounting import gaussian, inverse_square_up
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.renyi import ORDERS
from demur.core.rounding import down, up
from demur.ledger import Budget, Filter, GaussianMeter, RenyiMeter
from demur.unlearning.models.base import Accounting

ACCOUNTINGS: tuple[Accounting, ...] = ("basic", "rdp", "zcdp", "gdp")
# What a reservation can hold, and what a limit beyond every stream is called.
UNLIMITED = 2**40


def capacity(
    z: float, epsilon: float, delta: float, accounting: Accounting = "gdp"
) -> int:
    """The most deletions of multiplier `z` within (epsilon, delta).

    >>> [capacity(z, 1.0, 1e-5) for z in (10, 50, 100, 1000)]
    [7, 179, 718, 71851]
    >>> [capacity(z, 1.0, 1e-5, "basic") for z in (10, 50, 100, 1000)]
    [2, 9, 18, 172]
    """
    validate.positive(z=z)
    z = float(z)
    if _known(accounting) == "basic":
        return largest_count(lambda m: multiplier(m, epsilon, delta, "basic") <= z)
    meter, limit = _meter_and_limit(accounting, epsilon, delta)
    amount = meter.amount(GaussianEvent(z))
    return 0 if amount is None else min(int(limit / amount), UNLIMITED)


def multiplier(
    count: int | Fraction, epsilon: float, delta: float, accounting: Accounting = "gdp"
) -> float:
    """The smallest z = sigma / Delta that `count` deletions can share.

    A fraction, at least 1, is the inverse of the part of the budget that one deletion
    gets.

    >>> round(multiplier(1, 1.0, 1e-5), 2), round(multiplier(100, 1.0, 1e-5), 1)
    (3.73, 37.3)
    """
    if not isinstance(count, Fraction):
        validate.count(count=count)
    elif count < 1:
        raise ValueError(f"count must be at least 1; got {float(count):g}")
    if _known(accounting) == "basic":
        return _basic_multiplier(count, epsilon, delta)
    meter, limit = _meter_and_limit(accounting, epsilon, delta)
    # Amounts are proportional to 1 / z^2, but for their rounding.
    at_one = meter.amount(GaussianEvent(1.0))
    assert at_one is not None
    z = math.sqrt(count * at_one / limit)
    # A hair more than the least, so that a reading of the full ledger, which is
    # rounded up, does not exceed the budget.
    z *= 1.0 + 2.0**-42
    while not _fits(meter, z, count, limit):
        z = up(z)
    return z


def _basic_multiplier(count: int | Fraction, epsilon: float, delta: float) -> float:
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    epsilon_step = down(float(Fraction(epsilon) / count))
    delta_step = down(float(Fraction(delta) / count))
    exact = gaussian.gaussian_sigma(epsilon_step, delta_step)
    width = math.sqrt(2.0 * (math.log(1.25) - math.log(delta_step)))
    return max(exact, up(width / epsilon_step, 8))


def _fits(
    meter: GaussianMeter | RenyiMeter, z: float, count: int | Fraction, limit: Fraction
) -> bool:
    amount = meter.amount(GaussianEvent(z))
    return amount is not None and amount * count <= limit


@lru_cache(maxsize=256)
def meter_for(
    accounting: Accounting, epsilon: float, delta: float
) -> GaussianMeter | RenyiMeter:
    """The meter of a ledger that enforces this accounting."""
    if accounting == "gdp":
        return GaussianMeter()
    (meter,) = Filter.named("rdp", Budget(epsilon, delta)).meters
    return meter


@lru_cache(maxsize=256)
def _meter_and_limit(
    accounting: Accounting, epsilon: float, delta: float
) -> tuple[GaussianMeter | RenyiMeter, Fraction]:
    """The meter, and the most that it admits within (epsilon, delta)."""
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    meter = meter_for(accounting, epsilon, delta)
    limit = meter.capacity(Budget(epsilon, delta))
    if not limit:
        raise ValueError(
            f"accounting={accounting!r} can certify nothing at epsilon {epsilon:.4g},"
            f" delta {delta:.4g}; use 'gdp', or a larger budget"
        )
    return meter, limit


def total_epsilon(
    count: int, z: float, delta: float, accounting: Accounting = "gdp"
) -> float:
    """The epsilon at `delta` of `count` deletions of multiplier `z`, rounded up.

    Basic composition has no such reading: its epsilons are fixed in advance and add up.
    """
    return epsilon_of(inverse_square_up(z) * count, delta, accounting)


def mu_squared_limit(
    epsilon: float, delta: float, accounting: Accounting = "gdp"
) -> Fraction:
    """The largest sum of 1 / z^2 within (epsilon, delta), as the filter has it."""
    meter, limit = _meter_and_limit(accounting, epsilon, delta)
    return limit * 2 / meter.order if isinstance(meter, RenyiMeter) else limit


def epsilon_of(
    mu_squared: Fraction, delta: float, accounting: Accounting = "gdp"
) -> float:
    """The epsilon at `delta` of Gaussians whose 1 / z^2 add up to `mu_squared`."""
    if not mu_squared:
        return 0.0
    if accounting == "gdp":
        return gaussian.gaussian_epsilon(up(math.sqrt(mu_squared), 2), delta)
    if _known(accounting) == "basic":
        raise ValueError("accounting must be 'gdp', 'zcdp' or 'rdp'; got 'basic'")
    rho = up(float(mu_squared)) / 2.0

    def at(order: float) -> float:
        cost = math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
        return order * rho + cost

    orders = [float(order) for order in ORDERS]
    if accounting == "zcdp":
        best = minimize_scalar(
            lambda u: at(1.0 + math.exp(u)), bounds=(-8.0, 16.0), method="bounded"
        )
        orders.append(1.0 + math.exp(float(best.x)))
    return max(0.0, up(min(map(at, orders)), 16))


def _known(accounting: str) -> str:
    if accounting not in ACCOUNTINGS:
        raise ValueError(
            f"accounting must be one of {', '.join(ACCOUNTINGS)}; got {accounting!r}"
        )
    return accounting


def largest_count(holds: Callable[[int], bool], most: int = UNLIMITED) -> int:
    """The largest m in 0 .. most with holds(m), for a property lost once and for all.

    >>> largest_count(lambda m: m * m <= 50)
    7
    """
    good, bad = 0, 1
    while bad <= most and holds(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
