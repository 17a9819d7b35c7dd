"""Compiled steps of online gradient descent: one event, or a whole log of them.

A run over many rows calls the very step of the single event, so both give the same
bits: no fast-math, sums in a fixed order. A step returns NaN, having changed nothing,
if a record is not usable as it is (NaN, infinity, a square that overflows, a label
that is none); the caller then takes the slow path, which raises the error.
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
LOGISTIC = 1.0


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
def step(state: Floats, x: Floats, y: float, constants: Floats) -> float:
    """One step; the prediction from before. state = (w, ticks).

    constants = (lambda, kappa, norm bound, radius in steps, t0, kind).
    """
    n = x.shape[0]
    kind = constants[5]
    square = _dot(x, x, n)
    if not (math.isfinite(square) and math.isfinite(y)):
        return math.nan
    scale = _scale(square, constants[2])
    score = _dot_clipped(state, x, scale, n)
    if kind == LOGISTIC:
        if y == 1.0:
            target = 1.0
        elif y == 0.0 or y == -1.0:
            target = 0.0
        else:
            return math.nan
        predicted = _sigmoid(score)
        slope = predicted - target
    else:
        predicted = score
        slope = min(max(score - y, -constants[1]), constants[1])
    tau = state[n] + 1.0 + constants[4]
    shrink = (tau - 1.0) / tau
    step = slope / (constants[0] * tau)
    for j in range(n):
        state[j] = shrink * state[j] - step * (scale * x[j])
    if constants[3] < math.inf:
        _project(state, n, constants[3])
    state[n] += 1.0
    return predicted


@njit(cache=True, fastmath=False, nogil=True)
def _project(w: Floats, n: int, radius: float) -> None:
    square = _dot(w, w, n)
    if square > radius * radius:
        shorter = radius / math.sqrt(square)
        for j in range(n):
            w[j] *= shorter


@njit(cache=True, fastmath=False, nogil=True)
def skip(state: Floats, constants: Floats) -> None:
    """A tick without a record: the regulariser's step alone."""
    n = state.shape[0] - 1
    tau = state[n] + 1.0 + constants[4]
    shrink = (tau - 1.0) / tau
    for j in range(n):
        state[j] = shrink * state[j]
    state[n] += 1.0


@njit(cache=True, fastmath=False, nogil=True)
def run(state: Floats, X: Floats, Y: Floats, constants: Floats, out: Floats) -> None:
    """Every row in turn."""
    for i in range(X.shape[0]):
        out[i] = step(state, X[i], Y[i], constants)
