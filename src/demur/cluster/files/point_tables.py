"""Tables of points in Parquet or CSV files, read in batches, checked and scaled.

Only the named columns are read. An error names a column, never a value: pyarrow's own
messages quote the text of a cell, so they are replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.core import validate
from demur.core.bounds import to_unit_cube

Values = NDArray[np.float64]
RowIds = NDArray[np.uint64]

_NUMBERS_AT_ONCE = 2**20  # 8 MiB of float64 in a batch
_MOST_ROWS = 2**16
_CSV_BLOCK = 2**20  # bytes of text in a batch; pyarrow reads some dozens ahead
_CSV_CELL = 256  # bytes for each column, so that a wide row fits into a block


class PointBatch(NamedTuple):
    """Some rows: points of the unit cube, and their ids."""

    points: Values
    row_ids: RowIds


@dataclass(frozen=True, init=False)
class PointTable:
    """A Parquet or CSV file of points whose columns have public bounds.

    - `low`, `high`: public bounds, one number or one for each column. A value outside
      is an error, or is moved to the nearest bound with `clip`.
    - `columns`: the columns of the points; by default all but the id column.
    - `id_column`: whole numbers, the ids of the rows; by default their positions.
    - `space`: the name of the space of these points, in which radii are measured.

    Only the schema is read at first. `batches` may be called again: it reads the file
    anew, in the same batches as long as the file is the same.
    """

    path: Path
    low: tuple[float, ...]
    high: tuple[float, ...]
    columns: tuple[str, ...]
    id_column: str | None
    clip: bool
    space: str

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        low: float | Sequence[float],
        high: float | Sequence[float],
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
        clip: bool = False,
        space: str = "cube",
    ) -> None:
        """Check columns and bounds against the schema."""
        validate.name(space=space)
        given = {"path": Path(path), "id_column": id_column, "clip": clip}
        for name, value in (given | {"space": space}).items():
            object.__setattr__(self, name, value)
        if not self.path.is_file():
            raise ValueError(f"there is no file {self.path}. Nothing was spent.")
        with _no_cell_in_errors(self.path):
            schema = self._schema
        object.__setattr__(self, "columns", self._wanted(schema, columns))
        object.__setattr__(self, "low", self._sides("low", low))
        object.__setattr__(self, "high", self._sides("high", high))
        # The bounds are checked here, before any row is read.
        to_unit_cube(np.zeros((1, self.dimension)), self.low, self.high)

    @property
    def dimension(self) -> int:
        """How many coordinates a point has."""
        return len(self.columns)

    @property
    def rows(self) -> int | None:
        """The number of rows by the file's metadata; None for a CSV, which has none."""
        if not self._parquet:
            return None
        with pyarrow.parquet.ParquetFile(self.path) as file:
            return int(file.metadata.num_rows)

    def counted_rows(self) -> int:
        """The number of rows, counted where the file does not say it."""
        if self.rows is not None:
            return self.rows
        return sum(table.num_rows for table in self._raw())

    def batches(self) -> Iterator[PointBatch]:
        """Every row, once, in the file's order."""
        position = 0
        for table in self._raw():
            if not table.num_rows:
                continue
            points = self._points(table)
            if self.id_column is None:
                ids = np.arange(position, position + len(points), dtype=np.uint64)
            else:
                ids = _whole_numbers(self.id_column, table.column(self.id_column))
            position += len(points)
            yield PointBatch(points, ids)

    def _raw(self) -> Iterator[pa.RecordBatch]:
        wanted = list(self.columns)
        if self.id_column is not None:
            wanted.append(self.id_column)
        with _no_cell_in_errors(self.path):
            if self._parquet:
                size = min(_MOST_ROWS, max(1, _NUMBERS_AT_ONCE // len(wanted)))
                # pyarrow would by default fetch the whole file ahead of the batches.
                with pyarrow.parquet.ParquetFile(
                    self.path,
                    pre_buffer=False,
                    buffer_size=2**16,
                    page_checksum_verification=True,
                ) as file:
                    yield from file.iter_batches(batch_size=size, columns=wanted)
                return
            # Types are given, not guessed from the first rows.
            types = {name: pa.float64() for name in self.columns}
            if self.id_column is not None:
                types[self.id_column] = pa.uint64()
            options = pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types=types
            )
            with pyarrow.csv.open_csv(
                self.path,
                read_options=_csv_reading(len(self._schema.names)),
                convert_options=options,
            ) as reader:
                yield from reader

    @property
    def _parquet(self) -> bool:
        return kind_of(self.path) == "parquet"

    @cached_property
    def _schema(self) -> pa.Schema:
        if self._parquet:
            return pyarrow.parquet.read_schema(self.path)
        with pyarrow.csv.open_csv(self.path, read_options=_csv_reading(1)) as reader:
            return reader.schema

    def _wanted(
        self, schema: pa.Schema, columns: Sequence[str] | None
    ) -> tuple[str, ...]:
        names = list(schema.names)
        if columns is None and not self._parquet and any(map(_reads_as_number, names)):
            # The first line is somebody's record, and names of columns are public.
            raise ValueError(
                f"the first line of {self.path.name} must name the columns; it holds"
                " numbers. Add a line of names, or give --columns if these are names."
                " Nothing was spent."
            )
        if columns is None:
            columns = [name for name in names if name != self.id_column]
        wanted = list(columns)
        needed = wanted + ([] if self.id_column is None else [self.id_column])
        missing = [name for name in needed if name not in names]
        if missing:
            shown = f"; it has {validate.nearest(missing[0], names)}"
            if any(map(_reads_as_number, names)):
                shown = "; its first line must name the columns, and holds numbers"
            raise ValueError(
                f"{self.path.name} has no column {missing[0]!r}{shown}."
                " Nothing was spent."
            )
        if not wanted:
            raise ValueError(
                f"{self.path.name} has no columns of points. Nothing was spent."
            )
        twice = [n for n in needed if needed.count(n) > 1 or names.count(n) > 1]
        if twice:
            raise ValueError(f"column {twice[0]!r} occurs twice. Nothing was spent.")
        for name in wanted:
            kind = schema.field(name).type
            # A CSV's types are a guess from its first rows; they are checked later.
            if self._parquet and not _is_number(kind):
                raise ValueError(
                    f"column {name!r} must hold numbers; it holds {kind}. Encode it by"
                    " a public rule, or name others with --columns. Nothing was spent."
                )
        return tuple(wanted)

    def _sides(self, name: str, given: float | Sequence[float]) -> tuple[float, ...]:
        values = np.asarray(given, dtype=np.float64).reshape(-1)
        if values.size not in (1, self.dimension):
            raise ValueError(
                f"{name} must be one number or one for each of the {self.dimension}"
                f" columns; got {values.size}. Nothing was spent."
            )
        return tuple(float(x) for x in np.broadcast_to(values, self.dimension))

    def _points(self, table: pa.RecordBatch) -> Values:
        matrix = np.empty((table.num_rows, self.dimension))
        for j, name in enumerate(self.columns):
            column = table.column(name)
            if column.null_count:
                raise ValueError(
                    f"column {name!r} has missing values: drop or impute them by a"
                    " rule that does not look at other rows. Nothing was released."
                )
            matrix[:, j] = column.cast(pa.float64(), safe=False).to_numpy(
                zero_copy_only=False
            )
            if not np.isfinite(matrix[:, j]).all():
                raise ValueError(
                    f"column {name!r} must be finite: it holds NaN or infinity."
                    " Nothing was released."
                )
            inside = (matrix[:, j] >= self.low[j]) & (matrix[:, j] <= self.high[j])
            if not (self.clip or inside.all()):
                raise ValueError(
                    f"column {name!r} has values outside the public bounds"
                    f" [{self.low[j]:g}, {self.high[j]:g}]. Give wider public bounds,"
                    " or --clip to move them to the nearest bound at the client."
                    " Nothing was released."
                )
        return to_unit_cube(matrix, self.low, self.high).data


def kind_of(path: Path) -> str:
    """ "parquet" or "csv", by the file's name."""
    match path.suffix.lower():
        case ".parquet" | ".pq":
            return "parquet"
        case ".csv":
            return "csv"
        case other:
            raise ValueError(
                f"{path.name} must be .parquet or .csv; got {other or 'no ending'!r}."
                " Nothing was spent."
            )


def _reads_as_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _csv_reading(columns: int) -> Any:
    block = max(_CSV_BLOCK, _CSV_CELL * columns)
    return pyarrow.csv.ReadOptions(block_size=block, use_threads=False)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _whole_numbers(name: str, column: pa.Array) -> RowIds:
    if column.null_count or not pa.types.is_integer(column.type):
        raise ValueError(
            f"the id column {name!r} must hold whole numbers below 2^64, none missing;"
            " leave --id-column out to take their positions. Nothing was released."
        )
    ids = column.to_numpy(zero_copy_only=False)
    if (ids < 0).any():
        raise ValueError(
            f"the id column {name!r} must not hold negative numbers."
            " Nothing was released."
        )
    return np.asarray(ids, dtype=np.uint64)


@contextmanager
def _no_cell_in_errors(path: Path) -> Iterator[None]:
    """Replace errors of pyarrow, which quote a cell, by ones that name the file."""
    try:
        yield
    except pa.ArrowException as error:
        column = re.search(r"column #(\d+)", str(error))
        where = f"its column number {int(column[1]) + 1}" if column else "it"
        raise ValueError(
            f"{path.name} cannot be read: {where} does not hold the numbers of a"
            " well-formed table. Nothing was released."
        ) from None
