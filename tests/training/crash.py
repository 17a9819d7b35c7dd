"""Runs in processes of their own, killed or not.

`python -m tests.training.crash` takes folder, bands, noise and step of death of one run
after the other, and prints the exit code of each.
"""

import os
import signal
import sys

import jax

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint

from .kit import make_data, make_plan, train


def open_ledger(folder):
    return Ledger.open(
        os.path.join(folder, "ledger.db"),
        dataset="crash",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    )


def run(folder, *, bands=3, noise="threefry", die_at=None, data=None, **options):
    def callback(report):
        if report.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_ledger(folder) as ledger:
        return train(
            make_plan(bands=bands, noise=noise),
            data,
            ledger=ledger,
            delta=None,
            checkpoint=Checkpoint(os.path.join(folder, "run"), every=5),
            callback=callback,
            source=Seeded(4),
            **options,
        )


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    for first in range(1, len(sys.argv), 4):
        folder, bands, noise, die_at = sys.argv[first : first + 4]
        pid = os.fork()  # before JAX has started anything
        if pid == 0:
            run(
                folder,
                bands=int(bands),
                noise=noise,
                die_at=int(die_at),
                data=make_data(),
            )
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
