"""The likelihood of local reports under K round clusters and the known noise.

    log-likelihood = sum_i log sum_j pi_j f(|x_i - mu_j|, s)

with f of `radial`. Where the noise is independent on every coordinate (per-dimension
Laplace), log f is the sum of the one-dimensional tables over coordinates. One pass
over the reports gives the value and the whole gradient; it keeps nothing but sums,
which are the same however the reports are cut into batches (`exact_sums`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import special

from demur.cluster.decoding.radial import RadialTable
from demur.cluster.rows.exact_sums import PartialSums, Summable, summed

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Round clusters of one width in the unit cube."""

    centers: Array
    weights: Array
    width: float


@dataclass(frozen=True, eq=False)
class MixtureObjective:
    """The negative mean log-posterior of reports, as a function of one flat vector.

    The vector is (centres, log width, logits of the weights). `pseudo_count` points are
    added to every cluster in the weights' prior (a Dirichlet law): without them few
    reports let a cluster's weight run away and its centre with it.
    """

    reports: Summable
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

    def pack(self, clusters: Clusters) -> Array:
        """The vector of some clusters."""
        logits = np.log(np.maximum(clusters.weights, 1e-6))
        low, high = self.table.log_widths
        width = min(max(float(np.log(clusters.width)), low), high)
        centers = clusters.centers.ravel()
        return np.concatenate([centers, [width], logits - logits.mean()])

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
        log_weights = _log_softmax(vector[size + 1 :])
        sums = self._sums(centers, log_weights, float(vector[size]))
        total, by_width = sums[0], sums[1]
        mass, by_center = sums[2 : 2 + self.clusters], sums[2 + self.clusters :]
        prior = self.pseudo_count * log_weights.sum()
        weights = np.exp(log_weights)
        by_logit = mass - n * weights
        by_logit += self.pseudo_count * (1.0 - self.clusters * weights)
        gradient = np.concatenate([by_center, [by_width], by_logit])
        return -float(total + prior) / n, -gradient / n

    def log_likelihood(self, clusters: Clusters) -> float:
        """The mean log-likelihood of a report."""
        width = float(np.log(clusters.width))
        total = self._sums(clusters.centers, np.log(clusters.weights), width)[0]
        return float(total) / self.reports.shape[0]

    def _sums(self, centers: Array, log_weights: Array, log_width: float) -> Array:
        profile = self.table.at(log_width)
        step = self.table.step
        work = LikelihoodSums(
            np.ascontiguousarray(centers), log_weights, profile, step, self.product
        )
        return summed(self.reports, work)


@dataclass(frozen=True, eq=False)
class LikelihoodSums:
    """Over reports: log f, its derivative by log width, masses, those by centres."""

    centers: Array
    log_weights: Array
    profile: Array  # four rows over r: log f, its slope, and both by log width
    step: float
    product: bool

    @property
    def bounds(self) -> Array:
        """The largest log f, derivative by log width, share, derivative by a centre."""
        value, slope, by_width, _ = 2.0 * np.abs(self.profile).max(axis=1)
        blocks = self.centers.shape[1] if self.product else 1
        return np.array([blocks * value + 16.0, blocks * by_width, 1.0, slope])

    def __call__(self, reports: Array, anchors: Array) -> PartialSums:
        """The sums over these reports, in one pass."""
        # Read-only here whatever the caller's are: numba compiles a second kernel, for
        # seconds, where an argument may be written to.
        rows = reports.view()
        rows.flags.writeable = False
        sums = _pass(
            rows,
            self.centers,
            self.log_weights,
            self.profile,
            self.step,
            self.product,
            anchors,
        )
        return PartialSums(*sums)


def _log_softmax(logits: Array) -> Array:
    """As SciPy's, which takes ten times as long to find out what an array it has.

    For a few hundred reports that would be a fifth of a fit.
    """
    below = logits - logits.max()
    return np.asarray(below - np.log(np.exp(below).sum()))


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
    anchors: Array,
) -> tuple[Array, Array, Array]:
    """Sums of log f, its derivative by log width, masses, derivatives by centres.

    (x + A) - A is a rounding and not x: no fastmath here.
    """
    n, d = reports.shape
    count = len(centers)
    value, slope, by_w, by_w_slope = rows[0], rows[1], rows[2], rows[3]
    last = value.size - 2
    inverse = 1.0 / step
    blocks = d if product else 1
    logs = np.empty(count)
    pulls = np.empty((count, blocks))  # d log f / d r, over r
    radii = np.empty(count)
    widths = np.empty(count)
    a_total, a_width, a_mass, a_center = anchors[0]
    b_total, b_width, b_mass, b_center = anchors[1]
    mass, mass_rest = np.zeros(count), np.zeros(count)
    center, center_rest = np.zeros((count, d)), np.zeros((count, d))
    total, total_rest, by_width, by_width_rest = 0.0, 0.0, 0.0, 0.0
    largest_total, largest_width, steepest = 0.0, 0.0, 0.0
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
                    radii[j] = r
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
        x = top + np.log(s)
        largest_total = max(largest_total, abs(x))
        h = (x + a_total) - a_total
        total += h
        total_rest += ((x - h) + b_total) - b_total
        width = 0.0
        for j in range(count):
            share = logs[j] / s
            h = (share + a_mass) - a_mass
            mass[j] += h
            mass_rest[j] += ((share - h) + b_mass) - b_mass
            width += share * widths[j]
            if product:
                for a in range(d):
                    x = share * pulls[j, a] * (centers[j, a] - reports[i, a])
                    steepest = max(steepest, abs(x))
                    h = (x + a_center) - a_center
                    center[j, a] += h
                    center_rest[j, a] += ((x - h) + b_center) - b_center
            else:
                weight = share * pulls[j, 0]
                # No coordinate of a gap is longer than the gap.
                steepest = max(steepest, abs(weight) * radii[j])
                for a in range(d):
                    x = weight * (centers[j, a] - reports[i, a])
                    h = (x + a_center) - a_center
                    center[j, a] += h
                    center_rest[j, a] += ((x - h) + b_center) - b_center
        largest_width = max(largest_width, abs(width))
        h = (width + a_width) - a_width
        by_width += h
        by_width_rest += ((width - h) + b_width) - b_width
    high = np.empty(2 + count + count * d)
    low = np.empty(2 + count + count * d)
    high[0], high[1], high[2 : 2 + count] = total, by_width, mass
    low[0], low[1], low[2 : 2 + count] = total_rest, by_width_rest, mass_rest
    high[2 + count :], low[2 + count :] = center.ravel(), center_rest.ravel()
    # Radii are rounded; a share is at most 1.
    largest = np.array([largest_total, largest_width, 0.0, 1.001 * steepest])
    return high, low, largest
