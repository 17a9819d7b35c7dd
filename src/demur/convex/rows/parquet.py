"""Parquet files as rows and labels, without reading them into memory.

Only the named columns are read, a batch at a time. Memory holds a few chunks of at most
16 MiB and, for each column, the page that is being decoded (Parquet's pages have about
1 MiB): an embedding in one column of lists costs a few dozen megabytes, in 384 columns
of numbers less than one gigabyte. The number of rows does not matter.

An error names a file or a column, never a value.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from demur.convex.errors import DataChanged
from demur.convex.rows.arrow import class_indices, feature_columns, matrix_of
from demur.convex.rows.sources import (
    MOST_LABELS,
    Task,
    gathered,
    prefetched,
    rechunked,
    rows_at_once,
)
from demur.convex.rows.totals import Chunk, Totals

Array = NDArray[np.float64]

_SAMPLED_GROUPS = 64
_BUFFER = 2**16  # bytes for each column; without it a whole column chunk is fetched


@dataclass(frozen=True)
class ParquetRows:
    """Rows for `fit`, in one Parquet file, several, or a folder of them.

    `label` names the column of labels. `columns` names (and orders) the features:
    columns of numbers, or of lists of numbers of one length (an embedding); default:
    every column but the label, none of which may be an identifier by its name.

    The files are read several times and must not change meanwhile: a change is
    noticed, and the fit refused.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    _: KW_ONLY
    label: str = "y"
    columns: Sequence[str] | None = None

    def column_names(self) -> list[str]:
        """All columns of the first file, the label among them."""
        file = _files(self.path)[0]
        with _no_cell_in_errors(file):
            return list(pyarrow.parquet.read_schema(file).names)

    def row_source(self) -> ParquetSource:
        """The source, its schemas checked; only one row is read."""
        return ParquetSource(_files(self.path), self.label, self.columns)


class ParquetSource:
    """The files of a `ParquetRows`, and their identity when they were first seen."""

    def __init__(
        self, files: list[Path], label: str, columns: Sequence[str] | None
    ) -> None:
        """Check that every file has the same columns."""
        self._files = files
        self._label = label
        with _no_cell_in_errors(files[0]):
            schema = pyarrow.parquet.read_schema(files[0])
        self._columns = feature_columns(schema, label, columns, files[0].name)
        for path in files[1:]:
            with _no_cell_in_errors(path):
                other = pyarrow.parquet.read_schema(path)
            feature_columns(other, label, self._columns, path.name)
        self._identities = [_identity(path) for path in files]
        self._label_type = schema.field(label).type
        self.width = self._first_width()

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
            (path, i, file_rows)
            for path in self._files
            for i, file_rows in enumerate(_group_rows(path))
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
        self, path: Path, group: int, rows: int, task: Task
    ) -> Iterator[Chunk]:
        size = min(rows, rows_at_once(self.width))
        columns = [*self._columns, self._label]
        with _opened(path) as file:
            for batch in file.iter_batches(size, [group], columns, use_threads=False):
                yield self._chunk(batch.slice(0, rows), task)
                rows -= batch.num_rows
                if rows <= 0:
                    break

    def _batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        for path in self._files:
            with _opened(path) as file:
                yield from file.iter_batches(size, columns=columns, use_threads=False)

    def _chunk(self, batch: pa.RecordBatch, task: Task) -> Chunk:
        rows = matrix_of(batch, self._columns, self.width)
        return Chunk(rows, class_indices(batch.column(self._label), task.classes))

    def _first_width(self) -> int:
        for batch in self._batches(list(self._columns), 1):
            if batch.num_rows:
                return matrix_of(batch, self._columns, None).shape[1]
        raise ValueError(f"{self._files[0].name} holds no rows. Nothing was spent.")

    def _refuse_changes(self) -> None:
        for path, before in zip(self._files, self._identities, strict=True):
            if _identity(path) != before:
                raise DataChanged(
                    f"{path.name} was changed while it was being read, and a fit reads"
                    " it several times. Fit again when nobody writes to it. Nothing was"
                    " released, nothing was charged."
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


def _files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[Path]:
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for named in map(Path, given):
        if named.is_dir():
            # By Parquet's convention, names with a leading _ or . are not data.
            inside = sorted(
                p
                for p in named.rglob("*")
                if p.suffix.lower() in (".parquet", ".pq")
                and not any(
                    part.startswith(("_", ".")) for part in p.relative_to(named).parts
                )
            )
            files.extend(inside)
        elif named.is_file():
            files.append(named)
        else:
            raise ValueError(f"there is no file {named}. Nothing was spent.")
    if not files:
        raise ValueError(f"there are no Parquet files in {paths}. Nothing was spent.")
    if len(set(map(Path.resolve, files))) != len(files):
        raise ValueError("a Parquet file is named twice. Nothing was spent.")
    return files


def _identity(path: Path) -> tuple[int, ...]:
    try:
        now = path.stat()
    except OSError:
        return ()
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)


def _group_rows(path: Path) -> list[int]:
    with _opened(path) as file:
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(i).num_rows for i in groups]


@contextmanager
def _opened(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    # pyarrow would by default fetch the whole file ahead of the batches.
    with (
        _no_cell_in_errors(path),
        pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=_BUFFER
        ) as file,
    ):
        yield file


@contextmanager
def _no_cell_in_errors(path: Path) -> Iterator[None]:
    """pyarrow's messages may quote a cell; ours names the file alone."""
    try:
        yield
    except (pa.ArrowException, OSError):
        raise ValueError(
            f"{path.name} cannot be read: it is not, or no longer, a well-formed"
            " Parquet file. Nothing was released."
        ) from None
