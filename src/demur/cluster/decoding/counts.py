"""The number of clusters, chosen from the reports through their noise.

For K = 1, 2, ... the likelihood of the reports is maximised, the clusters of K + 1
being those of K and one more where it lacks most (`moves`), on at most 10,000 reports.
Schwarz's criterion, -2 log-likelihood + parameters * log n at the n of all reports,
is smallest at the K that is taken: it is about the number of clusters that the reports
can tell apart, which is smaller than that of the points where noise is wide. The search
ends when three values of K in a row were no better. Up to 10,000 reports the search is
seeded by them (`search`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.moves import additions
from demur.cluster.decoding.noise import Noise
from demur.cluster.decoding.search import FIRST_STEPS, improve, setting_for
from demur.cluster.rows.ranked_rows import (
    RankedRows,
    new_key,
    shuffled,
    subsample,
)

MOST_CLUSTERS = 20
_REPORTS = 10_000
_PATIENCE = 3
_STEPS = 100
_FIRST_WIDTH = 0.1


def best_count(reports: RankedRows, noise: Noise, *, rng: np.random.Generator) -> int:
    """The number of clusters with the best Schwarz criterion."""
    total = reports.shape[0]
    if total <= _REPORTS:
        near, rng = shuffled(reports)
    else:
        near = subsample(reports, new_key(rng), _REPORTS)
    setting, near = setting_for(reports, noise, 1, near)
    objective = setting.objective(near)
    middle = setting.prior.middle[None]
    now = Clusters(middle, np.ones(1), np.full(1, _FIRST_WIDTH))
    best, chosen = math.inf, 1
    for count in range(1, min(MOST_CLUSTERS, total) + 1):
        at = replace(objective, clusters=count)
        starts = [now] if count == 1 else additions(_one_less(at), now, rng)
        tried = [improve(at, at.pack(start), FIRST_STEPS) for start in starts]
        vector = min(tried, key=lambda attempt: attempt[0])[1]
        now = at.unpack(improve(at, vector, _STEPS)[1])
        parameters = count * (setting.directions + 2) - 1
        criterion = parameters * math.log(total)
        criterion -= 2.0 * total * at.log_likelihood(now)
        if criterion < best:
            best, chosen = criterion, count
        elif count >= chosen + _PATIENCE:
            break
    return chosen


def _one_less(at: MixtureObjective) -> MixtureObjective:
    return replace(at, clusters=at.clusters - 1)
