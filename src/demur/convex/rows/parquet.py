"""Parquet files as rows and labels, without reading them into memory.

Only the named columns are read, a batch at a time. Memory holds a few chunks of at most
16 MiB and, for each column, the page that is being decoded (Parquet's pages have about
1 MiB): an embedding in one column of lists costs a few dozen megabytes, in 384 columns
of numbers less than one gigabyte. The number of rows does not matter.

An error names a file or a column, never a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from demur.convex.errors import DataChanged
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
    prefetched,
    rechunked,
    rows_at_once,
)
from demur.convex.rows.tables import features_of, index_columns
from demur.convex.rows.totals import Chunk, Totals
from demur.preprocessing.table_files import Paths, TableFile, changed, table_files

Array = NDArray[np.float64]

_SAMPLED_GROUPS = 64


@dataclass(frozen=True)
class ParquetRows:
    """Rows for `fit`, in one Parquet file, several, or a folder of them.

    `label` names the column of labels. `columns` names (and orders) the features:
    columns of numbers, or of lists of numbers of one length (an embedding); default:
    every column but the label, none of which may be an identifier by its name.

    A folder may be partitioned (`key=value` in the names of its folders): these columns
    are there for `label` and `columns`, and no feature by default. Paths may be
    addresses of an object store (`s3://...`), or paths in a `filesystem` of pyarrow.fs
    or fsspec. A file that is named twice is refused, links included.

    The files are read several times and must not change meanwhile: a change is
    noticed, and the fit refused.
    """

    path: Paths
    _: KW_ONLY
    label: str = "y"
    columns: Sequence[str] | None = None
    filesystem: Any = None

    def features(self, exclude: Sequence[str] = ()) -> list[str]:
        """The feature columns by default, less those to `exclude`."""
        schema = table_files(self.path, self.filesystem)[0].own_schema()
        return features_of(
            schema.names,
            label=self.label,
            exclude=exclude,
            indexes=index_columns(schema),
            columns=self.columns,
        )

    def row_source(self) -> ParquetSource:
        """The source, its schemas checked; only one row is read."""
        files = table_files(self.path, self.filesystem)
        return ParquetSource(files, self.label, self.columns)


class ParquetSource:
    """The files of a `ParquetRows`, and their identity when they were first seen."""

    def __init__(
        self, files: list[TableFile], label: str, columns: Sequence[str] | None
    ) -> None:
        """Check that every file has the same columns."""
        self._files = files
        self._label = label
        schema = _asked_schema(files[0], label, columns)
        self._columns = feature_columns(schema, label, columns, files[0].name)
        for file in files[1:]:
            feature_columns(file.schema(), label, self._columns, file.name)
        self._identities = [file.identity() for file in files]
        self._label_type = schema.field(label).type
        self._widths = self._first_widths()

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(self._widths)

    @property
    def columns(self) -> list[str]:
        """The columns of the features."""
        return list(self._columns)

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """The type that numpy gives the labels."""
        kind = self._label_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        return np.dtype(kind.to_pandas_dtype())

    def label_counts(self) -> dict[Any, int]:
        """How often each label occurs."""
        return self._counts

    @cached_property
    def _counts(self) -> dict[Any, int]:
        counts: Counter[Any] = Counter()
        for batch in self._batches([self._label], 2**16):
            for pair in pyarrow.compute.value_counts(batch.column(0)).to_pylist():
                counts[pair["values"]] += pair["counts"]
            if len(counts) > MOST_LABELS:
                break
        return dict(counts)

    def sample(self, task: Task, most: int) -> Chunk:
        """The leading rows of row groups all over the files.

        Where rows are sorted by label that may be far from the whole: then every k-th
        row is taken instead, which reads everything once.
        """
        groups = [
            (file, i, rows)
            for file in self._files
            for i, rows in enumerate(_group_rows(file))
        ]
        n = sum(rows for _, _, rows in groups)
        if n <= most:
            return task.bounded(gathered(self._chunks(task), n, self.width))
        some = groups[:: -(-len(groups) // _SAMPLED_GROUPS)]
        each = -(-most // len(some))
        leading = (c for p, i, _ in some for c in self._leading(p, i, each, task))
        rows = gathered(leading, most, self.width)
        if not _resembles(rows.y, self._counts, task, most):
            rows = gathered(_every(-(-n // most), self._chunks(task)), most, self.width)
        return task.bounded(rows)

    def totals(self, task: Task) -> Totals:
        """One pass over all rows, the next chunk being read meanwhile."""
        self._refuse_changes()
        bounded = prefetched(task.bounded(chunk) for chunk in self._chunks(task))
        totals = Totals.over(bounded, len(task.classes), task.work)
        self._refuse_changes()
        return totals

    def _chunks(self, task: Task) -> Iterator[Chunk]:
        size = rows_at_once(self.width)
        columns = [*self._columns, self._label]
        pieces = (self._chunk(b, task) for b in self._batches(columns, size))
        return rechunked(pieces, size)

    def _leading(
        self, file: TableFile, group: int, rows: int, task: Task
    ) -> Iterator[Chunk]:
        size = min(rows, rows_at_once(self.width))
        columns = [*self._columns, self._label]
        for batch in file.batches(columns, size, [group]):
            yield self._chunk(batch.slice(0, rows), task)
            rows -= batch.num_rows
            if rows <= 0:
                break

    def _batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            yield from file.batches(columns, size)

    def _chunk(self, batch: pa.RecordBatch, task: Task) -> Chunk:
        rows = matrix_of(batch, self._columns, self._widths)
        return Chunk(rows, class_indices(batch.column(self._label), task.classes))

    def _first_widths(self) -> list[int]:
        for batch in self._batches(list(self._columns), 1):
            if batch.num_rows:
                return widths_of(batch, self._columns)
        raise ValueError(f"{self._files[0].name} holds no rows. Nothing was spent.")

    def _refuse_changes(self) -> None:
        name = changed(self._files, self._identities)
        if name is not None:
            raise DataChanged(
                f"{name} was changed while it was being read, and a fit reads it"
                " several times. Fit again when nobody writes to it. Nothing was"
                " released, nothing was charged."
            )


def _asked_schema(
    file: TableFile, label: str, columns: Sequence[str] | None
) -> pa.Schema:
    """The schema to choose from: folders' names are columns only if asked for."""
    schema, own = file.schema(), set(file.own_schema().names)
    asked = own | {label, *(columns or ())}
    return pa.schema(
        [field for field in schema if field.name in asked], schema.metadata
    )


def _resembles(
    y: NDArray[np.intp], counts: dict[Any, int], task: Task, most: int
) -> bool:
    """Whether classes are about as frequent in a sample as in the whole."""
    whole = np.array([counts.get(c, 0) for c in task.classes.tolist()], dtype=float)
    seen = np.bincount(y, minlength=len(whole)) / max(1, len(y))
    expected = whole / max(1.0, whole.sum())
    # Generous: neighbours in a file are not independent.
    near = 0.5 * expected + 4.0 * np.sqrt(expected / most)
    return len(y) >= most // 4 and bool((np.abs(seen - expected) <= near).all())


def _every(stride: int, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Every stride-th row of all."""
    offset = 0
    for chunk in chunks:
        at = slice(-offset % stride, None, stride)
        yield Chunk(chunk.rows[at], chunk.y[at])
        offset += len(chunk.rows)


def _group_rows(file: TableFile) -> list[int]:
    with file.opened() as opened:
        groups = range(opened.metadata.num_row_groups)
        return [opened.metadata.row_group(i).num_rows for i in groups]
