"""How many deletions a budget pays for, and how much noise each of them needs.

Every deletion is a Gaussian of the same multiplier z = sigma / Delta. `capacity` is the
largest m whose composition stays within (epsilon, delta), `multiplier` the smallest z
for a given m; each is the inverse of the other. Four ways to compose:

- gdp: m Gaussians are exactly one Gaussian with mu = sqrt(m) / z, so m / z^2 <= mu*^2.
- zcdp: rho = m / (2 z^2) <= rho*, with the conversion of Canonne, Kamath and Steinke
  2020 (Prop. 12) at its best real order: each order a > 1 allows
  rho_a = (epsilon - log1p(-1/a) + log(a delta) / (a - 1)) / a, and all are true.
- rdp: the same over whole orders alone.
- basic: each deletion is (epsilon/m, delta/m), z = sqrt(2 ln(1.25 m / delta)) m /
  epsilon (Dwork and Roth 2014, Theorem A.1, proved up to epsilon/m = 1; where the exact
  Gaussian needs more than that, it gets more).

All of it is rounded to the private side: capacities down, multipliers up.

**Regret.** The second limit on deletions. Strongly convex descent takes steps
eta_t = 1 / (lambda (t + t0)), t = 1, 2, ...; gradients of the data are at most G, those
of the loss at most G' = G + lambda R, and projection onto the ball of radius R keeps
|w - u| <= D = 2 R. With a_t = |w_t - u|^2, strong convexity and one step give

    f_t(w_t) - f_t(u) <= lambda (t + t0) / 2 (a_t - a_{t+1}) - lambda / 2 a_t
                         + eta_t G'^2 / 2,

which sums to R_ins = lambda t0 D^2 / 2 + G'^2 / (2 lambda) ln((T + t0) / t0). A
deletion after step t replaces w by w + xi, xi of deviation z Delta in each coordinate,
Delta = G / (lambda (t + t0)). In the sum this is lambda (t + t0) / 2 = G / (2 Delta)
times (2 <w - u, xi> + |xi|^2), and projection only shrinks it. The first parts are a
martingale with Gaussian increments of deviation at most G D z, the second ones scaled
chi-squares; with probability 1 - delta_B (half for each),

    R_del(m) <= G D z sqrt(2 m ln(2 / delta_B))
                + m z^2 G Delta / 2 (sqrt d + sqrt(2 ln(2 m / delta_B)))^2.

u must not depend on the noise. Delta falls with the clock, so its value when the
odometer is finalised serves for all later deletions of one record each. A mode that
noises its published copy alone (`output`) leaves the descent in peace; each prediction
then loses at most G |xi|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from scipy.optimize import minimize_scalar

from demur.core import validate
from demur.core.accounting import gaussian, inverse_square_up
from demur.core.accounting.renyi import ORDERS
from demur.core.rounding import down, up
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
        return largest(lambda m: multiplier(m, epsilon, delta, "basic") <= z)
    limit = _mu_squared(accounting, epsilon, delta)
    return min(int(limit / inverse_square_up(z)), UNLIMITED)


def multiplier(
    count: int, epsilon: float, delta: float, accounting: Accounting = "gdp"
) -> float:
    """The smallest z = sigma / Delta that `count` deletions can share.

    >>> round(multiplier(1, 1.0, 1e-5), 2), round(multiplier(100, 1.0, 1e-5), 1)
    (3.73, 37.3)
    """
    validate.count(count=count)
    if _known(accounting) == "basic":
        validate.positive(epsilon=epsilon)
        validate.open_probability(delta=delta)
        eps_step, delta_step = down(epsilon / count), down(delta / count)
        exact = gaussian.gaussian_sigma(eps_step, delta_step)
        width = math.sqrt(2.0 * (math.log(1.25) - math.log(delta_step)))
        return max(exact, up(width / eps_step, 8))
    limit = _mu_squared(accounting, epsilon, delta)
    z = math.sqrt(count / limit)
    while inverse_square_up(z) * count > limit:
        z = up(z)
    return z


def total_epsilon(
    count: int, z: float, delta: float, accounting: Accounting = "gdp"
) -> float:
    """The epsilon at `delta` of `count` deletions of multiplier `z`, rounded up.

    Basic composition has no such reading: its epsilons are fixed in advance and add up.
    """
    if count == 0:
        return 0.0
    mu_squared = inverse_square_up(z) * count
    if accounting == "gdp":
        return gaussian.gaussian_epsilon(up(math.sqrt(mu_squared), 2), delta)
    if _known(accounting) == "basic":
        raise ValueError("accounting must be 'gdp', 'zcdp' or 'rdp'; got 'basic'")
    rho = up(float(mu_squared)) / 2.0

    def at(order: float) -> float:
        cost = math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
        return order * rho + cost

    return max(0.0, up(min(map(at, _orders(accounting, at))), 16))


def _known(accounting: str) -> str:
    if accounting not in ACCOUNTINGS:
        raise ValueError(
            f"accounting must be one of {', '.join(ACCOUNTINGS)}; got {accounting!r}"
        )
    return accounting


def _orders(accounting: str, cost: Callable[[float], float]) -> list[float]:
    """Candidate orders: whole ones, and for zCDP the best real one near the best."""
    whole = [float(a) for a in ORDERS]
    if accounting == "rdp":
        return whole
    best = minimize_scalar(
        lambda u: cost(1.0 + math.exp(u)), bounds=(-8.0, 16.0), method="bounded"
    )
    return [*whole, 1.0 + math.exp(float(best.x))]


@lru_cache(maxsize=256)
def _mu_squared(accounting: str, epsilon: float, delta: float) -> Fraction:
    """The largest m / z^2 within (epsilon, delta), rounded down."""
    if accounting == "gdp":
        return Fraction(gaussian.gaussian_mu(epsilon, delta)) ** 2
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)

    def minus_rho(order: float) -> float:
        found = epsilon - math.log1p(-1.0 / order)
        found += math.log(delta * order) / (order - 1.0)
        # Relative to the largest term, so that cancellation is paid for.
        slack = 1e-12 * (1.0 + epsilon + abs(math.log(delta * order)) / (order - 1.0))
        return -(found - slack) / order

    rho = -min(map(minus_rho, _orders(accounting, minus_rho)))
    if rho <= 0.0:
        raise ValueError(
            f"accounting={accounting!r} can certify nothing at epsilon {epsilon:g},"
            f" delta {delta:g}; use 'gdp', or a larger budget"
        )
    return Fraction(down(2.0 * rho))


def largest(holds: Callable[[int], bool], most: int = UNLIMITED) -> int:
    """The largest m in 0 .. most with holds(m), for a property lost once and for all.

    >>> largest(lambda m: m * m <= 50)
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


def insertion_regret(
    G: float, D: float, T: int, *, c: float = 1.0, C: float = 1.0
) -> float:
    """G D sqrt((C/c) T): descent in the norm of a fixed B with c I <= B <= C I."""
    return G * D * math.sqrt((C / c) * T)


def strongly_convex_regret(
    G: float, D: float, T: int, *, lambda_: float, radius: float, t0: float
) -> float:
    """R_ins of strongly convex descent; see the module's argument."""
    whole = G + lambda_ * radius
    start = lambda_ * t0 * D * D / 2.0
    return start + whole * whole / (2.0 * lambda_) * math.log((T + t0) / t0)


def deletion_regret(
    m: int, z: float, *, G: float, D: float, shift: float, dim: int, delta_B: float
) -> float:
    """R_del(m) for noise that enters the state; see the module's argument."""
    if m == 0:
        return 0.0
    wander = G * D * z * math.sqrt(2.0 * m * math.log(2.0 / delta_B))
    width = math.sqrt(dim) + math.sqrt(2.0 * math.log(2.0 * m / delta_B))
    return wander + m * z * z * G * shift / 2.0 * width * width


def output_regret(
    m: int, z: float, *, G: float, shift: float, dim: int, T: int, delta_B: float
) -> float:
    """T rounds under a published copy whose noise has deviation z * shift."""
    if m == 0:
        return 0.0
    width = math.sqrt(dim) + math.sqrt(2.0 * math.log(m / delta_B))
    return T * G * z * shift * width


def seed_deletion_regret(
    m: int,
    *,
    L: float,
    lambda_: float,
    eps_total: float,
    delta_total: float,
    delta_B: float,
) -> float:
    """The seed's R_del(m), verbatim: its units are not those of a loss."""
    inner = 2.0 * math.log(1.25 * max(m, 1) / delta_total) / eps_total
    return (m * L / lambda_) * math.sqrt(inner * (2.0 * math.log(1.0 / delta_B)))
