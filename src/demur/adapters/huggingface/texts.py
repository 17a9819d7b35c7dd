"""Texts and labels out of CSV and Parquet files, row by row.

What becomes of a row depends on that row alone: a missing text is an empty one, and a
label that is not among the classes counts as the first class. Errors quote no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet


def read_texts(
    path: Path, text: str, label: str, classes: Sequence[str]
) -> tuple[list[str], NDArray[np.int32]]:
    """The texts of a file, and the number of each one's class."""
    table = _table(path, [text, label])
    texts = pc.fill_null(table[text].cast(pa.string()), "").to_pylist()
    labels = pc.index_in(
        pc.utf8_trim_whitespace(pc.fill_null(table[label].cast(pa.string()), "")),
        value_set=pa.array([str(name) for name in classes], pa.string()),
    )
    numbers = pc.fill_null(labels, 0).to_numpy()
    return texts, np.asarray(numbers, np.int32)


def _table(path: Path, columns: list[str]) -> pa.Table:
    if not path.is_file():
        raise ValueError(f"there is no file {path}. Nothing was spent.")
    if path.suffix not in (".csv", ".tsv", ".parquet"):
        raise ValueError(
            f"texts come from a .csv, .tsv or .parquet file; got {path.name!r}."
            " Nothing was spent."
        )
    try:
        if path.suffix == ".parquet":
            names = parquet.read_schema(path).names
            table = None
        else:
            table = csv.read_csv(
                path,
                parse_options=csv.ParseOptions(
                    delimiter="\t" if path.suffix == ".tsv" else ",",
                    newlines_in_values=True,
                ),
                convert_options=csv.ConvertOptions(
                    column_types={name: pa.string() for name in columns},
                    strings_can_be_null=False,
                ),
            )
            names = table.column_names
        absent = [name for name in columns if name not in names]
        if absent:
            raise ValueError(
                f"{path.name} has no column {absent[0]!r}; it has"
                f" {', '.join(names[:8])}. Nothing was spent."
            )
        twice = [name for name in columns if names.count(name) > 1]
        if twice:
            raise ValueError(
                f"{path.name} has several columns {twice[0]!r}: give each a name of its"
                " own. Nothing was spent."
            )
        return (
            parquet.read_table(path, columns=columns, page_checksum_verification=True)
            if table is None
            else table
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        # Arrow's own message quotes the row.
        raise ValueError(
            f"{path.name} cannot be read as a table of texts in UTF-8, with as many"
            " fields in each row as in the first. Nothing was spent."
        ) from None
