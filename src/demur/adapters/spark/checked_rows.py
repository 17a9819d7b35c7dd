"""Checks and digests of rows in a Spark DataFrame, in one pass.

**The digest** does not depend on order or partitions: it is that of the rows' shared
fingerprint (`preprocessing.row_fingerprints`), id first and coordinate after
coordinate, with the numbers of rows and columns. A sum over ids alone shows whether
reports have the ids of the points. It stays on the driver, and the ledger stores it
under its own key.

**No id twice.** Rising ids are cheap to check: each partition returns its runs of
rising ids, first and last, and if no two runs of all partitions overlap no id occurs
twice. That is enough for sorted tables, however files are cut and packed. Otherwise
Spark counts ids in a shuffle, exactly.

Executors return counts and sums; errors contain no id and no point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from demur.adapters.errors import BadRows
from demur.adapters.spark.columns import repeated
from demur.mechanisms.reports import RowIds, Values
from demur.preprocessing.row_fingerprints import Lanes, fold, new_lanes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_RUNS = 64  # of rising ids in one partition; with more of them Spark counts
PART_DDL = (
    "rows long, missing long, not_finite long, outside long, negative long, ids long,"
    " first long, second long, low array<long>, high array<long>"
)
_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("rows", "missing", "not_finite", "outside")]
    + [(name, pa.int64()) for name in ("negative", "ids", "first", "second")]
    + [(name, pa.list_(pa.int64())) for name in ("low", "high")]
)


@dataclass(frozen=True, repr=False)
class CheckedRows:
    """Rows that were checked: their number, and sums and digest, which are secret."""

    rows: int
    ids: int
    digest: str


class Faults(NamedTuple):
    """How many rows have which fault."""

    missing: int
    not_finite: int
    outside: int
    negative: int

    def refuse(self, consequence: str) -> None:
        """Raise `BadRows` if there is any fault."""
        descriptions = (
            (
                self.missing,
                "have no value (null, or an array of another length) somewhere",
            ),
            (self.not_finite, "hold NaN or infinity"),
            (
                self.outside,
                "lie outside the unit cube (scale them by public bounds, nothing is"
                " clipped in silence)",
            ),
            (self.negative, "have a negative id"),
        )
        faults = [f"{count} rows {what}" for count, what in descriptions if count]
        if faults:
            raise BadRows(
                f"rows must be points with ids from 0: {'; '.join(faults)}."
                f" {consequence}"
            )


def check_dataframe_points(df: DataFrame) -> CheckedRows:
    """Check every row of df(id, coordinates ...) and take the digest of all of them."""
    parts = df.mapInArrow(check_partition, PART_DDL).collect()
    _faults_of(parts).refuse("Nothing was spent.")
    if not any(part.rows for part in parts):
        raise BadRows("df holds no rows. Nothing was spent.")
    if not _disjoint(parts):
        _check_ids(df)
    return _summed("points", len(df.columns) - 1, parts)


def check_reports(df: DataFrame) -> CheckedRows:
    """Count the reports df(id, coordinates ...) and take the digest of all of them."""
    parts = df.mapInArrow(check_partition, PART_DDL).collect()
    return checked_reports(parts, len(df.columns) - 1)


def checked_reports(parts: Sequence[Any], width: int) -> CheckedRows:
    """The reports of all partitions, counted and digested; `width` coordinates each."""
    # A null would be digested as 0. Reports may well lie outside the cube.
    faults = _faults_of(parts)._replace(outside=0)
    faults.refuse("These are no reports: nothing was committed.")
    return _summed("reports", width, parts)


def _faults_of(parts: Sequence[Any]) -> Faults:
    counts = (sum(getattr(part, what) for part in parts) for what in Faults._fields)
    return Faults(*counts)


def _summed(what: str, width: int, parts: Sequence[Any]) -> CheckedRows:
    rows = sum(part.rows for part in parts)
    first = sum(part.first for part in parts) % 2**64
    second = sum(part.second for part in parts) % 2**64
    text = f"spark {what} {rows} {width} {first:016x} {second:016x}"
    ids = sum(part.ids for part in parts) % 2**64
    return CheckedRows(rows, ids, hashlib.sha256(text.encode()).hexdigest())


def points_and_ids(batch: pa.RecordBatch) -> tuple[Values, RowIds]:
    """Points and ids of one batch for the draw, checked again."""
    ids, columns, faults, _, _ = _read(batch)
    faults.refuse("The input changed after it was checked. Nothing was drawn from it.")
    matrix = np.empty((batch.num_rows, len(columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = column
    return matrix, ids.view(np.uint64)


def check_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row of counts and sums for each partition; runs in the executors."""
    rows, id_sum, first, second = 0, 0, 0, 0
    faults = np.zeros(len(Faults._fields), dtype=np.int64)
    runs = Runs()
    for batch in batches:
        if not batch.num_rows:
            continue
        ids, _, batch_faults, batch_sum, lanes = _read(batch)
        rows += len(ids)
        faults += batch_faults
        id_sum += batch_sum
        first += int(lanes[0].sum())
        second += int(lanes[1].sum())
        runs.add(ids)
    sums = [_signed(id_sum), _signed(first), _signed(second)]
    result: list[Any] = [rows, *faults.tolist(), *sums, runs.low, runs.high]
    yield pa.RecordBatch.from_pydict(
        {name: [value] for name, value in zip(_SCHEMA.names, result, strict=True)},
        schema=_SCHEMA,
    )


class Runs:
    """Runs of rising ids, in the order of the rows; None when there are too many."""

    def __init__(self) -> None:
        self.low: list[int] | None = []
        self.high: list[int] | None = []

    def add(self, ids: NDArray[np.int64]) -> None:
        """Add the next ids."""
        if self.low is None or self.high is None:
            return
        breaks = np.flatnonzero(ids[1:] <= ids[:-1]) + 1
        if len(self.low) + len(breaks) > _MOST_RUNS:
            self.low = self.high = None
            return
        low = ids[np.concatenate(([0], breaks))].tolist()
        high = ids[np.concatenate((breaks - 1, [len(ids) - 1]))].tolist()
        if self.high and low[0] > self.high[-1]:  # the last run goes on
            low = low[1:]
            self.high.pop()
        self.low += low
        self.high += high


def _disjoint(parts: Iterable[Any]) -> bool:
    """Whether the runs of all partitions are known and no two of them overlap."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        if part.low is None:
            return False
        runs += zip(part.low, part.high, strict=True)
    runs.sort()
    return all(run[1] < after[0] for run, after in zip(runs, runs[1:], strict=False))


def _check_ids(df: DataFrame) -> None:
    """Refuse ids that occur more than once."""
    if twice := repeated(df):
        raise BadRows(
            f"ids must all differ, and {twice} of them occur more than once: rows of"
            " one id would share their noise, and the difference of their reports"
            " would show that of their points. Nothing was spent."
        )


def _read(
    batch: pa.RecordBatch,
) -> tuple[NDArray[np.int64], list[Values], Faults, int, Lanes]:
    """Ids, coordinates (zero-copy), faults, the sum over ids, the lanes of each row."""
    n = batch.num_rows
    flags = np.zeros(n, dtype=np.uint8)
    columns = []
    for column in batch.columns:
        if column.null_count:
            flags[column.is_null().to_numpy(zero_copy_only=False)] |= _MISSING
            column = column.fill_null(0)
        columns.append(column.to_numpy(zero_copy_only=False))
    ids = columns[0].astype(np.int64, copy=False)
    points = [column.astype(np.float64, copy=False) for column in columns[1:]]
    lanes = new_lanes(n)
    fold(ids.view(np.uint64), *lanes)
    id_sum = int(lanes[0].sum())
    for point in points:
        _flag(point, flags)
        fold(point.view(np.uint64), *lanes)
    faults = Faults(
        int(np.count_nonzero(flags & _MISSING)),
        int(np.count_nonzero(flags & _NOT_FINITE)),
        int(np.count_nonzero(flags & _OUTSIDE)),
        int(np.count_nonzero(ids < 0)),
    )
    return ids, points, faults, id_sum, lanes


def _signed(total: int) -> int:
    """A sum modulo 2^64 as Spark's long."""
    total %= 2**64
    return total - 2**64 if total >= 2**63 else total


_MISSING, _NOT_FINITE, _OUTSIDE = np.uint8(1), np.uint8(2), np.uint8(4)


@njit(cache=True, nogil=True)
def _flag(column: Values, flags: NDArray[np.uint8]) -> None:
    for i in range(column.size):
        x = column[i]
        if not np.isfinite(x):
            flags[i] |= np.uint8(2)
        elif x < 0.0 or x > 1.0:
            flags[i] |= np.uint8(4)
