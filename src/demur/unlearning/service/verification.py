"""Checking a service from outside: its chain, its deletions, its tables and its ledger.

Nothing here trusts the process that wrote: everything is computed again from the rows.
What the check cannot know without more is part of its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.errors import DemurError
from demur.durable.chain import Tip, canonical
from demur.ledger import Ledger
from demur.unlearning.errors import ServiceDamaged
from demur.unlearning.records import store
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.damage import readable
from demur.unlearning.records.journal_rules import History, follow
from demur.unlearning.service.charges import entry_name


@dataclass(frozen=True)
class Finding:
    """Whether everything agrees: what was checked, found wrong, and left open."""

    rows: int
    tip: Tip
    problems: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No problem was found (see `unknown` for what could not be)."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.rows} rows checked, tip {self.tip}"]
        lines += [f"PROBLEM: {p}" for p in self.problems] or ["no problem found"]
        lines += [f"not known: {u}" for u in self.unknown]
        return "\n".join(lines)


def read_history(connection: Connection) -> History:
    """Walk the journal from its genesis, check every row, and the tables against it."""
    history = follow(connection)
    kept, previous = connection.execute(sa.select(store.service)).one(), history.tip
    if (kept.sequence, kept.hash) != (previous.sequence, previous.hash):
        history.problems.append(
            f"the service says it ends at row {kept.sequence}; the journal ends at row"
            f" {previous.sequence}"
        )
    try:
        with readable():
            _check_tables(connection, kept, history)
    except ServiceDamaged as error:
        history.problems.append(f"the tables: {error}")
    return history


def _check_tables(connection: Connection, kept: Any, history: History) -> None:
    """The tables say what the journal says."""
    problems = history.problems
    said, owners = {}, {}
    for row in connection.execute(sa.select(store.records)):
        said[row.mark] = row.generation if row.live else -row.generation
        if row.generation:  # a buried one is nobody's
            owners[row.mark] = row.subject
    if said != history.generations or owners != history.subjects:
        problems.append("the table of records is not what the journal says")
    state = connection.execute(sa.select(store.state.c.epoch, store.state.c.tick)).one()
    if tuple(state) != (history.epoch, history.ticks[-1]):
        problems.append("the clock of the state is not that of the journal")
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
    if certificate.tip != row.tip:
        return [
            f"the certificate names row {certificate.tip}, but the deletion is row"
            f" {row.tip}: the journal or the certificate was changed"
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


def ledger_problems(
    history: History, ledgers: Sequence[Ledger]
) -> tuple[list[str], list[str]]:
    """What the ledgers of the epochs lack; and what they cannot tell."""
    problems = [
        f"the ledger: {p}" for ledger in ledgers for p in ledger.verify().problems
    ]
    known = {ledger.id: ledger for ledger in ledgers}
    elsewhere = 0
    used: Counter[str] = Counter()
    for operation, (entry_id, ledger_id) in history.paid.items():
        used[entry_id] += 1
        if ledger_id not in known:
            elsewhere += 1
            continue
        found = known[ledger_id].find(entry_name(history.service, operation))
        if found is None or found.id != entry_id:
            problems.append(f"the operation {operation[:8]} is not in the ledger")
    if any(count > 1 for count in used.values()):
        problems.append("one entry of the ledger paid for two operations")
    for operation, kept in history.abandoned.items():
        name = entry_name(history.service, operation)
        if kept is not None and not any(ledger.find(name) for ledger in ledgers):
            problems.append(
                f"what the operation {operation[:8]} had spent is not in the ledger"
            )
        if operation in history.paid:
            problems.append(f"the operation {operation[:8]} was abandoned and made")
    unknown = []
    if elsewhere:
        unknown.append(f"whether {elsewhere} operations are in ledgers not given here")
    return problems, unknown


def verify_service(
    place: store.ServiceStore,
    ledgers: Sequence[Ledger],
    sealed: Callable[[bytes], str],
) -> Finding:
    """Check a whole service against itself and its ledgers; `sealed` has the secret."""
    with place.read() as connection:
        history = read_history(connection)
        body = connection.execute(sa.select(store.state.c.body)).scalar_one()
    problems, unknown = ledger_problems(history, ledgers)
    try:
        known = history.state is None or sealed(body) == history.state
    except (DemurError, ValueError, KeyError):
        known = False
    if not known:
        problems.append("the state on disk is not the one that the journal names")
    unknown.append(
        "whether rows were cut off the end, or the whole journal rewritten: keep its"
        " tip, or any certificate, elsewhere"
    )
    return Finding(
        history.tip.sequence,
        history.tip,
        tuple(history.problems + problems),
        tuple(unknown),
    )
