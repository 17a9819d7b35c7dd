"""Rows and labels of a Parquet, CSV or npz file, read whole; no code is executed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.core import validate

Array = NDArray[np.float64]

_WORDS = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+")
_NAMING = frozenset(
    "id ids uid uids pid uuid guid identifier identifiers index idx rowid rownum rownr"
    " ssn".split()
)
_NUMBERED = frozenset(
    "account case client customer employee household insurance invoice member nhs order"
    " participant passport patient person phone policy record row security student"
    " subject user visit".split()
)
_NUMBERS = frozenset("id ids no nr num number".split())
_INDEX = re.compile(r"unnamed: ?\d+|level_\d+|__index_level_\d+__", re.IGNORECASE)


class Labelled(NamedTuple):
    """A matrix, its labels (if asked for) and the names of the columns it came from."""

    X: Array
    y: NDArray[Any] | None
    columns: list[str]


def read_rows(
    path: str | os.PathLike[str],
    *,
    label: str | None,
    columns: list[str] | None = None,
    exclude: Sequence[str] = (),
    text_label: bool = False,
) -> Labelled:
    """The feature matrix and, where `label` names a column, the labels.

    Every column but the label must hold numbers, or lists of numbers of one length (an
    embedding). In an npz, `label` names the array of labels and `columns` the arrays of
    features (default: the one other array). `columns` picks and orders them; `exclude`
    leaves some out. An identifier (see `features_of`) is refused unless it is picked.
    With `text_label` the labels of a CSV are its words: otherwise all of them together
    decide whether they are numbers.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; this reads one file. Nothing was spent.")
    if not file.is_file():
        raise ValueError(f"there is no file {file}. Nothing was spent.")
    table = _open(file, label if text_label else None)
    if label is not None and label not in table.names:
        raise ValueError(
            f"--label {label!r} is not a column of {file.name}; it has"
            f" {validate.nearest(label, table.names)}. Nothing was spent."
        )
    features = features_of(
        table.names,
        label=label,
        exclude=exclude,
        indexes=table.indexes,
        columns=columns,
    )
    y = table.column(label) if label is not None else None
    if y is not None and y.ndim != 1:
        raise ValueError(f"the label {label!r} must be one value for each row")
    blocks = [_block(name, table.column(name)) for name in features]
    return Labelled(np.hstack(blocks), y, features)


def read_column(path: str | os.PathLike[str], name: str) -> NDArray[Any]:
    """One column of a table, such as that of the persons' ids."""
    table = _open(Path(path))
    if name not in table.names:
        raise ValueError(
            f"there is no column {name!r}; there are"
            f" {validate.nearest(name, table.names)}. Nothing was spent."
        )
    return table.column(name)


def features_of(
    names: Iterable[str],
    *,
    label: str | None,
    exclude: Sequence[str] = (),
    indexes: Iterable[str] = (),
    columns: Sequence[str] | None = None,
) -> list[str]:
    """The feature columns: those of `columns`, or all but the label and `exclude`.

    An index or a person's number holds nothing to learn, and it is long: clipped to the
    norm bound a row is little else. It is told by the name of the column, which is
    public, and never by its values (`indexes` are the columns that the file itself
    calls an index), and it is refused unless `columns` names it.
    """
    known = list(names)
    absent = [name for name in (*exclude, *(columns or ())) if name not in known]
    if absent:
        raise ValueError(
            f"there is no column {absent[0]!r}; there are"
            f" {validate.nearest(absent[0], known)}. Nothing was spent."
        )
    features = [name for name in known if name != label and name not in exclude]
    if columns is not None:
        features = list(columns)
    if not features:
        raise ValueError("there are no feature columns. Nothing was spent.")
    twice = [n for n in features if n == label or features.count(n) > 1]
    twice += [n for n in (label, *features) if n is not None and known.count(n) > 1]
    if twice:
        raise ValueError(
            f"column {twice[0]!r} would be used twice: name each column once, and the"
            " label not among the features. Nothing was spent."
        )
    for name in features if columns is None else ():
        if name in indexes or _is_identifier(name):
            raise ValueError(
                f"column {name!r} is an identifier by its name, and holds nothing to"
                " learn. Leave it out (exclude; --id-column on the command line), or"
                " name the feature columns (columns=). Nothing was spent."
            )
    return features


def index_columns(schema: pa.Schema) -> set[str]:
    """The columns of a Parquet file that pandas wrote as the index of a table."""
    about = (schema.metadata or {}).get(b"pandas")
    try:
        named = json.loads(about)["index_columns"] if about else []
    except (ValueError, KeyError, TypeError):
        return set()
    return {name for name in named if isinstance(name, str)}


def _is_identifier(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if _INDEX.fullmatch(name) or not words:
        return bool(words)
    last = words[-1]
    joined = [last[: -len(end)] for end in _NUMBERS if last.endswith(end)]
    numbered = last in _NUMBERS and len(words) > 1 and words[-2] in _NUMBERED
    return (
        last in _NAMING
        or numbered
        or (last == "nr" and len(words) > 1)
        or any(start in _NUMBERED for start in joined)
    )


class _Table(NamedTuple):
    """The names of a file's columns, those that are an index, and each by its name.

    A column is converted, and can be refused, when it is asked for: one that nobody
    uses decides nothing.
    """

    names: list[str]
    indexes: set[str]
    column: Callable[[str], NDArray[Any]]


def _open(file: Path, text: str | None = None) -> _Table:
    match file.suffix.lower():
        case ".npz":
            with np.load(file, allow_pickle=False) as data:
                arrays = dict(data)
            return _Table(list(arrays), set(), arrays.__getitem__)
        case ".parquet" | ".pq":
            with _no_cell_in_errors(file):
                table = pyarrow.parquet.read_table(
                    file, page_checksum_verification=True
                )
        case ".csv":
            with _no_cell_in_errors(file):
                types = {} if text is None else {text: pa.string()}
                options = pyarrow.csv.ConvertOptions(column_types=types)
                table = pyarrow.csv.read_csv(file, convert_options=options)
        case other:
            raise ValueError(
                f"{file.name} must be .parquet, .csv or .npz; got {other or 'none'!r}."
                " Nothing was spent."
            )
    return _Table(
        table.column_names,
        index_columns(table.schema),
        lambda name: _array(name, table.column(name)),
    )


@contextmanager
def _no_cell_in_errors(file: Path) -> Iterator[None]:
    """pyarrow's messages may quote a cell; ours names the file alone."""
    try:
        yield
    except pa.ArrowException:
        raise ValueError(
            f"{file.name} cannot be read: it is no well-formed {file.suffix} file, or a"
            " column mixes words and numbers. Nothing was spent."
        ) from None


def _array(name: str, chunks: pa.ChunkedArray) -> NDArray[Any]:
    column = chunks.combine_chunks()
    if column.null_count:
        raise ValueError(
            f"column {name!r} has missing values: drop or impute them by a rule that"
            " does not look at other rows. Nothing was spent."
        )
    if is_list(column.type):
        return list_block(name, column)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    )


def list_block(name: str, column: pa.Array) -> NDArray[Any]:
    """A column of lists of one length as a matrix; no list is missing."""
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        ends = pyarrow.compute.min_max(pyarrow.compute.list_value_length(column))
        width = ends["min"].as_py() or 0
        if width != (ends["max"].as_py() or 0):
            raise ValueError(
                f"column {name!r} holds lists of different lengths. Nothing was spent."
            )
    flat = column.flatten()
    if flat.null_count:
        raise ValueError(
            f"column {name!r} has missing values in its lists. Nothing was spent."
        )
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), width)


def _block(name: str, values: NDArray[Any]) -> Array:
    # By the type of the column: words that look like numbers are words.
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"column {name!r} must hold numbers; got {values.dtype}. Encode it by a"
            " public rule, or leave it out. Nothing was spent."
        )
    block = values.astype(np.float64)
    return block[:, None] if block.ndim == 1 else block
