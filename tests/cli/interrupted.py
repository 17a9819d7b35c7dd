"""Runs `demur` with a pause at one place, so that a test can interrupt it there.

    python interrupted.py PLACE COMMAND...

Prints READY and its process id when it is there, and waits until it is interrupted (or
told to go on by a line on stdin).
"""

import os
import sys
from importlib import import_module  # each pause loads what it needs

from demur.cli import app
from demur.ledger import Ledger


def pause() -> None:
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()


def before_the_charge() -> None:
    real = Ledger._write_charge

    def slow(self, *given):
        pause()
        return real(self, *given)

    Ledger._write_charge = slow


def after_the_charge() -> None:
    real = Ledger._charge

    def slow(self, *given):
        entry = real(self, *given)
        pause()
        return entry

    Ledger._charge = slow


def while_reading() -> None:
    tables = import_module("demur.convex.rows.tables")
    workload = import_module("demur.unlearning.stream.workload")

    for module, name in ((tables, "read_rows"), (workload, "read_stream")):
        real = getattr(module, name)

        def slow(*given, real=real, **more):
            pause()
            return real(*given, **more)

        setattr(module, name, slow)


def in_the_second_batch() -> None:
    import_module("demur.cluster.files.point_tables")._MOST_ROWS = 100
    BPM = import_module("demur.mechanisms").BPM
    real, calls = BPM.apply, []

    def slow(self, *given, **more):
        calls.append(1)
        if len(calls) == 2:
            pause()
        return real(self, *given, **more)

    BPM.apply = slow


def before_the_commit() -> None:
    real = Ledger._commit

    def slow(self, *given):
        pause()
        return real(self, *given)

    Ledger._commit = slow


def after_the_commit() -> None:
    real = Ledger._commit

    def slow(self, *given):
        real(self, *given)
        pause()

    Ledger._commit = slow


def after_ten_steps() -> None:
    Loop = import_module("demur.training.run.loop").TrainingLoop
    real, calls = Loop.step, []

    def slow(self, *given):
        state = real(self, *given)
        calls.append(1)
        if len(calls) == 10:
            pause()
        return state

    Loop.step = slow


def while_drawing() -> None:
    import_module("demur.report.page").render = lambda facts: pause()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    app(sys.argv[2:], prog_name="demur")
