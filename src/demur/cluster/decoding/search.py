"""Maximum likelihood of round clusters, from many starts, by split and merge.

The likelihood of a mixture has local maxima. Starts are k-means on the reports clipped
to the cube, and centres drawn at random (in the cube, and among the clipped reports).
All are improved a little on a subsample (4,000 reports); the best few go on, on at most
40,000, and from there clusters are moved to where one lacks (`moves`) until no move
helps; the best is followed to convergence on all reports.

In many dimensions centres of many reports are looked for in the subspace in which the
reports show any variance (`subspace`).

Nothing depends on where the reports lie or in which order (`ranked_rows`): a
subsample is a function of the row ids, and a pass over all reports gives exact sums.

Where the posterior is averaged over, starts and chains are seeded by the values of the
reports and see them in an order that follows from those, too: the centres are a
function of the reports as a set, whatever their ids. The error of an average over
finitely many draws is part of the error of the estimate then, and no longer a
difference between fits. `rng` decides where there are more reports.

**Intervals in many dimensions** come from chains of their own. The prior of the centres
has the directions and variances that the same reports showed. It makes centres better,
but it is too sure: along a direction that was estimated badly it pulls all centres by
as much as their error (600 reports at epsilon 16 in 16 and in 32 dimensions: errors are
1.2 and 1.3 times as large as the posterior's deviations). Beyond 12 dimensions, where
no half of it is uniform, intervals are those of the posterior under a prior of one
variance in all directions, whose mean over directions is known well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from demur.cluster.decoding.clipped_law import with_clipped_law
from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import best_centers, lloyd
from demur.cluster.decoding.moments import moments
from demur.cluster.decoding.moves import (
    log_parts,
    losses_without,
    proposals,
    rows_of,
    without,
)
from demur.cluster.decoding.noise import Noise
from demur.cluster.decoding.posterior import (
    Draws,
    affordable_steps,
    peak_draws,
    posterior_draws,
)
from demur.cluster.decoding.priors import CentrePrior
from demur.cluster.decoding.radial import RadialTable, radial_table
from demur.cluster.decoding.subspace import (
    WHOLE,
    Subspace,
    directions_for,
    in_whole_space,
    subspace_for,
)
from demur.cluster.rows.ranked_rows import (
    RankedRows,
    RowsInMemory,
    new_key,
    shuffled,
    subsample,
)

Array = NDArray[np.float64]

_SCREENED = 4_000
_SHORTLISTED = 40_000
_SHORTLIST = 3
FIRST_STEPS = 25
_FIRST_WIDTH = 0.1
_MOVES = 12  # rounds of split and merge, at most
_FAILURES = 3  # rounds in a row, from places at random, without a gain
_COMPARED = 10_000  # reports on which moves are tried
_REFITTED = 100  # steps of a fit with one cluster less
_LEAST_GAIN = 2.0  # nats of a move that is kept
_DOUBT = 3.0  # nats by which a part of the reports may be against it
# Reports times clusters (times coordinates, for noise by coordinate) up to which the
# posterior is drawn from: beyond, a pass costs much and the peak is narrow.
_AVERAGED = 1_000_000
_INTERVAL_STEPS = 2_400  # of chains for intervals alone
_MOVING = 0.1  # share of steps that chains must take for their draws to be used


def subsampling(count: int) -> str | None:
    """Which of `count` reports the search looks at, if not always at all of them."""
    if count <= _SCREENED:
        return None
    screening = f"all starts were tried on {_SCREENED:,} of the {count:,} reports"
    best = f"the best {_SHORTLIST}"
    if count <= _SHORTLISTED:
        return f"{screening}, {best} followed on all"
    return f"{screening}, {best} on {_SHORTLISTED:,}, the last one on all"


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fit: the likelihood's peak, the centres, and how they were computed."""

    peak: Clusters
    centers: Array
    log_likelihood: float
    iterations: int
    averaged: bool
    draws: Draws
    spare: float | None  # nats by which one cluster less is better, if it is
    clipped_share: float = 0.0  # of the law of the clipped reports, in the centres

    @property
    def width(self) -> float:
        """The width of a typical cluster, averaged like the centres."""
        logs = np.log(self.draws.clusters.width)
        return float(np.exp(np.average(logs, weights=self.draws.weights)))


@dataclass(frozen=True, eq=False)
class Setting:
    """What all objectives of a fit share."""

    noise: Noise
    table: RadialTable
    clusters: int
    shared: bool
    total: int
    prior: CentrePrior
    even: CentrePrior  # of the same variance in all directions, for intervals
    widest: float
    subspace: Subspace | None
    directions: int  # in which reports show any variance

    @property
    def product(self) -> bool:
        """Whether coordinates are blocks of their own."""
        return self.noise.block != self.noise.dimension

    def objective(self, rows: RankedRows) -> MixtureObjective:
        """The objective of some of the reports."""
        return MixtureObjective(
            rows,
            self.table,
            self.clusters,
            self.product,
            self.prior,
            self.widest,
            self.shared,
            rows.shape[0] / self.total,
            None if self.subspace is None else self.subspace.box,
        )


def setting_for(
    reports: RankedRows,
    noise: Noise,
    clusters: int,
    near: RowsInMemory,
    *,
    nu: float | None = None,
    shared: bool = False,
    whole: bool = False,
) -> tuple[Setting, RowsInMemory]:
    """Priors, table and subspace of a fit, and the rows `near` as they take them."""
    known = moments(_first(near, _SHORTLISTED).values, noise)
    single = noise.block == noise.dimension
    space = subspace_for(known, clusters) if single and not whole else None
    # The widest cell of a k-means (`priors`).
    cell = math.sqrt(known.variances.mean()) * clusters ** (-1.0 / len(known.mean))
    if space is None:
        law = CentrePrior.in_cube if noise.dimension <= WHOLE else CentrePrior
        prior = law(known.mean, known.root())
        root = np.eye(len(known.mean)) / math.sqrt(known.variances.mean())
        even = CentrePrior(known.mean, root) if law is CentrePrior else prior
    else:
        prior, near = space.prior, space.reduced(near)
        even = prior
    table, total = radial_table(noise, nu), reports.shape[0]
    widest = math.log(cell)
    size = directions_for(known, clusters)
    found = Setting(
        noise, table, clusters, shared, total, prior, even, widest, space, size
    )
    return found, near


def fit_clusters(
    reports: RankedRows,
    noise: Noise,
    clusters: int,
    *,
    rng: np.random.Generator,
    n_init: int,
    max_iter: int,
    nu: float | None = None,
    width: float = _FIRST_WIDTH,
    shared: bool = False,
    clipped: bool = False,
) -> MixtureFit:
    """The most likely clusters behind the reports, and the best k-means centres."""
    n = reports.shape[0]
    blocks = noise.dimension // noise.block
    averaged = n * clusters * blocks <= _AVERAGED
    if averaged:
        # Hundreds of passes are to come where the posterior is drawn from.
        near, rng = shuffled(reports)
    else:
        near = subsample(reports, new_key(rng), _SHORTLISTED)
    whole_space = averaged and in_whole_space(n, clusters, noise.dimension)
    setting, near = setting_for(
        reports, noise, clusters, near, nu=nu, shared=shared, whole=whole_space
    )
    few = _first(near, _SCREENED)
    small = setting.objective(few)
    tried = [
        improve(small, small.pack(start), min(FIRST_STEPS, max_iter))
        for start in _starts(small, few.values, n_init, width, rng)
    ]
    tried.sort(key=lambda attempt: attempt[0])
    whole = setting.objective(_first(near, _SHORTLISTED))
    best = [improve(whole, start, max_iter) for _, start, _ in tried[:_SHORTLIST]]
    _, vector, iterations = min(best, key=lambda attempt: attempt[0])
    vector, more = _moved(setting, whole, vector, max_iter, rng)
    iterations += more
    space = setting.subspace
    close = whole
    if n > _SHORTLISTED and (averaged or space is None):
        whole = setting.objective(near if averaged else reports)
        _, vector, more = improve(whole, vector, max_iter)
        iterations += more
    peak = whole.unpack(vector)
    spare = spare_clusters(setting, close, peak)
    share = 0.0
    if averaged:
        draws = posterior_draws(whole, vector, noise.information, rng)
        centers = best_centers(draws, rng, whole.box)
        if clipped and noise.dimension <= WHOLE:
            both, share = with_clipped_law(whole, draws, centers, rng)
            if share:
                centers = best_centers(both, rng, whole.box)
    else:
        draws = peak_draws(close, vector, n, noise.information, rng)
        alone = Draws(whole.unpack(vector[None]), np.ones(1), 1.0)
        centers = best_centers(alone, rng, whole.box)
    likelihood = whole.log_likelihood(peak)
    if averaged and setting.even is not setting.prior and draws.moving >= _MOVING:
        evenly = replace(whole, centre_prior=setting.even)
        steps = min(_INTERVAL_STEPS, affordable_steps(n * clusters, noise.dimension))
        draws = posterior_draws(evenly, vector, noise.information, rng, steps=steps)
    if draws.moving < _MOVING:  # chains that stood still know nothing about the rest
        averaged = False
        draws = peak_draws(close, vector, n, noise.information, rng)
    if space is not None:
        peak, centers, draws = _lifted(space, peak, centers, draws, rng)
    return MixtureFit(
        peak=peak,
        centers=centers,
        log_likelihood=likelihood,
        iterations=max(1, iterations),
        averaged=averaged,
        draws=draws,
        spare=spare,
        clipped_share=share,
    )


def spare_clusters(
    setting: Setting, whole: MixtureObjective, peak: Clusters
) -> float | None:
    """The nats by which one cluster less is better by Schwarz's criterion.

    The cluster that the others miss least is left out and they are fitted again. With
    n reports a cluster is worth its d + 2 parameters from (d + 2) / 2 log n nats on;
    None where it is.
    """
    if setting.clusters == 1:
        return None
    part = replace(whole, reports=_first(rows_in_memory(whole), _COMPARED))
    losses = losses_without(peak, log_parts(part, peak, rows_of(part)))
    fewer = without(peak, int(losses.argmin()))
    less = replace(part, clusters=setting.clusters - 1)
    there = less.unpack(improve(less, less.pack(fewer), _REFITTED)[1])
    lost = part.log_likelihood(peak) - less.log_likelihood(there)
    gain = (
        0.5 * (setting.directions + 2) * math.log(setting.total) - setting.total * lost
    )
    return gain if gain > 0.0 else None


def rows_in_memory(objective: MixtureObjective) -> RowsInMemory:
    """The rows of an objective that is not of remote reports."""
    assert isinstance(objective.reports, RowsInMemory)
    return objective.reports


def _moved(
    setting: Setting,
    whole: MixtureObjective,
    vector: Array,
    max_iter: int,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """Split and merge until no move gains, tried on 10,000 reports first.

    A gain of 4 nats of 30,000 reports is one of 1.3 of a third of them, with a
    deviation of 1.6: all reports decide where a part does not.
    """
    rows = rows_in_memory(whole)
    n, steps = rows.shape[0], 0
    part = setting.objective(_first(rows, _COMPARED))
    doubt = _DOUBT if n > _COMPARED else 0.0
    value = whole(vector)[0]
    failures = 0
    for _ in range(_MOVES if setting.clusters > 1 else 0):
        tried = [
            improve(part, part.pack(start), min(FIRST_STEPS, max_iter))
            for start in proposals(part, whole.unpack(vector), rng)
        ]
        if not tried:
            break
        best = min(tried, key=lambda attempt: attempt[0])
        stay = improve(part, vector, min(FIRST_STEPS, max_iter))
        if (best[0] - stay[0]) * part.reports.shape[0] < doubt:
            there, moved, more = improve(whole, best[1], max_iter)
            steps += more
            if (value - there) * n > _LEAST_GAIN:
                value, vector, failures = there, moved, 0
                continue
        failures += 1
        if failures == _FAILURES:
            break
    return vector, steps


def _lifted(
    space: Subspace,
    peak: Clusters,
    centers: Array,
    draws: Draws,
    rng: np.random.Generator,
) -> tuple[Clusters, Array, Draws]:
    """Everything of a fit in the subspace, in all dimensions."""
    top = Clusters(space.lifted(peak.centers), peak.weights, peak.widths)
    drawn = replace(draws, clusters=space.scattered(draws.clusters, rng))
    return top, space.lifted(centers), drawn


def _first(rows: RowsInMemory, count: int) -> RowsInMemory:
    """The first of rows that are in random order."""
    return RowsInMemory(rows.values[:count], rows.row_ids[:count])


def improve(
    objective: MixtureObjective, start: Array, steps: int
) -> tuple[float, Array, int]:
    """Steps of L-BFGS: the value, the vector there, and how many were taken."""
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=objective.bounds,
        options={"maxiter": steps, "ftol": 1e-10, "gtol": 1e-6, "maxcor": 20},
    )
    return float(result.fun), result.x, int(result.nit)


def _starts(
    objective: MixtureObjective,
    reports: Array,
    n_init: int,
    width: float,
    rng: np.random.Generator,
) -> list[Clusters]:
    count = objective.clusters
    equal, widths = np.full(count, 1.0 / count), np.full(count, width)
    low, high = (np.array(side) for side in zip(*objective.bounds, strict=True))
    low, high = low[: reports.shape[1]], high[: reports.shape[1]]
    clipped = np.clip(reports, low, high)
    starts = []
    for i in range(n_init):
        if i % 3 == 0:
            centers = lloyd(clipped, count, rng=rng).cluster_centers_
        elif i % 3 == 1:
            centers = low + rng.random((count, len(low))) * (high - low)
            if i % 2 and objective.centre_prior is not None:
                centers = objective.centre_prior.draw(count, rng)
        else:
            centers = clipped[rng.choice(len(clipped), count, replace=False)]
        starts.append(Clusters(np.clip(centers, low, high), equal, widths))
    return starts
