"""Rows and labels of a Parquet, CSV or npz file, read whole; no code is executed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

Array = NDArray[np.float64]

_IDENTIFIER = re.compile(
    r"(.*[_ .-])?(id|ID|Id|uuid|guid|index|idx|rowid|rownum)$|.*[a-z]I[dD]$"
    r"|unnamed: ?\d+$|Unnamed: ?\d+$|__index_level_\d+__$"
)


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
) -> Labelled:
    """The feature matrix and, where `label` names a column, the labels.

    Every column but the label must hold numbers, or lists of numbers of one length (an
    embedding). In an npz, `label` names the array of labels and `columns` the arrays of
    features (default: the one other array). `columns` picks and orders them; `exclude`
    leaves some out. An identifier (see `features_of`) is refused unless it is picked.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{file} is a folder; this reads one file. Nothing was spent.")
    if not file.is_file():
        raise ValueError(f"there is no file {file}. Nothing was spent.")
    match file.suffix.lower():
        case ".npz":
            table = _npz(file)
        case ".parquet" | ".pq":
            table = _arrow(pyarrow.parquet.read_table(file))
        case ".csv":
            table = _arrow(pyarrow.csv.read_csv(file))
        case other:
            raise ValueError(
                f"{file.name} must be .parquet, .csv or .npz; got {other or 'none'!r}."
                " Nothing was spent."
            )
    if label is not None and label not in table:
        raise ValueError(
            f"--label {label!r} is not a column of {file.name}; it has"
            f" {list(table)[:12]}. Nothing was spent."
        )
    features = columns or features_of(table, label=label, exclude=exclude)
    missing = [name for name in features if name not in table]
    if missing or not features:
        raise ValueError(
            f"{file.name} lacks the feature columns {missing[:5]}. Nothing was spent."
        )
    y = table[label] if label is not None else None
    if y is not None and y.ndim != 1:
        raise ValueError(f"the label {label!r} must be one value for each row")
    return Labelled(np.hstack([_block(n, table[n]) for n in features]), y, features)


def features_of(
    names: Iterable[str], *, label: str | None, exclude: Sequence[str] = ()
) -> list[str]:
    """All columns but the label and the excluded ones, if none is an identifier.

    An index or a person's number holds nothing to learn, and it is long: clipped to the
    norm bound a row is little else. It is told by the name of the column, which is
    public, and never by its values.
    """
    known = list(names)
    absent = [name for name in exclude if name not in known]
    if absent:
        raise ValueError(
            f"exclude names {absent[0]!r}, which is not a column; there are"
            f" {known[:12]}. Nothing was spent."
        )
    features = [name for name in known if name != label and name not in exclude]
    for name in features:
        if _IDENTIFIER.match(name):
            raise ValueError(
                f"column {name!r} is an identifier by its name, which a head would"
                " learn from. Exclude it (--exclude on the command line), or name the"
                " feature columns (columns=, --columns). Nothing was spent."
            )
    return features


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def _arrow(table: pa.Table) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if column.null_count:
            raise ValueError(
                f"column {name!r} has {column.null_count} missing values: drop or"
                " impute them by a rule that does not look at other rows."
                " Nothing was spent."
            )
        if is_list(column.type):
            arrays[name] = list_block(name, column)
        else:
            arrays[name] = column.to_numpy(zero_copy_only=False)
    return arrays


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
    try:
        block = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {name!r} must hold numbers; got {values.dtype}. Encode it by a"
            " public rule, or leave it out. Nothing was spent."
        ) from error
    return block[:, None] if block.ndim == 1 else block
