"""The rows of a ledger: how they are written, found and counted. SQL, no decisions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import accounting
from demur.core.accounting import events
from demur.core.accounting.events import Event
from demur.core.accounting.profile import Profile
from demur.core.cost import Fixed
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import LedgerDamaged
from demur.durable import chain
from demur.durable.chain import canonical
from demur.ledger import tables
from demur.ledger.reading import Group, declaration_from_text, event_digest

Body = dict[str, Any]

# Built once: putting a statement together costs more than running it.
_INSERT_ROW = tables.rows.insert()
_MOVE_TIP = tables.ledger.update().values(
    sequence=sa.bindparam("to"), hash=sa.bindparam("new")
)
_SET_TOTALS = (
    tables.budgets.update()
    .where(tables.budgets.c.position == sa.bindparam("at"))
    .values(totals=sa.bindparam("new"))
)
_DECLARATION = sa.select(tables.declarations.c.body).where(
    tables.declarations.c.digest == sa.bindparam("name")
)


class KeptProfile(NamedTuple):
    """A curve of a subsampled event, as it is stored."""

    event: Event
    digest: str
    data: bytes


def append(
    connection: Connection,
    sequence: int,
    last: str,
    body: Body,
    signer: Ed25519PrivateKey | None,
) -> None:
    """Write row `sequence` + 1 after the hash `last`, and move the tip to it."""
    text = canonical(body)
    row_hash = chain.link(last, text)
    connection.execute(
        _INSERT_ROW,
        {
            "sequence": sequence + 1,
            "kind": body["kind"],
            "entry_id": body["id"],
            "idempotency_key": body.get("idempotency_key"),
            "declaration": body.get("declaration"),
            "count": body.get("count"),
            "noise": body.get("noise"),
            "body": text,
            "hash": row_hash,
            "signature": chain.sign(signer, row_hash) if signer else None,
        },
    )
    connection.execute(_MOVE_TIP, {"to": sequence + 1, "new": row_hash})


def charge_by_key(connection: Connection, key: str) -> tuple[int, Body] | None:
    """The charge with this idempotency key, if there is one."""
    rows = tables.rows
    row = connection.execute(
        sa.select(rows.c.sequence, rows.c.body).where(rows.c.idempotency_key == key)
    ).first()
    return None if row is None else (int(row.sequence), json.loads(row.body))


def body_of(connection: Connection, entry_id: str, kind: str) -> Body | None:
    """The charge or the commit of an entry, if there is one."""
    rows = tables.rows
    text = connection.execute(
        sa.select(rows.c.body).where(rows.c.entry_id == entry_id, rows.c.kind == kind)
    ).scalar_one_or_none()
    return None if text is None else json.loads(text)


def charge_by_id(connection: Connection, entry_id: str) -> tuple[int, Body] | None:
    """The charge with this id, if it was written."""
    rows = tables.rows
    row = connection.execute(
        sa.select(rows.c.sequence, rows.c.body).where(
            rows.c.entry_id == entry_id, rows.c.kind == "charge"
        )
    ).first()
    return None if row is None else (int(row.sequence), json.loads(row.body))


def draws(connection: Connection, entry_id: str) -> int:
    """How many draws of a reservation were handed out."""
    rows = tables.rows
    # A row without a count is one draw, as a ledger of schema 1 wrote it.
    handed_out = sa.func.sum(sa.func.coalesce(rows.c.count, 1))
    statement = sa.select(sa.func.coalesce(handed_out, 0)).where(
        rows.c.entry_id == entry_id, rows.c.kind == "draw"
    )
    return int(connection.execute(statement).scalar_one())


def with_token(connection: Connection, entry_id: str, token: str) -> Body | None:
    """The row of an entry that carries this token, if it was written."""
    rows = tables.rows
    statement = sa.select(rows.c.body).where(
        rows.c.entry_id == entry_id, rows.c.body.contains(token)
    )
    for text in connection.execute(statement).scalars():
        body: Body = json.loads(text)
        if body.get("token") == token:
            return body
    return None


def notes(connection: Connection, entry_id: str | None) -> list[tuple[int, Body]]:
    """The notes of an entry, or of all of them, in order."""
    rows = tables.rows
    statement = sa.select(rows.c.sequence, rows.c.body).where(rows.c.kind == "note")
    if entry_id is not None:
        statement = statement.where(rows.c.entry_id == entry_id)
    found = connection.execute(statement.order_by(rows.c.sequence))
    return [(int(row.sequence), json.loads(row.body)) for row in found]


def charges(connection: Connection) -> list[tuple[int, Body, Declaration]]:
    """Every charge, in order, with what it declared."""
    rows = tables.rows
    said = {
        row.digest: row.body
        for row in connection.execute(sa.select(tables.declarations))
    }
    statement = (
        sa.select(rows.c.sequence, rows.c.body)
        .where(rows.c.kind == "charge")
        .order_by(rows.c.sequence)
    )
    found = []
    for row in connection.execute(statement):
        body = json.loads(row.body)
        name = body["declaration"]
        if name not in said:
            raise LedgerDamaged(f"row {row.sequence}: its declaration is missing")
        found.append((row.sequence, body, declaration_from_text(said[name])))
    return found


def declaration(connection: Connection, name: str) -> Declaration:
    """A declaration by its digest."""
    text = connection.execute(_DECLARATION, {"name": name}).scalar_one_or_none()
    if text is None:
        raise LedgerDamaged(f"the declaration {name[:12]}... is missing")
    return declaration_from_text(text)


def profiles_of(declared: Declaration, count: int = 1) -> dict[str, KeptProfile]:
    """Curves of the subsampled events of a declaration, by the event's digest.

    Of all `count` runs at once: composing a stored curve of one run a thousand times
    would cost a reading a percent of its epsilon.
    """
    kept: dict[str, KeptProfile] = {}
    for term in declared.cost.terms:
        if not isinstance(term, Fixed):
            continue
        event = events.Repeated(term.event, count) if count > 1 else term.event
        profile = accounting.profile_of(event)
        if profile is not None:
            data = profile.to_bytes()
            kept[event_digest(event)] = KeptProfile(event, digest_of_text(data), data)
    return kept


def keep(
    connection: Connection, text: str, curves: dict[str, KeptProfile]
) -> dict[str, str]:
    """Store what equal entries share, once; the digests of the curves that count.

    A curve that is there already stays, whatever machine computed it: two machines may
    differ in the last bit, and both are upper bounds.
    """
    name, said, kept = digest_of_text(text), tables.declarations, tables.profiles
    if connection.execute(_DECLARATION, {"name": name}).first() is None:
        connection.execute(said.insert().values(digest=name, body=text))
    counted = {}
    for key, curve in sorted(curves.items()):
        before = connection.execute(
            sa.select(kept.c.digest).where(kept.c.event == key)
        ).scalar_one_or_none()
        counted[key] = before or curve.digest
        if before is None:
            connection.execute(
                kept.insert().values(
                    event=key,
                    digest=curve.digest,
                    event_body=canonical(events.to_json(curve.event)),
                    body=curve.data,
                )
            )
    return counted


def profiles(connection: Connection) -> dict[Event, Profile]:
    """Every stored curve that is whole, by its event."""
    kept: dict[Event, Profile] = {}
    for row in connection.execute(sa.select(tables.profiles)):
        if is_whole(row):  # If not, a reading builds it anew and `verify` reports it.
            event = events.from_json(json.loads(row.event_body))
            kept[event] = Profile.from_bytes(row.body)
    return kept


def is_whole(row: Any) -> bool:
    """Whether a stored curve is the one its digest names, for the event it names."""
    try:
        event = events.from_json(json.loads(row.event_body))
    except (ValueError, RecursionError):
        return False
    return event_digest(event) == row.event and digest_of_text(row.body) == row.digest


def groups(connection: Connection) -> list[Group]:
    """Equal declarations, counted by the database: a reading parses each once."""
    rows, said = tables.rows, tables.declarations
    # By count as well: the product is taken here, where no sum can overflow.
    grouped = (
        sa.select(
            rows.c.declaration,
            rows.c.noise,
            rows.c.count,
            sa.func.count().label("entries"),
            sa.func.min(rows.c.sequence).label("first"),
        )
        .where(rows.c.kind == "charge")
        .group_by(rows.c.declaration, rows.c.noise, rows.c.count)
        .subquery()
    )
    example = rows.alias()
    statement = (
        sa.select(
            said.c.body.label("said"),
            grouped.c.declaration,
            grouped.c.noise,
            grouped.c.entries,
            grouped.c.count.label("runs"),
            example.c.body.label("example"),
        )
        .select_from(grouped)
        .join(example, example.c.sequence == grouped.c.first)
        .outerjoin(said, grouped.c.declaration == said.c.digest)
        .order_by(grouped.c.first)
    )
    found = []
    for row in connection.execute(statement):
        label = str(json.loads(row.example)["label"])
        if row.said is None or digest_of_text(row.said) != row.declaration:
            raise LedgerDamaged(
                f"what {label!r} declared is missing or was edited: the ledger cannot"
                " be read. Verify it, and go back to a whole copy."
            )
        found.append(
            Group(
                declaration_from_text(row.said),
                int(row.entries),
                int(row.entries) * int(row.runs),
                label,
                row.noise == "os",
            )
        )
    return found


def hash_at(connection: Connection, sequence: int) -> str | None:
    """The hash of one row."""
    rows = tables.rows
    return connection.execute(
        sa.select(rows.c.hash).where(rows.c.sequence == sequence)
    ).scalar_one_or_none()


def set_totals(connection: Connection, position: int, text: str) -> None:
    """Write the totals of one budget."""
    connection.execute(_SET_TOTALS, {"at": position, "new": text})


def totals(connection: Connection) -> list[str]:
    """The totals of the budgets, as text."""
    statement = sa.select(tables.budgets.c.totals).order_by(tables.budgets.c.position)
    return list(connection.execute(statement).scalars())
