"""The database tables of a ledger, and the one lock that its writers share.

Every write first takes that lock, then reads the totals, then writes the row, the
totals and the tip together (`durable.store` proves that a lost answer is paid once). In
SQLite it is the write lock, taken by BEGIN IMMEDIATE before anything is read; in
PostgreSQL it is the tip row and the budget rows, by SELECT ... FOR UPDATE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from demur.core.digest import digest_of_text
from demur.core.errors import LedgerDamaged, LedgerMismatch
from demur.durable.chain import canonical, link
from demur.durable.store import Store

SCHEMA_VERSION = 4
_OLD_NAME = "demur_book"  # the table of schemas 1 and 2

_LEDGER_ID = re.compile("[0-9a-f]{32}")

metadata = sa.MetaData()
ledger = sa.Table(
    "demur_ledger",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("ledger_id", sa.String(64), nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
budgets = sa.Table(
    "demur_budgets",
    metadata,
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("totals", sa.Text, nullable=False),
)
declarations = sa.Table(
    "demur_declarations",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)
profiles = sa.Table(
    "demur_profiles",
    metadata,
    sa.Column("event", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("event_body", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
rows = sa.Table(
    "demur_rows",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("entry_id", sa.String(64), nullable=False, index=True),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    sa.Column("declaration", sa.String(64), index=True),
    sa.Column("count", sa.BigInteger),
    sa.Column("noise", sa.String(16)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("signature", sa.String(128)),
)


@lru_cache(maxsize=4)
def _schema(dialect: Dialect) -> tuple[str, ...]:
    """The statements that create what is not there."""
    missing: list[ExecutableDDLElement] = []
    for table in metadata.sorted_tables:
        missing.append(CreateTable(table, if_not_exists=True))
        missing += [CreateIndex(i, if_not_exists=True) for i in table.indexes]
    return tuple(str(element.compile(dialect=dialect)) for element in missing)


@dataclass(frozen=True)
class Header:
    """What a ledger says of itself: its id, schema and terms, and where it ends."""

    ledger_id: str
    schema_version: int
    terms: str
    sequence: int
    hash: str

    @property
    def genesis(self) -> str:
        """The beginning of the chain, which fixes all that steers the ledger."""
        fixed = [self.ledger_id, self.schema_version, self.terms]
        return digest_of_text(canonical(fixed))

    @classmethod
    def read(cls, connection: Connection) -> Header:
        """The header of the one ledger at this address, or a clear error."""
        stored = connection.execute(sa.select(ledger)).all()
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
        return cls(
            row.ledger_id, row.schema_version, row.terms, int(row.sequence), row.hash
        )

    def begins(self, connection: Connection) -> bool:
        """Whether the first row, or the empty chain, follows from id and terms."""
        first = connection.execute(_FIRST).first()
        if first is None:
            return (self.sequence, self.hash) == (0, self.genesis)
        return (first.sequence, first.hash) == (1, link(self.genesis, first.body))


# Steps from one version of the schema to the next, by the version they start from.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {}


class LedgerStore(Store):
    """A store that holds one ledger, or will."""

    noun = "ledger"

    @property
    def keys_folder(self) -> Path | None:
        """The folder beside a ledger in a file, for what must stay outside of it."""
        path = self.path
        return None if path is None else path.with_name(f"{path.name}.keys")

    def prepare(self, terms: str, ledger_id: str, budget_count: int) -> None:
        """Create the tables and the ledger, unless they are there."""
        new = Header(ledger_id, SCHEMA_VERSION, terms, 0, "")
        with self.write() as connection:
            if not self.is_sqlite:
                # Two first openers at once: CREATE TABLE IF NOT EXISTS can collide.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(6845231977)"))
            for statement in _schema(connection.dialect):
                connection.exec_driver_sql(statement)
            if connection.execute(sa.select(ledger.c.id)).first() is not None:
                return
            connection.execute(
                ledger.insert().values(
                    asdict(replace(new, hash=new.genesis)) | {"id": 1}
                )
            )
            connection.execute(
                budgets.insert(),
                [{"position": i, "totals": "{}"} for i in range(budget_count)],
            )

    def exists(self) -> bool:
        """Whether there is a ledger at this address already; creates nothing."""
        if self.path is not None and not self.path.exists():
            return False
        with self.read() as connection:
            names = set(sa.inspect(connection).get_table_names())
            if ledger.name in names:
                return connection.execute(sa.select(ledger.c.id)).first() is not None
        # A file holds one ledger and nothing else; a database may hold a service too.
        foreign = names if self.path is not None else names & {_OLD_NAME}
        if foreign:
            what = "of an earlier demur" if _OLD_NAME in names else "of no ledger"
            raise LedgerMismatch(
                f"there are tables {what} at this address:"
                f" {', '.join(sorted(foreign))[:200]}. Give the ledger an address of"
                " its own. Nothing was changed."
            )
        return False

    def migrate(self) -> None:
        """Bring an older ledger to this version's schema; refuse a newer one.

        A ledger that is up to date is only read, so that read-only users can open it.
        """
        with self.read() as connection:
            version = Header.read(connection).schema_version
        if version == SCHEMA_VERSION:
            return
        with self.write() as connection:
            statement = sa.select(ledger.c.schema_version)
            version = connection.execute(_locked(statement, connection)).scalar_one()
            if version > SCHEMA_VERSION:
                raise LedgerMismatch(
                    f"this ledger has schema {version}; this version of demur reads up"
                    f" to {SCHEMA_VERSION}. Use a newer demur. Nothing was spent."
                )
            while version < SCHEMA_VERSION:
                if version not in MIGRATIONS:
                    raise LedgerMismatch(
                        f"this ledger has schema {version}, from which no migration is"
                        f" known to {SCHEMA_VERSION}. Nothing was spent."
                    )
                MIGRATIONS[version](connection)
                version += 1
                connection.execute(ledger.update().values(schema_version=version))


_FIRST = (
    sa.select(rows.c.sequence, rows.c.body, rows.c.hash)
    .order_by(rows.c.sequence)
    .limit(1)
)
_TIP = sa.select(ledger.c.sequence, ledger.c.hash)
_TOTALS = sa.select(budgets.c.totals).order_by(budgets.c.position)


def lock_ledger(connection: Connection) -> tuple[int, str, list[str]]:
    """Take the lock that all writers share; returns sequence, hash and totals."""
    tip = connection.execute(_locked(_TIP, connection)).one()
    totals = connection.execute(_locked(_TOTALS, connection)).scalars()
    return int(tip.sequence), str(tip.hash), list(totals)


def _locked(statement: sa.Select[Any], connection: Connection) -> sa.Select[Any]:
    return (
        statement.with_for_update()
        if connection.dialect.name == "postgresql"
        else statement
    )
