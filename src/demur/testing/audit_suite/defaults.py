"""Audits of every default path: whatever in demur spends, replayed as its example.

The contracts (`demur.testing`) discover every class and function of demur that spends
and know how each is built, with its defaults (`testing.examples`). Each of them is
replayed here on two neighbouring inputs at its own unit, through its own path: the
estimators' `fit`, the plans' `fit`, the searches, the mechanisms. So a new default is
audited as soon as it exists; what cannot be replayed is listed in `LEFT_OUT`, with what
audits it instead, and a test compares the two sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from demur.audit import AuditResult, Level, replay
from demur.core.adjacency import AddOrRemoveOne, Ball, Erasure, ZeroOut
from demur.core.entropy import Source
from demur.core.sensitivity import Sensitivity
from demur.testing.audit_suite.case import Case, Size
from demur.testing.discovery import Candidate, discover
from demur.testing.examples import subjects_of
from demur.testing.examples.exempt import reason
from demur.testing.subject import Inputs, Subject

ENGINE = "defaults"
_ROWS = ("X", "points", "data")

# By name of the class or function, or its module and a colon for all that is in it.
LEFT_OUT: dict[str, str] = {
    "demur.core.declaration:Declaration": "a price without noise: `accounting`",
    "demur.convex.release:release_head": (
        "takes parameters that were trained elsewhere: its sensitivity is that of the"
        " heads, which `convex` searches"
    ),
    "demur.convex.sensitivity.radius:private_radius": (
        "pairs of records are drawn from its own noise: `GridQuantile`, which it calls"
    ),
    "demur.mechanisms.exponential:GridQuantile": "`convex`, the law of its choices",
    "demur.tuning.scores:NoisyScore": "drawn inside a search, which is replayed",
    "demur.tuning.search:PrivateSearch": "`PrivateGridSearch`, which makes one",
    "demur.unlearning.estimators.linear:UnlearnableClassifier": "`unlearning`, live",
    "demur.unlearning.estimators.linear:UnlearnableRegressor": "`unlearning`, live",
    "demur.unlearning.stream.odometer:PrivacyOdometer": "`unlearning`, live models",
    "demur.training.batches.": "`training`, batches of a run; contracts of selection",
    "demur.compat.": "other spellings of paths that are audited under their own names",
    "demur.training.plans.plan:DPExecutionPlan": "made by the configs, which are run",
}


def left_out(name: str) -> str | None:
    """Why something that spends is not replayed here; None if it is."""
    for start, why in LEFT_OUT.items():
        if name == start or (start.endswith((".", ":")) and name.startswith(start)):
            return why
    return None


@lru_cache(maxsize=1)
def spenders() -> tuple[Candidate, ...]:
    """Everything in demur that spends, but for helpers that are exempt."""
    found = discover("demur").candidates
    return tuple(each for each in found if reason(each) is None)


def audited() -> tuple[Candidate, ...]:
    """What is replayed here."""
    return tuple(each for each in spenders() if left_out(each.name) is None)


def neighbours(subject: Subject) -> tuple[Inputs, Inputs]:
    """The subject's own inputs, and others that its unit relates to them."""
    given = dict(subject.inputs)
    rows = [name for name in _ROWS if name in given]
    if not rows:
        return given, given | {"value": _moved_value(subject)}
    name, unit = rows[0], subject.unit
    before = np.array(given[name])
    after = before.copy()
    match unit:
        case Ball(radius=radius):
            inwards = -1.0 if before[-1, 0] > 0.5 else 1.0
            after[-1, 0] += inwards * 0.999 * radius
        case AddOrRemoveOne():
            after = before[:-1]
        case ZeroOut():
            after[-1] = 0.0
        case _:
            after[-1] = 1.0 - before[-1]
    changed: dict[str, Any] = {name: after}
    if "y" in given and len(after) < len(before):
        changed["y"] = np.asarray(given["y"])[:-1]
    return given, given | changed


def _moved_value(subject: Subject) -> Any:
    """A vector as far away as its mechanism declares at the unit."""
    spender, value = subject.make(), np.array(subject.inputs["value"], np.float64)
    table = spender.sensitivity
    assert isinstance(table, Sensitivity)
    sigma = np.broadcast_to(np.asarray(spender.sigma), value.shape)
    scale = float(sigma[0]) if isinstance(spender.sigma, np.ndarray) else 1.0
    value[0] += table.at(subject.unit) * scale * (1.0 - 1e-12)
    return value


def _replayed(subject: Subject, size: Size, seed: int) -> AuditResult:
    del size

    def run(inputs: Inputs, source: Source) -> Any:
        result = subject.spend(subject.make(), inputs, subject.ledger(), source)
        return {name: np.asarray(v) for name, v in subject.released(result).items()}

    return replay(
        run,
        neighbours(subject),
        unit=subject.unit,
        subject=f"defaults: {subject.name}",
        random_state=seed,
    ).audit_result()


def _subjects(candidate: Candidate) -> Iterator[Subject]:
    for subject in subjects_of(candidate):
        if (
            isinstance(subject, Subject)
            and subject.takes_source
            and not isinstance(subject.unit, Erasure)
        ):
            yield subject


def cases() -> tuple[Case, ...]:
    """One case for each thing that spends and each of its examples."""
    return tuple(
        Case(ENGINE, subject.name, Level.REPLAY, partial(_replayed, subject))
        for candidate in audited()
        for subject in _subjects(candidate)
    )
