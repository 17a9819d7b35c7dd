"""Compiled checks of rows: clipping, predictions, and which rows a step takes.

The kernels of the modes (`ogd`, `ridge`, `newton`) clip by the same code.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Everything that is compiled here is in this file or an argument: numba's cache does
# not notice when a function in another file changes. So the modules of this package
# import nothing of demur, and each has its own copy of what they share.
LOOSE = 1.0 + 1e-12  # as in models.inputs
HUBER, LOGISTIC = 0.0, 1.0


@njit(cache=True, fastmath=False, nogil=True, inline="always")
def _dot(a: Floats, b: Floats, n: int) -> float:
    """Sum of products in four chains, so that additions need not wait; error
    at most (n/4 + 4) u |a| |b|.
    """
    s0 = s1 = s2 = s3 = 0.0
    whole = n - n % 4
    for j in range(0, whole, 4):
        s0 += a[j] * b[j]
        s1 += a[j + 1] * b[j + 1]
        s2 += a[j + 2] * b[j + 2]
        s3 += a[j + 3] * b[j + 3]
    for j in range(whole, n):
        s0 += a[j] * b[j]
    return (s0 + s1) + (s2 + s3)


@njit(cache=True, fastmath=False, nogil=True, inline="always")
def _dot_clipped(w: Floats, x: Floats, scale: float, n: int) -> float:
    """As `_dot`, of w and the clipped row: its entries are rounded first."""
    s0 = s1 = s2 = s3 = 0.0
    whole = n - n % 4
    for j in range(0, whole, 4):
        s0 += w[j] * (scale * x[j])
        s1 += w[j + 1] * (scale * x[j + 1])
        s2 += w[j + 2] * (scale * x[j + 2])
        s3 += w[j + 3] * (scale * x[j + 3])
    for j in range(whole, n):
        s0 += w[j] * (scale * x[j])
    return (s0 + s1) + (s2 + s3)


@njit(cache=True, fastmath=False, nogil=True)
def _sigmoid(z: float) -> float:
    if z >= 0.0:
        return 1.0 / (1.0 + math.exp(-z))
    e = math.exp(z)
    return e / (1.0 + e)


@njit(cache=True, fastmath=False, nogil=True)
def _scale(square: float, bound: float) -> float:
    """What clipping multiplies a row by; exactly 1 for a row within the bound.

    All kernels round scale * x[j] before they use it, so a row that was clipped
    before (scale 1) gives the same bits as the raw one.
    """
    limit = bound * LOOSE
    if square <= limit * limit:
        return 1.0
    return bound / math.sqrt(square)


@njit(cache=True, fastmath=False, nogil=True)
def predict(w: Floats, x: Floats, bound: float, kind: float) -> float:
    """The score of a clipped row, or its probability; NaN if x is not finite."""
    n = x.shape[0]
    square = _dot(x, x, n)
    if not math.isfinite(square):
        return math.nan
    score = _dot_clipped(w, x, _scale(square, bound), n)
    return _sigmoid(score) if kind == LOGISTIC else score


@njit(cache=True, fastmath=False, nogil=True)
def has_square(x: Floats) -> bool:
    """Whether a step takes the row as it is."""
    return math.isfinite(_dot(x, x, x.shape[0]))


@njit(cache=True, fastmath=False, nogil=True)
def clip(x: Floats, bound: float) -> Floats:
    """The row the kernels see: x itself within the bound, a shorter copy beyond."""
    n = x.shape[0]
    scale = _scale(_dot(x, x, n), bound)
    if scale == 1.0:
        return x
    row = np.empty(n)
    for j in range(n):
        row[j] = scale * x[j]
    return row


@njit(cache=True, fastmath=False, nogil=True)
def clip_rows(X: Floats, bound: float) -> Floats:
    """`clip` for every row, into a new array."""
    rows = np.empty(X.shape)
    for i in range(X.shape[0]):
        rows[i] = clip(X[i], bound)
    return rows


@njit(cache=True, fastmath=False, nogil=True)
def first_unusable(X: Floats, Y: Floats, labels: bool) -> int:
    """The first row that a step would refuse; the number of rows if there is none."""
    for i in range(X.shape[0]):
        y = Y[i]
        if labels and not (y == 1.0 or y == 0.0 or y == -1.0):
            return i
        if not (math.isfinite(_dot(X[i], X[i], X.shape[1])) and math.isfinite(y)):
            return i
    return X.shape[0]
