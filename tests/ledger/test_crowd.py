"""Many processes, one ledger: no lost update, never over budget, the chain intact."""

import json
import os
import sys
from typing import Any

import pytest

from demur import Budget, Ledger
from demur.core.accounting.events import Pure
from demur.errors import BudgetExceeded
from demur.ledger.storage import header
from tests.families import thinned
from tests.ledger.crowd import GRAIN
from tests.ledger.kit import UNIT, run_script, says

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork"),
]
many = pytest.mark.parametrize("processes", thinned([8, 32], 2))


def crowd(url, processes, tries, mode):
    lines = run_script("crowd.py", url, processes, tries, mode).splitlines()
    outcomes = [json.loads(line) for line in lines]
    assert len(outcomes) == processes
    return outcomes


@many
def test_never_over_budget_and_nothing_lost(ledger_url, opened, processes):
    """128 grains fit; the processes try for 160."""
    outcomes = crowd(ledger_url, processes, 160 // processes, "charge")
    entries = [tuple(e) for f in outcomes for e in f["entries"]]
    assert len(entries) == 128
    assert sum(f["declined"] for f in outcomes) == 160 - 128
    ledger = opened(ledger_url)
    assert {(e.id, e.sequence) for e in ledger.entries()} == set(entries)
    assert sorted(sequence for _, sequence in entries) == list(range(1, 129))
    assert ledger.status()[0].spent_epsilon == 1.0 == ledger.epsilon(delta=0.0)
    assert ledger.verify(ledger.tip()).ok
    with pytest.raises(BudgetExceeded):
        ledger.charge(GRAIN, label="one more")


@many
def test_a_raced_key_is_one_entry_and_one_noise(ledger_url, opened, processes):
    outcomes = crowd(ledger_url, processes, 3, "race")
    ledger = opened(ledger_url)
    assert len(ledger.entries()) == 3
    for i in range(3):
        assert len({tuple(f["entries"][i]) for f in outcomes}) == 1
    assert ledger.verify(ledger.tip()).ok


@many
def test_a_raced_reservation_is_drawn_as_often_as_paid(ledger_url, opened, processes):
    outcomes = crowd(ledger_url, processes, 128 // processes, "draw")
    draws = sorted(i for f in outcomes for i in f["draws"])
    assert draws == list(range(100))
    assert sum(f["declined"] for f in outcomes) == 128 - 100
    ledger = opened(ledger_url)
    assert len(ledger.entries()) == 1 and ledger.verify(ledger.tip()).ok


@pytest.mark.parametrize("broken", [False, True], ids=["locked", "no lock"])
def test_the_lock_is_what_keeps_the_budget(postgres_url, broken, monkeypatch):
    """The sabotaged twin: two writers that read the totals without the lock."""
    if broken:
        monkeypatch.setattr(header, "_STATE_LOCKED", header._STATE)
    terms: dict[str, Any] = {
        "dataset": "d",
        "budgets": {UNIT: Budget(1.0)},
        "filter": "pure",
    }
    with Ledger.open(postgres_url, **terms) as one:
        with Ledger.open(postgres_url) as two:
            with one._store.write() as connection:
                header.lock(connection)
                with two._store.write() as other:
                    if not broken:
                        other.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")
                        with pytest.raises(Exception, match="lock timeout"):
                            header.lock(other)
                        return
                    header.lock(other)  # nobody waits: both decide on one total


def test_a_durable_ledger_goes_on_after_a_fork(ledger_url, opened):
    """Parent and children use one Ledger object that was in use before the fork."""
    ledger = opened(ledger_url, dataset="d", budgets={UNIT: Budget(1.0)}, filter="pure")
    grain = says(Pure(1.0 / 64))
    ledger.charge(grain, label="before")
    ledger.epsilon(delta=0.0)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for _ in range(5):
                    ledger.charge(grain, label="child")
                code = 0 if ledger.verify().ok else 2
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    for _ in range(5):
        ledger.charge(grain, label="parent")
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ledger.charge(grain, label="after")
    assert len(ledger.entries()) == 1 + 4 * 5 + 5 + 1
    assert ledger.status()[0].spent_epsilon == 27 / 64
    assert ledger.verify(ledger.tip()).ok


@pytest.mark.postgres
def test_the_ledger_does_not_rely_on_the_defaults_of_a_server(server, postgres_url):
    name = postgres_url.split("/")[3].split("?")[0]
    alter = f"ALTER DATABASE {name} SET"
    server.admin(f"{alter} synchronous_commit = off")
    server.admin(f"{alter} default_transaction_isolation = 'serializable'")
    server.admin(f"{alter} client_encoding = 'latin1'")
    with Ledger.open(
        postgres_url, dataset="d", budgets={UNIT: Budget(1.0)}, filter="pure"
    ) as ledger:
        with ledger._store.write() as connection:
            ask = connection.exec_driver_sql
            assert ask("SHOW synchronous_commit").scalar() == "on"
            assert ask("SHOW transaction_isolation").scalar() == "read committed"
        with ledger._store.read() as connection:
            ask = connection.exec_driver_sql
            assert ask("SHOW transaction_isolation").scalar() == "repeatable read"
        ledger.charge(GRAIN, label="grüße 雨", idempotency_key="schlüssel 雨")
        assert ledger.entries()[0].label == "grüße 雨"


def test_sqlite_is_durable_in_the_strict_way(tmp_path):
    with Ledger.open(
        tmp_path / "b.db", dataset="d", budgets={UNIT: Budget(1.0)}, filter="pure"
    ) as ledger:
        with ledger._store.write() as connection:
            ask = connection.exec_driver_sql
            assert ask("PRAGMA journal_mode").scalar() == "persist"
            assert ask("PRAGMA synchronous").scalar() == 2  # FULL
