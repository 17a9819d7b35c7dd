"""A second release is a second charge, with noise of its own; reading is free."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from demur.core.entry import Entry
from demur.ledger import Ledger
from demur.testing.ledgers import untouched
from demur.testing.result import require
from demur.testing.subject import Subject


def refitting_charges_again(subject: Subject) -> None:
    """The same object on the same data: another entry, and a larger total."""
    ledger, made = subject.ledger(), subject.make()
    subject.run(ledger, made=made)
    once, spent = len(ledger.entries()), ledger.status()[0].spent_epsilon
    require(once, "the first release wrote no entry")
    subject.run(ledger, made=made)
    require(len(ledger.entries()) == 2 * once, "the second release wrote no entry")
    again = ledger.status()[0].spent_epsilon
    require(
        again > spent or subject.costs_nothing,
        f"the second release was free: {spent:g} before, {again:g} after",
    )


def two_releases_have_two_noises(subject: Subject) -> None:
    """The same object and data give other values, from other keys."""
    if subject.keeps_data:
        return
    ledger, made = subject.ledger(), subject.make()
    first = _copied(subject.released(subject.run(ledger, made=made)))
    second = _copied(subject.released(subject.run(ledger, made=made)))
    third = _copied(subject.released(subject.sample.result))
    for name, value in first.items():
        for other in (second[name], third[name]):
            if other.shape != value.shape:
                continue
            same = (value == other)[value != 0.0]  # zeros may be there by shape
            require(
                same.mean() < 0.5 if same.size else True,
                f"{same.sum()} of {same.size} numbers of {name} have the same noise",
            )
    keys = [entry for what, entry in ledger.log if what == "key"]
    require(len(keys) == len(set(keys)), "one entry's key was used for two releases")


def reading_changes_nothing(subject: Subject) -> None:
    """Status, epsilon, statements, repr and predictions change nothing."""
    ledger, made, result = (
        subject.sample.ledger,
        subject.sample.made,
        subject.sample.result,
    )
    before = _copied_state(made)
    with untouched(ledger, "reading"):
        ledger.status(), ledger.epsilon(), ledger.reading(), ledger.report()
        ledger.verify(ledger.tip())
        for entry in ledger.entries():
            entry.statement(), entry.epsilon(subject.unit, subject.delta)
        for one in (result, made):
            repr(one), str(one)
            _speak(one)
            _predict(one, subject)
    after = _copied_state(made)
    changed = [name for name in before if not _same(before[name], after.get(name))]
    require(not changed, f"reading changed {', '.join(changed)}")


CONTRACTS = (
    refitting_charges_again,
    two_releases_have_two_noises,
    reading_changes_nothing,
)


def _copied(values: Any) -> dict[str, Any]:
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def _copied_state(made: Any) -> dict[str, Any]:
    return {
        name: np.array(value)
        for name, value in getattr(made, "__dict__", {}).items()
        if isinstance(value, np.ndarray | float | int | str)
    }


def _same(before: Any, after: Any) -> bool:
    return after is not None and np.array_equal(
        before, after, equal_nan=before.dtype.kind == "f"
    )


def _speak(one: Any) -> None:
    """Ask every part for its report; parts may need arguments, and then say nothing."""
    for part in [one, *getattr(one, "__dict__", {}).values()]:
        if isinstance(part, Ledger | Entry | type):
            continue
        for name in ("statement", "summary", "to_json", "get_params"):
            ask = getattr(part, name, None)
            if callable(ask):
                ask()


def _predict(one: Any, subject: Subject) -> None:
    for name in ("predict", "predict_proba", "decision_function", "score_samples"):
        ask = getattr(one, name, None)
        if callable(ask) and "X" in subject.inputs:
            with contextlib.suppress(AttributeError):  # a method of the other loss
                ask(subject.inputs["X"])
