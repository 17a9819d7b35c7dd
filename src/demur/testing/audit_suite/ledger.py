"""Audits of the ledger: releases are paid for first, and a refusal releases nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.audit import AuditResult, Level, replay
from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian
from demur.testing.audit_suite.case import Case, Size, broken

ENGINE = "ledger"
_UNIT = ReplaceOne()

Values = NDArray[np.float64]
Run = Callable[[Values, Source], list[Values]]


def _mechanism() -> Gaussian:
    return Gaussian(2.0, {_UNIT: 1.0})


def _new_ledger(budget: Budget, **options: Any) -> Ledger:
    return Ledger(budget, unit=_UNIT, **options)


def _ledger() -> Ledger:
    """Enough budget for one release."""
    return _new_ledger(Budget(3.0, 1e-6))


def _pay_first(data: Values, source: Source) -> list[Values]:
    ledger, released = _ledger(), []
    try:
        for label in ("one", "two"):
            release = _mechanism().release(
                [data.sum()], ledger=ledger, label=label, source=source
            )
            released.append(release.value)
    except BudgetExceeded:
        return released
    return released


def _reports_until_declined(data: Values, source: Source) -> list[Values]:
    """Local reports, as their owner releases them."""
    ledger = _new_ledger(Budget(3.0, 1e-6), filter="pure")
    mechanism = BPM(epsilon=1.0, L=0.4, dimension=1)
    released: list[Values] = []
    try:
        for label in ("one", "two", "three", "four"):
            reports = mechanism.privatize(
                data.reshape(-1, 1), ledger=ledger, label=label, source=source
            )
            released.append(reports.value.values)
    except BudgetExceeded:
        return released
    return released


def _heads_until_declined(data: Values, source: Source) -> list[Values]:
    """The same head, fitted until the ledger declines."""
    ledger, released = _new_ledger(Budget(1.5, 1e-6)), []
    rows = np.column_stack([np.append(data, [0.1, 0.3]), np.full(4, 0.2)])
    try:
        for label in ("one", "two", "three"):
            head = BallPrototypeClassifier(
                epsilon=1.0,
                unit=_UNIT,
                classes=(0, 1),
                ledger=ledger,
                label=label,
                source=source,
            ).fit(rows, np.array([0, 1, 0, 1]))
            released.append(head.prototypes_)
    except BudgetExceeded:
        return released
    return released


def _release_first(data: Values, source: Source) -> list[Values]:
    """The noise is drawn and released before the ledger is asked."""
    ledger, released = _ledger(), []
    try:
        for label in ("one", "two"):
            key = NoiseKey(source.new_key(), private=False)
            released.append(_mechanism().apply([data.sum()], key))
            ledger.paid(_mechanism(), label=label, source=source)
    except BudgetExceeded:
        return released
    return released


def _pay_once(data: Values, source: Source) -> list[Values]:
    """One charge, two draws of noise on one value."""
    ledger, released = _ledger(), []
    ledger.paid(_mechanism(), label="one", source=source)
    for _ in range(2):
        key = NoiseKey(source.new_key(), private=False)
        released.append(_mechanism().apply([data.sum()], key))
    return released


def _price_of_the_data(data: Values, source: Source) -> list[Values]:
    """A charge that reveals how many records are large."""
    ledger = _ledger()
    sigma = 20.0 + float((data > 0.5).sum())
    mechanism = Gaussian(sigma, {_UNIT: 1.0})
    return [mechanism.release([data.sum()], ledger=ledger, source=source).value]


def _is_entered(size: Size, seed: int) -> AuditResult:
    """Every release is an entry of the ledger that it was given, and no other."""
    made: list[Ledger] = []

    def remembered(budget: Budget, **options: Any) -> Ledger:
        made.append(Ledger(budget, unit=_UNIT, **options))
        return made[-1]

    missing = []
    for name, run in _UNTIL_DECLINED:
        made.clear()
        with broken(sys.modules[__name__], "_new_ledger", remembered):
            released = run(np.array([0.0, 0.2]), Seeded(seed))
        if len(released) != len(made[0].entries()):
            missing.append(name)
    evidence = "All that was released is in the ledger."
    if missing:
        evidence = f"What was released by {missing[0]} is not in the ledger."
    return AuditResult(
        subject="the ledger: every release is an entry",
        level=Level.ACCOUNTING,
        method="count of releases and entries",
        unit=_UNIT.describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=len(_UNTIL_DECLINED),
        alpha=0.0,
        refuted=bool(missing),
        evidence=evidence,
    )


def _audited(run: Run, size: Size, seed: int) -> AuditResult:
    pair = (np.array([0.0, 0.2]), np.array([1.0, 0.2]))
    return replay(
        run,
        pair,
        unit=_UNIT,
        subject="the ledger: releases until declined",
        random_state=seed,
    ).audit_result()


_UNTIL_DECLINED: tuple[tuple[str, Run], ...] = (
    ("Gaussian releases", _pay_first),
    ("local reports", _reports_until_declined),
    ("heads", _heads_until_declined),
)


def cases() -> tuple[Case, ...]:
    """The correct order, then twins."""
    twins = (
        ("the budget checked after the release", _release_first),
        ("one charge for two releases", _pay_once),
        ("a price that follows the data", _price_of_the_data),
    )
    return (
        Case(
            ENGINE,
            "releases until declined",
            Level.REPLAY,
            partial(_audited, _pay_first),
        ),
        Case(
            ENGINE,
            "local reports until declined",
            Level.REPLAY,
            partial(_audited, _reports_until_declined),
        ),
        Case(
            ENGINE,
            "heads until declined",
            Level.REPLAY,
            partial(_audited, _heads_until_declined),
        ),
        Case(ENGINE, "every release is an entry", Level.ACCOUNTING, _is_entered),
        *(
            Case(
                ENGINE,
                "releases",
                Level.REPLAY,
                partial(_audited, run),
                what,
            )
            for what, run in twins
        ),
    )
