"""Privacy profiles of random allocation: a record in one of several Gaussian sums.

A record joins one of m steps, uniformly and independently of all others; every step
publishes its sum with noise s per unit of contribution. Whatever is published before
may choose what comes next.

**The dominating pair.** Given the other records and their steps, step t adds the
record's contribution x_t, |x_t| <= 1, which earlier outputs determine, if the record
is in t. From y_t = [the record is in t] + s z_t one computes [in t] x_t + s N(0, I):
scale y_t by |x_t|, add the missing noise along x_t, and draw the other directions. So
a run with the record is post-processing of P = 1/m sum_t N(e_t, s^2 I), one without it
(or blanked) of Q = N(0, s^2 I). Nothing is lost: a loss whose gradients are constant
attains it. (Chua et al. 2024, Feldman and Shenfeld 2025.)

**Its profile.** dP/dQ = W, the mean of m independent w = exp(x / s - 1 / 2s^2), x
standard normal. For a record that vanishes delta is E (W - e^epsilon)+, for one that
appears E (1 - e^epsilon W)+, both under Q. Both are means of a convex function of
independent terms: moving a term's mass to both ends of an interval, mean unchanged, can
only raise them. So w is put on a grid that way, sums of 1, 2, 4, ... terms are formed
pair by pair and put on the next grid the same way, and every result is an upper bound.
Cells are a 50th of a deviation, or 2% wide: epsilon comes out 0.1% too large.

**k of T steps.** A uniform set of k steps is drawn by dividing the T steps at random
into k blocks and taking one of each block: by symmetry every set is equally likely,
whatever the sizes of the blocks. The division says nothing about the data. Given it,
the pair is a product of pairs for one step of each block, and delta is at most the mean
over divisions (joint convexity). So the run costs no more than one `AllocatedGaussian`
for each block.

**Rounding.** Masses are good to 1e-9 of themselves. Places are off by less than SLACK
of themselves, which moves delta by less than SLACK of what lies beyond the cut. Noise
beyond `_REACH` deviations, left out, counts as a loss without limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtr

from demur.core.accounting.events import AllocatedGaussian

Curve = NDArray[Any]
SLACK = 1e-12  # Of the places of a grid, for their rounding.
_REACH = 9.0  # Deviations of the noise; beyond, 1e-19.
_CELLS = 50  # In one deviation of a sum.
_RATIO = 0.02  # Of two neighbouring places far from the mean.
_WIDTH = 8.0  # Deviations of a sum that have cells of equal size.
_SHOWN = 1e-20  # Less probable losses are not part of the range.


@dataclass(frozen=True, eq=False)
class _Ratios:
    """A law of dP/dQ under Q that lies above the true one in convex order."""

    places: Curve
    masses: Curve
    left_out_with: float  # The chance of noise beyond the grid, with the record in.
    left_out_without: float


def hockey_stick(event: AllocatedGaussian, epsilons: Curve, vanishes: bool) -> Curve:
    """delta at each epsilon, rounded up, for a record that vanishes or appears."""
    law = _ratios(event.steps, event.multiplier)
    places, masses = law.places, law.masses
    with np.errstate(over="ignore"):
        cut = np.exp(epsilons if vanishes else -epsilons)
    first = np.searchsorted(places, cut, side="right" if vanishes else "left")
    if vanishes:
        chance = _from(masses, first)
        moment = _from(masses * places, first)
        stick = moment - np.where(np.isfinite(cut), cut, 0.0) * chance
        near = _from(masses * places, np.searchsorted(places, cut * (1 - 1e-9)))
        left_out = law.left_out_with
    else:
        chance, moment = _before(masses, first), _before(masses * places, first)
        stick = chance - np.exp(np.minimum(epsilons, 700.0)) * moment
        near = _before(masses, np.searchsorted(places, cut * (1 + 1e-9)))
        left_out = law.left_out_without
    return np.maximum(stick, 0.0) * (1 + 1e-9) + SLACK * near + left_out


def loss_range(event: AllocatedGaussian, vanishes: bool) -> tuple[float, float]:
    """The range of the privacy loss, but for what is less probable than 1e-20."""
    law = _ratios(event.steps, event.multiplier)
    below = np.cumsum(law.masses)
    above = np.cumsum((law.masses * law.places)[::-1])[::-1]
    low = min(int(np.searchsorted(below, _SHOWN)), len(below) - 2)
    high = len(above) - int(np.searchsorted(above[::-1], _SHOWN))
    ends = law.places[max(low, 1)], law.places[min(max(high, 2), len(above) - 1)]
    least, most = math.log(ends[0]), math.log(ends[1])
    return (least, most) if vanishes else (-most, -least)


def _from(values: Curve, first: Curve) -> Curve:
    """Sums of `values` from each index on."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)[first]


def _before(values: Curve, first: Curve) -> Curve:
    """Sums of `values` before each index."""
    return np.append(0.0, np.cumsum(values))[first]


@lru_cache(maxsize=64)
def _ratios(steps: int, multiplier: float) -> _Ratios:
    """The law of the mean of `steps` terms, by doubling."""
    term = _one_term(multiplier)
    variance = math.expm1(1.0 / multiplier**2)
    total: tuple[int, Curve, Curve] | None = None
    power, left = (1, *term), steps
    while True:
        if left & 1:
            total = power if total is None else _added(total, power, variance)
        left >>= 1
        if not left:
            break
        power = _added(power, power, variance)
    assert total is not None
    shift = 1.0 / multiplier
    with_record = ndtr(-_REACH) + (steps - 1) * ndtr(-_REACH - shift)
    return _Ratios(
        total[1] / steps,
        total[2],
        float(with_record) * (1 + 1e-9),
        float(steps * ndtr(-_REACH - shift)) * (1 + 1e-9),
    )


def _one_term(s: float) -> tuple[Curve, Curve]:
    """exp(x / s - 1 / 2s^2) on a grid: each cell's mass at its ends, mean kept."""
    half = 0.5 / (s * s)
    ends = math.exp(-_REACH / s - half), math.exp((_REACH + 1.0 / s) / s - half)
    places = _grid(1.0, math.sqrt(math.expm1(2 * half)), *ends)
    with np.errstate(divide="ignore"):
        x = s * (np.log(places) + half)
    mass, mean = _between(x), _between(x - 1.0 / s)
    upper = np.clip((mean - mass * places[:-1]) / np.diff(places), 0.0, mass)
    masses = np.zeros(len(places))
    masses[:-1] += mass - upper
    masses[1:] += upper
    return places, masses


def _between(x: Curve) -> Curve:
    """The mass of a standard normal between neighbours."""
    low, high = x[:-1], x[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _grid(mean: float, deviation: float, low: float, high: float) -> Curve:
    """0, places in equal steps around the mean, and places in equal ratios."""
    around = np.arange(
        max(mean - _WIDTH * deviation, 0.0),
        min(mean + _WIDTH * deviation, high),
        deviation / _CELLS,
    )
    # The last place is not below `high`.
    count = math.ceil(math.log(high / low) / _RATIO) + 2
    ratios = low * np.exp(_RATIO * np.arange(count))
    places = np.unique(np.concatenate([[0.0], around, ratios]))
    apart = np.diff(places, prepend=-1.0) > 1e-9 * places
    return places[apart]


def _added(
    a: tuple[int, Curve, Curve], b: tuple[int, Curve, Curve], variance: float
) -> tuple[int, Curve, Curve]:
    """The law of a sum of independent terms, again on a grid."""
    count = a[0] + b[0]
    deviation = math.sqrt(count * variance)
    places = _grid(float(count), deviation, a[1][1], a[1][-1] + b[1][-1])
    return count, places, _pairs(*a[1:], *b[1:], places)


@njit(cache=True, nogil=True)
def _pairs(
    places_a: Curve, masses_a: Curve, places_b: Curve, masses_b: Curve, grid: Curve
) -> Curve:
    out = np.zeros(len(grid))
    last = len(grid) - 2
    for i in range(len(places_a)):
        if masses_a[i] == 0.0:
            continue
        at = 0
        for j in range(len(places_b)):
            value = places_a[i] + places_b[j]
            mass = masses_a[i] * masses_b[j]
            while at < last and grid[at + 1] < value:
                at += 1
            share = (value - grid[at]) / (grid[at + 1] - grid[at])
            share = min(max(share, 0.0), 1.0)
            out[at] += mass * (1.0 - share)
            out[at + 1] += mass * share
    return out
