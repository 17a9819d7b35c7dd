"""Exact sums: neither the order nor the batches of the terms change the result.

Floating-point addition is not associative: reports summed in other batches give other
last digits, and a search that sees other digits may end elsewhere. Here every term is
cut into two pieces whose sums are *exact*, so that any order and any grouping of n
terms of size at most B give the same two numbers.

Let S be a power of two with S >= n B and S >= 2 B, q = 2^-52 S, A = 1.5 S, n < 2^52.

1. x + A lies in [S, 2S], where floats are the multiples of q, so fl(x + A) is A plus
   the multiple h of q nearest to x; A is one too, and h = fl(x + A) - A is exact.
2. |x - h| <= q / 2, and x - h is a float (the rounding error of a sum is one).
3. A partial sum of h's is a multiple of q and at most n (B + q/2) <= 2S = 2^53 q in
   size: a float. Every addition of partial sums is therefore exact.

The same again for the rests x - h, with B' = q / 2, leaves q'/2 <= n^2 B 2^-104 of each
term, lost in the same way everywhere: the sum is off by at most n^3 B 2^-104, less than
one rounding of a sum of size n B up to n = 4 10^7, and 10^-13 n B at n = 10^9. Sums and
rests are added at the very end, in one rounding.

B is guessed. The largest term of a pass is part of its result (it does not depend on
the order either), and where the guess was too small the pass is repeated. Where n B is
beyond the largest float (no report is) sums are plain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SMALLEST = 2.0**-400  # a bound below would leave no room for the rests


@dataclass(frozen=True, eq=False)
class PartialSums:
    """Exact sums over some rows: of the pieces, of the rests, and the largest terms."""

    high: Array
    low: Array
    largest: Array  # one for each bound

    def __add__(self, other: PartialSums) -> PartialSums:
        return PartialSums(
            self.high + other.high,
            self.low + other.low,
            np.maximum(self.largest, other.largest),
        )

    def rounded(self) -> Array:
        """The sums."""
        # A term that is not finite has no rest.
        return np.where(np.isfinite(self.high), self.high + self.low, self.high)


class Work(Protocol):
    """Sums of some terms over rows."""

    @property
    def bounds(self) -> Array:
        """A guess of how large the terms are, in one or several groups."""
        ...

    def __call__(self, rows: Array, /, anchors: Array) -> PartialSums:
        """The sums over these rows, cut at the anchors of each group."""
        ...


class Summable(Protocol):
    """Rows in any number of batches, in memory or elsewhere."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    def over(self, work: Callable[[Array], PartialSums]) -> PartialSums:
        """The sum of `work` over batches that hold every row once."""
        ...


def summed(rows: Summable, work: Work) -> Array:
    """The sums over all rows, the same for any batches of them."""
    # A guess that is no number is replaced by 0: then the first pass finds the size.
    guess = work.bounds
    bounds = np.where(np.isfinite(guess), guess, 0.0)
    while True:
        sums = rows.over(partial(work, anchors=anchors(rows.shape[0], bounds)))
        fits = (sums.largest <= bounds).all()
        if fits or not np.isfinite(sums.largest).all():
            return sums.rounded()
        bounds = np.maximum(bounds, 2.0 * sums.largest)


def anchors(count: int, bounds: Array) -> Array:
    """The two anchors A, A' of each bound, for at most `count` terms."""
    terms = max(count, 2)
    first = _power_above(terms * np.maximum(bounds, _SMALLEST))
    second = _power_above(terms * 2.0**-53 * first)
    return 1.5 * np.stack([first, second])


def split_sums(terms: Array, cuts: Array) -> PartialSums:
    """The sums of the columns of `terms`, one bound for all of them."""
    high = (terms + cuts[0]) - cuts[0]
    low = ((terms - high) + cuts[1]) - cuts[1]
    largest = np.abs(terms).max(initial=0.0)
    return PartialSums(high.sum(axis=0), low.sum(axis=0), np.array([largest]))


def _power_above(values: Array) -> Array:
    return np.ldexp(1.0, np.frexp(values)[1])
