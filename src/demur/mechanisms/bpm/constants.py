"""Closed forms of the Bounded Perturbation Mechanism, in logarithms.

Write k = epsilon, V_d for the volume of the unit ball and P(a, x) for the regularised
lower incomplete gamma function. A report x of the point v in [0, 1]^d has the density

    f_v(x) = lambda_L exp(-k min(|x - v|, L))    on the cube [-L, 1 + L]^d.

The ball of radius L around v lies inside the cube, so the normaliser is the same for
every v. Since e^(-kr) = e^(-kL) + int_r^L k e^(-ks) ds, the density is a mixture of the
uniform law on the cube and of uniform laws on balls around v, whose radius S is
Gamma(d + 1, rate k) distributed, cut off at L:

    f_v = (1 - alpha) Uniform(cube) + alpha E_S[Uniform(ball(v, S))],
    alpha = A / (A + U),  mu_L = 1 / lambda_L = A + U,
    A = d! V_d k^-d P(d + 1, kL),  U = e^(-kL) (1 + 2L)^d.

All terms are positive: nothing cancels, in any dimension. The ball of radius L has the
mass p_L = d! V_d k^-d P(d, kL) / mu_L. L = 0 is the uniform law, and L = infinity the
multivariate Laplace mechanism (U = 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy import special

ALPHA_OF_AUTO = 0.99


def log_gamma_p(a: float, x: float, log_x: float | None = None) -> float:
    """log P(a, x), also where P underflows, or x itself (then give `log_x`).

    >>> log_gamma_p(3.0, 1.0), log_gamma_p(10_001.0, 1.0) < -82_000
    (-2.521968, True)
    """
    if log_x is None:
        log_x = math.log(x) if x > 0.0 else -math.inf
    if log_x == -math.inf:
        return -math.inf
    if x > a + 1.0:
        above = float(special.gammaincc(a, x))
        return math.log1p(-above)  # above < 1/2 or so: the median is near a
    # P = x^a e^-x / Gamma(a + 1) * sum_n x^n / ((a + 1) ... (a + n)), x <= a + 1.
    total, term, n = 1.0, 1.0, 0
    while term > 1e-18 * total:
        n += 1
        term *= x / (a + n)
        total += term
    return _log_poisson(a, x, log_x) + math.log(total)


def _log_poisson(a: float, x: float, log_x: float) -> float:
    """log(x^a e^-x / Gamma(a + 1)), without the cancellation of its three terms."""
    if a < 20.0 or x < 0.5 * a:
        return a * log_x - x - math.lgamma(a + 1.0)
    # Stirling: lgamma(a + 1) = a log a - a + log(2 pi a) / 2 + 1/(12 a) - ...
    b = 1.0 / (a * a)
    rest = (1 / 12 - b * (1 / 360 - b * (1 / 1260 - b * (1 / 1680 - b / 1188)))) / a
    gap = (x - a) / a
    return a * (math.log1p(gap) - gap) - 0.5 * math.log(2 * math.pi * a) - rest


def log_ball_volume(dimension: int) -> float:
    """log V_d, the volume of the unit ball."""
    return 0.5 * dimension * math.log(math.pi) - math.lgamma(0.5 * dimension + 1.0)


def log_side(L: float) -> float:
    """log(1 + 2L), the side of the cube of reports; 2L itself may have no float64."""
    return math.log1p(2.0 * L) if L < 1e300 else math.log(2.0) + math.log(L)


@dataclass(frozen=True)
class Constants:
    """What depends on (epsilon, L, dimension) alone; all of it is public."""

    log_mu: float
    log_p: float
    log_alpha: float
    log_w: float
    excess_square: float  # E|x - v|^2 of the part above the uniform floor


@lru_cache(maxsize=256)
def constants(epsilon: float, L: float, dimension: int) -> Constants:
    """The closed forms above."""
    d, x = dimension, epsilon * L
    if L == 0.0:
        return Constants(0.0, -math.inf, -math.inf, 0.0, 0.0)
    # d! V_d = 2^d pi^((d-1)/2) Gamma((d+1)/2), by the duplication formula.
    log_whole = (
        d * math.log(2.0)
        + 0.5 * (d - 1) * math.log(math.pi)
        + math.lgamma(0.5 * (d + 1))
        - d * math.log(epsilon)
    )
    log_x = math.log(epsilon) + math.log(L)
    log_a = log_whole + log_gamma_p(d + 1, x, log_x)
    log_u = -x + d * log_side(L) if math.isfinite(x) else -math.inf
    log_mu = _log_add(log_a, log_u)
    log_square = (
        math.log(d)
        + math.log(d + 1)
        - 2.0 * math.log(epsilon)
        + log_gamma_p(d + 3, x, log_x)
        - log_gamma_p(d + 1, x, log_x)
    )
    return Constants(
        log_mu=log_mu,
        log_p=min(0.0, log_whole + log_gamma_p(d, x, log_x) - log_mu),
        log_alpha=-_softplus(log_u - log_a),
        log_w=-_softplus(log_a - log_u),
        excess_square=exp(log_square),
    )


def threshold_for(epsilon: float, dimension: int, alpha: float) -> float:
    """The smallest L whose `alpha` is at least the one asked for.

    alpha grows with L: by the series of P, the derivative of log(A / U) is at least
    (d + 1) / L - 2d / (1 + 2L) > 0. So bisection finds the one place.
    """
    wanted = math.log(alpha)

    def enough(L: float) -> bool:
        return constants(epsilon, L, dimension).log_alpha >= wanted

    high = (dimension + 1.0) / epsilon
    while high < math.inf and not enough(high):
        high *= 2.0
    if math.isinf(high):
        raise ValueError(
            f"epsilon is too small: at {epsilon:g} in {dimension} dimensions there is"
            f" no L in float64 at which {alpha:.0%} of a report depends on its point."
            " Choose a larger epsilon."
        )
    low = high / 2.0
    while enough(low):
        low, high = low / 2.0, low
    while high - low > 1e-12 * high:
        middle = low + 0.5 * (high - low)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def exp(x: float) -> float:
    """e^x, infinity where it has no float."""
    return math.exp(x) if x < 709.0 else math.inf


def _log_add(a: float, b: float) -> float:
    top, other = max(a, b), min(a, b)
    return top + math.log1p(math.exp(other - top)) if other > -math.inf else top


def _softplus(x: float) -> float:
    """log(1 + e^x)."""
    if x > 0.0:
        return x + math.log1p(math.exp(-x))
    return math.log1p(math.exp(x))
