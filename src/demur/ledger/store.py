"""Where a book is kept: SQLite for one host, PostgreSQL for many. SQL lives here.

Every write is one transaction that first takes the one lock all writers share, then
reads the totals, then writes the row, the totals and the head together:

- SQLite: BEGIN IMMEDIATE takes the write lock before anything is read, so no two
  writers ever decide on the same totals; WAL with synchronous=FULL makes the commit
  durable before it returns. (Not for network file systems: WAL needs shared memory.)
- PostgreSQL: the head row and the budget rows are locked with SELECT ... FOR UPDATE
  under READ COMMITTED; synchronous_commit is on.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool, StaticPool

from demur.core.errors import BookDamaged, BookMismatch, DemurError

SCHEMA_VERSION = 1
_PATIENCE_SECONDS = 120.0

metadata = sa.MetaData()
book = sa.Table(
    "demur_book",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("book_id", sa.String(64), nullable=False),
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

# Pools of connections that a forked child found and must neither use nor close.
_LEFT_TO_PARENT: list[object] = []

# Steps from one version of the schema to the next, by the version they start from.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {}


class Store:
    """An engine, its lock, and the two kinds of transaction."""

    def __init__(self, url: str | None) -> None:
        """A book in memory (None), in a file (a path or sqlite:///) or on a server."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.durable = url is not None
        self._path: Path | None = None
        if url is None:
            self._engine = self._sqlite("", memory=True)
        elif url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
            self._engine = _postgres(url)
        else:
            self._path = _sqlite_path(url)
            self._engine = self._sqlite(str(self._path), memory=False)

    @property
    def folder(self) -> Path | None:
        """The folder beside a book in a file, for what must stay outside of it."""
        path = self._path
        return None if path is None else path.with_name(f"{path.name}.keys")

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _sqlite(self, path: str, *, memory: bool) -> Engine:
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=None if memory else path),
            **_pool(memory),
            hide_parameters=True,  # An error text must not show what was written.
            connect_args={
                "timeout": _PATIENCE_SECONDS,
                "check_same_thread": False,
                "isolation_level": None,
            },
        )

        @sa.event.listens_for(engine, "connect")
        def _prepare(connection: sqlite3.Connection, _: object) -> None:
            # The driver must not open transactions of its own: we say BEGIN.
            connection.isolation_level = None
            if not memory:
                _write_ahead(connection)
                connection.execute("PRAGMA synchronous=FULL")

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            write = connection.get_execution_options().get("demur_write", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        return engine

    def _usable(self) -> Engine:
        if os.getpid() != self._process:
            if not self.durable:
                raise DemurError(
                    "a book in memory belongs to the process that opened it: a forked"
                    " copy could spend the same budget twice. Open a durable book."
                )
            # Connections must not be shared with the parent. They are kept, unused:
            # closing the parent's SQLite files here could disturb its locks.
            _LEFT_TO_PARENT.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._lock = threading.RLock()
            self._process = os.getpid()
        return self._engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the book."""
        engine = self._usable()
        with _guard(self._lock, self.durable), _clear_errors():
            with engine.connect() as plain:
                # Several SELECTs see one state; SQLite does so by itself.
                connection = (
                    plain
                    if self._is_sqlite
                    else plain.execution_options(isolation_level="REPEATABLE READ")
                )
                with connection.begin():
                    yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that holds the book's one lock until it is durable."""
        engine = self._usable()
        with _guard(self._lock, self.durable), _clear_errors():
            with engine.connect() as plain:
                connection = plain.execution_options(demur_write=True)
                with connection.begin():
                    yield connection

    def prepare(
        self, terms: str, book_id: str, genesis: str, budget_count: int
    ) -> None:
        """Create the tables and the book, unless they are there; migrate old ones."""
        with self.write() as connection:
            if not self._is_sqlite:
                # Two first openers at once: CREATE TABLE IF NOT EXISTS can collide.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(6845231977)"))
            metadata.create_all(connection, checkfirst=True)
            if connection.execute(sa.select(book.c.id)).first() is not None:
                return
            connection.execute(
                book.insert().values(
                    id=1,
                    schema_version=SCHEMA_VERSION,
                    book_id=book_id,
                    terms=terms,
                    sequence=0,
                    hash=genesis,
                )
            )
            connection.execute(
                budgets.insert(),
                [{"position": i, "totals": "{}"} for i in range(budget_count)],
            )

    def exists(self) -> bool:
        """Whether there is a book at this address already; creates nothing."""
        if self._path is not None and not self._path.exists():
            return False
        with self.read() as connection:
            if not sa.inspect(connection).has_table(book.name):
                return False
            return connection.execute(sa.select(book.c.id)).first() is not None

    def migrate(self) -> None:
        """Bring an older book to this version's schema; refuse a newer one."""
        with self.write() as connection:
            statement = sa.select(book.c.schema_version)
            version = connection.execute(_locked(statement, connection)).scalar_one()
            if version > SCHEMA_VERSION:
                raise BookMismatch(
                    f"this book has schema {version}; this version of demur reads up to"
                    f" {SCHEMA_VERSION}. Use a newer demur. Nothing was spent."
                )
            while version < SCHEMA_VERSION:
                if version not in MIGRATIONS:
                    raise BookMismatch(
                        f"this book has schema {version}, from which no migration is"
                        f" known to {SCHEMA_VERSION}. Nothing was spent."
                    )
                MIGRATIONS[version](connection)
                version += 1
                connection.execute(book.update().values(schema_version=version))

    def close(self) -> None:
        """Close what is open; a durable book can be opened again."""
        if os.getpid() == self._process:
            self._engine.dispose()


_HEAD = sa.select(book.c.sequence, book.c.hash)
_TOTALS = sa.select(budgets.c.totals).order_by(budgets.c.position)


def lock_book(connection: Connection) -> tuple[int, str, list[str]]:
    """Take the lock all writers share; the head and the totals as they stand."""
    head = connection.execute(_locked(_HEAD, connection)).one()
    totals = connection.execute(_locked(_TOTALS, connection)).scalars()
    return int(head.sequence), str(head.hash), list(totals)


def _locked(statement: sa.Select[Any], connection: Connection) -> sa.Select[Any]:
    return (
        statement.with_for_update()
        if connection.dialect.name == "postgresql"
        else statement
    )


def _pool(memory: bool) -> dict[str, Any]:
    """One shared connection in memory; else a few, waited for as long as the lock."""
    if memory:
        return {"poolclass": StaticPool}
    return {"poolclass": QueuePool, "pool_timeout": _PATIENCE_SECONDS}


def _postgres(url: str) -> Engine:
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    try:
        engine = sa.create_engine(
            address,
            poolclass=QueuePool,
            hide_parameters=True,  # as above
            pool_size=4,
            pool_pre_ping=True,
            # Whatever the server's defaults are.
            isolation_level="READ COMMITTED",
            connect_args={"client_encoding": "utf8"},
        )
    except ModuleNotFoundError as error:
        raise DemurError(
            "a book on PostgreSQL needs psycopg: pip install 'demur[postgres]'."
            " Nothing was spent."
        ) from error

    @sa.event.listens_for(engine, "connect")
    def _durable(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")
        connection.commit()

    return engine


def _sqlite_path(url: str) -> Path:
    if "://" in url and not url.startswith("sqlite:///"):
        raise ValueError(
            "url must be a file path, sqlite:///... or postgresql://...; got"
            f" {url.split('://')[0]!r}://..."
        )
    path = Path(url.removeprefix("sqlite:///")).expanduser()
    if str(path) in ("", ".", ":memory:"):
        raise ValueError(
            f"url must name a file; got {url!r}. For a book in memory use Ledger(...)."
        )
    if path.is_dir():
        raise ValueError(f"url must name a file; {path.name!r} is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"the folder of {path.name!r} does not exist: {path.parent}")
    return path.absolute()


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL; the first openers may collide, which SQLite does not wait for."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


@contextmanager
def _guard(lock: AbstractContextManager[Any], durable: bool) -> Iterator[None]:
    """One thread at a time on the single connection of a book in memory."""
    if durable:
        yield
        return
    with lock:
        yield


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except (OperationalError, PoolTimeout) as error:
        cause = str(getattr(error, "orig", error)).strip()
        raise DemurError(
            f"the book could not be reached: {cause}. What was not acknowledged may or"
            " may not have been written; read the book before trying again, or use an"
            " idempotency key."
        ) from error
    except DatabaseError as error:
        if "not a database" in str(error) or "malformed" in str(error):
            raise BookDamaged(f"this file is no book: {error.orig}") from error
        raise
