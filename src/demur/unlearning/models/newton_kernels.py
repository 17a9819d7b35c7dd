"""Compiled steps of certified Newton for logistic regression: one event, or a log.

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
# not notice when a function in another file changes. So this module imports nothing of
# demur, and has its own copies of what it shares with `kernels`.
LOOSE = 1.0 + 1e-12  # as in models.inputs
# sup |sigma''| of the logistic function, 0.0962250448649..., rounded up.
M_LOGISTIC = 0.09622504486494
# The same of softmax, sqrt(6) / 9 = 0.272165526975908..., rounded up: see `classes`.
M_SOFTMAX = 0.27216552697591


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
def _dot_row(A: Floats, i: int, b: Floats, n: int) -> float:
    """Row i of A times b, as `_dot`, without the cost of a view."""
    s0 = s1 = s2 = s3 = 0.0
    whole = n - n % 4
    for j in range(0, whole, 4):
        s0 += A[i, j] * b[j]
        s1 += A[i, j + 1] * b[j + 1]
        s2 += A[i, j + 2] * b[j + 2]
        s3 += A[i, j + 3] * b[j + 3]
    for j in range(whole, n):
        s0 += A[i, j] * b[j]
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
def event(
    matrices: Floats,
    vectors: Floats,
    scalars: Floats,
    x: Floats,
    y: float,
    sign: float,
    constants: Floats,
) -> float:
    """Learn (sign 1) or forget (sign -1) a record with one Newton step.

    matrices = (H, P, Gram); vectors = (w, anchor, published, three of work space);
    scalars = (records, residual, top eigenvalue, error of H, events since its top
    eigenvalue was measured, 1 if published apart from w, events in all);
    constants = (norm bound, Lambda, largest residual after a deletion, the norm
    bound rounded up, classes). With classes (2 or more, otherwise 0) H and P have a row
    for every weight, and the Gram matrix is the upper left block of its place.

    Returns the published prediction from before; NaN if the record is not usable,
    -1 if a deletion cannot be certified. Nothing has changed in either case.
    """
    n = x.shape[0]
    u = 2.0**-53
    bound, ridge = constants[3], constants[1]
    square = _dot(x, x, n)
    if not math.isfinite(square):
        return math.nan
    if y == 1.0:
        target = 1.0
    elif y == 0.0 or y == -1.0:
        target = 0.0
    else:
        return math.nan
    H, P, gram = matrices[0], matrices[1], matrices[2]
    w, anchor = vectors[0], vectors[1]
    row, px, step = vectors[3], vectors[4], vectors[5]
    scale = _scale(square, constants[0])
    for j in range(n):
        row[j] = scale * x[j]
    norm2 = _dot(row, row, n)
    published = vectors[2] if scalars[5] == 1.0 else w
    predicted = _sigmoid(_dot(published, row, n))

    at_anchor = _sigmoid(_dot(anchor, row, n))
    curvature = at_anchor * (1.0 - at_anchor)
    slope = _sigmoid(_dot(w, row, n)) - target  # of the record's loss at w
    # P' row = P row / (1 + sign curvature row.P row), so neither is updated yet.
    for i in range(n):
        px[i] = _dot_row(P, i, row, n)
    denominator = 1.0 + sign * curvature * _dot(row, px, n)
    if sign > 0.0:
        denominator = max(denominator, 1.0)  # as it is but for rounding
    elif not denominator > 0.0:
        return -1.0
    length2 = moved2 = weight2 = anchor2 = trace = 0.0
    factor = -sign * slope / denominator
    for i in range(n):
        step[i] = factor * px[i]
        length2 += step[i] * step[i]
        moved2 += (w[i] - anchor[i]) * (w[i] - anchor[i])
        weight2 += w[i] * w[i]
        anchor2 += anchor[i] * anchor[i]
        trace += H[i, i]
    length, weight = math.sqrt(length2), math.sqrt(weight2) + math.sqrt(length2)
    along = _dot(row, step, n)
    miss2 = 0.0  # of H' step = -sign gradient
    for i in range(n):
        q = _dot_row(H, i, step, n) + sign * (curvature * along + slope) * row[i]
        miss2 += q * q
    top = scalars[2] + norm2 * LOOSE if sign > 0.0 else scalars[2]
    trace += curvature * norm2
    drift = scalars[3] + u * (
        4.0 * trace + (n + 16.0) * (1.0 + math.sqrt(anchor2) * bound) * bound * bound
    )
    bend = M_LOGISTIC * bound * top * (math.sqrt(moved2) + length / 2.0) * length
    rounding = (
        drift * length
        + (n + 16.0) * u * trace * length
        + u * bound * (16.0 + (n + 16.0) * weight * bound)
        + u * (top + ridge) * weight
    )
    residual = scalars[1] + (bend + math.sqrt(miss2) + rounding) * (1.0 + 1e-9)
    if sign < 0.0 and not residual <= constants[2]:
        return -1.0

    rank = sign * curvature / denominator
    for i in range(n):
        along_i, product_i, gram_i = (
            sign * curvature * row[i],
            rank * px[i],
            sign * row[i],
        )
        for j in range(n):
            H[i, j] += along_i * row[j]
            P[i, j] -= product_i * px[j]
            gram[i, j] += gram_i * row[j]
    for i in range(n):
        w[i] += step[i]
    scalars[0] += sign
    scalars[1] = residual
    scalars[2] = top
    scalars[3] = drift
    scalars[4] += 1.0
    scalars[6] += 1.0
    return predicted


@njit(cache=True, fastmath=False, nogil=True)
def softmax(p: Floats) -> int:
    """Scores to probabilities, in place; the class with the highest score.

    With u = 2^-53 the probabilities are off by at most u (2 K + 8) in all.
    """
    best, total = 0, 0.0
    for c in range(1, p.shape[0]):
        if p[c] > p[best]:
            best = c
    top = p[best]
    for c in range(p.shape[0]):
        p[c] = math.exp(p[c] - top)
        total += p[c]
    for c in range(p.shape[0]):
        p[c] /= total
    return best


# Loops over numbers below, where an expression of arrays would be shorter: each of
# those takes numba a second to compile.
@njit(cache=True, fastmath=False, nogil=True)
def _add_multiple(a: Floats, factor: float, b: Floats) -> None:
    """a += factor b."""
    for i in range(a.shape[0]):
        a[i] += factor * b[i]


@njit(cache=True, fastmath=False, nogil=True)
def _product(a: Floats, b: Floats, n: int) -> float:
    return _dot(a, b, n)


@njit(cache=True, fastmath=False, nogil=True)
def _row_product(A: Floats, i: int, b: Floats, n: int) -> float:
    return _dot_row(A, i, b, n)


@njit(cache=True, fastmath=False, nogil=True)
def _along(w: Floats, row: Floats, classes: int) -> Floats:
    """The product of each class's part of w with the row."""
    n, products = row.shape[0], np.empty(classes)
    for c in range(classes):
        products[c] = _dot(w[c * n : c * n + n], row, n)
    return products


@njit(cache=True, fastmath=False, nogil=True)
def softmax_event(
    matrices: Floats,
    vectors: Floats,
    scalars: Floats,
    x: Floats,
    y: float,
    sign: float,
    constants: Floats,
) -> float:
    """`event` over classes. (Apart: it takes ten seconds to compile.)

    With p at the anchor, the record's part of H is sum_k p_k d_k d_k' with d_k the
    Kronecker product of e_k - p and the row: K updates of rank one. They are followed
    in V (V_k = P d_k after the updates before k), so that nothing changes until the
    step is certified.
    """
    n, K, u = x.shape[0], int(constants[4]), 2.0**-53
    if not math.isfinite(_product(x, x, n)):
        return math.nan
    if not (0.0 <= y < constants[4] and y == math.floor(y)):
        return math.nan
    own, size = int(y), n * K
    bound, ridge = constants[3], constants[1]
    H, P, gram = matrices[0], matrices[1], matrices[2]
    w, anchor = vectors[0], vectors[1]
    scale = _scale(_product(x, x, n), constants[0])
    row = np.empty(n)
    for j in range(n):
        row[j] = scale * x[j]
    norm2 = _product(row, row, n)
    shown = _along(vectors[2] if scalars[5] == 1.0 else w, row, K)
    softmax(shown)
    slopes = _along(w, row, K)  # the record's gradient at w is slopes (x) row
    softmax(slopes)
    slopes[own] -= 1.0
    p = _along(anchor, row, K)
    softmax(p)

    Q = np.empty((K, size))  # P (e_c (x) row)
    for i in range(size):
        for c in range(K):
            Q[c, i] = _product(P[i, c * n : c * n + n], row, n)
    V, ranks = np.empty((K, size)), np.empty(K)
    step = np.zeros(size)
    mean = np.zeros(size)
    for c in range(K):
        _add_multiple(step, slopes[c], Q[c])
        _add_multiple(mean, p[c], Q[c])
    dots = np.empty((K, K))  # V_k . (e_c (x) row)
    for k in range(K):
        for i in range(size):
            V[k, i] = Q[k, i] - mean[i]
        for j in range(k):
            _add_multiple(
                V[k], -ranks[j] * (dots[j, k] - _product(dots[j], p, K)), V[j]
            )
        along_k = _along(V[k], row, K)
        for c in range(K):
            dots[k, c] = along_k[c]
        denominator = 1.0 + sign * p[k] * (dots[k, k] - _product(dots[k], p, K))
        if sign > 0.0:
            denominator = max(denominator, 1.0)  # as it is but for rounding
        elif not denominator > 0.0:
            return -1.0
        ranks[k] = sign * p[k] / denominator
    for k in range(K):
        _add_multiple(step, -ranks[k] * _product(dots[k], slopes, K), V[k])
    for i in range(size):
        step[i] *= -sign

    length2 = _product(step, step, size)
    moved2 = weight2 = anchor2 = trace = 0.0
    for i in range(size):
        moved2 += (w[i] - anchor[i]) * (w[i] - anchor[i])
        weight2 += w[i] * w[i]
        anchor2 += anchor[i] * anchor[i]
        trace += H[i, i]
    length, weight = math.sqrt(length2), math.sqrt(weight2) + math.sqrt(length2)
    along = _along(step, row, K)
    centre = _product(p, along, K)
    miss2 = 0.0  # of H' step = -sign gradient
    for c in range(K):
        bent = sign * (p[c] * (along[c] - centre) + slopes[c])
        trace += p[c] * (1.0 - p[c]) * norm2
        for i in range(n):
            q = _row_product(H, c * n + i, step, size) + bent * row[i]
            miss2 += q * q
    top = scalars[2] + norm2 * LOOSE if sign > 0.0 else scalars[2]
    drift = scalars[3] + u * (
        6.0 * trace
        + (n + 6.0 * K + 48.0) * (1.0 + math.sqrt(anchor2) * bound) * (bound * bound)
    )
    bend = M_SOFTMAX * bound * top * (math.sqrt(moved2) + length / 2.0) * length
    rounding = (
        drift * length
        + (size + 16.0) * u * trace * length
        + u * bound * (2.0 * K + 32.0 + (n + 16.0) * weight * bound)
        + u * (top + ridge) * weight
    )
    residual = scalars[1] + (bend + math.sqrt(miss2) + rounding) * (1.0 + 1e-9)
    if sign < 0.0 and not residual <= constants[2]:
        return -1.0

    for i in range(size):
        for k in range(K):
            product_i = ranks[k] * V[k, i]
            for j in range(size):
                P[i, j] -= product_i * V[k, j]
    for c in range(K):
        for i in range(n):
            for b in range(K):
                entry = p[c] * ((1.0 if b == c else 0.0) - p[b])
                along_i = sign * entry * row[i]
                for j in range(n):
                    H[c * n + i, b * n + j] += along_i * row[j]
    for i in range(n):
        for j in range(n):
            gram[i, j] += sign * row[i] * row[j]
    for i in range(size):
        w[i] += step[i]
    scalars[0] += sign
    scalars[1] = residual
    scalars[2] = top
    scalars[3] = drift
    scalars[4] += 1.0
    scalars[6] += 1.0
    return shown[own]


@njit(cache=True, fastmath=False, nogil=True)
def measurement_due(scalars: Floats) -> bool:
    """Whether the top eigenvalue should be measured again: about every n/8 events."""
    return scalars[4] >= max(64.0, scalars[0] / 8.0)


@njit(cache=True, fastmath=False, nogil=True)
def run(
    matrices: Floats,
    vectors: Floats,
    scalars: Floats,
    X: Floats,
    Y: Floats,
    constants: Floats,
    out: Floats,
) -> int:
    """Rows in turn, up to the next measurement; how many were learned."""
    for i in range(X.shape[0]):
        out[i] = event(matrices, vectors, scalars, X[i], Y[i], 1.0, constants)
        if measurement_due(scalars):
            return i + 1
    return X.shape[0]


@njit(cache=True, fastmath=False, nogil=True)
def softmax_run(
    matrices: Floats,
    vectors: Floats,
    scalars: Floats,
    X: Floats,
    Y: Floats,
    constants: Floats,
    out: Floats,
) -> int:
    """`run` over classes."""
    for i in range(X.shape[0]):
        out[i] = softmax_event(matrices, vectors, scalars, X[i], Y[i], 1.0, constants)
        if measurement_due(scalars):
            return i + 1
    return X.shape[0]
