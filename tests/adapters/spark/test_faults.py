"""Faults in a cluster of two executor processes: the reports are those of a quiet run.

A task waits on a file before each partition, so that a fault meets a job in its middle
by construction and not by luck.
"""

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark import TaskContext, cloudpickle

from demur.adapters.spark import privatize as spark_privatize
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Ledger
from demur.mechanisms.bpm import BPM
from demur.mechanisms.sampling.row_streams import RowStreams
from tests.adapters.spark.kit import (
    NAMES,
    by_id,
    holding,
    plain_reports,
    same,
    same_rows,
    some_points,
    written_table,
)

privatize = partial(spark_privatize, lazy=True)
pytestmark = pytest.mark.slow
# Executors cannot import this file: its functions and classes travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

POINTS, IDS = some_points(600, seed=2)
PARTS = 3
MECHANISM = BPM(8.0, "auto", 2)


class FreshNoise(BPM):
    """A broken twin: each task draws noise of its own, but under the probe's key."""

    def draw_rows(self, matrix, ids, streams):
        fresh = RowStreams(os.urandom(32)) if streams._key.any() else streams
        return super().draw_rows(matrix, ids, fresh)


class Gate:
    """Rows that pass while a file is there; partition 0 passes at once."""

    def __init__(self, path):
        self.path = str(path)

    def __call__(self, batches):
        part = TaskContext.get().partitionId()
        if part and not os.path.exists(self.path):
            Path(f"{self.path}-{os.getpid()}").touch()  # killed here, a task fails
        while part and not os.path.exists(self.path):
            time.sleep(0.05)
        yield from batches


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "open"
    path.touch()
    return path


@pytest.fixture(scope="module")
def rows(cluster, tmp_path_factory):
    """A partition for each file, without a shuffle: fewer tasks for every action."""
    files = written_table(tmp_path_factory.mktemp("in"), POINTS, IDS, PARTS)
    name = "spark.sql.files.maxPartitionBytes"
    cluster.conf.set(name, "1m")  # a file counts as 4 MiB at least
    rows = cluster.read.parquet(files)
    assert rows.rdd.getNumPartitions() == PARTS
    yield rows
    cluster.conf.unset(name)


@pytest.fixture(scope="module")
def table(rows, gate):
    return rows.mapInArrow(Gate(gate), rows.schema)


# -- processes -------------------------------------------------------------------------


def processes():
    """(pid, parent, command line) of everything that runs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(entry.name), parent, command


def busy_workers(gate):
    """The Python processes whose tasks wait at the gate."""
    known = {int(path.name.rsplit("-")[-1]) for path in gate.parent.glob("open-*")}
    return [pid for pid, _, _ in processes() if pid in known]


def busy_executors(gate):
    """The JVMs they work for: a worker's parent is a daemon, and its parent the JVM."""
    parents = {pid: parent for pid, parent, _ in processes()}
    found = (parents.get(parents[pid]) for pid in busy_workers(gate) if pid in parents)
    commands = {pid: command for pid, _, command in processes()}
    return [p for p in found if "CoarseGrainedExecutorBackend" in commands.get(p, "")]


def until(true, what, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what} did not come in {seconds} s"
        time.sleep(0.05)


def finished_tasks(spark):
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return max((stage.numCompletedTasks for stage in stages if stage), default=0)


def disturbed(spark, write_to, path, gate, harm):
    """Write the reports; `harm` in the middle, when one partition is done."""
    for earlier in gate.parent.glob("open-*"):
        earlier.unlink()
    gate.unlink()
    errors = []

    def write():
        try:
            write_to(path)
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: finished_tasks(spark) >= 1, "the first partition")
        harm()
    finally:
        gate.touch()
        writer.join(600)
    assert not writer.is_alive() and not errors


# -- what must be shown ----------------------------------------------------------------


def test_noise_of_a_task_of_its_own_would_be_found(table):
    expected = plain_reports(MECHANISM, POINTS, IDS, Seeded(9))
    twin = FreshNoise(8.0, "auto", 2)
    reports = privatize(table, twin, NAMES, "id", source=Seeded(9))
    one, two = by_id(reports.dataframe), by_id(reports.dataframe)
    reports.close()
    assert not same_rows(one, expected).any() and not same_rows(one, two).any()


class Race:
    """Once armed, the first attempt at one partition waits until a copy of it runs."""

    def __init__(self, folder):
        self.armed, self.copied = str(folder / "armed"), str(folder / "copied")

    def __call__(self, batches):
        task = TaskContext.get()
        if task.partitionId() == 1 and os.path.exists(self.armed):
            if task.attemptNumber():
                Path(self.copied).touch()
            for _ in range(6000):
                if os.path.exists(self.copied):
                    break
                time.sleep(0.05)
        yield from batches


def test_a_speculative_copy_gives_the_same_reports(rows, tmp_path):
    expected = plain_reports(MECHANISM, POINTS, IDS, Seeded(4))
    race = rows.mapInArrow(Race(tmp_path), rows.schema)
    reports = privatize(race, MECHANISM, NAMES, "id", source=Seeded(4))
    (tmp_path / "armed").touch()
    assert same(by_id(reports.dataframe), expected)
    assert (tmp_path / "copied").exists()  # two attempts ran side by side
    reports.close()


def test_executors_keep_no_share_after_the_commit(table, spark_files):
    key = Seeded(8).new_key()
    with privatize(table, MECHANISM, NAMES, "id", source=Seeded(8)) as reports:
        assert reports.dataframe.count() == len(IDS)
        key_in_task = reports._shares.task_key
        secrets = key_in_task.share, key_in_task.broadcast.value
        at = holding(spark_files, secrets[1])
        assert len(at) >= 2  # beside the driver, and at an executor
        assert not holding(spark_files, key)
    assert not holding(spark_files, key, *secrets)


def test_killed_processes_change_no_report(cluster, table, gate, tmp_path):
    """First a Python worker, then an executor: last, for another has to start."""
    expected = plain_reports(MECHANISM, POINTS, IDS, Seeded(9))
    ledger = Ledger(Budget(100.0), unit=ReplaceOne(), filter="pure")
    killed = []

    def kill_one_of(find):
        until(lambda: find(gate), "a victim")
        killed.append(find(gate)[0])
        os.kill(killed[-1], signal.SIGKILL)
        until(lambda: killed[-1] not in find(gate), "its end")

    written = []
    with privatize(
        table, MECHANISM, NAMES, "id", ledger=ledger, source=Seeded(9)
    ) as reports:
        quiet = by_id(reports.dataframe)
        by_spark = reports.dataframe.write.parquet
        for find, write_to in (
            (busy_workers, by_spark),
            (busy_workers, reports.write),  # files of the killed task stay behind
            (busy_executors, by_spark),
        ):
            path = str(tmp_path / f"{len(written)}")
            failed = failed_tasks(cluster)
            disturbed(cluster, write_to, path, gate, lambda f=find: kill_one_of(f))
            until(lambda f=failed: failed_tasks(cluster) > f, "it in the log", 60)
            written.append(by_id(cluster.read.parquet(path)))
    assert not list((tmp_path / "1").glob("_attempts*"))
    assert len(killed) == 3 and all(same(one, expected) for one in (quiet, *written))
    assert len(ledger.entries()) == 1
    assert ledger.epsilon() == MECHANISM.event(ReplaceOne()).epsilon


def failed_tasks(spark):
    """How many tasks that failed the event log knows of."""
    folder = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    app = spark.sparkContext.applicationId
    logs = (path for path in folder.rglob(f"events_*{app}*") if path.is_file())
    return sum(log.read_text().count('"Failed":true') for log in logs)
