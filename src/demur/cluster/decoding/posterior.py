"""Centres by posterior averaging: those with the least expected k-means error.

The most likely clusters are good when reports are informative. Often they are not: the
likelihood is wide and skew, and its peak a poor summary. The error of k-means is the
squared distance of points to the nearest centre, so the centres with the least expected
error are

    argmin_C  E[min_j |z - c_j|^2],   z from clusters drawn from the posterior:

k-means on the posterior predictive law of a point. Clusters are drawn by Hamiltonian
Monte Carlo (momenta, leapfrog steps along the gradient, reflection at the walls of the
box, Metropolis acceptance), points from those, and Lloyd's algorithm runs on the points
from many starts (`lloyd`).

**Several chains.** One chain that stays in one mode of the posterior gives the centres
of that mode. Here all begin at the peak, and all but the first are heated, if they have
the steps to cool down again (60; with fewer, where reports are many, some end in lower
modes): during the warm-up they see the likelihood to a power that rises from 0.1 to 1,
so that they settle in modes of their own. A mode's share of the posterior is its height
times its volume; draws of a chain that is lower than the best by more than three errors
of its mean log density get the weight exp(-the rest of the gap), which takes volumes
for equal, so that a chain in a mode of no importance has no vote. Chains that differ by
less have one vote each: weights from means with an error of a nat would be noise. There
is one chain for every 150 steps, from 8 to 64. They run side by side, because a pass
over few reports costs less than its call. Leapfrog steps are as long on each coordinate
as the chains' own deviations at the end of the warm-up, where there are 60 steps of it.

**How many draws.** A centre is an average over the draws. With V the posterior variance
of the centres, their error and their distance from the truth are of the sizes
sqrt(V / draws) and sqrt(V), and the SSE of two fits differs by the product of the two:
by 2 v / sqrt(draws) of itself, with v = V / (V + s^2) the part of the SSE that is due
to what is not known. So (2 v / 0.01)^2 steps are taken at first, between 480 and 12,000
(as far as that is affordable): few where reports are informative, and many where they
are not. V = K / (n I) and the width s of the peak hold where reports show which cluster
they are of; p_ij being the share of cluster j in report i at the peak,
q = (mean of sum_j p_ij^2 - 1/K) / (1 - 1/K) is 1 there and 0 where they show nothing.
All of the SSE is open in the second case, so 1 - q (1 - v) stands for v.

Then the chains themselves tell. With F_c the mean over chain c of what one step of
Lloyd's algorithm adds to the centres, the variance of F over chains, divided by their
number, is D, the squared error of the centres, whatever the draws of a chain have in
common; V is measured on the draws. Chains go on until 2 sqrt(D V) / (V + s^2), the
deviation of the SSE between two fits, is below 0.006, or up to 30,000 steps or what is
affordable. Where chains mix (300 points in three or four clusters at epsilon 2) there
is an independent draw for 1.3 steps, and the largest number of steps leaves differences
of 2 to 4% between six fits.

`Draws.disagreement` is Gelman and Rubin's diagnostic of the log density over halves of
the chains (1 where they agree). `Draws.moving` is the share of steps that were taken.
In many dimensions the prior is much narrower in some directions than what reports tell,
and few steps do not find that out: where hardly any is taken the draws are the peak,
which is what the centres then come from, and no measure of what is not known.

Everything comes from the reports and a generator that they seed (`search`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.moves import log_parts, log_sum, rows_of

Array = NDArray[np.float64]

FEWEST_CHAINS, MOST_CHAINS, _CHAIN = 8, 64, 150
LEAPFROG = 8
_WANTED = 0.75  # acceptance
_HOTTEST = 0.1
_HEATED = 60  # steps of a chain from which on it has the time to cool
_WARM_UP = 90  # steps of a chain, at most; a third of fewer than 270
_MEASURED = 60  # steps of warm-up from which on the chains' own deviations are used
_SCALED = 10.0  # factor by which they may differ from those of the peak
_CORRELATED = 7.0  # draws in a row that are worth one, of the log density
_SURE = 3.0  # standard errors
# Steps of all chains: as many as the tolerance asks for, as far as all passes together
# have no more pairs of report and cluster than that (at first, and when chains go on);
# the fewest in any case.
_TOLERANCE = 0.01  # deviation of the SSE between fits, over the SSE, of first steps
_ENOUGH = 0.006  # and the one at which chains end
_WORK, _MOST_WORK = 2.4e8, 5e8
_FEWEST, _LEAST, _FIRST, _MOST = 240, 480, 12_000, 30_000
_DIMENSIONS = 16.0  # coordinates of a pair that take as long as the rest of it
_EVERY = 4  # leapfrog steps between draws
_LAPLACE_DRAWS = 200
_ALL_ORDERS = 4  # clusters up to which all their orders are compared
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
    wanted = np.clip((2.0 * open_share / _TOLERANCE) ** 2, _LEAST, _FIRST)
    return int(min(wanted, affordable_steps(pairs, dimension)))


def affordable_steps(pairs: int, dimension: int, work: float = _WORK) -> int:
    """The most steps of all chains together, for that many pairs in all passes."""
    a_pass = max(pairs, 1) * (1.0 + dimension / _DIMENSIONS)
    return int(np.clip(work / LEAPFROG / a_pass, _FEWEST, _MOST))


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
    """Clusters drawn from the posterior; without `steps`, as many as they need."""
    n, d = objective.reports.shape
    best = objective.unpack(peak)
    most = steps
    if steps is None:
        share = _open_share(objective, best, information)
        steps = steps_for(n * objective.clusters, d, share)
        most = affordable_steps(n * objective.clusters, d, _MOST_WORK)
    if chains is None:
        chains = min(max(steps // _CHAIN, FEWEST_CHAINS), MOST_CHAINS)
    each = max(6, steps // chains)
    warm_up = min(each // 3, _WARM_UP)
    heats = np.ones((each, chains))
    if each >= _HEATED:
        rising = 2 * warm_up // 3 if warm_up >= _MEASURED else warm_up
        heats[:rising, 1:] = np.geomspace(_HOTTEST, 1.0, rising)[:, None]
    run = Chains(objective, peak, _scales(objective, best, information), chains, rng)
    run.warm_up(heats[:warm_up])
    positions, heights = run.go_on(heats[warm_up:])
    while True:
        kept = positions.swapaxes(0, 1).reshape(-1, len(peak))
        logs = heights.T
        weights = np.repeat(_votes(logs), len(kept) // chains)
        drawn = objective.unpack(kept)
        left = ((most or 0) - warm_up * chains) // chains - len(heights)
        more = min(len(heights), left)
        if 2 * more < len(heights):
            break
        if deviation(drawn, weights, chains, best.centers) < _ENOUGH:
            break
        further = run.go_on(np.ones((more, chains)))
        positions = np.concatenate([positions, further[0]])
        heights = np.concatenate([heights, further[1]])
    moving = float((np.diff(logs, axis=1) != 0.0).mean())
    return Draws(
        numbered(drawn, best.centers),
        weights / weights.sum(),
        _disagreement(logs),
        moving,
    )


def deviation(drawn: Clusters, weights: Array, chains: int, centers: Array) -> float:
    """The deviation of the SSE between two fits over it, by what chains differ in.

    Draws are those of one chain after the other; `centers` are near the centres.
    """
    shares = drawn.weights * (weights / weights.sum())[:, None]
    for last in (False, True):
        gaps = -2.0 * np.einsum("ja,nka->nkj", centers, drawn.centers)
        nearest = (gaps + (centers**2).sum(axis=1)).argmin(axis=2)
        away = drawn.centers - centers[nearest]
        mass = np.bincount(nearest.ravel(), shares.ravel(), len(centers))[:, None]
        if last:
            break
        centers = centers.copy()
        np.add.at(
            centers,
            nearest,
            (shares / np.maximum(mass[nearest, 0], 1e-12))[..., None] * away,
        )
    # What a chain adds to each centre in one step of Lloyd's algorithm.
    steps = np.zeros((chains, len(mass), away.shape[2]))
    of_chain = np.repeat(np.arange(chains), len(weights) // chains)
    np.add.at(steps, (of_chain[:, None], nearest), shares[:, :, None] * away)
    squares = (chains * steps).var(axis=0, ddof=1) / chains / np.maximum(mass, 1e-12)
    error = float(squares.sum())
    unknown = float((shares * (away**2).sum(axis=2)).sum())
    known = float((shares * drawn.widths**2).sum()) * away.shape[2]
    return 2.0 * float(np.sqrt(error * unknown)) / (unknown + known)


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


class Chains:
    """Chains of Hamiltonian Monte Carlo side by side, from one place.

    A step gives several draws. A trajectory that ends after fewer leapfrog steps is a
    trajectory as well, so each place on the way, taken or left by its own acceptance,
    is a draw; together they go round the posterior and average better than their ends.
    """

    def __init__(
        self,
        objective: MixtureObjective,
        start: Array,
        scales: Array,
        chains: int,
        rng: np.random.Generator,
    ) -> None:
        self._objective, self._rng, self._scales = objective, rng, scales
        self._columns = objective.columns()
        self._low, self._high = np.array(objective.bounds).T
        self._place = np.tile(start, (chains, 1))
        self._parts = objective.parts(self._place, self._columns)
        self._sizes = np.full(chains, 0.3)

    def warm_up(self, heats: Array) -> None:
        """Steps whose lengths follow the acceptance, and then the chains' deviations.

        Heats are by step and chain; the last third is not heated, if there are many.
        """
        size = len(heats)
        first = 2 * size // 3 if size >= _MEASURED else size
        last = first + (size - first) // 2
        for heat in heats[:first]:
            self._step(heat, adapting=True)
        seen = [self._step(heat, adapting=True) for heat in heats[first:last]]
        if seen:
            self._rescale(np.concatenate(seen))
        for heat in heats[last:]:
            self._step(heat, adapting=True)

    def go_on(self, heats: Array) -> tuple[Array, Array]:
        """Draws (by step, chain and place) and log densities (by step and chain)."""
        positions, logs = [], []
        for heat in heats:
            positions.append(self._step(heat, adapting=False))
            logs.append(self._parts.likelihood + self._parts.prior)
        return np.stack(positions).swapaxes(1, 2), np.stack(logs)

    def _rescale(self, seen: Array) -> None:
        """Scales from the deviations within chains: modes may be far apart."""
        seen = seen.copy()
        k = self._objective.clusters
        # All logits at once move nothing.
        seen[..., -k:] -= seen[..., -k:].mean(axis=-1, keepdims=True)
        found = np.sqrt(seen.var(axis=0).mean(axis=0))
        free = self._scales > 0.0
        old = self._scales[free]
        new = np.clip(found[free], old / _SCALED, old * _SCALED)
        self._sizes *= np.exp(np.log(old / new).mean())
        self._scales[free] = new

    def _step(self, heat: Array, *, adapting: bool) -> Array:
        """The places on the way of one step, by place and chain."""
        rng, place = self._rng, self._place
        value, slope = self._parts.at(heat)
        momentum = rng.normal(size=place.shape)
        before = 0.5 * (momentum**2).sum(axis=1) - value
        # Steps of random length: no trajectory comes back to where it began.
        step = self._sizes * rng.uniform(0.7, 1.3, size=len(place))
        step = step[:, None] * self._scales
        there = place
        bar = rng.random(len(place))
        on_the_way = []
        for leap in range(1, LEAPFROG + 1):
            momentum = momentum + 0.5 * step * slope
            there = there + step * momentum
            there, momentum = _reflected(there, momentum, self._low, self._high)
            reached = self._objective.parts(there, self._columns)
            value, slope = reached.at(heat)
            momentum = momentum + 0.5 * step * slope
            if leap % _EVERY == 0:
                gain = before - (0.5 * (momentum**2).sum(axis=1) - value)
                gain = np.where(np.isfinite(gain), gain, -np.inf)
                chance = np.exp(np.minimum(gain, 0.0))
                taken = bar < chance
                on_the_way.append(np.where(taken[:, None], there, place))
        self._place = on_the_way[-1]
        self._parts = reached.where(taken, self._parts)
        if adapting:
            self._sizes *= np.exp(0.2 * (chance - _WANTED))
        return np.stack(on_the_way)


def _disagreement(logs: Array) -> float:
    """Gelman and Rubin's R of the log density, over the halves of the chains."""
    size = logs.shape[1] // 2
    if size < 2:
        return 1.0
    halves = np.concatenate([logs[:, :size], logs[:, -size:]])
    within = float(halves.var(axis=1, ddof=1).mean())
    between = float(halves.mean(axis=1).var(ddof=1))
    return float(np.sqrt(1.0 + between / within)) if within > 0.0 else 1.0


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
    some = np.flatnonzero(shared)
    if count <= _ALL_ORDERS:  # of all orders at once the best
        orders = np.array(list(permutations(range(count))))
        totals = [gaps[some][:, np.arange(count), each].sum(axis=1) for each in orders]
        order[some] = orders[np.argmin(totals, axis=0)]
    else:
        for i in some:
            order[i] = linear_sum_assignment(gaps[i])[1]
    rows = np.arange(len(order))[:, None]
    return Clusters(
        drawn.centers[rows, order],
        drawn.weights[rows, order],
        drawn.widths[rows, order],
    )
