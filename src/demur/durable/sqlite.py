"""SQLite engines, in a file or in memory: for the processes of one host.

Transactions are begun explicitly: BEGIN IMMEDIATE takes the write lock before anything
is read. synchronous=FULL makes a commit durable before it returns.

The journal is a rollback journal: a commit that has returned is in the file itself,
which is what people copy, and a reader needs no right to write; a commit waits for
readers. With a write-ahead log nobody would wait, and what was committed might be in
the log alone for a while, which a reader without the right to write cannot use.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from demur.core.errors import DemurError, LedgerDamaged, LedgerRefused

PATIENCE_SECONDS = 120.0
_LOOKS = 20  # at a file that may be in the middle of a commit
_MADE = re.compile(r"CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|TRIGGER) ")  # SQLite's own

JOURNAL = "persist"


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
        raise ValueError(f"{path.name!r} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"the folder of {path.name!r} does not exist: {path.parent}")
    return path.resolve()  # links to one ledger are one ledger, with one key folder


_ANY_TABLE = "SELECT 1 FROM sqlite_schema LIMIT 1"  # the least that reads the file
# The driver must not open transactions of its own: we say BEGIN.
_DRIVER: dict[str, Any] = {"check_same_thread": False, "isolation_level": None}


def make_engine(path: Path | None, *, read_only: bool = False) -> Engine:
    """An engine for the database in this file, or for one in memory."""
    engine = _in_memory() if path is None else _in_file(path, read_only)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("demur_write", False)
        if path is not None:
            _forget_pages(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
        if write and path is not None and not read_only:
            _check_journal(connection)

    return engine


def _forget_pages(connection: Connection) -> None:
    """Let the next transaction read the file, and not what was read of it before.

    SQLite takes its pages for those of the file as long as a counter in it is the same.
    Another copy of the file, written over it in place, may have the same counter.
    """
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute("PRAGMA shrink_memory")


def _check_journal(connection: Connection) -> None:
    """Refuse to write with another journal, which any program can choose for a file."""
    driver = connection.connection.driver_connection
    assert driver is not None
    (chosen,) = driver.execute("PRAGMA journal_mode").fetchone()
    if chosen != JOURNAL:
        raise LedgerRefused(
            f"another program has put this file into journal_mode={chosen}, under which"
            " a commit may lie outside the file. Close that program, and open the file"
            " again. Nothing was spent."
        )


def _in_file(path: Path, read_only: bool) -> Engine:
    """A few connections, waited for as long as the lock."""
    made = path.exists()

    def connect() -> Any:
        nonlocal made
        # A file that was there is never made again: it was taken away.
        mode = "ro" if read_only else "rw" if made else "rwc"
        connection = sqlite3.connect(
            address(path, f"mode={mode}"), uri=True, timeout=PATIENCE_SECONDS, **_DRIVER
        )
        made = True
        return connection

    engine = _engine(QueuePool(connect, timeout=PATIENCE_SECONDS))

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        if read_only:
            _refuse_log(connection)
        else:
            _set_journal(connection)
            connection.execute("PRAGMA synchronous=FULL")

    return engine


def _refuse_log(connection: sqlite3.Connection) -> None:
    """Refuse to read a file in write-ahead mode, and make no log beside it.

    A copy of such a file may lack what its log had, and to read it SQLite makes two
    files beside it, even for a reader. It asks for the mode in this way because SQLite
    opens the log to answer: with exclusive locks it first locks the whole file, which a
    reader may not, so that it fails before the log is made.
    """
    connection.execute("PRAGMA locking_mode=exclusive")
    try:
        connection.execute(_ANY_TABLE).fetchall()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_IOERR_LOCK:
            raise
        raise LedgerRefused(
            "this file is in write-ahead mode (journal_mode=wal), under which commits"
            " may lie outside the file, so it is not read as it is. Close the program"
            " that put it into this mode, and open the file once for writing. Nothing"
            " was changed."
        ) from error
    connection.execute("PRAGMA locking_mode=normal")
    connection.execute(_ANY_TABLE).fetchall()  # which gives the lock back


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


def drop_journal(connection: sqlite3.Connection, path: Path) -> bool:
    """Remove the journal, which holds pages as they were; whether it is gone.

    Readers are not waited for. Another program that is writing keeps its journal.
    """
    connection.execute("PRAGMA journal_mode=delete").fetchall()
    connection.execute(f"PRAGMA journal_mode={JOURNAL}").fetchall()
    return not journal_of(path).exists()


def copy_database(source: Path, target: Path) -> None:
    """Copy a database file to a new one, as it is at one moment, durably.

    SQLite copies under its own read lock, in one step: whoever writes waits.
    """
    place = address(source, "mode=ro")
    with (
        closing(sqlite3.connect(place, uri=True, timeout=PATIENCE_SECONDS)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        copy.execute("PRAGMA synchronous=FULL")
        original.backup(copy)


def tables_in(path: Path, noun: str) -> set[str]:
    """The names of the tables in a file, which is left byte for byte as it is.

    A file that is no database is no `noun`.

    Neither is one with a view, a trigger or a virtual table, which demur never makes: a
    view can show one thing to one look and another to the next.

    Opened as immutable: no lock is taken, no log is read or made, and what another
    program has not yet moved from its log into the file does not count. Without a lock
    the look may fall into somebody's commit: it is repeated before a file is refused.
    """
    for left in reversed(range(_LOOKS)):
        try:
            kinds = _kinds_in(path)
        except sqlite3.DatabaseError as error:
            if left and error.sqlite_errorcode != sqlite3.SQLITE_CANTOPEN:
                time.sleep(0.01)
                continue
            raise _refused(path, noun, error) from error
        if foreign := set(kinds.values()) - {"table", "index"}:
            raise LedgerDamaged(
                f"{path.name!r} has a {max(foreign)}, which demur never makes: whoever"
                " made it decides what is read here. Ask for another copy. Nothing was"
                " changed."
            )
        return {name for name, kind in kinds.items() if kind == "table"}
    raise AssertionError


def _kinds_in(path: Path) -> dict[str, str]:
    """What is in a file, by name: tables, and what else SQLite knows."""
    place = address(path, "immutable=1&mode=ro")
    with closing(sqlite3.connect(place, uri=True)) as connection:
        rows = connection.execute("SELECT name, type, sql FROM sqlite_schema")
        return {str(name): _kind(str(kind), text) for name, kind, text in rows}


def _kind(called: str, text: object) -> str:
    """What an entry of the schema is, by the text that SQLite makes it from.

    An index that a primary key brings has none; a virtual table is called a table.
    """
    if text is None and called == "index":
        return called
    made = _MADE.match(str(text))
    return made[1].lower() if made else "part of another kind"


def damage_in(connection: Connection) -> str | None:
    """What is wrong with the pages of a database in a file; None if nothing is.

    An index that has other rows than its table would answer one question with a row,
    and the next one without it. Nobody but SQLite looks into both.
    """
    if connection.dialect.name != "sqlite":
        return None
    (said,) = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars()
    return None if said == "ok" else str(said)


def _refused(path: Path, noun: str, error: sqlite3.DatabaseError) -> DemurError:
    if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN:
        return LedgerRefused(
            f"a privilege is missing: {path.name!r} cannot be opened. Ask the owner of"
            f" the {noun} for the right to read it. Nothing was changed."
        )
    return LedgerDamaged(f"{path.name!r} is no {noun}: {error}. Nothing was changed.")


def _in_memory() -> Engine:
    """A database of its own with one connection."""
    return _engine(StaticPool(partial(sqlite3.connect, ":memory:", **_DRIVER)))


def _engine(pool: Pool) -> Engine:
    """An engine of its own, which shares its dialect and compiled statements with all.

    Every release without a ledger makes one, and a service opens many files: to compile
    a statement takes ten times as long as to run it.
    """
    template, compiled = _template()
    return Engine(
        pool,
        template.dialect,
        template.url,
        hide_parameters=True,  # An error text must not show what was written.
        execution_options={"compiled_cache": compiled},
    )


@cache
def _template() -> tuple[Engine, dict[Any, Any]]:
    engine = sa.create_engine("sqlite://")
    with engine.connect():  # so that the dialect has seen the library's version
        pass
    engine.dispose()
    return engine, {}


def _set_journal(connection: sqlite3.Connection) -> None:
    """Choose the journal; a switch needs the file alone, which SQLite does not await.

    A file that another program has put into write-ahead mode is switched back, with
    what is in its log.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={JOURNAL}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
