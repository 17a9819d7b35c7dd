"""Many processes at one ledger; run as a script, prints one JSON line per process.

    crowd.py URL PROCESSES TRIES MODE

It imports demur once and forks: each child opens the ledger by itself (all of them for
the first time, at once), waits for the others and then charges as fast as it can.
"""

import json
import os
import sys
from typing import Any

from demur import AddOrRemoveOne, Budget, Declaration, Ledger
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, Fixed
from demur.errors import BudgetExceeded

UNIT = AddOrRemoveOne()
GRAIN = Declaration("a grain", Cost((Fixed(UNIT, Pure(1.0 / 128)),)))


def child(url, number, tries, mode, start):
    ledger = Ledger.open(
        url, dataset="crowd", budgets={UNIT: Budget(1.0)}, filter="pure"
    )
    os.read(start, 1)  # closes when everybody is there
    entries: list[Any] = []
    declined, draws = 0, []
    if mode == "draw":
        reserved = ledger.reserve(
            GRAIN, count=100, label="race", idempotency_key="race"
        )
    for i in range(tries):
        try:
            if mode == "charge":
                entry = ledger.charge(GRAIN, label=f"{number}.{i}")
                entries.append((entry.id, entry.sequence))
            elif mode == "race":
                entry = ledger.charge(
                    GRAIN,
                    label="race",
                    idempotency_key=f"key {i}",
                    digest="the same",
                )
                key = ledger._key(entry, "the same")
                key = key.authorise(GRAIN.fingerprint, "the same")
                entries.append((entry.id, key.stream("x").read(8).hex()))
            else:
                draws.append(reserved.draw().index)
        except BudgetExceeded:
            declined += 1
    ledger.close()
    return {"entries": entries, "declined": declined, "draws": draws}


def main(url, processes, tries, mode):
    start, begin = os.pipe()
    results = []
    for number in range(int(processes)):
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(begin)
                outcome = child(url, number, int(tries), mode, start)
                with os.fdopen(send, "w") as file:
                    file.write(json.dumps(outcome))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(send)
        results.append((pid, receive))
    os.close(begin)
    for pid, receive in results:
        with os.fdopen(receive) as file:
            print(file.read(), flush=True)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
