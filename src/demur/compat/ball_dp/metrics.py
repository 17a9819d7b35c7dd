"""Distances, and the two ways to enforce a norm bound."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import bounds, validate


def l2_dist(a: ArrayLike, b: ArrayLike) -> float:
    """The Euclidean distance of two records.

    >>> l2_dist([0.0, 3.0], [4.0, 0.0])
    5.0
    """
    first = np.asarray(a, dtype=np.float64)
    second = np.asarray(b, dtype=np.float64)
    return float(np.linalg.norm((first - second).reshape(-1)))


def l2_norms(Z: ArrayLike) -> NDArray[np.float64]:
    """The norm of each row, computed in float64."""
    rows = bounds.finite_matrix("Z", Z)
    norms: NDArray[np.float64] = np.linalg.norm(rows, axis=1)
    return norms


def maybe_l2_normalize(
    Z: ArrayLike, enabled: bool, eps: float = 1e-12
) -> NDArray[np.floating[Any]]:
    """Rows divided by their norm, if `enabled`; rows of zeros stay.

    The norm of every row is at most 1 in its own dtype, rounding included. `eps` is
    accepted and unused: rows of zeros are handled as such. A radius measured before
    normalising does not hold after it.
    """
    rows = _floating(Z)
    if not enabled:
        return rows
    return _cast_inside(bounds.normalize_rows(rows).data, 1.0, rows.dtype)


def clip_l2_rows(
    Z: ArrayLike, max_norm: float, eps: float = 1e-12
) -> NDArray[np.floating[Any]]:
    """Rows projected onto the ball of radius `max_norm`.

    The norm of every row is at most `max_norm` in its own dtype, rounding included.

    >>> clip_l2_rows(np.array([[3.0, 4.0]]), 1.0).round(6)
    array([[0.6, 0.8]])
    """
    validate.positive(max_norm=max_norm)
    rows = _floating(Z)
    return _cast_inside(bounds.clip_rows(rows, max_norm).data, max_norm, rows.dtype)


def _floating(values: ArrayLike) -> NDArray[np.floating[Any]]:
    """A float array of the dtype given; whole numbers become float64."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    return array


def _cast_inside(
    rows: NDArray[np.float64], bound: float, dtype: np.dtype[Any]
) -> NDArray[np.floating[Any]]:
    """Rows within `bound`, still within it after rounding to a narrower dtype."""
    if dtype.itemsize >= 8:
        return rows
    # Rounding grows a row by at most half an ulp, relative, in each coordinate.
    target = bound * (1.0 - 2.0 * float(np.finfo(dtype).eps))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    shrunk = np.where(norms > target, target / np.where(norms > 0, norms, 1.0), 1.0)
    return (rows * shrunk).astype(dtype)
