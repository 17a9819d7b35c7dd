"""One ledger, several hosts: cut links, restarts and pauses lose and overspend nothing.

Every test reads the ledger afterwards over a connection that no fault touches, and
verifies it. The faults are exact: a client stops itself inside its transaction, and the
wire is cut while it stands there.
"""

import os
import random
import signal
import sys
import time
from typing import Any

import pytest

from demur import Budget, Ledger
from tests.ledger.kit import UNIT, NoServer, Server, ask, wait_until
from tests.ledger.wire import Host, NoWire, Way, Wire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.skipif(sys.platform != "linux", reason="machine: not Linux"),
]
CLIENTS = 4
FITS = 512
TERMS: dict[str, Any] = {
    "dataset": "people",
    "budgets": {UNIT: Budget(FITS * 2.0**-10)},
    "filter": "pure",
}
QUICK = {"connect": 2.0, "silence": 2.0, "lock": 5.0, "pause": 2.0, "call": 12.0}
TOO_LONG = QUICK["silence"] + 1.0  # no retransmission of TCP saves the connection
SLACK = 4.0  # a busy machine
CUT = Way(cut=True)


@pytest.fixture(scope="module")
def wire():
    try:
        wire = Wire(CLIENTS)
    except NoWire as error:
        pytest.skip(f"machine: {error}")
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def server(wire):
    """A server on a host of its own; not the session's, which other tests use."""
    pytest.importorskip("psycopg", reason="machine: psycopg is not installed")
    try:
        started = Server(inside=wire.inside(0), address=wire.address(0))
    except NoServer as error:
        pytest.skip(f"machine: {error}")
    yield started
    started.close()


@pytest.fixture(scope="module")
def all_hosts(wire, tmp_path_factory):
    hosts = [
        Host(wire.inside(number + 1), tmp_path_factory.mktemp(f"keys{number}"))
        for number in range(CLIENTS)
    ]
    yield hosts
    for host in hosts:
        host.close()


@pytest.fixture
def place(server, wire):
    """A fresh ledger, as seen without faults and as clients see it."""
    name = server.new_database()
    healthy = server.url(name)
    with Ledger.open(healthy, **TERMS) as ledger:
        yield Place(ledger, healthy, server.url_over_the_wire(name), wire)
        wire.heal()
        # Ends what a failed test left behind, and closes the hosts' connections.
    server.admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def hosts(all_hosts, place):
    """The clients, with this test's ledger open."""

    def open_all(timeouts=QUICK, blind=False):
        for host in all_hosts:
            host.tell("open", url=place.over_the_wire, timeouts=timeouts, blind=blind)
        for host in all_hosts:
            assert "error" not in host.answer()
        return all_hosts

    return open_all


class Place:
    def __init__(self, ledger, healthy, over_the_wire, wire):
        self.ledger, self.healthy, self.over_the_wire = ledger, healthy, over_the_wire
        self.links = wire.links

    def labels(self):
        return [entry.label for entry in self.ledger.entries()]

    def is_right(self):
        verification = self.ledger.verify(self.ledger.tip())
        assert verification.ok, str(verification)
        spent = self.ledger.status()[0].spent_epsilon
        counts = sum(entry.count for entry in self.ledger.entries())
        assert spent == counts * 2.0**-10 <= FITS * 2.0**-10

    def hold_lock(self):
        psycopg = __import__("psycopg")
        connection = psycopg.connect(self.healthy)
        connection.execute("SELECT * FROM demur_ledger FOR UPDATE")
        return connection

    def sessions(self, condition):
        return ask(
            self.healthy,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            f" AND client_addr IS NOT NULL AND {condition}",
        )


# -- links ---------------------------------------------------------------------------


def test_a_cut_link_before_the_request_spends_nothing(hosts, place):
    first, other, *_ = hosts(QUICK | {"call": 4.0})
    before = first.ask("charge", label="before")["is"]
    place.links[0].cut()
    answer = first.ask("charge", label="cut", key="k")
    assert (
        answer["error"] == "LedgerUnreachable" and "Nothing was spent" in answer["text"]
    )
    assert answer["took"] < 4.0 + QUICK["connect"] + SLACK
    assert "is" in other.ask("charge", label="the other goes on")
    assert place.labels() == ["before", "the other goes on"]
    place.links[0].heal()
    entry = first.ask("charge", label="cut", key="k")["is"]
    assert first.ask("charge", label="cut", key="k")["is"] == entry != before
    assert place.labels() == ["before", "the other goes on", "cut"]
    place.is_right()


def test_a_call_outlives_a_link_that_comes_back(hosts, place):
    first, *_ = hosts()
    place.links[0].cut()
    first.tell("charge", label="patient")
    time.sleep(2.0)
    place.links[0].heal()
    assert "is" in first.answer()
    assert place.labels() == ["patient"]
    place.is_right()


def test_a_link_cut_in_the_queue_for_the_lock(hosts, place):
    """The server gives the lock to a client that is gone, and takes it back."""
    first, other, *_ = hosts()
    lock = place.hold_lock()
    first.tell("charge", label="cut in the queue", key="k")
    wait_until(lambda: place.sessions("wait_event_type = 'Lock'"))
    place.links[0].cut()
    lock.rollback()
    lock.close()
    wait_until(lambda: place.sessions("state = 'idle in transaction'"))
    answer = other.ask("charge", label="the other")
    assert "is" in answer and answer["took"] < QUICK["pause"] + SLACK
    place.links[0].heal()
    assert "is" in first.answer()
    assert sorted(place.labels()) == ["cut in the queue", "the other"]
    place.is_right()


def lose_the_answer(host, link, action, **what):
    """COMMIT reaches the server, and its answer vanishes."""
    host.tell(action, stop_at="commit", **what)
    host.wait_until_stopped()
    link.set(down=CUT)
    host.wake()


def test_a_lost_commit_is_made_up_for(hosts, place):
    """COMMIT itself vanishes; to the client that looks like a lost answer."""
    first, other, *_ = hosts()
    first.tell("charge", label="lost", stop_at="commit")
    first.wait_until_stopped()
    place.links[0].set(up=CUT)
    first.wake()
    answer = other.ask("charge", label="the other goes on")
    assert "is" in answer and answer["took"] < QUICK["pause"] + SLACK
    time.sleep(TOO_LONG)
    place.links[0].heal()
    assert "is" in first.answer()
    assert place.labels() == ["the other goes on", "lost"]
    place.is_right()


@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without"])
@pytest.mark.parametrize("blind", [False, True], ids=["honest", "blind"])
def test_a_lost_answer_to_commit_is_found_again(hosts, place, key, blind):
    """The sabotaged twin repeats without looking, and pays twice.

    With an idempotency key the ledger saves even the twin.
    """
    first, other, *_ = hosts(blind=blind)
    lose_the_answer(first, place.links[0], "charge", label="ambiguous", key=key)
    wait_until(lambda: place.labels() == ["ambiguous"])
    assert "is" in other.ask("charge", label="the other goes on")
    time.sleep(TOO_LONG)
    place.links[0].heal()
    entry = first.answer()["is"]
    if blind and key is None:
        assert place.labels() == ["ambiguous", "the other goes on", "ambiguous"]
        return
    assert [e.id for e in place.ledger.entries()][0] == entry
    assert place.labels() == ["ambiguous", "the other goes on"]
    place.is_right()


def test_an_outcome_that_stays_unknown_is_told_and_the_key_settles_it(hosts, place):
    first, *_ = hosts(QUICK | {"call": 4.0})
    lose_the_answer(first, place.links[0], "charge", label="x", key="k", digest="d")
    answer = first.answer()
    assert answer["error"] == "OutcomeUnknown"
    assert "same idempotency key" in answer["text"]
    assert answer["took"] < 4.0 + QUICK["connect"] + SLACK
    (written,) = place.ledger.entries()
    place.links[0].heal()
    assert first.ask("charge", label="x", key="k", digest="d")["is"] == written.id
    assert "is" in first.ask("noise", digest="d")
    first.ask("commit")
    assert len(place.labels()) == 1
    place.is_right()


@pytest.mark.parametrize("blind", [False, True], ids=["honest", "blind"])
def test_a_lost_answer_to_a_draw_or_a_note(hosts, place, blind):
    first, *_ = hosts(blind=blind)
    first.ask("reserve", label="ten", count=10)
    assert first.ask("draw")["is"] == [0]
    lose_the_answer(first, place.links[0], "draw", count=3)
    time.sleep(TOO_LONG)
    place.links[0].heal()
    drawn = first.answer()["is"]
    assert drawn == ([4, 5, 6] if blind else [1, 2, 3])
    first.ask("charge", label="noted")
    lose_the_answer(first, place.links[0], "note")
    time.sleep(TOO_LONG)
    place.links[0].heal()
    assert "error" not in first.answer()
    assert len(place.ledger.notes()) == (2 if blind else 1)
    place.is_right()


# -- pauses --------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", ["row", "commit"])
def test_a_client_paused_with_the_lock_loses_it_and_nothing_else(hosts, place, stop_at):
    first, other, *_ = hosts()
    first.tell("charge", label="paused", key="k", stop_at=stop_at)
    first.wait_until_stopped()
    answer = other.ask("charge", label="the other")
    assert "is" in answer and answer["took"] < QUICK["pause"] + SLACK
    assert place.labels() == ["the other"]  # its session was ended: it cannot commit
    first.wake()
    entry = first.answer()["is"]
    assert first.ask("charge", label="paused", key="k")["is"] == entry
    assert place.labels() == ["the other", "paused"]
    place.is_right()


def test_a_client_paused_past_its_own_time_says_that_nothing_is_known(hosts, place):
    first, *_ = hosts(QUICK | {"call": 3.0})
    first.tell("charge", label="paused", key="k", stop_at="commit")
    first.wait_until_stopped()
    time.sleep(4.0)
    first.wake()
    assert first.answer()["error"] == "OutcomeUnknown"
    assert place.labels() == []
    assert "is" in first.ask("charge", label="paused", key="k")
    assert place.labels() == ["paused"]
    place.is_right()


def test_a_client_paused_between_charge_noise_and_commit(hosts, place):
    """Its entry stays spent, its key stays on its host, and nobody waits for it."""
    first, other, *_ = hosts()
    entry = first.ask("charge", label="x", key="k", digest="d")["is"]
    noises = []
    for pause_before in ("noise", "commit"):
        first.tell("stop")
        first.wait_until_stopped()
        answer = other.ask("charge", label=f"before {pause_before}")
        assert "is" in answer and answer["took"] < SLACK
        # Another host has neither the key nor the secret the input is bound with.
        for digest in ("d", None):
            stolen = other.ask("charge", label="x", key="k", digest=digest)
            assert stolen["error"] == "IdempotencyConflict"
        time.sleep(QUICK["pause"])
        first.wake()
        first.answer()
        noises.append(first.ask("noise", digest="d")["is"])
    assert len(set(noises)) == 1
    assert "error" not in first.ask("commit")
    assert first.ask("noise", digest="d")["error"] == "EntryCommitted"
    assert place.ledger.find("k").id == entry
    assert place.labels() == ["x", "before noise", "before commit"]
    place.is_right()


def test_a_server_that_hangs_is_not_waited_for_for_ever(hosts, place):
    """Alive, and silent: no time-out of the server or of TCP ends this."""
    first, *_ = hosts(QUICK | {"call": 3.0})
    lock = place.hold_lock()
    first.tell("charge", label="x", key="k")
    wait_until(lambda: place.sessions("wait_event_type = 'Lock'"))
    ((pid,),) = place.sessions("wait_event_type = 'Lock'")
    os.kill(pid, signal.SIGSTOP)
    try:
        lock.rollback()
        lock.close()
        answer = first.answer()
        assert answer["error"] == "LedgerUnreachable"
        assert "did not answer in time" in answer["text"]
        assert answer["took"] < 3.0 + SLACK
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "is" in first.ask("charge", label="x", key="k")
    assert place.labels() == ["x"]
    place.is_right()


# -- many at once --------------------------------------------------------------------


def hammer(clients, seconds, name="client"):
    for number, host in enumerate(clients):
        host.tell("hammer", name=f"{name} {number}", seconds=seconds)


def violation(clients, place, seconds, before=()):
    """The first thing that must hold and does not, or None; without rows `before`."""
    answers = [host.answer(seconds)["is"] for host in clients]
    entries = place.ledger.entries()
    recorded = [(e.label, e.id) for e in entries if e.label not in before]
    labels = [label for label, _ in recorded]
    acknowledged = [tuple(pair) for s in answers for pair in s["acknowledged"]]
    assert len(acknowledged) > 0
    if len(set(labels)) < len(labels):
        return "paid twice"
    place.is_right()
    if not set(acknowledged) <= set(recorded):
        return "acknowledged and lost"
    if {label for s in answers for label in s["nothing"]} & set(labels):
        return "said that nothing was spent, and it was"
    unknown = {label for s in answers for label in s["unknown"]}
    if not set(labels) - {label for label, _ in acknowledged} <= unknown:
        return "spent, and nobody was told"
    return None


def test_a_server_restarted_under_load(hosts, place, server):
    """Stopped as by a crash, and in order; the budget is used to the last grain."""
    clients = hosts(QUICK | {"call": 30.0})
    hammer(clients, 40.0)
    for count, mode in ((60, "immediate"), (160, "fast"), (260, "immediate")):
        wait_until(lambda count=count: len(place.labels()) >= count, 60.0)
        server.stop(mode)
        time.sleep(0.3)
        server.start()
    assert violation(clients, place, 90.0) is None
    assert len(place.labels()) == FITS


SLOW = Way(delay=0.1, loss=0.05)
WEATHER = [(None, None)] * 3 + [(SLOW, SLOW)] * 2 + [(CUT, None), (CUT, CUT)]


def bad_weather(clients, place, seconds, draw):
    """Charges under faults drawn at random; what was violated."""
    before = set(place.labels())
    for link in place.links:
        link.ambush = 0.3
    hammer(clients, seconds, name=f"{draw.random()}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for link in place.links:
            up, down = draw.choice(WEATHER)
            link.set(up=up, down=down)
        time.sleep(draw.uniform(0.1, 1.0))
    assert sum(link.ambushes for link in place.links) >= 4
    for link in place.links:
        link.heal()
    return violation(clients, place, 60.0, before)


STORMY = QUICK | {"silence": 1.0, "call": 10.0}


def test_faults_at_random(hosts, place):
    """One-way cuts, 200 ms and lost packets.

    The wire is no fair judge: it looks for COMMITs and lets their answers vanish.
    """
    assert bad_weather(hosts(STORMY), place, 12.0, random.Random(11)) is None


def test_the_twin_that_repeats_blindly_pays_twice(hosts, place):
    """The same faults, looked at in the same way."""
    clients, draw = hosts(STORMY, blind=True), random.Random(12)
    rounds = (bad_weather(clients, place, 4.0, draw) for _ in range(8))
    assert next(filter(None, rounds)) == "paid twice"
