"""Lloyd's k-means by scikit-learn, without its warnings about convergence.

It warns when rows coincide (clipped reports meet in the corners of the cube) or when
steps run out. A caller who gave reports and a number of steps expects both.
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

Array = NDArray[np.float64]

# Threads add up centres in the order in which they end, so that two runs differ in
# their last bits. Up to this many rows one thread is quick enough, and exact.
_ONE_THREAD = 250_000


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
