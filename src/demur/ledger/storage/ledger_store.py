"""The place of a ledger: whether there is one, how one is made, how an old one is met.

A ledger in a file is made under another name and then linked to its own, whole: there
is no moment at which a file is there without the ledger in it. So a file without a
ledger is never turned into one: it may be what is left of one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.errors import LedgerMismatch
from demur.durable import atomic_files, postgres, sqlite
from demur.durable.store import Store
from demur.ledger.storage import tables
from demur.ledger.storage.header import Header, lock

_OLD_NAME = "demur_book"  # the table of schemas 1 and 2

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
        aside = atomic_files.temporary_name(self.path)
        place = LedgerStore(str(aside))
        try:
            with place.write() as connection:
                _fill(connection, header)
            place.close()
            atomic_files.link_if_free(aside, self.path)
            atomic_files.sync_folder(self.path.parent)
        finally:
            place.close()
            for left in (aside, sqlite.journal_of(aside)):
                left.unlink(missing_ok=True)

    def exists(self) -> bool:
        """Whether there is a ledger at this address already; changes nothing."""
        if not self.durable:
            return False
        return self._is_in_file(self.path) if self.path else self._is_on_server()

    def _is_in_file(self, path: Path) -> bool:
        if not path.exists():
            self._refuse_remains(path)
            return False
        names = sqlite.tables_in(path)
        if tables.ledger.name in names:
            return True
        if not names:
            raise LedgerMismatch(
                f"{path.name!r} is a file without a ledger: empty, or the rest of a"
                " copy that failed. A new ledger would be a second budget. Restore the"
                " ledger from its backup, or give the new one an address of its own."
                " Nothing was changed."
            )
        what = "of an earlier demur" if _OLD_NAME in names else "of no ledger"
        raise LedgerMismatch(
            f"there are tables {what} at this address:"
            f" {', '.join(sorted(names))[:200]}. Give the ledger an address of"
            " its own. Nothing was changed."
        )

    def _refuse_remains(self, path: Path) -> None:
        """No new ledger beside what another has left: it may only have been moved."""
        remains = [*sqlite.remains_of(path)]
        if self.keys_folder is not None and self.keys_folder.is_dir():
            remains.append(self.keys_folder)
        if remains and not path.exists():  # Another process may just have made it.
            raise LedgerMismatch(
                f"there is no ledger at {path.name!r}, but something of one:"
                f" {', '.join(repr(p.name) for p in remains)}. It was moved or removed,"
                " and a new one would be a second budget. Bring it back, or remove"
                " these as well. Nothing was created."
            )

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

    def migrate(self) -> None:
        """Bring an older ledger to this version's schema; refuse a newer one.

        A ledger that is up to date is only read, so that read-only users can open it.
        """
        statement = sa.select(tables.ledger.c.schema_version)
        with self.read() as connection:
            versions = set(connection.execute(statement).scalars())
        if versions <= {tables.SCHEMA_VERSION}:
            return
        newest = max(versions)
        if newest > tables.SCHEMA_VERSION:
            raise LedgerMismatch(
                f"this ledger has schema {newest}; this version of demur reads up to"
                f" {tables.SCHEMA_VERSION}. Use a newer demur. Nothing was spent."
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
