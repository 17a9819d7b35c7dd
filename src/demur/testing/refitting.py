"""Contracts of repeated releases: each is charged, with new noise; reading is free."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from demur.core.entropy import Seeded
from demur.core.entry import Entry
from demur.ledger import Ledger
from demur.testing.ledgers import RecordedKeys, unchanged
from demur.testing.result import require
from demur.testing.subject import Subject


def refitting_charges_again(subject: Subject) -> None:
    """The same object on the same data: another entry, and a larger total."""
    ledger, spender = subject.ledger(), subject.make()
    subject.run(ledger, spender=spender)
    once, spent = len(ledger.entries()), ledger.status()[0].spent_epsilon
    require(once, "the first release wrote no entry")
    subject.run(ledger, spender=spender)
    require(len(ledger.entries()) == 2 * once, "the second release wrote no entry")
    again = ledger.status()[0].spent_epsilon
    require(
        again > spent or subject.costs_nothing,
        f"the second release was free: {spent:g} before, {again:g} after",
    )


def two_releases_have_two_noises(subject: Subject) -> None:
    """Two releases of the same object and data have different noise and keys."""
    if subject.keeps_data:
        return
    ledger, spender = subject.ledger(), subject.make()
    first = _copied(subject.released(subject.run(ledger, spender=spender)))
    second = _copied(subject.released(subject.run(ledger, spender=spender)))
    third = _copied(subject.released(subject.sample.result))
    for name, value in first.items():
        for other in (second[name], third[name]):
            if other.shape != value.shape:
                continue
            same = (value == other)[value != 0.0]  # zeros may be structural
            require(
                same.mean() < 0.5 if same.size else True,
                f"{same.sum()} of {same.size} numbers of {name} have the same noise",
            )
    keys = [entry for step, entry in ledger.log if step == "key"]
    require(len(keys) == len(set(keys)), "one entry's key was used for two releases")


def noise_follows_from_the_key(subject: Subject) -> None:
    """Of one seeded source two releases are the same: no noise comes from elsewhere."""
    if not subject.takes_source:
        return
    keys = RecordedKeys(Seeded(20), [])  # those of the seeded release
    first = _copied(subject.released(subject.seeded.result))
    second = _copied(subject.released(subject.run(source=keys)))
    for name, value in first.items():
        require(
            np.array_equal(value, second[name], equal_nan=True),
            f"{name} is another one with the same keys: noise is drawn from elsewhere"
            " than from the key that was paid for, or a choice without a random_state",
        )


def reading_changes_nothing(subject: Subject) -> None:
    """Status, epsilon, statements, repr and predictions change nothing."""
    ledger, spender, result = (
        subject.sample.ledger,
        subject.sample.spender,
        subject.sample.result,
    )
    before = _copied_state(spender)
    with unchanged(ledger, "reading"):
        ledger.status(), ledger.epsilon(), ledger.reading(), ledger.summary()
        ledger.verify(ledger.tip())
        for entry in ledger.entries():
            entry.statement(), entry.epsilon(subject.unit, subject.delta)
        for item in (result, spender):
            repr(item), str(item)
            _call_reports(item)
            _predict(item, subject)
    after = _copied_state(spender)
    changed = [name for name in before if not _same(before[name], after.get(name))]
    require(not changed, f"reading changed {', '.join(changed)}")


CONTRACTS = (
    refitting_charges_again,
    two_releases_have_two_noises,
    noise_follows_from_the_key,
    reading_changes_nothing,
)


def _copied(values: Any) -> dict[str, Any]:
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def _copied_state(spender: Any) -> dict[str, Any]:
    return {
        name: np.array(value)
        for name, value in getattr(spender, "__dict__", {}).items()
        if isinstance(value, np.ndarray | float | int | str)
    }


def _same(before: Any, after: Any) -> bool:
    return after is not None and np.array_equal(
        before, after, equal_nan=before.dtype.kind == "f"
    )


def _call_reports(item: Any) -> None:
    """Call the reporting methods of an object and its parts."""
    for part in [item, *getattr(item, "__dict__", {}).values()]:
        if isinstance(part, Ledger | Entry | type):
            continue
        for name in ("statement", "summary", "to_json", "get_params"):
            ask = getattr(part, name, None)
            if callable(ask):
                ask()


def _predict(item: Any, subject: Subject) -> None:
    for name in ("predict", "predict_proba", "decision_function", "score_samples"):
        ask = getattr(item, name, None)
        if callable(ask) and "X" in subject.inputs:
            with contextlib.suppress(AttributeError):  # not for every loss
                ask(subject.inputs["X"])
