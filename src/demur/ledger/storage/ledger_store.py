"""The place of a ledger: whether there is one, how one is made, how an old one is met.

`durable.database_files` has how a file is made whole, and what is refused as no ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.errors import LedgerMismatch
from demur.durable import database_files, postgres
from demur.durable.chain import Tip
from demur.durable.database_files import FileKind
from demur.durable.store import Store
from demur.ledger.storage import rows, tables
from demur.ledger.storage.header import Header, lock

_OLD_NAME = "demur_book"  # the table of schemas 1 and 2
_KIND = FileKind("ledger", tables.ledger.name, LedgerMismatch, earlier=_OLD_NAME)

# Steps from one version of the schema to the next, by the version they start from.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {}


class LedgerStore(Store):
    """A store that holds one ledger, or will."""

    noun = "ledger"
    remote = False  # whether a service keeps it, which signs and names its clients

    @property
    def keys_folder(self) -> Path | None:
        """The folder beside a ledger in a file, for what must stay outside of it."""
        path = self.path
        return None if path is None else path.with_name(f"{path.name}.keys")

    def unsafe_settings(self) -> tuple[str, ...]:
        """Settings of the server that can lose what it acknowledged."""
        if self.is_sqlite:
            return ()
        with self.read() as connection:
            return postgres.unsafe_settings(connection)

    def create(self, header: Header) -> None:
        """Make the ledger, unless another process has made one."""
        if self.path is None:
            with self.write() as connection:
                if not self.is_sqlite:
                    postgres.prepare_schema(connection)
                _fill(connection, header)
            return
        database_files.make_whole(
            self.path, LedgerStore, lambda connection: _fill(connection, header)
        )

    def exists(self) -> bool:
        """Whether there is a ledger at this address already; changes nothing."""
        if not self.durable:
            return False
        if self.path is None:
            return self._is_on_server()
        return _KIND.is_in(self.path, self.keys_folder)

    def _is_on_server(self) -> bool:
        with self.read() as connection:
            places = postgres.schemas_with(connection, (tables.ledger.name, _OLD_NAME))
            elsewhere = sorted(set(places) - {(postgres.SCHEMA, tables.ledger.name)})
            if elsewhere:
                names = ", ".join(f"{schema}.{name}" for schema, name in elsewhere)
                raise LedgerMismatch(
                    "a database holds one ledger, and this one has tables of another:"
                    f" {names[:200]}. Give the ledger a database of its own. Nothing"
                    " was changed."
                )
            if not places:
                return False
            postgres.check_schema_rights(connection)
            return connection.execute(sa.select(tables.ledger.c.id)).first() is not None

    def header(self) -> Header:
        """The header as it is now."""
        with self.read() as connection:
            return Header.read(connection)

    def opened(self) -> tuple[Header, bool, bool]:
        """The header, and whether the chain begins and ends as it says."""
        with self.read() as connection:
            header = Header.read(connection)
            return header, header.begins(connection), header.ends(connection)

    def contains(self, tip: Tip) -> bool:
        """Whether a row is there, or was lost and is accounted for."""
        with self.read() as connection:
            return rows.contains(connection, tip)

    def migrate(self) -> None:
        """Bring an older ledger to this version's schema; refuse a newer one.

        A ledger that is up to date is only read, so that read-only users can open it.
        """
        statement = sa.select(tables.ledger.c.schema_version)
        with self.read() as connection:
            versions = set(connection.execute(statement).scalars())
        if versions <= tables.KNOWN_VERSIONS:
            return
        newest = max(versions)
        if newest > max(tables.KNOWN_VERSIONS):
            raise LedgerMismatch(
                f"this ledger has schema {newest}; this version of demur reads up to"
                f" {max(tables.KNOWN_VERSIONS)}. Use a newer demur. Nothing was spent."
            )
        if not set(range(newest, tables.SCHEMA_VERSION)) <= set(MIGRATIONS):
            raise LedgerMismatch(
                f"this ledger has schema {newest}, from which no migration is"
                f" known to {tables.SCHEMA_VERSION}. Nothing was spent."
            )
        with self.write() as connection:
            lock(connection)
            version = connection.execute(statement).scalar_one()
            while version < tables.SCHEMA_VERSION:
                MIGRATIONS[version](connection)
                version += 1
                change = tables.ledger.update().values(schema_version=version)
                connection.execute(change)


def _fill(connection: Connection, header: Header) -> None:
    for statement in tables.statements(connection.dialect):
        connection.exec_driver_sql(statement)
    if connection.execute(sa.select(tables.ledger.c.id)).first() is None:
        header.write(connection)
