"""Sensitivity of correlated noise: how far C G moves with one record in several steps.

Let a record take part in the steps pi, with contributions of norm at most 1. Then C G
moves by the sum over i in pi of C[:, i] g_i, whose squared norm is at most

    sum over i, j in pi of |X_ij|,     X = C^T C,

and equals it for equal contributions when the X_ij are not negative. A `Participation`
says which pi are possible: steps at least `min_separation` apart, at most
`max_participations` of them. The sensitivity is the largest value over those pi.

- One participation: the largest diagonal entry. Exact.
- X_ij = 0 wherever |i - j| >= min_separation (a b-banded C, separation at least b): the
  sum is over the diagonal alone, and a dynamic program finds the best pi. Exact.
- C Toeplitz with coefficients c_0 >= c_1 >= ... >= 0: the pattern 0, b, 2b, ... is the
  worst. For i_1 < i_2 < ... with gaps of at least b, i_q >= (q - 1) b and
  i_q - i_p >= (q - p) b, so

      <C_ip, C_iq> = sum over r < n - i_q of c_(r + i_q - i_p) c_r
                  <= sum over r < n - (q - 1) b of c_(r + (q - p) b) c_r :

  fewer terms, none of them larger. Exact. Other coefficients are below their envelope
  max over k >= j of |c_k|, which is such a sequence: an upper bound.
- Anything else: the sum over j of row i is at most the best pattern for that row, and
  what is left is a sum over i alone. An upper bound.

Results are rounded up by 1e-12, far more than these sums of positive terms lose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from demur.core import validate

Array = NDArray[np.float64]
_ROUNDED_UP = 1.0 + 1e-12


@dataclass(frozen=True)
class Participation:
    """Steps at least `min_separation` apart, at most `max_participations` of them.

    >>> Participation(min_separation=10).most(95)
    10
    """

    min_separation: int = 1
    max_participations: int | None = None

    def __post_init__(self) -> None:
        validate.count(min_separation=self.min_separation)
        if self.max_participations is not None:
            validate.count(max_participations=self.max_participations)

    def most(self, iterations: int) -> int:
        """The most steps of `iterations` that one record can take part in."""
        fit = -(-iterations // self.min_separation)
        return (
            fit
            if self.max_participations is None
            else min(fit, self.max_participations)
        )


ONCE = Participation(max_participations=1)


@dataclass(frozen=True)
class Certified:
    """An upper bound; `exact` where some record attains it, up to rounding."""

    value: float
    exact: bool

    def __float__(self) -> float:
        return self.value


def _certified(squared: float, exact: bool) -> Certified:
    return Certified(math.sqrt(squared) * _ROUNDED_UP, exact)


def of_gram(gram: Array, participation: Participation) -> Certified:
    """The sensitivity of a C with C^T C = `gram`."""
    gram = np.asarray(gram, dtype=np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not gram.size:
        raise ValueError(f"gram must be square; got shape {gram.shape}")
    if not np.isfinite(gram).all():
        raise ValueError("gram must be finite")
    size = len(gram)
    most, apart = participation.most(size), participation.min_separation
    diagonal = np.ascontiguousarray(np.diag(gram))
    if most == 1:
        return _certified(float(diagonal.max()), True)
    steps = np.arange(size)
    distance = np.abs(steps[:, None] - steps)
    far = distance >= apart
    if not gram[far].any():
        return _certified(best_pattern(diagonal, apart, most), True)
    # Only pairs that can both take part count: the diagonal and those far apart.
    shared = np.where(far | (distance == 0), np.abs(gram), 0.0)
    best_rows = np.array([best_pattern(row, apart, most) for row in shared])
    return _certified(best_pattern(best_rows, apart, most), False)


def of_toeplitz(
    coefs: Array, iterations: int, participation: Participation
) -> Certified:
    """The sensitivity of the `iterations` x `iterations` Toeplitz C of `coefs`."""
    column = np.zeros(iterations)
    bands = np.asarray(coefs, dtype=np.float64)[:iterations]
    column[: len(bands)] = bands
    apart, most = participation.min_separation, participation.most(iterations)
    if most == 1:
        return _certified(float(column @ column), True)
    if apart >= len(bands):
        # Later columns are cut off at the bottom, so they are no longer.
        norms = np.cumsum(column**2)[::-1]
        return _certified(best_pattern(np.ascontiguousarray(norms), apart, most), True)
    envelope = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    exact = bool(np.array_equal(envelope, column))
    return _certified(float(np.sum(stacked(envelope, apart, most) ** 2)), exact)


def stacked(column: Array, apart: int, most: int) -> Array:
    """The sum of the columns 0, apart, 2 apart, ... (`most` of them)."""
    size = len(column)
    total = np.zeros(size)
    for start in range(0, min(most * apart, size), apart):
        total[start:] += column[: size - start]
    return total


@numba.njit(cache=True)
def best_pattern(values: Array, apart: int, most: int) -> float:  # pragma: no cover
    """The largest sum of at most `most` non-negative values, `apart` apart or more.

    best[i, k], over positions from i on: take i and go on at i + apart, or skip it.
    """
    size = len(values)
    best = np.zeros((most + 1, size + 1))
    for k in range(1, most + 1):
        for i in range(size - 1, -1, -1):
            taken = values[i] + best[k - 1, min(i + apart, size)]
            best[k, i] = max(taken, best[k, i + 1])
    return best[most, 0]
