"""Audit results beside the entries they are about, in the chain of the ledger."""

from __future__ import annotations

from demur.audit.result import AuditResult
from demur.core.entry import Entry
from demur.ledger import Ledger

ABOUT = "audit"


def check_place(ledger: Ledger | None, entry: Entry | None) -> None:
    """Refuse, before hours of runs, a place where the result could not be noted."""
    if ledger is None and entry is None:
        return
    if not isinstance(ledger, Ledger) or not isinstance(entry, Entry):
        raise TypeError(
            "ledger and entry belong together: the result is noted with an entry of a"
            " ledger. Give both, or neither."
        )
    if all(each.id != entry.id for each in ledger.entries()):
        raise ValueError(
            f"{entry.label!r} ({entry.id[:8]}) is not an entry of this ledger: its"
            " audit cannot be noted there"
        )


def noted(
    result: AuditResult, ledger: Ledger | None, entry: Entry | None
) -> AuditResult:
    """`result`, after it was noted with `entry` where a ledger was given."""
    if ledger is not None and entry is not None:
        ledger.annotate(entry, ABOUT, result.to_json())
    return result


def audits_of(ledger: Ledger, entry: Entry | None = None) -> tuple[AuditResult, ...]:
    """The audits noted with one entry, or in the whole ledger, in order."""
    return tuple(
        AuditResult.from_json(dict(note.facts)) for note in ledger.notes(entry, ABOUT)
    )
