"""A service killed at every point where its files change, one after the other.

Random kills (`test_crash`) reach the long windows. Here a child counts whatever makes a
change durable, or visible to another process (a commit, an fsync, a rename, a link, an
unlink, an emptied log), and is killed right before or right after the n-th, for every
n (`make deep`; every 31st otherwise); between two of them nothing on disk changes. Then
the service is opened again and everything must agree.
"""

import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.engine.default import DefaultDialect

from demur.core.errors import DemurError
from demur.unlearning import (
    Publications,
    QueuedRequest,
    ServiceLimits,
    UnknownRecord,
    make_mode,
)
from demur.unlearning.records import tables
from tests.families import thinned
from tests.unlearning import forgetter
from tests.unlearning.service_kit import DIM, NOISY, UnlearningService, record
from tests.unlearning.test_crash import Witness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork"),
]
CASES = {
    "ogd": {"mode": "ogd"} | NOISY,
    "joint": {"mode": "ogd", "scope": "joint", "capacity": 4} | NOISY,
    "ridge": {"mode": "ridge", "record_store": "encrypted"},
    "logistic": {"mode": "logistic", "Lambda": 5.0, "tolerance": 0.05, "capacity": 9}
    | NOISY,
    "published": {"mode": "ogd", "answers": Publications(count=4, every=6)} | NOISY,
}


def say(pipe, *words):
    os.write(pipe, (" ".join(map(str, words)) + "\n").encode())


def live(url, options, pipe):
    """A short life that meets everything that writes."""
    with UnlearningService.open(
        url, dimension=DIM, on_exhausted="retrain", **options
    ) as s:
        name, index = s._state.directory.find, s._state.index

        def inserted(numbers):
            for number in numbers:
                say(pipe, "inserted", number, abs(index[name(number)]))

        def deleted(numbers):
            for number in numbers:
                held = s.certificate(number)
                say(pipe, "deleted", number, held.generation, held.tip)

        def forget(numbers):
            rows = [record(number) for number in numbers]
            s.delete_many(numbers, [x for x, _ in rows], [y for _, y in rows])
            deleted(numbers)

        rows = [record(number) for number in range(6)]
        s.insert_many([x for x, _ in rows], [y for _, y in rows], record_ids=range(6))
        inserted(range(6))
        forget([0])
        s.insert(*record(0), record_id=0)
        inserted([0])
        path = s.snapshot()
        s.insert(*record(6), record_id=6)
        inserted([6])
        s.restore(path)
        deleted([6])
        with suppress(UnknownRecord):
            s.delete(99, block=True)
        s.publish()
        forget([1, 2])
        if options["mode"] == "logistic":
            s.renew([(n, *record(n)) for n in (0, 3, 4, 5)])
        s.retrain([(n, *record(n)) for n in (0, 3, 4)])
        deleted([5])
        forget([3])
    if options["mode"] != "ridge":  # an exact mode has nothing to wait for
        wait(url, options, pipe)


def wait(url, options, pipe):
    """A request past the owner's limit, which waits and is carried out later."""
    strict, x_y = ServiceLimits(score_noise=1e-9), record(4)
    more = {"dimension": DIM, "on_exhausted": "queue"} | options
    with UnlearningService.open(url, limits=strict, **more) as s:
        waiting = s.delete(4, *x_y)
        assert isinstance(waiting, QueuedRequest)
        say(pipe, "queued", 4)
    with UnlearningService.open(url, **more) as s:
        assert not s.process_queue(), "it keeps its limits"
    with UnlearningService.open(url, limits=ServiceLimits(), **more) as s:
        if options["mode"] == "logistic":  # which must see the record
            s.delete(4, *x_y)
        s.process_queue()
        held = s.certificate(4)
        say(pipe, "deleted", 4, held.generation, held.tip)


def reopen(url, options, pipe):
    UnlearningService.open(url, dimension=DIM, **options).close()


def killed_at(number, act):
    """Run `act(pipe)` in a child that dies at its n-th point; its words, and whether
    it died: if not there are no more points.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with suppress(BaseException):
            _die_at(number)
            act(write)
            os._exit(0)
        os._exit(1)
    os.close(write)
    with os.fdopen(read) as told:
        words = [line.split() for line in told]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed"
    return words, os.WIFSIGNALED(status)


def _die_at(number):
    """Count what changes files from here on, and die before or after the n-th."""
    points = itertools.count(1)

    def watched(act):
        def watching(*args, **kwargs):
            if next(points) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            found = act(*args, **kwargs)
            if next(points) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return watching

    for name in ("fsync", "replace", "rename", "link", "unlink", "mkdir"):
        setattr(os, name, watched(getattr(os, name)))
    DefaultDialect.do_commit = watched(DefaultDialect.do_commit)
    tables.ServiceStore.scrub = watched(tables.ServiceStore.scrub)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Before the first fork."""
    for mode in ("ogd", "ridge", "logistic"):
        warm = make_mode(mode, DIM)
        warm.insert(*record(0))


@pytest.fixture
def folder():
    """In memory, if the machine has such files: a killed process flushes no cache."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


def lives(folder, options, numbers, act=live):
    """A life for each number, killed at that point: its service, words and end."""
    for number in numbers:
        url = folder / str(number) / "model.db"
        url.parent.mkdir()
        words, dead = killed_at(number, partial(act, url, options))
        yield url, words, dead
        shutil.rmtree(url.parent)
        if not dead:
            return


@pytest.mark.parametrize("case", thinned(CASES, 2))
def test_killed_here_and_there_it_comes_back_whole(folder, case):
    options, deaths = CASES[case], 0
    begin = 1 + 8 * list(CASES).index(case)
    for url, words, dead in lives(folder, options, itertools.count(begin, 31)):
        check(url, options, words)
        deaths += dead
    assert deaths > 4


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES)
def test_killed_anywhere_and_again_while_it_recovers(folder, case):
    options, deaths, again = CASES[case], 0, 0
    draw = random.Random(int(time.time()))
    for url, words, dead in lives(folder, options, itertools.count(1)):
        _, died = killed_at(draw.randrange(1, 30), partial(reopen, url, options))
        check(url, options, words)
        deaths, again = deaths + dead, again + died
    print(f"{case}: killed at {deaths} points, and {again} times again in recovery")
    assert deaths > 120 and again > 60


def late(url, options, pipe):
    """The sabotaged twin: it commits first and pays afterwards."""
    forgetter.say = lambda *_: None
    UnlearningService._deletions = forgetter.SpendsLast
    live(url, options, pipe)


def test_a_service_that_pays_late_is_found(folder):
    options = CASES["ogd"]
    with pytest.raises((AssertionError, DemurError), match="ledger"):
        # Right before its first deletion; if it is missed, there are two more.
        for url, words, _ in lives(folder, options, itertools.count(90), late):
            check(url, options, words)


def check(url, options, words):
    """What was acknowledged is in force; journal, ledger and model agree."""
    with UnlearningService.open(url, dimension=DIM, **options) as service:
        known, name = service._state.index, service._state.directory.find
        blocked = 0 in known.values()
        if len(words) > 11:  # it came past the burial
            assert blocked and known[name(99)] == 0
        asked = [int(number) for word, number, *_ in words if word == "queued"]
        if not [
            word for word, number, *_ in words if (word, number) == ("deleted", "4")
        ]:
            waiting = {queued.record for queued in service.queue()}
            assert all(known[name(n)] < 0 or name(n) in waiting for n in asked)
    witness = Witness()
    witness.listen(words)
    witness.check(url)
