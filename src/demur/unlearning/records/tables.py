"""Database of a deletion service: its tables, and the lock of its one writer.

The engine, its transactions and its durability are those of the ledger
(`durable.store`): a transaction that has returned is on disk, in the file itself, and
reading needs no right to write. Two things are added for SQLite:

- `secure_delete`: what a row held is overwritten with zeros when it is deleted or
  replaced, in the page itself;
- `scrub()`: the rollback journal still holds the pages as they were; it is removed.
  After it, no page of the database or its journal holds what was deleted. (Copies made
  by others, and the blocks below the file system, are outside of what a program can
  reach.)

On PostgreSQL a deleted row stays in its page until the server vacuums: `scrub` asks for
that. The server's own archive is up to its operator.

The writer's lock is held by the operating system (a locked file, or a session lock of
the server), so it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from demur.core.errors import OutcomeUnknown
from demur.durable import atomic_files, database_files, postgres, sqlite
from demur.durable.database_files import FileKind
from demur.durable.store import Store
from demur.ledger import Timeouts
from demur.unlearning.errors import ServiceBusy, ServiceMismatch

# Of rows and terms. 2: a retrain and a restore are paid for. 3: ledger, pseudonym.
# 4: seals that die, ids that are forgotten. 5: pseudonyms that can be opened, signers.
# 6: a new model is bound to the last of its rows, and requests keep their limits.
# 7: the chain begins with the id of the service.
SCHEMA_VERSION = 7
_ADVISORY_LOCK = 6845231978

metadata = sa.MetaData()
service = sa.Table(
    "demur_unlearning",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("service_id", sa.String(32), nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),  # proves the key
    sa.Column("memory_salt", sa.String(32)),  # of a service that remembers ids
    sa.Column("memory_proof", sa.String(64)),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),  # of this epoch's capacity
)
journal = sa.Table(
    "demur_unlearning_journal",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("op", sa.String(16), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
records = sa.Table(
    "demur_unlearning_records",
    metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("live", sa.Boolean, nullable=False),
    sa.Column("subject", sa.String(64), nullable=False, index=True),
    # Erased with the record. The names are those of ids that are not remembered.
    sa.Column("content", sa.String(64), index=True),
    sa.Column("name", sa.String(64)),
    sa.Column("subject_name", sa.String(64)),
    # Openings of the two pseudonyms; under the key of a memory they are masked, and
    # stay. Without one they are erased, too.
    sa.Column("opening", sa.String(64)),
    sa.Column("subject_opening", sa.String(64)),
)
subjects = sa.Table(
    "demur_unlearning_subjects",
    metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("requests", sa.Integer, nullable=False),
)
state = sa.Table(
    "demur_unlearning_state",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("tick", sa.BigInteger, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
certificates = sa.Table(
    "demur_unlearning_certificates",
    metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
queue = sa.Table(
    "demur_unlearning_queue",
    metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("requested", sa.String(40), nullable=False),
    sa.Column("deadline", sa.String(40), nullable=False),
    sa.Column("reason", sa.String(16), nullable=False),
    sa.Column("limits", sa.Text),
)
encrypted_records = sa.Table(
    "demur_unlearning_boxes",
    metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


_KIND = FileKind("deletion service", service.name, ServiceMismatch)


def service_id(connection: Connection) -> str:
    """The id of the service whose tables these are."""
    return str(connection.execute(sa.select(service.c.service_id)).scalar_one())


class ServiceStore(Store):
    """A durable store that overwrites what it deletes, with one writer."""

    noun = _KIND.noun

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        # There is one writer, and nobody waits for it: its steps may take long.
        timeouts = Timeouts(pause=120.0, call=600.0)
        super().__init__(url, timeouts, read_only=read_only)
        self._writer: WriterLock | None = None
        if self.is_sqlite and not read_only:

            @sa.event.listens_for(self._engine, "connect")
            def _overwrite(connection: sqlite3.Connection, _: object) -> None:
                connection.execute("PRAGMA secure_delete=ON")

    @property
    def keys_folder(self) -> Path | None:
        """The folder beside a service in a file, for its secrets."""
        path = self.path
        return None if path is None else path.with_name(f"{path.name}.keys")

    @contextmanager
    def write(
        self, give_up: float | None = None, *, repeated: bool = False
    ) -> Iterator[Connection]:
        """A transaction, for as long as the right to write is held."""
        if self._writer is not None:
            self._writer.check()
        try:
            with super().write(give_up, repeated=repeated) as connection:
                yield connection
        except OutcomeUnknown as error:
            happened, *_ = str(error).partition(" Repeat the same call")
            raise OutcomeUnknown(  # A service has no keys of calls, unlike a ledger.
                f"{happened} Open the {self.noun} again: it has all that was"
                " acknowledged, and a deletion that was cut short is carried out or"
                " waits in its queue."
            ) from error.__cause__

    def exists(self) -> bool:
        """Whether there is a service at this address; changes nothing."""
        if self.path is not None:
            return _KIND.is_in(self.path)
        with self.read() as connection:
            if not sa.inspect(connection).has_table(service.name):
                return False
            return connection.execute(sa.select(service.c.id)).first() is not None

    def make_service(self, fill: Callable[[Connection], None]) -> None:
        """Make the tables of a service and `fill` them, all at once."""

        def make(connection: Connection) -> None:
            self.make_tables(connection, metadata)
            fill(connection)

        if self.path is None:
            with self.write() as connection:
                make(connection)
        else:  # The state may be secret: owner-only, like the keys.
            database_files.make_whole(self.path, ServiceStore, make, mode=0o600)

    def create(self, tables: sa.MetaData) -> None:
        """Make the tables that are not there yet."""
        with self.write() as connection:
            self.make_tables(connection, tables)

    def make_tables(self, connection: Connection, tables: sa.MetaData) -> None:
        """Make the tables that are not there yet, in this transaction."""
        if not self.is_sqlite:
            postgres.prepare_schema(connection)
        tables.create_all(connection, checkfirst=True)

    def scrub(self) -> None:
        """Let no page and no journal hold what was deleted."""
        engine = self._usable()
        if self.path is None:
            with engine.connect() as plain:
                connection = plain.execution_options(isolation_level="AUTOCOMMIT")
                for table in (state, encrypted_records, records):
                    connection.exec_driver_sql(f"VACUUM {table.name}")
            return
        raw = engine.raw_connection()  # The journal's mode is not a transaction's.
        try:
            assert isinstance(raw.driver_connection, sqlite3.Connection)
            gone = sqlite.drop_journal(raw.driver_connection, self.path)
        finally:
            raw.close()
        if not gone:
            raise ServiceBusy(
                "another program writes to the database, so that its journal could not"
                " be removed: it may still hold pages from before the deletion. The"
                " deletion is in force; call scrub() when that program is gone."
            )
        atomic_files.sync_folder(self.path.parent)  # or a crash brings it back

    def only_writer(self) -> WriterLock:
        """The right to write, until it is closed or the process ends."""
        self._writer = _FileLock(self._path) if self._path else _ServerLock(self)
        return self._writer


class WriterLock:
    """The right to write to one service."""

    def check(self) -> None:
        """Refuse where the right was lost; a file's lock ends with its process only."""

    def close(self) -> None:
        """Give the right back."""
        raise NotImplementedError


_BUSY = (
    "this service has a writer already: one process learns and forgets, others ask it."
    " Close that one first. Nothing was changed."
)


class _FileLock(WriterLock):
    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.with_name(f"{path.name}.lock").open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ServiceBusy(_BUSY) from error

    def close(self) -> None:
        self._file.close()


class _ServerLock(WriterLock):
    """Held by a session of the server: once it is lost, another writer may have it."""

    def __init__(self, store: ServiceStore) -> None:
        self._lost = False
        self._connection: Connection = store._usable().connect()
        free = self._connection.execute(
            sa.text(f"SELECT pg_try_advisory_lock({_ADVISORY_LOCK})")
        ).scalar_one()
        self._connection.commit()
        if not free:
            self._connection.close()
            raise ServiceBusy(_BUSY)

    def check(self) -> None:
        try:
            if not self._lost:
                self._connection.execute(sa.text("SELECT 1"))
                self._connection.commit()
                return
        except DBAPIError:
            self._lost = True  # a new session would answer, and not have the lock
        raise ServiceBusy(
            "the server ended the session that held the right to write, and another"
            " process may write by now: close this service and open it again. Nothing"
            " was changed."
        )

    def close(self) -> None:
        # The lock belongs to the session: a pooled connection would keep it.
        self._connection.invalidate()
        self._connection.close()
