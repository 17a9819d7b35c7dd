"""Maximum likelihood of round clusters, from many starts.

The likelihood of a mixture has local maxima. Starts are k-means on the reports clipped
to the cube, and centres drawn at random (in the cube, and among the clipped reports).
All are improved a little on a subsample (4,000 reports); the best few go on, on at most
40,000; the best of those is followed to convergence on all reports.

Nothing depends on where the reports lie or in which order (`ranked_rows`): a
subsample is a function of the row ids, and a pass over all reports gives exact sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.noise import Noise
from demur.cluster.decoding.posterior import best_centers, posterior_draws
from demur.cluster.decoding.radial import radial_table
from demur.cluster.rows.ranked_rows import RankedRows, RowsInMemory, new_key, subsample

Array = NDArray[np.float64]

# Points added to every cluster in the prior of the weights: they hardly count among
# thousands of reports, and keep clusters alive among hundreds.
PSEUDO_COUNT = 30.0
_SCREENED = 4_000
_SHORTLISTED = 40_000
_SHORTLIST = 3
_FIRST_STEPS = 25
_FIRST_WIDTH = 0.1
# Reports times clusters (times coordinates, for noise by coordinate) up to which the
# posterior is drawn from: beyond, a pass costs much and the peak is narrow.
_AVERAGED = 1_000_000


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
    width: float  # of a cluster, averaged like the centres
    log_likelihood: float
    iterations: int
    averaged: bool


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
) -> MixtureFit:
    """The most likely clusters behind the reports, and the best k-means centres."""
    n = reports.shape[0]
    table = radial_table(noise, nu)
    blocks = noise.dimension // noise.block
    averaged = n * clusters * blocks <= _AVERAGED
    # Hundreds of passes are to come where the posterior is drawn from.
    near = subsample(reports, new_key(rng), n if averaged else _SHORTLISTED)

    def objective(rows: RankedRows) -> MixtureObjective:
        # A part of the reports gets its part of the prior.
        prior = PSEUDO_COUNT * rows.shape[0] / n
        return MixtureObjective(rows, table, clusters, blocks > 1, prior)

    few = _first(near, _SCREENED)
    small = objective(few)
    tried = [
        _improve(small, small.pack(start), min(_FIRST_STEPS, max_iter))
        for start in _starts(few.values, clusters, n_init, width, rng)
    ]
    tried.sort(key=lambda attempt: attempt[0])
    whole = objective(_first(near, _SHORTLISTED))
    best = [_improve(whole, start, max_iter) for _, start, _ in tried[:_SHORTLIST]]
    _, vector, iterations = min(best, key=lambda attempt: attempt[0])
    if n > _SHORTLISTED:
        whole = objective(near if averaged else reports)
        _, vector, more = _improve(whole, vector, max_iter)
        iterations += more
    peak = whole.unpack(vector)
    draws = [peak]
    if averaged:
        draws = posterior_draws(whole, vector, noise.information, rng)
    return MixtureFit(
        peak=peak,
        centers=best_centers(draws, rng),
        width=float(np.exp(np.mean([math.log(draw.width) for draw in draws]))),
        log_likelihood=whole.log_likelihood(peak),
        iterations=max(1, iterations),
        averaged=averaged,
    )


def _first(rows: RowsInMemory, count: int) -> RowsInMemory:
    """The first of rows that are in random order."""
    return RowsInMemory(rows.values[:count], rows.row_ids[:count])


def _improve(
    objective: MixtureObjective, start: Array, steps: int
) -> tuple[float, Array, int]:
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
    reports: Array,
    clusters: int,
    n_init: int,
    width: float,
    rng: np.random.Generator,
) -> list[Clusters]:
    equal = np.full(clusters, 1.0 / clusters)
    clipped = np.clip(reports, 0.0, 1.0)
    starts = []
    for i in range(n_init):
        if i % 3 == 0:
            centers = lloyd(clipped, clusters, rng=rng).cluster_centers_
        elif i % 3 == 1:
            centers = rng.random((clusters, reports.shape[1]))
        else:
            centers = clipped[rng.choice(len(clipped), clusters, replace=False)]
        starts.append(Clusters(np.clip(centers, 0.0, 1.0), equal, width))
    return starts
