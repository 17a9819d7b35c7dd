"""Binomial draws with integers: how many records a Poisson batch holds.

Amplification by sampling is a statement about the Binomial law, so the draw must
follow it. numpy's sampler is a floating-point one on a generator whose state can be
recovered from its output; here a table of integer weights is built once for (n, p) and
a uniform integer below their sum is looked up in it. The law drawn from is exactly
weight / sum.

**How far that is from the Binomial.** p is a fraction a / d (every float64 is one), so
the ratio of two neighbouring probabilities is a quotient of integers:

    v(k+1) / v(k) = (n - k) a / ((k + 1) (d - a)).

From the mode, where the weight is 2^320, weights w follow that ratio outwards, rounded
down at each step, until they are below 2^160. Write v for the unrounded weights. Inside
the table w <= v <= w (1 + rho): a step loses less than 1 of at least 2^160, so rho is
below steps * 2^-159. Outside the ratios fall on (the law is log-concave), so what is
left out on one side is at most w_last * r / (1 - r) with r the next ratio. For any
w <= v with sums W <= V the distance of the two laws is at most

    sum max(0, w/W - v/V) <= sum (w/W - w/V) = 1 - W/V <= rho + left out / W.

`distance` is that number, and a table whose distance exceeds `LARGEST_DISTANCE` is not
used.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from demur.core.entropy import Stream
from demur.core.rounding import float_up

LARGEST_DISTANCE = 2.0**-130
_PEAK = 320  # bits of the largest weight
_LAST = 160  # bits of the smallest weight in the table
_MOST_WEIGHTS = 2**22


@dataclass(frozen=True, repr=False)
class BinomialTable:
    """Cumulative integer weights of Binomial(n, p), the first for `smallest`."""

    smallest: int
    cumulative: tuple[int, ...]
    distance: float

    def draw(self, stream: Stream) -> int:
        """One number, distributed as weight / sum exactly."""
        total = self.cumulative[-1]
        bits = total.bit_length()
        while True:
            word = int.from_bytes(stream.read((bits + 7) // 8), "little")
            word &= (1 << bits) - 1
            if word < total:
                return self.smallest + bisect_right(self.cumulative, word)

    @property
    def probabilities(self) -> list[Fraction]:
        """The law that is drawn from, from `smallest` upwards."""
        total = self.cumulative[-1]
        before = (0, *self.cumulative[:-1])
        return [
            Fraction(after - low, total)
            for low, after in zip(before, self.cumulative, strict=True)
        ]


@lru_cache(maxsize=256)
def binomial_table(n: int, p: Fraction) -> BinomialTable:
    """The table for `n` trials of probability `p`."""
    if n < 0 or not 0 <= p <= 1:
        raise ValueError(f"n must be from 0 and p from 0 to 1; got {n} and {float(p)}")
    a, d = p.numerator, p.denominator
    if n == 0 or a == 0:
        return BinomialTable(0, (1,), 0.0)
    if a == d:
        return BinomialTable(n, (1,), 0.0)
    mode = (n + 1) * a // d
    upper, over = _outwards(n, mode, a, d - a)
    # k successes of p are n - k of 1 - p: the same walk, mirrored.
    lower, under = _outwards(n, n - mode, d - a, a)
    weights = [*reversed(lower[1:]), *upper]
    rounding = Fraction(len(weights), 2 ** (_LAST - 1))
    distance = float_up(rounding + (over + under) / sum(weights))
    if distance > LARGEST_DISTANCE:
        raise ValueError(
            f"the sizes of {n} trials spread too far for a table; got distance"
            f" {distance:.3g}. Use fewer examples."
        )
    smallest = mode - (len(lower) - 1)
    return BinomialTable(smallest, tuple(accumulate(weights)), distance)


def _outwards(n: int, mode: int, a: int, c: int) -> tuple[list[int], Fraction]:
    """Weights from the mode upwards, and a bound on the sum of those left out."""
    weights = [1 << _PEAK]
    k = mode
    while k < n:
        numerator, denominator = (n - k) * a, (k + 1) * c
        weight = weights[-1] * numerator // denominator
        if weight < 1 << _LAST or len(weights) == _MOST_WEIGHTS:
            ratio = Fraction(numerator, denominator)
            # 2 w stands for the unrounded weight, which is below w (1 + rho).
            left_out = 2 * weights[-1] * ratio / (1 - ratio)
            return weights, left_out
        weights.append(weight)
        k += 1
    return weights, Fraction(0)
