"""A private search over the settings of k-means on a trusted server.

Held-back points score: the sum of their squared distances to the nearest centre, with
noise. More clusters bring points nearer to a centre, and share the same noise among
more sums: that sum falls and rises again, so that `n_clusters` may be searched too.

The first centres follow from `random_state` and are public. In a search it is a whole
number, 0 if none was given, and it may be one of the settings: a search that is
repeated after a crash has to repeat its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import _safe_indexing

from demur.cluster import CentralKMeans
from demur.convex.heads.inputs import nothing_spent
from demur.core import validate
from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.repetitions import Repetitions, default_repetitions
from demur.core.adjacency import AddOrRemoveOne, Unit
from demur.core.bounds import finite_matrix
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.ledger import Ledger, checked_ledger
from demur.tuning.costs import base_epsilon
from demur.tuning.errors import NotSearchable
from demur.tuning.holdout import divided
from demur.tuning.scores import small_distances
from demur.tuning.search import (
    PrivateSearch,
    SearchCandidate,
    SearchResult,
    SearchTerms,
)

_TUNED = ("n_clusters", "steps", "random_state")
_DEFAULT_TERMS = SearchTerms("a search over clusterings")
BY_ROW_NUMBER = (
    "the number of records is public, and each row is another person's: who is held"
    " back follows from the numbers of the rows"
)


def search_kmeans(
    estimator: CentralKMeans,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
    X: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    ledger: Ledger | None = None,
    repetitions: Repetitions | None = None,
    distance_bound: float | None = None,
    terms: SearchTerms = _DEFAULT_TERMS,
) -> SearchResult:
    """Cluster with a secret number of settings; the best `CentralKMeans` is released.

    - `estimator`: its epsilon and delta, at its unit, are what the whole search costs.
    - `grid` maps `n_clusters`, `steps` and `random_state` to lists of values.
    - `X` are points of the unit cube; `ids` name their persons, some of whom are held
      back to score (`terms.share`). Where records may be added or removed they must be
      given.
    - `distance_bound` cuts the squared distances of the score (`small_distances`).

    >>> import numpy as np
    >>> points = np.repeat([[0.2, 0.2], [0.8, 0.7]], 2000, axis=0)
    >>> found = search_kmeans(
    ...     CentralKMeans(epsilon=4.0), {"n_clusters": [1, 2], "random_state": [0, 1]},
    ...     points,
    ... )
    >>> found.value.n_clusters in (1, 2)
    True
    """
    with nothing_spent():
        if not isinstance(estimator, CentralKMeans):
            raise NotSearchable(
                f"estimator must be a CentralKMeans; got {type(estimator).__name__}."
                " Settings of local reports have no private search. Nothing was spent."
            )
        if estimator.ledger is not None:
            raise NotSearchable(
                "give the ledger to the search and not to the estimator: the search"
                " pays once, and its runs pay nothing. Nothing was spent."
            )
        if distance_bound is not None:
            validate.positive(distance_bound=distance_bound)
        total = estimator.promise()
        models = [
            (setting, _model(estimator, setting)) for setting in ParameterGrid(grid)
        ]
        for _, model in models:
            model.fit_declaration(X)  # held-back points are checked as others are
        law = repetitions or default_repetitions(max(1, len(models)))
        epsilon = base_epsilon(total.epsilon, ideal_delta(total.delta), law)
        points = np.asarray(X) if not hasattr(X, "shape") else X
        unit = _strictest(total, checked_ledger(ledger))
        names, back = divided(ids, points.shape[0], unit, terms.share, terms.split_key)
        train = _safe_indexing(points, np.flatnonzero(~back))
        search = PrivateSearch(
            [
                _candidate(setting, model.set_params(epsilon=epsilon), train, total)
                for setting, model in models
            ],
            law,
            small_distances(
                _safe_indexing(points, np.flatnonzero(back)),
                replace(total, epsilon=epsilon),
                bound=distance_bound,
            ),
            promise=total,
            result_after=terms.result_after,
            assumptions=(BY_ROW_NUMBER,) if ids is None else (),
        )
    return search.run(
        ledger,
        label=terms.label,
        digest=digest_of_parts(
            *map(digest_of_array, (finite_matrix("X", X), names.astype(str), back))
        ),
        idempotency_key=terms.idempotency_key,
        source=terms.source,
        block_delta=terms.block_delta,
    )


def _strictest(total: Promise, ledger: Ledger | None) -> Unit:
    """The unit of the promise, or one of the ledger's at which records come and go."""
    budgeted = [] if ledger is None else [unit for unit, _ in ledger.terms.budgets]
    coming = (unit for unit in budgeted if isinstance(unit, AddOrRemoveOne))
    return next(coming, total.unit)


def _model(estimator: CentralKMeans, setting: Mapping[str, Any]) -> CentralKMeans:
    wrong = sorted(set(setting) - set(_TUNED))
    if wrong:
        raise NotSearchable(
            f"grid must have settings among {list(_TUNED)}; got {wrong[0]!r}. What is"
            " promised, about which points and who pays is the same for all of them."
            " Nothing was spent."
        )
    model: CentralKMeans = clone(estimator).set_params(**setting, source=None)
    seed = 0 if model.random_state is None else model.random_state
    if not isinstance(seed, int | np.integer):
        raise NotSearchable(
            "random_state must be a whole number in a search, which repeats its runs"
            f" after a crash; got {type(seed).__name__}. Nothing was spent."
        )
    return model.set_params(random_state=int(seed))


def _candidate(
    setting: Mapping[str, Any], model: CentralKMeans, X: Any, total: Promise
) -> SearchCandidate:
    def run(ledger: Ledger) -> CentralKMeans:
        return clone(model).set_params(ledger=ledger).fit(X)

    def credited(fitted: CentralKMeans, entry: Entry) -> CentralKMeans:
        fitted.set_params(ledger=None, epsilon=total.epsilon)
        fitted.entry_ = entry
        return fitted

    def digest(fitted: CentralKMeans) -> str:
        return digest_of_array(fitted.cluster_centers_)

    return SearchCandidate(
        setting, model.fit_declaration(X), run, credited=credited, digest=digest
    )
