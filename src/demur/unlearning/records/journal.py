"""The journal of a deletion service: every event in order, in a hash chain.

Row k carries hash_k = SHA-256(hash_(k-1) || body_k); the genesis is the hash of the
service's id and terms (`durable.chain`). A body holds pseudonyms, never ids or
features. The kinds of rows, by `op`:

    insert    a record was learned
    intent    an operation is about to be paid for; `operation` names it in the ledger
    delete    a deletion took effect; the row *is* the certificate's content
    abandon   the intent before it died with its process; what it cost stays spent
    publish   the published copy was renewed (modes that publish an output)
    block     an unknown id was asked for and is refused from now on
    retrain   a new epoch began from a given set of records
    restore   the state went back to a snapshot
    renew     the model was brought to its minimum again, by the live records
    drop      a record is no longer in the model, after a retrain or a restore
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.digest import digest_of_text
from demur.durable import chain
from demur.durable.chain import Tip, canonical
from demur.unlearning.errors import ServiceDamaged
from demur.unlearning.records import tables

Body: TypeAlias = dict[str, Any]

PUBLICATION: Final = "publication"  # the kind of an intent to publish a copy
# The outcomes of operations that were paid for (`operation`).
PAID = ("delete", "publish", "retrain", "restore")
_MOST_OLDER = 1000
_FORGETFUL = ("delete", "drop", "retrain", "restore")

_INSERT = tables.journal.insert()
_MOVE_TIP = tables.service.update().values(
    sequence=sa.bindparam("new_sequence"), hash=sa.bindparam("new_hash")
)


@dataclass(frozen=True)
class Row:
    """One link of the chain, ready to be written."""

    sequence: int
    op: str
    body: str
    hash: str

    @property
    def tip(self) -> Tip:
        """The tip of a journal that ends here."""
        return Tip(self.sequence, self.hash)


def linked(tip: Tip, bodies: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows that follow `tip` and hold `bodies`."""
    rows = []
    sequence, last = tip.sequence, tip.hash
    for body in bodies:
        text = canonical(body)
        sequence, last = sequence + 1, chain.link(last, text)
        rows.append(Row(sequence, body["op"], text, last))
    return rows


def append(connection: Connection, rows: Sequence[Row]) -> None:
    """Write linked rows and move the tip to the last one."""
    if not rows:
        return
    connection.execute(
        _INSERT,
        [
            {"sequence": r.sequence, "op": r.op, "body": r.body, "hash": r.hash}
            for r in rows
        ],
    )
    last = rows[-1]
    connection.execute(
        _MOVE_TIP, {"new_sequence": last.sequence, "new_hash": last.hash}
    )


def tip(connection: Connection) -> Tip:
    """The tip as the service's own row has it."""
    columns = tables.service.c
    row = connection.execute(sa.select(columns.sequence, columns.hash)).one()
    return Tip(int(row.sequence), str(row.hash))


def genesis(service_id: str, terms: str) -> str:
    """The hash that the first row follows: of the service and its terms."""
    return digest_of_text(f"{service_id}\n{terms}")


def contains(connection: Connection, wanted: Tip, begins: str) -> bool:
    """Whether the journal has the row of a tip that was kept elsewhere.

    `begins` is its genesis, the tip of a service that has learned nothing.
    """
    if wanted.sequence == 0:
        return wanted.hash == begins
    table = tables.journal
    statement = sa.select(table.c.hash).where(table.c.sequence == wanted.sequence)
    return connection.execute(statement).scalar_one_or_none() == wanted.hash


def walk(connection: Connection, after: int = 0) -> Iterator[tuple[Row, Body]]:
    """The rows after a sequence, in order, parsed."""
    table = tables.journal
    statement = (
        sa.select(table)
        .where(table.c.sequence > after)
        .order_by(table.c.sequence)
        .execution_options(yield_per=2000)
    )
    with connection.execute(statement) as result:
        for stored in result:
            yield _parsed(stored)


def row_at(connection: Connection, sequence: int) -> tuple[Row, Body]:
    """One row, parsed."""
    table = tables.journal
    statement = sa.select(table).where(table.c.sequence == sequence)
    stored = connection.execute(statement).one_or_none()
    if stored is None:
        raise ServiceDamaged(f"row {sequence} of the journal is missing")
    return _parsed(stored)


def _parsed(stored: Any) -> tuple[Row, Body]:
    try:
        row = Row(int(stored.sequence), stored.op, stored.body, stored.hash)
        _ = row.tip
        body = json.loads(row.body)
    except (ValueError, TypeError, RecursionError) as error:
        raise ServiceDamaged(
            f"row {str(stored.sequence):.20} of the journal cannot be read"
        ) from error
    if not isinstance(body, dict):
        raise ServiceDamaged(f"row {row.sequence} is not a row of a journal")
    return row, body


def paid_entries(connection: Connection) -> dict[str, tuple[str, int]]:
    """The entries that the journal names, with the ledger and epoch of each."""
    table = tables.journal
    statement = sa.select(table).where(table.c.op.in_((*PAID, "abandon")))
    entries = {}
    for stored in connection.execute(statement):
        row, body = _parsed(stored)
        outcome = body.get("certificate", body)
        if outcome["entry"] is not None:
            # A retrain is charged to the ledger of the epoch that it ends.
            epoch = body["before"] if row.op == "retrain" else body["epoch"]
            entries[outcome["entry"]] = (outcome["ledger"], epoch)
    return entries


def abandoned(connection: Connection) -> Iterator[Body]:
    """The rows of operations that were given up."""
    table = tables.journal
    for stored in connection.execute(sa.select(table).where(table.c.op == "abandon")):
        yield _parsed(stored)[1]


def intents_since(connection: Connection, since: datetime) -> Iterator[Body]:
    """The intents from the newest back to a time, but for those that were given up.

    A clock that was set back for a while does not end the walk: a thousand older rows
    do.
    """
    table, older, abandoned = tables.journal, 0, set()
    statement = (
        sa.select(table)
        .where(table.c.op.in_(("intent", "abandon")))
        .order_by(table.c.sequence.desc())
        .execution_options(yield_per=200)
    )
    with connection.execute(statement) as result:
        for stored in result:
            row, body = _parsed(stored)
            if row.op == "abandon":
                abandoned.add(body["operation"])
            elif datetime.fromisoformat(body["time"]) < since:
                older += 1
                if older > _MOST_OLDER:
                    return
            elif body["operation"] not in abandoned:
                yield body


def publications(connection: Connection) -> int:
    """How many published copies were paid for, those that came to nothing included."""
    table = tables.journal
    statement = (
        sa.select(table)
        .where(table.c.op.in_(("intent", "publish", "abandon")))
        .order_by(table.c.sequence)
        .execution_options(yield_per=2000)
    )
    count, publishing = 0, False
    with connection.execute(statement) as result:
        for stored in result:
            row, body = _parsed(stored)
            if row.op == "intent":
                publishing = body.get("kind") == PUBLICATION
            elif row.op == "publish" or (publishing and body["entry"] is not None):
                count += 1
    return count


def open_intent(connection: Connection) -> Body | None:
    """The intent that was neither carried out nor abandoned, if there is one.

    An intent is followed at once by its outcome, so it is open exactly if it is the
    last row.
    """
    last = tip(connection).sequence
    if not last:
        return None
    row, body = row_at(connection, last)
    return body if row.op == "intent" else None


def last_of(
    connection: Connection, operations: tuple[str, ...]
) -> tuple[Row, Body] | None:
    """The last row of one of these kinds."""
    table = tables.journal
    sequence = connection.execute(
        sa.select(table.c.sequence)
        .where(table.c.op.in_(operations))
        .order_by(table.c.sequence.desc())
        .limit(1)
    ).scalar_one_or_none()
    if sequence is None:
        return None
    return row_at(connection, int(sequence))


def last_forgotten(connection: Connection) -> int:
    """The last row that took something out of the model; 0 if there is none."""
    last = last_of(connection, _FORGETFUL)
    return 0 if last is None else last[0].sequence
