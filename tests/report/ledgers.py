"""Ledgers to look at: a full one, an empty one, a long one, a seeded one."""

from __future__ import annotations

from pathlib import Path

import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    BudgetExceeded,
    Declaration,
    Erasure,
    ReplaceOne,
    Seeded,
)
from demur.audit import AuditResult
from demur.core.accounting.events import GaussianEvent
from demur.core.cost import Cost, Fixed
from demur.core.curve import PiecewiseLinear
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian

UNIT, NEAR, ERASE = AddOrRemoveOne(), Ball(0.25, space="pixels"), Erasure()
NASTY = '<script>alert(1)</script> & "quoted" $x_{$ </title>'
LONG = "a-label-that-never-breaks-" * 7


def sums(sigma: float, name: str = "class sums with Gaussian noise") -> Gaussian:
    """A mechanism that speaks of presence, replacement and balls of pixels."""
    curve = PiecewiseLinear.linear(1.0, cap=2.0)
    table = {UNIT: 1.0, ReplaceOne(): 2.0, "pixels": curve}
    return Gaussian(sigma, table, name=name)


def deletion(multiplier: float = 30.0) -> Declaration:
    """A deletion by Gaussian noise."""
    return Declaration(
        "forgetting by noise", Cost((Fixed(ERASE, GaussianEvent(multiplier)),))
    )


def full(place: Path | None = None, *, testing: bool = False) -> Ledger:
    """Every section of the report has something to say."""
    budgets = {
        UNIT: Budget(4.0, 1e-5),
        NEAR: Budget(1.0, 1e-5),
        ERASE: Budget(1.0, 1e-5),
    }
    if place is None:
        ledger = Ledger(budgets, dataset="digits")
    else:
        ledger = Ledger.open(place, dataset="digits", budgets=budgets, testing=testing)
    labels = ["class sums, first look", NASTY, LONG, "class sums, last look"]
    source = {"source": Seeded(1)} if testing else {}
    runs = []
    for sigma, label in zip((9.0, 5.0, 4.0, 2.2), labels, strict=True):
        runs.append(
            sums(sigma).release([1.0], ledger=ledger, label=label, **source).entry
        )
    measured = ((0.71, 0.68), (0.78, 0.755), (0.8, 0.78), (0.86, 0.851))
    for entry, (value, low) in zip(runs, measured, strict=True):
        facts = {"name": "accuracy on public test images", "value": value, "low": low}
        ledger.annotate(
            entry, "utility", facts | {"high": 2 * value - low, "non_private": 0.89}
        )
    ledger.annotate(runs[0], "utility", {"name": "mean error", "value": 3.25})
    ledger.annotate(runs[0], "utility", {"value": "no name"})
    forgotten = ledger.charge(deletion(), label="a request of May 3")
    ledger.charge(deletion(40.0), label="a request of May 9")
    ledger.annotate(
        forgotten,
        "deletion",
        {"record": "3f9a" * 16, "mode": "ogd", "epsilon": 0.1234, "left": [NASTY]},
    )  # fmt: skip
    for entry, shown, claim in ((runs[0], 0.31, 0.38), (runs[3], 2.4, 1.9)):
        result = AuditResult(
            subject=f"entry: {entry.label}"[:80],
            level="black box",
            method="GDP mu test",
            unit="AddOrRemoveOne()",
            claimed=claim,
            delta=1e-5,
            lower_bound=shown,
            runs=10_000,
            alpha=1e-6,
            refuted=shown > claim,
            evidence="The two sides lie close.",
        )
        ledger.annotate(entry, "audit", result.to_json())
    with pytest.raises(BudgetExceeded):
        sums(0.5).release([1.0], ledger=ledger, label="too much at once", **source)
    replay = AuditResult(
        "a replay", "replay", "replay of one pair", "AddOrRemoveOne()", None, 0.0,
        None, 1, 0.0, False, "Every charge came before its noise.",
    )  # fmt: skip
    ledger.annotate(runs[1], "audit", replay.to_json())
    return ledger


def long(entries: int = 2000) -> Ledger:
    """Many small charges of a few kinds, with labels of every length."""
    ledger = Ledger({UNIT: Budget(4.0, 1e-5), NEAR: Budget(2.0, 1e-5)}, dataset="long")
    for i in range(entries):
        what = sums(200.0 + 50.0 * (i % 7)).declaration()
        ledger.charge(what, label=f"count {i} " + "of visits " * (i % 17))
    return ledger


def empty() -> Ledger:
    """A ledger in which nothing has happened."""
    return Ledger({UNIT: Budget(1.0, 1e-6), NEAR: Budget(0.5, 1e-6)}, dataset="quiet")
