"""Notes of a ledger as facts of the report: audits, utilities and deletions.

Users write notes, in any form. A note that does not have the expected form is counted
and left out, and does not stop the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from demur.audit.result import AuditResult
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.ledger import Note


@dataclass(frozen=True)
class UtilityFacts:
    """The measured utility of a release, with its own epsilon at one unit."""

    name: str
    sequence: int
    label: str
    unit: str
    delta: float
    epsilon: float
    value: float
    low: float | None
    high: float | None
    non_private: float | None


@dataclass(frozen=True)
class CertificateFacts:
    """A certificate, or another note about a deletion, as text."""

    time: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class DeletionFacts:
    """An entry at the unit of erasure, and its certificates.

    `paid_by` is the number of the entry that paid for it, if that is another one;
    `epsilon` is then that entry's.
    """

    sequence: int
    label: str
    mechanism: str
    time: str
    count: int
    epsilon: float | None
    delta: float
    paid_by: int | None
    certificates: tuple[CertificateFacts, ...]


@dataclass(frozen=True)
class AuditFacts:
    """An audit result with its entry."""

    sequence: int
    label: str
    time: str
    subject: str
    level: str
    method: str
    unit: str
    claimed: float | None
    delta: float
    lower_bound: float | None
    runs: int
    refuted: bool
    statement: str


def audits(
    notes: Iterable[Note], entries: Mapping[str, Entry]
) -> tuple[tuple[AuditFacts, ...], int]:
    """The audits in order, and how many notes could not be read as an audit."""
    facts, unread = [], 0
    for note in notes:
        if note.about != "audit":
            continue
        entry = entries.get(note.entry_id)
        try:
            result = AuditResult.from_json(dict(note.facts))
        except (ValueError, TypeError):
            unread += 1
            continue
        if entry is None:
            unread += 1
            continue
        facts.append(
            AuditFacts(
                sequence=entry.sequence,
                label=entry.label,
                time=note.time,
                subject=result.subject,
                level=str(result.level),
                method=result.method,
                unit=result.unit,
                claimed=result.claimed,
                delta=result.delta,
                lower_bound=result.lower_bound,
                runs=result.runs,
                refuted=result.refuted,
                statement=result.statement(),
            )
        )
    return tuple(facts), unread


def utilities(
    notes: Iterable[Note], entries: Mapping[str, Entry]
) -> tuple[tuple[UtilityFacts, ...], int]:
    """Utilities with their entry's epsilon, and how many notes could not be read."""
    facts, unread = [], 0
    for note in notes:
        if note.about != "utility":
            continue
        entry = entries.get(note.entry_id)
        name, value = note.facts.get("name"), _number(note.facts.get("value"))
        cost = None if entry is None else _own_cost(entry)
        if entry is None or not isinstance(name, str) or value is None or cost is None:
            unread += 1
            continue
        unit, delta, epsilon = cost
        facts.append(
            UtilityFacts(
                name=name[:200],
                sequence=entry.sequence,
                label=entry.label,
                unit=unit,
                delta=delta,
                epsilon=epsilon,
                value=value,
                low=_number(note.facts.get("low")),
                high=_number(note.facts.get("high")),
                non_private=_number(note.facts.get("non_private")),
            )
        )
    return tuple(facts), unread


def deletions(
    entries: Iterable[Entry],
    notes: Iterable[Note],
    pays: Callable[[Entry], Entry] = lambda entry: entry,
) -> tuple[DeletionFacts, ...]:
    """Entries at the unit of erasure, each with its notes and with what holds for it.

    `pays` gives the entry whose cost a deletion has.
    """
    certificates: dict[str, list[CertificateFacts]] = {}
    for note in notes:
        words = {str(k)[:80]: _words(v) for k, v in note.facts.items()}
        stored = CertificateFacts(note.time, words)
        certificates.setdefault(note.entry_id, []).append(stored)
    facts = []
    for entry in entries:
        own = [p for p in entry.promises if isinstance(p.unit, Erasure)]
        unit, delta = (own[0].unit, own[0].delta) if own else (Erasure(), 0.0)
        payer = pays(entry)
        try:
            epsilon = payer.epsilon(unit, delta)
        except (NotCovered, NotPriced):
            epsilon = None
        if payer.covered(unit):
            epsilon = None  # the entry that paid is not in this ledger
        facts.append(
            DeletionFacts(
                sequence=entry.sequence,
                label=entry.label,
                mechanism=entry.declaration.name,
                time=entry.time,
                count=entry.count,
                epsilon=epsilon,
                delta=delta,
                paid_by=None if payer is entry else payer.sequence,
                certificates=tuple(certificates.get(entry.id, ())),
            )
        )
    return tuple(facts)


def _own_cost(entry: Entry) -> tuple[str, float, float] | None:
    """Unit, delta and epsilon of the entry at the first budget where it has a cost."""
    for promise in entry.promises:
        try:
            epsilon = entry.epsilon(promise.unit, promise.delta)
        except (NotCovered, NotPriced):
            continue
        if math.isfinite(epsilon):
            return str(promise.unit), promise.delta, epsilon
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "; ".join(_words(item) for item in value)[:4000]
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {_words(v)}" for k, v in value.items())[:4000]
    return str(value)[:4000]
