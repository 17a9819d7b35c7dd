"""A store's errors and waits, one by one: what is known after each."""

import os
import sqlite3

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from demur.core.errors import (
    DemurError,
    LedgerDamaged,
    LedgerRefused,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.durable import store as stores
from demur.durable.postgres import Timeouts
from demur.durable.store import Store, _clear_errors, _Progress

TIMES = Timeouts(connect=2, silence=3, lock=4, pause=0.5, call=10)


def failed(text="the link is gone", code=None, kind=OperationalError, lost=False):
    """An error as SQLAlchemy hands it on, with SQLite's own code."""
    driver = sqlite3.OperationalError(text)
    if code is not None:
        driver.sqlite_errorcode = code
    return kind("SELECT 1", {}, driver, connection_invalidated=lost)


class Clock:
    """Time that passes while somebody sleeps, and not otherwise."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stores, "time", clock)
    return clock


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path / "store.db"), TIMES)
    with made.write() as connection:
        connection.execute(sa.text("CREATE TABLE t (x INTEGER)"))
    yield made
    made.close()


def count(store):
    with store.read() as connection:
        return connection.execute(sa.text("SELECT count(*) FROM t")).scalar()


def insert(connection):
    connection.execute(sa.text("INSERT INTO t VALUES (1)"))


# -- what an error means ---------------------------------------------------------------

MEANT = [
    (failed("file is not a database"), False, LedgerDamaged, "this file is no place"),
    (failed("image is malformed"), True, LedgerDamaged, "this file is no place"),
    (
        failed(code=sqlite3.SQLITE_READONLY_ROLLBACK),
        False,
        LedgerUnreachable,
        "journal has to be",
    ),
    (failed(code=sqlite3.SQLITE_READONLY), False, LedgerRefused, "privilege"),
    (failed(code=sqlite3.SQLITE_CANTOPEN), False, LedgerRefused, "privilege"),
    (failed(code=sqlite3.SQLITE_PERM), True, LedgerRefused, "privilege"),
    (
        failed(code=sqlite3.SQLITE_READONLY | (1 << 8)),
        False,
        LedgerRefused,
        "Ask the owner of the place",
    ),
    (failed(), False, LedgerUnreachable, "could not be reached: the link is gone"),
    (failed(), True, OutcomeUnknown, "lost during a commit"),
    (failed("database is locked"), True, LedgerUnreachable, "Try again later"),
    (failed("one\ntwo"), False, LedgerUnreachable, r"reached: one\. Try"),
    (failed(kind=DBAPIError, lost=True), True, OutcomeUnknown, "may or may"),
    (PoolTimeout("no connection"), False, LedgerUnreachable, "no connection"),
    (PoolTimeout("no connection"), True, OutcomeUnknown, "no connection"),
]


@pytest.mark.parametrize(("error", "committing", "kind", "text"), MEANT)
def test_an_error_of_the_database_says_what_is_known(error, committing, kind, text):
    progress = _Progress()
    assert progress.committing is False
    progress.committing = committing
    with pytest.raises(DemurError, match=text) as caught:
        with _clear_errors("place", progress):
            raise error
    assert type(caught.value) is kind and caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [failed(kind=ProgrammingError), ZeroDivisionError(), KeyboardInterrupt()]
)
def test_errors_of_our_own_are_raised_as_they_are(error):
    with pytest.raises(type(error)) as caught:
        with _clear_errors("place", _Progress()):
            raise error
    assert caught.value is error


def test_a_note_on_an_error_is_what_is_shown():
    error = failed()
    error.add_note("the server did not answer in time")
    with pytest.raises(LedgerUnreachable, match="did not answer in time"):
        with _clear_errors("place", _Progress()):
            raise error


# -- waiting ---------------------------------------------------------------------------


class Failing:
    """The first looks at the file fail; how many were made."""

    def __init__(self, store, monkeypatch, error, times):
        self.looks = 0
        check = store._check_file

        def look():
            self.looks += 1
            if self.looks <= times:
                raise error
            check()

        monkeypatch.setattr(store, "_check_file", look)


ROLLBACK = sqlite3.SQLITE_READONLY_ROLLBACK


def test_a_journal_that_goes_away_is_waited_for_a_second(store, monkeypatch, clock):
    met = Failing(store, monkeypatch, failed(code=ROLLBACK), 4)
    assert count(store) == 0 and met.looks == 5
    assert clock.slept == [0.05, 0.1, 0.2, 0.4]


def test_a_journal_that_stays_was_left_behind(store, monkeypatch, clock):
    Failing(store, monkeypatch, failed(code=ROLLBACK), 99)
    with pytest.raises(LedgerUnreachable, match="open it once for writing"):
        count(store)
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8], "a second has passed"


def test_other_errors_of_a_file_are_not_waited_for(store, monkeypatch, clock):
    for error in (failed(), failed(code=sqlite3.SQLITE_READONLY)):
        met = Failing(store, monkeypatch, error, 1)
        with pytest.raises(DemurError):
            count(store)
        assert met.looks == 1 and clock.slept == []
    monkeypatch.undo()
    assert count(store) == 0


def test_a_server_that_has_answered_is_waited_for(store, monkeypatch, clock):
    """And one that never did is not: its address or password is wrong."""
    monkeypatch.setattr(Store, "is_sqlite", False)
    monkeypatch.setattr(stores.postgres, "is_passing", lambda error: True)
    monkeypatch.setattr(stores.time, "now", 100.0)
    error = failed()
    assert store._met and store._worth_waiting(error, 100.5)
    assert not store._worth_waiting(error, 100.0)
    monkeypatch.setattr(stores.postgres, "is_passing", lambda error: False)
    assert not store._worth_waiting(error, 100.5)
    monkeypatch.setattr(stores.postgres, "is_passing", lambda error: True)
    store._met = False
    assert not store._worth_waiting(error, 100.5)
    store._met = True
    monkeypatch.setattr(Store, "is_sqlite", True)
    assert not store._worth_waiting(error, 100.5)


# -- repeating -------------------------------------------------------------------------


class Transactions:
    """`write` of a server whose transactions end as they are told to."""

    def __init__(self, store, monkeypatch, *ends):
        self.ends, self.asked = list(ends), []
        monkeypatch.setattr(Store, "is_sqlite", False)
        monkeypatch.setattr(stores.postgres, "is_passing", lambda error: True)
        monkeypatch.setattr(store, "write", self.write)

    def write(self, give_up, *, repeated):
        self.asked.append((give_up, repeated))
        return self

    def __enter__(self):
        return "a connection"

    def __exit__(self, *_):
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if end is not None:
            raise end


def heard(seen):
    return lambda connection, again: seen.append(again) or len(seen)


def test_a_lost_commit_is_looked_for_when_it_is_repeated(store, monkeypatch, clock):
    lost, away = OutcomeUnknown("lost"), LedgerUnreachable("away")
    made, seen = Transactions(store, monkeypatch, away, lost, away, None), []
    assert store.persist(heard(seen)) == 4
    assert seen == [False, False, True, True], "from the lost commit on"
    assert clock.slept == [0.05, 0.1, 0.2]
    assert made.asked == [(110.0, True)] * 4, "one time for all of it"


def test_where_time_runs_out_what_is_known_is_said(store, monkeypatch, clock):
    lost, away = OutcomeUnknown("lost"), LedgerUnreachable("away")
    Transactions(store, monkeypatch, away)
    with pytest.raises(LedgerUnreachable):
        store.persist(heard([]))
    assert 9.0 < clock.now - 100.0 <= 10.0 and max(clock.slept) == 1.0
    Transactions(store, monkeypatch, lost, away)
    with pytest.raises(OutcomeUnknown) as caught:
        store.persist(heard([]))
    assert caught.value is lost


def test_a_refusal_is_final_and_says_no_more_than_is_known(store, monkeypatch, clock):
    lost, refused = OutcomeUnknown("lost"), LedgerRefused("no right")
    Transactions(store, monkeypatch, refused)
    with pytest.raises(LedgerRefused):
        store.persist(heard([]))
    assert clock.slept == []
    Transactions(store, monkeypatch, lost, refused)
    with pytest.raises(OutcomeUnknown) as caught:
        store.persist(heard([]))
    assert caught.value is lost and caught.value.__cause__ is refused


def test_what_does_not_pass_is_not_repeated(store, monkeypatch, clock):
    Transactions(store, monkeypatch, LedgerUnreachable("away"))
    monkeypatch.setattr(stores.postgres, "is_passing", lambda error: False)
    with pytest.raises(LedgerUnreachable):
        store.persist(heard([]))
    Transactions(store, monkeypatch, LedgerUnreachable("away"))
    monkeypatch.setattr(Store, "is_sqlite", True)  # a file does not come back
    with pytest.raises(LedgerUnreachable):
        store.persist(heard([]))
    assert clock.slept == []


# -- files -----------------------------------------------------------------------------


def test_a_write_is_there_or_is_not(store):
    with store.write() as connection:
        insert(connection)
    with pytest.raises(ZeroDivisionError), store.write() as connection:
        insert(connection)
        raise ZeroDivisionError
    assert store.persist(lambda connection, again: (insert(connection), again)[1]) is (
        False
    )
    assert count(store) == 2


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_not_the_one_that_was_opened_takes_nothing(
    store, replaced, tmp_path
):
    moved = tmp_path / "moved.db"
    with pytest.raises(LedgerDamaged, match="while it was open"):
        with store.write() as connection:
            insert(connection)
            os.rename(store.path, moved)
            if replaced:
                store.path.write_bytes(moved.read_bytes())
    word = "replaced" if replaced else "removed"
    with pytest.raises(LedgerDamaged, match=f"'store.db' was {word} while it was open"):
        count(store)
    if replaced:
        store.path.unlink()
    os.rename(moved, store.path)
    assert count(store) == 0, "the same file again, and nothing in it"


def test_a_store_in_memory_ends_with_its_process_and_its_closing(monkeypatch):
    store = Store(None)
    assert store.is_sqlite and not store.durable and store.path is None
    with store.write() as connection:
        connection.execute(sa.text("CREATE TABLE t (x INTEGER)"))
        insert(connection)
    assert count(store) == 1
    mine = os.getpid()
    monkeypatch.setattr(stores.os, "getpid", lambda: mine + 1)
    with pytest.raises(DemurError, match="belongs to the process that opened it"):
        count(store)
    store.close()  # of another process: nothing is closed
    monkeypatch.undo()
    assert count(store) == 1
    store.close()
    with pytest.raises(DemurError, match="was in memory and is closed"):
        count(store)


def test_a_file_is_opened_anew_after_closing_and_in_a_forked_child(store, monkeypatch):
    assert store.durable and store.path.name == "store.db"
    store.close()
    assert count(store) == 0
    mine, lock, left = os.getpid(), store._lock, len(stores._LEFT_TO_PARENT)
    pool = store._engine.pool
    monkeypatch.setattr(stores.os, "getpid", lambda: mine + 1)
    assert count(store) == 0
    assert stores._LEFT_TO_PARENT[left:] == [pool], "not used, and not closed"
    assert store._engine.pool is not pool and store._lock is not lock
    assert store._process == mine + 1
    assert count(store) == 0 and len(stores._LEFT_TO_PARENT) == left + 1
