"""The likelihood of reports under K round clusters seen through known noise.

    log-likelihood = sum_i log sum_j pi_j f(|x_i - mu_j|, s)

with f of `radial`. Where the noise is independent on every coordinate (per-dimension
Laplace), log f is the sum of the one-dimensional tables over coordinates. One pass
over the reports gives the value and the whole gradient; it keeps nothing but sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import special

from demur.cluster.radial import RadialTable

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Round clusters of one width in the unit cube."""

    centers: Array
    weights: Array
    width: float


@dataclass(frozen=True, eq=False)
class Objective:
    """The negative mean log-posterior of reports, as a function of one flat vector.

    The vector is (centres, log width, logits of the weights). `pseudo_count` points are
    added to every cluster in the weights' prior (a Dirichlet law): without them few
    reports let a cluster's weight run away and its centre with it.
    """

    reports: Array
    table: RadialTable
    clusters: int
    product: bool  # whether coordinates are blocks of their own
    pseudo_count: float

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Centres in the cube, the width in the table, logits where they matter."""
        d = self.reports.shape[1]
        return (
            [(0.0, 1.0)] * (self.clusters * d)
            + [self.table.log_widths]
            + [(-8.0, 8.0)] * self.clusters
        )

    def pack(self, found: Clusters) -> Array:
        """The vector of some clusters."""
        logits = np.log(np.maximum(found.weights, 1e-6))
        low, high = self.table.log_widths
        width = min(max(float(np.log(found.width)), low), high)
        return np.concatenate([found.centers.ravel(), [width], logits - logits.mean()])

    def unpack(self, vector: Array) -> Clusters:
        """The clusters of a vector."""
        size = self.clusters * self.reports.shape[1]
        return Clusters(
            vector[:size].reshape(self.clusters, -1).copy(),
            special.softmax(vector[size + 1 :]),
            float(np.exp(vector[size])),
        )

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """The value and its gradient."""
        n, d = self.reports.shape
        size = self.clusters * d
        centers = vector[:size].reshape(self.clusters, d)
        log_weights = special.log_softmax(vector[size + 1 :])
        total, by_center, by_width, mass = _pass(
            self.reports,
            centers,
            log_weights,
            self.table.at(float(vector[size])),
            self.table.step,
            self.product,
        )
        prior = self.pseudo_count * log_weights.sum()
        weights = np.exp(log_weights)
        by_logit = mass - n * weights
        by_logit += self.pseudo_count * (1.0 - self.clusters * weights)
        gradient = np.concatenate([by_center.ravel(), [by_width], by_logit])
        return -(total + prior) / n, -gradient / n

    def log_likelihood(self, found: Clusters) -> float:
        """The mean log-likelihood of a report."""
        centers = np.ascontiguousarray(found.centers)
        rows = self.table.at(float(np.log(found.width)))
        logs = np.log(found.weights)
        step = self.table.step
        total = _pass(self.reports, centers, logs, rows, step, self.product)[0]
        return float(total) / len(self.reports)


# Everything the kernel needs is in this file or an argument: numba's cache does not
# notice when a function in another file changes.
@njit(cache=True, nogil=True)
def _pass(
    reports: Array,
    centers: Array,
    log_weights: Array,
    rows: Array,
    step: float,
    product: bool,
) -> tuple[float, Array, float, Array]:
    """Sum of log f over reports, its gradient by centres and log width, masses."""
    n, d = reports.shape
    count = len(centers)
    value, slope, by_w, by_w_slope = rows[0], rows[1], rows[2], rows[3]
    last = value.size - 2
    inverse = 1.0 / step
    blocks = d if product else 1
    logs = np.empty(count)
    pulls = np.empty((count, blocks))  # d log f / d r, over r
    widths = np.empty(count)
    by_center = np.zeros((count, d))
    mass = np.zeros(count)
    total, by_width = 0.0, 0.0
    for i in range(n):
        top = -np.inf
        for j in range(count):
            log_f = log_weights[j]
            width = 0.0
            for b in range(blocks):
                if product:
                    r = abs(reports[i, b] - centers[j, b])
                else:
                    square = 0.0
                    for a in range(d):
                        gap = reports[i, a] - centers[j, a]
                        square += gap * gap
                    r = np.sqrt(square)
                place = r * inverse
                if place >= last + 1:
                    over = r - step * (last + 1)
                    log_f += value[last + 1] + over * slope[last + 1]
                    width += by_w[last + 1] + over * by_w_slope[last + 1]
                    pull = slope[last + 1]
                else:
                    m = int(place)
                    t = place - m
                    q = 1.0 - t
                    h0, h1 = (1.0 + 2.0 * t) * q * q, t * t * (3.0 - 2.0 * t)
                    g0, g1 = step * t * q * q, -step * t * t * q
                    v0, v1, s0, s1 = value[m], value[m + 1], slope[m], slope[m + 1]
                    log_f += h0 * v0 + h1 * v1 + g0 * s0 + g1 * s1
                    width += h0 * by_w[m] + h1 * by_w[m + 1]
                    width += g0 * by_w_slope[m] + g1 * by_w_slope[m + 1]
                    pull = 6.0 * t * q * inverse * (v1 - v0)
                    pull += q * (1.0 - 3.0 * t) * s0 + t * (3.0 * t - 2.0) * s1
                pulls[j, b] = pull / r if r > 0.0 else 0.0
            logs[j] = log_f
            widths[j] = width
            top = max(top, log_f)
        s = 0.0
        for j in range(count):
            logs[j] = np.exp(logs[j] - top)
            s += logs[j]
        total += top + np.log(s)
        for j in range(count):
            share = logs[j] / s
            mass[j] += share
            by_width += share * widths[j]
            for a in range(d):
                pull = pulls[j, a if product else 0]
                by_center[j, a] -= share * pull * (reports[i, a] - centers[j, a])
    return total, by_center, by_width, mass
