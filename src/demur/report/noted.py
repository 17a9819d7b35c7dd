"""What the notes of a ledger say: audits, utilities and deletions, read with care.

Notes are written by whoever runs the ledger: a note that does not have the expected
form is counted, and left out, and never stops the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from demur.audit.result import AuditResult
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.ledger import Note


@dataclass(frozen=True)
class Utility:
    """What a release was good for, against its own epsilon at one unit."""

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
class Certified:
    """A certificate, or whatever else was noted about a deletion, as words."""

    time: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Deletion:
    """An entry at the unit of erasure, and the certificates noted about it."""

    sequence: int
    label: str
    mechanism: str
    time: str
    count: int
    epsilon: float | None
    delta: float
    certificates: tuple[Certified, ...]


@dataclass(frozen=True)
class Audit:
    """An audit's result beside the entry it is about."""

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
) -> tuple[tuple[Audit, ...], int]:
    """The audits in order, and how many notes could not be read as one."""
    found, strange = [], 0
    for note in notes:
        if note.about != "audit":
            continue
        entry = entries.get(note.entry_id)
        try:
            result = AuditResult.from_json(dict(note.facts))
        except (ValueError, TypeError):
            strange += 1
            continue
        if entry is None:
            strange += 1
            continue
        found.append(
            Audit(
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
    return tuple(found), strange


def utilities(
    notes: Iterable[Note], entries: Mapping[str, Entry]
) -> tuple[tuple[Utility, ...], int]:
    """Utilities with their entry's epsilon; how many could not be read."""
    found, strange = [], 0
    for note in notes:
        if note.about != "utility":
            continue
        entry = entries.get(note.entry_id)
        name, value = note.facts.get("name"), _number(note.facts.get("value"))
        cost = None if entry is None else _own_cost(entry)
        if entry is None or not isinstance(name, str) or value is None or cost is None:
            strange += 1
            continue
        unit, delta, epsilon = cost
        found.append(
            Utility(
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
    return tuple(found), strange


def deletions(entries: Iterable[Entry], notes: Iterable[Note]) -> tuple[Deletion, ...]:
    """Entries at the unit of erasure, each with what was noted about it."""
    noted: dict[str, list[Certified]] = {}
    for note in notes:
        words = {str(k)[:80]: _words(v) for k, v in note.facts.items()}
        noted.setdefault(note.entry_id, []).append(Certified(note.time, words))
    found = []
    for entry in entries:
        at = [p for p in entry.promises if isinstance(p.unit, Erasure)]
        unit, delta = (at[0].unit, at[0].delta) if at else (Erasure(), 0.0)
        try:
            epsilon = entry.epsilon(unit, delta)
        except (NotCovered, NotPriced):
            epsilon = None
        found.append(
            Deletion(
                sequence=entry.sequence,
                label=entry.label,
                mechanism=entry.declaration.name,
                time=entry.time,
                count=entry.count,
                epsilon=epsilon,
                delta=delta,
                certificates=tuple(noted.get(entry.id, ())),
            )
        )
    return tuple(found)


def _own_cost(entry: Entry) -> tuple[str, float, float] | None:
    """The entry alone at the first budget that it speaks of: unit, delta, epsilon."""
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
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "; ".join(_words(one) for one in value)[:4000]
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {_words(v)}" for k, v in value.items())[:4000]
    return str(value)[:4000]
