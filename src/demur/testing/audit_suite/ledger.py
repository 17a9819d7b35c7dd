"""Audits of the ledger: releases are paid for first, and a refusal releases nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from demur.audit import AuditResult, Level, replay
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.testing.audit_suite.case import Case, Size

ENGINE = "ledger"
_UNIT = ReplaceOne()

Values = NDArray[np.float64]
Run = Callable[[Values, Source], list[Values]]


def _mechanism() -> Gaussian:
    return Gaussian(2.0, {_UNIT: 1.0})


def _ledger() -> Ledger:
    """Enough budget for one release."""
    return Ledger(Budget(3.0, 1e-6), unit=_UNIT)


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


def _audited(run: Run, size: Size, seed: int) -> AuditResult:
    pair = (np.array([0.0, 0.2]), np.array([1.0, 0.2]))
    return replay(
        run,
        pair,
        unit=_UNIT,
        subject="the ledger: releases until declined",
        random_state=seed,
    ).audit_result()


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
