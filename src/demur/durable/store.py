"""Durable transactions on SQLite or PostgreSQL, repeated safely after a lost answer.

Every write is one transaction that first takes the one lock all writers share:

- SQLite: BEGIN IMMEDIATE takes the write lock before anything is read, so no two
  writers ever decide on the same state; synchronous=FULL makes the commit durable
  before it returns. A file that was removed or replaced while it is open takes no
  more: a commit into a file that nobody can find again would be no commit.
- PostgreSQL: rows are locked with SELECT ... FOR UPDATE under READ COMMITTED;
  synchronous_commit is on. See `sqlite` and `postgres`.

A commit whose answer is lost may or may not have happened. `persist` then repeats the
transaction, and this pays once. Proof: the lost attempt held the lock when it sent its
COMMIT, and a repeat begins by taking that lock. So once the repeat has it, the lost
session is over: committed, or rolled back (the server ended it, or restarted) and
unable to commit later. Under READ COMMITTED the repeat's next statement sees all that
was committed before it. It looks for what the lost attempt would have written, by a
name chosen before the first attempt (the entry's random id, a draw's random token). If
it is there, it was paid and is returned; if not, it never will be, and is written now.
An attempt that never sent COMMIT needs no search. Across calls and processes the
idempotency key is that name: looked for under the same lock, and unique in the table.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from demur.core import memory_dumps
from demur.core.errors import (
    DemurError,
    LedgerDamaged,
    LedgerRefused,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.durable import postgres, sqlite
from demur.durable.postgres import Timeouts

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0  # between repeats, in seconds
_ROLLED_BACK = 1.0  # seconds: a journal that is there longer was left behind
_NO_RIGHT = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_T = TypeVar("_T")

# Pools of connections that a forked child found and must neither use nor close.
_LEFT_TO_PARENT: list[object] = []


class Store:
    """A database with its lock and two kinds of transaction, `read` and `write`."""

    noun = "database"  # what errors call it

    def __init__(
        self,
        url: str | None,
        timeouts: Timeouts | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """In memory (None), in a file (a path or sqlite:///) or on a server."""
        memory_dumps.switch_off()  # what is read from here, and keys beside it
        self.read_only = read_only
        self._timeouts = timeouts or Timeouts()
        self._met = False  # whether the server has ever answered
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.durable = url is not None
        self._path: Path | None = None
        self._file: tuple[int, int] | None = None  # device and number of the file
        if url is None:
            self._engine = sqlite.make_engine(None)
        elif url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
            self._engine = postgres.make_engine(url, self._timeouts, read_only)
        else:
            self._path = sqlite.path_of(url)
            self._engine = sqlite.make_engine(self._path, read_only=read_only)
        # A store that nobody closed is closed when nobody has it any more.
        weakref.finalize(self, _dispose, self._engine, os.getpid())

    @property
    def path(self) -> Path | None:
        """The file, or None for a server and for what is in memory."""
        return self._path

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file, or in memory."""
        return self._engine.dialect.name == "sqlite"

    def _usable(self) -> Engine:
        if self._closed and not self.durable:
            raise DemurError(
                f"this {self.noun} was in memory and is closed: what it held is gone."
                f" Open a durable {self.noun} to go on after close(). Nothing was"
                " spent."
            )
        if os.getpid() != self._process:
            if not self.durable:
                raise DemurError(
                    f"a {self.noun} in memory belongs to the process that opened it: a"
                    " forked copy could spend the same budget twice. Open a durable"
                    f" {self.noun}. Nothing was spent."
                )
            # Connections must not be shared with the parent. They are not closed
            # either: closing the parent's SQLite files could disturb its locks.
            _LEFT_TO_PARENT.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._lock = threading.RLock()
            self._process = os.getpid()
        return self._engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the store."""
        # Several SELECTs see one state; SQLite does so by itself.
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        give_up = time.monotonic() + self._timeouts.call  # for a first answer
        begun = self._begun(options, give_up)
        with _clear_errors(self.noun, _Progress()), begun as connection:
            yield connection
            if self.is_sqlite:
                return
            # What was read was read: a link lost now takes nothing away.
            driver = connection.connection.driver_connection
            give_up = time.monotonic() + self._timeouts.silence
            with suppress(DBAPIError), postgres.bounded(driver, give_up):
                connection.rollback()

    @contextmanager
    def write(
        self, give_up: float | None = None, *, repeated: bool = False
    ) -> Iterator[Connection]:
        """A transaction that holds the one lock until it is durable.

        On a server it ends at the monotonic time `give_up`, or after a call's time. If
        it is `repeated` after a failure, the server is not asked first whether it is
        there: that is one journey less.
        """
        progress, options = _Progress(), {"demur_write": True}
        if give_up is None:
            give_up = time.monotonic() + self._timeouts.call
        begun = self._begun(options, give_up, to_the_end=True, ask_first=not repeated)
        with _clear_errors(self.noun, progress), begun as connection:
            yield connection
            self._check_file()
            progress.committing = True
            transaction = connection.get_transaction()
            assert transaction is not None
            try:
                with ExitStack() as stack:
                    if not self.is_sqlite:
                        driver = connection.connection.driver_connection
                        stack.enter_context(postgres.without_warning(driver))
                    transaction.commit()
            except BaseException:
                self._end(connection)
                raise

    def _check_file(self) -> None:
        """Refuse a file that is not the one that was opened."""
        if self._path is None:
            return
        try:
            status = os.stat(self._path)
            there = status.st_dev, status.st_ino
        except FileNotFoundError:
            there = None
        self._file = self._file or there
        if there != self._file:
            happened = "removed" if there is None else "replaced"
            raise LedgerDamaged(
                f"the {self.noun} {self._path.name!r} was {happened} while it was open:"
                " what was written now would be lost. Bring the file back, and open it"
                " again. Nothing was spent."
            )

    def _end(self, connection: Connection) -> None:
        """End a session whose COMMIT failed.

        Its transaction may still be open (a full disk): in the pool, it would keep the
        lock that all writers share, and might be committed after a repeat has paid.
        """
        with suppress(DBAPIError):
            if self.durable:
                connection.invalidate()
            elif (driver := connection.connection.driver_connection) is not None:
                driver.rollback()  # the one connection holds what is in memory

    def persist(self, work: Callable[[Connection, bool], _T]) -> _T:
        """Run `work` in a transaction until it is durable, within the time of a call.

        `work(connection, again)` must take the lock first. `again` says that the
        outcome of an earlier attempt is unknown: `work` must look for what that attempt
        would have written, by a name made before the first attempt, and not write it
        twice.
        """
        give_up = time.monotonic() + self._timeouts.call
        unknown: OutcomeUnknown | None = None
        wait = _FIRST_WAIT
        while True:
            try:
                with self.write(give_up, repeated=True) as connection:
                    return work(connection, unknown is not None)
            except OutcomeUnknown as error:
                failed: DemurError = error
                unknown = error
            except LedgerUnreachable as error:
                failed = error
            except LedgerRefused as error:
                # It is true of this attempt alone: an earlier one may have paid.
                raise (unknown or error) from error
            passing = not self.is_sqlite and postgres.is_passing(failed.__cause__)
            if not passing or time.monotonic() + wait > give_up:
                raise unknown or failed
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def _begun(
        self,
        options: dict[str, Any],
        give_up: float,
        *,
        to_the_end: bool = False,
        ask_first: bool = True,
    ) -> Iterator[Connection]:
        """A connection with a transaction begun, which has answered if it is remote.

        It is cut off at `give_up` unless it has answered, or at any time with
        `to_the_end`.

        A pooled connection may be stale. Nothing was sent on it yet, so another one is
        taken; only a server that has answered before is waited for, so that a wrong
        address or password is reported at once.
        """
        engine = self._usable()
        wait, rolled_back = _FIRST_WAIT, time.monotonic() + _ROLLED_BACK
        with _guard(self._lock, self.durable), ExitStack() as stack:
            while True:
                try:
                    self._check_file()
                    with ExitStack() as attempt:
                        plain = attempt.enter_context(engine.connect())
                        connection = plain.execution_options(**options)
                        # Around the transaction: a ROLLBACK is waited for, too.
                        bound = attempt.enter_context(ExitStack())
                        if not self.is_sqlite:
                            driver = connection.connection.driver_connection
                            bound.enter_context(postgres.bounded(driver, give_up))
                        attempt.enter_context(connection.begin())
                        if ask_first and not self.is_sqlite:
                            connection.exec_driver_sql("SELECT 1")
                        elif self.is_sqlite and self.read_only:
                            # Takes the lock, and finds a journal to be rolled back.
                            connection.exec_driver_sql("SELECT 1 FROM sqlite_schema")
                        if not to_the_end:
                            bound.close()
                        stack.push(attempt.pop_all())
                        break
                except (DBAPIError, PoolTimeout) as error:
                    passing = _is_to_be_rolled_back(error)
                    if not (passing and time.monotonic() < rolled_back) and (
                        not self._worth_waiting(error, give_up - wait)
                    ):
                        raise
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            self._met = True
            yield connection

    def _worth_waiting(self, error: Exception, latest: float) -> bool:
        known = self._met and not self.is_sqlite
        return known and postgres.is_passing(error) and time.monotonic() < latest

    def close(self) -> None:
        """Close all connections; a durable store opens new ones when it is used."""
        if os.getpid() == self._process:
            self._closed = True
            self._engine.dispose()


def _dispose(engine: Engine, process: int) -> None:
    """Close the connections, in the process that opened them."""
    if os.getpid() == process:
        engine.dispose()


def shown_address(url: str | os.PathLike[str]) -> str:
    """An address without user, password and parameters (one may be a password)."""
    text = os.fspath(url)
    if "://" not in text or text.startswith("sqlite:"):
        return repr(text)
    address = sa.make_url(text)
    where = f"{address.host or ''}/{address.database or ''}"
    return f"{address.drivername}://...{where}"


@contextmanager
def _guard(lock: AbstractContextManager[Any], durable: bool) -> Iterator[None]:
    """One thread at a time on the single connection of a store in memory."""
    if durable:
        yield
        return
    with lock:
        yield


def _is_to_be_rolled_back(error: DBAPIError | PoolTimeout) -> bool:
    """Whether a reader has met the journal of a write that was not finished.

    A running writer that removes its journal between two looks of SQLite's seems so,
    too: that passes.
    """
    return _code(error) == sqlite3.SQLITE_READONLY_ROLLBACK


class _Progress:
    """Whether COMMIT was sent: from then on the outcome may be unknown."""

    committing = False


@contextmanager
def _clear_errors(noun: str, progress: _Progress) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        cause = _cause(error)
        if "not a database" in cause or "malformed" in cause:
            raise LedgerDamaged(f"this file is no {noun}: {cause}") from error
        if _is_to_be_rolled_back(error):
            raise LedgerUnreachable(
                f"a write to the {noun} was interrupted, and its journal has to be"
                " rolled back by somebody who may write: open it once for writing."
                " Nothing was spent."
            ) from error
        if _is_refusing(error):
            raise LedgerRefused(
                f"a privilege is missing: {cause}. Ask the owner of the {noun} for the"
                " right to read it or to write to it; waiting does not help. Nothing"
                " was spent by this step; what was charged before it stays spent."
            ) from error
        if not _is_unreachable(error):
            raise
        # A file that others read is not committed to: the outcome is known.
        if progress.committing and "database is locked" not in cause:
            raise OutcomeUnknown(
                f"the connection was lost during a commit ({cause}), so it may or may"
                " not have been written. Repeat the same call with the same idempotency"
                " key: it pays once. Without a key, count it as spent."
            ) from error
        raise LedgerUnreachable(
            f"the {noun} could not be reached: {cause}. Try again later."
            " Nothing was spent by this step; what was charged before it stays spent."
        ) from error


def _cause(error: DBAPIError | PoolTimeout) -> str:
    """Our note on the error, or the first line of the driver's message."""
    message = str(getattr(error, "orig", error)).strip().split("\n")[0]
    return next(iter(getattr(error, "__notes__", ())), message)


def _is_refusing(error: DBAPIError | PoolTimeout) -> bool:
    if postgres.is_refusing(error):
        return True
    return (_code(error) or 0) & 0xFF in _NO_RIGHT


def _code(error: DBAPIError | PoolTimeout) -> int | None:
    """SQLite's own code of an error."""
    code: int | None = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code


def _is_unreachable(error: DBAPIError | PoolTimeout) -> bool:
    if isinstance(error, (OperationalError, PoolTimeout)):
        return True
    return error.connection_invalidated or postgres.is_refused(error)
