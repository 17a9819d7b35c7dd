r"""The privacy profile of the Gaussian mechanism, in log space.

A mechanism is mu-GDP when telling its two outputs apart is at least as hard as telling
N(0, 1) from N(mu, 1); the Gaussian mechanism is exactly that with mu = sensitivity /
sigma. Its profile is

    delta(mu, epsilon) = Phi(-a) - e^epsilon Phi(-b),
    a = epsilon / mu - mu / 2,   b = a + mu.

Read literally the formula overflows (epsilon > 709) and cancels (every small delta).
Since e^epsilon phi(b) = phi(a), with the Mills ratio M(x) = Phi(-x) / phi(x),

    delta     = phi(a) (M(a) - M(b)) = phi(a) int_0^inf e^(-t^2/2 - a t) (1 - e^(-mu t))
    1 - delta = phi(a) (M(-a) + M(b)),

where nothing overflows. The two ratios differ by a factor of about two or more when
mu >= 1 + max(a, 0); below that the integral, whose integrand is positive, replaces the
difference, so no digit is lost however small mu is. a < 0 implies |a| < mu / 2, hence
the integral is never asked for a < -1/2.

**Error bound.** Two sources, treated apart. (1) `a` is rounded: with u = 2^-53 its
error is at most u (epsilon/mu + 2 |a|), and because delta falls in `a` at fixed mu, a
bound follows from moving `a` by 4 u (epsilon/mu + |a|) to the safe side; no
linearisation. (2) Given `a`, the logarithm is off by at most u (64 + 4 terms), `terms`
being the sum of the magnitudes of what is added up. 4 covers the rounding of each
logarithm (2), of the sum (1) and of the bound added to it (1); 64 covers the special
functions: erfcx 8 u at worst and 2 u for its argument, times 4 for the difference of
two; the integral 5 u. Against 60-digit arithmetic (8000 points, mu from 1e-12 to 1e3)
the error never exceeded 0.45 of the bound; `tests/core/test_gdp.py` repeats this.
"""

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx

from demur.core import validate

_U = 2.0**-53  # unit round-off
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_BEYOND = 1e150  # |a| past which exp(-a^2 / 2) is zero or one for every float delta

# Trapezoidal rule after t = exp(x - exp(-x)): the error falls like exp(-c / step), and
# is below the round-off at step 1/10 already. Weights need no table.
_STEP = 1.0 / 16.0
_X = _STEP * np.arange(-52, 65)
_NODES = np.exp(_X - np.exp(-_X))
_WEIGHTS = _STEP * (1.0 + np.exp(-_X)) * _NODES


def log_delta(mu: float, epsilon: float) -> float:
    """Logarithm of the smallest delta of a mu-GDP mechanism at this epsilon.

    Relative error in delta: below 1e-12 for mu in [1e-12, 1e3] and delta >= 1e-320.

    >>> round(log_delta(1.0, 1.0), 12)  # delta = 0.1269
    -2.0640664465
    >>> log_delta(1e-12, 1e-11) < math.log(1e-30)
    True
    """
    validate.positive(mu=mu)
    validate.non_negative(epsilon=epsilon)
    mu, epsilon = float(mu), float(epsilon)
    return _log_delta(epsilon / mu - mu / 2.0, mu).value


def log_delta_upper(mu: float, epsilon: float) -> float:
    """`log_delta` moved up by its error bound: never below the true value.

    >>> 0.0 < log_delta_upper(1.0, 1.0) - log_delta(1.0, 1.0) < 1e-13
    True
    """
    validate.positive(mu=mu)
    validate.non_negative(epsilon=epsilon)
    estimate = _log_delta(_low_a(float(mu), float(epsilon)), float(mu))
    return min(0.0, estimate.value + estimate.error)


def meets(mu: float, epsilon: float, delta: float) -> bool:
    """True only if a mu-GDP mechanism certainly is (epsilon, delta)-DP.

    False within the error bound of the limit. Above delta = 1/2 the comparison is made
    on 1 - delta, which the float delta gives exactly.

    >>> meets(0.2366, 1.0, 1e-6), meets(0.2368, 1.0, 1e-6)
    (True, False)
    """
    validate.positive(mu=mu)
    validate.non_negative(epsilon=epsilon)
    validate.open_probability(delta=delta)
    return meets_unchecked(float(mu), float(epsilon), float(delta))


def meets_unchecked(mu: float, epsilon: float, delta: float) -> bool:
    """`meets`, for a search that has looked at its arguments once."""
    a = _low_a(mu, epsilon)
    if delta <= 0.5:
        estimate = _log_delta(a, mu)
        target = math.log(delta)
        return estimate.value + estimate.error <= target - 4.0 * _U * abs(target)
    if a >= 0.0:  # delta(mu, epsilon) < Phi(-a) <= 1/2
        return True
    estimate = _log_complement(a, mu)
    target = math.log(1.0 - delta)
    return estimate.value - estimate.error >= target + 4.0 * _U * abs(target)


def mu_of_pure(epsilon: float) -> float:
    """Smallest mu such that every epsilon-DP mechanism is mu-GDP, rounded up.

    mu = -2 Phi^-1(1 / (1 + e^epsilon)). Proof: the trade-off curve of an epsilon-DP
    mechanism lies on or above f(x) = max(0, 1 - e^epsilon x, e^-epsilon (1 - x)), whose
    graph is the two segments (0, 1) - (c, c) - (1, 0) with c = 1 / (1 + e^epsilon). The
    curve of mu-GDP, G(x) = Phi(Phi^-1(1 - x) - mu), is convex, runs from (0, 1) to
    (1, 0) and crosses the diagonal at Phi(-mu/2). If Phi(-mu/2) <= c, then G(c) <= c
    (G falls), and a convex curve lies below its chords, so G <= f everywhere. At
    Phi(-mu/2) = c the corner is touched (randomised response has curve f), so no
    smaller mu serves.

    Slack: at most 1e-13 relative, and one denormal step where the answer is denormal.

    >>> round(mu_of_pure(1.0), 6)
    1.232035
    >>> mu_of_pure(5e-324) > 0.0
    True
    """
    validate.non_negative(epsilon=epsilon)
    epsilon = float(epsilon)
    if epsilon == 0.0:
        return 0.0
    if epsilon <= 1e-8:
        # mu = sqrt(pi/2) epsilon (1 - 0.018 epsilon^2 + ...): the line is above the
        # curve by less than the rounding of its own product.
        slope = math.nextafter(_SQRT_HALF_PI, math.inf)
        return math.nextafter(slope * epsilon, math.inf)
    if epsilon <= 1.0:
        # 1 - 2 Phi(-mu/2) = erf(mu / sqrt 8) against 1 - 2c = tanh(epsilon / 2)
        floor = math.tanh(epsilon / 2.0) * (1.0 + 16.0 * _U)
        return closest_float(
            lambda mu: math.erf(mu / math.sqrt(8.0)) * (1.0 - 16.0 * _U) >= floor,
            good=math.sqrt(8.0) * 6.0,
            bad=0.0,
        )
    ceiling = -(epsilon + math.log1p(math.exp(-epsilon))) * (1.0 + 8.0 * _U)

    def covers(mu: float) -> bool:
        half = mu / 2.0
        peak = -half * (half / 2.0)
        if math.isinf(peak):
            return True
        tail = _sum(peak, -_LOG_SQRT_2PI, math.log(_mills(half)))
        return tail.value + tail.error <= ceiling

    return closest_float(covers, good=math.inf, bad=0.0)


def closest_float(holds: Callable[[float], bool], *, good: float, bad: float) -> float:
    """The float next to a failing one, in the direction of `good`, at which it holds.

    Bisection over the bit patterns of the floats >= 0: at most 64 calls, whatever the
    scale. Only floats at which `holds` was seen to be true are returned (`good` itself
    is taken on trust).

    >>> closest_float(lambda x: x * x <= 2.0, good=0.0, bad=math.inf)
    1.414213562373095
    """
    inside, outside = _bits(good), _bits(bad)
    while abs(inside - outside) > 1:
        middle = (inside + outside) // 2
        if holds(_float(middle)):
            inside = middle
        else:
            outside = middle
    return _float(inside)


class _Estimate(NamedTuple):
    """A logarithm and a bound on its error."""

    value: float
    error: float


def _low_a(mu: float, epsilon: float) -> float:
    """A float certainly at or below epsilon / mu - mu / 2."""
    quotient = epsilon / mu
    if math.isinf(quotient):  # then mu < 1
        return _BEYOND
    a = quotient - mu / 2.0
    return a - 4.0 * _U * quotient - 4.0 * _U * abs(a) - 5e-324


def _log_delta(a: float, mu: float) -> _Estimate:
    if a >= _BEYOND:
        return _Estimate(-math.inf, 0.0)
    if a < 0.0 and mu >= 1.0:
        complement = _log_complement(a, mu)
        c = math.exp(complement.value)  # at most 0.77
        value = math.log1p(-c)
        # the last summand is for a denormal value, which has no relative accuracy
        error = 2.0 * (complement.error + 4.0 * _U) * c / (1.0 - c)
        return _Estimate(value, error + 4.0 * _U * abs(value) + 1e-320)
    peak = -a * (a / 2.0)
    if mu >= 1.0 + max(a, 0.0):
        difference = _mills(a) - _mills(a + mu)
        return _sum(peak, -_LOG_SQRT_2PI, math.log(difference))
    slope = _mean_slope(a, mu)
    return _sum(peak, -_LOG_SQRT_2PI, math.log(mu), math.log(slope))


def _log_complement(a: float, mu: float) -> _Estimate:
    """log(1 - delta), for a < 0."""
    if a <= -_BEYOND:
        return _Estimate(-math.inf, 0.0)
    ratios = _mills(-a) + _mills(a + mu)
    return _sum(-a * (a / 2.0), -_LOG_SQRT_2PI, math.log(ratios))


def _mean_slope(a: float, mu: float) -> float:
    """(M(a) - M(a + mu)) / mu for a >= -1/2, mu <= 1 + max(a, 0): a positive sum."""
    scale = 1.0 / (1.0 + max(a, 0.0))
    t = scale * _NODES
    decay = t * np.exp(-t * (a + t / 2.0))
    y = np.maximum(mu * t, 1e-300)  # below it the quotient is 1 anyway
    return scale * float(np.sum(_WEIGHTS * decay * (-np.expm1(-y) / y)))


def _mills(x: float) -> float:
    return _SQRT_HALF_PI * float(erfcx(x / math.sqrt(2.0)))


def _sum(*terms: float) -> _Estimate:
    """The sum of rounded logarithms, with the error bound of the module docstring."""
    return _Estimate(math.fsum(terms), _U * (64.0 + 4.0 * math.fsum(map(abs, terms))))


def _bits(x: float) -> int:
    return int.from_bytes(struct.pack(">d", x))


def _float(bits: int) -> float:
    return float(struct.unpack(">d", bits.to_bytes(8))[0])
