"""Creating a deletion service, and recovering it after a crash.

What a crash can leave, and what becomes of it (`deletion` has the order of events):

- inserts that were not acknowledged: gone, with the memory that held them;
- an intent without an outcome: abandoned in the journal, its charge kept in the ledger
  (if it was made), its request put into the queue to be carried out anew;
- a committed deletion whose keys, snapshots and freed pages were not erased yet, or
  whose entry was not committed: both are done now.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.entropy import OsEntropy, Source
from demur.core.entry import deletion_key
from demur.core.errors import (
    DemurError,
    LedgerRefused,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.durable import sqlite
from demur.ledger import Tip
from demur.unlearning.errors import ServiceDamaged, ServiceMismatch
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import journal, queue, snapshot, tables
from demur.unlearning.records.journal import Body, Row
from demur.unlearning.records.memory_key import SALT_BYTES, MemoryKey, memory_secret
from demur.unlearning.records.pseudonyms import Pseudonyms, claim, owner
from demur.unlearning.records.read_errors import readable
from demur.unlearning.records.seals import Seals
from demur.unlearning.service.charges import (
    DeletionCharges,
    is_committed,
    later_ledger,
    ledgers_beside,
)
from demur.unlearning.service.intents import abandoned
from demur.unlearning.service.state import ServiceState


def check_empty(database: tables.ServiceStore, folder: Path, *, shared: bool) -> None:
    """Refuse a place where another service has left its ledger or its secrets."""
    path = database.path
    if not shared and path is not None and ledgers_beside(path):
        raise ServiceMismatch(
            "the ledger of another service lies here: remove it with that service,"
            " or choose another path. Nothing was created."
        )
    if owner(folder) is not None:
        raise ServiceMismatch(
            "this folder holds the secrets of another service: give each a folder of"
            " its own (keys=), or remove it with the service. Nothing was created."
        )


def new_id(source: Source) -> str:
    """An id that no other service has."""
    return source.new_key()[:16].hex()


def create(
    database: tables.ServiceStore,
    terms: ServiceTerms,
    folder: Path,
    source: Source,
    service_id: str | None = None,
    memory_key: MemoryKey | None = None,
) -> None:
    """An empty service: its secrets first, then everything else at once."""
    pseudonyms = Pseudonyms.create(folder, source)
    Seals.create(folder, source)
    salt = source.new_key()[:SALT_BYTES]
    if memory_key is not None:
        folders = own_folders(database, folder)
        memory = memory_secret(memory_key, salt, folders=folders, create=True)
        pseudonyms = pseudonyms.remembering(memory)
    text, service_id = terms.to_text(), service_id or new_id(source)

    def fill(connection: Connection) -> None:
        connection.execute(
            tables.service.insert().values(
                id=1,
                schema_version=tables.SCHEMA_VERSION,
                service_id=service_id,
                terms=text,
                secret=pseudonyms.own(),
                memory_salt=salt.hex() if pseudonyms.remembers else None,
                memory_proof=pseudonyms.own_memory() if pseudonyms.remembers else None,
                sequence=0,
                hash=journal.genesis(service_id, text),
                used=0,
            )
        )
        connection.execute(
            tables.state.insert().values(
                id=1,
                epoch=1,
                tick=0,
                sequence=0,
                body=snapshot.encode(terms.model().state()),
            )
        )

    database.make_service(fill)


def stored_terms(database: tables.ServiceStore) -> ServiceTerms:
    """The terms of the service that is there."""
    with database.read() as connection:
        row = connection.execute(sa.select(tables.service)).one()
    if row.schema_version != tables.SCHEMA_VERSION:
        raise ServiceMismatch(
            f"this service has schema {row.schema_version}; this version of demur"
            f" reads {tables.SCHEMA_VERSION}. Open it, and verify its certificates,"
            " with the version that made it; to move to this one, insert its live"
            " records into a new service. Nothing was changed."
        )
    try:
        return ServiceTerms.from_text(row.terms)
    except ValueError as error:
        raise ServiceDamaged(f"the terms cannot be read: {error}") from error


def load(
    database: tables.ServiceStore,
    terms: ServiceTerms,
    folder: Path,
    source: Source,
    memory_key: MemoryKey | None = None,
) -> ServiceState:
    """The service as it was when it was last durable."""
    pseudonyms = Pseudonyms.load(folder, testing=terms.testing)
    service_id = _check_secret(database, pseudonyms)
    pseudonyms = _with_memory(database, folder, pseudonyms, memory_key)
    with readable():
        claim(folder, service_id)
    return ServiceState(database, terms, pseudonyms, folder, source)


def load_to_read(
    database: tables.ServiceStore,
    terms: ServiceTerms,
    folder: Path | None,
    memory_key: MemoryKey | None = None,
) -> ServiceState:
    """The service as it is on disk, for a reader: nothing is written or claimed.

    The secret is for the owner alone. Without a `folder` that has it, what needs it is
    refused, and the rest can be read.
    """
    pseudonyms = None
    if folder is not None:
        pseudonyms = Pseudonyms.peek(folder, testing=terms.testing)
        _check_secret(database, pseudonyms)
        if terms.remembers and memory_key is None:
            pseudonyms = None  # Ids are named under a key that is not here.
        else:
            pseudonyms = _with_memory(database, folder, pseudonyms, memory_key)
    place = folder or database.keys_folder or Path()
    return ServiceState(database, terms, pseudonyms, place, OsEntropy())


def own_folders(database: tables.ServiceStore, folder: Path) -> list[Path]:
    """Where a service keeps its files: no key of its memory may lie there."""
    path = database.path
    return [folder] if path is None else [folder, path.parent]


def _with_memory(
    database: tables.ServiceStore,
    folder: Path,
    pseudonyms: Pseudonyms,
    memory_key: MemoryKey | None,
) -> Pseudonyms:
    """The names of ids, under the key of the service's memory if it has one."""
    with database.read() as connection:
        row = connection.execute(sa.select(tables.service)).one()
    if row.memory_salt is None:
        return pseudonyms
    assert memory_key is not None, "compared with the terms before"
    memory = memory_secret(
        memory_key,
        bytes.fromhex(row.memory_salt),
        folders=own_folders(database, folder),
        create=False,
    )
    pseudonyms = pseudonyms.remembering(memory)
    if pseudonyms.own_memory() != row.memory_proof:
        raise ServiceMismatch(
            "this key (memory_key=) is not the one that this service was opened with:"
            " no id could be found again with it. Nothing was changed."
        )
    return pseudonyms


def _check_secret(database: tables.ServiceStore, pseudonyms: Pseudonyms) -> str:
    """Refuse the secret of another service; the id of this one."""
    with database.read() as connection:
        row = connection.execute(sa.select(tables.service)).one()
    if row.secret != pseudonyms.own():
        raise ServiceMismatch(
            "the secret beside the service belongs to another one: no record could be"
            " found again with it. Put the right one back."
        )
    return str(row.service_id)


def recover(state: ServiceState, charges: DeletionCharges) -> None:
    """Finish, or close, what the last process left undone."""
    with readable(), state.database.read() as connection:
        intent = journal.open_intent(connection)
        paid = journal.last_of(connection, journal.PAID)
    if intent is not None:
        _check_outcome(state, charges, intent, state.epoch)
        close_intent(state, charges, intent)
    check_copies(state, charges)
    if paid is not None:
        _commit_in_ledger(state, charges, *paid)
    state.remove_leftovers()
    state.scrub()


def check_tip(state: ServiceState, tip: Tip | None) -> None:
    """Refuse a journal that does not contain a row which it once had."""
    if tip is None:
        return
    with readable(), state.database.read() as connection:
        begins = journal.genesis(state.id, state.terms.to_text())
        here = journal.contains(connection, tip, begins)
        # An index that was forged could have the row, and the table not.
        here = here and sqlite.damage_in(connection) is None
    if not here:
        raise ServiceDamaged(
            f"the journal does not contain row {tip.sequence} of this tip: the service"
            " was put back from an older copy, or is another one, and what was deleted"
            " since is still deleted. Do not serve this copy."
        )


def close_intent(state: ServiceState, charges: DeletionCharges, intent: Body) -> None:
    """Abandon an intent: what it cost stays spent, and the request waits."""
    if state.database.path is None:  # A file's lock ends with its process alone.
        charges.block_charge(intent["operation"])
    body = abandoned(state, charges, intent["operation"])
    rows = journal.linked(state.tip, [body])
    with state.writing() as connection:
        journal.append(connection, rows)
        for pseudonym, generation in intent["records"]:
            queue.put(
                connection,
                pseudonym,
                generation,
                intent["deadline"],
                queue.INTERRUPTED,
                intent.get("limits"),
            )
    state.tip = rows[-1].tip


def check_copies(state: ServiceState, charges: DeletionCharges) -> None:
    """Refuse a journal or a ledger that was put back from an older copy.

    A journal from before a deletion would bring back what was deleted, and a ledger
    from before it would lack what was spent.
    """
    with readable(), state.database.read() as connection:
        entries = journal.paid_entries(connection)
        given_up = list(journal.abandoned(connection))
    for body in given_up:
        _check_outcome(state, charges, body, body["epoch"])
    recorded = charges.recorded()
    if recorded - set(entries):
        raise ServiceDamaged(
            f"the ledger has {len(recorded - set(entries))} deletions that this journal"
            " lacks: the service was put back from an older copy, and what was"
            " deleted since is still deleted. Do not serve this copy."
        )
    composes = not charges.prices.per_person
    path = state.database.path if composes and charges.own else None
    if path is not None and later_ledger(path, state.epoch):
        raise ServiceDamaged(
            "there is a ledger of an epoch that this journal has not reached: the"
            " service was put back from an older copy. Do not serve this copy."
        )
    here = {e for e, (ledger, _) in entries.items() if ledger == charges.ledger.id}
    # The service's own ledger of this epoch is the one that was charged all along.
    other = charges.own and any(
        ledger != charges.ledger.id and (epoch == state.epoch or not composes)
        for ledger, epoch in entries.values()
    )
    if here - recorded or other:
        raise ServiceDamaged(
            "the ledger lacks deletions that this journal has: it was removed, or put"
            " back from an older copy. What was spent is still spent. Put the right"
            " ledger back, or name it (ledger=)."
        )


def _check_outcome(
    state: ServiceState, charges: DeletionCharges, body: Body, epoch: int
) -> None:
    """Refuse an operation that has no outcome in the journal, and one in the ledger.

    A row that was forged may name another epoch than the one that was charged.
    """
    with readable(), charges.ledger_of(state, int(epoch)) as named:
        ledgers, operation = (named, charges.ledger), body["operation"]
        made = any(is_committed(each, state.id, operation) for each in ledgers)
    if made:
        raise ServiceDamaged(
            f"the ledger has the outcome of the operation {body['operation']:.8}, which"
            " this journal calls abandoned or under way: the service was put back from"
            " an older copy, and what was deleted since is still deleted. Do not serve"
            " this copy."
        )


def _commit_in_ledger(
    state: ServiceState, charges: DeletionCharges, row: Row, body: Body
) -> None:
    """Bind the last operation's entry, if the process died just before that."""
    with readable():
        name = deletion_key(state.id, body["operation"])
        # A retrain is charged to the ledger of the epoch that it ends.
        epoch = int(body.get("before", state.epoch))
        # A new model's entry is bound to the last of its rows.
        following = int(body.get("new", 0)) + int(body.get("drops", 0))
        with state.database.read() as connection:
            row, _ = journal.row_at(connection, row.sequence + following)
    try:
        with charges.ledger_of(state, epoch) as ledger:
            payment = ledger.resumed(name)
            if payment is not None:
                payment.commit(row.hash)
    except (LedgerRefused, LedgerUnreachable, OutcomeUnknown):
        raise
    except DemurError as error:
        raise ServiceDamaged(
            f"the ledger has another hash for row {row.sequence} of the journal: the"
            " journal was rewritten, or one of the two comes from another copy"
        ) from error
