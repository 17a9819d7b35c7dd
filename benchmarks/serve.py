"""Load: clients that charge through the service, against the store alone.

    python benchmarks/serve.py [--clients 200] [--seconds 60] [--block 1]

Both parts run one after the other on the same machine, a ledger in a file each: first
the clients open the file themselves, then they go through `demur serve`. A client
charges, or draws `--block` runs of a reservation at once; a run counts as one. At the
end the ledgers are verified: nothing lost, nothing over the budget.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from demur import AddOrRemoveOne, Budget, Declaration, Ledger  # noqa: E402
from demur.core.accounting.events import Pure  # noqa: E402
from demur.core.cost import Cost, Fixed  # noqa: E402
from demur.errors import BudgetExceeded  # noqa: E402
from demur.serve import AccessStore  # noqa: E402

UNIT = AddOrRemoveOne()
GRAIN = Declaration("a grain", Cost((Fixed(UNIT, Pure(2.0**-20)),)))
TERMS = {"dataset": "people", "budgets": {UNIT: Budget(1.0)}}
PROCESSES = 2


def client(open_ledger, block, until, counts, index):
    """Charge, or draw blocks, until the time is over; count what was acknowledged."""
    with open_ledger() as ledger:
        reserved = None
        while time.monotonic() < until:
            try:
                if block == 1:
                    ledger.charge(GRAIN, label="load")
                else:
                    if reserved is None:
                        reserved = ledger.reserve(GRAIN, count=2**14, label="load")
                    reserved.draw_many(block)
                counts[index] += block
            except BudgetExceeded:
                reserved = None
                if block == 1:
                    return


def many(url, token, clients, block, begin, seconds, totals):
    """The clients of one process."""
    more = {} if token is None else {"token": token}
    own = None if token is not None else Ledger.open(url)
    counts = [0] * clients
    begin.wait()
    until = time.monotonic() + seconds

    def open_ledger():
        return own if own is not None else Ledger.open(url, **more)

    threads = [
        threading.Thread(target=client, args=(open_ledger, block, until, counts, i))
        for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals.put(sum(counts))


def measure(url, token, arguments) -> float:
    """Acknowledged runs in a second."""
    context = multiprocessing.get_context("spawn")
    begin, totals = context.Barrier(PROCESSES + 1), context.Queue()
    each = arguments.clients // PROCESSES
    given = (url, token, each, arguments.block, begin, arguments.seconds, totals)
    processes = [context.Process(target=many, args=given) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    begin.wait()
    started = time.monotonic()
    done = sum(totals.get() for _ in processes)
    took = time.monotonic() - started
    for process in processes:
        process.join()
    return done, took


def checked(path, done, block) -> dict[str, object]:
    """Whether the ledger has what was acknowledged, and no more than its budget."""
    with Ledger.open(path, read_only=True) as ledger:
        entries = ledger.entries()
        drawn = len(entries)
        if block > 1:
            drawn = sum(ledger._drawn(entry) for entry in entries)
        status = ledger.status()[0]
        return {
            "lost": max(0, done - drawn),
            "within the budget": status.spent_epsilon <= status.budget.epsilon,
            "verified": ledger.verify().ok,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--block", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, served = folder / "alone.db", folder / "served.db"
        for path in (alone, served):
            Ledger.create(path, **TERMS).close()
        store = AccessStore(folder / "access" / "access.db")
        token, _ = store.create("load", "analyst")
        store.close()
        results = {}
        done, took = measure(str(alone), None, arguments)
        results["store alone"] = (done / took, checked(alone, done, arguments.block))
        service = subprocess.Popen(
            [sys.executable, "-c", "from demur.cli import app; app()", "serve",
             str(served), "--port", "0", "--access", str(folder / "access"), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        text = ""
        while not text.rstrip().endswith("}"):
            text += service.stdout.readline()
        url = json.loads(text)["ledgers"][0]
        done, took = measure(url, token, arguments)
        service.terminate()
        service.wait()
        results["service"] = (done / took, checked(served, done, arguments.block))
    for part, (rate, check) in results.items():
        print(f"{part}: {rate:,.0f} a second, {check}")
    ratio = results["service"][0] / results["store alone"][0]
    print(f"service / store alone: {ratio:.2f}")


if __name__ == "__main__":
    main()
