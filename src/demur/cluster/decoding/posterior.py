"""Centres by posterior averaging: those with the least expected k-means error.

The most likely clusters are good when reports are informative. Often they are not: the
likelihood is wide and skew, and its peak a poor summary. The error of k-means is the
squared distance of points to the nearest centre, so the centres with the least expected
error are

    argmin_C  E[min_j |z - c_j|^2],   z from clusters drawn from the posterior:

k-means on the posterior predictive law of a point. Clusters are drawn by Hamiltonian
Monte Carlo (momenta, leapfrog steps along the gradient, reflection at the walls of the
box, Metropolis acceptance), points from those, and Lloyd's algorithm runs on the points
from many starts.

**Several chains.** One chain that stays in one mode of the posterior gives the centres
of that mode. Here all begin at the peak, and all but the first are heated, if they have
the steps to cool down again (60; with fewer, where reports are many, some end in lower
modes): during the warm-up they see the likelihood to a power that rises from 0.1 to 1,
so that they settle in modes of their own. A mode's share of the posterior is its height
times its volume; draws of a chain that is lower than the best by more than three errors
of its mean log density get the weight exp(-the rest of the gap), which takes volumes
for equal, so that a chain in a mode of no importance has no vote. Chains that differ by
less have one vote each: weights from means with an error of a nat would be noise. A
chain seldom leaves its mode, so that the error of the average goes with the number of
chains more than with their length: there is one for every 150 steps, from 8 to 32. (300
stretched points at epsilon 2, six fits of one set of reports, 6,000 steps: the SSE
differs by 55% with 8 chains, and by 8% with 32.) They run side by side, because a pass
over few reports costs less than its call.

**How many draws.** A centre is an average over the draws. With V the posterior variance
of the centres, their error and their distance from the truth are of the sizes
sqrt(V / draws) and sqrt(V), and the SSE of two fits differs by the product of the two:
by 2 v / sqrt(draws) of itself, with v = V / (V + s^2) the part of the SSE that is due
to what is not known. So (2 v / 0.01)^2 steps are taken, between 480 and 6,000: few
where reports are informative, and many where they are not. V = K / (n I) and the width
s of the peak hold where reports show which cluster they are of; p_ij being the share of
cluster j in report i at the peak, q = (mean of sum_j p_ij^2 - 1/K) / (1 - 1/K) is 1
there and 0 where they show nothing. All of the SSE is open in the second case, so
1 - q (1 - v) stands for v.

`Draws.disagreement` is Gelman and Rubin's diagnostic of the log density over halves of
the chains (1 where they agree). `Draws.moving` is the share of steps that were taken.
In many dimensions the prior is much narrower in some directions than what reports tell,
and few steps do not find that out: where hardly any is taken the draws are the peak,
which is what the centres then come from, and no measure of what is not known.

Everything comes from the reports and a generator seeded by `random_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.moves import log_parts, log_sum, rows_of

Array = NDArray[np.float64]

FEWEST_CHAINS, MOST_CHAINS, _CHAIN = 8, 32, 150
LEAPFROG = 8
_WANTED = 0.75  # acceptance
_POINTS, _MOST_POINTS = 24_000, 200_000
_COORDINATES = 800_000  # of all points together
_LLOYD_STARTS = 8
_LAST_STEPS, _LAST_MOVE = 300, 1e-7
_HOTTEST = 0.1
_HEATED = 60  # steps of a chain from which on it has the time to cool
_CORRELATED = 7.0  # draws in a row that are worth one, of the log density
_SURE = 3.0  # standard errors
# Steps of all chains: as many as the tolerance asks for, as far as all passes together
# have no more pairs of report and cluster than that; the fewest in any case.
_TOLERANCE = 0.01  # deviation of the SSE between fits, over the SSE
_WORK = 6e7
_FEWEST, _LEAST, _MOST = 120, 480, 6000
_DIMENSIONS = 16.0  # coordinates of a pair that take as long as the rest of it
_EVERY = 2  # leapfrog steps between draws
_LAPLACE_DRAWS = 200
_MOST_CURVED = 120  # parameters up to which the curvature is computed


@dataclass(frozen=True, eq=False)
class Draws:
    """Clusters drawn from the posterior, numbered like the peak's, with weights."""

    clusters: Clusters  # many sets
    weights: Array
    disagreement: float
    moving: float = 1.0  # share of steps that were taken


def steps_for(pairs: int, dimension: int, open_share: float) -> int:
    """The number of steps of all chains together, for `pairs` of report and cluster.

    `open_share` is the part of the SSE that is due to what the posterior leaves open.
    """
    wanted = np.clip((2.0 * open_share / _TOLERANCE) ** 2, _LEAST, _MOST)
    work = max(pairs, 1) * (1.0 + dimension / _DIMENSIONS)
    affordable = max(_WORK / LEAPFROG / work, _FEWEST)
    return int(min(wanted, affordable))


def _open_share(
    objective: MixtureObjective, best: Clusters, information: float
) -> float:
    """That part at the peak, by what the reports show of their clusters."""
    count = len(best.weights)
    error = count / max(objective.reports.shape[0] * information, 1e-300)
    known = 1.0 - error / (error + float(best.weights @ best.widths**2))
    if count == 1:
        return 1.0 - known
    logs = log_parts(objective, best, rows_of(objective))
    pure = float((np.exp(logs - log_sum(logs)[:, None]) ** 2).sum(axis=1).mean())
    return 1.0 - known * (pure - 1.0 / count) / (1.0 - 1.0 / count)


def posterior_draws(
    objective: MixtureObjective,
    peak: Array,
    information: float,
    rng: np.random.Generator,
    *,
    chains: int | None = None,
    steps: int | None = None,
) -> Draws:
    """Clusters drawn from the posterior, a third of the steps being warm-up."""
    n = objective.reports.shape[0]
    best = objective.unpack(peak)
    if steps is None:
        share = _open_share(objective, best, information)
        steps = steps_for(n * objective.clusters, objective.reports.shape[1], share)
    if chains is None:
        chains = min(max(steps // _CHAIN, FEWEST_CHAINS), MOST_CHAINS)
    each = max(6, steps // chains)
    warm_up = each // 3
    scales = _scales(objective, best, information)
    heats = np.ones((each, chains))
    if each >= _HEATED:
        heats[:warm_up, 1:] = np.geomspace(_HOTTEST, 1.0, warm_up)[:, None]
    positions, heights = _chains(objective, peak, scales, heats, rng)
    kept = positions[warm_up:].swapaxes(0, 1).reshape(-1, len(peak))
    logs = heights[warm_up:].T
    weights = np.repeat(_votes(logs), len(kept) // chains)
    drawn = numbered(objective.unpack(kept), best.centers)
    moving = float((np.diff(logs, axis=1) != 0.0).mean())
    return Draws(drawn, weights / weights.sum(), _disagreement(logs), moving)


def _votes(logs: Array) -> Array:
    """The weight of each chain, by its mean log density.

    Chains of one mode have means that differ by the error of a mean alone, and then no
    chain is better than another.
    """
    size = logs.shape[1]
    means = logs.mean(axis=1)
    errors = logs.std(axis=1) * np.sqrt(_CORRELATED / max(size, _CORRELATED))
    best = means.argmax()
    gaps = means[best] - means - _SURE * np.hypot(errors[best], errors)
    return np.exp(-np.maximum(gaps, 0.0))


def peak_draws(
    objective: MixtureObjective,
    peak: Array,
    total: int,
    information: float,
    rng: np.random.Generator,
) -> Draws:
    """Clusters from the Gaussian that the posterior of `total` reports tends to.

    Its precision is the curvature at the peak, from gradients of a part of the reports
    (`objective`); where there are many parameters, the diagonal alone.
    """
    n = objective.reports.shape[0]
    best = objective.unpack(peak)
    low, high = np.array(objective.bounds).T
    scales = _scales(objective, best, information) * np.sqrt(n / total)
    free = np.flatnonzero(scales > 0.0)
    deviations = np.zeros((_LAPLACE_DRAWS, len(peak)))
    z = rng.normal(size=(_LAPLACE_DRAWS, len(free)))
    if len(free) <= _MOST_CURVED:
        curvature = np.empty((len(free), len(free)))
        for row, i in enumerate(free):
            step = np.zeros(len(peak))
            step[i] = 0.3 * scales[i] * np.sqrt(total / n)
            ahead, behind = objective(peak + step)[1], objective(peak - step)[1]
            curvature[row] = (ahead - behind)[free] / (2.0 * step[i])
        scaled = total * 0.5 * (curvature + curvature.T)
        scaled *= np.outer(scales[free], scales[free])
        values, vectors = np.linalg.eigh(scaled)
        # A direction in which nothing is seen (all logits at once) moves nothing.
        turned = vectors / np.sqrt(np.maximum(values, 0.05))
        deviations[:, free] = scales[free] * (z @ turned.T)
    else:
        deviations[:, free] = scales[free] * z
    places = np.clip(peak + deviations, low, high)
    drawn = numbered(objective.unpack(places), best.centers)
    return Draws(drawn, np.full(len(places), 1.0 / len(places)), 1.0)


def _chains(
    objective: MixtureObjective,
    start: Array,
    scales: Array,
    heats: Array,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Draws and log densities of chains side by side, by step and chain.

    A step gives several draws. A trajectory that ends after fewer leapfrog steps is a
    trajectory as well, so each place on the way, taken or left by its own acceptance,
    is a draw; together they go round the posterior and average better than their ends.
    """
    low, high = np.array(objective.bounds).T
    each, chains = heats.shape
    place = np.tile(start, (chains, 1))
    parts = objective.parts(place)
    sizes = np.full(chains, 0.3)
    recycled = LEAPFROG // _EVERY
    positions = np.empty((each, chains, recycled, len(start)))
    logs = np.empty((each, chains))
    for i, heat in enumerate(heats):
        value, slope = parts.at(heat)
        momentum = rng.normal(size=place.shape)
        before = 0.5 * (momentum**2).sum(axis=1) - value
        # Steps of random length: no trajectory comes back to where it began.
        step = (sizes * rng.uniform(0.7, 1.3, size=chains))[:, None] * scales
        there, reached = place, parts
        bar = rng.random(chains)
        for leap in range(1, LEAPFROG + 1):
            momentum = momentum + 0.5 * step * slope
            there = there + step * momentum
            there, momentum = _reflected(there, momentum, low, high)
            reached = objective.parts(there)
            value, slope = reached.at(heat)
            momentum = momentum + 0.5 * step * slope
            if leap % _EVERY == 0:
                gain = before - (0.5 * (momentum**2).sum(axis=1) - value)
                gain = np.where(np.isfinite(gain), gain, -np.inf)
                chance = np.exp(np.minimum(gain, 0.0))
                taken = bar < chance
                on_the_way = np.where(taken[:, None], there, place)
                positions[i, :, leap // _EVERY - 1] = on_the_way
        place = np.where(taken[:, None], there, place)
        parts = reached.where(taken, parts)
        if i < each // 3:
            sizes *= np.exp(0.2 * (chance - _WANTED))
        logs[i] = parts.likelihood + parts.prior
    return positions, logs


def _disagreement(logs: Array) -> float:
    """Gelman and Rubin's R of the log density, over the halves of the chains."""
    size = logs.shape[1] // 2
    if size < 2:
        return 1.0
    halves = np.concatenate([logs[:, :size], logs[:, -size:]])
    within = float(halves.var(axis=1, ddof=1).mean())
    between = float(halves.mean(axis=1).var(ddof=1))
    return float(np.sqrt(1.0 + between / within)) if within > 0.0 else 1.0


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
    models.append(
        lloyd(few, count, rng=rng, n_init=_LLOYD_STARTS, max_iter=100, weights=some)
    )
    best = min(models, key=lambda model: float(model.inertia_))
    # The error is flat about its least value: the last steps are small, and more
    # points tell where they lead.
    best = lloyd(
        cloud,
        count,
        start=np.asarray(best.cluster_centers_),
        max_iter=_LAST_STEPS,
        weights=shares,
        tol=_LAST_MOVE,
    )
    low, high = (0.0, 1.0) if box is None else box
    return np.asarray(np.clip(best.cluster_centers_, low, high))


def predictive_points(draws: Draws, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points of the posterior predictive law, and their weights."""
    used = np.flatnonzero(draws.weights > 1e-6 * draws.weights.max())
    _, count, d = draws.clusters.centers.shape
    wanted = int(np.clip(_COORDINATES / d, _POINTS, _MOST_POINTS))
    pairs = max(1, wanted // (2 * count * len(used)))
    widths = draws.clusters.widths[used][:, :, None, None]
    z = widths * rng.normal(size=(len(used), count, pairs, d))
    # In pairs, so that every cluster's mean is exact.
    both = np.concatenate([z, -z], axis=2)
    both += draws.clusters.centers[used][:, :, None, :]
    shares = draws.weights[used, None] * draws.clusters.weights[used] / (2 * pairs)
    return both.reshape(-1, d), np.repeat(shares.ravel(), 2 * pairs)


def _scales(objective: MixtureObjective, best: Clusters, information: float) -> Array:
    """About one posterior deviation of each coordinate of the vector."""
    n = objective.reports.shape[0]
    low, high = np.array(objective.bounds).T
    members = np.maximum(n * best.weights, 1.0)
    d = objective.reports.shape[1]
    centers = np.repeat(np.minimum(1.0 / np.sqrt(members * information), 0.3), d)
    logits = 2.0 / np.sqrt(0.3 * members + 4.0)
    widths = np.full(1 if objective.shared else objective.clusters, 0.5)
    scales = np.concatenate([centers, widths, np.minimum(logits, 1.0)])
    return np.asarray(np.where(high > low, scales, 0.0))


def _reflected(
    place: Array, momentum: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """Reflection at the walls: it keeps volume and energy, so the draw stays exact."""
    span = high - low
    around = np.mod(place - low, np.where(span > 0.0, 2.0 * span, 1.0))
    turned = around > span
    return (
        low + np.where(turned, 2.0 * span - around, around),
        np.where(turned, -momentum, momentum),
    )


def numbered(drawn: Clusters, centers: Array) -> Clusters:
    """Many sets of clusters, each in the order in which it is nearest to `centers`."""
    gaps = -2.0 * np.einsum("ja,nka->njk", centers, drawn.centers)
    gaps += (drawn.centers**2).sum(axis=2)[:, None, :]
    order = gaps.argmin(axis=2)
    # Where every centre has a nearest cluster of its own, that is the assignment of
    # least squared distance.
    count = len(centers)
    shared = (np.sort(order, axis=1) != np.arange(count)).any(axis=1)
    for i in np.flatnonzero(shared):
        order[i] = linear_sum_assignment(gaps[i])[1]
    rows = np.arange(len(order))[:, None]
    return Clusters(
        drawn.centers[rows, order],
        drawn.weights[rows, order],
        drawn.widths[rows, order],
    )
