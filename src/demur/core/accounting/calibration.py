"""Calibration by search: the least parameter whose event meets a privacy target.

What is returned has itself been priced. The Gaussian mechanism needs no search: it has
closed forms (`accounting.gaussian`).
"""

import math
from collections.abc import Callable
from typing import Any

from demur.core import accounting, validate

_EXPANSIONS = 60  # doublings of the bracket before a target counts as unattainable


def calibrate(
    make_event: Callable[[float], Any],
    epsilon: float,
    delta: float,
    *,
    price: Callable[[Any, float], float] = accounting.price,
    bracket: tuple[float, float] = (0.5, 2.0),
    rtol: float = 1e-6,
) -> float:
    """Smallest parameter whose event costs at most epsilon at delta.

    `make_event(parameter)` must get more private as the parameter grows (a noise
    multiplier); `price(event, delta)` says what an event costs. The answer is within
    `rtol` of a parameter that misses the target, and it has itself been priced and met
    the target: that holds whatever the shape of `price`, minimality only if `price`
    does not grow with the parameter.

    `bracket` is where the search begins; it is doubled upwards and halved downwards as
    needed. A target that is still met after the last halving is not binding, and the
    smallest parameter tried is the answer.

    Raises `ValueError` if no parameter tried meets the target, or if a price is NaN.

    >>> from demur.core.accounting.events import GaussianEvent
    >>> z = calibrate(GaussianEvent, epsilon=1.0, delta=1e-6)
    >>> round(z, 4), accounting.price(GaussianEvent(z), 1e-6) <= 1.0
    (4.2247, True)
    """
    validate.positive(epsilon=epsilon, rtol=rtol)
    validate.probability(delta=delta)
    low, high = bracket
    validate.positive(bracket_low=low, bracket_high=high)
    if not low < high:
        raise ValueError(f"bracket must be (low, high) with low < high; got {bracket}")

    def excess(parameter: float) -> float:
        """Logarithm of price over target: the target is met at or below zero."""
        cost = price(make_event(parameter), delta)
        if math.isnan(cost):
            raise ValueError(f"price is NaN at parameter={parameter}")
        if cost <= 0.0:
            return -math.inf
        # The logarithm may round to zero, so the sign comes from the comparison.
        size = abs(math.log(cost) - math.log(epsilon)) if cost < math.inf else math.inf
        return -size if cost <= epsilon else max(size, 5e-324)

    below = None
    above = excess(high)
    for _ in range(_EXPANSIONS):
        if above <= 0.0:
            break
        low, high, below = high, 2.0 * high, above
        above = excess(high)
    if above > 0.0:
        raise ValueError(
            f"no parameter up to {high:.3g} brings the price to epsilon={epsilon} at"
            f" delta={delta}: the target is unattainable, or the parameter does not"
            " make the event more private. Raise epsilon or delta, or widen bracket."
        )
    if below is None:
        below = excess(low)
    for _ in range(_EXPANSIONS):
        if below > 0.0:
            break
        low, high, above = low / 2.0, low, below
        below = excess(low)
    if below <= 0.0:
        return low
    return _shrink(excess, low, high, below, above, rtol)


def _shrink(
    excess: Callable[[float], float],
    low: float,
    high: float,
    below: float,
    above: float,
    rtol: float,
) -> float:
    """The good end of [low, high] once it is within rtol of the bad one.

    The ITP method (Oliveira and Takahashi 2020) on logarithms: about 8 prices for a
    smooth curve, where bisection takes 20, and never more than one beyond bisection.
    """
    width = math.log(high / low)
    tolerance = math.log1p(rtol) / 2.0
    most = math.ceil(math.log2(max(width / (2.0 * tolerance), 1.0))) + 1
    slope = 0.2 / width
    for step in range(2 * most):
        width = math.log(high / low)
        if high <= low * (1.0 + rtol):
            break
        offset = width / 2.0  # of the next parameter, from log(low)
        if math.isfinite(below) and math.isfinite(above):
            secant = width * below / (below - above)
            towards = math.copysign(1.0, offset - secant)
            moved = secant + towards * min(slope * width**2, abs(offset - secant))
            reach = max(tolerance * 2.0 ** (most - step) - offset, 0.0)
            offset += min(max(moved - offset, -reach), reach)
        parameter = low * math.exp(offset)
        if not low < parameter < high:
            break
        value = excess(parameter)
        if value <= 0.0:
            high, above = parameter, value
        else:
            low, below = parameter, value
    return high
