"""Where a ledger is kept: SQLite for one host, PostgreSQL for many. SQL lives here.

Every write is one transaction that first takes the one lock all writers share, then
reads the totals, then writes the row, the totals and the tip together:

- SQLite: BEGIN IMMEDIATE takes the write lock before anything is read, so no two
  writers ever decide on the same totals; WAL with synchronous=FULL makes the commit
  durable before it returns. (Not for network file systems: WAL needs shared memory.)
- PostgreSQL: the tip row and the budget rows are locked with SELECT ... FOR UPDATE
  under READ COMMITTED; synchronous_commit is on. See `files` and `server`.

A commit whose answer is lost may or may not have happened. `persist` then repeats the
transaction, and this pays once. Proof: the lost attempt held the tip row's lock when
it sent its COMMIT, and a repeat begins by taking that lock. So once the repeat has it,
the lost session is over: committed, or rolled back (the server ended it, or restarted)
and unable to commit later. Under READ COMMITTED the repeat's next statement sees all
that was committed before it. It looks for what the lost attempt would have written, by
a name chosen before the first attempt (the entry's random id, a draw's random token).
If it is there, it was paid and is returned; if not, it never will be, and is written
now. An attempt that never sent COMMIT needs no search. Across calls and processes the
idempotency key is that name: looked for under the same lock, and unique in the table.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from demur.core.errors import (
    DemurError,
    LedgerDamaged,
    LedgerMismatch,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.durable import postgres, sqlite
from demur.durable.postgres import Timeouts

SCHEMA_VERSION = 2  # 2: a row of draws may hand out several
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0  # between repeats, in seconds
_T = TypeVar("_T")

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

# Pools of connections that a forked child found and must neither use nor close.
_LEFT_TO_PARENT: list[object] = []


def _refuse_draws_without_count(connection: Connection) -> None:
    """From 1: old rows mean what they meant, and no more of them are taken.

    An older demur counts a row of many draws as one, and would hand out some twice. The
    version keeps it from opening the ledger; this stops one that has it open.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            "CREATE TRIGGER IF NOT EXISTS demur_draws BEFORE INSERT ON demur_rows"
            " WHEN NEW.kind = 'draw' AND NEW.count IS NULL"
            " BEGIN SELECT RAISE(ABORT, 'this ledger needs a newer demur'); END"
        )
        return
    alter = "ALTER TABLE demur_rows"
    connection.exec_driver_sql(f"{alter} DROP CONSTRAINT IF EXISTS demur_draws")
    connection.exec_driver_sql(
        f"{alter} ADD CONSTRAINT demur_draws"
        " CHECK (kind <> 'draw' OR count IS NOT NULL) NOT VALID"
    )


# Steps from one version of the schema to the next, by the version they start from.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _refuse_draws_without_count}


class Store:
    """An engine, its lock, and the two kinds of transaction."""

    def __init__(self, url: str | None, timeouts: Timeouts | None = None) -> None:
        """In memory (None), in a file (a path or sqlite:///) or on a server."""
        self._timeouts = timeouts or Timeouts()
        self._met = False  # whether the server has ever answered
        self._process = os.getpid()
        self._lock = threading.RLock()
        self.durable = url is not None
        self._path: Path | None = None
        if url is None:
            self._engine = sqlite.make_engine(None)
        elif url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
            self._engine = postgres.make_engine(url, self._timeouts)
        else:
            self._path = sqlite.path_of(url)
            self._engine = sqlite.make_engine(self._path)

    @property
    def folder(self) -> Path | None:
        """The folder beside a ledger in a file, for what must stay outside of it."""
        path = self._path
        return None if path is None else path.with_name(f"{path.name}.keys")

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _usable(self) -> Engine:
        if os.getpid() != self._process:
            if not self.durable:
                raise DemurError(
                    "a ledger in memory belongs to the process that opened it: a forked"
                    " copy could spend the same budget twice. Open a durable ledger."
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
        """A consistent view of the ledger."""
        # Several SELECTs see one state; SQLite does so by itself.
        options = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}
        give_up = time.monotonic() + self._timeouts.call  # for a first answer
        with _clear_errors(_Progress()), self._begun(options, give_up) as connection:
            yield connection
            if self._is_sqlite:
                return
            # What was read was read: a link lost now takes nothing away.
            driver = connection.connection.driver_connection
            give_up = time.monotonic() + self._timeouts.silence
            with suppress(DBAPIError), postgres.bounded(driver, give_up):
                connection.rollback()

    @contextmanager
    def write(self, give_up: float | None = None) -> Iterator[Connection]:
        """A transaction that holds the ledger's one lock until it is durable.

        On a server it ends at the monotonic time `give_up`, or after a call's time.
        """
        progress, options = _Progress(), {"demur_write": True}
        if give_up is None:
            give_up = time.monotonic() + self._timeouts.call
        begun = self._begun(options, give_up, to_the_end=True)
        with _clear_errors(progress), begun as connection:
            yield connection
            progress.committing = True
            transaction = connection.get_transaction()
            assert transaction is not None
            with ExitStack() as stack:
                if not self._is_sqlite:
                    driver = connection.connection.driver_connection
                    stack.enter_context(postgres.without_warning(driver))
                transaction.commit()

    def persist(self, work: Callable[[Connection, bool], _T]) -> _T:
        """Run `work` in a transaction until it is durable, within the time of a call.

        `work(connection, again)` must take the ledger's lock first. `again` says that
        an earlier attempt's outcome is unknown: it must look for what that attempt
        would have written, by a name made before the first attempt, and not write it
        twice.
        """
        give_up = time.monotonic() + self._timeouts.call
        unknown: OutcomeUnknown | None = None
        wait = _FIRST_WAIT
        while True:
            try:
                with self.write(give_up) as connection:
                    return work(connection, unknown is not None)
            except OutcomeUnknown as error:
                failed: DemurError = error
                unknown = error
            except LedgerUnreachable as error:
                failed = error
            passing = not self._is_sqlite and postgres.is_passing(failed.__cause__)
            if not passing or time.monotonic() + wait > give_up:
                raise unknown or failed
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    @contextmanager
    def _begun(
        self, options: dict[str, Any], give_up: float, *, to_the_end: bool = False
    ) -> Iterator[Connection]:
        """A connection with a transaction begun, which has answered if it is remote.

        It is cut off at `give_up`: while it has not answered, or until `to_the_end`.

        A pooled connection may be stale. Nothing was sent on it yet, so another is
        taken; only a server that has answered before is waited for, so that a wrong
        address or password is told at once.
        """
        engine = self._usable()
        wait = _FIRST_WAIT
        with _guard(self._lock, self.durable), ExitStack() as stack:
            while True:
                try:
                    with ExitStack() as attempt:
                        plain = attempt.enter_context(engine.connect())
                        connection = plain.execution_options(**options)
                        # Around the transaction: a ROLLBACK is waited for, too.
                        bound = attempt.enter_context(ExitStack())
                        if not self._is_sqlite:
                            driver = connection.connection.driver_connection
                            bound.enter_context(postgres.bounded(driver, give_up))
                        attempt.enter_context(connection.begin())
                        if not self._is_sqlite:
                            connection.exec_driver_sql("SELECT 1")
                        if not to_the_end:
                            bound.close()
                        stack.push(attempt.pop_all())
                        break
                except (DBAPIError, PoolTimeout) as error:
                    if not self._worth_waiting(error, give_up - wait):
                        raise
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            self._met = True
            yield connection

    def _worth_waiting(self, error: Exception, latest: float) -> bool:
        known = self._met and not self._is_sqlite
        return known and postgres.is_passing(error) and time.monotonic() < latest

    def prepare(
        self, terms: str, ledger_id: str, genesis: str, budget_count: int
    ) -> None:
        """Create the tables and the ledger, unless they are there; migrate old ones."""
        with self.write() as connection:
            if not self._is_sqlite:
                # Two first openers at once: CREATE TABLE IF NOT EXISTS can collide.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(6845231977)"))
            metadata.create_all(connection, checkfirst=True)
            if connection.execute(sa.select(ledger.c.id)).first() is not None:
                return
            connection.execute(
                ledger.insert().values(
                    id=1,
                    schema_version=SCHEMA_VERSION,
                    ledger_id=ledger_id,
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
        """Whether there is a ledger at this address already; creates nothing."""
        if self._path is not None and not self._path.exists():
            return False
        with self.read() as connection:
            if not sa.inspect(connection).has_table(ledger.name):
                return False
            return connection.execute(sa.select(ledger.c.id)).first() is not None

    def migrate(self) -> None:
        """Bring an older ledger to this version's schema; refuse a newer one.

        A ledger that is up to date is only read: by those who may not write, too.
        """
        with self.read() as connection:
            version = connection.execute(
                sa.select(ledger.c.schema_version)
            ).scalar_one()
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

    def close(self) -> None:
        """Close what is open; a durable ledger can be opened again."""
        if os.getpid() == self._process:
            self._engine.dispose()


_TIP = sa.select(ledger.c.sequence, ledger.c.hash)
_TOTALS = sa.select(budgets.c.totals).order_by(budgets.c.position)


def shown_address(url: str | os.PathLike[str]) -> str:
    """An address without user, password and parameters (one may be a password)."""
    text = os.fspath(url)
    if "://" not in text or text.startswith("sqlite:"):
        return repr(text)
    address = sa.make_url(text)
    where = f"{address.host or ''}/{address.database or ''}"
    return f"{address.drivername}://...{where}"


def lock_ledger(connection: Connection) -> tuple[int, str, list[str]]:
    """Take the lock all writers share; the tip and the totals as they stand."""
    tip = connection.execute(_locked(_TIP, connection)).one()
    totals = connection.execute(_locked(_TOTALS, connection)).scalars()
    return int(tip.sequence), str(tip.hash), list(totals)


def _locked(statement: sa.Select[Any], connection: Connection) -> sa.Select[Any]:
    return (
        statement.with_for_update()
        if connection.dialect.name == "postgresql"
        else statement
    )


@contextmanager
def _guard(lock: AbstractContextManager[Any], durable: bool) -> Iterator[None]:
    """One thread at a time on the single connection of a ledger in memory."""
    if durable:
        yield
        return
    with lock:
        yield


class _Progress:
    """How far a transaction came: after COMMIT was sent, its outcome may be unknown."""

    committing = False


@contextmanager
def _clear_errors(progress: _Progress) -> Iterator[None]:
    try:
        yield
    except postgres.Unconfirmed as error:
        raise OutcomeUnknown(
            "the ledger answered a commit, but no standby has confirmed it: its wait"
            " was cancelled. Repeat the same call with the same idempotency key: it"
            " pays once. Without a key, count it as spent."
        ) from error
    except (DBAPIError, PoolTimeout) as error:
        cause = _cause(error)
        if "not a database" in cause or "malformed" in cause:
            raise LedgerDamaged(f"this file is no ledger: {cause}") from error
        if not _is_unreachable(error):
            raise
        if progress.committing:
            raise OutcomeUnknown(
                f"the ledger was lost while it answered a commit: {cause}. What was"
                " asked may or may not have been written. Repeat the same call with the"
                " same idempotency key: it pays once. Without a key, count it as spent."
            ) from error
        raise LedgerUnreachable(
            f"the ledger could not be reached: {cause}. Nothing was spent by this step;"
            " what was charged before it stays spent."
        ) from error


def _cause(error: DBAPIError | PoolTimeout) -> str:
    """The first line of what the driver says, or what we know better."""
    said = str(getattr(error, "orig", error)).strip().split("\n")[0]
    return next(iter(getattr(error, "__notes__", ())), said)


def _is_unreachable(error: DBAPIError | PoolTimeout) -> bool:
    if isinstance(error, (OperationalError, PoolTimeout)):
        return True
    return error.connection_invalidated or postgres.is_refused(error)
