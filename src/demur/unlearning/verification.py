"""Checking a service from outside: its chain, its deletions, its tables and its book.

Nothing here trusts the process that wrote: everything is computed again from the rows.
What the check cannot know without more is part of its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.errors import DemurError
from demur.ledger import Ledger, chain
from demur.ledger.chain import Head, canonical
from demur.unlearning import journal, store
from demur.unlearning.certificate import Certificate
from demur.unlearning.journal import OPERATIONS, Body, Row
from demur.unlearning.refusals import ServiceDamaged
from demur.unlearning.till import entry_name

_MOST_PROBLEMS = 50


@dataclass(frozen=True)
class Finding:
    """Whether everything agrees: what was checked, found wrong, and left open."""

    rows: int
    head: Head
    problems: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No problem was found (see `unknown` for what could not be)."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.rows} rows checked, head {self.head}"]
        lines += [f"PROBLEM: {p}" for p in self.problems] or ["no problem found"]
        lines += [f"not known: {u}" for u in self.unknown]
        return "\n".join(lines)


@dataclass
class History:
    """What the rows of a journal say, taken together."""

    service: str
    head: Head
    problems: list[str] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)  # negative: deleted
    requests: Counter[str] = field(default_factory=Counter)
    certified: dict[tuple[str, int], tuple[Row, Body]] = field(default_factory=dict)
    paid: dict[str, tuple[str, str]] = field(default_factory=dict)  # entry, book
    abandoned: dict[str, str | None] = field(default_factory=dict)
    units: int = 0
    state: str | None = None

    def wrong(self, row: Row, what: str) -> None:
        """Note a problem."""
        self.problems.append(f"row {row.sequence}: {what}")


def read_history(connection: Connection) -> History:
    """Walk the journal from its genesis and check every row."""
    kept = connection.execute(sa.select(store.service)).one()
    previous = Head(0, chain.digest(kept.terms))
    history = History(kept.service_id, previous)
    intent: Body | None = None
    carried = 0
    try:
        for row, body in journal.walk(connection):
            if len(history.problems) >= _MOST_PROBLEMS:
                history.problems.append("more problems follow; stopped here")
                break
            if row.sequence != previous.sequence + 1:
                history.wrong(row, f"the rows after {previous.sequence} are missing")
            if chain.link(previous.hash, row.body) != row.hash:
                history.wrong(row, "its hash does not follow from its text")
            if row.op not in OPERATIONS or body.get("op") != row.op:
                history.wrong(row, "its kind does not repeat its text")
            previous = row.head
            try:
                intent, carried = _apply(history, row, body, intent, carried)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                history.wrong(row, f"its text cannot be read ({error!r:.80})")
    except ServiceDamaged as error:
        history.problems.append(str(error))
    history.head = previous
    if Head(int(kept.sequence), kept.hash) != previous:
        history.problems.append(
            f"the service says it ends at row {kept.sequence}; the journal ends at row"
            f" {previous.sequence}"
        )
    _check_tables(connection, kept, history)
    return history


def _apply(
    history: History, row: Row, body: Body, intent: Body | None, carried: int
) -> tuple[Body | None, int]:
    """One row; the intent that is open after it, and how much of it is done."""
    history.state = body.get("state", history.state)
    op, known = row.op, history.generations
    if intent is not None and body.get("operation") != intent["operation"]:
        history.wrong(row, "a deletion was left hanging in the air before it")
        intent = None
    match op:
        case "insert":
            mark, generation = body["record"], body["generation"]
            if generation != 1 - known.get(mark, 0) or known.get(mark, -1) == 0:
                history.wrong(row, "a record was learned that could not be")
            known[mark] = generation
        case "intent":
            for subject, number in body["requests"].items():
                history.requests[subject] += 1
                if number != history.requests[subject]:
                    history.wrong(row, "a person's requests are miscounted")
            history.units += body["units"]
            return body, 0
        case "delete" | "publish" | "abandon":
            if intent is None or body["operation"] != intent["operation"]:
                history.wrong(row, f"a {op} without its intent")
                return None, 0
            if op == "abandon":
                history.abandoned[body["operation"]] = body["entry"]
                return None, 0
            if body["run"] != intent["run"]:
                # The key died with the process of the intent: this noise was redrawn.
                history.wrong(row, "its noise was drawn by another process")
            if op == "publish":
                history.paid[body["operation"]] = (body["entry"], body["book"])
                return None, 0
            certificate = body["certificate"]
            mark, generation = certificate["record"], certificate["generation"]
            if [mark, generation] not in intent["records"]:
                history.wrong(row, "it deletes what its intent does not name")
            _forgotten(history, row, certificate)
            history.paid[body["operation"]] = (
                certificate["entry"],
                certificate["book"],
            )
            carried += 1
            return (None, 0) if carried == len(intent["records"]) else (intent, carried)
        case "drop":
            _forgotten(history, row, body["certificate"])
        case "bury":
            if body["record"] in known:
                history.wrong(row, "it buries a record that is known")
            known[body["record"]] = 0
        case "retrain":
            history.units = 0
    return None, 0


def _forgotten(history: History, row: Row, certificate: dict[str, Any]) -> None:
    mark, generation = certificate["record"], certificate["generation"]
    if history.generations.get(mark) != generation:
        history.wrong(row, "it deletes a record that is not live")
    history.generations[mark] = -generation
    history.certified[mark, generation] = (row, certificate)


def _check_tables(connection: Connection, kept: Any, history: History) -> None:
    """The tables say what the journal says."""
    problems = history.problems
    said = {
        row.mark: row.generation if row.live else -row.generation
        for row in connection.execute(sa.select(store.records))
    }
    if said != history.generations:
        problems.append("the table of records is not what the journal says")
    counted = {
        row.mark: row.requests for row in connection.execute(sa.select(store.subjects))
    }
    if counted != dict(history.requests):
        problems.append("the requests of some person are not those of the journal")
    if kept.paid != history.units:
        problems.append("what this epoch has used is not what the journal says")
    held = set()
    for row in connection.execute(sa.select(store.certificates)):
        held.add((row.mark, row.generation))
        try:
            certificate = Certificate.from_json(row.body)
        except ValueError as error:
            problems.append(f"a stored certificate cannot be read: {error}")
            continue
        problems += certificate_problems(certificate, history)
    if held != set(history.certified):
        problems.append("the certificates are not those of the journal's deletions")
    gone = {m for m, generation in history.generations.items() if generation <= 0}
    boxes = connection.execute(sa.select(store.boxes.c.mark)).scalars()
    if gone & set(boxes):
        problems.append("a deleted record still has its box")


def certificate_problems(certificate: Certificate, history: History) -> list[str]:
    """What is wrong with a certificate, against a journal that was walked."""
    if certificate.service != history.service:
        return ["the certificate belongs to another service"]
    found = history.certified.get((certificate.record, certificate.generation))
    if found is None:
        return ["the journal has no deletion of this record"]
    row, content = found
    if certificate.head != row.head:
        return [
            f"the certificate names row {certificate.head}, but the deletion is row"
            f" {row.head}: the journal or the certificate was changed"
        ]
    if canonical(certificate.content()) != canonical(content):
        changed = [
            name
            for name, value in certificate.content().items()
            if canonical(content.get(name)) != canonical(value)
        ]
        return [
            "the certificate does not say what the journal says: "
            + ", ".join(changed or ["a field is missing"])
        ]
    return []


def book_problems(
    history: History, books: Sequence[Ledger]
) -> tuple[list[str], list[str]]:
    """What the books of the epochs lack; and what they cannot tell."""
    problems = [f"the book: {p}" for book in books for p in book.verify().problems]
    known = {book.id: book for book in books}
    elsewhere = 0
    used: Counter[str] = Counter()
    for operation, (entry_id, book_id) in history.paid.items():
        used[entry_id] += 1
        if book_id not in known:
            elsewhere += 1
            continue
        found = known[book_id].find(entry_name(history.service, operation))
        if found is None or found.id != entry_id:
            problems.append(f"the operation {operation[:8]} is not in the book")
    if any(count > 1 for count in used.values()):
        problems.append("one entry of the book paid for two operations")
    for operation, kept in history.abandoned.items():
        name = entry_name(history.service, operation)
        if kept is not None and not any(book.find(name) for book in books):
            problems.append(
                f"what the operation {operation[:8]} had spent is not in the book"
            )
        if operation in history.paid:
            problems.append(f"the operation {operation[:8]} was abandoned and made")
    unknown = []
    if elsewhere:
        unknown.append(f"whether {elsewhere} operations are in books not given here")
    return problems, unknown


def verify_service(
    place: store.ServiceStore,
    books: Sequence[Ledger],
    sealed: Callable[[bytes], str],
) -> Finding:
    """Check a whole service against itself and its books; `sealed` has the secret."""
    with place.read() as connection:
        history = read_history(connection)
        body = connection.execute(sa.select(store.state.c.body)).scalar_one()
    problems, unknown = book_problems(history, books)
    try:
        known = history.state is None or sealed(body) == history.state
    except (DemurError, ValueError, KeyError):
        known = False
    if not known:
        problems.append("the state on disk is not the one that the journal names")
    unknown.append(
        "whether rows were cut off the end, or the whole journal rewritten: keep its"
        " head, or any certificate, elsewhere"
    )
    return Finding(
        history.head.sequence,
        history.head,
        tuple(history.problems + problems),
        tuple(unknown),
    )
