"""Audits of private searches: what a held-back record changes, on the shipped path."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from demur.audit import AuditResult, Level, replay
from demur.core.accounting import repetitions
from demur.core.accounting.repetitions import default_repetitions
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.core.promise import Promise
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms import Gaussian
from demur.testing.audit_suite.case import Case, Size, broken
from demur.testing.audit_suite.counting import counts_test
from demur.tuning import (
    NegativeBinomialRepetitions,
    NoisyScore,
    PrivateSearch,
    SearchCandidate,
    correct_answers,
    scores,
)

ENGINE = "tuning"
_ROWS = 40
_UNIT = ReplaceOne()

Labels = NDArray[np.int64]


def _candidate(number: int) -> SearchCandidate:
    """A run that costs something and answers without looking at any record."""
    noise = Gaussian(20.0, {_UNIT: 1.0})
    answers = (np.arange(_ROWS) % (number + 2) == 0).astype(np.int64)

    def run(ledger: Ledger) -> Labels:
        noise.release([0.0], ledger=ledger, label="a run")
        return answers

    return SearchCandidate({"number": number}, noise, run)


def _best(labels: Labels, source: Source) -> dict[str, Any]:
    """A whole search, scored on held-back rows with these labels."""
    score = correct_answers(
        np.zeros((_ROWS, 1)),
        labels,
        Promise(_UNIT, 1.0, 1e-6),
        predict=lambda answers, rows: answers,
    )
    search = PrivateSearch(
        [_candidate(0), _candidate(1)],
        NegativeBinomialRepetitions.of_mean(3.0),
        score,
    )
    ledger = Ledger(Budget(50.0, 1e-4), unit=_UNIT, filter=Filter.pure())
    found = search.run(ledger, label="a search", source=source)
    assert found.setting is not None
    return {
        "score": np.array([found.score]),
        "setting": np.array([found.setting["number"]]),
    }


def _scores(size: Size, seed: int) -> AuditResult:
    """One held-back record has another label, so that one answer more is right."""
    del size
    labels = np.arange(_ROWS) % 2
    other = labels.copy()
    other[-1] = 1 - other[-1]
    return replay(
        _best,
        (labels, other),
        unit=_UNIT,
        subject="tuning: scores of a search",
        random_state=seed,
    ).audit_result()


def _repetitions(size: Size, seed: int) -> AuditResult:
    """How often a search runs, against the law that its price is for.

    A negative binomial number given that it is not 0, cut at the law's limit; by
    another library's formula.
    """
    law, drawn = default_repetitions(3), size.of(3000)
    read = NoiseKey(Seeded(seed).new_key(), private=False).stream("runs").read
    counts = np.bincount([repetitions.draw(law, read) for _ in range(drawn)])
    numbers = np.arange(max((law.limit or 0) + 1, counts.size))
    weights = stats.nbinom.pmf(numbers, law.eta, law.gamma) * (numbers > 0)
    weights[(law.limit or 0) + 1 :] = 0.0
    seen = np.zeros(numbers.size, np.int64)
    seen[: counts.size] = counts
    return counts_test(
        seen, weights / weights.sum(), subject="tuning: runs of a search"
    )


# -- twins ---------------------------------------------------------------------------


def _exact_scores(size: Size, seed: int) -> AuditResult:
    right = NoisyScore.__call__

    def wrong(self: NoisyScore, outcome: Any, ledger: Ledger) -> float:
        right(self, outcome, ledger)
        return float(self.value(outcome))

    with broken(NoisyScore, "__call__", wrong):
        return _scores(size, seed)


def _half_of_a_record(size: Size, seed: int) -> AuditResult:
    right = scores._noise

    def wrong(promise: Promise, each: float, *rest: Any) -> Gaussian:
        return right(promise, each / 2.0, *rest)

    with broken(scores, "_noise", wrong):
        return _scores(size, seed)


def _six_runs(size: Size, seed: int) -> AuditResult:
    with broken(repetitions, "draw", lambda law, read: 6):
        return _repetitions(size, seed)


def cases() -> tuple[Case, ...]:
    """The shipped search, then twins."""
    twins = (
        ("scores compared without their noise", Level.REPLAY, _exact_scores),
        ("half of what a record adds to a score", Level.REPLAY, _half_of_a_record),
        ("always six runs", Level.NOISE, _six_runs),
    )
    return (
        Case(ENGINE, "scores of a search", Level.REPLAY, _scores),
        Case(ENGINE, "how often a search runs", Level.NOISE, _repetitions),
        *(Case(ENGINE, "searches", level, run, what) for what, level, run in twins),
    )
