"""The rows of `demur head fit`: a table in memory, or Parquet read in passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_LARGE = 2**30  # bytes of Parquet from which files are streamed by default


class HeadRows(NamedTuple):
    """The data for `fit`, the type of the labels, and the names of the features."""

    X: Any
    y: Any
    label_type: Any
    columns: list[str]
    weights: Any = None


def read_head_rows(
    data: Path,
    label: str,
    stream: bool | None,
    columns: list[str] | None,
    exclude: list[str],
    weight_column: str | None,
    classes: list[str] | None = None,
) -> HeadRows:
    """The rows of DATA for a fit, in memory or as files that are read in passes.

    With public `classes` these, and no label, decide what the labels of a CSV are.
    """
    from demur.convex.rows.tables import read_rows

    if weight_column is not None:
        if weight_column == label:
            raise ValueError(
                f"--weight-column {label!r} is the label. Nothing was spent."
            )
        exclude = [*exclude, weight_column]
    if columns is not None and exclude:
        both = [name for name in exclude if name in columns]
        if both:
            raise ValueError(
                f"column {both[0]!r} is in --columns and is excluded (--exclude,"
                " --id-column, --weight-column). Name it once. Nothing was spent."
            )
    parquet = data.is_dir() or data.suffix.lower() in (".parquet", ".pq")
    if stream and not parquet:
        raise ValueError(f"--stream needs Parquet; got {data.name}. Nothing was spent.")
    if stream is None:
        stream = data.is_dir() or (parquet and _size(data) >= _LARGE)
    if not stream:
        weights = None
        if weight_column is not None:
            weights = read_rows(data, label=label, columns=[weight_column]).X[:, 0]
        words = classes is not None and data.suffix.lower() == ".csv"
        rows = read_rows(
            data, label=label, columns=columns, exclude=exclude, text_label=words
        )
        y = rows.y
        assert y is not None
        if words:
            y = typed_labels(y.tolist(), classes or [])
        return HeadRows(rows.X, y, y.dtype, rows.columns, weights)
    if weight_column is not None:
        raise ValueError(
            "--weight-column is for data that is read at once: leave --stream out."
            " Nothing was spent."
        )
    from demur.convex.rows.parquet import ParquetRows

    streamed = ParquetRows(data, label=label, columns=columns)
    chosen = streamed.features(exclude)
    streamed = ParquetRows(data, label=label, columns=chosen)
    rows_on_disk = streamed.row_source()
    return HeadRows(streamed, None, rows_on_disk.label_dtype, rows_on_disk.columns)


def typed_labels(labels: list[str], classes: list[str]) -> Any:
    """The labels of a CSV in the type of the classes: whole numbers, numbers or words.

    >>> typed_labels(["1", "2.0"], ["1", "2"]), typed_labels(["1", "2"], ["1", "x"])
    (array([1, 2]), array(['1', '2'], dtype='<U1'))
    """
    import numpy as np

    for read in (_whole, float, _truth):
        try:
            for name in classes:
                read(name)
        except (ValueError, KeyError):
            continue
        return np.array([_read(read, label, classes) for label in labels])
    return np.array(labels)


def _read(read: Callable[[str], Any], label: str, classes: list[str]) -> Any:
    try:
        return read(label)
    except (ValueError, KeyError):
        raise ValueError(
            f"the labels hold one outside classes, which are {classes[:10]}. Add it to"
            " --classes, or drop those records. Nothing was spent."
        ) from None


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not number.is_integer():
            raise ValueError from None
        return int(number)


def _truth(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()]


def _size(data: Path) -> int:
    return data.stat().st_size if data.exists() else 0
