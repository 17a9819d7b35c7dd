"""Records of a CSV or Parquet file: ids, persons, labels and features.

Everything that can be wrong with a file is found before its first row is learned. The
errors name rows and columns, and no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.convex.rows.tables import is_list, list_block

_NOTHING = "Nothing was changed."


@dataclass(frozen=True)
class RecordRows:
    """Records in the order of the file; `y` is text where classes have labels."""

    ids: list[str]
    subjects: list[str | None] | None
    X: NDArray[np.float64]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, at: list[int]) -> RecordRows:
        """Some of the rows."""
        subjects = None if self.subjects is None else [self.subjects[i] for i in at]
        return RecordRows([self.ids[i] for i in at], subjects, self.X[at], self.y[at])

    def of(self, ids: list[str], name: str) -> RecordRows:
        """The rows of these ids, in their order."""
        places = {each: at for at, each in enumerate(self.ids)}
        missing = [each for each in ids if each not in places]
        if missing:
            raise ValueError(
                f"{name} has no row for {len(missing):,} of the ids. {_NOTHING}"
            )
        return self.part([places[each] for each in ids])


def read_records(
    path: Path,
    *,
    id_column: str,
    label_column: str,
    subject_column: str | None,
    features: list[str] | None,
    dimension: int,
    labels: tuple[str, ...] | None,
) -> RecordRows:
    """The records in a file, all of them checked."""
    names = [id_column, label_column, *([subject_column] if subject_column else [])]
    if len(set(names)) < len(names):
        raise ValueError(f"--id, --label and --subject must differ. {_NOTHING}")
    texts = {id_column, *([subject_column] if subject_column else [])}
    table = _table(path, texts | ({label_column} if labels else set()))
    chosen = features or [n for n in table.column_names if n not in names]
    missing = [n for n in (*names, *chosen) if n not in table.column_names]
    if missing:
        raise ValueError(
            f"{path.name} has no column {missing[0]!r}; it has"
            f" {', '.join(table.column_names[:12])}. {_NOTHING}"
        )
    if not table.num_rows:
        raise ValueError(f"{path.name} has no row. {_NOTHING}")
    X = np.hstack([_numbers(table, name) for name in chosen])
    if X.shape[1] != dimension:
        raise ValueError(
            f"{path.name} has {X.shape[1]} features, and the service has dimension"
            f" {dimension}: name the columns (--features). {_NOTHING}"
        )
    if labels is None:
        y: NDArray[Any] = _numbers(table, label_column)[:, 0]
    else:
        y = np.array(_texts(table, label_column))
        _refuse(path, ~np.isin(y, labels), f"{label_column!r} is no class here")
    ids = _texts(table, id_column)
    _refuse(path, _repeated(ids), "its id occurs before in the file")
    subjects = None
    if subject_column:
        column = table.column(subject_column).to_pylist()
        subjects = [None if value is None else str(value) for value in column]
    return RecordRows(ids, subjects, X, y)


def read_ids(path: Path, column: str | None) -> list[str]:
    """Ids in a text file, one in a line, or in a column of a table."""
    if path.suffix.lower() in (".csv", ".parquet", ".pq"):
        if column is None:
            raise ValueError(f"--id must name the column of ids in {path.name}")
        table = _table(path, {column})
        if column not in table.column_names:
            raise ValueError(f"{path.name} has no column {column!r}. {_NOTHING}")
        ids = _texts(table, column)
    else:
        lines = (line.strip() for line in path.read_text().splitlines())
        ids = [line for line in lines if line]
    if not ids:
        raise ValueError(f"{path.name} has no id. {_NOTHING}")
    _refuse(path, _repeated(ids), "its id occurs before in the file")
    return ids


def _table(path: Path, texts: set[str]) -> pa.Table:
    """The file as a table. In a CSV an id is read as it is written: 007 is not 7."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}. {_NOTHING}")
    match path.suffix.lower():
        case ".parquet" | ".pq":
            return pyarrow.parquet.read_table(path)
        case ".csv":
            types = pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string())
            )
            return pyarrow.csv.read_csv(path, convert_options=types)
        case other:
            raise ValueError(
                f"{path.name} must be .parquet or .csv; got {other or 'none'!r}."
                f" {_NOTHING}"
            )


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    column = table.column(name).combine_chunks()
    if column.null_count:
        nulls = np.asarray(column.is_null())
        _refuse(Path(name), nulls, "a value is missing", where=f"column {name!r}")
    try:
        if is_list(column.type):
            block = list_block(name, column).astype(np.float64)
        else:
            block = column.cast(pa.float64()).to_numpy(zero_copy_only=False)[:, None]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError):
        raise ValueError(
            f"column {name!r} must hold numbers, and holds {column.type}: encode it by"
            f" a public rule, or leave it out (--features). {_NOTHING}"
        ) from None
    bad = np.logical_not(np.isfinite(block).all(axis=1))
    _refuse(Path(name), bad, "NaN or infinity", where=f"column {name!r}")
    return np.ascontiguousarray(block)


def _texts(table: pa.Table, name: str) -> list[str]:
    values = table.column(name).to_pylist()
    empty = np.array([v is None or v == "" or v != v for v in values])
    _refuse(Path(name), empty, "a value is missing", where=f"column {name!r}")
    return [str(v) for v in values]


def _repeated(ids: list[str]) -> NDArray[np.bool_]:
    seen: set[str] = set()
    repeated = np.zeros(len(ids), dtype=np.bool_)
    for at, each in enumerate(ids):
        repeated[at] = each in seen
        seen.add(each)
    return repeated


def _refuse(
    path: Path, bad: NDArray[np.bool_], what: str, *, where: str | None = None
) -> None:
    """Name the first bad row, counted from 1 below the heading."""
    if bad.any():
        count, first = int(bad.sum()), int(np.argmax(bad)) + 1
        more = "" if count == 1 else f" ({count:,} such rows)"
        raise ValueError(f"{where or path.name}, row {first}: {what}{more}. {_NOTHING}")
