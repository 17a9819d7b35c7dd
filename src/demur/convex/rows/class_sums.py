r"""Exact sums of the rows of each class, on a grid.

Rounding could move a float sum over many rows by more than its sensitivity. Here rows
are put on a grid of g = B 2^-bits and summed as integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_BITS = 45
_CHUNK = 1 << 16


def grid_step(n: int, norm_bound: float) -> float:
    """The step of the grid on which n rows are summed."""
    # |coordinate| <= B is at most 2^bits steps, and n of them stay below 2^62.
    bits = min(_MOST_BITS, 61 - max(1, n).bit_length())
    return math.ldexp(1.0, math.frexp(norm_bound)[1] - bits)


@dataclass(frozen=True)
class ClassSums:
    """Sums of some rows of each class in steps of the grid: exact, as integers."""

    num_classes: int
    step: float

    def __call__(
        self, rows: Array, y: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], ...]:
        """The sums, one row for each class."""
        sums = np.zeros((self.num_classes, rows.shape[1]), dtype=np.int64)
        order = np.argsort(y, kind="stable")
        snapped = np.rint(rows[order] / self.step).astype(np.int64)
        present, first = np.unique(y[order], return_index=True)
        sums[present] = np.add.reduceat(snapped, first, axis=0)
        return (sums,)


def exact_sums(
    X: Array, y: NDArray[np.intp], num_classes: int, norm_bound: float
) -> tuple[Array, float]:
    """Sums of the rows of each class, exact on a grid, and that grid's step."""
    step = grid_step(len(X), norm_bound)
    class_sums = ClassSums(num_classes, step)
    sums = np.zeros((num_classes, X.shape[1]), dtype=np.int64)
    for start in range(0, len(X), _CHUNK):
        some = slice(start, start + _CHUNK)
        sums += class_sums(X[some], y[some])[0]
    return sums.astype(np.float64) * step, step
