r"""The Gaussian mechanism: noise for a privacy target, and the privacy of given noise.

Every number returned here has been checked before it was returned, and the check errs
to one side: a Gaussian answer satisfies `gdp.meets`, which adds the error bound of the
profile before it compares, so the *true* delta of the answer is at most the target. The
search is a bisection over floats that returns its good end, never a midpoint.

What the error bound costs, relative to the exact answer (measured; see the tests):

    gaussian_mu       4e-14 for epsilon in [1e-6, 1e4], delta in [1e-300, 1); 2e-15
                      once delta <= 1e-20
    gaussian_sigma    the same, and one rounding
    gaussian_delta    3e-12 for epsilon <= 1e4, 1e-11 up to mu = 1e3; delta >= 1e-300
    gaussian_epsilon  1e-13, or 1e-13 delta absolute where that is more (close to
                      epsilon = 0 the profile depends on epsilon too little)
"""

import math
from functools import lru_cache
from typing import Literal

from demur.core import validate
from demur.core.accounting import gdp
from demur.core.rounding import quotient_up

_LARGEST = math.nextafter(math.inf, 0.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose Gaussian mechanism is (epsilon, delta)-DP, rounded down.

    >>> round(gaussian_mu(1.0, 1e-6), 6)
    0.236704
    """
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    return _largest_mu(float(epsilon), float(delta))


# A ledger asks for the same few numbers at every charge and in every status.
@lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    return gdp.closest_float(
        lambda mu: mu == 0.0 or gdp.meets_unchecked(mu, epsilon, delta),
        good=0.0,
        bad=1e200,
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of a mu-GDP mechanism at delta, rounded up.

    Zero if delta is at least the total variation distance 2 Phi(mu / 2) - 1.

    >>> round(gaussian_epsilon(1.0, 1e-6), 6)
    4.886554
    >>> gaussian_epsilon(0.1, 0.05)
    0.0
    """
    validate.non_negative(mu=mu)
    validate.open_probability(delta=delta)
    return _smallest_epsilon(float(mu), float(delta))


@lru_cache(maxsize=1024)
def _smallest_epsilon(mu: float, delta: float) -> float:
    if mu == 0.0 or gdp.meets_unchecked(mu, 0.0, delta):
        return 0.0
    if not gdp.meets_unchecked(mu, _LARGEST, delta):
        return math.inf
    return gdp.closest_float(
        lambda epsilon: gdp.meets_unchecked(mu, epsilon, delta),
        good=_LARGEST,
        bad=0.0,
    )


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Smallest delta of a mu-GDP mechanism at epsilon, rounded up: never 0 for mu > 0.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    >>> gaussian_delta(1.0, 1000.0)
    5e-324
    """
    validate.non_negative(mu=mu, epsilon=epsilon)
    if mu == 0.0:
        return 0.0
    delta = math.exp(gdp.log_delta_upper(mu, epsilon))
    return min(1.0, math.nextafter(delta * (1.0 + 2.0**-50), math.inf))


def gaussian_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float = 1.0,
    *,
    method: Literal["analytic", "classic"] = "analytic",
) -> float:
    """Smallest standard deviation that makes the query (epsilon, delta)-DP, rounded up.

    `sensitivity` is the largest Euclidean change of the query between neighbours.
    "analytic" inverts the exact profile (Balle and Wang 2018). "classic" is
    sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, Theorem A.1),
    proved for epsilon up to 1 and refused above: at epsilon = 20, delta = 1e-6 it gives
    161 times the delta it promises.

    >>> round(gaussian_sigma(1.0, 1e-6), 6)
    4.224679
    >>> round(gaussian_sigma(1.0, 1e-6, method="classic"), 6)
    5.298803
    """
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    validate.non_negative(sensitivity=sensitivity)
    epsilon, delta, sensitivity = float(epsilon), float(delta), float(sensitivity)
    if method == "analytic":
        mu = gaussian_mu(epsilon, delta)
    elif method == "classic":
        # The theorem is stated below 1; at 1 it holds because delta is continuous.
        if epsilon > 1.0:
            raise ValueError(
                "method='classic' is proved for epsilon <= 1 only (Dwork and Roth 2014,"
                f" Theorem A.1) and adds too little noise above; got epsilon={epsilon}."
                " Use method='analytic', which is exact for every epsilon."
            )
        # ln(1.25 / delta) without the quotient, which overflows at a denormal delta
        width = math.sqrt(2.0 * (math.log(1.25) - math.log(delta)))
        mu = epsilon / width * (1.0 - 2.0**-50)
    else:
        raise ValueError(f"method must be 'analytic' or 'classic'; got {method!r}")
    sigma = quotient_up(sensitivity, mu)
    if math.isinf(sigma):
        raise ValueError(
            f"sensitivity is too large for this target: {sensitivity} / {mu} overflows."
            " Rescale the query."
        )
    return sigma


SAMPLER_SHARE = 2.0**-20


def ideal_delta(delta: float) -> float:
    """The part of `delta` for the ideal mechanism, after its sampler's share.

    A sampler at statistical distance eta from the ideal distribution adds
    (1 + e^epsilon) * eta to delta. A ledger sets 2^-20 of its delta aside for that, so
    a mechanism that is to use up a whole budget is calibrated to this delta.

    >>> 0.0 < 1e-6 - ideal_delta(1e-6) < 1e-12
    True
    """
    validate.probability(delta=delta)
    if delta == 0.0:
        return 0.0
    return math.nextafter(delta * (1.0 - SAMPLER_SHARE), 0.0)
