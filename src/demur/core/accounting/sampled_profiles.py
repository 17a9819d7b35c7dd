"""Privacy profiles of repeated sampled events, by privacy loss distributions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core.accounting import events, sampled_gaussian
from demur.core.accounting.events import Event, Sampled
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import Total, total_of
from demur.core.accounting.upper_bounds import poisson_twin, renyi_epsilon, too_wide

GRID_EXPONENT = 13  # Privacy losses on a grid of 2^-13, about 1e-4.
# The FFT of a composition leaves about 6e-17 in delta for each step, to either side.
FFT_ERROR = 2e-16
REACH = 9.75  # Deviations of the noise; beyond, 1e-22, a loss counts as infinite.
_KEPT_DOTS = 2**14  # Dots of a profile that is stored with an entry.


def profile_of(event: Event) -> Profile | None:
    """The profile to store with an entry: of a repeated sampled event, else None."""
    counts = events.atoms(event)
    if len(counts) != 1:
        return None
    ((atom, count),) = counts.items()
    if not isinstance(atom, Sampled) or atom.probability in (0.0, 1.0):
        return None
    if too_wide(total_of(event), 1e-6):
        return None
    return sampled_profile(atom, count)


@lru_cache(maxsize=64)
def sampled_profile(event: Sampled, count: int) -> Profile:
    """The profile of `count` sampled steps, from a privacy loss distribution."""
    step = math.ldexp(1.0, -grid_exponent(event, count))
    pmfs = [_composed(event, count, step, vanishes) for vanishes in (True, False)]
    first = min(pmf._lower_loss for pmf in pmfs)
    last = max(pmf._lower_loss + pmf.size for pmf in pmfs)
    error = FFT_ERROR * (count + 50)
    curves = [_hockey_stick(pmf, first, last, step, error) for pmf in pmfs]
    profile = Profile(grid_exponent(event, count), first, *curves)
    surplus = max(0, math.ceil(math.log2(curves[0].size / _KEPT_DOTS)))
    return profile.coarser(profile.exponent - surplus)


def connected_dots(
    event: Sampled, step: float, vanishes: bool, reach: float = REACH
) -> Any:
    """The masses of one step's loss on a grid: its hockey stick's dots, connected.

    Doroshenko et al., "Connect the Dots" (2022): between dots a stick lies below the
    line in e^epsilon, so that the masses of the connected line dominate it.
    """
    from dp_accounting.pld import pld_pmf

    low, high = sampled_gaussian.loss_range(event, reach, vanishes)
    ends = math.floor(low / step), math.ceil(high / step) + 1
    losses = np.arange(ends[0], ends[1] + 1) * step
    stick = sampled_gaussian.hockey_stick(event, losses, vanishes)
    falling = np.minimum.accumulate(np.clip(stick, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, *ends, falling)


def _composed(event: Sampled, count: int, step: float, vanishes: bool) -> Any:
    masses = connected_dots(event, step, vanishes)
    return (masses.self_compose(count) if count > 1 else masses).to_dense_pmf()


def grid_exponent(event: Sampled, count: int) -> int:
    """A step of about 1e-4; finer for a small whole epsilon, coarser for a large."""
    twin, times = poisson_twin(event, count)
    rough = renyi_epsilon(Total(0.0, {}, {}, {twin: times}), 1e-6)
    if rough < 0.5:
        return GRID_EXPONENT + math.ceil(math.log2(0.5 / max(rough, 1e-3)))
    return GRID_EXPONENT - max(0, math.ceil(math.log2(rough / 8)))


def _hockey_stick(
    pmf: Any, first: int, last: int, step: float, error: float
) -> NDArray[np.float64]:
    """delta at each grid point from first to last, from point masses on the grid.

    With A_j = sum of p_i over i > j and B_j = sum of p_i e^-(i - j) step over i > j,
    delta_j = infinity + A_j - B_j, and B_j = e^-step (p_j+1 + B_j+1): one linear
    filter from the right. The result is moved up by more than its rounding and by the
    `error` of the masses.
    """
    from scipy.signal import lfilter  # 0.7 s to import, and rarely needed

    masses = np.zeros(last - first + 2)
    start = pmf._lower_loss - first
    masses[start : start + pmf.size] = pmf._probs
    from_right = masses[::-1]
    above = np.cumsum(from_right) - from_right
    shrink = math.exp(-step)
    discounted = lfilter([0.0, shrink], [1.0, -shrink], from_right)
    delta = pmf._infinity_mass + np.maximum(above - discounted, 0.0)
    delta = delta * (1.0 + 1e-9) + error
    return np.minimum(np.maximum.accumulate(delta)[::-1], 1.0)
