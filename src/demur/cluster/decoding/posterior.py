"""Centres by posterior averaging: those with the least expected k-means error.

The most likely clusters are good when reports are informative. Often they are not: the
likelihood is wide and skew, and its peak a poor summary. The error of k-means is the
squared distance of points to the nearest centre, so the centres with the least expected
error are

    argmin_C  E[min_j |z - c_j|^2],   z from clusters drawn from the posterior:

k-means on the posterior predictive law of a point. Clusters are drawn by Hamiltonian
Monte Carlo from the peak (momenta, leapfrog steps along the gradient, reflection at the
walls of the box, Metropolis acceptance), points from those, and Lloyd's algorithm runs
on the points. Everything comes from the reports and a generator seeded by
`random_state`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import lloyd

Array = NDArray[np.float64]

WARM_UP = 40
DRAWS = 80
LEAPFROG = 8
_WANTED = 0.75  # acceptance
_POINTS = 20_000


def posterior_draws(
    objective: MixtureObjective,
    peak: Array,
    information: float,
    rng: np.random.Generator,
) -> list[Clusters]:
    """Clusters drawn from the posterior, numbered like the peak's."""
    n = objective.reports.shape[0]
    best = objective.unpack(peak)
    scales = _scales(objective, best, information)
    low, high = np.array(objective.bounds).T
    position = peak.copy()
    value, gradient = objective(position)
    step = 0.3
    draws: list[Clusters] = []
    for i in range(WARM_UP + DRAWS):
        momentum = rng.normal(size=len(peak))
        before = n * value + 0.5 * momentum @ momentum
        # A step of random length: no trajectory comes back to where it began.
        size = step * rng.uniform(0.7, 1.3)
        place, there, slope = position, value, gradient
        for _ in range(LEAPFROG):
            momentum = momentum - 0.5 * size * n * scales * slope
            place = place + size * scales * momentum
            place, momentum = _reflected(place, momentum, low, high)
            there, slope = objective(place)
            momentum = momentum - 0.5 * size * n * scales * slope
        gain = before - (n * there + 0.5 * momentum @ momentum)
        chance = float(np.exp(min(0.0, float(gain)))) if np.isfinite(gain) else 0.0
        if rng.random() < chance:
            position, value, gradient = place, there, slope
        if i < WARM_UP:
            step *= float(np.exp(0.15 * (chance - _WANTED)))
        else:
            draws.append(_matched(objective.unpack(position), best))
    return draws


def best_centers(draws: list[Clusters], rng: np.random.Generator) -> Array:
    """The k-means centres of the law of a point, over all draws, inside the cube."""
    count, d = draws[0].centers.shape
    pairs = max(1, _POINTS // (2 * count * len(draws)))
    points, weights = [], []
    for clusters in draws:
        z = clusters.width * rng.normal(size=(count, pairs, d))
        # In pairs, so that every cluster's mean is exact.
        both = np.concatenate([z, -z], axis=1) + clusters.centers[:, None, :]
        points.append(both.reshape(-1, d))
        weights.append(np.repeat(clusters.weights / (2 * pairs), 2 * pairs))
    cloud, shares = np.concatenate(points), np.concatenate(weights)
    fits = []
    mean = np.mean([clusters.centers for clusters in draws], axis=0)
    for start in (draws[0].centers, mean):
        model = lloyd(cloud, count, start=start, max_iter=100, weights=shares)
        fits.append((model.inertia_, model.cluster_centers_))
    return np.clip(min(fits, key=lambda fit: fit[0])[1], 0.0, 1.0)


def _scales(objective: MixtureObjective, best: Clusters, information: float) -> Array:
    """About one posterior deviation of each coordinate of the vector."""
    n, d = objective.reports.shape
    members = np.maximum(n * best.weights, 1.0)
    centers = np.minimum(1.0 / np.sqrt(members * information), 0.3)
    logits = 1.0 / np.sqrt(0.3 * members + objective.pseudo_count)
    return np.concatenate([np.repeat(centers, d), [0.3], np.minimum(logits, 1.0)])


def _reflected(
    place: Array, momentum: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Reflection at the walls: it keeps volume and energy, so the draw stays exact."""
    span = high - low
    around = np.mod(place - low, 2.0 * span)
    turned = around > span
    return (
        low + np.where(turned, 2.0 * span - around, around),
        np.where(turned, -momentum, momentum),
    )


def _matched(drawn: Clusters, best: Clusters) -> Clusters:
    """The draw with its clusters in the order of the peak's."""
    gaps = ((best.centers[:, None] - drawn.centers[None]) ** 2).sum(axis=2)
    order = linear_sum_assignment(gaps)[1]
    return Clusters(drawn.centers[order], drawn.weights[order], drawn.width)
