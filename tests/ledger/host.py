"""A client of a ledger, alone on its host; reads one JSON command a line, answers so.

"blind" is a sabotaged twin: it repeats a lost commit without looking for it.
"""

import json
import os
import signal
import sys
import time

import sqlalchemy as sa

from demur import AddOrRemoveOne, Declaration, Ledger
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, Fixed
from demur.errors import BudgetExceeded, LedgerUnreachable, OutcomeUnknown
from demur.ledger import Timeouts
from demur.ledger.storage import rows

GRAIN = Declaration("a grain", Cost((Fixed(AddOrRemoveOne(), Pure(2.0**-10)),)))


class Host:
    def __init__(self):
        self.ledger = self.reserved = self.entry = self.key = None
        self.stop_at_commit = self.stop_at_row = False

    def open(self, url, timeouts, blind=False):
        if self.ledger:
            self.ledger.close()
        self.ledger = Ledger.open(url, timeouts=Timeouts(**timeouts))
        self.reserved = None
        sa.event.listen(self.ledger._store._engine, "commit", self._before_commit)
        rows.charge_by_id = (lambda *_: None) if blind else CHARGE_BY_ID
        rows.with_token = (lambda *_: None) if blind else WITH_TOKEN

    def _before_commit(self, connection):
        if self.stop_at_commit and connection.get_execution_options().get(
            "demur_write"
        ):
            self.stop_at_commit = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def charge(self, label, key=None, digest=None, stop_at=None):
        """Charge; stop this process while it holds the lock, or just before COMMIT."""
        self.stop_at_commit = stop_at == "commit"
        self.stop_at_row = stop_at == "row"
        self.entry = self.ledger.charge(
            GRAIN, label=label, idempotency_key=key, digest=digest
        )
        return self.entry.id

    def before_row(self):
        if self.stop_at_row:
            self.stop_at_row = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def noise(self, digest=None):
        """The first bytes of the entry's noise (for tests: it is compared)."""
        self.key = self.ledger._key(self.entry, digest)
        drawing = self.key.authorise(GRAIN.fingerprint, digest or "an input")
        return drawing.stream("test").read(8).hex()

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def commit(self):
        self.ledger._commit(self.entry, "artefact")

    def note(self, stop_at=None):
        self.stop_at_commit = stop_at == "commit"
        self.ledger.annotate(self.entry, "utility", {"accuracy": 0.5})

    def reserve(self, label, count):
        self.reserved = self.ledger.reserve(GRAIN, count=count, label=label)
        return self.reserved.entry.id

    def draw(self, count=1, stop_at=None):
        self.stop_at_commit = stop_at == "commit"
        return [d.index for d in self.reserved.draw_many(count)]

    def hammer(self, name, seconds):
        """Charge as fast as it goes, every third time with an idempotency key."""
        outcomes = {"acknowledged": [], "unknown": [], "nothing": [], "declined": 0}
        give_up, number, slowest = time.monotonic() + seconds, 0, 0.0
        while time.monotonic() < give_up and not outcomes["declined"]:
            number += 1
            label = f"{name}.{number}"
            key = None if number % 3 else label
            for _ in range(10):
                begin = time.monotonic()
                try:
                    entry = self.ledger.charge(GRAIN, label=label, idempotency_key=key)
                    outcomes["acknowledged"].append((label, entry.id))
                except BudgetExceeded:
                    outcomes["declined"] += 1
                except LedgerUnreachable:
                    if key:
                        continue
                    outcomes["nothing"].append(label)
                except OutcomeUnknown:
                    if key:
                        continue
                    outcomes["unknown"].append(label)
                finally:
                    slowest = max(slowest, time.monotonic() - begin)
                break
            else:
                outcomes["unknown"].append(label)
        return outcomes | {"slowest": slowest}


CHARGE_BY_ID, WITH_TOKEN, APPEND = (
    rows.charge_by_id,
    rows.with_token,
    rows.append,
)


def main():
    host = Host()

    def append(*arguments):
        host.before_row()
        return APPEND(*arguments)

    rows.append = append
    for line in sys.stdin:
        asked = json.loads(line)
        begin = time.monotonic()
        try:
            answer = {"is": getattr(host, asked.pop("do"))(**asked)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        answer["took"] = time.monotonic() - begin
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
