"""SQLite engines, in a file or in memory: for the processes of one host.

Transactions are begun explicitly: BEGIN IMMEDIATE takes the write lock before anything
is read. WAL with synchronous=FULL makes a commit durable before it returns.
"""

from __future__ import annotations

import sqlite3
import time
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
    return path.absolute()


def make_engine(path: Path | None) -> Engine:
    """An engine for the database in this file, or for one in memory."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=None if path is None else str(path)),
        **_pool(path),
        hide_parameters=True,  # An error text must not show what was written.
        connect_args={
            "timeout": PATIENCE_SECONDS,
            "check_same_thread": False,
            "isolation_level": None,
        },
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        # The driver must not open transactions of its own: we say BEGIN.
        connection.isolation_level = None
        if path is not None:
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous=FULL")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("demur_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _pool(path: Path | None) -> dict[str, Any]:
    """One shared connection in memory; else a few, waited for as long as the lock."""
    if path is None:
        return {"poolclass": StaticPool}
    return {"poolclass": QueuePool, "pool_timeout": PATIENCE_SECONDS}


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
