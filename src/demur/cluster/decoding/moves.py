"""Split and merge: moves of one cluster from where it does little to where one lacks.

Starts at random miss a small cluster, and no gradient step finds it later: it lies in
the tails of others. Whether one lacks at c is seen in the reports. With p the density
of the fitted mixture and f_c that of a cluster at c, a share w moved to c gains

    sum_i log(1 + w D_i(c)),   D_i(c) = f_c(x_i) / p(x_i) - 1,

whose slope at w = 0 is the gradient function of mixtures (at most 0 for every c where
the likelihood is at its maximum over all laws of points). To second order the best
share is w = sum D / sum D^2, and the gain (sum D)^2 / (2 sum D^2). Places c are drawn
from the reports, from the cube and from the prior of the centres, and around the
clusters themselves (a split). The cluster that is given up is the one without which
the others explain the reports best. A move is kept if the posterior density is higher
after a few steps of the optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.rows.ranked_rows import RowsInMemory

Array = NDArray[np.float64]

PLACES = 288
_REPORTS = 10_000  # on which places are compared


@dataclass(frozen=True, eq=False)
class LackingCluster:
    """Where a cluster may lack: its centre, width, best share, and the nats gained."""

    center: Array
    width: float
    share: float
    gain: float


def proposals(
    objective: MixtureObjective,
    now: Clusters,
    rng: np.random.Generator,
    *,
    most: int = 4,
) -> list[Clusters]:
    """Clusters with one of them moved to where it gains most, best first."""
    reports = rows_of(objective)
    logs = log_parts(objective, now, reports)
    places = lacking(objective, now, logs, rng, most)
    losses = losses_without(now, logs)
    moved = [
        (place.gain - losses[j], _with(without(now, int(j)), place))
        for j in np.argsort(losses)[:2]
        for place in places
    ]
    moved.sort(key=lambda pair: -pair[0])
    return [clusters for _, clusters in moved[:most]]


def additions(
    objective: MixtureObjective,
    now: Clusters,
    rng: np.random.Generator,
    *,
    most: int = 4,
) -> list[Clusters]:
    """Clusters with one more, at the places where one lacks most."""
    logs = log_parts(objective, now, rows_of(objective))
    return [_with(now, place) for place in lacking(objective, now, logs, rng, most)]


def lacking(
    objective: MixtureObjective,
    now: Clusters,
    logs: Array,
    rng: np.random.Generator,
    most: int,
) -> list[LackingCluster]:
    """Places apart from each other where one more cluster gains most."""
    reports = rows_of(objective)
    wide = float(np.median(now.widths))
    where = _places(objective, now, reports, rng, PLACES)
    widths = np.where(rng.random(len(where)) < 0.5, wide, objective.table.narrowest)
    new = cluster_logs(objective, where, widths, reports)
    share, gain = _gains(new - log_sum(logs)[:, None])
    share = np.clip(share, 1e-3, 0.5)
    return [
        LackingCluster(where[i], float(widths[i]), float(share[i]), float(gain[i]))
        for i in _apart(where, np.argsort(-gain), 0.5 * wide, most)
    ]


def losses_without(now: Clusters, logs: Array) -> Array:
    """The nats that the others lose when each cluster in turn is left out."""
    total = log_sum(logs)
    rest = [
        float((total - log_sum(np.delete(logs, j, axis=1))).sum())
        for j in range(len(now.weights))
    ]
    return np.array(rest) + len(logs) * np.log1p(-np.minimum(now.weights, 0.999))


def without(now: Clusters, j: int) -> Clusters:
    """The clusters but for one."""
    weights = np.delete(now.weights, j)
    return Clusters(
        np.delete(now.centers, j, axis=0),
        weights / weights.sum(),
        np.delete(now.widths, j),
    )


def _with(now: Clusters, place: LackingCluster) -> Clusters:
    return Clusters(
        np.vstack([now.centers, place.center]),
        np.append(now.weights * (1.0 - place.share), place.share),
        np.append(now.widths, place.width),
    )


def rows_of(objective: MixtureObjective) -> Array:
    """The reports on which places are compared."""
    assert isinstance(objective.reports, RowsInMemory)
    return objective.reports.values[:_REPORTS]


def _places(
    objective: MixtureObjective,
    now: Clusters,
    reports: Array,
    rng: np.random.Generator,
    count: int,
) -> Array:
    low, high = (np.array(side) for side in zip(*objective.bounds, strict=True))
    d = reports.shape[1]
    low, high = low[:d], high[:d]
    third = count // 3
    some = reports[rng.integers(len(reports), size=third)]
    anywhere = low + rng.random((third, d)) * (high - low)
    if objective.centre_prior is not None:
        anywhere[::2] = objective.centre_prior.draw(len(anywhere[::2]), rng)
    steps = rng.normal(size=(count - 2 * third, d))
    around = rng.integers(len(now.centers), size=len(steps))
    near = now.centers[around] + 1.5 * now.widths[around, None] * steps
    return np.asarray(np.clip(np.concatenate([some, anywhere, near]), low, high))


def log_parts(objective: MixtureObjective, now: Clusters, reports: Array) -> Array:
    """log weight + log density of each report under each cluster."""
    logs = cluster_logs(objective, now.centers, now.widths, reports)
    return np.asarray(logs + np.log(now.weights))


def cluster_logs(
    objective: MixtureObjective, centers: Array, widths: Array, reports: Array
) -> Array:
    """log density of each report under clusters at these centres."""
    logs = np.empty((len(reports), len(centers)))
    for width in np.unique(widths):
        here = np.flatnonzero(widths == width)
        if objective.product:
            for j in here:
                gaps = np.abs(reports - centers[j])
                logs[:, j] = objective.table.log_density(gaps, float(width)).sum(axis=1)
            continue
        squares = -2.0 * reports @ centers[here].T
        squares += (reports**2).sum(axis=1)[:, None] + (centers[here] ** 2).sum(axis=1)
        radii = np.sqrt(np.maximum(squares, 0.0))
        logs[:, here] = objective.table.log_density(radii, float(width))
    return logs


def _gains(log_ratios: Array) -> tuple[Array, Array]:
    # A ratio beyond e^30 says no more than e^30 does, and its square has a float.
    D = np.expm1(np.minimum(log_ratios, 30.0))
    first, second = D.sum(axis=0), (D * D).sum(axis=0)
    share = np.maximum(first, 0.0) / np.maximum(second, 1e-12)
    return share, 0.5 * share * np.maximum(first, 0.0)


def _apart(
    where: Array, order: NDArray[np.intp], distance: float, most: int
) -> list[int]:
    """The first of `order` that are not next to each other."""
    chosen: list[int] = []
    for i in order:
        gaps = [np.linalg.norm(where[i] - where[j]) for j in chosen]
        if not gaps or min(gaps) > distance:
            chosen.append(int(i))
        if len(chosen) == most:
            break
    return chosen


def log_sum(logs: Array) -> Array:
    """log of the sum of exponentials along rows."""
    top = logs.max(axis=1)
    return np.asarray(top + np.log(np.exp(logs - top[:, None]).sum(axis=1)))
