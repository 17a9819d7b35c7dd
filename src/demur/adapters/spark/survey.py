"""One pass of Spark over the rows: are they points with ids, and which rows are they.

**The digest** does not depend on order or partitions. A row is folded, id first and
coordinate after coordinate, into two 64-bit lanes; a step is a bijection of the lane,
and for a given lane of the word it takes in. The rows' lanes are added modulo 2^64, and
the sums are hashed with the numbers of rows and columns. A sum over ids alone tells
whether reports have the ids of the points. So a change of one word of one
row always changes the digest, and other accidents pass it by once in 2^128. It is not
made against someone who composes rows to collide. It is a function of exact data: it
stays on the driver, and the ledger keeps it under its own key.

**No id twice.** Rising ids are cheap to look at: each partition tells its runs of
rising ids, first and last, and if no two runs of all partitions overlap no id occurs
twice. That settles sorted tables, however files are cut and packed. Otherwise Spark
counts ids in a shuffle, exactly.

Executors tell counts and sums; errors carry no id and no point.
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUNS = 64  # of rising ids that one partition tells of; beyond it Spark counts
_FOUND = (
    "rows long, missing long, strange long, outside long, negative long, ids long,"
    " first long, second long, low array<long>, high array<long>"
)
_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("rows", "missing", "strange", "outside")]
    + [(name, pa.int64()) for name in ("negative", "ids", "first", "second")]
    + [(name, pa.list_(pa.int64())) for name in ("low", "high")]
)


@dataclass(frozen=True, repr=False)
class Survey:
    """What one pass found: all of it secret but the number of rows."""

    rows: int
    ids: int
    digest: str


class Faults(NamedTuple):
    """How many rows have which fault."""

    missing: int
    strange: int
    outside: int
    negative: int

    def complain(self, then: str) -> None:
        """Raise if there is any."""
        words = (
            (self.missing, "have no value (null) somewhere"),
            (self.strange, "hold NaN or infinity"),
            (
                self.outside,
                "lie outside the unit cube (scale them by public bounds, nothing is"
                " clipped in silence)",
            ),
            (self.negative, "have a negative id"),
        )
        said = [f"{count} rows {what}" for count, what in words if count]
        if said:
            raise BadRows(
                f"rows must be points with ids from 0: {'; '.join(said)}. {then}"
            )


def survey(df: DataFrame) -> Survey:
    """Check every row of df(id, coordinates ...) and take the digest of all of them."""
    parts = df.mapInArrow(_look, _FOUND).collect()
    _faults_of(parts).complain("Nothing was spent.")
    if not any(part.rows for part in parts):
        raise BadRows("df holds no rows. Nothing was spent.")
    if not _apart(parts):
        _must_differ(df)
    return _summed("points", df, parts)


def survey_reports(df: DataFrame) -> Survey:
    """Count the reports df(id, coordinates ...) and take the digest of all of them."""
    parts = df.mapInArrow(_look, _FOUND).collect()
    # A null would be digested as 0. Reports may well lie outside the cube.
    faults = _faults_of(parts)._replace(outside=0)
    faults.complain("These are no reports: nothing was committed.")
    return _summed("reports", df, parts)


def _faults_of(parts: Sequence[Any]) -> Faults:
    counts = (sum(getattr(part, what) for part in parts) for what in Faults._fields)
    return Faults(*counts)


def _summed(what: str, df: DataFrame, parts: Sequence[Any]) -> Survey:
    rows = sum(part.rows for part in parts)
    first = sum(part.first for part in parts) % 2**64
    second = sum(part.second for part in parts) % 2**64
    text = f"spark {what} {rows} {len(df.columns) - 1} {first:016x} {second:016x}"
    ids = sum(part.ids for part in parts) % 2**64
    return Survey(rows, ids, hashlib.sha256(text.encode()).hexdigest())


def rows_of(batch: pa.RecordBatch) -> tuple[Values, RowIds]:
    """Points and ids of one batch for the draw, checked again."""
    ids, columns, faults, _, _ = _read(batch)
    faults.complain("The input is not what was surveyed: nothing was drawn from it.")
    matrix = np.empty((batch.num_rows, len(columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = column
    return matrix, ids.view(np.uint64)


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row of findings for each partition; runs in the executors."""
    rows, named, first, second = 0, 0, 0, 0
    faults = np.zeros(len(Faults._fields), dtype=np.int64)
    runs = Runs()
    for batch in batches:
        if not batch.num_rows:
            continue
        ids, _, found, names, lanes = _read(batch)
        rows += len(ids)
        faults += found
        named += names
        first += int(lanes[0].sum())
        second += int(lanes[1].sum())
        runs.add(ids)
    sums = [_signed(named), _signed(first), _signed(second)]
    told: list[Any] = [rows, *faults.tolist(), *sums, runs.low, runs.high]
    yield pa.RecordBatch.from_pydict(
        {name: [value] for name, value in zip(_SCHEMA.names, told, strict=True)},
        schema=_SCHEMA,
    )


class Runs:
    """Runs of rising ids, in the order in which they come; None when too many."""

    def __init__(self) -> None:
        self.low: list[int] | None = []
        self.high: list[int] | None = []

    def add(self, ids: NDArray[np.int64]) -> None:
        """The next ids."""
        if self.low is None or self.high is None:
            return
        breaks = np.flatnonzero(ids[1:] <= ids[:-1]) + 1
        if len(self.low) + len(breaks) > _RUNS:
            self.low = self.high = None
            return
        low = ids[np.concatenate(([0], breaks))].tolist()
        high = ids[np.concatenate((breaks - 1, [len(ids) - 1]))].tolist()
        if self.high and low[0] > self.high[-1]:  # the last run goes on
            low = low[1:]
            self.high.pop()
        self.low += low
        self.high += high


def _apart(parts: Iterable[Any]) -> bool:
    """Whether the runs of all partitions are known and no two of them overlap."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        if part.low is None:
            return False
        runs += zip(part.low, part.high, strict=True)
    runs.sort()
    return all(one[1] < other[0] for one, other in zip(runs, runs[1:], strict=False))


def _must_differ(df: DataFrame) -> None:
    if twice := repeated(df):
        raise BadRows(
            f"ids must all differ, and {twice} of them occur more than once: rows of"
            " one id would share their noise, and the difference of their reports"
            " would show that of their points. Nothing was spent."
        )


Lanes = tuple[NDArray[np.uint64], NDArray[np.uint64]]


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
    lanes = np.full(n, _FIRST), np.full(n, _SECOND)
    _fold(ids.view(np.uint64), *lanes)
    named = int(lanes[0].sum())
    for point in points:
        _judge(point, flags)
        _fold(point.view(np.uint64), *lanes)
    faults = Faults(
        int(np.count_nonzero(flags & _MISSING)),
        int(np.count_nonzero(flags & _STRANGE)),
        int(np.count_nonzero(flags & _OUTSIDE)),
        int(np.count_nonzero(ids < 0)),
    )
    return ids, points, faults, named, lanes


def _signed(total: int) -> int:
    """A sum modulo 2^64 as Spark's long."""
    total %= 2**64
    return total - 2**64 if total >= 2**63 else total


_MISSING, _STRANGE, _OUTSIDE = np.uint8(1), np.uint8(2), np.uint8(4)
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


@njit(cache=True, nogil=True)
def _judge(column: Values, flags: NDArray[np.uint8]) -> None:
    for i in range(column.size):
        x = column[i]
        if not np.isfinite(x):
            flags[i] |= np.uint8(2)
        elif x < 0.0 or x > 1.0:
            flags[i] |= np.uint8(4)


# Two 64-bit finalisers of the kind that MurmurHash3 and SplitMix64 end with: shifts and
# odd multipliers, so each is a bijection.
@njit(cache=True, nogil=True)
def _fold(
    words: NDArray[np.uint64],
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
) -> None:
    for i in range(words.size):
        a = first[i] ^ words[i]
        a = (a ^ (a >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        a = (a ^ (a >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        first[i] = a ^ (a >> np.uint64(33))
        b = second[i] ^ words[i]
        b = (b ^ (b >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        b = (b ^ (b >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        second[i] = b ^ (b >> np.uint64(31))
