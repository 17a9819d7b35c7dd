"""Verification of a deletion service: its chain, deletions, tables and ledgers.

Nothing here trusts the process that wrote: everything is computed again from the rows.
What cannot be known from them is listed in the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.entry import deletion_key
from demur.core.errors import DemurError
from demur.durable import sqlite
from demur.durable.chain import Tip, canonical
from demur.ledger import Ledger
from demur.unlearning.errors import (
    CapacityExhausted,
    ServiceDamaged,
    ServiceMismatch,
)
from demur.unlearning.pricing.publications import PublicationPrices
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import queue, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.journal_rules import REPLACEMENTS, History, follow
from demur.unlearning.records.read_errors import UNREADABLE, readable
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher
from demur.unlearning.service.charges import (
    is_committed,
    newest_committed,
    recorded_entries,
)
from demur.unlearning.service.publication import publication_problems


@dataclass(frozen=True)
class ServiceVerification:
    """What was checked, what is wrong, and what could not be checked."""

    rows: int
    tip: Tip
    problems: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is known, and no problem

    @property
    def ok(self) -> bool:
        """No problem was found (see `unknown` for what was not checked)."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.rows} rows checked, tip {self.tip}"]
        lines += [f"PROBLEM: {p}" for p in self.problems] or ["no problem found"]
        lines += [f"note: {n}" for n in self.notes]
        lines += [f"not known: {u}" for u in self.unknown]
        return "\n".join(lines)


def read_history(connection: Connection) -> History:
    """Walk the journal from its genesis, check every row, and the tables against it."""
    row = connection.execute(sa.select(tables.service)).one()
    history = follow(connection, row)
    history.problems += file_problems(connection)
    try:
        with readable():
            _check_tables(connection, row, history)
    except ServiceDamaged as error:
        history.problems.append(f"the tables: {error}")
    return history


def _check_tables(connection: Connection, service: Any, history: History) -> None:
    """Compare the tables with the journal."""
    problems = history.problems
    generations, owners = {}, {}
    for row in connection.execute(sa.select(tables.records)):
        generations[row.pseudonym] = row.generation if row.live else -row.generation
        if row.generation:  # a blocked id has no owner
            owners[row.pseudonym] = row.subject
    if generations != history.generations or owners != history.subjects:
        problems.append("the table of records is not what the journal says")
    clock = connection.execute(
        sa.select(tables.state.c.epoch, tables.state.c.tick)
    ).one()
    if tuple(clock) != (history.epoch, history.ticks[-1]):
        problems.append("the clock of the state is not that of the journal")
    counted = {
        row.pseudonym: row.requests
        for row in connection.execute(sa.select(tables.subjects))
    }
    if counted != dict(history.requests):
        problems.append("the requests of some person are not those of the journal")
    if service.used != history.used:
        problems.append("what this epoch has used is not what the journal says")
    problems += stored_problems(connection, history)
    deleted = {p for p, generation in history.generations.items() if generation <= 0}
    stored_records = connection.execute(
        sa.select(tables.encrypted_records.c.pseudonym)
    ).scalars()
    if deleted & set(stored_records):
        problems.append("a deleted record is still in the encrypted store")
    if any(
        history.generations.get(each.record) != each.generation
        for each in queue.waiting(connection)
    ):
        problems.append("a request in the queue is for a record that is not live")


def file_problems(connection: Connection) -> list[str]:
    """Whether the file itself is whole: its indices have the rows of its tables.

    With others it could show a row to whoever looks for it, and to nobody who walks.
    """
    damage = sqlite.damage_in(connection)
    if damage is None:
        return []
    return [f"the file is damaged, or answers as its maker likes: {damage:.100}"]


def stored_problems(connection: Connection, history: History) -> list[str]:
    """Whether the stored certificates are those of the journal's deletions."""
    problems, stored = [], set()
    for row in connection.execute(sa.select(tables.certificates)):
        stored.add((row.pseudonym, row.generation))
        try:
            certificate = Certificate.from_json(row.body)
        except ValueError as error:
            problems.append(f"a stored certificate cannot be read: {error}")
            continue
        problems += certificate_problems(certificate, history)
    if stored != set(history.certified):
        problems.append("the certificates are not those of the journal's deletions")
    return problems


def certificate_problems(certificate: Certificate, history: History) -> list[str]:
    """What is wrong with a certificate, by the history of the journal."""
    if certificate.service != history.service:
        return ["the certificate belongs to another service"]
    deletion = history.certified.get((certificate.record, certificate.generation))
    if deletion is None:
        return ["the journal has no deletion of this record"]
    row, content = deletion
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
    if history.signer is None and certificate.signature is not None:
        return ["the certificate has a signature, and the service has no signer"]
    if history.signer is not None and not certificate.is_signed_by(history.signer):
        return ["the certificate is not signed by the signer of the service"]
    return []


@dataclass(frozen=True)
class LedgersBefore:
    """Ledgers, and the operations in them from before the journal was read.

    A service writes its intent, charges, and writes the outcome. So what was charged
    before the journal was read is in it, as done, abandoned or under way; what is
    charged later need not be.
    """

    held: tuple[Ledger, ...]
    entries: frozenset[str]
    # The newest of each ledger, where an outcome was bound: that row was durable then.
    made: frozenset[str] = frozenset()

    @classmethod
    def the_journal(cls, ledgers: Sequence[Ledger], service: str) -> LedgersBefore:
        """The ledgers as they are now; the journal is read after this."""
        made = (newest_committed(each, service) for each in ledgers)
        made_ids = frozenset(entry.id for entry in made if entry is not None)
        entries = (e for each in ledgers for e in recorded_entries(each, service))
        return cls(tuple(ledgers), frozenset(entries), made_ids)

    @property
    def by_id(self) -> dict[str, Ledger]:
        """The ledgers by their ids."""
        return {ledger.id: ledger for ledger in self.held}


def payment_problems(
    history: History, before: LedgersBefore, publications: PublicationPrices | None
) -> tuple[list[str], list[str]]:
    """What is wrong with the ledgers, published copies included; what is not known."""
    wrong, unknown = _ledger_problems(history, before)
    if publications is not None:  # what `epsilon_in_all` rests on
        more, not_known = publication_problems(publications, history, before.by_id)
        wrong, unknown = wrong + more, unknown + not_known
    return wrong, unknown


def _ledger_problems(
    history: History, before: LedgersBefore
) -> tuple[list[str], list[str]]:
    """What is wrong with the ledgers of the epochs; and what cannot be checked."""
    ledgers, by_id = before.held, before.by_id
    problems = [
        f"the ledger: {p}" for ledger in ledgers for p in ledger.verify().problems
    ]
    elsewhere = 0
    used: Counter[str] = Counter()
    for operation, (entry_id, ledger_id) in history.paid.items():
        used[entry_id] += 1
        name = deletion_key(history.service, operation)
        if ledger_id not in by_id:
            elsewhere += 1
            if any(ledger.find(name) for ledger in ledgers):
                problems.append(
                    f"the operation {operation[:8]} names another ledger than the one"
                    " that has its entry"
                )
            continue
        entry = by_id[ledger_id].find(name)
        if entry is None or entry.id != entry_id:
            problems.append(f"the operation {operation[:8]} is not in the ledger")
            continue
        commit, end = by_id[ledger_id].commit_of(entry), history.ends[operation]
        if commit is not None and commit.artefact != end.hash:
            problems.append(
                f"the ledger has another hash for row {end.sequence}: the journal was"
                " rewritten, or one of the two comes from another copy"
            )
    if any(count > 1 for count in used.values()):
        problems.append("one entry of the ledger paid for two operations")
    for operation, (abandoned_entry, ledger_id) in history.abandoned.items():
        name = deletion_key(history.service, operation)
        charged = any(ledger.find(name) for ledger in ledgers)
        if abandoned_entry is not None and not charged:
            if ledger_id not in by_id:
                elsewhere += 1
                continue
            problems.append(
                f"what the operation {operation[:8]} had spent is not in the ledger"
            )
        if operation in history.paid:
            problems.append(f"the operation {operation[:8]} was abandoned and made")
        if any(is_committed(each, history.service, operation) for each in ledgers):
            problems.append(_undone(operation))
    named = {e for e, _ in (*history.paid.values(), *history.abandoned.values())}
    if history.open_intent is not None:
        under_way = deletion_key(history.service, history.open_intent)
        charged_now = {e.id for e in (each.find(under_way) for each in ledgers) if e}
        if charged_now & before.made:
            problems.append(_undone(history.open_intent))
        named |= charged_now
    if more := len(before.entries - named):
        problems.append(
            f"the ledger has {more} operations that the journal lacks: rows were cut"
            " off, or one of the two comes from another copy"
        )
    unknown = []
    if elsewhere:
        unknown.append(f"whether {elsewhere} operations are in ledgers not given here")
    return problems, unknown


def _undone(operation: str) -> str:
    return (
        f"the ledger has the outcome of the operation {operation[:8]}, which the"
        " journal calls abandoned or under way: rows were cut off or rewritten, or one"
        " of the two comes from another copy"
    )


def capacity_problems(history: History, prices: DeletionPrices) -> list[str]:
    """Whether each intent takes of the capacity what its requests come to, at least.

    The same price as when it was planned (`deletion`), from the counts in its row.
    """
    problems = []
    priced: dict[tuple[int, int], int] = {}

    def used(request: int, records: int) -> int:
        if (request, records) not in priced:
            priced[request, records] = prices.price(request, records).used
        return priced[request, records]

    for operation, intent in history.intents.items():
        together = sum(intent.records.values())
        by: dict[str, int] = {}
        try:
            if intent.kind is not None and prices.publications is None:
                raise ValueError("nothing is published here")
            if intent.kind is not None or intent.outcome in REPLACEMENTS:
                allowed = {0}
            elif not together:  # A new copy or, while it is open, a new model.
                allowed = {used(1, 1)}
                if intent.outcome != "publish":
                    allowed.add(0)
            elif prices.per_person:
                numbers = intent.requests
                by = {s: used(numbers[s], k) for s, k in intent.records.items()}
                allowed = {max(by.values())}
            else:
                by, allowed = dict(intent.records), {used(1, together)}
        except (LookupError, ValueError, CapacityExhausted):
            problems.append(f"the operation {operation[:8]} is none that has a price")
            continue
        if intent.used not in allowed or intent.used_by != by:
            problems.append(
                f"the operation {operation[:8]} takes another part of the capacity than"
                " its requests come to"
            )
    if prices.capacity is not None and history.most_used > prices.capacity:
        problems.append("the deletions of an epoch exceed the capacity of the service")
    return problems


def state_problems(
    connection: Connection,
    terms: ServiceTerms,
    history: History,
    seals: Seals | None,
    cipher: StateCipher,
) -> tuple[list[str], list[str]]:
    """Whether the stored state is the one that the journal names; what is not known.

    By its seal, where the key can be read; otherwise by the digest of the last
    certificate, if that may be published and nothing was learned since.
    """
    try:
        row = connection.execute(sa.select(tables.state)).one()
        model = terms.model()
        model.restore(cipher.decode(row.body))
        digest = model.digest()
    except ServiceMismatch:
        return [], [
            "whether the state on disk is the one that the journal names: it is"
            " encrypted under the owner's key"
        ]
    except (DemurError, sa.exc.NoResultFound, *UNREADABLE) as error:
        return [f"the state on disk cannot be read ({error!r:.80})"], []
    wrong = "the state on disk is not the one that the journal names"
    if history.state is None:
        return ([] if digest == terms.model().digest() else [wrong]), []
    seal = None if seals is None else seals.seal(digest, history.seal)
    if seal is not None:
        return ([] if seal == history.state else [wrong]), []
    if history.digest is not None:
        return ([] if digest == history.digest else [wrong]), []
    return [], [
        "whether the state on disk is the one that the journal names: the key of its"
        " seal cannot be read here"
    ]


def verify_service(
    database: tables.ServiceStore,
    terms: ServiceTerms,
    ledgers: Sequence[Ledger],
    seals: Seals | None,
    cipher: StateCipher,
) -> ServiceVerification:
    """Check a whole service against itself and its ledgers.

    The journal is read before the ledgers: a running service charges first, so that a
    ledger which is read later has all that the journal has. (`LedgersBefore` is for the
    other direction.)
    """
    with database.read() as connection:
        before = LedgersBefore.the_journal(ledgers, tables.service_id(connection))
    with database.read() as connection:
        history = read_history(connection)
        problems, unknown = state_problems(connection, terms, history, seals, cipher)
    prices = DeletionPrices(terms)
    wrong, elsewhere = payment_problems(history, before, prices.publications)
    wrong += capacity_problems(history, prices)
    unknown = [*elsewhere, *unknown]
    unknown.append(
        "whether rows were cut off the end, or the whole journal rewritten: keep its"
        " tip, or any certificate, elsewhere"
    )
    return ServiceVerification(
        history.tip.sequence,
        history.tip,
        tuple(history.problems + wrong + problems),
        tuple(unknown),
    )
