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

**Few reports.** The bound holds near the right centres: it is of a curvature, and says
nothing about whether the reports tell the right centres from wrong ones far away. That
takes information about the centres as a whole. With I the mutual information of a
report and the centres (at random in the cube), n reports have at most n I nats for K d
coordinates, and by the rate of a squared error (Shannon's) an estimate from them has at
least about the error

    far = d / 12 exp(-2 n I / (K d)).

A report of small L has little of it: most fall on the floor, and one that does not
shows its own neighbourhood alone. The risk that is compared is the sum of both bounds,
at most twice the larger. At the price 2.83 in the plane 300 reports have n I = 8, 13
and 8 nats at L = 0.2, 0.45 and 3.2 (width 0.05), so that L = 0.2, the best of 10,000
reports, is not the best of 300; from a few thousand on `far` is nothing.

Both are computed by simulation on public shapes, 4 clusters at random places, of the
widths 0.05, 0.1 and 0.15 of the cube: J is a mean of squared scores over simulated
reports, with fixed seeds. No report tells more than its point with its label would, so
that the risk is at least d / (n / (K width^2) + 12); below that the simulation is at
its end (reports sharper than its 64 points of a cluster lie apart). Of a grid of
L the one is taken whose risk over the least risk on the grid is smallest, for the width
that it suits worst (minimax regret). The grid begins at 0.2: with reports that show
less of the cube at a time the search for the right centres has more wrong ends,
whatever the information. It is a function of public numbers, computed once for each
(price, R, d, n).

I is the mean of log(f / g) over reports, f their density given the centres and g that
over all shapes. r = g / f has the mean 1 under f, so that r - 1 - log r has the same
mean, is never negative, and varies far less.

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
_LAYOUTS, _OF_EACH = 32, 50  # shapes for the information, and reports of each
_RADII, _AROUND = 256, 256  # of a cluster's density: distances, and points of it


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
        [[total_risk(*pair, dimension, n, w) for pair in grid] for w in _WIDTHS]
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


def total_risk(epsilon: float, L: float, dimension: int, n: int, width: float) -> float:
    """The error near the right centres and that of not finding them, added."""
    near = risk(epsilon, L, dimension, n, width)
    nats = 2.0 * n * information(epsilon, L, dimension, width)
    return near + dimension / 12.0 * math.exp(-nats / (_CLUSTERS * dimension))


@lru_cache(maxsize=1024)
def information(epsilon: float, L: float, dimension: int, width: float) -> float:
    """Nats that a report tells of the centres of 4 clusters, wherever these are."""
    rng = np.random.default_rng(24)
    layouts = 0.1 + 0.8 * rng.random((_LAYOUTS, _CLUSTERS, dimension))
    radii, logs = _profile(epsilon, L, dimension, width, rng)
    reports = np.concatenate(
        [_reports(epsilon, L, each, width, rng)[:_OF_EACH] for each in layouts]
    )
    places = layouts.reshape(-1, dimension)
    squares = (reports**2).sum(axis=1)[:, None] + (places**2).sum(axis=1)
    squares -= 2.0 * reports @ places.T
    far = np.sqrt(np.maximum(squares, 0.0))
    found = np.interp(far, radii, logs).reshape(len(reports), _LAYOUTS, -1)
    given = special.logsumexp(found, axis=2) - math.log(_CLUSTERS)
    own = given[np.arange(len(reports)), np.repeat(np.arange(_LAYOUTS), _OF_EACH)]
    log_r = special.logsumexp(given, axis=1) - math.log(_LAYOUTS) - own
    return float((np.expm1(log_r) - log_r).mean())


def _profile(
    k: float, L: float, dimension: int, width: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Distances from a centre, and log density of a report there, over the floor's."""
    spread = width * (math.sqrt(dimension) + 4.0)
    radii = np.linspace(0.0, L + spread, _RADII)
    offsets = width * rng.normal(size=(_AROUND, dimension))
    across = (offsets[:, 1:] ** 2).sum(axis=1)
    gaps = np.sqrt((radii[:, None] + offsets[:, 0]) ** 2 + across)
    logs = special.logsumexp(k * np.maximum(L - gaps, 0.0), axis=1)
    return radii, logs - math.log(_AROUND)


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
