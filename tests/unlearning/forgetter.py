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
import tempfile
import time
from types import SimpleNamespace

import numpy as np

from demur.ledger import charging
from demur.unlearning import ServiceLimits, make_mode
from demur.unlearning.records import rows
from demur.unlearning.service import recovery
from demur.unlearning.service.deletion import Deletions, RecordToDelete
from tests.keys import os_key
from tests.unlearning.service_kit import (
    DIM,
    NOISY,
    UnlearningService,
    plain_seals,
    record,
)


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def pause(seconds=0.004):
    """So that a kill falls between two steps as likely as into one."""
    time.sleep(random.uniform(0.0, seconds))


class Honest(Deletions):
    """The real steps, with pauses, telling what everybody can see before the commit."""

    def spend(self, operation, plan):
        pause()
        return super().spend(operation, plan)

    def noised(self, payment, rehearsed, records, plan):
        pause()
        return super().noised(payment, rehearsed, records, plan)

    def commit(self, operation, entry, copy, records, plan):
        say("seen", self._state.mode.digest())
        pause()
        return super().commit(operation, entry, copy, records, plan)


class SpendsLast(Honest):
    """Commits the new state first and pays for it afterwards."""

    def carry_out(self, records, deadline):
        plan = self.plan(records)
        operation = os.urandom(16).hex()
        self._state.flush(then=self.intent(operation, records, plan, deadline))
        # An entry that is to come: when nobody is killed, all will agree.
        paid = self._charges.budget_per_person
        assert paid is not None
        unpaid = dataclasses.replace(paid, id=os.urandom(16).hex())
        copy = _drawn_anywhere(self, records, plan)
        issued = self.commit(operation, unpaid, copy, records, plan)
        pause(0.05)
        charging.secrets = SimpleNamespace(token_hex=lambda _: unpaid.id)
        assert self.spend(operation, plan).entry.id == unpaid.id
        charging.secrets = secrets
        return issued


class ShowsEarly(Honest):
    """Lets the new state be seen before it is durable."""

    def commit(self, operation, entry, copy, records, plan):
        old, self._state.mode = self._state.mode, copy
        say("seen", copy.digest())
        pause(0.2)
        self._state.mode = old
        return super().commit(operation, entry, copy, records, plan)


class Slow(Honest):
    """Dies between the charge and the commit more often than not."""

    def commit(self, operation, entry, copy, records, plan):
        pause(0.1)
        return super().commit(operation, entry, copy, records, plan)


def _drawn_anywhere(deletions, records, plan):
    """Noise that no entry of the ledger has paid for."""
    copy = deletions._state.mode.copy()
    noise = plan.mechanism.apply(np.zeros(copy.dimension), os_key(plan.mechanism))
    deletions._apply(copy, records, noise, plan.grid)
    return copy


def refund(state, charges, intent):
    """Recovery that gives back what an interrupted deletion had cost."""
    HONEST_CLOSE(state, charges, intent)
    with state.writing() as connection:
        for subject, number in intent["requests"].items():
            table = rows.tables.subjects
            connection.execute(
                table.update()
                .where(table.c.pseudonym == subject)
                .values(requests=number - 1)
            )
        state.used -= intent["used"]
        connection.execute(rows.tables.service.update().values(used=state.used))


def redraw(state, charges, intent):
    """Recovery that completes the old operation with new noise, not paid for."""
    entry = charges.find(intent["operation"])
    if entry is None:
        return HONEST_CLOSE(state, charges, intent)
    deletions = Deletions(state, charges, charges.prices)
    subjects = state.subjects(pseudonym for pseudonym, _ in intent["records"])
    records = [RecordToDelete(p, g, subjects[p]) for p, g in intent["records"]]
    plan = deletions.plan(records)
    copy = _drawn_anywhere(deletions, records, plan)
    deletions.commit(intent["operation"], entry, copy, records, plan)
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
    anything = ServiceLimits(noise=None)  # a person here asks again and again
    service = UnlearningService.open(url, limits=anything, **options)
    say("opened")
    draw, free, pending = random.Random(), first, []
    while service._state.directory.find(free) in service._state.index:
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
            known, name = service._state.index, service._state.directory.find
            live = [n for n in range(free) if known.get(name(n), 0) > 0]
            service.retrain((n, *record(n), n // 2) for n in live)
            pending = flushed(pending)
        else:
            pseudonym = service._state.directory.find(number)
            if service._state.index.get(pseudonym, 1) < 0:  # it comes back
                service.insert(
                    *record(number), record_id=number, subject_id=number // 2
                )
                service.flush()
                pending = flushed(pending)
                say("inserted", number, service._state.index[pseudonym])


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
    plain_seals().start()
    # Compiled and loaded once, before the fork.
    for mode in ("ogd", "ridge"):
        warm = make_mode(mode, DIM)
        warm.insert(*record(0))
        if warm.needs_record:
            warm.delete(*record(0))
    with (
        tempfile.TemporaryDirectory() as folder,
        UnlearningService.open(
            f"{folder}/warm.db", mode="ogd", dimension=DIM, **NOISY
        ) as service,
    ):
        service.insert(*record(0), record_id=0)
        service.delete(0)
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
