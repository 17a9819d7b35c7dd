"""Runs in processes of their own, killed or not.

`python -m tests.training.crash` takes folder, bands, noise and step of death of one run
after the other, and prints the exit code of each. `here FOLDER` cuts a run short, and
`elsewhere FOLDER COPY` goes on with it.
"""

import json
import os
import signal
import sys
from contextlib import suppress

import jax
import numpy as np

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint, CheckpointRefused
from demur.training.devices import placement

from .kit import make_data, make_plan, train


def open_ledger(folder):
    return Ledger.open(
        os.path.join(folder, "ledger.db"),
        dataset="crash",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    )


def run(
    folder,
    *,
    bands=3,
    noise="threefry",
    die_at=None,
    data=None,
    callback=None,
    **options,
):
    def die(report):
        if report.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_ledger(folder) as ledger:
        return train(
            make_plan(bands=bands, noise=noise),
            data,
            ledger=ledger,
            delta=None,
            checkpoint=Checkpoint(os.path.join(folder, "run"), every=5),
            callback=callback or die,
            source=Seeded(4),
            **options,
        )


class Stop(Exception):
    pass


def cut_short(folder):
    """A run that stops after step 8; prints the parameters after each step."""
    shown = {}

    def callback(report):
        shown[report.step] = np.asarray(report.params()["w"]).tobytes().hex()
        if report.step == 8:
            raise Stop

    with suppress(Stop):
        run(folder, callback=callback, data=make_data())
    print(json.dumps(shown))


def go_on_elsewhere(folder, other):
    """Go on as on an older processor: refused. In `other` it has the first one's name.

    XLA has read the flags that take FMA from it when they are taken back.
    """
    jax.devices()
    del os.environ["XLA_FLAGS"]
    named = placement._processor
    placement._processor = lambda: "an older one"
    try:
        run(folder, data=make_data())
    except CheckpointRefused as error:
        print(error)
    placement._processor = named
    cut_short(other)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    if sys.argv[1] in ("here", "elsewhere"):
        {"here": cut_short, "elsewhere": go_on_elsewhere}[sys.argv[1]](*sys.argv[2:])
        sys.exit()
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
