"""The header of a ledger, and the one lock that its writers share.

Every write first takes that lock, then reads the state, then writes the row and the
next state together (`durable.store` proves that a lost answer is paid once). In SQLite
it is the write lock, taken by BEGIN IMMEDIATE before anything is read; in PostgreSQL it
is the header's row, by SELECT ... FOR UPDATE.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.digest import digest_of_text
from demur.core.errors import LedgerDamaged
from demur.durable.chain import canonical, link
from demur.ledger.storage.tables import SCHEMA_VERSION, ledger, rows

_LEDGER_ID = re.compile("[0-9a-f]{32}")


class State(NamedTuple):
    """What moves with every row: where the chain ends, and what is spent."""

    sequence: int
    hash: str
    totals: str


@dataclass(frozen=True)
class Header:
    """What a ledger says of itself: its id, schema and terms, and its state."""

    ledger_id: str
    schema_version: int
    terms: str
    state: State

    @classmethod
    def first(
        cls, ledger_id: str, terms: str, totals: str, version: int = SCHEMA_VERSION
    ) -> Header:
        """The header of a new ledger, whose chain is empty."""
        genesis = _genesis(ledger_id, version, terms)
        return cls(ledger_id, version, terms, State(0, genesis, totals))

    @property
    def genesis(self) -> str:
        """The beginning of the chain, which fixes all that steers the ledger."""
        return _genesis(self.ledger_id, self.schema_version, self.terms)

    @classmethod
    def read(cls, connection: Connection) -> Header:
        """The header of the one ledger at this address, or a clear error."""
        stored = connection.execute(_HEADER).all()
        if len(stored) != 1:
            raise LedgerDamaged(
                f"the table {ledger.name} has {len(stored)} rows, and a ledger has one:"
                " somebody wrote into it. Nothing was spent."
            )
        (row,) = stored
        # It becomes the name of a folder: nothing but digits may.
        if not _LEDGER_ID.fullmatch(row.ledger_id):
            raise LedgerDamaged(
                "the ledger's id is not the 32 hexadecimal digits it was made with:"
                f" {row.ledger_id[:80]!r}. Nothing was read or spent under it."
            )
        state = State(int(row.sequence), row.hash, row.totals)
        return cls(row.ledger_id, row.schema_version, row.terms, state)

    def write(self, connection: Connection) -> None:
        """Write the header of a new ledger."""
        connection.execute(
            ledger.insert().values(
                id=1,
                ledger_id=self.ledger_id,
                schema_version=self.schema_version,
                terms=self.terms,
                **self.state._asdict(),
            )
        )

    def begins(self, connection: Connection) -> bool:
        """Whether the first row, or the empty chain, follows from id and terms."""
        first = connection.execute(_FIRST).first()
        if first is None:
            return self.state[:2] == (0, self.genesis)
        return (first.sequence, first.hash) == (1, link(self.genesis, first.body))

    def ends(self, connection: Connection) -> bool:
        """Whether the last row is the one that the header names."""
        last = connection.execute(_LAST).first()
        if last is None:
            return self.state.sequence == 0
        return (last.sequence, last.hash) == self.state[:2]


def _genesis(ledger_id: str, schema_version: int, terms: str) -> str:
    return digest_of_text(canonical([ledger_id, schema_version, terms]))


# Built once: putting a statement together costs more than running it.
_HEADER = sa.select(ledger)
_FIRST = (
    sa.select(rows.c.sequence, rows.c.body, rows.c.hash)
    .order_by(rows.c.sequence)
    .limit(1)
)
_LAST = (
    sa.select(rows.c.sequence, rows.c.hash).order_by(rows.c.sequence.desc()).limit(1)
)
_STATE = sa.select(ledger.c.sequence, ledger.c.hash, ledger.c.totals)
_STATE_LOCKED = _STATE.with_for_update()
_MOVE = ledger.update().values(
    sequence=sa.bindparam("next_sequence"),
    hash=sa.bindparam("next_hash"),
    totals=sa.bindparam("next_totals"),
)
_ADD = rows.insert().values(
    {column.name: sa.bindparam(f"row_{column.name}") for column in rows.c}
)
_ADD_AND_MOVE = _MOVE.add_cte(_ADD.cte("added"))


def lock(connection: Connection) -> State:
    """Take the lock that all writers share; the state under it."""
    server = connection.dialect.name == "postgresql"
    row = connection.execute(_STATE_LOCKED if server else _STATE).one()
    return State(int(row.sequence), row.hash, row.totals)


def move(connection: Connection, state: State) -> None:
    """Write the state that follows from the last row."""
    connection.execute(_MOVE, _values(state))


def add(connection: Connection, row: dict[str, Any], state: State) -> None:
    """Write a row and the state that follows from it."""
    values = {f"row_{name}": value for name, value in row.items()}
    if connection.dialect.name == "postgresql":  # one journey for both
        connection.execute(_ADD_AND_MOVE, values | _values(state))
    else:
        connection.execute(_ADD, values)
        move(connection, state)


def _values(state: State) -> dict[str, Any]:
    return {f"next_{name}": value for name, value in state._asdict().items()}
