"""Rows checked by scikit-learn's rules, with errors that quote no record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

Array = NDArray[np.float64]

_QUOTED_ARRAY = re.compile(r"\n?array=.*?\.\n(?=Reshape)", re.DOTALL)
_QUOTED_REST = re.compile(
    r"(Complex data not supported|could not convert string to float).*", re.DOTALL
)
_MOST_BYTES = 2**32
_NAMED = re.compile(r"\b[Xy]\b")


@contextmanager
def no_records_quoted() -> Iterator[None]:
    """Cut the records that scikit-learn's and numpy's errors quote.

    The error then names its argument.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        message = _QUOTED_ARRAY.sub(" ", str(error))
        message = _QUOTED_REST.sub(r"\1", message)
        if not _NAMED.search(message):
            message = f"X and y: {message}"
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message) from None


def checked_rows(estimator: Any, X: ArrayLike, **options: Any) -> Array:
    """Finite float64 rows; `options` are those of scikit-learn's `validate_data`."""
    refuse_masked(X=X)
    X = dense_rows(X)
    with no_records_quoted():
        rows: Array = validate_data(
            estimator, X, dtype=np.float64, ensure_all_finite=False, **options
        )
    refuse_missing(rows)
    return rows


def dense_rows(X: Any) -> Any:
    """Sparse rows as a dense matrix, and columns of arrays as many columns of numbers.

    A head and its noise are dense, so nothing is gained by sparse rows but memory:
    above `_MOST_BYTES` they are refused. A column whose cells are arrays (embeddings in
    a table) becomes as many columns as its arrays are long. Anything else is unchanged.
    """
    if issparse(X):
        rows, columns = X.shape
        if rows * columns * 8 > _MOST_BYTES:
            raise ValueError(
                f"X is sparse, and dense it would take {rows * columns * 8 / 2**30:.0f}"
                " GiB: project its columns (RandomProjection), or write dense rows to"
                " Parquet and use ParquetRows"
            )
        return X.toarray()
    if hasattr(X, "dtypes") and hasattr(X, "columns"):  # a table of pandas
        blocks = [_stacked(X[name]) for name in X.columns]
        if any(block is not None for block in blocks):
            parts = [
                np.asarray(X[name], dtype=np.float64)[:, None] if b is None else b
                for name, b in zip(X.columns, blocks, strict=True)
            ]
            return np.hstack(parts)
        return X
    stacked = _stacked(X)
    return X if stacked is None else stacked


def _stacked(column: Any) -> Array | None:
    """Cells that are arrays of one length as a matrix; None for other columns."""
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind != "O" or getattr(column, "ndim", 0) != 1:
        return None
    cells = list(column)
    if not cells or not all(isinstance(c, list | tuple | np.ndarray) for c in cells):
        return None
    if len({np.shape(cell) for cell in cells}) != 1 or np.ndim(cells[0]) != 1:
        raise ValueError("X holds arrays of different lengths in one column")
    with no_records_quoted():
        return np.array(cells, dtype=np.float64)


def refuse_missing(rows: Array) -> None:
    """Refuse rows that hold NaN or infinity, in words of our own."""
    if not np.isfinite(rows).all():
        raise ValueError(
            "X must be finite, and some rows hold NaN or infinity. Drop them, or fill"
            " them by a rule that does not look at other rows."
        )


def refuse_masked(**given: object) -> None:
    """Refuse masked entries, whose hidden values would be used, and dates."""
    for name, values in given.items():
        if np.ma.is_masked(values):
            raise ValueError(
                f"{name} holds masked entries, whose hidden values would be used:"
                " drop or fill them by a rule that does not look at other rows"
            )
        kind = getattr(getattr(values, "dtype", None), "kind", None)
        if name == "X" and kind in ("m", "M"):
            raise TypeError("X must be numbers; got dates")
