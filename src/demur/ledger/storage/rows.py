"""SQL of a ledger: how its rows are written, found and counted."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core import accounting
from demur.core.accounting import events
from demur.core.accounting.events import Event
from demur.core.accounting.stored_profile import Profile
from demur.core.cost import Fixed
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import DemurError, LedgerDamaged
from demur.durable import chain
from demur.durable.chain import Tip, canonical
from demur.ledger.reading import Group, declaration_from_text, event_digest
from demur.ledger.storage import header, tables
from demur.ledger.storage.header import Header, State
from demur.ledger.storage.receipts import Receipt

Body = dict[str, Any]

# Built once: putting a statement together costs more than running it.
_DECLARATION = sa.select(tables.declarations.c.body).where(
    tables.declarations.c.digest == sa.bindparam("name")
)

_SEEN, _WRITER = "demur: declarations", "demur: who wrote one"  # of a connection
_HASH = sa.select(tables.rows.c.hash).where(
    tables.rows.c.sequence == sa.bindparam("number")
)


class Appended(NamedTuple):
    """A row that was just written: the state after it, its text and its signature."""

    state: State
    text: str
    signature: str | None


class StoredProfile(NamedTuple):
    """The privacy profile of a subsampled event, as it is stored."""

    event: Event
    digest: str
    data: bytes


def append(
    connection: Connection,
    state: State,
    body: Body,
    signer: Ed25519PrivateKey | None,
    totals: str | None = None,
) -> Appended:
    """Write the row that follows `state`, and move the state to it.

    `totals` are the new ones, if the row changes them.
    """
    text, sequence = canonical(body), state.sequence + 1
    row_hash = chain.link(state.hash, text)
    signature = chain.sign(signer, row_hash) if signer else None
    row = {
        "sequence": sequence,
        "kind": body["kind"],
        "entry_id": body["id"],
        "idempotency_key": body.get("idempotency_key"),
        "declaration": body.get("declaration"),
        "count": body.get("count"),
        "noise": body.get("noise"),
        "body": text,
        "hash": row_hash,
        "signature": signature,
    }
    after = State(sequence, row_hash, state.totals if totals is None else totals)
    header.add(connection, row, after)
    return Appended(after, text, signature)


def charge_by_key(connection: Connection, key: str) -> tuple[int, Body] | None:
    """The charge with this idempotency key, if there is one."""
    rows = tables.rows
    row = connection.execute(
        sa.select(rows.c.sequence, rows.c.body).where(rows.c.idempotency_key == key)
    ).first()
    return None if row is None else (int(row.sequence), json.loads(row.body))


def body_of(connection: Connection, entry_id: str, kind: str) -> Body | None:
    """The charge or the commit of an entry, if there is one."""
    row = row_of(connection, entry_id, kind)
    return None if row is None else row[1]


def row_of(connection: Connection, entry_id: str, kind: str) -> tuple[int, Body] | None:
    """The same with its number."""
    rows = tables.rows
    row = connection.execute(
        sa.select(rows.c.sequence, rows.c.body).where(
            rows.c.entry_id == entry_id, rows.c.kind == kind
        )
    ).one_or_none()
    return None if row is None else (int(row.sequence), json.loads(row.body))


def charge_by_id(connection: Connection, entry_id: str) -> tuple[int, Body] | None:
    """The charge with this id, if it was written."""
    return row_of(connection, entry_id, "charge")


def charge_row(connection: Connection, entry_id: str) -> Body:
    """The row of a charge, or a clear error."""
    body = body_of(connection, entry_id, "charge")
    if body is None:
        raise DemurError(
            f"{entry_id[:8]} is not an entry of this ledger: use the ledger that it"
            " was charged to. Nothing was spent."
        )
    return body


def body_at(connection: Connection, sequence: int, kind: str) -> Body | None:
    """The row with this number, if it is of this kind."""
    if not 0 < sequence < 2**62:  # no store has room for more
        return None
    rows = tables.rows
    text = connection.execute(
        sa.select(rows.c.body).where(rows.c.sequence == sequence, rows.c.kind == kind)
    ).scalar_one_or_none()
    return None if text is None else json.loads(text)


def uncommitted(connection: Connection) -> list[tuple[int, Body]]:
    """The charges without a commit, in order."""
    rows, commits = tables.rows, tables.rows.alias()
    committed = sa.exists().where(
        commits.c.entry_id == rows.c.entry_id, commits.c.kind == "commit"
    )
    result = connection.execute(
        sa.select(rows.c.sequence, rows.c.body)
        .where(rows.c.kind == "charge", ~committed)
        .order_by(rows.c.sequence)
    )
    return [(int(row.sequence), json.loads(row.body)) for row in result]


def draws(connection: Connection, entry_id: str) -> int:
    """How many draws of a reservation were handed out."""
    rows = tables.rows
    statement = sa.select(sa.func.coalesce(sa.func.sum(rows.c.count), 0)).where(
        rows.c.entry_id == entry_id, rows.c.kind == "draw"
    )
    return int(connection.execute(statement).scalar_one())


def with_token(
    connection: Connection, entry_id: str, token: str
) -> tuple[int, Body] | None:
    """The row of an entry that carries this token, if it was written."""
    rows = tables.rows
    statement = sa.select(rows.c.sequence, rows.c.body).where(
        rows.c.entry_id == entry_id, rows.c.body.contains(token)
    )
    for sequence, text in connection.execute(statement):
        body: Body = json.loads(text)
        if body.get("token") == token:
            return int(sequence), body
    return None


def many_since(connection: Connection, sequence: int, kind: str) -> int:
    """How many rows after this one are of a kind."""
    rows = tables.rows
    statement = sa.select(sa.func.count()).where(
        rows.c.sequence > sequence, rows.c.kind == kind
    )
    return int(connection.execute(statement).scalar_one())


def of_kind(
    connection: Connection, kind: str, entry_id: str | None = None
) -> list[tuple[int, Body]]:
    """The rows of one kind, of an entry or of all of them, in order."""
    rows = tables.rows
    statement = sa.select(rows.c.sequence, rows.c.body).where(rows.c.kind == kind)
    if entry_id is not None:
        statement = statement.where(rows.c.entry_id == entry_id)
    result = connection.execute(statement.order_by(rows.c.sequence))
    return [(int(row.sequence), json.loads(row.body)) for row in result]


def rows_after(connection: Connection, sequence: int | None, most: int) -> list[Any]:
    """The next rows after this one, whole, in order."""
    rows = tables.rows
    statement = sa.select(rows).order_by(rows.c.sequence).limit(most)
    if sequence is not None:
        statement = statement.where(rows.c.sequence > sequence)
    return list(connection.execute(statement))


def declaration_texts(connection: Connection) -> dict[str, str]:
    """Every stored declaration by its digest, as it is."""
    stored = connection.execute(sa.select(tables.declarations))
    return {row.digest: row.body for row in stored}


def stored_profiles(connection: Connection) -> list[Any]:
    """Every stored profile, as it is."""
    return list(connection.execute(sa.select(tables.profiles)))


def charges(connection: Connection) -> list[tuple[int, Body, Declaration]]:
    """Every charge, in order, with its declaration."""
    rows = tables.rows
    declared = {
        digest: text
        for digest, text in declaration_texts(connection).items()
        if digest_of_text(text) == digest
    }
    statement = (
        sa.select(rows.c.sequence, rows.c.body)
        .where(rows.c.kind == "charge")
        .order_by(rows.c.sequence)
    )
    charged = []
    for row in connection.execute(statement):
        body = json.loads(row.body)
        name = body["declaration"]
        if name not in declared:
            raise LedgerDamaged(
                f"row {row.sequence}: its declaration is missing or was edited. Verify"
                " the ledger, and go back to an intact copy."
            )
        charged.append((row.sequence, body, declaration_from_text(declared[name])))
    return charged


def declaration(connection: Connection, name: str) -> Declaration:
    """A declaration by its digest."""
    text = connection.execute(_DECLARATION, {"name": name}).scalar_one_or_none()
    if text is None or digest_of_text(text) != name:
        raise LedgerDamaged(
            f"the declaration {name[:12]}... is missing or was edited. Verify the"
            " ledger, and go back to an intact copy."
        )
    return declaration_from_text(text)


def profiles_of(declaration: Declaration, count: int = 1) -> dict[str, StoredProfile]:
    """Profiles of the subsampled events of a declaration, by the event's digest.

    They are of all `count` runs at once: composing a stored profile of one run a
    thousand times would add a percent to the epsilon of a reading.
    """
    stored: dict[str, StoredProfile] = {}
    for term in declaration.cost.terms:
        if not isinstance(term, Fixed):
            continue
        event = events.Repeated(term.event, count) if count > 1 else term.event
        profile = accounting.profile_of(event)
        if profile is not None:
            data = profile.to_bytes()
            digest = digest_of_text(data)
            stored[event_digest(event)] = StoredProfile(event, digest, data)
    return stored


def store_shared(
    connection: Connection, text: str, curves: dict[str, StoredProfile]
) -> dict[str, str]:
    """Store a declaration and its profiles once for all equal entries.

    Returns the digests of the stored profiles. One that is there already stays, on
    whatever machine it was computed: two machines may differ in the last bit, and both
    profiles are upper bounds.
    """
    name, stored = digest_of_text(text), tables.profiles
    _store_declaration(connection, name, text)
    digests = {}
    for key, curve in sorted(curves.items()):
        before = connection.execute(
            sa.select(stored.c.digest).where(stored.c.event == key)
        ).scalar_one_or_none()
        digests[key] = before or curve.digest
        if before is None:
            connection.execute(
                stored.insert().values(
                    event=key,
                    digest=curve.digest,
                    event_body=canonical(events.to_json(curve.event)),
                    body=curve.data,
                )
            )
    return digests


def _store_declaration(connection: Connection, name: str, text: str) -> None:
    """Store a declaration, unless it is there.

    What a transaction before this one has seen is not looked for again on a server.
    That is known for the connection, not for the ledger: another server may lack it,
    and so may an older copy of a file.
    """
    seen: set[str] = set()
    if connection.dialect.name == "postgresql":
        seen = connection.info.setdefault(_SEEN, seen)
    if name in seen:
        return
    transaction = connection.get_transaction()
    if connection.execute(_DECLARATION, {"name": name}).first() is None:
        connection.info[_WRITER] = transaction
        connection.execute(tables.declarations.insert().values(digest=name, body=text))
    elif connection.info.get(_WRITER) is not transaction:  # which may be rolled back
        seen.add(name)


def profiles(connection: Connection) -> dict[Event, Profile]:
    """Every stored profile that is intact, by its event."""
    intact: dict[Event, Profile] = {}
    for row in stored_profiles(connection):
        if is_whole(row):  # If not, a reading builds it anew and `verify` reports it.
            event = events.from_json(json.loads(row.event_body))
            intact[event] = Profile.from_bytes(row.body)
    return intact


def is_whole(row: Any) -> bool:
    """Whether a stored profile has the digest and the event of its row."""
    try:
        event = events.from_json(json.loads(row.event_body))
    except (ValueError, RecursionError):
        return False
    return event_digest(event) == row.event and digest_of_text(row.body) == row.digest


def groups(connection: Connection) -> list[Group]:
    """Equal declarations, counted by the database: a reading parses each once."""
    rows, declarations = tables.rows, tables.declarations
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
            declarations.c.body.label("declared"),
            grouped.c.declaration,
            grouped.c.noise,
            grouped.c.entries,
            grouped.c.count.label("runs"),
            example.c.body.label("example"),
        )
        .select_from(grouped)
        .join(example, example.c.sequence == grouped.c.first)
        .outerjoin(declarations, grouped.c.declaration == declarations.c.digest)
        .order_by(grouped.c.first)
    )
    equal = []
    for row in connection.execute(statement):
        label = str(json.loads(row.example)["label"])
        if row.declared is None or digest_of_text(row.declared) != row.declaration:
            raise LedgerDamaged(
                f"the declaration of {label!r} is missing or was edited: the ledger"
                " cannot be read. Verify it, and go back to an intact copy."
            )
        equal.append(
            Group(
                declaration_from_text(row.declared),
                int(row.entries),
                int(row.entries) * int(row.runs),
                label,
                row.noise == "os",
            )
        )
    return equal


def hash_at(connection: Connection, sequence: int) -> str | None:
    """The hash of one row; row 0 is the beginning of the chain."""
    if sequence == 0:
        return Header.read(connection).genesis
    result = connection.execute(_HASH, {"number": sequence})
    return result.scalar_one_or_none()


def contains(connection: Connection, tip: Tip) -> bool:
    """Whether a row is there, or was lost and is accounted for by a recovery."""
    there = hash_at(connection, tip.sequence) == tip.hash
    return there or str(tip) in recovered_tips(connection)


def recovered_tips(connection: Connection) -> set[str]:
    """The tips of lost rows that recoveries account for."""
    recovered = of_kind(connection, "recovered")
    return {tip for _, body in recovered for tip in body["tips"]}


def has_unnamed(connection: Connection) -> bool:
    """Whether rows were lost of which there is no receipt."""
    return any(body["unnamed"] for _, body in of_kind(connection, "recovered"))


def hashes_from(connection: Connection, sequence: int) -> dict[int, str]:
    """The hashes of the rows from this one on; row 0 is the beginning of the chain."""
    rows = tables.rows
    statement = sa.select(rows.c.sequence, rows.c.hash)
    result = connection.execute(statement.where(rows.c.sequence >= sequence))
    hashes = {int(row.sequence): str(row.hash) for row in result}
    if sequence <= 0:
        hashes[0] = Header.read(connection).genesis
    return hashes


def receipt(connection: Connection, ledger_id: str, sequence: int) -> Receipt | None:
    """The receipt of a row, if it is there."""
    rows = tables.rows
    row = connection.execute(sa.select(rows).where(rows.c.sequence == sequence)).first()
    previous = hash_at(connection, sequence - 1) if row is not None else None
    if row is None or previous is None:
        return None
    text = None
    if row.declaration is not None:
        found = connection.execute(_DECLARATION, {"name": row.declaration})
        text = found.scalar_one_or_none()
    return Receipt(ledger_id, sequence, previous, row.body, text, row.signature)
