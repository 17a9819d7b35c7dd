"""One fingerprint of rows for all that read them in parts: heads, files and Spark.

A row is folded, word after word, into two 64-bit lanes; a step is a bijection of the
lane, and for a given lane of the word it takes in. The rows' lanes are added modulo
2^64. So the fingerprint does not depend on the order of rows, nor on how they are cut
into chunks or partitions; a change of one word of one row always changes it, and other
accidents go unnoticed once in 2^128. It does not protect against someone who composes
rows to collide. It is a function of exact data, and as private as they are.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
Lanes: TypeAlias = tuple[Words, Words]

_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_LANE = 2**64


def new_lanes(rows: int) -> Lanes:
    """The lanes of rows of which nothing was folded in yet."""
    return np.full(rows, _FIRST), np.full(rows, _SECOND)


def sum_of(lanes: Lanes) -> int:
    """The fingerprint of the rows of these lanes, whatever their order."""
    first, second = (int(lane.sum(dtype=np.uint64)) for lane in lanes)
    return first + second * _LANE


def joined(one: int, other: int) -> int:
    """The fingerprint of the rows of both."""
    first = (one % _LANE + other % _LANE) % _LANE
    second = (one // _LANE + other // _LANE) % _LANE
    return first + second * _LANE


def halves(fingerprint: int) -> tuple[int, int]:
    """The two lanes of a fingerprint."""
    return fingerprint % _LANE, fingerprint // _LANE


# Two 64-bit finalisers of the kind that MurmurHash3 and SplitMix64 end with: shifts and
# odd multipliers, so each is a bijection.
@njit(cache=True, nogil=True, inline="always")
def _steps(first: np.uint64, second: np.uint64, word: np.uint64) -> tuple:  # type: ignore[type-arg]
    a = first ^ word
    a = (a ^ (a >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    a = (a ^ (a >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    b = second ^ word
    b = (b ^ (b >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    b = (b ^ (b >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return a ^ (a >> np.uint64(33)), b ^ (b >> np.uint64(31))


@njit(cache=True, nogil=True)
def fold(words: Words, first: Words, second: Words) -> None:
    """Fold the next word of every row into its lanes."""
    for i in range(words.size):
        first[i], second[i] = _steps(first[i], second[i], words[i])


@njit(cache=True, nogil=True)
def fold_rows(words: Words, first: Words, second: Words) -> None:
    """Fold all words of every row (a matrix) into its lanes."""
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            first[i], second[i] = _steps(first[i], second[i], words[i, j])
