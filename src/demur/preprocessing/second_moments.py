r"""Second moments x x^T of rows: how far they move, and their place in a vector.

**How far.** Let |x|, |x'| <= B, u = x - x' with |u| = r, v = x + x', and
t = |<u, v>| = ||x|^2 - |x'|^2|. Then x x^T - x' x'^T = (u v^T + v u^T) / 2, so

    |x x^T - x' x'^T|_F^2 = (r^2 |v|^2 + t^2) / 2,    |v|^2 = 2 |x|^2 + 2 |x'|^2 - r^2.

The longer row has norm at most B, so |v|^2 <= 4 B^2 - 2 t - r^2 and the square is at
most h(t) = (r^2 (4 B^2 - 2 t - r^2) + t^2) / 2. By Cauchy t <= r |v|, hence
(t + r^2)^2 <= 4 B^2 r^2, that is t <= r (2 B - r). h is convex, so it is largest at one
of the ends: h(0) = r^2 (2 B^2 - r^2 / 2), two rows of norm B, or
h(r (2 B - r)) = r^2 (2 B - r)^2, a row that is shortened by r. So with r <= sqrt(2) B

    g(r) = r max(2 B - r, sqrt(2 B^2 - r^2 / 2)),

both are attained, and from sqrt(2) B on it is sqrt(2) B^2, as <x x^T, x' x'^T> >= 0. g
does not decrease, so that it bounds every move by at most r.

**The vector** of a symmetric matrix has the diagonal and sqrt(2) times what is above
it: its norm is the Frobenius norm.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def second_moment_bound(r: float, norm_bound: float) -> float:
    """g(r): how far x x^T moves in Frobenius norm when a row moves by r.

    >>> round(second_moment_bound(0.5, 1.0), 4), round(second_moment_bound(2.0, 1.0), 4)
    (0.75, 1.4142)
    """
    if r >= math.sqrt(2.0) * norm_bound:
        return math.sqrt(2.0) * norm_bound**2
    turned = math.sqrt(2.0 * norm_bound**2 - r**2 / 2.0)
    return r * max(2.0 * norm_bound - r, turned)


def as_vector(square: Array) -> Array:
    """A symmetric matrix as a vector of its Frobenius norm.

    >>> as_vector(np.array([[1.0, 2.0], [2.0, 3.0]])).round(3)
    array([1.   , 2.828, 3.   ])
    """
    upper = np.triu_indices(len(square))
    vector: Array = square[upper] * _weights(len(square))
    return vector


def from_vector(vector: Array, columns: int) -> Array:
    """The symmetric matrix of a vector, which may hold noise."""
    square = np.zeros((columns, columns))
    square[np.triu_indices(columns)] = vector / _weights(columns)
    return square + np.triu(square, 1).T


def _weights(columns: int) -> Array:
    rows, others = np.triu_indices(columns)
    return np.where(rows == others, 1.0, math.sqrt(2.0))
