"""A service killed at random points: ledger, journal, certificates and model agree."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from demur.core.errors import DemurError
from demur.unlearning import make_mode
from demur.unlearning.records import journal
from tests.ledger.kit import subprocess_environment
from tests.unlearning.forgetter import KINDS
from tests.unlearning.service_kit import (
    DIM,
    NOISY,
    UnlearningService,
    plain_seals,
    record,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork"),
]
ROOT = Path(__file__).parents[2]
OGD = {"mode": "ogd", "dimension": DIM} | NOISY
RIDGE = {
    "mode": "ridge",
    "dimension": DIM,
    "record_store": "encrypted",
    "durability": "batch",
    "batch_size": 7,
}


def kill(pid):
    with contextlib.suppress(ProcessLookupError):  # it failed, and said so
        os.kill(pid, signal.SIGKILL)


class Killed:
    """A launcher of services, and what each said before it was killed."""

    def __init__(self):
        environment = subprocess_environment(OMP_NUM_THREADS=1)
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forgetter.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def once(self, request, words, part):
        """Kill a service some time after so many words; what it had said.

        The time is a part of its mean time between two words, so that a busy machine
        sees as much work as an idle one.
        """
        self.input.write(f"{json.dumps(request)}\n".encode())
        self.input.flush()
        lines: list[list[str]] = []
        killer, begun = None, time.monotonic()
        while True:
            line = self.output.readline().decode().split()
            assert line, "the launcher died"
            if line[0] == "pid":
                pid, begun = int(line[1]), time.monotonic()
            if len(lines) == words and line[0] != "dead":
                pace = (time.monotonic() - begun) / words if words else 0.05
                killer = threading.Timer(part * pace, kill, (pid,))
                killer.start()
            if line[0] == "dead":
                if killer is not None:
                    killer.join()
                failed = [words for words in lines if words[0] == "failed"]
                assert not failed, " ".join(failed[0])
                return lines
            lines.append(line)

    def close(self):
        self.input.close()
        self.output.close()
        assert self.process.wait(30) == 0


class Witness:
    """What was acknowledged and seen, over all the lives of one service."""

    def __init__(self):
        self.inserted: dict[int, int] = {}
        self.deleted: dict[tuple[int, int], str] = {}
        self.seen: set[str] = set()
        self.entries: dict[str, list[str]] = {}  # of each ledger
        self.free = 0

    def listen(self, lines):
        for word, *rest in lines:
            if word == "inserted":
                number, generation = map(int, rest)
                self.inserted[number] = generation
                self.free = max(self.free, number + 1)
            elif word == "deleted":
                number, generation, tip = int(rest[0]), int(rest[1]), rest[2]
                known = self.deleted.setdefault((number, generation), tip)
                assert known == tip, "one deletion, two certificates"
            elif word == "seen":
                self.seen.add(rest[0])

    def check(self, url):
        """Everything that must hold after a crash."""
        with UnlearningService.open(url) as service:
            state = service._state
            found = service.verify()
            assert found.ok, str(found)
            for number, generation in self.inserted.items():
                known = state.index.get(state.directory.find(number), 0)
                if abs(known) < generation:
                    raise AssertionError(f"acknowledged and lost: insert {number}")
            for (number, generation), tip in self.deleted.items():
                pseudonym = state.directory.find(number)
                certificate = state.certificate(pseudonym, generation)
                if certificate is None or state.index[pseudonym] == generation:
                    raise AssertionError(f"acknowledged and lost: delete {number}")
                assert str(certificate.tip) == tip, "another certificate"
            with state.database.read() as connection:
                rows = list(journal.walk(connection))
            states = {body["state"] for _, body in rows if "state" in body}
            unknown = self.seen - states - {state.terms.model().digest()}
            assert not unknown, "a state was seen that is not in the journal"
            ticks = [0]
            for row, body in rows:
                tick = ticks[-1] + (row.op == "insert")
                tick = body["records"] if row.op == "retrain" else tick
                ticks.append(ticks[body["to"]] if row.op == "restore" else tick)
            assert state.tick == ticks[-1]
            self.check_ledger(service, rows)
            if state.terms.mode == "ridge":
                self.check_survivors(service)

    def check_ledger(self, service, rows):
        """Nothing is spent twice, nothing is refunded, nothing is free."""
        ledger = service.ledger
        kinds = ("deletion ", "publication ")
        entries = [e.id for e in ledger.entries() if e.label.startswith(kinds)]
        entries = entries[1:] if service._opened.charges.budget_per_person else entries
        said = {"paid": set(), "lost": set()}
        for row, body in rows:
            if row.op in (*journal.PAID, "abandon"):
                charged = body.get("certificate", body)
                if charged["entry"] is not None and charged["ledger"] == ledger.id:
                    kind = "lost" if row.op == "abandon" else "paid"
                    said[kind].add(charged["entry"])
        paid, lost = said["paid"], said["lost"]
        assert set(entries) == paid | lost and not paid & lost, "ledger and journal"
        known = self.entries.setdefault(ledger.id, [])
        assert entries[: len(known)] == known, "the ledger shrank"
        self.entries[ledger.id] = entries

    def check_survivors(self, service):
        """The model is bit for bit one that learned the live records alone."""
        fresh = make_mode("ridge", DIM)
        # Some of the newest may be there without having been acknowledged.
        for number in range(self.free + 1000):
            pseudonym = service._state.directory.find(number)
            if service._state.index.get(pseudonym, 0) > 0:
                fresh.insert(*record(number))
        assert fresh.digest() == service._state.mode.digest(), "the model"


@pytest.fixture(autouse=True)
def _plain():
    """What was seen is compared with what the journal names."""
    with plain_seals():
        yield


@pytest.fixture(scope="module")
def launcher():
    """One for all: it takes seconds to start."""
    found = Killed()
    yield found
    found.close()


def kill_many(launcher, url, times, options, kind="honest", seed=7, every=1):
    """Kill services at random points; the witness."""
    with UnlearningService.open(url, **options):
        pass
    draw, witness = random.Random(seed), Witness()
    for number in range(times):
        # Most die at work, some while they open and recover (after word 0).
        words = draw.randrange(1, 14) if draw.random() < 0.8 else 0
        request = [str(url), kind, options, witness.free]
        witness.listen(launcher.once(request, words, draw.uniform(0.0, 2.0)))
        if number % every == every - 1:
            witness.check(url)
    return witness


@pytest.mark.parametrize("options", [OGD, RIDGE], ids=["ogd", "ridge"])
def test_nothing_acknowledged_is_lost_and_everything_agrees(
    launcher, tmp_path, options
):
    witness = kill_many(launcher, tmp_path / "model.db", 12, options)
    assert len(witness.inserted) > 12 and len(witness.deleted) > 2


@pytest.mark.deep
@pytest.mark.parametrize("options", [OGD, RIDGE], ids=["ogd", "ridge"])
def test_two_hundred_crashes(launcher, tmp_path, options):
    seed = int(time.time())
    witness = kill_many(launcher, tmp_path / "model.db", 200, options, seed=seed)
    paid = sum(map(len, witness.entries.values()))
    print(
        f"200 kills: {len(witness.inserted)} inserts and {len(witness.deleted)}"
        f" deletions acknowledged, {paid} paid for, none lost"
    )
    assert len(witness.deleted) > 80


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "honest"])
def test_saboteurs_pass_while_nobody_dies(tmp_path, kind, monkeypatch):
    """It is the crash that convicts them, not their disguise."""
    monkeypatch.setattr("tests.unlearning.forgetter.say", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(UnlearningService, "_deletions", KINDS[kind][0])
        with UnlearningService.open(tmp_path / "model.db", **OGD) as service:
            for number in range(6):
                service.insert(*record(number), record_id=number)
            service.delete(1)
            service.delete_many([2, 3])
    Witness().check(tmp_path / "model.db")


@pytest.mark.parametrize(
    "kind, words",
    [
        ("spends_last", "not in the ledger|ledger lacks deletions"),
        ("shows_early", "seen that is not in the journal"),
        ("refunds", "requests of some person|miscounted"),
        ("redraws", "drawn by another process"),
    ],
)
def test_the_check_finds_saboteurs(launcher, tmp_path, kind, words):
    """The sabotaged twins: the very same check must fail."""
    with pytest.raises((AssertionError, DemurError), match=words):
        # A saboteur recovers from its own crashes, so not every one is checked.
        kill_many(launcher, tmp_path / "model.db", 40, OGD, kind, every=4)
