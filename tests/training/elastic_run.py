"""Runs with elastic checkpoints, killed in the middle of a save or not.

`python -m tests.training.elastic_run TWIN FOLDER POINT FOLDER POINT ...` runs in each
folder in a process of its own, which is killed before the given change of its files (0:
never) that follows the first checkpoint; then it prints the exit codes. TWIN is "ours",
or "early" for a save that deletes the last checkpoint before the next is whole.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import jax

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint
from demur.training.run.checkpoints import elastic, orbax_files
from tests.training.kit import make_data, make_plan, train

CHANGES = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
EVERY = 5


def open_ledger(folder):
    return Ledger.open(
        Path(folder) / "ledger.db",
        dataset="elastic",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    )


def run(folder, *, iterations=24, bands=3, noise="threefry", elastic=True, **options):
    checkpoint = Checkpoint(Path(folder) / "run", every=EVERY, elastic=elastic)
    with open_ledger(folder) as ledger:
        return train(
            make_plan(iterations=iterations, bands=bands, noise=noise),
            ledger=ledger,
            delta=None,
            **{"checkpoint": checkpoint, "source": Seeded(4)} | options,
        )


class Killing:
    """Counts changes of the files of a run, and kills the process before one of them.

    What the ledger's own files do is another test's matter.
    """

    def __init__(self, folder, point):
        self.folder, self.point, self.count = str(folder), point, 0
        self.active = False
        for name in CHANGES:
            setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, change):
        def changed(*arguments, **named):
            target = arguments[0] if arguments else ""
            inside = isinstance(target, int) or self.folder in os.fspath(target)
            if self.active and inside:
                self.count += 1
                if self.count == self.point:
                    os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **named)

        return changed


def begin(twin, folder, point):
    killing = Killing(Path(folder) / "run", point)
    save = elastic.ElasticCheckpoints.save

    def watched(self, step, model, noise):
        killing.active = step == 2 * EVERY
        save(self, step, model, noise)
        killing.active = False

    elastic.ElasticCheckpoints.save = watched
    if twin == "early":
        write = orbax_files.write

        def early(place, leaves):
            if place.name.startswith(f"model-{2 * EVERY}-"):
                for old in Path(folder, "run").glob(f"model-{EVERY}-*"):
                    elastic.shutil.rmtree(old)
            write(place, leaves)

        elastic.orbax_files.write = early

    def stop(report):
        if report.step == 2 * EVERY + 1:
            Path(folder, "changes").write_text(str(killing.count))
            os.kill(os.getpid(), signal.SIGKILL)

    run(folder, callback=stop, data=make_data())


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    for i in range(2, len(sys.argv), 2):
        pid = os.fork()  # before JAX has started anything
        if pid == 0:
            begin(sys.argv[1], sys.argv[i], int(sys.argv[i + 1]))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
