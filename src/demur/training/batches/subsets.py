"""Uniform integers, shuffles and subsets from a stream of bytes, exactly.

A word x of 32 uniform bits gives floor(x s / 2^32), a number below s, once the few
words whose low half falls short of 2^32 mod s are rejected (Lemire 2019): every result
then has the same number of words. Whether a word is rejected is independent of the
number that is accepted later, so a draw that ran out of words may start again.

A subset of k out of n is the first k steps of a Fisher-Yates shuffle: step i swaps
place i with a uniform place from i on. The cost is k, not n. Afterwards the swaps are
undone, last first, so that the next subset does not depend on this one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from demur.core.entropy import Stream

LARGEST_SIZE = 2**31 - 1
Indices = NDArray[Any]


def identity(size: int) -> NDArray[np.int32]:
    """The places 0 to size - 1, as `subset` wants them."""
    return np.arange(size, dtype=np.int32)


def subset(places: NDArray[np.int32], count: int, stream: Stream) -> NDArray[np.int32]:
    """`count` of the entries of `places`, every subset equally likely.

    `places` is changed while this runs and is as before when it returns.
    """
    if count == len(places):
        return places.copy()
    chosen = np.empty(count, dtype=np.int32)
    swaps = np.empty(count, dtype=np.int32)
    while True:
        words = _words(stream, count, len(places))
        if _partial_shuffle(places, words, swaps, chosen, True):
            return chosen


def shuffle(places: NDArray[np.int32], stream: Stream) -> None:
    """All of `places` in a uniform order, in place."""
    move_subset_to_front(places, len(places), stream)


def move_subset_to_front(places: NDArray[np.int32], count: int, stream: Stream) -> None:
    """Rearrange `places` so that its first `count` entries are a uniform subset."""
    swaps, chosen = np.empty(count, np.int32), np.empty(count, np.int32)
    while True:
        words = _words(stream, count, len(places))
        if _partial_shuffle(places, words, swaps, chosen, False):
            return


def uniform_below(bound: int, count: int, stream: Stream) -> NDArray[np.int32]:
    """`count` independent uniform numbers from 0 to bound - 1."""
    if not 1 <= bound <= LARGEST_SIZE:
        raise ValueError(f"bound must be from 1 to 2^31 - 1; got {bound}")
    out = np.empty(count, dtype=np.int32)
    while True:
        if _below(_words(stream, count, bound), bound, out):
            return out


def _words(stream: Stream, count: int, bound: int) -> NDArray[np.uint32]:
    """Enough words for `count` numbers below `bound`, but for a chance of 1e-20."""
    accepted = 1.0 - bound / 2.0**32
    wanted = count / accepted
    spare = 10.0 * math.sqrt(wanted * (1.0 - accepted)) + 32.0
    return np.frombuffer(stream.read(4 * math.ceil(wanted + spare)), dtype="<u4")


@njit(cache=True, nogil=True)
def _partial_shuffle(
    places: NDArray[np.int32],
    words: NDArray[np.uint32],
    swaps: NDArray[np.int32],
    chosen: NDArray[np.int32],
    undo: bool,
) -> bool:
    size, count = len(places), len(chosen)
    at = 0
    done = 0
    for i in range(count):
        bound = np.uint64(size - i)
        offset = np.int64(-1)
        while at < len(words):
            product = np.uint64(words[at]) * bound
            at += 1
            low = product & np.uint64(0xFFFFFFFF)
            if low >= bound or low >= np.uint64(4294967296) % bound:
                offset = np.int64(product >> np.uint64(32))
                break
        if offset < 0:
            break
        j = i + offset
        places[i], places[j] = places[j], places[i]
        swaps[i] = j
        chosen[i] = places[i]
        done += 1
    if undo or done < count:
        for i in range(done - 1, -1, -1):
            j = swaps[i]
            places[i], places[j] = places[j], places[i]
    return done == count


@njit(cache=True, nogil=True)
def _below(words: NDArray[np.uint32], bound: int, out: NDArray[np.int32]) -> bool:
    size = np.uint64(bound)
    least = np.uint64(4294967296) % size
    at = 0
    for i in range(len(out)):
        accepted = False
        while at < len(words) and not accepted:
            product = np.uint64(words[at]) * size
            at += 1
            if (product & np.uint64(0xFFFFFFFF)) >= least:
                out[i] = np.int32(product >> np.uint64(32))
                accepted = True
        if not accepted:
            return False
    return True
