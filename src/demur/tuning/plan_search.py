"""A private search over training plans: rate, clip norm, bands, batches, optimisers.

Every run is a `fit` of its own, against the ledger of the run, without a checkpoint,
without a progress bar and without compiled programs on disk: each would tell which
settings ran, or how often. A cache that JAX was told to keep is off meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.repetitions import Repetitions, default_repetitions
from demur.core.digest import digest_of_parts
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.ledger import Budget, Filter, Ledger, checked_ledger
from demur.training import DPExecutionPlan, Reporting, Resources, Trained, UserData, fit
from demur.training.data import as_data
from demur.training.run.charges import run_declaration, tree_digest
from demur.training.run.trainer import check_fit
from demur.tuning.costs import base_epsilon
from demur.tuning.errors import NotSearchable
from demur.tuning.scores import NoisyScore
from demur.tuning.search import (
    PrivateSearch,
    SearchCandidate,
    SearchResult,
    SearchTerms,
)

_DEFAULT_TERMS = SearchTerms("a search over training plans")


@dataclass(frozen=True)
class PlanSetting:
    """One setting: its public parameters, the plan that it makes, and an optimiser."""

    setting: Mapping[str, Any]
    plan: DPExecutionPlan
    optimizer: Any
    average: float | None = None


def search_plans(
    settings: Callable[[float], Sequence[PlanSetting]],
    promise: Promise,
    loss_fn: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    score: Callable[[Promise], NoisyScore],
    repetitions: Repetitions | None = None,
    ledger: Ledger | None = None,
    terms: SearchTerms = _DEFAULT_TERMS,
    resources: Resources | None = None,
) -> SearchResult:
    """Train with a secret number of plans, and release the best run as a `Trained`.

    - `settings(epsilon)` makes the settings with plans for (epsilon, promise.delta);
      the epsilon is chosen such that the whole search costs `promise`.
    - `data` are the rows to train on, and `score(promise)` a score on other persons
      (`held_back` divides them), with noise for the promise of one run. With
      `UserData` and a score that knows its `ids` it is checked that nobody is in both.
    - `terms` name the entry; the other arguments are those of `fit`.
    """
    _refuse_the_same_persons(data, score(promise))
    law = default_repetitions(len(settings(promise.epsilon)))
    if repetitions is not None:
        law = repetitions  # type: ignore[assignment]
    unit, delta = promise.unit, ideal_delta(promise.delta)

    def runs(epsilon: float) -> list[Any]:
        events = [each.plan.event(unit) for each in settings(epsilon)]
        one = score(replace(promise, epsilon=epsilon))
        return [*events, one.mechanism.event(unit)]

    epsilon = base_epsilon(promise.epsilon, delta, law, runs=runs)
    known = checked_ledger(ledger)
    paying = known or Ledger(
        Budget(promise.epsilon, promise.delta),
        unit=unit,
        filter=Filter.pure(),
        dataset="not named",
    )
    scored = score(replace(promise, epsilon=epsilon))
    per_person = isinstance(data, UserData)
    given = resources or Resources()
    # Checked once, before the payment: a run that is refused is a run that failed.
    quiet = replace(given, store_programs=False, check_loss=False)

    def candidate(each: PlanSetting) -> SearchCandidate:
        def run(own: Ledger) -> Trained:
            return fit(
                each.plan,
                loss_fn,
                params,
                data,
                optimizer=each.optimizer,
                ledger=own,
                delta=promise.delta,
                average=each.average,
                resources=quiet,
                reporting=Reporting(progress=False),
            )

        declared = run_declaration(each.plan, paying, params, per_person=per_person)
        return SearchCandidate(
            each.setting, declared, run, each.plan.draws, _credited, _digest
        )

    chosen = settings(epsilon)
    for number, each in enumerate(chosen):
        once = replace(given, check_loss=given.check_loss and number == 0)
        check_fit(
            each.plan,
            loss_fn,
            params,
            data,
            optimizer=each.optimizer,
            average=each.average,
            resources=once,
        )
    search = PrivateSearch(
        [candidate(each) for each in chosen],
        law,
        scored,
        promise=promise,
        result_after=terms.result_after,
    )
    rows = data.data if isinstance(data, UserData) else as_data(data)
    persons = tree_digest(data.ids) if isinstance(data, UserData) else None
    return search.run(
        paying,
        label=terms.label,
        digest=digest_of_parts(
            rows.digest(), persons, tree_digest(params), scored.digest()
        ),
        idempotency_key=terms.idempotency_key,
        source=terms.source,
        block_delta=terms.block_delta,
    )


def _refuse_the_same_persons(data: Any, score: NoisyScore) -> None:
    if not isinstance(data, UserData) or score.persons is None:
        return
    trained = set(np.asarray(data.ids).astype(str).tolist())
    if trained & set(score.persons.astype(str).tolist()):
        raise NotSearchable(
            "some persons are trained on and scored with: divide them by held_back(ids)"
            " before. Nothing was spent."
        )


def _credited(trained: Trained, entry: Entry) -> Trained:
    return replace(trained, entry=entry)


def _digest(trained: Trained) -> str:
    return tree_digest(trained.value)
