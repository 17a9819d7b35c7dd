"""The threshold L for a unit and its price: which (epsilon, L) of one price tell most.

A unit that moves a point by at most R costs epsilon min(R, L). At a price P, L below R
allows the rate epsilon = P / L: sharp reports, of which a large share falls on the
uniform floor. L from R on leaves epsilon = P / R, and then the L of `alpha` = 0.99 is
best or nearly so. In few dimensions the floor is thin and a small L wins by factors; in
many its share grows like (1 + 2L)^d, and it loses.

**Criterion.** Fisher's information of a report about a single known point does not
decide it: at d = 2 it grows as L falls to 0, where no report shows which cluster it is
of. What counts is the information J of a report about the centres of a *mixture*, all
of them at once, labels unknown. Over n reports the error of any estimator of centres
that are somewhere in the cube is at least about

    risk = trace (n J + 12 I)^-1 / K       (van Trees; 1 / 12 is the cube's variance).

It is computed by simulation on public shapes, 4 clusters at random places, of the
widths 0.05, 0.1 and 0.15 of the cube: J is a mean of squared scores over simulated
reports, with fixed seeds. No report tells more than its point with its label would, so
that the risk is at least d / (n / (K width^2) + 12); below that the simulation is at
its end (reports sharper than its 64 points of a cluster lie apart). Of a grid of
L the one is taken whose risk over the least risk on the grid is smallest, for the width
that it suits worst (minimax regret). The grid begins at 0.2: the bound
holds near the right centres alone, and with reports that
show less of the cube at a time the search for them has more wrong ends. It is a
function of public numbers, computed once for each (price, R, d, n).

At L from R on the rate P / R leaves, where the price is large, an L of `alpha` = 0.99
that is *below* R: epsilon L is then less than the price, and a larger rate is to be had
for it. The last place of the grid is the pair with epsilon min(L(epsilon), R) = P, up
to a rate of 10,000 (a deviation of a ten-thousandth of the cube), beyond which L grows
instead.

From 17 dimensions on the largest L is taken without a search: the share of reports
within L, at the price 16 and L = 1, is below 1e-9 there.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.mechanisms.bpm import constants

Array = NDArray[np.float64]

USUAL_COUNT = 10_000  # reports, where a caller does not say how many
_SMALLEST, _GRID = 0.2, 10
_MOST_DIMENSIONS = 16
_WIDTHS = (0.05, 0.1, 0.15)
_CLUSTERS, _SHAPES = 4, 2
_REPORTS, _OFFSETS = 400, 64
_SHARPEST = 1e4  # rate


@lru_cache(maxsize=256)
def threshold_at_price(
    price: float, radius: float, dimension: int, n: int
) -> tuple[float, float]:
    """(epsilon, L) of epsilon min(radius, L) = price, about, with the least risk.

    >>> [round(threshold_at_price(4.0, d**0.5, d, 10_000)[1], 2) for d in (2, 8)]
    [0.2, 16.75]
    """
    last = _without_floor(price, radius, dimension)
    if dimension > _MOST_DIMENSIONS or radius <= _SMALLEST:
        return last
    grid = [(price / L, float(L)) for L in np.geomspace(_SMALLEST, radius, _GRID)[:-1]]
    grid.append(last)
    risks = np.array(
        [[risk(*pair, dimension, n, width) for pair in grid] for width in _WIDTHS]
    )
    regret = (risks / risks.min(axis=1, keepdims=True)).max(axis=0)
    return grid[int(regret.argmin())]


def _without_floor(price: float, radius: float, dimension: int) -> tuple[float, float]:
    """(epsilon, L) of that price at which 99% of a report are about its point."""

    def auto(rate: float) -> float:
        return constants.threshold_for(rate, dimension, constants.ALPHA_OF_AUTO)

    low = price / radius
    first = auto(low)
    if first >= radius:
        return low, first
    high = max(low, _SHARPEST)
    if high * auto(high) <= price:
        return high, price / high
    # Always low L(low) <= price, so that L = price / low is enough for 99%.
    while high > low * (1.0 + 1e-9):
        middle = math.sqrt(low * high)
        if middle * auto(middle) <= price:
            low = middle
        else:
            high = middle
    return low, price / low


def risk(epsilon: float, L: float, dimension: int, n: int, width: float) -> float:
    """The squared error of a centre from n reports, at least; see above."""
    rng = np.random.default_rng(24)
    found = []
    for _ in range(_SHAPES):
        centers = 0.1 + 0.8 * rng.random((_CLUSTERS, dimension))
        reports = _reports(epsilon, L, centers, width, rng)
        scores = _scores(epsilon, L, centers, width, reports, rng)
        information = scores.T @ scores / len(scores)
        bound = np.linalg.inv(n * information + 12.0 * np.eye(len(information)))
        found.append(float(np.trace(bound)) / _CLUSTERS)
    points = dimension / (n / (_CLUSTERS * width**2) + 12.0)
    return max(float(np.mean(found)), points)


def _reports(
    k: float, L: float, centers: Array, width: float, rng: np.random.Generator
) -> Array:
    """Simulated reports by the mixture of `constants`; nobody's points."""
    d = centers.shape[1]
    which = rng.integers(len(centers), size=_REPORTS)
    points = centers[which] + width * rng.normal(size=(_REPORTS, d))
    directions = rng.normal(size=(_REPORTS, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    u, inside, coin = rng.random((3, _REPORTS))
    anywhere = rng.random((_REPORTS, d)) * (1.0 + 2.0 * L) - L
    mass = float(special.gammainc(d + 1, k * L))
    # Where the mass has no float the radius is uniform in the ball of radius L, about.
    radius = (
        special.gammaincinv(d + 1, u * mass) / k
        if mass > 1e-280
        else L * u ** (1.0 / (d + 1))
    )
    near = points + (radius * inside ** (1.0 / d))[:, None] * directions
    alpha = math.exp(constants.constants(k, L, d).log_alpha)
    return np.where((coin < alpha)[:, None], near, anywhere)


def _scores(
    k: float,
    L: float,
    centers: Array,
    width: float,
    reports: Array,
    rng: np.random.Generator,
) -> Array:
    """Slopes of each report's log density by all coordinates of the centres."""
    d = centers.shape[1]
    half = width * rng.normal(size=(_OFFSETS // 2, d))
    offsets = np.concatenate([half, -half])
    density = np.empty((len(reports), len(centers)))
    slopes = np.empty((len(reports), len(centers), d))

    def distances(center: Array) -> tuple[Array, Array]:
        gaps = reports[:, None, :] - center - offsets
        return gaps, np.sqrt((gaps**2).sum(axis=2)) + 1e-12

    nearest = np.min([distances(c)[1].min(axis=1) for c in centers], axis=0)
    top = np.maximum(L - nearest, 0.0)[:, None]  # of this report, out of the exponent
    for j, center in enumerate(centers):
        gaps, r = distances(center)
        f = np.exp(k * (np.maximum(L - r, 0.0) - top))  # over the floor
        density[:, j] = f.mean(axis=1)
        slopes[:, j] = ((f * k * (r < L) / r)[:, :, None] * gaps).mean(axis=1)
    total = density.sum(axis=1)[:, None, None]
    return np.asarray((slopes / total).reshape(len(reports), -1))
