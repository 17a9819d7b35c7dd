"""A writer killed at random points: what was acknowledged is there, and stays spent."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from demur import Budget, Ledger
from demur.core.accounting.events import Pure
from demur.durable import sqlite
from demur.errors import DemurError, LedgerDamaged
from demur.ledger import Timeouts
from demur.ledger.rules import amounts
from tests.ledger.kit import HERE, UNIT, ask, is_file, says, subprocess_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork"),
]
GRAIN = says(Pure(2.0**-30), name="a grain")


class Killed:
    """A launcher of writers, and what each said before it was killed."""

    def __init__(self, url, mode):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "writer.py"), url, mode],
            env=subprocess_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def once(self, delay, since):
        """Kill a writer `delay` seconds after it said `since`; the lines it got out."""
        self.input.write(b"go\n")
        self.input.flush()
        lines: list[list[str]] = []
        while True:
            line = self.output.readline().decode().split()
            assert line, "the launcher died"
            if line[0] == "pid":
                pid = int(line[1])
            if line[0] == since:
                killer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
                killer.start()
            if line[0] == "dead":
                killer.join()
                return lines
            assert line[0] != "failed", line
            lines.append(line)

    def close(self):
        self.input.close()
        self.output.close()
        assert self.process.wait(30) == 0


def spent(url):
    ((text,),) = ask(url, "SELECT totals FROM demur_ledger")
    (total,) = amounts.from_text(text)
    return total.get("block epsilon", Fraction(0))


def check(url, acknowledged, before):
    """Everything that must hold after a crash; the state to compare with next time."""
    with Ledger.open(url, tip=before and before[0]) as ledger:
        verification = ledger.verify(before and before[0])
        assert verification.ok, str(verification)
        rows = set(ask(url, "SELECT kind, entry_id FROM demur_rows"))
        missing = [a for a in acknowledged if a not in rows]
        if missing:
            raise AssertionError(f"acknowledged and lost: {missing}")
        total = spent(url)
        assert before is None or total >= before[1], "the spend shrank"
        counts = ask(url, "SELECT sum(count) FROM demur_rows WHERE kind = 'charge'")
        assert total == Fraction(int(counts[0][0] or 0), 2**30)
        entry = ledger.charge(GRAIN, label="the ledger is usable")
        ledger._commit(entry, "artefact")
        return ledger.tip(), spent(url)


def check_copy(url, acknowledged):
    """A copy of the main file alone has all that was acknowledged, or is refused."""
    copy = Path(url).with_name("copy.db")
    shutil.copyfile(url, copy)
    try:
        with Ledger.open(copy) as ledger:
            ledger.charge(GRAIN, label="the copy is usable")
            rows = set(ask(str(copy), "SELECT kind, entry_id FROM demur_rows"))
            assert set(acknowledged) <= rows, "a copy lacks what was acknowledged"
    except LedgerDamaged:
        pass  # torn, and said so
    finally:
        for left in (copy, sqlite.journal_of(copy)):
            left.unlink(missing_ok=True)


def kill_many(url, times, mode, seed=7):
    """Kill writers at random points; how many rows they had acknowledged."""
    with Ledger.open(url, dataset="d", budgets={UNIT: Budget(1.0)}, filter="pure"):
        pass
    draw = random.Random(seed)
    launcher = Killed(url, mode)
    before, acknowledged = None, []
    try:
        for _ in range(times):
            # Most die at work, some while they open, which a busy machine draws out.
            since = "opened" if draw.random() < 0.8 else "pid"
            lines = launcher.once(draw.uniform(0.0, 0.25), since)
            acknowledged += [(w[1], w[2]) for w in lines if w[0] == "row"]
            if mode == "honest" and is_file(url):
                check_copy(url, acknowledged)
            before = check(url, acknowledged, before)
    finally:
        launcher.close()
    return len(acknowledged)


def test_nothing_acknowledged_is_lost(ledger_url):
    assert kill_many(ledger_url, 12, "honest") > 12


@pytest.mark.deep
def test_nothing_acknowledged_is_lost_in_two_hundred_crashes(ledger_url):
    rows = kill_many(ledger_url, 200, "honest", seed=int(time.time()))
    print(f"200 kills, {rows} rows acknowledged, none lost")
    assert rows > 200


def test_the_check_finds_a_writer_that_acknowledges_too_early(ledger_url):
    """The sabotaged twin: the very same check must fail."""
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        kill_many(ledger_url, 40, "sabotaged")


@pytest.mark.postgres
def test_a_server_that_stops_at_once_loses_nothing_acknowledged(server, postgres_url):
    """An immediate stop of the server: what is not on disk in its log is gone."""
    terms: dict[str, Any] = {
        "dataset": "d",
        "budgets": {UNIT: Budget(1.0)},
        "filter": "pure",
    }
    ledger = Ledger.open(postgres_url, timeouts=Timeouts(pause=1.0, call=2.0), **terms)
    charged = [ledger.charge(GRAIN, label="before").id for _ in range(20)]
    server.stop("immediate")
    with pytest.raises(DemurError, match="could not be reached"):
        ledger.charge(GRAIN, label="nobody there")
    server.start()
    ledger.charge(GRAIN, label="after")
    assert [e.id for e in ledger.entries()][:20] == charged
    assert ledger.verify(ledger.tip()).ok
    ledger.close()
