"""A second law of the points, for few reports: k-means on clipped reports.

The posterior follows its model. Where reports say little the model decides, and the
k-means centres of clipped reports, far apart because noise and clipping put them there,
are sometimes nearer to the truth. Which of the two is better is not known in advance
(three blobs at the faces of the cube: clipping; one large cluster and two small ones,
or stretched clusters: the posterior), so the reports weigh them. For either set of
centres the clusters of one width, with the weights and the width that fit best, are a
law of the points; its likelihood of the reports, l, is known exactly. The clipped law
gets the share

    e^(l_clipped) / (e^(l_clipped) + e^(l_posterior))

among the draws from the posterior, and centres are those of least expected error over
all of them. It is about a half where nothing can be seen, and nothing from a few
hundred informative reports on. In more than 12 dimensions there is no such law: its
centres are K d numbers that follow the noise of the very reports whose likelihood would
judge them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.decoding.moves import cluster_logs, log_sum, rows_of
from demur.cluster.decoding.posterior import Draws

Array = NDArray[np.float64]

_WIDTHS, _WIDEST = 5, 0.3
_STEPS = 15
_POINTS = 5.0  # added to each weight
# Of k-means on the reports: two fits that end in other cells have other shares.
_STARTS = 40
_LEAST = 1e-3  # a smaller share is left out


def with_clipped_law(
    objective: MixtureObjective, draws: Draws, centers: Array, rng: np.random.Generator
) -> tuple[Draws, float]:
    """The draws with those of the clipped law among them, and the share of that."""
    reports = rows_of(objective)
    clipped = np.clip(reports, 0.0, 1.0)
    model = lloyd(clipped, objective.clusters, rng=rng, n_init=_STARTS)
    other, height = best_law(objective, np.asarray(model.cluster_centers_), reports)
    own = best_law(objective, centers, reports)[1]
    scale = objective.reports.shape[0] / len(reports)
    share = float(special.expit(scale * (height - own)))
    if share < _LEAST:
        return draws, 0.0
    # As many draws as its share asks for: a single one would stand for half of all
    # points by a few dozen of them.
    copies = math.ceil(share * len(draws.weights))
    weights = np.append((1.0 - share) * draws.weights, np.full(copies, share / copies))
    ours = draws.clusters
    both = Clusters(
        np.concatenate([ours.centers, np.repeat(other.centers[None], copies, 0)]),
        np.concatenate([ours.weights, np.repeat(other.weights[None], copies, 0)]),
        np.concatenate([ours.widths, np.repeat(other.widths[None], copies, 0)]),
    )
    return Draws(both, weights, draws.disagreement, draws.moving), share


def best_law(
    objective: MixtureObjective, centers: Array, reports: Array
) -> tuple[Clusters, float]:
    """Clusters of one width at these centres, and their log-likelihood."""
    count = len(centers)
    best, height = None, -np.inf
    for width in np.geomspace(objective.table.narrowest, _WIDEST, _WIDTHS):
        widths = np.full(count, width)
        logs = cluster_logs(objective, centers, widths, reports)
        log_weights = np.full(count, -np.log(count))
        for _ in range(_STEPS):
            parts = logs + log_weights
            mass = np.exp(parts - log_sum(parts)[:, None]).sum(axis=0) + _POINTS
            log_weights = np.log(mass / mass.sum())
        value = float(log_sum(logs + log_weights).sum())
        if best is None or value > height:
            best, height = Clusters(centers, np.exp(log_weights), widths), value
    assert best is not None
    return best, height
