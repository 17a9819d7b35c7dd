"""Reports written as Parquet files by the tasks that draw them.

Spark's own writer takes reports back from Python into rows of the JVM, and those apart
into columns again. Here a task writes its partition's reports with Arrow, from the
batches it has just drawn, and sends counts and sums alone.

A task may run several times. Each attempt writes a file of its own, under a random name
in a folder beside the data; Spark hands the driver the result of exactly one attempt of
each partition, and the driver moves these files to their place. Files of other attempts
hold the same reports; they are deleted with their folder. Readers pass by names that
begin with "_", so they never see an unfinished set, and `_SUCCESS` comes last.

The folder must be one that driver and executors both reach: a shared disk, or an
address that Arrow knows (`s3://`, `gs://`, `hdfs://`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from demur.adapters.spark.checked_rows import (
    PART_DDL,
    CheckedRows,
    check_partition,
    checked_reports,
)
from demur.adapters.spark.drawing import ReportTask
from demur.preprocessing.table_files import resolved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, repr=False)
class WriteTask:
    """Draws and writes the reports of one partition; it is pickled."""

    draw: ReportTask
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row: counts and sums of the partition's reports, and their file."""
        from pyspark import TaskContext

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        name = f"{number:05d}-{secrets.token_hex(8)}.parquet"
        filesystem, folder = resolved(self.folder)
        writer: Any = None

        def written() -> Iterator[pa.RecordBatch]:
            nonlocal writer
            for batch in self.draw(batches):
                if writer is None:
                    writer = pyarrow.parquet.ParquetWriter(
                        f"{folder}/{name}",
                        batch.schema,
                        filesystem=filesystem,
                        use_dictionary=False,  # reports hardly repeat
                        write_page_checksum=True,
                    )
                writer.write_batch(batch)
                yield batch

        try:
            (part,) = check_partition(written())
        finally:
            if writer is not None:
                writer.close()
        file = pa.array(["" if writer is None else name], pa.string())
        yield pa.RecordBatch.from_arrays(
            [*part.columns, file], names=[*part.schema.names, "file"]
        )


def check_place(path: str) -> None:
    """Refuse a place that has anything already, or that cannot be reached."""
    filesystem, folder = resolved(path)
    kinds = pyarrow.fs.FileType
    found = filesystem.get_file_info(folder)
    full = found.type == kinds.File
    if found.type == kinds.Directory:
        full = bool(filesystem.get_file_info(pyarrow.fs.FileSelector(folder)))
    if full:
        raise ValueError(
            f"path must be a new or an empty folder; {path!r} has something in it."
            " Give another, or remove what an interrupted run has left. Nothing was"
            " drawn."
        )


def write(rows: DataFrame, draw: ReportTask, path: str, width: int) -> CheckedRows:
    """Draw and write the reports of all rows; their counts and their digest."""
    check_place(path)
    filesystem, folder = resolved(path)
    attempts = f"_attempts-{secrets.token_hex(8)}"
    filesystem.create_dir(f"{folder}/{attempts}", recursive=True)
    try:
        task = WriteTask(draw, f"{path.rstrip('/')}/{attempts}")
        parts = rows.mapInArrow(task, f"{PART_DDL}, file string").collect()
        names = sorted(part.file for part in parts if part.file)
        there = filesystem.get_file_info([f"{folder}/{attempts}/{n}" for n in names])
        if any(info.type != pyarrow.fs.FileType.File for info in there):
            raise ValueError(
                f"path must be a folder that the driver and all executors share; the"
                f" driver does not see what they wrote to {path!r}. Write to a shared"
                " disk or an object store, or act on reports.dataframe."
            )
        written = checked_reports(parts, width)
        for number, info in enumerate(there):
            filesystem.move(info.path, f"{folder}/part-{number:05d}.parquet")
    finally:
        with suppress(OSError):
            filesystem.delete_dir(f"{folder}/{attempts}")
    with filesystem.open_output_stream(f"{folder}/_SUCCESS"):
        pass
    return written
