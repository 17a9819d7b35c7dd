"""Audit of deletions: the findings of a retrain test as an audit result.

The unlearning engine compares every deletion of a stream with a replay that never saw
its records (`unlearning.retrain`), deterministically and on noised copies. This module
uses only the protocol `RetrainFindings`, because `audit` imports no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from demur.audit.notes import check_entry, note_on_entry
from demur.audit.result import AuditResult, Level
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.ledger import Ledger


class NoisedCopies(Protocol):
    """The result of a test on noised copies of both models."""

    @property
    def trials(self) -> int:
        """Copies of each model."""
        ...

    @property
    def confidence(self) -> float:
        """Of the lower bound."""
        ...

    @property
    def epsilon_lower(self) -> float:
        """The bound, at delta."""
        ...

    @property
    def epsilon_claimed(self) -> float:
        """The claim, at delta."""
        ...

    @property
    def delta(self) -> float:
        """Where epsilon is read."""
        ...


class RetrainFindings(Protocol):
    """The findings of a comparison of deletions with replays (a retrain test)."""

    @property
    def mode(self) -> str:
        """The name of the model."""
        ...

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence for each check that failed."""
        ...

    @property
    def deletions(self) -> Sequence[object]:
        """One finding for each deletion."""
        ...

    @property
    def distinguishing(self) -> NoisedCopies | None:
        """The statistical part; None for exact deletion."""
        ...


def audit_deletion(
    findings: RetrainFindings,
    *,
    subject: str | None = None,
    ledger: Ledger | None = None,
    entry: Entry | None = None,
) -> AuditResult:
    """The retrain test as an `AuditResult`, noted on `entry` if a ledger is given.

    Refuted if any check failed; the evidence names the kinds of failure and no exact
    distance. `alpha` is that of the statistical part, 0 where there is none.
    """
    check_entry(ledger, entry)
    test = findings.distinguishing
    failed = findings.failures
    count = len(findings.deletions)
    if failed:
        kinds = ", ".join(dict.fromkeys(text.split(":", 1)[0] for text in failed))
        evidence = (
            f"Of {count} deletions compared with replays, failed checks: {kinds}."
        )
    else:
        evidence = f"{count} deletions match replays that never saw the records."
    result = AuditResult(
        subject=subject or f"unlearning: {findings.mode}",
        level=Level.DELETION,
        method="retrain test",
        unit=str(Erasure()),
        claimed=None if test is None else test.epsilon_claimed,
        delta=0.0 if test is None else test.delta,
        lower_bound=None if test is None else test.epsilon_lower,
        runs=count if test is None else test.trials,
        alpha=0.0 if test is None else 1.0 - test.confidence,
        refuted=bool(failed),
        evidence=evidence,
    )
    return note_on_entry(result, ledger, entry)
