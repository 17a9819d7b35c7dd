"""Contracts of statements and records: they name the unit, and survive storage."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demur.core.accounting import events
from demur.core.entry import Entry
from demur.ledger import Budget, Ledger
from demur.testing.graph import reachable
from demur.testing.result import require
from demur.testing.subject import Subject, entries_of

_STATEMENTS = ("statement", "summary")


def statements_name_the_unit(subject: Subject) -> None:
    """Every statement names the unit that is protected, and epsilon."""
    ledger, result = subject.sample.ledger, subject.sample.result
    wanted = (subject.unit.describe(), *subject.unit_phrases)
    texts = [(f"entry {e.label!r}", e.statement()) for e in ledger.entries()]
    texts += list(_statements(result))
    require(texts, "there is no statement about privacy")
    for who, text in texts:
        require(
            any(phrase in text for phrase in wanted),
            f"{who} does not name the unit ({wanted[0]}): {text:.200}",
        )
        require("epsilon" in text.lower(), f"{who} does not name epsilon: {text:.200}")


def seeded_noise_is_stamped(subject: Subject) -> None:
    """Every statement about a seeded release says NOT PRIVATE."""
    if not subject.takes_source:
        return
    ledger, result = subject.seeded.ledger, subject.seeded.result
    texts = [(f"entry {e.label!r}", e.statement()) for e in ledger.entries()]
    for who, text in [*texts, *_statements(result)]:
        require("NOT PRIVATE" in text, f"{who} does not say NOT PRIVATE: {text:.200}")


def results_carry_their_entry(subject: Subject) -> None:
    """`entry` of a result, `entry_` of an estimator, is the entry that paid for it."""
    ledger, result = subject.sample.ledger, subject.sample.result
    name = "entry_" if hasattr(result, "get_params") else "entry"
    require(
        isinstance(getattr(result, name, None), Entry),
        f"the result has no attribute {name!r} with the entry that paid for it",
    )
    known = {entry.id for entry in ledger.entries()}
    require(
        all(entry.id in known for entry in entries_of(result)),
        "the result carries an entry of another ledger",
    )


def declarations_survive_json(subject: Subject) -> None:
    """Declaration and events come back from JSON as they were."""
    declared = subject.entry.declaration
    again = type(declared).from_json(_through_json(declared.to_json()))
    require(again == declared, "the declaration comes back from JSON as another one")
    for term in again.cost.terms:
        event = getattr(term, "event", None)
        if event is not None:
            back = events.from_json(_through_json(events.to_json(event)))
            require(back == event, f"{event!r:.80} comes back as {back!r:.80}")


def entries_survive_a_file(subject: Subject) -> None:
    """An entry read from a ledger on disk equals the one that was written."""
    entry = subject.entry
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "ledger.db"
        budgets = {subject.unit: Budget(subject.room, subject.delta)}
        with Ledger.open(
            place, dataset="contract checks", budgets=budgets, filter=subject.filter
        ) as ledger:
            written = _recorded_again(ledger, entry)
        with Ledger.open(place) as ledger:
            (read,) = ledger.entries()
            require(ledger.verify().ok, "the ledger does not verify")
    require(read == written, "the entry comes back from the file as another one")
    require(read.declaration == entry.declaration, "the declaration changed on disk")
    require(read.statement() == written.statement(), "the statement changed on disk")


def results_survive_json(subject: Subject) -> None:
    """Whatever has `to_json` and `from_json` survives the round trip."""
    for item in _with_json(subject.sample.result):
        name = type(item).__name__
        text = _through_json(item.to_json())
        read = getattr(type(item), "from_json", None)
        if callable(read):
            back = read(text)
            require(
                _through_json(back.to_json()) == text,
                f"the JSON of a {name} changes when it is read and written again",
            )
            require(_equal(back, item), f"a {name} comes back from JSON as another one")


CONTRACTS = (
    statements_name_the_unit,
    seeded_noise_is_stamped,
    results_carry_their_entry,
    declarations_survive_json,
    entries_survive_a_file,
    results_survive_json,
)


def _statements(result: Any) -> Iterator[tuple[str, str]]:
    """The statements of a result and its parts."""
    parts = [result, *getattr(result, "__dict__", {}).values()]
    for part in parts:
        if isinstance(part, Ledger | type | Entry):
            continue
        for name in _STATEMENTS:
            statement = getattr(part, name, None)
            if callable(statement):
                yield f"{type(part).__name__}.{name}()", str(statement())


def _with_json(result: Any) -> Iterator[Any]:
    seen: set[type] = set()
    for item in reachable(result):
        if isinstance(item, Ledger) or type(item) in seen:
            continue
        if callable(getattr(item, "to_json", None)):
            seen.add(type(item))
            yield item


def _equal(item: Any, other: Any) -> bool:
    try:
        return bool(item == other)
    except ValueError:  # arrays are compared by their JSON
        return True


def _through_json(data: object) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def _recorded_again(ledger: Ledger, entry: Entry) -> Entry:
    return ledger.paid(entry.declaration, count=entry.count, label=entry.label).entry
