"""What is said about a release: it names the unit, and survives being written down."""

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

_SPEAKERS = ("statement", "summary")


def statements_name_the_unit(subject: Subject) -> None:
    """Whoever reads a statement learns what is protected, at which epsilon."""
    ledger, result = subject.sample.ledger, subject.sample.result
    wanted = (subject.unit.describe(), *subject.unit_phrases)
    said = [(f"entry {e.label!r}", e.statement()) for e in ledger.entries()]
    said += list(_statements(result))
    require(said, "nothing says a word about privacy")
    for who, text in said:
        require(
            any(phrase in text for phrase in wanted),
            f"{who} does not name the unit ({wanted[0]}): {text:.200}",
        )
        require("epsilon" in text.lower(), f"{who} does not name epsilon: {text:.200}")


def seeded_noise_is_stamped(subject: Subject) -> None:
    """Noise that anyone can repeat is called NOT PRIVATE wherever it is spoken of."""
    if not subject.takes_source:
        return
    ledger, result = subject.seeded.ledger, subject.seeded.result
    said = [(f"entry {e.label!r}", e.statement()) for e in ledger.entries()]
    for who, text in [*said, *_statements(result)]:
        require("NOT PRIVATE" in text, f"{who} does not say NOT PRIVATE: {text:.200}")


def results_carry_their_entry(subject: Subject) -> None:
    """What is handed out leads to the entry that paid for it, if to any."""
    ledger, result = subject.sample.ledger, subject.sample.result
    held = {entry.id for entry in entries_of(result)}
    known = {entry.id for entry in ledger.entries()}
    require(held <= known, "the result carries an entry of another ledger")
    if not subject.keeps_data:
        require(held, "the result does not say which entry paid for it")


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
            place, dataset="checks", budgets=budgets, filter=subject.filter
        ) as ledger:
            written = _recorded_again(ledger, entry)
        with Ledger.open(place) as ledger:
            (read,) = ledger.entries()
            require(ledger.verify().ok, "the ledger does not verify")
    require(read == written, "the entry comes back from the file as another one")
    require(read.declaration == entry.declaration, "the declaration changed on disk")
    require(read.statement() == written.statement(), "the statement changed on the way")


def results_survive_json(subject: Subject) -> None:
    """Whatever claims to have a JSON form keeps all of it there and back."""
    for one in _claim_json(subject.sample.result):
        name = type(one).__name__
        text = _through_json(one.to_json())
        read = getattr(type(one), "from_json", None)
        if callable(read):
            back = read(text)
            require(
                _through_json(back.to_json()) == text,
                f"the JSON of a {name} changes when it is read and written again",
            )
            require(_equal(back, one), f"a {name} comes back from JSON as another one")


CONTRACTS = (
    statements_name_the_unit,
    seeded_noise_is_stamped,
    results_carry_their_entry,
    declarations_survive_json,
    entries_survive_a_file,
    results_survive_json,
)


def _statements(result: Any) -> Iterator[tuple[str, str]]:
    """What a result and its parts say, where they say something."""
    parts = [result, *getattr(result, "__dict__", {}).values()]
    for part in parts:
        if isinstance(part, Ledger | type | Entry):
            continue
        for name in _SPEAKERS:
            speak = getattr(part, name, None)
            if callable(speak):
                yield f"{type(part).__name__}.{name}()", str(speak())


def _claim_json(result: Any) -> Iterator[Any]:
    seen: set[type] = set()
    for one in reachable(result):
        if isinstance(one, Ledger) or type(one) in seen:
            continue
        if callable(getattr(one, "to_json", None)):
            seen.add(type(one))
            yield one


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays do not say; their JSON does
        return True


def _through_json(data: object) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def _recorded_again(ledger: Ledger, entry: Entry) -> Entry:
    return ledger.paid(entry.declaration, count=entry.count, label=entry.label).entry
