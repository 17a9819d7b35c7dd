"""Convex heads of the rows of a Spark DataFrame: one job for each pass over them.

Tasks bound their rows and sum over them with the code of the engine, and return a
partial sum for each partition. The sums are compensated, so that the certificate does
not depend on partitions or on the order in which they end. A repeated or speculative
task computes the same sums, and Spark takes one of them.

**Where exact values are.** theta, an exact iterate and therefore secret, is sent to the
tasks inside their closure, and a sample of the rows and all sums come to the driver.
None of it is in a plan, a log or the event log. Spark writes a closure of more
than `spark.broadcast.UDFCompressionThreshold` (1 MiB, a theta of 130,000 numbers) to a
temporary file of the driver, and a merged sum to the executors' shuffle files: set
`spark.io.encryption.enabled` where the disks are not trusted with the rows themselves.

A DataFrame is computed anew for each pass. One that comes out differently (random
columns, a table that is being written to) is noticed by its fingerprint, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demur.adapters.spark.columns import quoted
from demur.adapters.spark.session import classic_dataframe
from demur.convex.rows.arrow import (
    class_indices,
    feature_columns,
    matrix_of,
    widths_of,
)
from demur.convex.rows.sources import (
    MOST_LABELS,
    Task,
    gathered,
    rechunked,
    rows_at_once,
)
from demur.convex.rows.totals import Chunk, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANSWER = "sums binary, refusal string"
_LARGE = 2**20  # bytes: such sums are merged on executors, so that the driver gets
_FEW = 8  # of them
_SPARE = 1.2  # a sample of Spark's has about as many rows as were asked for


@dataclass(frozen=True, eq=False)
class SparkRows:
    """Rows for `fit` in a Spark DataFrame; see `ParquetRows` for the columns.

    Cache the DataFrame where computing it is expensive: a fit reads it several times
    (once for prototypes, once for each step of noisy gradient descent).
    """

    df: DataFrame
    _: KW_ONLY
    label: str = "y"
    columns: Sequence[str] | None = None

    def row_source(self) -> SparkSource:
        """The rows as a source, from the schema and one row."""
        return SparkSource(classic_dataframe(self.df), self.label, self.columns)


class SparkSource:
    """The rows of a DataFrame, read by Spark's jobs."""

    def __init__(
        self, df: DataFrame, label: str, columns: Sequence[str] | None
    ) -> None:
        """Check that the columns are there."""
        schema = _arrow_schema(df)
        self._columns = feature_columns(schema, label, columns, "the DataFrame")
        self._label = label
        names = [*self._columns, label]
        # Renamed: Spark's mapInArrow takes a name with a dot for a field of a struct.
        self._df = df.select(*map(quoted, names)).toDF(*map(str, range(len(names))))
        first = self._df.limit(1).toArrow().combine_chunks().to_batches()
        if not first:
            raise ValueError("the DataFrame holds no rows. Nothing was spent.")
        named = first[0].rename_columns(names)
        self._widths = widths_of(named, self._columns)
        self._counts: dict[Any, int] | None = None

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(self._widths)

    @property
    def columns(self) -> list[str]:
        """The columns of the features."""
        return list(self._columns)

    def label_counts(self) -> dict[Any, int]:
        """How often each label occurs: one job."""
        if self._counts is None:
            counts = self._df.groupBy(self._df.columns[-1]).count()
            rows = counts.limit(MOST_LABELS + 1).collect()
            self._counts = {row[0]: int(row[1]) for row in rows}
        return self._counts

    def sample(self, task: Task, most: int) -> Chunk:
        """About `most` rows, drawn by Spark from a fixed seed."""
        n = sum(self.label_counts().values())
        share = min(1.0, _SPARE * most / n)
        some = self._df if share == 1.0 else self._df.sample(False, share, seed=0)
        batches = some.limit(most).toArrow().to_batches()
        chunks = _chunks(batches, self._columns, self._label, self._widths, task)
        return task.bounded(gathered(chunks, most, self.width))

    def totals(self, task: Task) -> Totals:
        """One job: partial sums of the partitions, merged here."""
        columns, label, widths = self._columns, self._label, self._widths

        def summed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            chunks = _chunks(batches, columns, label, widths, task)
            try:
                bounded = (task.bounded(chunk) for chunk in chunks)
                totals = Totals.over(bounded, len(task.classes), task.work)
            except pa.ArrowException:
                # Arrow's messages may quote a cell.
                yield _answer(None, "a partition does not hold what its schema says")
            except ValueError as error:
                # A task that raised would be repeated, and its traceback be logged.
                yield _answer(None, str(error))
            else:
                yield _answer(totals.to_bytes(), None)

        parts = self._df.mapInArrow(summed, _ANSWER)
        if _bytes_of(task, self.width) > _LARGE:
            parts = parts.repartition(_FEW).mapInArrow(_merged, _ANSWER)
        totals = Totals(len(task.classes))
        refusals = []
        for sums, refusal in parts.collect():
            if refusal is not None:
                refusals.append(refusal)
            else:
                totals.merge(Totals.from_bytes(bytes(sums)))
        if refusals:
            raise ValueError(min(refusals))
        return totals


def _bytes_of(task: Task, width: int) -> int:
    """The size of a partial sum, from one row of zeros."""
    parts = task.work(np.zeros((1, width)), np.zeros(1, dtype=np.intp))
    return sum(8 * part.size for part in parts)


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    totals: Totals | None = None
    for batch in batches:
        for answer in batch.to_pylist():
            if answer["refusal"] is not None:
                yield _answer(None, answer["refusal"])
                continue
            part = Totals.from_bytes(answer["sums"])
            if totals is None:
                totals = part
            else:
                totals.merge(part)
    if totals is not None:
        yield _answer(totals.to_bytes(), None)


def _answer(sums: bytes | None, refusal: str | None) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([sums], pa.binary()), pa.array([refusal], pa.string())],
        names=["sums", "refusal"],
    )


def _chunks(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    label: str,
    widths: Sequence[int],
    task: Task,
) -> Iterator[Chunk]:
    names = [*columns, label]
    named = (batch.rename_columns(names) for batch in batches if batch.num_rows)
    pieces = (
        Chunk(
            matrix_of(batch, columns, widths),
            class_indices(batch.column(label), task.classes),
        )
        for batch in named
    )
    return rechunked(pieces, rows_at_once(sum(widths)))


def _arrow_schema(df: DataFrame) -> pa.Schema:
    from pyspark.sql import types as T
    from pyspark.sql.pandas.types import to_arrow_type

    def plain(kind: T.DataType) -> bool:
        inner = kind.elementType if isinstance(kind, T.ArrayType) else kind
        return isinstance(inner, T.NumericType | T.BooleanType | T.StringType)

    # What Arrow has no name for (without a time zone, or at all) may be in columns that
    # nobody asks for: it passes here as a struct, and is refused where it is wanted.
    other = pa.struct([])
    kinds = [(field.name, field.dataType) for field in df.schema]
    return pa.schema([(n, to_arrow_type(k) if plain(k) else other) for n, k in kinds])
