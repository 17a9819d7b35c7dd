"""SQLite engines, in a file or in memory: for the processes of one host.

Transactions are begun explicitly: BEGIN IMMEDIATE takes the write lock before anything
is read. synchronous=FULL makes a commit durable before it returns.

Two journals are used. With a rollback journal ("persist") a commit that has returned
is in the file itself, which is what people copy, and a reader needs no right to write;
a commit waits for readers. With a write-ahead log ("wal") nobody waits, and what was
committed may be in the log alone for a while.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool, StaticPool

from demur.core.errors import LedgerDamaged, LedgerUnreachable

PATIENCE_SECONDS = 120.0

Journal = Literal["persist", "wal"]


def path_of(url: str) -> Path:
    """The file that a path or `sqlite:///...` names, or a clear error."""
    if "://" in url and not url.startswith("sqlite:///"):
        raise ValueError(
            "url must be a file path, sqlite:///... or postgresql://...; got"
            f" {url.split('://')[0]!r}://..."
        )
    path = Path(url.removeprefix("sqlite:///")).expanduser()
    if str(path) in ("", ".", ":memory:"):
        raise ValueError(
            f"url must name a file; got {url!r}. For a ledger in memory use"
            " Ledger(...)."
        )
    if path.is_dir():
        raise ValueError(f"url must name a file; {path.name!r} is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"the folder of {path.name!r} does not exist: {path.parent}")
    return path.resolve()  # links to one ledger are one ledger, with one key folder


# The driver must not open transactions of its own: we say BEGIN.
_DRIVER: dict[str, Any] = {"check_same_thread": False, "isolation_level": None}


def make_engine(
    path: Path | None, *, journal: Journal = "persist", read_only: bool = False
) -> Engine:
    """An engine for the database in this file, or for one in memory."""
    engine = _in_memory() if path is None else _in_file(path, journal, read_only)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("demur_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
        if write and path is not None:
            _check_journal(connection, journal)

    return engine


def _check_journal(connection: Connection, journal: Journal) -> None:
    """Refuse to write with another journal, which any program can choose for a file."""
    chosen = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    if chosen != journal:
        raise LedgerUnreachable(
            f"another program has put this file into journal_mode={chosen}, under which"
            " a commit may lie outside the file. Close that program, and open the file"
            " again. Nothing was spent."
        )


def _in_file(path: Path, journal: Journal, read_only: bool) -> Engine:
    """A few connections, waited for as long as the lock."""
    made = path.exists()

    def connect() -> sqlite3.Connection:
        nonlocal made
        # A file that was there is never made again: it was taken away.
        mode = "ro" if read_only else "rw" if made else "rwc"
        connection = sqlite3.connect(
            address(path, f"mode={mode}"), uri=True, timeout=PATIENCE_SECONDS, **_DRIVER
        )
        made = True
        return connection

    engine = sa.create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_timeout=PATIENCE_SECONDS,
        hide_parameters=True,  # An error text must not show what was written.
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        if not read_only:
            _set_journal(connection, journal)
            connection.execute("PRAGMA synchronous=FULL")

    return engine


def address(path: Path, how: str) -> str:
    """SQLite's own address of a file, opened in this way."""
    return f"file:{quote(str(path))}?{how}"


def journal_of(path: Path) -> Path:
    """The rollback journal beside a database file."""
    return path.with_name(f"{path.name}-journal")


def remains_of(path: Path) -> Iterator[Path]:
    """Journals and logs beside a database file that is not there."""
    for end in ("-journal", "-wal"):
        beside = path.with_name(path.name + end)
        if beside.exists() and beside.stat().st_size:
            yield beside


def tables_in(path: Path) -> set[str]:
    """The names of the tables in a file, which is left byte for byte as it is.

    Opened as immutable: no lock is taken, no log is read or made, and what another
    program has not yet moved from its log into the file does not count.
    """
    place = address(path, "immutable=1&mode=ro")
    try:
        with closing(sqlite3.connect(place, uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_schema")
            return {str(name) for (name,) in names}
    except sqlite3.DatabaseError as error:
        raise LedgerDamaged(
            f"{path.name!r} is no ledger: {error}. Nothing was changed."
        ) from error


def _in_memory() -> Engine:
    """A database of its own with one connection.

    Every release without a ledger makes one: all of them share a dialect and the
    statements that are compiled for it, which takes ten times as long as to run them.
    """
    template, compiled = _template()
    pool = StaticPool(partial(sqlite3.connect, ":memory:", **_DRIVER))
    return Engine(
        pool,
        template.dialect,
        template.url,
        hide_parameters=True,
        execution_options={"compiled_cache": compiled},
    )


@cache
def _template() -> tuple[Engine, dict[Any, Any]]:
    engine = sa.create_engine("sqlite://")
    with engine.connect():  # so that the dialect has seen the library's version
        pass
    engine.dispose()
    return engine, {}


def _set_journal(connection: sqlite3.Connection, journal: Journal) -> None:
    """Choose the journal; a switch needs the file alone, which SQLite does not await.

    A file that another program has put into write-ahead mode is switched back, with
    what is in its log.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={journal}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
