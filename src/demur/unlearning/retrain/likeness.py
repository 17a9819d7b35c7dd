"""Whether a sequence of numbers holds a copy of a record, and how surely.

Three comparisons, each with the probability of a chance hit:

*Runs.* A stretch of the record (a tile of 8 features, of 4 below 16 features, and the
first 32) equals a window of the sequence up to a scale, a shift and reversal. A window
must agree to about 3 digits (1 - r^2 <= 1e-5, r the correlation).
That alone is no evidence where one feature dwarfs the others, so evidence is collected
feature by feature, from the middle of the tile's values outwards: two values fix scale
and shift, each further one is predicted from them, and agreement of relative error
2^-b counts b bits (at most 40, and no more than its digits have). For a value that is
independent of the prediction the probability of b bits is about 2^-b, so the sum over n
values has the tail of a Gamma(n) variable. A value equal to an earlier one counts 1
bit.

*Values.* At least a quarter of the record's values, and at least two, stand somewhere
in what the learner reaches, in any order and at any distance, as float64 or rounded to
float32. A number hits a given float64 by chance with probability 2^-48 or so, a float32
with 2^-22; the number of hits is binomial. Values of at most six digits do not count.

*The whole record*, unchanged, for records of few levels. A window with the same values
in random order equals it with the probability 1 / (number of different orders).

A hit counts if its probability, times the number of windows or numbers looked at, is
below 2^-20. Values and tiles that other records of the stream have too are not used: a
learner may hold live records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaincc

from demur.unlearning.models.base import Array

SURE = 20.0  # bits: a chance hit in 2^-20 of all searches of a record
_AGREES = 1e-5  # 1 - r^2
_MOST_BITS = 40.0
_CHUNK = 2**15
_CHANCE_64, _CHANCE_32 = 2.0**-48, 2.0**-22
_LONG = 32  # features
_DIGITS = 6  # a value of no more is nobody's own


@dataclass(frozen=True)
class Likeness:
    """What a place shares with a record.

    `bits` is the evidence of the best run, not yet reduced by the number of windows;
    `length` is its number of features. `whole`: the record is there, unchanged.
    `exact` and `rounded` are the features whose values are there, as float64 and as
    float32.
    """

    bits: float = 0.0
    length: int = 0
    whole: bool = False
    exact: frozenset[int] = frozenset()
    rounded: frozenset[int] = frozenset()


class Wanted:
    """A record to look for, prepared once for all sequences."""

    def __init__(self, x: Array, others: Array) -> None:
        """`others` are rows that a learner may hold: the stream's other records."""
        self._x, rest = x, others.ravel()
        self._exact = _values(self._x, rest, np.float64)
        self._rounded = _values(self._x, rest, np.float32)
        tiles = _tiles(self._x)
        self._tested = max(2 * len(tiles), 1)  # for each window
        of_others = {
            which
            for which, _, bits in _runs(rest, tiles)
            if self._sure(bits, rest.size)
        }
        self._tiles = [t for i, t in enumerate(tiles) if i not in of_others]
        perfect = [float(_evidence(t[None], t)[0]) for t in self._tiles]
        self._most = max(perfect, default=0.0)
        self._order = _order_bits(self._x)
        if (others == x).all(axis=1).any():
            self._order = 0.0

    def searchable(self, numbers: int) -> bool:
        """Whether a perfect copy could be told from chance among so many numbers."""
        exact, rounded = map(frozenset, (self._exact.values(), self._rounded.values()))
        return self._sure(max(self._most, self._order), numbers) or self.values_found(
            exact, rounded, numbers
        )

    def in_places(self, numbers: Array, ends: NDArray[np.intp]) -> dict[int, Likeness]:
        """What each place shares with the record; places that share nothing are absent.

        Place i has the numbers from ends[i - 1] to ends[i]; NaN parts its sequences.
        """
        found: dict[int, Likeness] = {}

        def place_of(position: int) -> tuple[int, Likeness]:
            place = int(np.searchsorted(ends, position, side="right"))
            return place, found.get(place, Likeness())

        for which, position, bits in _runs(numbers, self._tiles):
            place, known = place_of(position)
            if bits > known.bits:
                length = len(self._tiles[which])
                found[place] = replace(known, bits=bits, length=length)
        for position, feature in _hits(numbers, self._exact):
            place, known = place_of(position)
            found[place] = replace(known, exact=known.exact | {feature})
        for position, feature in _hits(numbers, self._rounded):
            place, known = place_of(position)
            found[place] = replace(known, rounded=known.rounded | {feature})
        if self._order > SURE:
            for position in _whole(numbers, self._x):
                place, known = place_of(position)
                found[place] = replace(known, whole=True)
        return found

    def run_found(self, found: Likeness, numbers: int) -> bool:
        """Whether a run, or the whole record, is more than chance."""
        if found.whole and self._sure(self._order, numbers):
            return True
        return self._sure(found.bits, numbers)

    def values_found(
        self, exact: frozenset[int], rounded: frozenset[int], numbers: int
    ) -> bool:
        """Whether so many values are more than chance."""
        return _enough(len(exact), len(self._exact), numbers * _CHANCE_64) or _enough(
            len(rounded), len(self._rounded), numbers * _CHANCE_32
        )

    def _sure(self, bits: float, numbers: int) -> bool:
        return bits > SURE + math.log2(max(numbers, 1) * self._tested)


# -- runs ----------------------------------------------------------------------


def _tiles(x: Array) -> list[Array]:
    """The stretches to look for: any half of the record contains one.

    At most 8, with at least 4 different values each (two fix scale and shift), and a
    long one, for records of which each value says little: rounded copies, few digits.
    """
    if x.size < 4:
        return []
    length = 8 if x.size >= 16 else 4
    firsts = sorted({*range(0, x.size - length + 1, length), x.size - length})
    useful = [f for f in firsts if len(np.unique(x[f : f + length])) >= 4]
    at = np.linspace(0, len(useful) - 1, min(8, len(useful))).round().astype(int)
    tiles = [x[useful[i] :][:length] for i in at]
    if tiles and x.size > length:
        tiles.append(x[useful[0] :][:_LONG])
    return [tile for tile in tiles if np.isfinite(tile).all()]


def _runs(numbers: Array, tiles: Sequence[Array]) -> Iterator[tuple[int, int, float]]:
    """(tile, position, evidence) of the windows that agree with a tile.

    All tiles are tried by their first few features, forwards and backwards, in one
    pass; a long one is compared as a whole where these agree.
    """
    short = min((len(tile) for tile in tiles), default=0)
    if not short or numbers.size < short:
        return
    wanted = [(i, t) for i, tile in enumerate(tiles) for t in (tile, tile[::-1])]
    units = np.array([tile[:short] - tile[:short].mean() for _, tile in wanted])
    # A constant beginning says nothing and agrees with nothing.
    units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-300)
    least = [1.0 - (_AGREES if len(t) == short else 1e-3) for _, t in wanted]
    every = np.lib.stride_tricks.sliding_window_view(numbers, short)
    for begin in range(0, len(every), _CHUNK):
        agree = _correlated(every[begin : begin + _CHUNK], units) >= least
        for which in np.flatnonzero(agree.any(axis=0)):
            i, tile = wanted[which]
            at = begin + np.flatnonzero(agree[:, which])
            at = at[at + len(tile) <= numbers.size]
            windows = numbers[at[:, None] + np.arange(len(tile))]
            unit = tile - tile.mean()
            unit /= np.linalg.norm(unit)
            close = _correlated(windows, unit[None])[:, 0] >= 1.0 - _AGREES
            evidence = _evidence(windows[close], tile)
            for position, bits in zip(at[close], evidence, strict=True):
                if bits > SURE:
                    yield i, int(position), float(bits)


def _correlated(windows: Array, units: Array) -> Array:
    """r^2 of each window with each unit vector; NaN where a window has no spread."""
    with np.errstate(all="ignore"):
        centred = windows - windows.mean(axis=1, keepdims=True)
        squares = np.einsum("ij,ij->i", centred, centred)
        along = centred @ units.T
        squared: Array = along * along / squares[:, None]
    return squared


def _evidence(windows: Array, tile: Array) -> Array:
    """Bits for each window that it is the tile; see the module's docstring."""
    order = np.argsort(np.abs(tile - np.median(tile)), kind="stable")
    x, c = tile[order], windows[:, order]
    bits, ties, predicted = np.zeros(len(c)), 0, 0
    far = 0  # with the first value it fixes scale and shift
    known = {float(x[0]): 0}
    most = _most_bits(tile)
    with np.errstate(all="ignore"):
        for i in range(1, len(x)):
            same = known.get(float(x[i]))
            if same is not None:
                # A value that is not repeated where the tile repeats one is no copy.
                apart = np.abs(c[:, i] - c[:, same]) > 0.01 * np.ptp(c, axis=1)
                bits[apart] = -np.inf
                ties += 1
            elif far == 0:
                far = i
            else:
                slope = (c[:, far] - c[:, 0]) / (x[far] - x[0])
                error = np.abs(c[:, i] - c[:, 0] - slope * (x[i] - x[0]))
                ratio = np.abs(c[:, i] - c[:, 0]) / error
                gained = np.where(error > 0.0, np.log2(ratio), _MOST_BITS)
                bits += np.clip(np.nan_to_num(gained, nan=-5.0), -5.0, most)
                predicted += 1
                far = i
            known.setdefault(float(x[i]), i)
        nats = np.maximum(bits, 0.0) * math.log(2.0)
        tail = np.maximum(gammaincc(predicted, nats), 1e-300)
    return np.where(bits > 0.0, -np.log2(tail) + ties, 0.0)


def _most_bits(tile: Array) -> float:
    """How much one value can say: numbers of few digits agree exactly by chance."""
    spread = float(np.ptp(tile))
    for step in (*(10.0**-k for k in range(-3, 7)), *(2.0**-k for k in range(25))):
        index = tile / step
        if np.array_equal(np.rint(index), np.round(index, 9)):
            return min(_MOST_BITS, math.log2(spread / step) + 1.0)
    return _MOST_BITS


# -- values --------------------------------------------------------------------


def _values(x: Array, rest: Array, dtype: type[np.floating[Any]]) -> dict[float, int]:
    """The values that only this record has, with a feature that has each.

    Numbers of few bits or digits (whole, quarters, cents) are nobody's own.
    """
    with np.errstate(over="ignore"):
        mine = x.astype(dtype).astype(np.float64)
        few = mine == mine.astype(np.float16)
        few |= np.array([float(f"{v:.{_DIGITS}g}") == v for v in x])
        if dtype is np.float64:  # a float32's chance of a hit is larger
            few |= mine == mine.astype(np.float32)
        taken = np.isin(mine, rest.astype(dtype).astype(np.float64))
    usable = ~few & ~taken & np.isfinite(mine)
    return {float(mine[i]): int(i) for i in np.flatnonzero(usable)}


def _hits(numbers: Array, values: dict[float, int]) -> Iterator[tuple[int, int]]:
    """(position, feature) of the numbers that are values of the record."""
    if not values:
        return
    ordered = np.sort(np.array(list(values)))
    nearest = ordered[np.searchsorted(ordered, numbers).clip(max=len(ordered) - 1)]
    for position in np.flatnonzero(nearest == numbers):
        yield int(position), values[float(numbers[position])]


def _enough(found: int, of: int, chance: float) -> bool:
    """Whether `found` of `of` values are too many, each found with `chance`."""
    if found < max(2, math.ceil(of / 4)):
        return False
    return float(betainc(found, of - found + 1, min(1.0, chance))) < 2.0**-SURE


# -- the whole record ----------------------------------------------------------


def _order_bits(x: Array) -> float:
    """log2 of the number of different orders of the record's values."""
    _, times = np.unique(x, return_counts=True)
    lost = sum(math.lgamma(n + 1) for n in times)
    return (math.lgamma(x.size + 1) - lost) / math.log(2.0)


def _whole(numbers: Array, x: Array) -> Iterator[int]:
    """Where the record begins, forwards or backwards."""
    for wanted in (x, x[::-1]):
        at = np.arange(max(numbers.size - x.size + 1, 0))
        for i, value in enumerate(wanted):
            at = at[numbers[at + i] == value]
            if not at.size:
                break
        yield from map(int, at)
