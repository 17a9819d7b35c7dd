"""Rules of the journal: which row may follow which, and what all rows say together.

Nothing here trusts the process that wrote: each row is checked against those before it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.engine import Connection

from demur.durable import chain
from demur.durable.chain import Tip
from demur.unlearning.errors import ServiceDamaged
from demur.unlearning.models import MODES
from demur.unlearning.records import journal
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.journal import PUBLICATION, Body, Row
from demur.unlearning.records.read_errors import UNREADABLE
from demur.unlearning.records.row_fields import field_problems, is_time

_MOST_PROBLEMS = 50
REPLACEMENTS = ("retrain", "restore")  # theorems of records that a new model lacks


@dataclass(frozen=True)
class Intent:
    """What the row of an intent counts; a price can be computed from it again."""

    requests: dict[str, int]  # the number of each person's request
    records: dict[str, int]  # how many records, of each person
    used: int
    used_by: dict[str, int]
    kind: str | None
    outcome: str | None = None  # the kind of the row that closed it


@dataclass
class Replacement:
    """A new model whose rows follow: its new records, then those that it lacks."""

    kind: str
    operation: str
    tick: int  # from before it
    inserts: int  # still to come
    drops: int  # still to come
    lost: set[str] | None = None  # exactly these are to be dropped; None: any but `new`
    new: set[str] = field(default_factory=set)

    @property
    def next(self) -> str | None:
        """The kind of the row that has to follow; None at the end."""
        return "insert" if self.inserts else "drop" if self.drops else None


@dataclass
class History:
    """What the rows of a journal say together."""

    service: str
    tip: Tip
    signer: str | None = None  # of certificates
    renews: bool = False  # the mode can be brought to its minimum again
    problems: list[str] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)  # negative: deleted
    subjects: dict[str, str] = field(default_factory=dict)  # whose record it is
    requests: Counter[str] = field(default_factory=Counter)
    certified: dict[tuple[str, int], tuple[Row, Body]] = field(default_factory=dict)
    paid: dict[str, tuple[str, str]] = field(default_factory=dict)  # entry, ledger
    ends: dict[str, Tip] = field(default_factory=dict)  # the rows of paid operations
    used_at: dict[str, int] = field(default_factory=dict)  # of the capacity, by then
    open_intent: str | None = None  # the operation that was under way at the end
    abandoned: dict[str, tuple[str | None, str]] = field(default_factory=dict)  # same
    # Of copies that were published, or paid for and given up.
    publications: dict[str, tuple[str, str]] = field(default_factory=dict)
    live: Counter[str] = field(default_factory=Counter)  # records of each person
    most_live: int = 0  # of one person, at any time
    used: int = 0  # of this epoch's capacity
    most_used: int = 0  # of the capacity, in any epoch
    intents: dict[str, Intent] = field(default_factory=dict)  # by operation
    shifts: dict[str, float] = field(default_factory=dict)  # largest of an operation
    learned: dict[str, int] = field(default_factory=dict)  # in which row, in order
    forgotten: int = 0  # the last row that took something out of the model
    ticks: list[int] = field(default_factory=lambda: [0])  # after each row
    epoch: int = 1
    replacement: Replacement | None = None  # whose rows are still to come
    state: str | None = None  # the seal of the last state that a row names
    seal: int = 1  # the number of its key
    digest: str | None = None  # of that state, where it may be published

    def count_live(self, *subjects: str) -> None:
        """Note the most live records of one person; not in the middle of a retrain.

        There, new records stand before those that the new model lacks.
        """
        if self.replacement is None:
            most = max((self.live[s] for s in subjects), default=0)
            self.most_live = max(self.most_live, most)

    def wrong(self, row: Row, what: str) -> None:
        """Note a problem."""
        self.problems.append(f"row {row.sequence}: {what}")


def follow(connection: Connection, header: Any) -> History:
    """Walk the journal from its genesis and check every row.

    `header` is the row of the service, or of an evidence file, with its terms.
    """
    previous = Tip(0, journal.genesis(header.service_id, header.terms))
    terms = json.loads(header.terms)
    renews = hasattr(MODES.get(terms.get("mode")), "renew")
    history = History(header.service_id, previous, terms.get("signer"), renews)
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
            previous = row.tip
            try:
                for problem in field_problems(row, body):
                    history.wrong(row, problem)
                intent, carried = _apply(history, row, body, intent, carried)
            except UNREADABLE as error:
                history.wrong(row, f"its text cannot be read ({error!r:.80})")
    except ServiceDamaged as error:
        history.problems.append(str(error))
    history.tip = previous
    history.open_intent = None if intent is None else intent.get("operation")
    if carried:  # All records of a request are deleted in one transaction.
        history.problems.append("rows of a request at the end are missing")
    if (header.sequence, header.hash) != (previous.sequence, previous.hash):
        history.problems.append(
            f"the service says it ends at row {header.sequence}; the journal ends at"
            f" row {previous.sequence}"
        )
    if history.replacement is not None:
        history.problems.append(
            f"rows of a {history.replacement.kind} at the end are missing"
        )
    return history


def _apply(
    history: History, row: Row, body: Body, intent: Body | None, carried: int
) -> tuple[Body | None, int]:
    """One row; the intent that is open after it, and how much of it is done."""
    if "state" in body:
        # A key ends with the state that held what is deleted (`seals`).
        if body["seal"] != history.seal + (row.op in ("delete", "drop")):
            history.wrong(row, "its state is sealed under another key than it must be")
        history.state, history.seal = body["state"], int(body["seal"])
        history.digest = body.get("certificate", {}).get("state_digest")
    op = row.op
    if history.replacement is not None and op != history.replacement.next:
        history.wrong(
            row, f"rows of a {history.replacement.kind} before it are missing"
        )
        history.replacement = None
    history.ticks.append(_tick(history, row, body))
    _check_clock(history, row, body)
    if intent is not None and body.get("operation") != intent["operation"]:
        history.wrong(row, "the intent before it has no outcome")
        intent = None
    match op:
        case "insert":
            _insert(history, row, body)
        case "intent":
            _intend(history, row, body)
            return body, 0
        case "delete" | "publish" | "retrain" | "restore" | "abandon":
            if intent is None or body["operation"] != intent["operation"]:
                history.wrong(row, f"a {op} without its intent")
                return None, 0
            if op != "delete" and (
                carried > 0 or (op != "abandon" and intent["records"])
            ):
                history.wrong(row, "its intent is for a deletion")
            _note_outcome(history, row, body["operation"])
            if op == "abandon":
                _abandon(history, body, intent)
                return None, 0
            if body["run"] != intent["run"]:
                # The key died with the process of the intent: this noise was redrawn.
                history.wrong(row, "its noise was drawn by another process")
            if op == "delete":
                _delete(history, row, body, intent)
                carried += 1
                left = carried < len(intent["records"])
                _check_state(history, row, body, last=not left)
                return (intent, carried) if left else (None, 0)
            _note_paid(history, row, body["operation"], body)
            if op == "publish":
                history.publications[body["operation"]] = body["entry"], body["ledger"]
            else:
                _replace(history, row, body)
        case "drop":
            _drop(history, row, body)
        case "block":
            if body["record"] in history.generations:
                history.wrong(row, "it blocks a record that is known")
            history.generations[body["record"]] = 0
        case "renew":
            if not history.renews:
                history.wrong(row, "the mode of this service has nothing to renew")
    return None, 0


def _check_clock(history: History, row: Row, body: Body) -> None:
    """A row has the epoch and the tick that the rows before it come to."""
    epoch, tick = history.epoch + (row.op == "retrain"), history.ticks[-1]
    if row.op in REPLACEMENTS:
        tick = history.ticks[-2]
    elif history.replacement is not None:
        tick = history.replacement.tick
    if (body["epoch"], body["tick"]) != (epoch, tick):
        history.wrong(row, "its clock is not that of the rows before it")


def _check_state(history: History, row: Row, body: Body, *, last: bool) -> None:
    """Of the rows that change a model together, the last one names its state."""
    if ("state" in body) is not last:
        history.wrong(row, "of rows that belong together, the last names its state")


def _count(value: object) -> int:
    """A whole number from 0 on, or a ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a count is none")
    return value


def _tick(history: History, row: Row, body: Body) -> int:
    """How many records the model has met after this row."""
    match row.op:
        case "insert":
            return history.ticks[-1] + 1
        case "retrain":  # the rows of new records follow
            return _count(body["records"]) - _count(body["new"])
        case "restore":
            return history.ticks[_count(body["to"])]
    return history.ticks[-1]


def _insert(history: History, row: Row, body: Body) -> None:
    pseudonym, generation = body["record"], body["generation"]
    before = history.generations.get(pseudonym)
    if generation != 1 - (before or 0) or before == 0 or generation < 1:
        history.wrong(row, "a record was learned that could not be")
    history.generations[pseudonym] = generation
    history.subjects[pseudonym] = body["subject"]
    history.live[body["subject"]] += 1
    history.learned.pop(pseudonym, None)  # It stands at the end, in order of rows.
    history.learned[pseudonym] = row.sequence
    if history.replacement is None:
        history.count_live(body["subject"])
        return
    history.replacement.inserts -= 1
    history.replacement.new.add(pseudonym)
    _replaced(history, row, body, history.replacement)


def _intend(history: History, row: Row, body: Body) -> None:
    records = {record: _count(number) for record, number in body["records"]}
    requests = {subject: _count(n) for subject, n in body["requests"].items()}
    used_by = {subject: _count(n) for subject, n in body["used_by"].items()}
    for subject, number in requests.items():
        history.requests[subject] += 1
        if number != history.requests[subject]:
            history.wrong(row, "a person's requests are miscounted")
    history.used += _count(body["used"])
    history.most_used = max(history.most_used, history.used)
    persons = Counter(history.subjects.get(record, "") for record in records)
    if set(requests) != set(persons) or len(records) != len(body["records"]):
        history.wrong(row, "it counts other persons than its records have")
    if body["operation"] in history.intents:
        history.wrong(row, "an operation of this name was before")
    history.intents[body["operation"]] = Intent(
        requests, dict(persons), body["used"], used_by, body.get("kind")
    )


def _note_outcome(history: History, row: Row, operation: str) -> None:
    if operation in history.intents:
        outcome = replace(history.intents[operation], outcome=row.op)
        history.intents[operation] = outcome


def _note_paid(history: History, row: Row, operation: str, paid: Body) -> None:
    """The entry of an operation, which is bound to the last of its rows."""
    history.paid[operation] = paid["entry"], paid["ledger"]
    history.ends[operation] = row.tip


def _abandon(history: History, body: Body, intent: Body) -> None:
    entry, ledger = body["entry"], body["ledger"]
    history.abandoned[body["operation"]] = entry, ledger
    if intent.get("kind") == PUBLICATION and entry is not None:
        history.publications[body["operation"]] = entry, ledger


def _delete(history: History, row: Row, body: Body, intent: Body) -> None:
    certificate, operation = body["certificate"], body["operation"]
    Certificate.from_content(certificate, row.tip)  # or a ValueError
    if [certificate["record"], certificate["generation"]] not in intent["records"]:
        history.wrong(row, "it deletes what its intent does not name")
    subject = certificate["subject"]
    together = sum(
        history.subjects.get(record) == subject for record, _ in intent["records"]
    )
    _check_fixed(
        history,
        row,
        certificate,
        operation=operation,
        epoch=history.epoch,
        tick=history.ticks[-1],
        subject=history.subjects.get(certificate["record"]),
        requests=intent["requests"].get(subject),
        records=together,
    )
    if certificate["theorem"] in REPLACEMENTS:
        history.wrong(row, "it names a new model, and there is none")
    _forgotten(history, row, certificate)
    _note_paid(history, row, operation, certificate)
    history.used_at[operation] = history.used
    shift = max(history.shifts.get(operation, 0.0), certificate["shift_bound"])
    history.shifts[operation] = shift


def _replace(history: History, row: Row, body: Body) -> None:
    """A new model: what its first row fixes about the rows that follow."""
    drops, new, lost = _count(body["drops"]), 0, None
    if row.op == "retrain":
        new = _count(body["new"])
        if body["records"] != history.live.total() - drops + new:
            history.wrong(row, "its records are not those that were live, and new ones")
        if body["before"] != history.epoch:
            history.wrong(row, "it ends another epoch than the one before it")
        history.used, history.epoch = 0, history.epoch + 1
    else:
        to = body["to"]
        if not history.forgotten <= to < row.sequence:
            history.wrong(row, "it goes back to before a deletion, or to no row")
        lost = _learned_after(history, to)
        if drops != len(lost):
            history.wrong(row, "it does not drop what was learned since")
    replacement = Replacement(
        row.op, body["operation"], history.ticks[-2], new, drops, lost
    )
    history.replacement = replacement
    _replaced(history, row, body, replacement)


def _learned_after(history: History, sequence: int) -> set[str]:
    """The live records that were learned after a row."""
    records = set()
    for record, at in reversed(history.learned.items()):
        if at <= sequence:
            break
        if history.generations[record] > 0:
            records.add(record)
    return records


def _replaced(history: History, row: Row, body: Body, replacement: Replacement) -> None:
    """One row of a new model; the entry is bound to the last."""
    _check_state(history, row, body, last=replacement.next is None)
    history.ends[replacement.operation] = row.tip
    history.forgotten = row.sequence
    if replacement.next is None:
        history.replacement = None
        history.count_live(*(history.subjects[record] for record in replacement.new))


def _drop(history: History, row: Row, body: Body) -> None:
    certificate, replacement = body["certificate"], history.replacement
    Certificate.from_content(certificate, row.tip)  # or a ValueError
    if replacement is None or certificate["theorem"] != replacement.kind:
        history.wrong(row, "it drops a record without a new model")
        _forgotten(history, row, certificate)
        return
    record, lost = certificate["record"], replacement.lost
    if record in replacement.new or (lost is not None and record not in lost):
        history.wrong(row, "it drops a record that the new model has")
    _check_fixed(
        history,
        row,
        certificate,
        operation="",
        ledger="",
        entry="",
        epoch=history.epoch,
        tick=replacement.tick,
        requests=history.requests.get(certificate["subject"], 0),
        records=1,
        shift_bound=0.0,
        sigma=0.0,
        epsilon=0.0,
        state_digest=None,
    )
    _forgotten(history, row, certificate)
    replacement.drops -= 1
    _replaced(history, row, body, replacement)


def _check_fixed(
    history: History, row: Row, certificate: Body, **fixed: object
) -> None:
    """A certificate says what rows before it fix: person, request, records, place."""
    for name, value in fixed.items():
        if certificate[name] != value:
            history.wrong(row, f"its {name} is not that of the journal")
    if not is_time(certificate["time"]):
        history.wrong(row, "its time is none that a service writes")


def _forgotten(history: History, row: Row, certificate: Body) -> None:
    pseudonym, generation = certificate["record"], certificate["generation"]
    if history.generations.get(pseudonym) != generation:
        history.wrong(row, "it deletes a record that is not live")
    history.generations[pseudonym] = -generation
    subject = history.subjects.get(pseudonym, "")
    if certificate["subject"] != subject:
        history.wrong(row, "its person is not the one whose record was learned")
    history.live[subject] -= 1
    history.certified[pseudonym, generation] = (row, certificate)
    history.forgotten = row.sequence
