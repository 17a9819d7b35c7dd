"""Values and arrays as callers hand them in; errors quote none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d

from demur.core.bounds import real_array
from demur.unlearning.models.base import Array

# What float() would read as a number, or cut to one.
_NO_NUMBER = (str, bytes, bytearray, complex, np.complexfloating)


def feature(value: Any) -> float:
    """One value of a record over dicts as a number."""
    if isinstance(value, _NO_NUMBER):
        raise ValueError("the features of x must be numbers")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        # Python's message quotes the value that it cannot read; ours must not.
        raise ValueError("the features of x must be numbers") from None


def matrix(name: str, values: ArrayLike) -> Array:
    """A new matrix of real numbers with a row and a column at least."""
    if issparse(values):
        raise TypeError(
            f"{name} is sparse, and sparse input is not supported: use"
            f" {name}.toarray(). Nothing has changed."
        )
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise ValueError(f"Complex data not supported: {name} must be real numbers")
    rows = real_array(name, values, "a matrix")
    if rows.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions; got shape {rows.shape}. Reshape your"
            f" data: {name}.reshape(1, -1) if it is one row."
        )
    for count, what in zip(rows.shape, ("sample(s)", "feature(s)"), strict=True):
        if not count:
            raise ValueError(
                f"{name} has 0 {what} (shape={rows.shape}) while a minimum of 1 is"
                " required."
            )
    return rows


def vector_of(name: str, values: Any) -> Any:
    """A vector; a column is taken as one, with scikit-learn's warning."""
    shape: tuple[int, ...] = getattr(values, "shape", ())
    if len(shape) == 2 and shape[1] == 1:
        return column_or_1d(values, warn=True)
    return values
