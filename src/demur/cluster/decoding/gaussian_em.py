"""Gaussian mixtures of noisy reports, by expectation maximisation (EM).

With the noise as a mixture of N(0, tau_q I) (`scale_mixture`), a report of cluster j at
node q is N(mu_j, Sigma_j + tau_q I), and given the report x its point z is Gaussian:

    E[z] = mu + B (x - mu),  Cov[z] = tau B,  B = Sigma (Sigma + tau I)^-1.

In the eigenbasis of Sigma all of this is diagonal. The E-step sums these moments with
the responsibilities of (j, q); the M-step takes their mean and covariance. A report
that comes from the uniform floor says nothing about its cluster and adds to no sum. The
likelihood never falls, but for the projection of means into the cube and the priors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import linalg

from demur.cluster.decoding.scale_mixture import Nodes

Array = NDArray[np.float64]

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
_SMALLEST = 1e-5  # variance: a width of 0.003, invisible in any noise worth the name
_PRIOR_POINTS = 5.0  # points of the first width in every covariance, for few reports


@dataclass(frozen=True, eq=False)
class GaussianClusters:
    """Weights, means and covariances, one matrix for each cluster."""

    weights: Array
    means: Array
    covariances: Array

    def log_densities(self, rows: Array) -> Array:
        """log weight + log density of points, a column for each cluster."""
        d = rows.shape[1]
        logs = np.empty((len(rows), len(self.means)))
        for j, matrix in enumerate(self.covariances):
            root = linalg.cholesky(matrix, lower=True)
            y = linalg.solve_triangular(root, (rows - self.means[j]).T, lower=True)
            log_det = 2.0 * float(np.log(np.diag(root)).sum())
            logs[:, j] = -0.5 * ((y * y).sum(axis=0) + log_det)
        return logs - 0.5 * d * math.log(2 * math.pi) + np.log(self.weights)


@dataclass(frozen=True, eq=False)
class EmFit:
    """Clusters, the mean log-likelihood before each step, and the responsibilities."""

    clusters: GaussianClusters
    log_likelihoods: tuple[float, ...]
    responsibilities: Array


def fit_gaussians(
    reports: Array,
    nodes: Nodes,
    start: GaussianClusters,
    *,
    covariance_type: str,
    max_iter: int,
    pseudo_count: float,
    tol: float = 1e-7,
    prior_points: float = _PRIOR_POINTS,
) -> EmFit:
    """Steps from `start` until the mean log-likelihood gains less than `tol`."""
    reports = _rows(reports)
    now = start
    typical = float(np.mean(np.trace(start.covariances, axis1=1, axis2=2)))
    typical /= reports.shape[1]
    history: list[float] = []
    for _ in range(max_iter):
        sums = e_step(reports, nodes, now)
        history.append(sums.log_likelihood)
        if len(history) > 1 and history[-1] - history[-2] < tol:
            break
        now = _m_step(sums, now, covariance_type, pseudo_count, prior_points, typical)
    return EmFit(now, tuple(history), responsibilities(reports, nodes, now))


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of one pass over the reports: masses and moments about the old means."""

    log_likelihood: float
    mass: Array
    first: Array
    second: Array


def e_step(reports: Array, nodes: Nodes, now: GaussianClusters) -> Sums:
    """Responsibilities and moments, summed."""
    values, vectors = np.linalg.eigh(now.covariances)
    # A responsibility for each report would be n x K; the M-step wants sums alone.
    total, mass, first, second = _moments(
        _rows(reports),
        now.means,
        np.ascontiguousarray(values),
        np.ascontiguousarray(vectors),
        np.log(now.weights),
        nodes.variances,
        np.log(nodes.weights) + np.log(nodes.informative),
        nodes.log_floor,
        np.empty((0, 0)),
    )
    return Sums(total / len(reports), mass, first, second)


def responsibilities(reports: Array, nodes: Nodes, now: GaussianClusters) -> Array:
    """The posterior probability of every cluster for every report."""
    values, vectors = np.linalg.eigh(now.covariances)
    out = np.empty((len(reports), len(now.means)))
    _moments(
        _rows(reports),
        now.means,
        np.ascontiguousarray(values),
        np.ascontiguousarray(vectors),
        np.log(now.weights),
        nodes.variances,
        np.log(nodes.weights) + np.log(nodes.informative),
        nodes.log_floor,
        out,
    )
    return out


def _rows(reports: Array) -> Array:
    """The reports as the kernel takes them.

    Always read-only: numba compiles a second kernel, for seconds, for an array that may
    be written to.
    """
    rows = np.ascontiguousarray(reports).view()
    rows.flags.writeable = False
    return rows


def _m_step(
    sums: Sums,
    before: GaussianClusters,
    covariance_type: str,
    pseudo_count: float,
    prior_points: float,
    typical: float,
) -> GaussianClusters:
    count, d = before.means.shape
    mass = np.maximum(sums.mass, 1e-12)
    moved = sums.first / mass[:, None]
    means = np.clip(before.means + moved, 0.0, 1.0)
    clipped = means - before.means
    cross = np.einsum("ja,jb->jab", clipped, moved)
    # Second moments about the new means, which may have been clipped to the cube.
    spread = sums.second / mass[:, None, None]
    spread += (
        np.einsum("ja,jb->jab", clipped, clipped) - cross - cross.transpose(0, 2, 1)
    )
    covariances = _shaped(spread, mass, covariance_type, prior_points, typical)
    weights = sums.mass + pseudo_count
    return GaussianClusters(weights / weights.sum(), means, covariances)


def _shaped(
    spread: Array,
    mass: Array,
    covariance_type: str,
    prior_points: float,
    typical: float,
) -> Array:
    count, d = spread.shape[:2]
    eye = np.eye(d)
    points = mass[:, None, None]
    if covariance_type == "tied":
        spread = np.broadcast_to(
            (points * spread).sum(axis=0) / mass.sum(), spread.shape
        )
        points = np.full_like(points, mass.sum())
    elif covariance_type == "diag":
        spread = spread * eye
    elif covariance_type == "spherical":
        spread = np.trace(spread, axis1=1, axis2=2)[:, None, None] / d * eye
    mixed = (points * spread + prior_points * typical * eye) / (points + prior_points)
    values, vectors = np.linalg.eigh(mixed)
    values = np.maximum(values, _SMALLEST)
    return np.einsum("jab,jb,jcb->jac", vectors, values, vectors)


# Everything the kernel needs is in this file or an argument: numba's cache does not
# notice when a function in another file changes.
@njit(cache=True, nogil=True)
def _moments(
    reports: Array,
    means: Array,
    values: Array,
    vectors: Array,
    log_weights: Array,
    variances: Array,
    log_nodes: Array,
    log_floor: float,
    shares: Array,
) -> tuple[float, Array, Array, Array]:
    n, d = reports.shape
    count, q = len(means), len(variances)
    constant = np.empty((count, q))
    for j in range(count):
        for m in range(q):
            constant[j, m] = log_weights[j] + log_nodes[m]
            for a in range(d):
                spread = 2.0 * np.pi * (values[j, a] + variances[m])
                constant[j, m] -= 0.5 * np.log(spread)
    logs = np.empty((count, q))
    turned = np.empty((count, d))
    mass = np.zeros(count)
    first = np.zeros((count, d))  # in the eigenbasis, turned back at the end
    second = np.zeros((count, d, d))
    pulled = np.empty(d)
    total = 0.0
    for i in range(n):
        top = log_floor
        for j in range(count):
            for a in range(d):
                y = 0.0
                for b in range(d):
                    y += vectors[j, b, a] * (reports[i, b] - means[j, b])
                turned[j, a] = y
            for m in range(q):
                square = 0.0
                for a in range(d):
                    y = turned[j, a]
                    square += y * y / (values[j, a] + variances[m])
                logs[j, m] = constant[j, m] - 0.5 * square
                top = max(top, logs[j, m])
        s = np.exp(log_floor - top)
        for j in range(count):
            for m in range(q):
                logs[j, m] = np.exp(logs[j, m] - top)
                s += logs[j, m]
        total += top + np.log(s)
        for j in range(count):
            here = 0.0
            for m in range(q):
                share = logs[j, m] / s
                here += share
                if share < 1e-12 or shares.size:
                    continue
                for a in range(d):
                    pull = values[j, a] / (values[j, a] + variances[m])
                    pulled[a] = pull * turned[j, a]
                    first[j, a] += share * pulled[a]
                    second[j, a, a] += share * variances[m] * pull
                for a in range(d):
                    for b in range(a + 1):
                        second[j, a, b] += share * pulled[a] * pulled[b]
            mass[j] += here
            if shares.size:
                # The floor belongs to no cluster: it is shared by the weights.
                floor = np.exp(log_floor - top) / s
                shares[i, j] = here + floor * np.exp(log_weights[j])
    for j in range(count):
        for a in range(d):
            for b in range(a):
                second[j, b, a] = second[j, a, b]
        basis = vectors[j].copy()
        second[j] = basis @ second[j] @ basis.T
        first[j] = basis @ first[j]
    return total, mass, first, second
