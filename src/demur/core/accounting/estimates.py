"""Rough prices of sampled events, for searches."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from demur.core import validate
from demur.core.accounting.events import Sampled
from demur.core.accounting.prices import PLD_SMALLEST_DELTA
from demur.core.accounting.sampled_profiles import connected_dots, grid_exponent
from demur.core.accounting.totals import Total
from demur.core.accounting.upper_bounds import closed_form, renyi_epsilon, too_wide

_ROUGH_POINTS = 2**16  # Points of a rough distribution, at the least.


def rough_price(event: Sampled, count: int, delta: float) -> float:
    """A rough price of `count` sampled steps, in a hundredth of the time.

    It guides a search for a parameter. Nothing may rest on it: what the search finds
    has to be priced by `price`.
    """
    validate.open_probability(delta=delta)
    total = Total(0.0, {}, {}, {event: count})
    simple = min(closed_form(total, delta), renyi_epsilon(total, delta))
    if delta < PLD_SMALLEST_DELTA or too_wide(total, delta):
        return simple
    exponent = grid_exponent(event, count) - 3
    # Noise beyond this has a thousandth of what delta leaves to one step.
    reach = -float(ndtri(1e-3 * delta / count))
    directions = [
        _rough_epsilon(event, count, delta, exponent, reach, vanishes)
        for vanishes in (True, False)
    ]
    return min(max(directions), simple)


def _rough_epsilon(
    event: Sampled,
    count: int,
    delta: float,
    exponent: int,
    reach: float,
    vanishes: bool,
) -> float:
    """Epsilon in one direction, by one cyclic convolution on a coarse grid."""
    step = math.ldexp(1.0, -exponent)
    pmf = connected_dots(event, step, vanishes, reach).to_dense_pmf()
    size = max(_ROUGH_POINTS, 2 ** math.ceil(math.log2(4 * pmf.size)))
    masses = np.zeros(size)
    masses[(pmf._lower_loss + np.arange(pmf.size)) % size] = pmf._probs
    whole = np.fft.irfft(np.fft.rfft(masses) ** count, size)
    # Losses from -size/4 to 3/4 size steps; what wraps round has no mass to speak of.
    losses = np.arange(-(size // 4), size - size // 4) * step
    whole = np.maximum(whole[np.arange(-(size // 4), size - size // 4) % size], 0.0)
    infinite = -math.expm1(count * math.log1p(-min(pmf._infinity_mass, 1 - 1e-16)))
    above = np.cumsum(whole[::-1])[::-1]
    # Nothing is asked about losses beyond 700, which are no numbers once exponentiated.
    weights = np.exp(np.clip(losses, -700.0, 700.0))
    discounted = np.cumsum((whole / weights)[::-1])[::-1]
    at = infinite + above - weights * discounted
    inside = np.flatnonzero(at > delta)
    if not len(inside):
        return 0.0
    last = int(inside[-1])
    if last + 1 == size:
        return math.inf
    share = (at[last] - delta) / max(at[last] - at[last + 1], 1e-300)
    return max(0.0, float(losses[last] + share * step))
