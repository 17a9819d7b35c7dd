"""Quality of cluster centres on the true points: for public or test data alone.

Every number here is computed from raw data and is not private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    pairwise_distances_argmin_min,
    silhouette_score,
)

Values = NDArray[np.float64]
Labels = NDArray[np.int64]

_SILHOUETTE_ROWS = 2000  # its cost is quadratic


@dataclass(frozen=True)
class Quality:
    """The quality of one clustering, computed from raw data. NOT PRIVATE."""

    sse: float
    increase: float  # of the SSE over the non-private one, in per cent
    silhouette: float
    ari: float
    nmi: float
    centroid_error: float


def assign(points: Values, centres: Values) -> tuple[Labels, float]:
    """The nearest centre of each point, and the sum of squared distances to them."""
    labels, distances = pairwise_distances_argmin_min(points, centres)
    return labels.astype(np.int64), float((distances**2).sum())


def centroid_error(true: Values, fitted: Values) -> float:
    """The relative error of fitted centres: their distance over the true ones' spread.

    Centres are matched so that the sum of squared distances is smallest. With c the
    mean of the true centres, sqrt(sum |fitted_i - true_i|^2 / sum |true_i - c|^2): 0 is
    exact, 1 is as wrong as putting all of them in the middle. Moving the origin changes
    nothing. A single centre has no spread: NaN.

    >>> true = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> centroid_error(true, true[::-1]), centroid_error(true, true * 0 + [0.5, 0.0])
    (0.0, 1.0)
    """
    if true.shape != fitted.shape:
        raise ValueError(
            f"centres must have one shape; got {true.shape} and {fitted.shape}"
        )
    squares = cdist(true, fitted, "sqeuclidean")
    spread = float(((true - true.mean(axis=0)) ** 2).sum())
    if spread == 0.0:
        return math.nan
    return math.sqrt(float(squares[linear_sum_assignment(squares)].sum()) / spread)


def quality(
    points: Values,
    labels: Labels,
    centres: Values,
    *,
    best: Values,
    best_sse: float,
) -> Quality:
    """The quality of `centres` against the non-private `best` and the true `labels`."""
    assigned, sse = assign(points, centres)
    return Quality(
        sse=sse,
        increase=100.0 * (sse / best_sse - 1.0) if best_sse > 0.0 else math.nan,
        silhouette=_silhouette(points, assigned),
        ari=float(adjusted_rand_score(labels, assigned)),
        nmi=float(normalized_mutual_info_score(labels, assigned)),
        centroid_error=centroid_error(best, centres),
    )


def _silhouette(points: Values, labels: Labels) -> float:
    """On at most 2000 evenly spaced rows; NaN where they fall into one cluster."""
    rows = np.unique(np.linspace(0, len(points) - 1, _SILHOUETTE_ROWS).astype(int))
    points, labels = points[rows], labels[rows]
    if not 2 <= len(np.unique(labels)) < len(points):
        return math.nan
    return float(silhouette_score(points, labels))
