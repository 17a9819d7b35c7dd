"""What the posterior knows beside the centres: intervals, shares, soft labels.

Draws of the posterior are numbered like the centres that were released, each draw by
the assignment of least squared distance; marginal quantiles over the draws are then
intervals for each centre and each share. They are intervals of the model (round
clusters under the known noise), and at most as good as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.moves import log_parts
from demur.cluster.decoding.noise import Noise
from demur.cluster.decoding.posterior import Draws, numbered
from demur.cluster.decoding.radial import radial_table
from demur.cluster.rows.ranked_rows import RowsInMemory

Array = NDArray[np.float64]

LEVEL = 0.95
_DENSE = 64  # coordinates up to which covariances are computed


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Shares, widths and intervals (last axis: low, high) of clusters."""

    weights: Array
    weights_interval: Array
    widths: Array
    centers_interval: Array
    centers_covariance: Array  # by cluster, d x d; d x 1, the diagonal, in many


def uncertainty(draws: Draws, centers: Array) -> Uncertainty:
    """Intervals at 95% over the draws, numbered like `centers`."""
    drawn = numbered(draws.clusters, centers)
    places, shares, logs = drawn.centers, drawn.weights, np.log(drawn.widths)
    w = draws.weights
    mean = np.einsum("i,ijk->jk", w, places)
    gaps = places - mean
    if centers.shape[1] <= _DENSE:
        covariance = np.einsum("i,ija,ijb->jab", w, gaps, gaps)
    else:
        covariance = np.einsum("i,ija->ja", w, gaps**2)[:, :, None]
    return Uncertainty(
        weights=w @ shares,
        weights_interval=_interval(shares, w),
        widths=np.exp(w @ logs),
        centers_interval=_interval(places, w),
        centers_covariance=covariance,
    )


def probabilities(clusters: Clusters, noise: Noise, reports: Array) -> Array:
    """The probability of each cluster for each report."""
    rows = RowsInMemory(reports, np.arange(len(reports), dtype=np.uint64))
    product = noise.block != noise.dimension
    table = radial_table(noise, None)
    objective = MixtureObjective(rows, table, len(clusters.weights), product)
    return np.asarray(special.softmax(log_parts(objective, clusters, reports), axis=1))


def _interval(values: Array, weights: Array) -> Array:
    """Quantiles over the first axis of weighted values, on a last axis of their own."""
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    mass = np.cumsum(weights[order], axis=0)
    tail = 0.5 * (1.0 - LEVEL)
    ends = []
    for level in (tail, 1.0 - tail):
        place = np.minimum((mass < level).sum(axis=0), len(values) - 1)
        ends.append(np.take_along_axis(ordered, place[None], axis=0)[0])
    return np.stack(ends, axis=-1)
