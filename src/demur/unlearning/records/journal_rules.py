"""Rules of the journal: which row may follow which, and what all rows say together.

Nothing here trusts the process that wrote: each row is checked against those before it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from demur.core.digest import digest_of_text
from demur.durable import chain
from demur.durable.chain import Tip
from demur.unlearning.errors import ServiceDamaged
from demur.unlearning.records import journal
from demur.unlearning.records.journal import OPERATIONS, PUBLICATION, Body, Row
from demur.unlearning.records.read_errors import UNREADABLE

_MOST_PROBLEMS = 50
REPLACEMENTS = ("retrain", "restore")  # theorems of records that a new model lacks


@dataclass
class History:
    """What the rows of a journal say together."""

    service: str
    tip: Tip
    signer: str | None = None  # of certificates
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
    ticks: list[int] = field(default_factory=lambda: [0])  # after each row
    epoch: int = 1
    drops: tuple[str, int] = ("", 0)  # still to come, and by what
    state: str | None = None  # the seal of the last state that a row names
    seal: int = 1  # the number of its key
    digest: str | None = None  # of that state, where it may be published

    def count_live(self, *subjects: str) -> None:
        """Note the most live records of one person; not in the middle of a retrain.

        There, new records stand before those that the new model lacks.
        """
        if not self.drops[1]:
            self.most_live = max(self.most_live, *(self.live[s] for s in subjects))

    def wrong(self, row: Row, what: str) -> None:
        """Note a problem."""
        self.problems.append(f"row {row.sequence}: {what}")


def follow(connection: Connection, header: Any) -> History:
    """Walk the journal from its genesis and check every row.

    `header` is the row of the service, or of an evidence file, with its terms.
    """
    previous = Tip(0, digest_of_text(header.terms))
    signer = json.loads(header.terms).get("signer")
    history = History(header.service_id, previous, signer)
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
            previous = row.tip
            try:
                intent, carried = _apply(history, row, body, intent, carried)
            except UNREADABLE as error:
                history.wrong(row, f"its text cannot be read ({error!r:.80})")
    except ServiceDamaged as error:
        history.problems.append(str(error))
    history.tip = previous
    history.open_intent = None if intent is None else intent.get("operation")
    if (header.sequence, header.hash) != (previous.sequence, previous.hash):
        history.problems.append(
            f"the service says it ends at row {header.sequence}; the journal ends at"
            f" row {previous.sequence}"
        )
    if history.drops[1] > 0:
        history.problems.append(
            f"records that a {history.drops[0]} dropped are missing"
        )
    return history


def _apply(
    history: History, row: Row, body: Body, intent: Body | None, carried: int
) -> tuple[Body | None, int]:
    """One row; the intent that is open after it, and how much of it is done."""
    if "state" in body:
        history.state, history.seal = body["state"], int(body["seal"])
        history.digest = body.get("certificate", {}).get("state_digest")
    op, known = row.op, history.generations
    history.ticks.append(_tick(history, row, body))
    if intent is not None and body.get("operation") != intent["operation"]:
        history.wrong(row, "the intent before it has no outcome")
        intent = None
    match op:
        case "insert":
            pseudonym, generation = body["record"], body["generation"]
            if (
                generation != 1 - known.get(pseudonym, 0)
                or known.get(pseudonym, -1) == 0
            ):
                history.wrong(row, "a record was learned that could not be")
            known[pseudonym] = generation
            history.subjects[pseudonym] = body["subject"]
            history.live[body["subject"]] += 1
            history.count_live(body["subject"])
        case "intent":
            for subject, number in body["requests"].items():
                history.requests[subject] += 1
                if number != history.requests[subject]:
                    history.wrong(row, "a person's requests are miscounted")
            history.used += body["used"]
            named = {history.subjects.get(record) for record, _ in body["records"]}
            if set(body["requests"]) != named:
                history.wrong(row, "it counts other persons than its records have")
            return body, 0
        case "delete" | "publish" | "retrain" | "restore" | "abandon":
            if intent is None or body["operation"] != intent["operation"]:
                history.wrong(row, f"a {op} without its intent")
                return None, 0
            if op == "abandon":
                entry, ledger = body["entry"], body["ledger"]
                history.abandoned[body["operation"]] = entry, ledger
                if intent.get("kind") == PUBLICATION and entry is not None:
                    history.publications[body["operation"]] = entry, ledger
                return None, 0
            if body["run"] != intent["run"]:
                # The key died with the process of the intent: this noise was redrawn.
                history.wrong(row, "its noise was drawn by another process")
            if op != "delete":
                history.paid[body["operation"]] = (body["entry"], body["ledger"])
                history.ends[body["operation"]] = row.tip
                history.drops = (op, body.get("drops", 0))
                if op == "publish":
                    paid = history.paid[body["operation"]]
                    history.publications[body["operation"]] = paid
                if op == "retrain":
                    history.used, history.epoch = 0, history.epoch + 1
                return None, 0
            certificate = body["certificate"]
            pseudonym, generation = certificate["record"], certificate["generation"]
            if [pseudonym, generation] not in intent["records"]:
                history.wrong(row, "it deletes what its intent does not name")
            _check_deletion(history, row, body, intent)
            _forgotten(history, row, certificate)
            history.paid[body["operation"]] = (
                certificate["entry"],
                certificate["ledger"],
            )
            history.ends[body["operation"]] = row.tip
            history.used_at[body["operation"]] = history.used
            carried += 1
            return (None, 0) if carried == len(intent["records"]) else (intent, carried)
        case "drop":
            why, left = history.drops
            if body["certificate"]["theorem"] != why or left < 1:
                history.wrong(row, "it drops a record without a new model")
            history.drops = (why, left - 1)
            _forgotten(history, row, body["certificate"])
            if left == 1:  # Once for all of them: persons times drops would be many.
                history.count_live(*history.live)
        case "block":
            if body["record"] in known:
                history.wrong(row, "it blocks a record that is known")
            known[body["record"]] = 0
    return None, 0


def _tick(history: History, row: Row, body: Body) -> int:
    """How many records the model has met after this row."""
    match row.op:
        case "insert":
            return history.ticks[-1] + 1
        case "retrain":  # the rows of new records follow
            return int(body["records"]) - int(body["new"])
        case "restore":
            return history.ticks[body["to"]]
    return history.ticks[-1]


def _check_deletion(history: History, row: Row, body: Body, intent: Body) -> None:
    """A certificate says what rows before it fix: person, request, records, place."""
    certificate, subjects = body["certificate"], history.subjects
    subject = certificate["subject"]
    together = sum(subjects.get(p) == subject for p, _ in intent["records"])
    fixed = {
        "operation": body["operation"],
        "epoch": history.epoch,
        "tick": history.ticks[-1],
        "subject": subjects.get(certificate["record"]),
        "requests": intent["requests"].get(subject),
        "records": together,
    }
    for name, value in fixed.items():
        if certificate[name] != value:
            history.wrong(row, f"its {name} is not that of the journal")
    if certificate["theorem"] in REPLACEMENTS:
        history.wrong(row, "it names a new model, and there is none")


def _forgotten(history: History, row: Row, certificate: dict[str, Any]) -> None:
    pseudonym, generation = certificate["record"], certificate["generation"]
    if history.generations.get(pseudonym) != generation:
        history.wrong(row, "it deletes a record that is not live")
    history.generations[pseudonym] = -generation
    subject = history.subjects.get(pseudonym, "")
    if certificate["subject"] != subject:
        history.wrong(row, "its person is not the one whose record was learned")
    history.live[subject] -= 1
    history.certified[pseudonym, generation] = (row, certificate)
