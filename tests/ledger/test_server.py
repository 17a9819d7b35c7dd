"""What a session on a server is told to wait for, and ledgers of the schema before."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import demur
from demur import Budget, Ledger
from demur.core.accounting.events import Pure
from demur.durable import postgres
from demur.errors import (
    BudgetExceeded,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnreachable,
    NoiseReuse,
    OutcomeUnknown,
)
from demur.ledger import Timeouts
from demur.ledger.storage import header, rows
from tests.ledger.kit import BUDGET, HERE, UNIT, ask, edit, says, wait_until

GRAIN = says(Pure(2.0**-10))
TERMS: dict[str, Any] = {
    "dataset": "d",
    "budgets": {UNIT: Budget(1.0)},
    "filter": "pure",
}


def wake(process):
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def shown(ledger, name):
    with ledger._store.read() as connection:
        return connection.exec_driver_sql(f"SHOW {name}").scalar()


@pytest.mark.postgres
def test_every_session_is_bounded_whatever_the_server_is_told(
    server, postgres_url, opened
):
    name = postgres_url.split("/")[3].split("?")[0]
    for setting in ("lock_timeout", "idle_in_transaction_session_timeout"):
        server.admin(f"ALTER DATABASE {name} SET {setting} = 0")
    server.admin(f"ALTER DATABASE {name} SET statement_timeout = '1min'")
    ledger = opened(postgres_url, timeouts=Timeouts(lock=7.0, pause=3.5), **TERMS)
    assert shown(ledger, "lock_timeout") == "7s"
    assert shown(ledger, "idle_in_transaction_session_timeout") == "3500ms"
    assert shown(ledger, "statement_timeout") == "0"
    assert shown(ledger, "application_name") == "demur"
    assert shown(ledger, "client_connection_check_interval") == "5s"


@pytest.mark.postgres
def test_what_the_address_says_wins(postgres_url, opened):
    asked = "options=-c%20lock_timeout%3D9s%20--idle-in-transaction-session-timeout%3D0"
    ledger = opened(f"{postgres_url}&application_name=mine&{asked}", **TERMS)
    assert shown(ledger, "lock_timeout") == "9s"
    assert shown(ledger, "idle_in_transaction_session_timeout") == "0"
    assert shown(ledger, "application_name") == "mine"
    ledger.charge(GRAIN, label="x")


@pytest.mark.postgres
def test_what_the_environment_says_wins(postgres_url, opened, monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=8s")
    monkeypatch.setenv("PGAPPNAME", "theirs")
    ledger = opened(postgres_url, **TERMS)
    assert shown(ledger, "lock_timeout") == "8s"
    assert shown(ledger, "application_name") == "theirs"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("wish", ["off", "local", "remote_write", "remote_apply"])
def test_a_commit_is_durable_and_may_be_more(postgres_url, opened, wish):
    """remote_apply is stronger than on; nothing weaker is let through."""
    options = f"options=-c%20synchronous_commit%3D{wish}"
    ledger = opened(f"{postgres_url}&{options}", **TERMS)
    expected = "remote_apply" if wish == "remote_apply" else "on"
    assert shown(ledger, "synchronous_commit") == expected


@pytest.mark.postgres
def test_a_wrong_address_is_told_at_once_and_a_lost_server_waited_for(
    postgres_url, opened
):
    with pytest.raises(LedgerUnreachable, match="Nothing was spent"):
        Ledger.open(postgres_url.replace("host=", "host=/nowhere"))
    ledger = opened(postgres_url, **TERMS)
    ledger.charge(GRAIN, label="one")
    killed = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'demur'"
    )
    for read_or_write in (
        lambda: ledger.charge(GRAIN, label="two"),
        lambda: ledger.entries(),
    ):
        assert ask(postgres_url, killed)
        read_or_write()
    assert [e.label for e in ledger.entries()] == ["one", "two"]


PAGE = (HERE.parents[1] / "docs/howto/a_ledger_for_many_hosts.md").read_text()


def loop_of_the_page():
    """The function that the page tells people to copy."""
    (text,) = re.findall(r"\n(def charge_surely\(.*?)\n\n\n", PAGE, re.DOTALL)
    names = {"dm": demur}
    exec(text, names)
    return names["charge_surely"]


@pytest.mark.postgres
def test_what_does_not_pass_is_refused_at_once(server, postgres_url, opened):
    """The attack: a loop over what may pass must not go round for ever."""
    ledger = opened(postgres_url, **TERMS)
    name = postgres_url.split("?")[0].rpartition("/")[2]
    wrong = {
        "database": postgres_url.replace(f"/{name}", f"/no_{name}"),
        "role": postgres_url.replace("demur@", "nobody_at_all@"),
    }
    for what, url in wrong.items():
        with pytest.raises(LedgerRefused, match=f"{what} .*does not exist") as told:
            Ledger.open(url)
        assert "Nothing was spent" in str(told.value)
    began = time.monotonic()
    # In the middle of a session: the ledger's database is gone.
    ledger.charge(GRAIN, label="one")
    ledger._store._engine.dispose()
    server.admin(f"ALTER DATABASE {name} RENAME TO gone_{name}")
    try:
        with pytest.raises(LedgerRefused, match="does not exist"):
            loop_of_the_page()(ledger, GRAIN, "two", "key")
    finally:
        server.admin(f"ALTER DATABASE gone_{name} RENAME TO {name}")
    assert time.monotonic() - began < 30  # the twin that waits takes ten minutes
    assert [e.label for e in ledger.entries()] == ["one"]


def test_the_loop_of_the_page_ends_on_what_never_passes(capsys):
    class Away:
        calls = 0

        def charge(self, *_, **__):
            self.calls += 1
            raise LedgerUnreachable("away")

    away = Away()
    with pytest.raises(LedgerUnreachable):
        loop_of_the_page()(away, GRAIN, "x", "key")
    assert away.calls == 10
    capsys.readouterr()


def test_a_refusal_after_a_lost_commit_leaves_the_outcome_unknown(tmp_path, opened):
    """A grant that is taken away between two attempts says nothing of the first."""
    ledger = opened(tmp_path / "ledger.db", **TERMS)
    store, attempts = ledger._store, []

    class Remote(type(store)):
        is_sqlite = False

    @contextmanager
    def write(*_, **__):
        attempts.append(1)
        if len(attempts) == 1:
            raise OutcomeUnknown("lost")
        raise LedgerRefused("no right any more")
        yield

    store.write = write
    store.__class__ = Remote
    try:
        with pytest.raises(OutcomeUnknown):
            store.persist(lambda connection, again: None)
    finally:
        store.__class__ = Remote.__base__
        del store.write
    assert len(attempts) == 2


@pytest.mark.parametrize(
    "said, refusing",
    [
        ('FATAL:  database "x" does not exist', True),
        ('FATAL:  role "x" does not exist', True),
        ('FATAL:  password authentication failed for user "x"', True),
        ('FATAL:  no pg_hba.conf entry for host "192.0.2.1", user "x"', True),
        ('FATAL:  database "x" is not currently accepting connections', False),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
        ('connection refused\nFATAL:  database "x" does not exist', False),
        ("server closed the connection unexpectedly", False),
    ],
)
def test_refusals_and_what_passes_are_told_apart(said, refusing):
    class Driver:
        orig = said

    assert postgres.is_refusing(Driver()) is refusing
    assert postgres.is_passing(Driver()) is not refusing


@pytest.mark.postgres
@pytest.mark.slow
def test_a_lock_that_others_keep_is_given_up(postgres_url, opened):
    impatient = Timeouts(lock=0.2, pause=0.5, call=1.0)
    ledger = opened(postgres_url, timeouts=impatient, **TERMS)
    other = opened(postgres_url)
    with other._store.write() as connection:
        header.lock(connection)
        with pytest.raises(LedgerUnreachable, match="lock timeout|in time"):
            ledger.charge(GRAIN, label="x")
    assert ledger.entries() == []
    ledger.charge(GRAIN, label="x")


@pytest.mark.postgres
@pytest.mark.slow
def test_a_rollback_is_not_waited_for_for_ever(postgres_url, opened):
    """The server hangs just when a charge was declined."""
    limits = Timeouts(lock=0.5, pause=0.5, call=1.0)
    ledger = opened(postgres_url, timeouts=limits, **TERMS)
    stopped = []

    def decline(connection, _):
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        os.kill(backend, signal.SIGSTOP)
        stopped.append(backend)
        raise BudgetExceeded("declined")

    rescue = threading.Timer(10.0, lambda: wake(stopped[0]))
    rescue.start()
    begin = time.monotonic()
    try:
        with pytest.raises(LedgerUnreachable, match="in time"):
            ledger._store.persist(decline)
        assert time.monotonic() - begin < 5.0
    finally:
        rescue.cancel()
        for backend in stopped:
            wake(backend)


@pytest.mark.postgres
@pytest.mark.slow
def test_a_long_reading_may_take_longer_than_a_call(postgres_url, opened):
    """Only a first answer is waited for so long; a large ledger is read to its end."""
    limits = Timeouts(lock=0.2, pause=0.2, call=0.5)
    ledger = opened(postgres_url, timeouts=limits, **TERMS)
    with ledger._store.read() as connection:
        assert connection.exec_driver_sql("SELECT 7 FROM pg_sleep(1)").scalar() == 7


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGTERM])
def test_what_was_read_stays_read_when_the_link_is_lost_then(
    postgres_url, opened, fault
):
    """A key that is asked for after its charge is handed out, not lost with it."""
    ledger = opened(postgres_url, timeouts=Timeouts(silence=1.0), **TERMS)
    ledger.charge(GRAIN, label="x")
    begin = time.monotonic()
    with ledger._store.read() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        rescue = threading.Timer(10.0, wake, [backend])
        rescue.start()
        os.kill(backend, fault)
        time.sleep(0.2)
    assert time.monotonic() - begin < 5.0
    rescue.cancel()
    wake(backend)
    assert len(ledger.entries()) == 1


@contextmanager
def no_standby(server):
    """A COMMIT waits for a synchronous standby that is not there."""
    name = "synchronous_standby_names"
    try:
        server.admin(f"ALTER SYSTEM SET {name} = 'nobody'")
        server.admin("SELECT pg_reload_conf()")
        wait_until(lambda: ask(server.url("postgres"), f"SHOW {name}")[0][0])
        yield
    finally:
        server.admin(f"ALTER SYSTEM RESET {name}")
        server.admin("SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.postgres
def test_a_commit_that_no_standby_has_is_not_acknowledged(server, postgres_url, opened):
    """PostgreSQL answers a wait that was cancelled with success, and a warning."""
    ledger = opened(postgres_url, **TERMS)
    waiting = (
        "SELECT pid, pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event = 'SyncRep'"
    )
    look = waiting.replace(", pg_cancel_backend(pid)", "")
    entries: list[Any] = []
    charge = threading.Thread(
        target=lambda: entries.append(
            ledger.charge(GRAIN, label="x", idempotency_key="k")
        )
    )
    find = threading.Thread(
        target=lambda: entries.append(ledger.find("k", settled=True))
    )
    with no_standby(server):
        charge.start()
        wait_until(lambda: ask(postgres_url, look))
        # A commit that is under way: a plain look is too early.
        assert ledger.find("k") is None
        find.start()
        lock = look.replace("wait_event = 'SyncRep'", "wait_event_type = 'Lock'")
        wait_until(lambda: ask(postgres_url, lock))
        assert ask(postgres_url, waiting)
        # It asks again, and waits again; nobody was told that it was paid.
        time.sleep(0.3)
        wait_until(lambda: ask(postgres_url, look))
        assert not entries
    charge.join(20)
    find.join(20)
    (entry,) = ledger.entries()
    assert [each.id for each in entries] == [entry.id] * 2


@pytest.mark.slow
@pytest.mark.postgres
def test_a_step_after_the_charge_does_not_say_that_nothing_was_spent(
    server, postgres_url, opened
):
    ledger = opened(postgres_url, timeouts=Timeouts(pause=0.3, call=0.5), **TERMS)
    entry = ledger.charge(GRAIN, label="paid")
    name = postgres_url.split("/")[3].split("?")[0]
    killed = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = '{name}'"
    )
    server.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.admin(killed)
    for step in (
        lambda: ledger._key(entry, None),
        lambda: ledger._commit(entry, "artefact"),
    ):
        with pytest.raises(LedgerUnreachable, match="before it stays spent"):
            step()
    server.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.slow
@pytest.mark.postgres
def test_a_client_needs_no_right_to_change_what_was_written(
    server, postgres_url, opened
):
    """The roles of docs/howto/a_ledger_for_many_hosts.md."""
    page = (HERE.parents[1] / "docs/howto/a_ledger_for_many_hosts.md").read_text()
    (grants,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    owner = opened(postgres_url, **TERMS)
    for statement in grants.split(";"):
        if statement.strip():
            edit(postgres_url, statement)
    try:
        writer = opened(postgres_url.replace("demur@", "writer@"))
        entry = writer.charge(GRAIN, label="x", idempotency_key="k")
        writer.reserve(GRAIN, count=3, label="y").draw_many(2)
        writer.annotate(entry, "utility", {"accuracy": 0.5})
        writer._commit(entry, "artefact")
        reader = opened(postgres_url.replace("demur@", "reader@"))
        assert reader.verify(owner.tip()).ok and reader.epsilon(delta=0.0) > 0
        with pytest.raises(LedgerRefused, match="permission denied"):
            reader.charge(GRAIN, label="z")
        for role, harm in (
            ("writer", "UPDATE demur_rows SET body = ''"),
            ("writer", "DELETE FROM demur_rows"),
            ("writer", "DROP TABLE demur_rows"),
            ("reader", "UPDATE demur_ledger SET totals = '[{}]'"),
        ):
            with pytest.raises(Exception, match="permission denied|must be owner"):
                edit(postgres_url.replace("demur@", f"{role}@"), harm)
    finally:
        for role in ("reader", "writer"):
            edit(postgres_url, f"DROP OWNED BY {role}")
            edit(postgres_url, f"DROP ROLE {role}")


@pytest.mark.postgres
@pytest.mark.slow
def test_a_standby_can_be_read_and_declines_to_write(postgres_url, opened):
    opened(postgres_url, **TERMS).charge(GRAIN, label="x")
    standby = f"{postgres_url}&options=-c%20default_transaction_read_only%3Don"
    ledger = opened(standby, timeouts=Timeouts(pause=0.5, call=1.0))
    assert len(ledger.entries()) == 1
    with pytest.raises(LedgerUnreachable, match="read-only"):
        ledger.charge(GRAIN, label="y")


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect": 0.0},
        {"silence": float("nan")},
        {"lock": float("inf")},
        {"call": "60"},
        {"pause": True},
        {"pause": 60.0},
        {"lock": 1e7},
    ],
)
def test_time_outs_that_make_no_sense_are_refused(wrong):
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        Timeouts(**wrong)


def test_an_old_server_is_not_told_what_it_does_not_know():
    new, old = (postgres.session_settings(Timeouts(), v) for v in (150000, 110000))
    assert set(new) - set(old) == {"tcp_user_timeout"}


def test_a_place_that_holds_something_else_is_refused(ledger_url, opened):
    """A ledger of an earlier format, and, in a file, anything that is no ledger."""
    terms = {"dataset": "d", "budgets": {UNIT: BUDGET}}
    edit(ledger_url, "CREATE TABLE demur_book (id INTEGER)")
    with pytest.raises(
        LedgerMismatch, match="earlier demur|of another.*Nothing was chan"
    ):
        opened(ledger_url, **terms)
    edit(ledger_url, "DROP TABLE demur_book")
    edit(ledger_url, "CREATE TABLE bookmarks (id INTEGER)")
    if "postgres" in ledger_url:  # a database may hold more than one thing
        assert opened(ledger_url, **terms).entries() == []
        return
    with pytest.raises(LedgerMismatch, match="no ledger at this address: bookmarks"):
        opened(ledger_url, **terms)
    assert ask(ledger_url, "SELECT count(*) FROM bookmarks") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, -2, 3, None])
def test_a_forged_row_of_draws_is_found(new_ledger, ledger_url, count):
    """Even with a chain that was computed anew."""
    ledger = new_ledger(budgets={UNIT: BUDGET})
    reserved = ledger.reserve(GRAIN, count=2, label="two")
    with ledger._store.write() as connection:
        state = header.lock(connection)
        body = {"kind": "draw", "id": reserved.entry.id, "index": 0, "count": count}
        rows.append(connection, state, body | {"time": "now"}, None)
    assert not ledger.verify(ledger.tip()).ok


@pytest.mark.slow
def test_a_key_that_outlived_its_commit_is_wiped(
    new_ledger, opened, ledger_url, tmp_path
):
    """The answer to the commit was lost, or the process died before the wipe."""
    keys = tmp_path / "keys"
    ledger = new_ledger(keys=keys)
    asked = {"label": "x", "digest": "d", "idempotency_key": "k"}
    entry = ledger.charge(GRAIN, **asked)
    ledger._keys.wipe = lambda _: None
    ledger._commit(entry, "artefact")
    assert (keys / f"{entry.id}.key").exists()
    later = opened(ledger_url, keys=keys)
    with pytest.raises(NoiseReuse, match="committed"):
        later._key(later.charge(GRAIN, **asked), "d")
    assert not (keys / f"{entry.id}.key").exists()
