"""Long lists of tasks: several at a time, noted line by line, gone on with later."""

import fcntl
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Task: TypeAlias = Callable[[Path], None]  # of the folder of the job that does it


def rows_of(file: Path) -> list[dict[str, Any]]:
    """What was appended to a file; none, if there is no such file."""
    return [json.loads(line) for line in file.open()] if file.exists() else []


def append(file: Path, row: dict[str, Any]) -> None:
    """A line for a row; several jobs may append to one file."""
    with file.open("ab") as end:
        fcntl.flock(end, fcntl.LOCK_EX)
        end.write((json.dumps(row) + "\n").encode())


def share(tasks: list[Task], jobs: int, settle: Callable[[int], Path]) -> None:
    """Do the tasks in their order, as many at a time as there are jobs.

    `settle(job)` is called in each job before its first task, and returns its folder.
    """
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def feed() -> None:
        for number in [*range(len(tasks)), *[None] * jobs]:
            queue.put(number)

    def work(job: int) -> None:
        place = settle(job)
        while (number := queue.get()) is not None:
            tasks[number](place)

    workers = [context.Process(target=work, args=(job,)) for job in range(jobs)]
    workers.append(context.Process(target=feed))  # a full pipe would wait for readers
    for each in workers:
        each.start()
    try:
        for each in workers:
            each.join()
    except BaseException:
        for each in workers:
            each.terminate()
        for each in workers:
            each.join()
        raise
    if any(each.exitcode for each in workers):
        sys.exit("a job failed")
