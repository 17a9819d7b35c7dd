"""SQLite engines, in a file or in memory: for the processes of one host.

Transactions are begun explicitly: BEGIN IMMEDIATE takes the write lock before anything
is read. WAL with synchronous=FULL makes a commit durable before it returns.
"""

from __future__ import annotations

import sqlite3
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool, StaticPool

PATIENCE_SECONDS = 120.0


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


def make_engine(path: Path | None) -> Engine:
    """An engine for the database in this file, or for one in memory."""
    engine = _in_memory() if path is None else _in_file(path)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("demur_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _in_file(path: Path) -> Engine:
    """A few connections, waited for as long as the lock."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=QueuePool,
        pool_timeout=PATIENCE_SECONDS,
        hide_parameters=True,  # An error text must not show what was written.
        connect_args=_DRIVER | {"timeout": PATIENCE_SECONDS},
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")

    return engine


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


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL; the first openers may collide, which SQLite does not wait for."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
