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

from demur.core import validate

Array = NDArray[np.float64]

_QUOTED_ARRAY = re.compile(r"\n?array=.*?\.\n(?=Reshape)", re.DOTALL)
_QUOTED_REST = re.compile(
    r"(Complex data not supported|could not convert string to float"
    r"|(?:Unable|Failed) to parse string|invalid literal).*",
    re.DOTALL,
)
_MOST_BYTES = 2**32
_LEAST_BOUND = 1e-50
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


@contextmanager
def restored_on_error(estimator: Any) -> Iterator[None]:
    """A fit that is refused or declined leaves the estimator as it was before.

    scikit-learn stores the number of features when it checks X. Left there after a
    refusal, it would make an unfitted estimator look fitted, and a fitted one refuse
    its own rows. An interrupt is no exception.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


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
        _refuse_large(X)
        return X.toarray()
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        return _flat_table(_dense_table(X))
    stacked = _stacked(X)
    return X if stacked is None else stacked


def _refuse_large(X: Any) -> None:
    size = X.shape[0] * X.shape[1] * 8
    if size > _MOST_BYTES:
        raise ValueError(
            f"X is sparse, and dense it would take {size / 2**30:.0f} GiB: project its"
            " columns (RandomProjection), or write dense rows to Parquet and use"
            " ParquetRows"
        )


def _dense_table(X: Any) -> Any:
    """A table of pandas whose sparse columns are dense."""
    sparse = {
        name: kind.subtype
        for name, kind in dict(X.dtypes).items()
        if hasattr(kind, "fill_value") and hasattr(kind, "subtype")
    }
    if not sparse:
        return X
    _refuse_large(X)
    return X.astype(sparse)


def _flat_table(X: Any) -> Any:
    """A table with one number in each cell; the columns of an array keep its name."""
    names = list(X.columns)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"X has two columns with the name {twice[0]!r}: give each its own name"
        )
    for name in names:
        if getattr(X[name].dtype, "kind", None) in ("m", "M"):
            raise TypeError(
                f"X must be numbers; column {name!r} holds dates. Leave it out, or"
                " encode it by a public rule."
            )
    blocks = {name: _stacked(X[name]) for name in names}
    if all(block is None for block in blocks.values()):
        return X
    parts, flat = [], []
    for name, block in blocks.items():
        if block is None:
            flat.append(name)
            with no_records_quoted():
                parts.append(np.asarray(X[name], dtype=np.float64)[:, None])
        else:
            flat += [f"{name}[{k}]" for k in range(block.shape[1])]
            parts.append(block)
    # A table of pandas: names are compared when it predicts.
    return type(X)(np.hstack(parts), columns=flat, index=X.index)


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


def check_norm_bound(norm_bound: float) -> None:
    """Refuse a norm bound whose powers leave the range of float64."""
    validate.positive(norm_bound=norm_bound)
    if not _LEAST_BOUND <= norm_bound <= 1.0 / _LEAST_BOUND:
        raise ValueError(
            f"norm_bound must be from {_LEAST_BOUND:g} to {1.0 / _LEAST_BOUND:g}; got"
            f" {norm_bound:g}. Measure the rows in another unit."
        )


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
