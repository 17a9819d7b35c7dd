"""The likelihood of local reports under K round clusters and the known noise.

    log-likelihood = sum_i log sum_j pi_j f(|x_i - mu_j|, s_j)

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

from demur.cluster.decoding.priors import CentrePrior, weight_prior, width_prior
from demur.cluster.decoding.quick_sums import in_columns, quick_sums
from demur.cluster.decoding.radial import RadialTable
from demur.cluster.rows.exact_sums import PartialSums, Summable, summed
from demur.cluster.rows.ranked_rows import RowsInMemory

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Round clusters in the unit cube, each of its own width.

    Many sets of them at once have one more axis, the first, in all three arrays.
    """

    centers: Array
    weights: Array
    widths: Array

    @property
    def width(self) -> Array:
        """The width of a typical cluster."""
        return np.asarray(np.exp((self.weights * np.log(self.widths)).sum(axis=-1)))


@dataclass(frozen=True, eq=False)
class Parts:
    """The likelihood and the prior of some vectors, with their gradients."""

    likelihood: Array
    likelihood_gradient: Array
    prior: Array
    prior_gradient: Array

    def at(self, heats: Array) -> tuple[Array, Array]:
        """log density and gradient with the likelihood to the power of its heat."""
        return (
            heats * self.likelihood + self.prior,
            heats[:, None] * self.likelihood_gradient + self.prior_gradient,
        )

    def where(self, chosen: NDArray[np.bool_], other: Parts) -> Parts:
        """These for the vectors that are chosen, and `other` for the rest."""
        rows = chosen[:, None]
        return Parts(
            np.where(chosen, self.likelihood, other.likelihood),
            np.where(rows, self.likelihood_gradient, other.likelihood_gradient),
            np.where(chosen, self.prior, other.prior),
            np.where(rows, self.prior_gradient, other.prior_gradient),
        )


@dataclass(frozen=True, eq=False)
class MixtureObjective:
    """The negative mean log-posterior of reports, as a function of one flat vector.

    The vector is (centres, log widths, logits of the weights); `shared` clusters have
    one width. `share` is the part of the prior that these reports get: a subsample of
    a tenth gets a tenth, so that its optimum is that of all reports. Coordinates of
    centres that are `fixed` at 0 hold what the reports have outside of a subspace.
    """

    reports: Summable
    table: RadialTable
    clusters: int
    product: bool  # whether coordinates are blocks of their own
    centre_prior: CentrePrior | None = None
    widest: float = 0.0  # log of the widest cell of a k-means
    shared: bool = False
    share: float = 1.0
    box: tuple[Array, Array] | None = None  # of a centre; the unit cube without one

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Centres in their box, widths in the table, logits where they matter."""
        d = self.reports.shape[1]
        low, high = (np.zeros(d), np.ones(d)) if self.box is None else self.box
        inside = list(zip(low.tolist(), high.tolist(), strict=True))
        widths = 1 if self.shared else self.clusters
        return (
            inside * self.clusters
            + [self.table.log_widths] * widths
            + [(-12.0, 12.0)] * self.clusters
        )

    def pack(self, clusters: Clusters) -> Array:
        """The vector of some clusters."""
        logits = np.log(np.maximum(clusters.weights, 1e-8))
        logits = np.clip(logits - logits.mean(), -12.0, 12.0)
        widths = np.clip(np.log(clusters.widths), *self.table.log_widths)
        if self.shared:
            widths = np.array([clusters.weights @ widths])
        return np.concatenate([clusters.centers.ravel(), widths, logits])

    def unpack(self, vectors: Array) -> Clusters:
        """The clusters of one or many vectors."""
        centers, widths, logits = self.split(vectors)
        return Clusters(
            centers.copy(),
            np.exp(_log_softmax(logits)),
            np.exp(np.broadcast_to(widths, logits.shape)),
        )

    def split(self, vectors: Array) -> tuple[Array, Array, Array]:
        """Centres, log widths (one, if shared) and logits of one or many vectors."""
        k = self.clusters
        size = k * self.reports.shape[1]
        centers = vectors[..., :size].reshape(*vectors.shape[:-1], k, -1)
        return centers, vectors[..., size:-k], vectors[..., -k:]

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """The value and its gradient."""
        value, gradient = self.parts(vector[None]).at(np.ones(1))
        n = self.reports.shape[0]
        return -float(value[0]) / n, -gradient[0] / n

    def columns(self) -> Array | None:
        """The reports as `parts` takes them where sums need not be exact."""
        if self.product or not isinstance(self.reports, RowsInMemory):
            return None
        return in_columns(self.reports.values)

    def parts(self, vectors: Array, columns: Array | None = None) -> Parts:
        """The log-likelihood and the log-prior of each vector, summed over reports.

        With `columns` they are not exact, and take a fifth of the time.
        """
        n, k, many = self.reports.shape[0], self.clusters, len(vectors)
        centers, widths, logits = self.split(vectors)
        log_weights = _log_softmax(logits)
        sums = self._sums(centers, log_weights, widths, columns)
        by_width, mass = sums[:, 1 : 1 + k], sums[:, 1 + k : 1 + 2 * k]
        by_center = sums[:, 1 + 2 * k :]
        weights = np.exp(log_weights)
        if self.shared:
            by_width = by_width.sum(axis=1, keepdims=True)
        gradient = np.concatenate([by_center, by_width, mass - n * weights], axis=1)
        prior, points = weight_prior(log_weights)
        value, prior_widths = width_prior(widths, self.widest)
        prior = prior + value
        prior_centers = np.zeros((many, centers[0].size))
        if self.centre_prior is not None:
            value, slope = self.centre_prior(centers)
            prior = prior + value
            prior_centers = slope.reshape(many, -1)
        prior_logits = points[:, None] * (1.0 - k * weights)
        slopes = np.concatenate([prior_centers, prior_widths, prior_logits], axis=1)
        return Parts(sums[:, 0], gradient, self.share * prior, self.share * slopes)

    def log_likelihood(self, clusters: Clusters) -> float:
        """The mean log-likelihood of a report."""
        widths = np.log(clusters.widths)
        logs = np.log(clusters.weights)
        total = self._sums(clusters.centers[None], logs[None], widths[None])[0, 0]
        return float(total) / self.reports.shape[0]

    def _sums(
        self,
        centers: Array,
        log_weights: Array,
        log_widths: Array,
        columns: Array | None = None,
    ) -> Array:
        """The sums of `LikelihoodSums`, a row for each of many sets of clusters."""
        many, k = log_weights.shape
        every = np.broadcast_to(log_widths, (many, k))
        mixtures = (
            np.ascontiguousarray(centers.reshape(many * k, -1)),
            np.ascontiguousarray(log_weights.reshape(-1)),
            self.table.at_all(every.reshape(-1)),
        )
        if columns is not None:
            n, step = self.reports.shape[0], self.table.step
            return np.asarray(quick_sums(columns, n, *mixtures, step, many))
        work = LikelihoodSums(*mixtures, self.table.step, self.product, many)
        return summed(self.reports, work).reshape(many, -1)


@dataclass(frozen=True, eq=False)
class LikelihoodSums:
    """Over reports: log f, slopes by log widths, masses, slopes by centres.

    Clusters may be those of several mixtures of as many each, one after the other; the
    sums are, too.
    """

    centers: Array
    log_weights: Array
    profiles: Array  # by cluster, four rows over r: log f, slope, both by log width
    step: float
    product: bool
    mixtures: int = 1

    @property
    def bounds(self) -> Array:
        """The largest log f, derivative by log width, share, derivative by a centre."""
        largest = np.maximum(self.profiles.max(axis=(0, 2)), -self.profiles.min((0, 2)))
        value, slope, by_width, _ = 2.0 * largest
        blocks = self.centers.shape[1] if self.product else 1
        return np.array([blocks * value + 16.0, blocks * by_width, 1.0, slope])

    def __call__(self, reports: Array, anchors: Array) -> PartialSums:
        """The sums over these reports, in one pass."""
        # Read-only here whatever the caller's are: numba compiles a second kernel, for
        # seconds, where an argument may be written to.
        rows = reports.view()
        rows.flags.writeable = False
        sums = _passes(
            rows,
            self.centers,
            self.log_weights,
            self.profiles,
            self.step,
            self.product,
            anchors,
            self.mixtures,
        )
        return PartialSums(*sums)


def _log_softmax(logits: Array) -> Array:
    """As SciPy's, which takes ten times as long to find out what an array it has.

    For a few hundred reports that would be a fifth of a fit.
    """
    below = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=-1, keepdims=True)))


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
    last = rows.shape[2] - 2
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
    total, total_rest = 0.0, 0.0
    by_width, by_width_rest = np.zeros(count), np.zeros(count)
    largest_total, largest_width, steepest = 0.0, 0.0, 0.0
    for i in range(n):
        top = -np.inf
        for j in range(count):
            log_f = log_weights[j]
            value, slope = rows[j, 0], rows[j, 1]
            by_w, by_w_slope = rows[j, 2], rows[j, 3]
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
        for j in range(count):
            share = logs[j] / s
            h = (share + a_mass) - a_mass
            mass[j] += h
            mass_rest[j] += ((share - h) + b_mass) - b_mass
            x = share * widths[j]
            largest_width = max(largest_width, abs(x))
            h = (x + a_width) - a_width
            by_width[j] += h
            by_width_rest[j] += ((x - h) + b_width) - b_width
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
    high = np.empty(1 + 2 * count + count * d)
    low = np.empty(1 + 2 * count + count * d)
    high[0], low[0] = total, total_rest
    high[1 : 1 + count], low[1 : 1 + count] = by_width, by_width_rest
    high[1 + count : 1 + 2 * count], low[1 + count : 1 + 2 * count] = mass, mass_rest
    high[1 + 2 * count :], low[1 + 2 * count :] = center.ravel(), center_rest.ravel()
    # Radii are rounded; a share is at most 1.
    largest = np.array([largest_total, largest_width, 0.0, 1.001 * steepest])
    return high, low, largest


@njit(cache=True, nogil=True)
def _passes(
    reports: Array,
    centers: Array,
    log_weights: Array,
    rows: Array,
    step: float,
    product: bool,
    anchors: Array,
    mixtures: int,
) -> tuple[Array, Array, Array]:
    """A pass for each of some mixtures, their sums one after the other."""
    k = len(centers) // mixtures
    size = 1 + 2 * k + k * centers.shape[1]
    high, low = np.empty(mixtures * size), np.empty(mixtures * size)
    largest = np.zeros(4)
    for m in range(mixtures):
        a, b = m * k, (m + 1) * k
        one = _pass(
            reports, centers[a:b], log_weights[a:b], rows[a:b], step, product, anchors
        )
        high[m * size : (m + 1) * size] = one[0]
        low[m * size : (m + 1) * size] = one[1]
        for i in range(4):
            largest[i] = max(largest[i], one[2][i])
    return high, low, largest
