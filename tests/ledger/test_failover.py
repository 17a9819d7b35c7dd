"""A server dies under load and its standby takes over, by streaming replication.

What was acknowledged survives if the standby is synchronous. An asynchronous one may
lack the last rows: whoever wrote them, or knows the tip, does not spend before they are
entered again.
"""

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from demur import Budget, Ledger
from demur.core.accounting.events import Pure
from demur.errors import BudgetExceeded, LedgerDamaged
from demur.ledger import Timeouts, parse_receipts
from tests.ledger.kit import UNIT, NoServer, Server, ask, says, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

GRAIN = says(Pure(2.0**-10))
TERMS = {"dataset": "d", "budgets": {UNIT: Budget(1.0)}, "filter": "pure"}
PATIENT = Timeouts(lock=5.0, pause=5.0, call=60.0)


class Pair:
    """A primary and its standby, and the address that finds whichever takes writes."""

    def __init__(self, *, synchronous):
        names = "'*'" if synchronous else "''"
        self.primary = Server(shared_buffers="'16MB'")
        self.standby = None
        try:
            database = self.primary.new_database()
            self.standby = Server(primary=self.primary)
            # From now on: a commit would wait for a standby that is not there yet.
            self.primary.admin(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
            self.primary.admin("SELECT pg_reload_conf()")
            wait_until(lambda: self.sender() is not None)
            if synchronous:
                wait_until(lambda: self.replication("sync_state") == "sync")
        except BaseException:
            self.close()
            raise
        both = f"host={self.primary.folder}&host={self.standby.folder}"
        self.url = (
            f"postgresql://demur@/{database}?{both}&target_session_attrs=read-write"
        )
        self.database = database

    def replication(self, column):
        asked = f"SELECT {column} FROM pg_stat_replication WHERE state = 'streaming'"
        answer = ask(self.primary.url("postgres"), asked)
        return answer[0][0] if answer else None

    def sender(self):
        """The process that sends the log to the standby."""
        return self.replication("pid")

    def caught_up(self):
        """Whether the standby has all that the primary has."""
        behind = self.replication("pg_current_wal_lsn() <= replay_lsn")
        return behind is True

    def fail_over(self):
        self.primary.kill()
        self.standby.promote()

    def close(self):
        for server in (self.primary, self.standby):
            if server is not None:
                server.close()


@contextmanager
def pair(*, synchronous):
    try:
        servers = Pair(synchronous=synchronous)
    except NoServer as error:
        pytest.skip(f"machine: {error}")
    try:
        yield servers
    finally:
        servers.close()


class Writers:
    """Clients that charge as fast as it goes, and note what was acknowledged."""

    def __init__(self, url, folder, count):
        self.acknowledged: list[str] = []
        self.errors: list[BaseException] = []
        self._url, self._folder = url, folder
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=[i]) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, number):
        try:
            keys = self._folder / str(number)
            with Ledger.open(self._url, timeouts=PATIENT, keys=keys) as ledger:
                while not self._stop.is_set():
                    entry = ledger.charge(GRAIN, label="a grain")
                    self.acknowledged.append(entry.id)
        except BaseException as error:
            self.errors.append(error)

    def wait_for(self, more):
        goal = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= goal or self.errors, 60.0)
        return len(self.acknowledged)

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(90.0)


def missing(acknowledged, ledger):
    """What was acknowledged, and is not there or is there twice."""
    stored = [entry.id for entry in ledger.entries()]
    assert len(set(stored)) == len(stored)
    return set(acknowledged) - set(stored)


def test_what_was_acknowledged_survives_a_synchronous_failover(tmp_path, opened):
    with pair(synchronous=True) as servers:
        Ledger.open(servers.url, **TERMS).close()
        writers = Writers(servers.url, tmp_path, 3)
        try:
            writers.wait_for(30)
            servers.fail_over()
            writers.wait_for(30)
        finally:
            writers.end()
        assert not writers.errors
        ledger = opened(servers.url)
        assert missing(writers.acknowledged, ledger) == set()
        assert ledger.verify().ok


def lag(servers):
    """Let the primary go on without its standby."""
    wait_until(servers.caught_up)
    os.kill(servers.sender(), signal.SIGSTOP)


def test_rows_lost_by_an_asynchronous_failover_are_entered_again(tmp_path, opened):
    with pair(synchronous=False) as servers:
        one = opened(servers.url, keys=tmp_path / "one", timeouts=PATIENT, **TERMS)
        two = opened(servers.url, keys=tmp_path / "two", timeouts=PATIENT)
        one.charge(GRAIN, label="before")
        reserved = two.reserve(GRAIN, count=5, label="five")
        lag(servers)
        lost = [one.charge(GRAIN, label="lost", idempotency_key="k").id]
        reserved.draw_many(2)
        lost += [two.charge(GRAIN, label="lost too").id for _ in range(3)]
        tip = two.tip()
        servers.fail_over()

        after = opened(servers.url, keys=tmp_path / "three", timeouts=PATIENT)
        assert missing(lost, after) == set(lost)  # the twin of the synchronous test
        for spend in (
            lambda: one.charge(GRAIN, label="x"),
            lambda: reserved.draw(),
            # A client that was started again knows it from its receipts.
            lambda: opened(servers.url, keys=tmp_path / "one").charge(GRAIN, label="x"),
            lambda: Ledger.open(servers.url, tip=tip),
        ):
            with pytest.raises(LedgerDamaged, match="acknowledged.*Nothing was spent"):
                spend()
        receipts = [
            parse_receipts((tmp_path / name / "receipts.jsonl").read_bytes())
            for name in ("one", "two")
        ]
        with pytest.raises(ValueError, match="no receipt of row 3"):
            after.recover(tip, receipts=receipts[1])
        recovery = after.recover(tip, receipts=receipts[0] + receipts[1])
        assert recovery.complete and recovery.entered == 4
        assert missing(lost, after) == set() and after.verify(tip).ok
        assert one.find("k").id == lost[0]
        one.charge(GRAIN, label="after")
        assert [draw.index for draw in reserved.draw_many(3)] == [2, 3, 4]
        with pytest.raises(BudgetExceeded):
            reserved.draw()
        # Somebody who was never told of a row cannot know that it is missing.
        after.charge(GRAIN, label="a stranger")


@pytest.mark.deep
@pytest.mark.parametrize("synchronous", [True, False])
def test_many_failovers(tmp_path, opened, synchronous):
    """Ten in a row; what an asynchronous one lost is recovered from the receipts."""
    total = lost = 0
    for turn in range(10):
        with pair(synchronous=synchronous) as servers:
            Ledger.open(servers.url, **TERMS).close()
            writers = Writers(servers.url, tmp_path / str(turn), 4)
            try:
                writers.wait_for(20 * (turn + 1))
                servers.fail_over()
                time.sleep(2.0)
            finally:
                writers.end()
            ledger = opened(servers.url)
            gone = missing(writers.acknowledged, ledger)
            total, lost = total + len(writers.acknowledged), lost + len(gone)
            if synchronous:
                assert not gone and not writers.errors
                continue
            assert all(isinstance(e, LedgerDamaged) for e in writers.errors)
            if gone:
                receipts = [
                    receipt
                    for path in (tmp_path / str(turn)).glob("*/receipts.jsonl")
                    for receipt in parse_receipts(path.read_bytes())
                ]
                newest = max(
                    (r for r in receipts if any(g in r.body for g in gone)),
                    key=lambda r: r.sequence,
                )
                ledger.recover(newest.tip, receipts=receipts, write_down="all")
                assert not missing(writers.acknowledged, ledger)
                assert ledger.verify(newest.tip).ok
    print(f"{total} charges acknowledged, {lost} lost by the standby")
