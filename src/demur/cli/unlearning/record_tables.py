"""Records of a CSV or Parquet file: ids, persons, labels and features.

Everything that can be wrong with a file is found before its first row is learned. The
errors name rows and columns, and no value.
"""

from __future__ import annotations

import re
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
from demur.unlearning.records.commitments import id_bytes

_NOTHING = "Nothing was changed."
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")  # pyarrow's
_DECIMAL = re.compile(r"[+-]?\d+\.0*")
_MISSING = {"na", "n/a", "<na>", "#n/a", "nan", "null", "none"}
_EXACT = 2.0**53  # Beyond it, neighbouring whole numbers are one float.
_NO_ID = "an id has 1 to 200 printable characters"


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
    if features and len({*features, *names}) < len(features) + len(names):
        raise ValueError(
            "--features must name other columns than --id, --label and --subject, and"
            f" each once. {_NOTHING}"
        )
    for name in (*names, *chosen):
        _check_column(path, table, name)
    if not table.num_rows:
        raise ValueError(f"{path.name} has no row. {_NOTHING}")
    kind = table.schema.field(label_column).type
    if is_list(kind):
        raise ValueError(
            f"column {label_column!r} holds {kind}, and a record has one label."
            f" {_NOTHING}"
        )
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
        _refuse(path.name, ~np.isin(y, labels), f"{label_column!r} is no class here")
    ids = _ids(table, id_column)
    subjects = _subjects(table, subject_column) if subject_column else None
    return RecordRows(ids, subjects, X, y)


def read_ids(path: Path, column: str | None) -> list[str]:
    """Ids in a text file, one in a line, or in a column of a table."""
    if path.suffix.lower() in (".csv", ".parquet", ".pq"):
        if column is None:
            raise ValueError(f"--id must name the column of ids in {path.name}")
        table = _table(path, {column})
        _check_column(path, table, column)
        ids = _ids(table, column)
    else:
        try:
            text = path.read_text(encoding="utf-8-sig")  # Editors may add a mark.
        except UnicodeDecodeError:
            raise ValueError(f"{path.name} is no text in UTF-8. {_NOTHING}") from None
        lines = text.splitlines()
        padded = [n for n, line in enumerate(lines, 1) if line and line != line.strip()]
        if padded:  # "7 " may be another's id than "7".
            raise ValueError(
                f"{path.name}, line {padded[0]}: a space before or after an id"
                f" ({len(padded):,} such lines). Ids are compared letter by letter:"
                " take it out or, if it belongs to the id, name the id as an argument."
                f" {_NOTHING}"
            )
        ids = [line for line in lines if line]
        _check_ids(path.name, ids)
    if not ids:
        raise ValueError(f"{path.name} has no id. {_NOTHING}")
    return ids


def _table(path: Path, texts: set[str]) -> pa.Table:
    """The file as a table. In a CSV an id is read as it is written: 007 is not 7."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}. {_NOTHING}")
    match path.suffix.lower():
        case ".parquet" | ".pq":
            try:
                return pyarrow.parquet.read_table(path, page_checksum_verification=True)
            except (pa.ArrowException, OSError):
                raise ValueError(
                    f"{path.name} cannot be read as Parquet: it is damaged, or"
                    f" something else. {_NOTHING}"
                ) from None
        case ".csv":
            return _csv(path, texts)
        case other:
            raise ValueError(
                f"{path.name} must be .parquet or .csv; got {other or 'none'!r}."
                f" {_NOTHING}"
            )


def _csv(path: Path, texts: set[str]) -> pa.Table:
    """A CSV. What pyarrow says of a bad row quotes it; this says where it is."""
    try:
        return pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=False),  # It counts rows.
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string())
            ),
        )
    except (pa.ArrowException, OSError) as error:
        said = (
            "it is empty, a column of numbers has something else further down, a quote"
            " is not closed, or it is not in UTF-8"
        )
        if ragged := _RAGGED.search(str(error)):
            number, expected, actual = map(int, ragged.groups())
            said = f"row {number - 1} has {actual} values, and the heading {expected}"
        raise ValueError(
            f"{path.name} cannot be read as CSV: {said}. {_NOTHING}"
        ) from None


def _check_column(path: Path, table: pa.Table, name: str) -> None:
    """One column of this name. (Without a heading the names are somebody's values.)"""
    count = table.column_names.count(name)
    if count != 1:
        raise ValueError(
            f"{path.name} has {count or 'no'} column{'s' if count else ''} {name!r}, of"
            f" {table.num_columns} in its heading. {_NOTHING}"
        )


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    column = table.column(name).combine_chunks()
    if column.null_count:
        nulls = np.asarray(column.is_null())
        _refuse(f"column {name!r}", nulls, "a value is missing")
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
    _refuse(f"column {name!r}", bad, "NaN or infinity")
    return np.ascontiguousarray(block)


def _texts(table: pa.Table, name: str) -> list[str]:
    values = table.column(name).to_pylist()
    empty = np.array([v is None or v == "" or v != v for v in values])
    _refuse(f"column {name!r}", empty, "a value is missing")
    return [str(v) for v in values]


def _ids(table: pa.Table, name: str) -> list[str]:
    """A column of ids: text or whole numbers. Of 7.0 nobody knows that it is 7."""
    _check_id_type(table, name)
    ids = _texts(table, name)
    _check_ids(f"column {name!r}", ids)
    return ids


def _check_id_type(table: pa.Table, name: str, *, floats: bool = False) -> None:
    """Text or whole numbers; `floats` where gaps make floats of whole numbers."""
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_integer(kind) or (floats and pa.types.is_floating(kind))
    if not text and not number and not (floats and pa.types.is_null(kind)):
        raise ValueError(
            f"column {name!r} holds {kind}, and ids are text or whole numbers: write it"
            f" as one of these. {_NOTHING}"
        )


def _subjects(table: pa.Table, name: str) -> list[str | None]:
    """A column of ids of persons; an empty cell, null or NaN names nobody.

    What one program writes for a missing value is no person, or all who lack one would
    be the same. And 7.0 would be another person as text than as a number.
    """
    _check_id_type(table, name, floats=True)
    values = table.column(name).to_pylist()
    subjects: list[str | None] = []
    for value in values:
        if value is None or value == "" or value != value:
            subjects.append(None)
        elif isinstance(value, float) and value.is_integer():
            subjects.append(str(int(value)))  # Whole numbers with gaps are stored so.
        else:
            subjects.append(str(value))
    floats = [
        isinstance(v, float) and v == v and not (v.is_integer() and abs(v) < _EXACT)
        for v in values
    ]
    where = f"column {name!r}"
    _refuse(where, np.array(floats), "no text, no whole number that is exact")
    texts = [each if isinstance(each, str) else "" for each in values]
    missing = np.array([text.strip().lower() in _MISSING for text in texts])
    _refuse(
        where,
        missing,
        "a word for a missing value (NA, NaN, null, None); leave the cell empty, or"
        " give that person another id",
    )
    decimal = np.array([_DECIMAL.fullmatch(text.strip()) is not None for text in texts])
    _refuse(where, decimal, "a whole number with a decimal point; write it without (7)")
    bad = np.array([each is not None and not _is_id(each) for each in subjects])
    _refuse(where, bad, _NO_ID)
    return subjects


def _is_id(text: str) -> bool:
    try:
        id_bytes("id", text)
    except ValueError:
        return False
    return True


def _check_ids(where: str, ids: list[str]) -> None:
    bad = np.array([not _is_id(each) for each in ids])
    _refuse(where, bad, _NO_ID)
    _refuse(where, _repeated(ids), "its id occurs before in the file")


def _repeated(ids: list[str]) -> NDArray[np.bool_]:
    seen: set[str] = set()
    repeated = np.zeros(len(ids), dtype=np.bool_)
    for at, each in enumerate(ids):
        repeated[at] = each in seen
        seen.add(each)
    return repeated


def _refuse(where: str, bad: NDArray[np.bool_], what: str) -> None:
    """Name the first bad row, counted from 1 below the heading."""
    if bad.any():
        count, first = int(bad.sum()), int(np.argmax(bad)) + 1
        more = "" if count == 1 else f" ({count:,} such rows)"
        raise ValueError(f"{where}, row {first}: {what}{more}. {_NOTHING}")
