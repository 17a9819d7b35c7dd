"""Integer arithmetic for BPM draws that float64 leaves undecided.

Every word of a row is the start of an endless uniform number: its 64 bits, then those
of `RowStreams.further_bits`. A draw is a function of these real numbers. `sampler`
works with intervals around them in float64; where an interval meets the edge of a grid
cell, or of acceptance, the row comes here. The same numbers are enclosed with 64 more
bits at a time until the answer is the same for all that is not yet known. No number of
bits is the last one: on ideal bits this ends with probability 1 and the draw follows
its law exactly, so that no statistical distance has to be declared.

Integers are rounded outwards; exponentials come from `decimal`, which rounds them
correctly, with digits to spare. (The enclosure of the normal tail is proven for numbers
of up to 2^14 bits. The chance to need more is below 2^-16000, and has no float64.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import count
from statistics import NormalDist

from demur.mechanisms.bpm.table import BITS, Table, beyond
from demur.mechanisms.sampling.rounded_gaussian import tail_bounds
from demur.mechanisms.sampling.row_streams import RowStreams

_GUARD = 16  # bits of a quantile beyond those of its probability
_HALF = Fraction(1, 2)


class RowWords:
    """The words of one row and one attempt, to any number of bits."""

    def __init__(
        self, streams: RowStreams, row_id: int, first: int, words: Sequence[int]
    ) -> None:
        self._streams, self._row_id, self._first = streams, row_id, first
        self._words = [int(word) for word in words]
        self._further: dict[tuple[int, int], int] = {}

    def extended(self, i: int, level: int) -> int:
        """Word i with 64 * level further bits behind its own."""
        value = self._words[i]
        for step in range(1, level + 1):
            key = (i, step)
            if key not in self._further:
                self._further[key] = self._streams.further_bits(
                    self._row_id, self._first + i, step
                )
            value = value << 64 | self._further[key]
        return value


def rare_radius(table: Table, words: RowWords) -> float | None:
    """The radius of a rare shell, infinity for the cube, None to start again.

    Word 0 is the place between 0 and 2^62 of the table's sums, its last two bits and
    all further ones behind the point. Boundaries are passed in turn; the first one that
    lies above all that the place may be names the component.
    """
    start = int(table.upper[-1])
    for level in count(1):
        place, ends = words.extended(0, level), 1 << (64 * level + 2)
        low = Fraction(place, ends) - start
        high = Fraction(place + 1, ends) - start
        radius, decided = _among_rare(table, low, high, digits=40 + 20 * level)
        if decided:
            return radius
    raise AssertionError


def _among_rare(
    table: Table, low: Fraction, high: Fraction, digits: int
) -> tuple[float | None, bool]:
    """The component, and whether the whole interval leads to it."""
    with localcontext() as context:
        context.prec = digits
        # Each sum below is right to fewer than 2^23 roundings of its last digit.
        slack = Decimal(10) ** (10 - digits)
        least = Decimal(low.numerator) / low.denominator * (1 - slack)
        most = Decimal(high.numerator) / high.denominator * (1 + slack)
        passed = Decimal(0)
        for radius, log_weight in _rare_components(table):
            passed += Decimal(log_weight).exp() * 2**BITS
            if most <= passed * (1 - slack):
                return radius, True
            if least < passed * (1 + slack):
                return None, False
            if radius < table.L:
                rest = beyond(
                    table.epsilon, table.dimension, table.step, radius, log_weight
                )
                # `beyond` is an upper bound in float64, good to far better than 2^-10.
                tail = Decimal(rest) * Decimal(2**BITS) * (1 + Decimal(2) ** -10)
                if least >= (passed + tail) * (1 + slack):
                    return None, True
        return None, True


def _rare_components(table: Table) -> Iterator[tuple[float, float]]:
    """The cube, if it is rare, then the rare shells from the inside out."""
    if table.rare_cube is not None:
        yield math.inf, table.rare_cube
    radius = table.first_rare
    while radius is not None and radius <= table.L:
        yield radius, table.log_weight(radius)
        radius += table.step


def cube_indices(
    table: Table, grid: float, words: RowWords, columns: Sequence[int]
) -> list[int]:
    """Grid indices of a uniform point of the cube, in these columns."""
    return [_cube_index(table, grid, words, 2 + i) for i in columns]


def _cube_index(table: Table, grid: float, words: RowWords, word: int) -> int:
    L, g = Fraction(table.L), Fraction(grid)
    for level in count(0):
        place, ends = words.extended(word, level), 1 << (64 * level + 64)
        low = (-L + (1 + 2 * L) * Fraction(place, ends)) / g
        high = (-L + (1 + 2 * L) * Fraction(place + 1, ends)) / g
        index = math.floor(low + _HALF)
        # The point lies strictly between its ends.
        if high <= index + _HALF:
            return index
    raise AssertionError


def ball_indices(
    table: Table, radius: float, point: Sequence[float], grid: float, words: RowWords
) -> list[int] | None:
    """Grid indices of a report from the shell of this outer radius; None: rejected.

    The first d of d + 2 coordinates of a uniform point on a sphere are uniform in the
    ball, and z / |z| is uniform on the sphere for independent normal z.
    """
    d = len(point)
    step = Fraction(table.epsilon) * Fraction(table.step)
    reach = Fraction(table.epsilon) * Fraction(radius)
    scale = Fraction(radius) / Fraction(grid)
    for level in count(1):
        signs, z = _normals(words, d + 2, level)
        if z is None:
            continue
        squares = [(low * low, high * high) for low, high in z]
        inside = _sum(squares[:d])
        rest = _sum(squares[d:])
        n = _root((inside[0] + rest[0], inside[1] + rest[1]))
        n_d = _root(inside)
        gap = (
            reach * Fraction(rest[0], n[1] * (n[1] + n_d[1])),
            reach * Fraction(rest[1], n[0] * (n[0] + n_d[0])),
        )
        accepted = _accepted(gap, step, words.extended(1, level), level)
        if accepted is None:
            continue
        if not accepted:
            return None
        indices: list[int] = []
        for v, sign, (low, high) in zip(point, signs, z, strict=False):
            moved = scale * Fraction(low, n[1]), scale * Fraction(high, n[0])
            ends = (-moved[1], -moved[0]) if sign else moved
            at = Fraction(v) / Fraction(grid) + _HALF
            first, last = (math.floor(at + end) for end in ends)
            if first != last:
                break
            indices.append(first)
        if len(indices) == d:
            return indices
    raise AssertionError


def _normals(
    words: RowWords, wanted: int, level: int
) -> tuple[list[bool], list[tuple[int, int]] | None]:
    """Signs and enclosures of |z|; None if a tail probability may still be 0."""
    signs: list[bool] = []
    z: list[tuple[int, int]] = []
    bits = 64 * (level + 1)
    for i in range(wanted):
        value = words.extended(2 + i, level)
        sign = value >> (bits - 1)
        bounds = normal_bounds(value - (sign << (bits - 1)), bits)
        if bounds is None:
            return signs, None
        signs.append(bool(sign))
        z.append(bounds)
    return signs, z


def normal_bounds(k: int, bits: int) -> tuple[int, int] | None:
    """Integers around 2^(bits + 16) Q^-1(p), for every p in (k, k + 1) / 2^bits.

    A guess, improved by Newton's rule, is widened until the rigorous `tail_bounds`
    confirm it; so the guess decides the width of the enclosure alone.

    >>> low, high = normal_bounds(2**126, 128)
    >>> low / 2**144, (high - low) / 2**144 < 2.0**-125
    (0.674489750, True)
    """
    if k == 0:
        return None
    unit = bits + _GUARD
    float_p = (2 * k + 1) / (2 << bits)
    guess = -NormalDist().inv_cdf(float_p) if float_p > 1e-300 else 37.0
    x = max(1, int(guess * 2.0**53) << (unit - 53))
    wanted = (2 * k + 1) << 63
    slope = Fraction(1)
    for _ in range(100):
        inverse = math.sqrt(2 * math.pi) * math.exp(min(700.0, guess * guess / 2))
        slope = Fraction(inverse)
        low, high = tail_bounds(x, 1 << unit, bits + 64)
        # In units of 2^-unit: (Q(x) - p) 2^-(bits + 64) times dx/dp, 2^(unit) of them.
        move = math.floor(((low + high) // 2 - wanted) * slope / 2 ** (64 - _GUARD))
        x = max(1, x + move)
        guess = x / 2.0**unit
        if abs(move) < 2**_GUARD:
            break
    width = 1 + math.ceil(slope * 2 ** (_GUARD - 1) * Fraction(9, 8))
    near, far = (k + 1) << 64, k << 64
    below = x - width
    while below > 0 and tail_bounds(below, 1 << unit, bits + 64)[0] < near:
        below -= width
    above = x + width
    while tail_bounds(above, 1 << unit, bits + 64)[1] > far:
        above += width
    return max(0, below), above


def _sum(ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _root(ends: tuple[int, int]) -> tuple[int, int]:
    return math.isqrt(ends[0]), math.isqrt(ends[1]) + 1


def _accepted(
    gap: tuple[Fraction, Fraction], step: Fraction, place: int, level: int
) -> bool | None:
    """Whether u < (e^gap - 1) / (e^step - 1); None if that is still open."""
    if gap[0] >= step:
        return True
    bits = 64 * (level + 1)
    small = max(0, math.ceil(-math.log10(step)))
    with localcontext() as context:
        context.prec = bits // 3 + 30 + small
        # Every number below is at most e^2, and each operation right to one digit.
        slack = Decimal(10) ** (5 - context.prec)
        least = _expm1(gap[0]) - slack
        # Beyond 2 the answer cannot be no: e^2 - 1 exceeds e^step - 1.
        most = _expm1(min(gap[1], Fraction(2))) + slack
        whole = _expm1(step)
        u = Decimal(place) / Decimal(1 << bits)
        unknown = Decimal(1) / Decimal(1 << bits)
        if (u + unknown) * (whole + slack) + slack <= least:
            return True
        if u * (whole - slack) - slack >= most:
            return False
    return None


def _expm1(x: Fraction) -> Decimal:
    return (Decimal(x.numerator) / Decimal(x.denominator)).exp() - 1
