"""PostgreSQL engines and their time-outs: every wait for a server has an end.

A link can fail without notice and a client can stop while it holds the lock. So this
module bounds every wait, for each session by itself (a parameter of the address, or of
PGOPTIONS, wins; the server's configuration does not):

- connecting: `connect_timeout`;
- a silent link, at both ends: TCP keepalives and the TCP user time-out;
- the lock, which others hold: `lock_timeout`;
- a client that stopped inside its transaction: the server ends its session after
  `idle_in_transaction_session_timeout`, which rolls back and frees the lock;
- a server that is alive and does not answer (a stalled disk): the client shuts its
  socket. Of a reading, which may be long, only the first answer is bounded.

`statement_timeout` is set to 0: the bounds above are enough, and a reading may be long.
PostgreSQL answers a COMMIT whose wait for a synchronous standby was cancelled
(pg_cancel_backend) with success and a warning, though the standby may lack it: a
failover would forget an acknowledged charge. Such an answer counts as a lost one.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

from demur.core import validate
from demur.core.errors import DemurError, LedgerRefused, OutcomeUnknown

# Conditions that pass by themselves, by SQLSTATE: a lock that others hold, a server
# that starts or stops, a session it ended, no free connection, a standby not yet
# promoted.
_READ_ONLY, _NOT_ALLOWED = "25006", "42501"
_PASSING = frozenset(
    "08000 08003 08006 25P03 40001 40P01 53300 55P03 57P01 57P02 57P03 57P05".split()
) | {_READ_ONLY}
# Conditions that somebody has to mend: privileges, roles, passwords, databases.
_REFUSING = frozenset("28000 28P01 3D000 3F000".split()) | {_NOT_ALLOWED}
# While a connection is made libpq has no SQLSTATE, only the server's sentence. One in
# another language counts as passing: it is waited for, and said, as it comes.
_NO_ENTRY = re.compile(
    r"FATAL:\s+(?:(?:database|role|user) \".*\" does not exist"
    r"|role \".*\" is not permitted to log in|permission denied for database"
    r"|(?:\S+ )*authentication failed|no pg_hba\.conf entry"
    r"|pg_hba\.conf rejects connection)"
    r"|no password supplied|server does not support SSL|root certificate file"
)
_NO_ANSWER = re.compile(
    "refused|timeout|timed out|starting up|shutting down|unreachable"
)
_SETTINGS = (
    "SELECT set_config(name, value, false)"
    " FROM unnest(%s::text[], %s::text[]) AS wanted(name, value)"
)
_DAY = 86_400.0
_MANY = 256  # waits that are watched, before those that are over are put away
_CHECK = "client_connection_check_interval"
SCHEMA = "demur"  # One database holds one ledger, whatever a role's search_path is.
_MAKING = 6845231977  # The advisory lock of those who make tables.
_DURABLE = (
    "SELECT set_config('synchronous_commit', CASE WHEN"
    " current_setting('synchronous_commit') = 'remote_apply'"
    " THEN 'remote_apply' ELSE 'on' END, false),"
    " set_config('client_min_messages', 'warning', false),"
    f" set_config('search_path', '{SCHEMA}', false)"
)


@dataclass(frozen=True)
class Timeouts:
    """How long to wait for a server, in seconds; not used for files.

    - `connect`: for a connection (PostgreSQL's clients know whole seconds, from 2);
    - `silence`: for any sign of life of the other end of a link;
    - `lock`: for the other writers, at one attempt;
    - `pause`: how long a client may stop inside its transaction, while others wait;
    - `call`: for one charge, draw, commit or note with all of its repeats.
    """

    connect: float = 10.0
    silence: float = 15.0
    lock: float = 30.0
    pause: float = 10.0
    call: float = 60.0

    def __post_init__(self) -> None:
        validate.positive(**asdict(self))
        for name, value in asdict(self).items():
            if value > _DAY:  # More may not fit a setting, which is in milliseconds.
                raise ValueError(f"{name} must be at most a day; got {value:g} s")
        if self.pause >= self.call:
            raise ValueError(
                "pause must be shorter than call: others would give up before a client"
                f" that stopped loses the lock; got {self.pause:g} and {self.call:g}"
            )


def make_engine(url: str, timeouts: Timeouts, read_only: bool = False) -> Engine:
    """An engine whose sessions are durable and bounded, whatever the server's defaults.

    SQLAlchemy's ping at check-out is off, as it waits without end: the store asks
    whether a connection still answers.
    """
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    try:
        engine = sa.create_engine(
            address,
            poolclass=QueuePool,
            hide_parameters=True,  # An error text must not show what was written.
            pool_size=4,
            pool_timeout=timeouts.call,
            isolation_level="READ COMMITTED",
            connect_args=_connect_arguments(address, timeouts),
        )
    except ModuleNotFoundError as error:
        raise DemurError(
            "a ledger on PostgreSQL needs psycopg: pip install 'demur[postgres]'."
            " Nothing was spent."
        ) from error
    chosen = _chosen_settings(address)

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        settings = session_settings(timeouts, connection.info.server_version)
        wanted = {k: v for k, v in settings.items() if k not in chosen}
        with bounded(connection, time.monotonic() + timeouts.connect):
            connection.autocommit = True
            connection.execute(_DURABLE)
            connection.execute(_SETTINGS, (list(wanted), list(wanted.values())))
            if read_only:
                connection.execute("SET default_transaction_read_only = on")
            if _CHECK not in chosen:
                _notice_lost_clients(connection, timeouts)
            connection.autocommit = False

    return engine


def prepare_schema(connection: Connection) -> None:
    """Make the schema of all tables, one process at a time, until the transaction ends.

    Two first openers at once: CREATE ... IF NOT EXISTS can collide.
    """
    connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_MAKING})"))
    there = sa.text(f"SELECT to_regnamespace('{SCHEMA}')")
    if connection.execute(there).scalar_one() is None:
        connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))


def schemas_with(connection: Connection, names: Iterable[str]) -> list[tuple[str, str]]:
    """Where tables of these names are, as (schema, name)."""
    statement = sa.text(
        "SELECT schemaname, tablename FROM pg_catalog.pg_tables"
        " WHERE tablename = ANY(:names)"
    )
    found = connection.execute(statement, {"names": list(names)})
    return [(str(schema), str(name)) for schema, name in found]


def check_schema_rights(connection: Connection) -> None:
    """Refuse a role that may not use the schema: its tables would seem missing."""
    may = sa.text(f"SELECT has_schema_privilege('{SCHEMA}', 'USAGE')")
    if not connection.execute(may).scalar_one():
        raise LedgerRefused(
            f"a privilege is missing: USAGE on the schema {SCHEMA!r}. Ask the owner of"
            " the database for the grants of a reader or a writer. Nothing was spent."
        )


def unsafe_settings(connection: Connection) -> tuple[str, ...]:
    """Settings under which a crash of the server can forget what it acknowledged."""
    statement = sa.text(
        "SELECT name FROM pg_catalog.pg_settings"
        " WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name"
    )
    return tuple(f"{name} = off" for name in connection.execute(statement).scalars())


def _notice_lost_clients(connection: Any, timeouts: Timeouts) -> None:
    """Let the server drop a client that is gone while it still waits for the lock.

    Otherwise a lost client would get the lock in its turn and hold it for as long as a
    pause may be. Servers before 14, and on some systems, cannot do this.
    """
    if connection.info.server_version < 140000:
        return
    interval = str(math.ceil(1000 * timeouts.silence / 3))
    with contextlib.suppress(connection.DatabaseError):
        connection.execute("SELECT set_config(%s, %s, false)", (_CHECK, interval))


def _connect_arguments(address: sa.URL, timeouts: Timeouts) -> dict[str, Any]:
    """Arguments for libpq, without those of the address or the environment."""
    seconds = _keepalives(timeouts)
    arguments: dict[str, tuple[str | None, Any]] = {
        "connect_timeout": ("PGCONNECT_TIMEOUT", math.ceil(timeouts.connect)),
        "application_name": ("PGAPPNAME", "demur"),
        "keepalives": (None, 1),
        "keepalives_idle": (None, seconds["idle"]),
        "keepalives_interval": (None, seconds["interval"]),
        "keepalives_count": (None, seconds["count"]),
        "tcp_user_timeout": (None, math.ceil(1000 * timeouts.silence)),
        "client_encoding": (None, "utf8"),
    }
    return {
        name: value
        for name, (variable, value) in arguments.items()
        if name == "client_encoding"
        or (name not in address.query and not (variable and os.environ.get(variable)))
    }


def _keepalives(timeouts: Timeouts) -> dict[str, int]:
    """A third of the silence until the first probe, then four in the other two."""
    return {
        "idle": max(1, round(timeouts.silence / 3)),
        "interval": max(1, round(timeouts.silence / 6)),
        "count": 4,
    }


def session_settings(timeouts: Timeouts, version: int) -> dict[str, str]:
    """The server's side of the time-outs, for a server of this version."""
    settings: dict[str, float] = {
        "lock_timeout": 1000 * timeouts.lock,
        "idle_in_transaction_session_timeout": 1000 * timeouts.pause,
        "statement_timeout": 0,
    }
    for name, value in _keepalives(timeouts).items():
        settings[f"tcp_keepalives_{name}"] = value
    if version >= 120000:
        settings["tcp_user_timeout"] = 1000 * timeouts.silence
    return {name: str(math.ceil(value)) for name, value in settings.items()}


def _chosen_settings(address: sa.URL) -> set[str]:
    """Settings that the user gave in the address or in PGOPTIONS: those win."""
    given = address.query.get("options", os.environ.get("PGOPTIONS", ""))
    text = given if isinstance(given, str) else " ".join(given)
    names = re.findall(r"(?:-c\s*|--)([\w.-]+?)\s*=", text)
    return {name.replace("-", "_").lower() for name in names}


@contextmanager
def bounded(connection: Any, give_up: float) -> Iterator[None]:
    """Shut the driver connection's socket at the monotonic time `give_up`.

    The driver then wakes up with an error, whatever it waited for. The socket is held
    by a duplicate, so that what is shut is never another one under the same number.
    """
    held = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
    wait = _Wait(give_up, held)
    _watch(wait)
    try:
        yield
    except Exception as error:
        if wait.late:
            error.add_note("it did not answer in time")
        raise
    finally:
        wait.end()


class _Wait:
    """A socket that is shut at a time, unless its wait has ended before."""

    def __init__(self, give_up: float, held: socket.socket) -> None:
        self.give_up, self.late = give_up, False
        self._held: socket.socket | None = held
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        return self._held is None

    def shut(self) -> None:
        """Wake up whoever still waits."""
        with self._lock:
            if self._held is not None:
                self.late = True
                with contextlib.suppress(OSError):  # it ended by itself
                    self._held.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """The wait is over: nothing is shut any more."""
        with self._lock:
            if self._held is not None:
                self._held.close()
            self._held = None


class _Watcher:
    """One thread that ends all waits of this process: one for each would cost more."""

    def __init__(self) -> None:
        self._waits: list[tuple[float, int, _Wait]] = []
        self._numbers = itertools.count()  # two waits may end at one time
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="demur-waits", daemon=True).start()

    def add(self, wait: _Wait) -> None:
        """Watch one more wait."""
        with self._changed:
            if len(self._waits) > _MANY:  # Most are over long before their time.
                self._waits = [each for each in self._waits if not each[2].over]
                heapq.heapify(self._waits)
            heapq.heappush(self._waits, (wait.give_up, next(self._numbers), wait))
            if self._waits[0][2] is wait:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                while self._waits and self._waits[0][2].over:
                    heapq.heappop(self._waits)
                now = time.monotonic()
                if not self._waits:
                    self._changed.wait()
                elif self._waits[0][0] > now:
                    self._changed.wait(self._waits[0][0] - now)
                else:
                    heapq.heappop(self._waits)[2].shut()


_watcher: _Watcher | None = None
_beginning = threading.Lock()


def _watch(wait: _Wait) -> None:
    global _watcher
    with _beginning:
        _watcher = _watcher or _Watcher()
    _watcher.add(wait)


def _begin_anew() -> None:
    """In a forked child: its parent's thread is not there, and locks may be held."""
    global _watcher, _beginning
    _watcher, _beginning = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def without_warning(connection: Any) -> Iterator[None]:
    """Treat a COMMIT that the server warns about as one without an answer."""
    warnings: list[str] = []

    def note(notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(str(notice.message_primary))

    connection.add_notice_handler(note)
    try:
        yield
    finally:
        connection.remove_notice_handler(note)
    if warnings:
        raise OutcomeUnknown(
            "the server committed, but its wait for a standby was cancelled, so the"
            " commit may be lost. Repeat the same call with the same idempotency key:"
            " it pays once. Without a key, count it as spent."
        )


def is_passing(error: BaseException | None) -> bool:
    """Whether a repeat may succeed: lost link, restarting server, lock, crowding."""
    if isinstance(error, sa.exc.TimeoutError):
        return True
    state = _state(error)
    if state is None:
        return not is_refusing(error)
    return state in _PASSING


def is_refusing(error: BaseException | None) -> bool:
    """Whether somebody has to mend it first: a grant, a role, a password, a database.

    Of an address with several hosts, one that did not answer may still let us in.
    """
    state = _state(error)
    if state is not None:
        return state in _REFUSING
    said = str(getattr(error, "orig", error))
    return bool(_NO_ENTRY.search(said)) and not _NO_ANSWER.search(said)


def is_refused(error: BaseException) -> bool:
    """Whether the server takes no writes (a standby), or none from this role."""
    return _state(error) in (_READ_ONLY, _NOT_ALLOWED)


def _state(error: BaseException | None) -> str | None:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return None if state is None else str(state)
