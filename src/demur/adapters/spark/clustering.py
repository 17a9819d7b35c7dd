"""Clustering of local reports in a Spark DataFrame, with the results of one machine.

The search is that of `demur.cluster`: it needs sums over all reports and a random
sample of them (`cluster.rows.ranked_rows`). Sums are exact and the sample is a function
of the row ids, so partitions, their order, retried or speculative tasks change nothing,
and the clusters are those of the same reports on one machine, to the last digit. This
takes equal processors and libraries everywhere: `exp` may differ in its last bit
between kinds of machines.

What comes to the driver: at most 40,000 reports (those of a GMM 100,000; all of them
where the posterior is averaged, up to 1,000,000 / clusters), and k (d + 1) + 2 sums
with their rests from each partition, for each step of the search. Reports are public,
and everything here is post-processing of them: no ledger, no cost, no secret in a task.

Reports are packed once into blocks, one for each Arrow batch, and cached in Spark
(memory, then disk) until the fit ends: a pass over blocks costs no conversion of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from demur.adapters.spark.columns import (
    check_columns,
    id_and_coordinates,
    listed,
    repeated,
)
from demur.adapters.spark.session import classic_dataframe
from demur.cluster.decoding.labelling import Label
from demur.cluster.estimators.base import PrivateClusterer
from demur.cluster.rows.exact_sums import PartialSums
from demur.cluster.rows.ranked_rows import ranks
from demur.core import validate
from demur.mechanisms.reports import ReportMechanism, RowIds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Array = NDArray[np.float64]
AnyClusterer = TypeVar("AnyClusterer", bound=PrivateClusterer)

_FAULTS = ("missing", "outside", "negative")
_BLOCK = pa.schema(
    [(name, pa.int64()) for name in ("rows", *_FAULTS)]
    + [("ids", pa.binary()), ("reports", pa.binary())]
)
_BLOCK_DDL = (
    "rows long, missing long, outside long, negative long, ids binary, reports binary"
)
_SUMS = pa.schema([("rows", pa.int64()), ("sums", pa.binary())])
_SUMS_DDL = "rows long, sums binary"
_CHOSEN = pa.schema([("ids", pa.binary()), ("reports", pa.binary())])
_CHOSEN_DDL = "ids binary, reports binary"


def fit_reports(
    estimator: AnyClusterer,
    df: DataFrame,
    mechanism: ReportMechanism,
    columns: Sequence[str],
    id_column: str,
) -> AnyClusterer:
    """Fit a clusterer to reports in a DataFrame; free, like all post-processing.

        kmeans = fit_reports(PrivateKMeans(5, random_state=0), reports,
                             BPM(8.0, "auto", 2), ["x", "y"], "id")

    Row for row, `columns` hold a report of `mechanism` and `id_column` its id. The
    result is what `estimator.fit_reports` makes of the same reports and ids on one
    machine, without `reports_` and `labels_`; `assign` gives labels as a column. The
    noise-aware decoder alone works on parts of the reports.
    """
    if not isinstance(estimator, PrivateClusterer):
        raise TypeError(
            "estimator must be a PrivateKMeans, PrivateGMM or PrivateTMM; got"
            f" {type(estimator).__name__}"
        )
    if not isinstance(mechanism, ReportMechanism):
        raise TypeError(
            "mechanism must be the one that drew the reports, such as"
            f" BPM(epsilon, L, dimension); got {type(mechanism).__name__}"
        )
    with ReportBlocks(df, mechanism, columns, id_column) as blocks:
        return estimator.fit_reports(blocks)


def assign(
    estimator: PrivateClusterer,
    df: DataFrame,
    columns: Sequence[str],
    name: str = "cluster",
) -> DataFrame:
    """`df` with one more column: the cluster of each report, as in `labels_`.

    It is lazy, as DataFrames are. A row that is no report of the mechanism that was
    fitted stops the job that reads it.
    """
    df = classic_dataframe(df)
    from pyspark.sql import types as T

    validate.name(name=name)
    label, mechanism = estimator.labelling(), estimator.report_mechanism_
    columns = listed(columns)
    check_columns(df, mechanism.dimension, columns)
    if name in df.columns:
        raise ValueError(f"df already has a column {name!r}")
    places = tuple(df.columns.index(column) for column in columns)
    schema = T.StructType([*df.schema.fields, T.StructField(name, T.IntegerType())])
    # Renamed: Spark's mapInArrow takes a name with a dot for a field of a struct.
    plain = df.toDF(*map(str, range(len(df.columns))))
    task = _Assign(label, mechanism, places, (*df.columns, name))
    return plain.mapInArrow(task, schema)


class ReportBlocks:
    """`RemoteReports` of a DataFrame, checked and packed, until it is closed.

    Use it as a context manager: the blocks are cached in Spark.
    """

    def __init__(
        self,
        df: DataFrame,
        mechanism: ReportMechanism,
        columns: Sequence[str],
        id_column: str,
    ) -> None:
        df = classic_dataframe(df)
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        columns = listed(columns)
        chosen = id_and_coordinates(df, mechanism.dimension, columns, id_column)
        self.mechanism = mechanism
        self._blocks = chosen.mapInArrow(_Pack(mechanism), _BLOCK_DDL)
        self._blocks.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            sums = [F.sum(name).alias(name) for name in ("rows", *_FAULTS)]
            counts = self._blocks.agg(*sums).collect()[0]
            if not counts.rows:
                raise ValueError("df holds no reports")
            _refuse(mechanism, *(counts[name] for name in _FAULTS))
            ids = self._blocks.select("ids").mapInArrow(_unpacked, "id long")
            if twice := repeated(ids):
                raise ValueError(
                    f"ids must all differ, and {twice} of them occur more than once: a"
                    " person would count more than once (a join, or files read twice?)"
                )
        except BaseException:
            self.close()
            raise
        self.shape = int(counts.rows), mechanism.dimension

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the blocks from Spark's cache."""
        self._blocks.unpersist()

    def over(self, work: Callable[[Array], PartialSums]) -> PartialSums:
        """The sum of `work` over all blocks: one job."""
        task = _Sum(work, self.shape[1])
        parts = self._blocks.select("reports").mapInArrow(task, _SUMS_DDL).collect()
        if sum(part.rows for part in parts) != self.shape[0]:
            raise RuntimeError(
                "df gave other rows when Spark read it again: write the reports to"
                " files and read those"
            )
        total = _from_bytes(parts[0].sums)
        for part in parts[1:]:
            total += _from_bytes(part.sums)
        return total

    def ranked_up_to(self, key: bytes, last: int) -> tuple[RowIds, Array]:
        """Ids and reports of the rows whose rank is at most `last`: one job."""
        task = _Choose(key, last, self.shape[1])
        parts = (
            self._blocks.select("ids", "reports")
            .mapInArrow(task, _CHOSEN_DDL)
            .collect()
        )
        ids = np.frombuffer(b"".join(part.ids for part in parts), dtype=np.uint64)
        values = np.frombuffer(b"".join(part.reports for part in parts))
        return ids, values.reshape(len(ids), self.shape[1])


# -- what runs in the executors --------------------------------------------------------


@dataclass(frozen=True)
class _Pack:
    """Ids and reports of each Arrow batch as one block, with the number of its faults.

    The driver raises errors; here nobody would read them.
    """

    mechanism: ReportMechanism

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            missing, values = _matrix(batch.columns[1:])
            missing |= _nulls(batch.column(0))
            ids = batch.column(0).fill_null(0).to_numpy().astype(np.int64, copy=False)
            outside = ~missing & ~_inside(values, self.mechanism)
            counts = [len(ids), missing.sum(), outside.sum(), (ids < 0).sum()]
            columns = [*map(int, counts), ids.tobytes(), values.tobytes()]
            yield _row(columns, _BLOCK)


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The ids of blocks, one in a row."""
    for batch in batches:
        for block in batch.column(0):
            ids = np.frombuffer(block.as_buffer(), dtype=np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(ids)], names=["id"])


@dataclass(frozen=True)
class _Sum:
    """One row of sums for each partition."""

    work: Callable[[Array], PartialSums]
    columns: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, total = 0, None
        for batch in batches:
            for block in batch.column(0):
                reports = _reports(block, self.columns)
                sums = self.work(reports)
                total = sums if total is None else total + sums
                rows += len(reports)
        if total is not None:
            yield _row([rows, _to_bytes(total)], _SUMS)


@dataclass(frozen=True)
class _Choose:
    """The rows of each block whose rank is at most `last`."""

    key: bytes
    last: int
    columns: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for id_block, block in zip(*batch.columns, strict=True):
                ids = np.frombuffer(id_block.as_buffer(), dtype=np.uint64)
                chosen = ranks(self.key, ids) <= np.uint64(self.last)
                if chosen.any():
                    values = _reports(block, self.columns)[chosen]
                    yield _row([ids[chosen].tobytes(), values.tobytes()], _CHOSEN)


@dataclass(frozen=True)
class _Assign:
    label: Label
    mechanism: ReportMechanism
    places: tuple[int, ...]
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            missing, values = _matrix([batch.column(place) for place in self.places])
            outside = ~missing & ~_inside(values, self.mechanism)
            _refuse(self.mechanism, int(missing.sum()), int(outside.sum()), 0)
            labels = pa.array(self.label(values).astype(np.int32))
            columns = [*batch.columns, labels]
            yield pa.RecordBatch.from_arrays(columns, names=list(self.names))


def _matrix(columns: Sequence[pa.Array]) -> tuple[NDArray[np.bool_], Array]:
    """Which rows lack a value, and all of them as a matrix with 0 in its place."""
    missing = np.zeros(len(columns[0]), dtype=np.bool_)
    values = np.empty((len(missing), len(columns)))
    for j, column in enumerate(columns):
        missing |= _nulls(column)
        values[:, j] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return missing, values


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _inside(values: Array, mechanism: ReportMechanism) -> NDArray[np.bool_]:
    low, high = -mechanism.reach, 1.0 + mechanism.reach
    inside = (values >= low) & (values <= high) & np.isfinite(values)
    return np.asarray(inside.all(axis=1))


def _reports(block: pa.Scalar, columns: int) -> Array:
    values = np.frombuffer(block.as_buffer(), dtype=np.float64)
    return np.require(values, requirements=["C", "A"]).reshape(-1, columns)


def _row(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    named = {name: [value] for name, value in zip(schema.names, values, strict=True)}
    return pa.RecordBatch.from_pydict(named, schema=schema)


def _to_bytes(sums: PartialSums) -> bytes:
    return np.concatenate([sums.high, sums.low, sums.largest]).tobytes() + len(
        sums.high
    ).to_bytes(8, "little")


def _from_bytes(data: bytes) -> PartialSums:
    size = int.from_bytes(data[-8:], "little")
    numbers = np.frombuffer(data[:-8])
    return PartialSums(numbers[:size], numbers[size : 2 * size], numbers[2 * size :])


# -- what a DataFrame must hold --------------------------------------------------------


def _refuse(
    mechanism: ReportMechanism, missing: int, outside: int, negative: int
) -> None:
    """Refuse rows that are no reports of the mechanism."""
    faults = [
        f"{count} rows {what}"
        for count, what in (
            (missing, "have no value (null) somewhere"),
            (outside, "are not finite or outside"),
            (negative, "have a negative id"),
        )
        if count
    ]
    if faults:
        raise ValueError(
            f"reports of {mechanism} are finite and lie in [{-mechanism.reach:g},"
            f" {1.0 + mechanism.reach:g}], with ids from 0: {'; '.join(faults)}. These"
            " are not this mechanism's reports"
        )
