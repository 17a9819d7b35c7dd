"""Opening a service: the first time, and after whatever ended the last process.

What a crash can leave, and what becomes of it (`deletion` has the order of events):

- inserts that were not acknowledged: gone, with the memory that held them;
- an intent without an outcome: abandoned in the journal, its charge kept in the ledger
  (if it came so far), its request put into the queue to be carried out anew;
- a committed deletion whose keys, snapshots and freed pages were not wiped yet, or
  whose entry was not committed: both are done now.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from demur.core.digest import digest_of_text
from demur.core.entropy import Source
from demur.core.errors import DemurError, LedgerUnreachable, OutcomeUnknown
from demur.unlearning.errors import ServiceDamaged, ServiceMismatch
from demur.unlearning.pricing.terms import Terms
from demur.unlearning.records import journal, queue, snapshot, store
from demur.unlearning.records.damage import readable
from demur.unlearning.records.journal import Body, Row
from demur.unlearning.records.pseudonyms import Marks, claim, owner
from demur.unlearning.service.charges import Till, entry_name, later_ledger
from demur.unlearning.service.intents import abandoned
from demur.unlearning.service.state import Keeper


def exists(place: store.ServiceStore) -> bool:
    """Whether there is a service at this address; creates nothing."""
    if place.path is not None and not place.path.exists():
        return False
    with place.read() as connection:
        if not sa.inspect(connection).has_table(store.service.name):
            return False
        return connection.execute(sa.select(store.service.c.id)).first() is not None


def create(
    place: store.ServiceStore, terms: Terms, folder: Path, source: Source
) -> None:
    """An empty service: its secret first, then everything else at once."""
    if owner(folder) is not None:
        raise ServiceMismatch(
            "this folder holds the secrets of another service: give each a folder of"
            " its own (keys=), or remove it with the service. Nothing was created."
        )
    marks = Marks.create(folder, source)
    text = terms.to_text()
    if place.path is not None:  # The state may be secret: owner-only, like the keys.
        place.path.touch(0o600)
    with place.write() as connection:
        store.metadata.create_all(connection, checkfirst=True)
        connection.execute(
            store.service.insert().values(
                id=1,
                schema_version=store.SCHEMA_VERSION,
                service_id=source.new_key()[:16].hex(),
                terms=text,
                secret=marks.own(),
                sequence=0,
                hash=digest_of_text(text),
                paid=0,
            )
        )
        connection.execute(
            store.state.insert().values(
                id=1,
                epoch=1,
                tick=0,
                sequence=0,
                body=snapshot.encode(terms.model().state()),
            )
        )


def kept_terms(place: store.ServiceStore) -> Terms:
    """The terms of the service that is there."""
    with place.read() as connection:
        row = connection.execute(sa.select(store.service)).one()
    if row.schema_version != store.SCHEMA_VERSION:
        raise ServiceMismatch(
            f"this service has schema {row.schema_version}; this version of demur"
            f" reads {store.SCHEMA_VERSION}. Open it, and verify its certificates, with"
            " the version that made it; to move to this one, insert its live records"
            " into a new service. Nothing was changed."
        )
    try:
        return Terms.from_text(row.terms)
    except ValueError as error:
        raise ServiceDamaged(f"the terms cannot be read: {error}") from error


def load(
    place: store.ServiceStore, terms: Terms, folder: Path, source: Source
) -> Keeper:
    """The service as it was when it was last durable."""
    marks = Marks.load(folder, testing=terms.testing)
    with place.read() as connection:
        known = connection.execute(sa.select(store.service)).one()
    if known.secret != marks.own():
        raise ServiceMismatch(
            "the secret beside the service belongs to another one: no record could be"
            " found again with it. Put the right one back."
        )
    with readable():
        claim(folder, known.service_id)
    return Keeper(place, terms, marks, folder, source)


def recover(keeper: Keeper, till: Till) -> None:
    """Finish, or close, what the last process left undone."""
    with readable(), keeper.place.read() as connection:
        intent = journal.open_intent(connection)
        paid = journal.last_of(connection, journal.PAID)
    if intent is not None:
        close_intent(keeper, till, intent)
    check_copies(keeper, till)
    if paid is not None:
        _commit_in_ledger(keeper, till, *paid)
    keeper.sweep()
    keeper.scrub()


def close_intent(keeper: Keeper, till: Till, intent: Body) -> None:
    """Abandon an intent: what it cost stays spent, and the request waits."""
    if keeper.place.path is None:  # A file's lock ends with its process alone.
        till.stop(intent["operation"])
    body = abandoned(keeper, till, intent["operation"])
    rows = journal.linked(keeper.tip, [body])
    with keeper.writing() as connection:
        journal.append(connection, rows)
        for mark, generation in intent["records"]:
            queue.put(
                connection, mark, generation, intent["deadline"], queue.INTERRUPTED
            )
    keeper.tip = rows[-1].tip


def check_copies(keeper: Keeper, till: Till) -> None:
    """Journal and ledger are of one age: neither was put back from an older copy.

    A journal from before a deletion would bring back what was deleted, and a ledger
    from before it would forget what was spent.
    """
    with readable(), keeper.place.read() as connection:
        known = journal.paid_entries(connection)
    recorded = till.recorded()
    if recorded - set(known):
        raise ServiceDamaged(
            f"the ledger knows {len(recorded - set(known))} deletions that this journal"
            " does not: the service was put back from an older copy, and what was"
            " deleted since is still deleted. Do not serve this copy."
        )
    composes = till.tariff.composition != "nothing"
    path = keeper.place.path
    if composes and till.own and path is not None and later_ledger(path, keeper.epoch):
        raise ServiceDamaged(
            "there is a ledger of an epoch that this journal has not reached: the"
            " service was put back from an older copy. Do not serve this copy."
        )
    here = {e for e, (ledger, _) in known.items() if ledger == till.ledger.id}
    # The service's own ledger of this epoch is the one that was charged all along.
    other = till.own and any(
        ledger != till.ledger.id and (epoch == keeper.epoch or not composes)
        for ledger, epoch in known.values()
    )
    if here - recorded or other:
        raise ServiceDamaged(
            "the ledger lacks deletions that this journal has: it was removed, or put"
            " back from an older copy. What was spent is still spent. Put the right"
            " ledger back, or name it (ledger=)."
        )


def _commit_in_ledger(keeper: Keeper, till: Till, row: Row, body: Body) -> None:
    """Bind the last operation's entry, if the process died just before that."""
    with readable():
        name = entry_name(keeper.id, body["operation"])
        # A retrain is charged to the ledger of the epoch that it ends.
        epoch = int(body.get("before", keeper.epoch))
    try:
        with till.ledger_of(keeper, epoch) as ledger:
            payment = ledger.resumed(name)
            if payment is not None:
                payment.commit(row.hash)
    except (LedgerUnreachable, OutcomeUnknown):
        raise
    except DemurError as error:
        raise ServiceDamaged(
            f"the ledger knows row {row.sequence} of the journal by another hash: the"
            " journal was rewritten, or one of the two comes from another copy"
        ) from error
