"""Services to be killed; run as a script.

For each line on its input, [url, kind, options, next free number] in JSON, it forks a
child that opens the service and learns and forgets for ever, and reports what was
acknowledged the moment the service has returned, unbuffered. The kind is "honest" or
the name of a saboteur.
"""

import dataclasses
import json
import os
import random
import secrets
import sys
import time
from types import SimpleNamespace

import numpy as np

from demur.ledger import ledger
from demur.unlearning.models import make_mode
from demur.unlearning.records import tables
from demur.unlearning.service import recovery
from demur.unlearning.service.deletion import Deletions, Target
from demur.unlearning.service.service import UnlearningService
from tests.keys import os_key
from tests.unlearning.service_kit import DIM, record


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def pause(seconds=0.004):
    """So that a kill falls between two steps as likely as into one."""
    time.sleep(random.uniform(0.0, seconds))


class Honest(Deletions):
    """The real steps, with pauses, telling what everybody can see before the commit."""

    def spend(self, operation, quote):
        pause()
        return super().spend(operation, quote)

    def noised(self, entry, targets, quote):
        pause()
        return super().noised(entry, targets, quote)

    def commit(self, operation, entry, copy, targets, quote):
        say("seen", self._keeper.sealed(self._keeper.mode))
        pause()
        return super().commit(operation, entry, copy, targets, quote)


class SpendsLast(Honest):
    """Commits the new state first and pays for it afterwards."""

    def carry_out(self, targets, deadline):
        quote = self.quote(targets)
        operation = os.urandom(16).hex()
        self._keeper.flush(then=self.intent(operation, targets, quote, deadline))
        # An entry that is to come: when nobody is killed, all will agree.
        cover = self._till.cover
        assert cover is not None
        unpaid = dataclasses.replace(cover, id=os.urandom(16).hex())
        copy = _drawn_anywhere(self, targets, quote)
        issued = self.commit(operation, unpaid, copy, targets, quote)
        pause(0.05)
        ledger.secrets = SimpleNamespace(token_hex=lambda _: unpaid.id)
        assert self.spend(operation, quote).id == unpaid.id
        ledger.secrets = secrets
        return issued


class ShowsEarly(Honest):
    """Lets the new state be seen before it is durable."""

    def commit(self, operation, entry, copy, targets, quote):
        old, self._keeper.mode = self._keeper.mode, copy
        say("seen", self._keeper.sealed(copy))
        pause(0.2)
        self._keeper.mode = old
        return super().commit(operation, entry, copy, targets, quote)


class Slow(Honest):
    """Dies between the charge and the commit more often than not."""

    def commit(self, operation, entry, copy, targets, quote):
        pause(0.1)
        return super().commit(operation, entry, copy, targets, quote)


def _drawn_anywhere(deletions, targets, quote):
    """Noise that no entry of the ledger has paid for."""
    copy = deletions._keeper.mode.fresh()
    copy.restore(deletions._keeper.mode.state())
    noise = quote.mechanism.apply(np.zeros(copy.dim), os_key(quote.mechanism))
    deletions._apply(copy, targets, noise, quote)
    return copy


def refund(keeper, till, intent):
    """Recovery that gives back what an interrupted deletion had cost."""
    HONEST_CLOSE(keeper, till, intent)
    with keeper.writing() as connection:
        for subject, number in intent["requests"].items():
            table = tables.store.subjects
            connection.execute(
                table.update()
                .where(table.c.mark == subject)
                .values(requests=number - 1)
            )
        keeper.paid -= intent["units"]
        connection.execute(tables.store.service.update().values(paid=keeper.paid))


def redraw(keeper, till, intent):
    """Recovery that completes the old operation with new noise, not paid for."""
    entry = till.find(intent["operation"])
    if entry is None:
        return HONEST_CLOSE(keeper, till, intent)
    deletions = Deletions(keeper, till, till.tariff)
    subjects = keeper.subjects(mark for mark, _ in intent["records"])
    targets = [Target(m, g, subjects[m]) for m, g in intent["records"]]
    quote = deletions.quote(targets)
    copy = _drawn_anywhere(deletions, targets, quote)
    deletions.commit(intent["operation"], entry, copy, targets, quote)
    return None


HONEST_CLOSE = recovery.close_intent
KINDS = {
    "honest": (Honest, HONEST_CLOSE),
    "spends_last": (SpendsLast, HONEST_CLOSE),
    "shows_early": (ShowsEarly, HONEST_CLOSE),
    "refunds": (Slow, refund),
    "redraws": (Slow, redraw),
}


def live_for_ever(url, kind, options, first):
    steps, recovery.close_intent = KINDS[kind]
    UnlearningService._deletions = steps
    service = UnlearningService.open(url, **options)
    say("opened")
    draw, free, pending = random.Random(), first, []
    while service._keeper.marks.record(free) in service._keeper.index:
        free += 1  # learned by a life before this one, and never acknowledged
    while True:
        choice = draw.random()
        number = draw.randrange(free) if free else 0
        if choice < 0.55 or not free:
            service.insert(*record(free), record_id=free, subject_id=free // 2)
            pending.append((free, 1))
            free += 1
            if options.get("durability") != "batch" or draw.random() < 0.2:
                service.flush()
                for insert in pending:
                    say("inserted", *insert)
                pending = []
        elif choice < 0.85:
            acknowledge(service, [number])
            pending = flushed(pending)
        elif choice < 0.93:
            acknowledge(service, sorted({number, draw.randrange(free)}))
            pending = flushed(pending)
        elif choice < 0.95:
            service.snapshot()
            pending = flushed(pending)
        elif choice < 0.97:
            known, name = service._keeper.index, service._keeper.marks.record
            live = [n for n in range(free) if known.get(name(n), 0) > 0]
            service.retrain((n, *record(n), n // 2) for n in live)
            pending = flushed(pending)
        else:
            mark = service._keeper.marks.record(number)
            if service._keeper.index.get(mark, 1) < 0:  # it comes back
                service.insert(
                    *record(number), record_id=number, subject_id=number // 2
                )
                service.flush()
                pending = flushed(pending)
                say("inserted", number, service._keeper.index[mark])


def flushed(pending):
    for insert in pending:
        say("inserted", *insert)
    return []


def acknowledge(service, numbers):
    rows = [record(number) for number in numbers]
    X, Y = [x for x, _ in rows], [y for _, y in rows]
    for number, certificate in zip(
        numbers, service.delete_many(numbers, X, Y), strict=True
    ):
        say("deleted", number, certificate.generation, certificate.tip)


def main():
    for mode in ("ogd", "ridge"):  # compiled once, before the fork
        warm = make_mode(mode, DIM)
        warm.insert(*record(0))
        if warm.needs_record:
            warm.delete(*record(0))
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                live_for_ever(*json.loads(line))
            except BaseException as error:
                say("failed", repr(error).replace("\n", " "))
            finally:
                os._exit(1)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main()
