"""Lloyd's k-means by scikit-learn, of rows and of the posterior predictive law.

Those are of rows that coincide (clipped reports meet in the corners of the cube) and of
steps that ran out. A caller who gave reports and a number of steps expects both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from demur.cluster.decoding.posterior import Draws

Array = NDArray[np.float64]

# Threads add up centres in the order in which they end, so that two runs differ in
# their last bits. Up to this many rows one thread is quick enough, and exact.
_ONE_THREAD = 250_000
_POINTS, _MOST_POINTS = 24_000, 200_000
_COORDINATES = 800_000  # of all points together
_STARTS = 8
_LAST_STEPS, _LAST_MOVE = 300, 1e-7
# Of the starts those are followed to their end whose error on few points is at most by
# 2% more than the least, and that have a centre this far from all of the others'.
_NEARLY, _ALIKE, _ENDED = 1.02, 0.03, 3


@contextmanager
def without_convergence_warnings() -> Iterator[None]:
    """Suppress warnings about convergence, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def lloyd(
    rows: Array,
    clusters: int,
    *,
    rng: np.random.Generator | None = None,
    start: Array | None = None,
    n_init: int = 1,
    max_iter: int = 300,
    weights: Array | None = None,
    tol: float = 1e-4,
) -> KMeans:
    """k-means from given centres, or from several k-means++ starts."""
    model = KMeans(
        clusters,
        init="k-means++" if start is None else start,
        n_init=n_init,
        max_iter=max_iter,
        tol=tol,
        random_state=None if rng is None else int(rng.integers(2**31 - 1)),
    )
    threads = 1 if len(rows) <= _ONE_THREAD else None
    with without_convergence_warnings(), threadpool_limits(threads):
        return model.fit(rows, sample_weight=weights)


def best_centers(
    draws: Draws, rng: np.random.Generator, box: tuple[Array, Array] | None = None
) -> Array:
    """The k-means centres of the law of a point, over all draws, inside the box."""
    cloud, shares = predictive_points(draws, rng)
    centers = draws.clusters.centers
    count = centers.shape[1]
    mean = np.einsum("i,ijk->jk", draws.weights, centers)
    last = centers[int(draws.weights.argmax())]
    thin = max(1, len(cloud) // _POINTS)
    few, some = cloud[::thin], shares[::thin]
    models = [
        lloyd(few, count, start=start, max_iter=100, weights=some)
        for start in (last, mean)
    ]
    models += [
        lloyd(few, count, rng=rng, max_iter=100, weights=some) for _ in range(_STARTS)
    ]
    models.sort(key=lambda model: float(model.inertia_))
    # The error is flat about its least values, and some are nearly equal: the last
    # steps are small, and all points tell where they lead and which is the least.
    ended: list[KMeans] = []
    for model in _different(models):
        ended.append(
            lloyd(
                cloud,
                count,
                start=model,
                max_iter=_LAST_STEPS,
                weights=shares,
                tol=_LAST_MOVE,
            )
        )
    best = min(ended, key=lambda model: float(model.inertia_))
    low, high = (0.0, 1.0) if box is None else box
    return np.asarray(np.clip(best.cluster_centers_, low, high))


def _different(models: list[KMeans]) -> list[Array]:
    """Centres of the first of some k-means that are not much worse, nor alike."""
    least = float(models[0].inertia_)
    chosen: list[Array] = []
    for model in models:
        centers = np.asarray(model.cluster_centers_)
        gaps = [
            np.linalg.norm(centers[:, None] - other, axis=2).min(axis=1).max()
            for other in chosen
        ]
        if model.inertia_ <= _NEARLY * least and min(gaps, default=1.0) > _ALIKE:
            chosen.append(centers)
        if len(chosen) == _ENDED:
            break
    return chosen


def predictive_points(draws: Draws, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points of the posterior predictive law, and their weights."""
    used = np.flatnonzero(draws.weights > 1e-6 * draws.weights.max())
    _, count, d = draws.clusters.centers.shape
    wanted = int(np.clip(_COORDINATES / d, _POINTS, _MOST_POINTS))
    used = used[:: max(1, 2 * count * len(used) // (2 * wanted))]
    pairs = max(1, wanted // (2 * count * len(used)))
    widths = draws.clusters.widths[used][:, :, None, None]
    z = widths * rng.normal(size=(len(used), count, pairs, d))
    # In pairs, so that every cluster's mean is exact.
    both = np.concatenate([z, -z], axis=2)
    both += draws.clusters.centers[used][:, :, None, :]
    shares = draws.weights[used, None] * draws.clusters.weights[used] / (2 * pairs)
    return both.reshape(-1, d), np.repeat(shares.ravel(), 2 * pairs)
