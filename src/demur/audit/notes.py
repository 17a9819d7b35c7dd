"""Audit results as notes on ledger entries."""

from __future__ import annotations

from demur.audit.result import AuditResult
from demur.core.entry import Entry
from demur.ledger import Ledger, checked_ledger

ABOUT = "audit"


def check_entry(ledger: Ledger | None, entry: Entry | None) -> None:
    """Refuse, before hours of runs, an entry that the result could not be noted on."""
    if ledger is None and entry is None:
        return
    if checked_ledger(ledger) is None or not isinstance(entry, Entry):
        raise TypeError(
            "ledger and entry belong together: the result is noted on an entry of the"
            " ledger. Give both or neither."
        )
    assert ledger is not None
    if all(each.id != entry.id for each in ledger.entries()):
        raise ValueError(
            f"entry {entry.label!r} ({entry.id[:8]}) is not in this ledger, so its"
            " audit cannot be noted there: give the ledger that the entry is from"
        )


def note_on_entry(
    result: AuditResult, ledger: Ledger | None, entry: Entry | None
) -> AuditResult:
    """`result`, noted on `entry` if a ledger was given."""
    if ledger is not None and entry is not None:
        ledger.annotate(entry, ABOUT, result.to_json())
    return result


def audits_of(ledger: Ledger, entry: Entry | None = None) -> tuple[AuditResult, ...]:
    """The audits noted on one entry, or in the whole ledger, in order."""
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a Ledger; got {type(ledger).__name__}")
    return tuple(
        AuditResult.from_json(dict(note.facts)) for note in ledger.notes(entry, ABOUT)
    )
