"""Compiled sums and equations of least squares on standardised features.

A record is a vector k of whole numbers, at most 2^48 in size: features, targets, and a
1 last. The sums of k k' are exact: a product is h 2^64 + m 2^32 + l, and each of the
three is summed for itself (|h| <= 2^33, 0 <= m < 2^33, 0 <= l < 2^32, so that 2^29 live
records fit). Means are taken off in double-double arithmetic, where products of two
float64 are exact: a feature whose spread is 1e-12 of its mean still counts.
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
_HALF = 24
_HALF_MASK = (1 << _HALF) - 1
_MASK = (1 << 32) - 1
_SPLIT = 134217729.0  # 2^27 + 1: cuts a float64 into two halves (Veltkamp)
# Below this part of its raw sum of squares a variance is rounding: the feature is
# constant. Double-double is off by about 2^-100 of it.
_CONSTANT = 2.0**-80


@njit(cache=True, fastmath=False, nogil=True)
def whole_steps(x: Floats, y: float, constants: Floats, k: Ints) -> None:
    """A checked record in whole steps, into k.

    constants = (steps of a feature, steps of a target, largest step, Lambda, targets,
    1 if y is a class, weight per solved unit, size of a feature's step, of a target's).
    """
    n, top = x.shape[0], constants[2]
    for j in range(n):
        k[j] = np.int64(np.rint(min(max(x[j] * constants[0], -top), top)))
    if constants[5] == 1.0:
        k[n:] = 0
        k[n + int(y)] = 1
    else:
        k[n] = np.int64(np.rint(min(max(y * constants[1], -top), top)))
    k[k.shape[0] - 1] = 1


@njit(cache=True, fastmath=False, nogil=True)
def add(sums: Ints, k: Ints, sign: int) -> None:
    """Add or subtract the products of one record: lower triangle, three limbs."""
    for i in range(k.shape[0]):
        if k[i] == 0:  # most of a one-hot target
            continue
        ai, bi = k[i] >> _HALF, k[i] & _HALF_MASK
        for j in range(i + 1):
            aj, bj = k[j] >> _HALF, k[j] & _HALF_MASK
            cross = ai * bj + bi * aj
            low = bi * bj + ((cross & _HALF_MASK) << _HALF)
            high = ai * aj + (cross >> _HALF)
            sums[0, i, j] += sign * (low & _MASK)
            sums[1, i, j] += sign * ((low >> 32) + ((high & 65535) << 16))
            sums[2, i, j] += sign * (high >> 16)


@njit(cache=True, fastmath=False, nogil=True)
def _two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b, exactly: the rounded sum, and what rounding left out (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit(cache=True, fastmath=False, nogil=True)
def _two_product(a: float, b: float) -> tuple[float, float]:
    """a b, exactly (Dekker)."""
    p = a * b
    c = _SPLIT * a
    ah = c - (c - a)
    al = a - ah
    c = _SPLIT * b
    bh = c - (c - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@njit(cache=True, fastmath=False, nogil=True)
def _limb(value: int, unit: float) -> tuple[float, float]:
    """A whole number times a power of two, as two floats."""
    high = value >> 32
    return _two_sum(
        float(high) * 4294967296.0 * unit, float(value - (high << 32)) * unit
    )


@njit(cache=True, fastmath=False, nogil=True)
def _pair(sums: Ints, i: int, j: int) -> tuple[float, float]:
    """A sum as two floats, off by at most 2^-104 of its largest limb."""
    h, hl = _limb(sums[2, i, j], 18446744073709551616.0)
    m, ml = _limb(sums[1, i, j], 4294967296.0)
    low, ll = _limb(sums[0, i, j], 1.0)
    s, e = _two_sum(h, m)
    t, f = _two_sum(s, low)
    return _two_sum(t, e + f + (hl + ml + ll))


@njit(cache=True, fastmath=False, nogil=True)
def _mean(first: float, rest: float, records: float) -> tuple[float, float]:
    """A sum of two floats divided by a count, as two floats."""
    mean = first / records
    p, e = _two_product(mean, records)
    return mean, ((first - p) - e + rest) / records


@njit(cache=True, fastmath=False, nogil=True)
def _centred(
    sums: Ints, i: int, j: int, first: float, rest: float, mean: float, tail: float
) -> float:
    """Sum of products less (sum of i) (mean of j), in double-double."""
    p, e = _two_product(first, mean)
    e += first * tail + rest * mean
    s, t = _pair(sums, i, j)
    d, f = _two_sum(s, -p)
    return d + (f + (t - e))


@njit(cache=True, fastmath=False, nogil=True)
def equations(sums: Ints, system: Floats, spread: Floats, constants: Floats) -> None:
    """The normal equations of the standardised features: upper triangle, then targets.

    `spread` receives the standard deviations in steps (0: a constant feature, which
    gets an equation of its own and weight 0), and behind them the means, of features
    and of targets.
    """
    targets = int(constants[4])
    size = sums.shape[1]
    last, n = size - 1, size - 1 - targets
    records = float(sums[0, last, last])
    tails = np.empty(last)
    for i in range(last):
        first, rest = _pair(sums, last, i)
        spread[n + i], tails[i] = _mean(first, rest, records)
    for i in range(last):
        first, rest = _pair(sums, last, i)
        for j in range(min(i + 1, n)):
            value = _centred(sums, i, j, first, rest, spread[n + j], tails[j])
            system[j, i] = value
            if i == j:
                square, _ = _pair(sums, i, i)
                constant = not value > _CONSTANT * square
                spread[i] = 0.0 if constant else math.sqrt(value / records)
    for i in range(n):
        for j in range(i + 1):
            if spread[i] == 0.0 or spread[j] == 0.0:
                system[j, i] = 1.0 if i == j else 0.0
            elif i == j:
                system[i, i] = records + constants[3]
            else:
                system[j, i] /= spread[i] * spread[j]
        for c in range(targets):
            system[i, n + c] /= 1.0 if spread[i] == 0.0 else spread[i]
            if spread[i] == 0.0:
                system[i, n + c] = 0.0


@njit(cache=True, fastmath=False, nogil=True)
def eliminate(system: Floats, targets: int, least: float) -> None:
    """Solve in place, for few features; the solutions replace the right-hand sides.

    The matrix is at least `least` times the identity, so no pivoting is needed, and
    pivots below it are rounding errors.
    """
    n = system.shape[0]
    for k in range(n):
        system[k, k] = max(system[k, k], min(least, 1.0))
        inverse = 1.0 / system[k, k]
        for i in range(k + 1, n):
            factor = system[k, i] * inverse
            for j in range(i, n + targets):
                system[i, j] -= factor * system[k, j]
    for c in range(n, n + targets):
        for i in range(n - 1, -1, -1):
            rest = system[i, c]
            for j in range(i + 1, n):
                rest -= system[i, j] * system[j, c]
            system[i, c] = rest / system[i, i]


@njit(cache=True, fastmath=False, nogil=True)
def weights(system: Floats, spread: Floats, w: Floats, constants: Floats) -> None:
    """Solutions to weights of the raw features and an intercept, target by target."""
    n, targets = system.shape[0], int(constants[4])
    for c in range(targets):
        at, mean = c * (n + 1), spread[2 * n + c] * constants[8]
        for j in range(n):
            weight = 0.0
            if spread[j] > 0.0:
                weight = system[j, n + c] / spread[j] * constants[6]
            w[at + j] = weight
            mean -= weight * (spread[n + j] * constants[7])
        w[at + n] = mean


@njit(cache=True, fastmath=False, nogil=True)
def score(w: Floats, at: int, x: Floats) -> float:
    """The intercept and the weights times a row."""
    total, n = 0.0, x.shape[0]
    for j in range(n):
        total += w[at + j] * x[j]
    return total + w[at + n]


@njit(cache=True, fastmath=False, nogil=True)
def solve(
    sums: Ints, system: Floats, spread: Floats, w: Floats, constants: Floats
) -> None:
    """Weights from the sums alone, for few features."""
    equations(sums, system, spread, constants)
    eliminate(system, int(constants[4]), constants[3])
    weights(system, spread, w, constants)


@njit(cache=True, fastmath=False, nogil=True)
def run(
    sums: Ints,
    system: Floats,
    spread: Floats,
    k: Ints,
    w: Floats,
    X: Floats,
    Y: Floats,
    constants: Floats,
    every: int,
    out: Floats,
) -> None:
    """Predict, add and (if `every` is above 0) solve when due, row after row."""
    last, n = sums.shape[1] - 1, X.shape[1]
    for i in range(X.shape[0]):
        at = int(Y[i]) * (n + 1) if constants[5] == 1.0 else 0
        out[i] = score(w, at, X[i])
        whole_steps(X[i], Y[i], constants, k)
        add(sums, k, 1)
        if every > 0 and sums[0, last, last] % every == 0:
            solve(sums, system, spread, w, constants)


@njit(cache=True, fastmath=False, nogil=True)
def possible(sums: Ints) -> bool:
    """Whether the sums can be those of so many records: necessary, not sufficient."""
    last = sums.shape[1] - 1
    records = sums[0, last, last]
    if records <= 0:
        return records == 0 and not sums.any()
    for i in range(last):
        square, _ = _pair(sums, i, i)
        first, rest = _pair(sums, last, i)
        mean, tail = _mean(first, rest, float(records))
        variance = _centred(sums, i, i, first, rest, mean, tail)
        if square < 0.0 or variance < -_CONSTANT * square:
            return False
    return True
