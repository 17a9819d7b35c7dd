"""Compiled loops of the modes: rows, online gradient descent, ridge regression.

One call is for an event, one for a whole log. A run over many rows calls the very step
of the single event, so both give the same bits: no fast-math, sums in a fixed order. A
step returns NaN, having changed nothing, if a record is not usable as it is (NaN,
infinity, a square that overflows, a label that is none); the caller then takes the slow
path, which raises the error. `newton_kernels` has those of logistic regression.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Everything that is compiled here is in this file or an argument: numba's cache does
# not notice when a function in another file changes.
LOOSE = 1.0 + 1e-12  # as in models.inputs
# The kind of a loss; K from 2 on is softmax over K classes, whose weights lie one class
# after the other in one vector.
HUBER, LOGISTIC = 0.0, 1.0
LOW_BITS = 32
_MASK = (1 << LOW_BITS) - 1


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
    """The score of a clipped row, or its probability; NaN if x is not finite.

    Over classes: the one with the highest score.
    """
    n = x.shape[0]
    square = _dot(x, x, n)
    if not math.isfinite(square):
        return math.nan
    scale = _scale(square, bound)
    if kind >= 2.0:
        return float(softmax(class_scores(w, x, scale, int(kind))))
    score = _dot_clipped(w, x, scale, n)
    return _sigmoid(score) if kind == LOGISTIC else score


@njit(cache=True, fastmath=False, nogil=True)
def class_scores(w: Floats, x: Floats, scale: float, classes: int) -> Floats:
    """The scores of scale * x, one for each class."""
    n, scores = x.shape[0], np.empty(classes)
    for c in range(classes):
        scores[c] = _dot_clipped(w[c * n : c * n + n], x, scale, n)
    return scores


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
def first_unusable(X: Floats, Y: Floats, kind: float) -> int:
    """The first row that a step would refuse; the number of rows if there is none."""
    for i in range(X.shape[0]):
        y = Y[i]
        if kind == LOGISTIC and not (y == 1.0 or y == 0.0 or y == -1.0):
            return i
        if kind >= 2.0 and not _is_class(y, kind):
            return i
        if not (math.isfinite(_dot(X[i], X[i], X.shape[1])) and math.isfinite(y)):
            return i
    return X.shape[0]


@njit(cache=True, fastmath=False, nogil=True)
def _is_class(y: float, classes: float) -> bool:
    return 0.0 <= y < classes and y == math.floor(y)


# -- online gradient descent -----------------------------------------------------------


@njit(cache=True, fastmath=False, nogil=True)
def ogd_step(state: Floats, x: Floats, constants: Floats, y: float) -> float:
    """One step; the prediction from before. state = (w, ticks).

    constants = (lambda, kappa, norm bound, radius in steps, t0, kind). Over classes the
    prediction is the probability of the record's own class.
    """
    n = x.shape[0]
    kind = constants[5]
    square = _dot(x, x, n)
    if not (math.isfinite(square) and math.isfinite(y)):
        return math.nan
    scale = _scale(square, constants[2])
    if kind >= 2.0:
        return _softmax_step(state, x, y, scale, constants)
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
def _softmax_step(
    state: Floats, x: Floats, y: float, scale: float, constants: Floats
) -> float:
    """`ogd_step` over classes: the gradient of class c is (p_c - [c = y]) x."""
    if not _is_class(y, constants[5]):
        return math.nan
    n, own = x.shape[0], int(y)
    p = class_scores(state, x, scale, int(constants[5]))
    softmax(p)
    predicted = p[own]
    p[own] -= 1.0
    size = p.shape[0] * n
    tau = state[size] + 1.0 + constants[4]
    shrink = (tau - 1.0) / tau
    for c in range(p.shape[0]):
        step = p[c] / (constants[0] * tau)
        for j in range(n):
            state[c * n + j] = shrink * state[c * n + j] - step * (scale * x[j])
    if constants[3] < math.inf:
        _project(state, size, constants[3])
    state[size] += 1.0
    return predicted


@njit(cache=True, fastmath=False, nogil=True)
def _project(w: Floats, n: int, radius: float) -> None:
    square = _dot(w, w, n)
    if square > radius * radius:
        shorter = radius / math.sqrt(square)
        for j in range(n):
            w[j] *= shorter


@njit(cache=True, fastmath=False, nogil=True)
def ogd_skip(state: Floats, constants: Floats) -> None:
    """A tick without a record: the regulariser's step alone."""
    n = state.shape[0] - 1
    tau = state[n] + 1.0 + constants[4]
    shrink = (tau - 1.0) / tau
    for j in range(n):
        state[j] = shrink * state[j]
    state[n] += 1.0


@njit(cache=True, fastmath=False, nogil=True)
def ogd_run(
    state: Floats, X: Floats, Y: Floats, constants: Floats, out: Floats
) -> None:
    """Every row in turn."""
    for i in range(X.shape[0]):
        out[i] = ogd_step(state, X[i], constants, Y[i])


# -- ridge regression on integer sums --------------------------------------------------


@njit(cache=True, fastmath=False, nogil=True)
def _own_score(w: Floats, x: Floats, y: float, constants: Floats) -> float:
    """The score of a clipped row, for its own class where there are classes."""
    n = x.shape[0]
    at = int(y) * n if constants[5] >= 2.0 else 0
    scale = _scale(_dot(x, x, n), constants[0])
    return _dot_clipped(w[at : at + n], x, scale, n)


@njit(cache=True, fastmath=False, nogil=True)
def ridge_integers(x: Floats, y: float, constants: Floats, k: Ints) -> bool:
    """The clipped record in whole steps, into k = (x, y); False if not usable.

    constants = (norm bound, y bound, steps per norm bound, ridge in squared steps,
    weight per solved unit, outputs). More than one output: y is a class, one-hot in k.
    """
    n = x.shape[0]
    square = _dot(x, x, n)
    if not (math.isfinite(square) and math.isfinite(y)):
        return False
    if constants[5] >= 2.0 and not _is_class(y, constants[5]):
        return False
    scale = _scale(square, constants[0])
    top = constants[2]
    steps = top / constants[0]
    for j in range(n):
        # Clipped rows may exceed the bound by 1e-12 of it, the integers never.
        k[j] = np.int64(np.rint(min(max(scale * x[j] * steps, -top), top)))
    if constants[5] >= 2.0:
        k[n:] = 0
        k[n + int(y)] = np.int64(top)
    else:
        k[n] = np.int64(np.rint(min(max(y / constants[1], -1.0), 1.0) * top))
    return True


@njit(cache=True, fastmath=False, nogil=True)
def ridge_add(sums: Ints, k: Ints, sign: int) -> None:
    """Add or subtract the products of one record: lower triangle, one or two limbs.

    In two limbs a product is high 2^32 + low with 0 <= low < 2^32, each part summed
    for itself: both are sums over the live records, whatever the order.
    """
    n = k.shape[0]
    if sums.shape[0] == 1:
        for i in range(n):
            ki = sign * k[i]
            if ki == 0:  # most of a one-hot target
                continue
            for j in range(i + 1):
                sums[0, i, j] += ki * k[j]
        return
    for i in range(n):
        for j in range(i + 1):
            product = k[i] * k[j]
            sums[0, i, j] += sign * (product & _MASK)
            sums[1, i, j] += sign * (product >> LOW_BITS)


@njit(cache=True, fastmath=False, nogil=True)
def ridge_possible(sums: Ints, records: int) -> bool:
    """Whether the sums can be those of so many records: necessary, not sufficient."""
    n = sums.shape[1]
    for i in range(n):
        total = sums[0, i, i]
        if sums.shape[0] == 2:
            total = (total >> LOW_BITS) + sums[1, i, i]
        if total < 0:
            return False
    return records != 0 or not sums.any()


@njit(cache=True, fastmath=False, nogil=True)
def ridge_floats(sums: Ints, system: Floats, constants: Floats) -> None:
    """The normal equations as floats: upper triangle, right-hand sides last."""
    n = system.shape[0]
    for i in range(n):
        for j in range(i + 1):
            value = float(sums[0, i, j])
            if sums.shape[0] == 2:
                value += float(sums[1, i, j]) * 4294967296.0
            system[j, i] = value
    for i in range(n - int(constants[5])):
        system[i, i] += constants[3]


@njit(cache=True, fastmath=False, nogil=True)
def ridge_solve(sums: Ints, w: Floats, system: Floats, constants: Floats) -> None:
    """Weights from the sums alone, by elimination, for small dimensions.

    `system` is work space, (dimension + outputs) square; its last columns are the
    right-hand sides and are eliminated along with the rows. The matrix is at least
    `ridge` times the identity, so no pivoting is needed, and pivots below it are
    rounding errors.
    """
    ridge_floats(sums, system, constants)
    outputs = int(constants[5])
    n = system.shape[0] - outputs
    for k in range(n):
        system[k, k] = max(system[k, k], constants[3])
        inverse = 1.0 / system[k, k]
        for i in range(k + 1, n):
            factor = system[k, i] * inverse
            for j in range(i, n + outputs):
                system[i, j] -= factor * system[k, j]
    for c in range(outputs):
        at = c * n
        for i in range(n - 1, -1, -1):
            rest = system[i, n + c]
            for j in range(i + 1, n):
                rest -= system[i, j] * w[at + j]
            w[at + i] = rest / system[i, i]
    for i in range(outputs * n):
        w[i] *= constants[4]


@njit(cache=True, fastmath=False, nogil=True)
def ridge_insert(
    sums: Ints,
    w: Floats,
    system: Floats,
    k: Ints,
    clock: Ints,
    x: Floats,
    y: float,
    constants: Floats,
) -> float:
    """Predict, add, and solve when due. clock = (records, ticks, period, stale)."""
    if not ridge_integers(x, y, constants, k):
        return math.nan
    predicted = _own_score(w, x, y, constants)
    ridge_add(sums, k, 1)
    clock[0] += 1
    clock[1] += 1
    clock[3] = 1
    # A period of 0: the caller solves.
    if clock[2] > 0 and clock[1] % clock[2] == 0:
        ridge_solve(sums, w, system, constants)
        clock[3] = 0
    return predicted


@njit(cache=True, fastmath=False, nogil=True)
def ridge_run(
    sums: Ints,
    w: Floats,
    system: Floats,
    k: Ints,
    clock: Ints,
    X: Floats,
    Y: Floats,
    constants: Floats,
    out: Floats,
) -> None:
    """Every row in turn."""
    for i in range(X.shape[0]):
        out[i] = ridge_insert(sums, w, system, k, clock, X[i], Y[i], constants)


@njit(cache=True, fastmath=False, nogil=True)
def ridge_block_rows(
    w: Floats,
    X: Floats,
    Y: Floats,
    constants: Floats,
    k: Ints,
    block: Floats,
    out: Floats,
) -> None:
    """Rows in whole steps, as floats, and their predictions; nothing is added."""
    for i in range(X.shape[0]):
        ridge_integers(X[i], Y[i], constants, k)
        out[i] = _own_score(w, X[i], Y[i], constants)
        for j in range(k.shape[0]):
            block[i, j] = float(k[j])
