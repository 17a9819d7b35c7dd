"""BPM reports on Spark with two cores, against the plain kernel on the same cores.

    python benchmarks/scale_parts/reports.py [--quick] [--rows 1e7] [--dimension 10]

The plain kernel runs in two threads (it releases Python's lock): once in memory alone,
and once from Parquet to Parquet by Arrow, which is the work that Spark does. Spark runs
in `local[2]`: the check, the draw (read, draw, write) and the check at commit are
timed apart. Its Java machine and Python workers are warm: a small job runs first. What
Spark takes to copy the same table, without any of demur, is there to compare with.

Core-seconds are the CPU time of all processes together; ratios of them hold on a busy
machine as well, where those of wall time do not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from demur.adapters.spark import SparkReports, privatize
from demur.mechanisms.bpm import BPM
from demur.mechanisms.sampling.row_streams import RowStreams

CORES = 2
FILES = 8
BATCH = 1 << 16
EPSILON = 8.0
AIM = 0.6


def names(dimension: int) -> list[str]:
    return [f"x{j}" for j in range(dimension)]


def make_input(folder: Path, rows: int, dimension: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, ids in enumerate(np.array_split(np.arange(rows), FILES)):
        columns = {name: rng.random(len(ids)) for name in names(dimension)}
        table = pa.table({"id": ids, **columns})
        pq.write_table(table, folder / f"part-{part}.parquet", use_dictionary=False)


class Took(NamedTuple):
    """What a piece of work took, in seconds of the clock and of all cores."""

    wall: float
    cores: float


def measured(work: Callable[[], Any]) -> Took:
    start, busy = time.perf_counter(), core_seconds()
    work()
    return Took(time.perf_counter() - start, core_seconds() - busy)


def core_seconds() -> float:
    """CPU time of this process and all below it: Java, and the Python workers."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for process, ticks in used.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        total += ticks if above == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")


def in_memory(bpm: BPM, rows: int) -> Took:
    """The kernel alone, on rows that lie in memory."""
    points = np.random.default_rng(1).random((BATCH, bpm.dimension))
    streams = RowStreams(os.urandom(32))

    def draw(start: int) -> None:
        here = points[: min(BATCH, rows - start)]
        ids = np.arange(start, start + len(here), dtype=np.uint64)
        bpm.draw_rows(here, ids, streams)

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(draw, range(0, BATCH * CORES, BATCH)))
        return measured(lambda: list(pool.map(draw, range(0, rows, BATCH))))


def file_to_file(bpm: BPM, source: Path, target: Path) -> Took:
    """Arrow reads Parquet, the kernel draws, Arrow writes Parquet; two threads."""
    streams = RowStreams(os.urandom(32))
    target.mkdir()

    def draw(path: Path) -> None:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
        with pq.ParquetWriter(target / path.name, schema, use_dictionary=False) as out:
            for batch in file.iter_batches(BATCH, use_threads=False):
                ids = batch.column(0).to_numpy().view(np.uint64)
                matrix = np.empty((batch.num_rows, bpm.dimension))
                for j in range(bpm.dimension):
                    matrix[:, j] = batch.column(j + 1).to_numpy()
                values = bpm.draw_rows(matrix, ids, streams)
                columns = [pa.array(c) for c in np.ascontiguousarray(values.T)]
                out.write_batch(
                    pa.RecordBatch.from_arrays(
                        [batch.column(0), *columns], schema.names
                    )
                )

    with ThreadPoolExecutor(CORES) as pool:
        return measured(lambda: list(pool.map(draw, sorted(source.iterdir()))))


@contextmanager
def session(folder: Path, records: int) -> Iterator[SparkSession]:
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        # Any smaller limit makes Spark add up all buffers after every row.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("demur benchmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def write(frame: DataFrame, target: Path) -> None:
    # Reports hardly repeat: a dictionary of them is work for nothing.
    frame.write.option("parquet.enable.dictionary", "false").parquet(str(target))


def on_spark(
    spark: SparkSession, bpm: BPM, source: Path, target: Path
) -> dict[str, Took]:
    """What each step takes, and Spark's own copy of the table."""
    points = spark.read.parquet(str(source))
    kept: list[SparkReports] = []

    def check() -> None:
        kept.append(privatize(points, bpm, names(bpm.dimension), "id", lazy=True))

    took = {"check and charge": measured(check)}
    took["draw"] = measured(lambda: write(kept[0].dataframe, target))
    took["draw, files written by the tasks"] = measured(
        lambda: kept[0].write(str(target.with_name(target.name + "-by-tasks")))
    )
    took["draw, written nowhere"] = measured(
        lambda: kept[0].dataframe.write.format("noop").mode("overwrite").save()
    )
    took["commit"] = measured(kept[0].commit)
    took["a copy of the table"] = measured(
        lambda: write(points, target.with_name(target.name + "-copy"))
    )
    return took


def run(
    quick: bool, rows: int | None = None, dimension: int = 10, records: int = BATCH
) -> list[str]:
    """The table, as Markdown."""
    rows = rows or (1_000_000 if quick else 10_000_000)
    bpm = BPM(EPSILON, "auto", dimension)
    folder = Path(tempfile.mkdtemp(prefix="demur-scale-reports-"))
    try:
        make_input(folder / "warm", 200_000, dimension)
        make_input(folder / "in", rows, dimension)
        with session(folder / "spark", records) as spark:
            on_spark(spark, bpm, folder / "warm", folder / "warm-out")
            kernel = in_memory(bpm, rows)
            plain = file_to_file(bpm, folder / "in", folder / "plain")
            took = on_spark(spark, bpm, folder / "in", folder / "out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps = [took[step] for step in ("check and charge", "draw", "commit")]
    whole = Took(sum(s.wall for s in steps), sum(s.cores for s in steps))
    lines = [
        f"{rows:,} rows, d = {dimension}, BPM; {CORES} cores, batches of {records:,}.",
        "",
        "| what | seconds | reports/s | core-seconds | kernel / this, in core-seconds"
        " | plain files / this | copy / this |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    copy = took["a copy of the table"]
    for what, one in {
        "plain kernel in memory, 2 threads": kernel,
        "plain kernel, Parquet to Parquet, 2 threads": plain,
        **{f"Spark: {what}": step for what, step in took.items()},
        "Spark: check, draw and commit": whole,
    }.items():
        ratios = (f"{other.cores / one.cores:.2f}" for other in (kernel, plain, copy))
        lines.append(
            f"| {what} | {one.wall:.2f} | {rows / one.wall:,.0f} | {one.cores:.2f}"
            f" | {' | '.join(ratios)} |"
        )
    ratio = kernel.wall / took["draw"].wall
    lines += [
        "",
        f"Draw on Spark / plain kernel in memory, by the clock: {ratio:.2f}"
        f" (aim {AIM}); / plain kernel from Parquet to Parquet:"
        f" {plain.wall / took['draw'].wall:.2f}.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rows", type=lambda text: int(float(text)))
    parser.add_argument("--dimension", type=int, default=10)
    parser.add_argument("--records", type=int, default=BATCH)
    chosen = parser.parse_args()
    lines = run(chosen.quick, chosen.rows, chosen.dimension, chosen.records)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
