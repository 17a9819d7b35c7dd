"""Examples of private searches and of their scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from demur.cluster import CentralKMeans
from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import Ball, ReplaceOne, ZeroOut
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Budget, Filter
from demur.testing.builders import LABEL, RADIUS, of_estimator, two_classes
from demur.testing.subject import Inputs, Subject
from demur.tuning import (
    NegativeBinomialRepetitions,
    PrivateGridSearch,
    SearchTerms,
    correct_answers,
)
from demur.unlearning import Publications

_GRID = {"lam": [0.1, 1.0]}
# Few enough for a contract, and at least one: an empty search has no head to look at.
_RUNS = 2.0
# A search enters as a block, with a delta of its own: this is enough for ten.
_LEDGER: dict[str, Any] = {"filter": Filter.pure(), "delta": 1e-5, "room": 20.0}


def grid_search(cls: Any) -> list[Subject]:
    """A search over the settings of a head, at a ball."""
    return [
        of_estimator(
            cls(_head(), _GRID, repetitions=_RUNS),
            name=cls.__name__,
            unit=Ball(RADIUS, space="records"),
            noisier={"estimator__epsilon": 0.5},
            **_LEDGER,
            unused=frozenset({"loss_bound"}),
            released=lambda found: {"prototypes": found.best_estimator_.prototypes_},
        )
    ]


def search(cls: Any) -> list[Subject]:
    """The same search, as a mechanism of its own."""
    X, y = two_classes()
    made = PrivateGridSearch(_head(), _GRID, repetitions=_RUNS).private_search(X, y)

    def make(**changes: Any) -> Any:
        return dataclasses.replace(made, **changes)

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        del inputs
        return spender.run(ledger, label=LABEL, source=source)

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={},
            unit=Ball(RADIUS, space="records"),
            parameters={"result_after": 0.001},
            secrets={"rows": X},
            released=lambda found: {"prototypes": found.value.prototypes_},
            **_LEDGER,
        )
    ]


def score(cls: Any) -> list[Subject]:
    """A noisy count of correct answers, paid for by a ledger of its own."""
    X, y = two_classes()

    def make(epsilon: float = 1.0) -> Any:
        promise = Promise(ReplaceOne(), epsilon, 1e-6)
        return correct_answers(X, y, promise, predict=lambda answers, _: answers)

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        del source
        noisy = spender(inputs["answers"], ledger)
        return Release(np.array([noisy]), ledger.entries()[-1])

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={"answers": y},
            unit=ReplaceOne(),
            secrets={"rows": X},
            parameters={"epsilon": 1.0},
            noisier={"epsilon": 0.5},
            takes_source=False,
            trusts_data="only a search calls it, with what one of its runs answered",
            keeps_data="it holds the held-back rows, as a data set does",
        )
    ]


def kmeans(function: Any) -> list[Subject]:
    """A search over clusterings of points of the cube."""
    rng = np.random.default_rng(0)
    X = np.clip(
        0.3 + 0.4 * (np.arange(200) % 2)[:, None] + 0.05 * rng.normal(size=(200, 2)),
        0,
        1,
    )

    def make(epsilon: float = 1.0, delta: float = 1e-6) -> Any:
        return CentralKMeans(epsilon=epsilon, delta=delta)

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        terms = SearchTerms(LABEL, source=source)
        law = NegativeBinomialRepetitions.of_mean(_RUNS)
        grid = {"n_clusters": [1, 2]}
        return function(
            spender, grid, **inputs, ledger=ledger, repetitions=law, terms=terms
        )

    return [
        Subject(
            name="search_kmeans",
            make=make,
            spend=spend,
            inputs={"X": X},
            unit=ReplaceOne(),
            parameters={"epsilon": 1.0, "delta": 1e-6},
            noisier={"epsilon": 0.5},
            released=lambda found: {"centres": found.value.cluster_centers_},
            aliases={"X": ("points",)},
            **_LEDGER,
        )
    ]


def services(function: Any) -> list[Subject]:
    """A search over settings of a service with published answers."""
    X, y = two_classes()
    settings = [{"mode": "ridge", "Lambda": lam} for lam in (1.0, 100.0)]
    copies = Publications(epsilon=1.0, delta=1e-6, count=2)

    def make(epsilon: float = 1.0, error_bound: float = 4.0) -> Any:
        return {"budget": Budget(epsilon, 1e-6), "error_bound": error_bound}

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        return function(
            settings,
            **inputs,
            **spender,
            publications=copies,
            ledger=ledger,
            repetitions=NegativeBinomialRepetitions.of_mean(_RUNS),
            terms=SearchTerms(LABEL, source=source),
        )

    return [
        Subject(
            name="search_services",
            make=make,
            spend=spend,
            inputs={"X": X, "y": y.astype(float)},
            unit=ZeroOut(),
            parameters={"epsilon": 1.0, "error_bound": 4.0},
            noisier={"epsilon": 0.5},
            released=lambda found: {"weights": found.value.published()},
            **_LEDGER,
        )
    ]


def _head() -> BallPrototypeClassifier:
    return BallPrototypeClassifier(radius=RADIUS)
