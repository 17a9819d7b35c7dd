"""One random stream for each row: ChaCha20 (RFC 8439) under (entry key, row id).

    nonce   = purpose (4 bytes) | row id (8 bytes), little-endian
    counter = which 64 bytes of the row's stream

A word of a row is then a function of the key, the row id and its place alone. Neither
order, batches, threads nor a retry can change it, and two rows never share a byte: that
would take the same nonce and the same counter. The stream is random access, so a row
that rejects a draw takes its next words without disturbing any other row.

Purpose 0 holds the words that are always read. A word whose 64 bits do not settle a
comparison is *extended*: its further bits lie under purposes 1, 2, ..., one block of
512 bits for each word and purpose.

The generator of `demur.core.entropy` is the same cipher; here it is written for numba
because every row has a nonce of its own, and a library call for each would cost more
than the bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from demur.core import memory_dumps

KEY_BYTES = 32
WORDS_PER_BLOCK = 8
_LANES = 64  # blocks side by side: enough for the compiler to use vector units
_LAST_BLOCK = 2**32 - 1
_CHILDREN = 2**32 - 1  # a purpose that further bits would reach after 2^41 of them
_U = np.uint32


class RowStreams:
    """The streams of all rows under one 256-bit key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes; got {len(key)}")
        memory_dumps.switch_off()  # in a task of Spark there is no other key
        self._key = np.frombuffer(key, dtype="<u4").astype(np.uint32)

    def words(
        self, row_ids: NDArray[np.uint64], first: int, count: int
    ) -> NDArray[np.uint64]:
        """Words `first` to `first + count` of each row; `first` starts a block."""
        block, inside = divmod(first, WORDS_PER_BLOCK)
        if inside:
            raise ValueError(f"first must be a multiple of 8; got {first}")
        out = np.empty((len(row_ids), count), dtype=np.uint64)
        self._fill(row_ids, 0, block, out)
        return out

    def further_bits(self, row_id: int, word: int, level: int) -> int:
        """The 64 bits that follow a word's own, for level 1, 2, ... ."""
        purpose, place = divmod(level - 1, WORDS_PER_BLOCK)
        out = np.empty((1, WORDS_PER_BLOCK), dtype=np.uint64)
        self._fill(np.array([row_id], dtype=np.uint64), 1 + purpose, word, out)
        return int(out[0, place])

    def child(self, index: int) -> RowStreams:
        """Streams under a key of their own, for one of several noises of a row.

        The key is block `index` under the last purpose, which no word of a row uses.
        """
        key = np.empty((1, KEY_BYTES // 8), dtype=np.uint64)
        self._fill(np.zeros(1, dtype=np.uint64), _CHILDREN, index, key)
        return RowStreams(key.astype("<u8").tobytes())

    def _fill(
        self,
        row_ids: NDArray[np.uint64],
        purpose: int,
        block: int,
        out: NDArray[np.uint64],
    ) -> None:
        last = block + -(-out.shape[1] // WORDS_PER_BLOCK) - 1
        if last > _LAST_BLOCK or purpose > _LAST_BLOCK:
            # 2^38 bytes for one row: no run gets here, and a wrap would repeat noise.
            raise OverflowError("a row's stream ends after 2^38 bytes")
        # Read-only here whatever the caller's are: numba compiles a second kernel, for
        # seconds, where an argument may be written to.
        ids = np.ascontiguousarray(row_ids, dtype=np.uint64).view()
        ids.flags.writeable = False
        _keystream(self._key, ids, np.uint32(purpose), np.uint32(block), out)

    def __repr__(self) -> str:
        return "RowStreams(<secret>)"


def keystream_words(
    key: bytes, purpose: int, row_id: int, block: int, count: int
) -> NDArray[np.uint64]:
    """Words of one row from any block on, for tests against RFC 8439."""
    out = np.empty((1, count), dtype=np.uint64)
    ids = np.array([row_id], dtype=np.uint64)
    RowStreams(key)._fill(ids, purpose, block, out)
    return out[0]


# Everything the kernels need is in this file or an argument: numba's cache does not
# notice when a function in another file changes. numba widens uint32 + uint32 to 64
# bits, hence the casts; with them the loops over lanes become vector instructions.
@njit(cache=True, inline="always")
def _quarter(s: NDArray[np.uint32], ia: int, ib: int, ic: int, id: int) -> None:
    for lane in range(_LANES):
        a, b, c, d = s[ia, lane], s[ib, lane], s[ic, lane], s[id, lane]
        a = _U(a + b)
        d = _U(d ^ a)
        d = _U(_U(d << _U(16)) | _U(d >> _U(16)))
        c = _U(c + d)
        b = _U(b ^ c)
        b = _U(_U(b << _U(12)) | _U(b >> _U(20)))
        a = _U(a + b)
        d = _U(d ^ a)
        d = _U(_U(d << _U(8)) | _U(d >> _U(24)))
        c = _U(c + d)
        b = _U(b ^ c)
        b = _U(_U(b << _U(7)) | _U(b >> _U(25)))
        s[ia, lane], s[ib, lane], s[ic, lane], s[id, lane] = a, b, c, d


@njit(cache=True, nogil=True)
def _keystream(
    key: NDArray[np.uint32],
    row_ids: NDArray[np.uint64],
    purpose: np.uint32,
    first_block: np.uint32,
    out: NDArray[np.uint64],
) -> None:
    rows, count = out.shape
    blocks = (count + 7) // 8
    start = np.empty((16, _LANES), dtype=np.uint32)
    s = np.empty((16, _LANES), dtype=np.uint32)
    for lane in range(_LANES):
        start[0, lane] = _U(0x61707865)
        start[1, lane] = _U(0x3320646E)
        start[2, lane] = _U(0x79622D32)
        start[3, lane] = _U(0x6B206574)
        for i in range(8):
            start[4 + i, lane] = key[i]
        start[13, lane] = purpose
    for base in range(0, rows * blocks, _LANES):
        here = min(_LANES, rows * blocks - base)
        for lane in range(_LANES):
            # Idle lanes repeat the last block; nothing of theirs is written.
            row, block = divmod(base + min(lane, here - 1), blocks)
            start[12, lane] = _U(first_block + _U(block))
            start[14, lane] = _U(row_ids[row] & np.uint64(0xFFFFFFFF))
            start[15, lane] = _U(row_ids[row] >> np.uint64(32))
        for i in range(16):
            for lane in range(_LANES):
                s[i, lane] = start[i, lane]
        for _ in range(10):
            _quarter(s, 0, 4, 8, 12)
            _quarter(s, 1, 5, 9, 13)
            _quarter(s, 2, 6, 10, 14)
            _quarter(s, 3, 7, 11, 15)
            _quarter(s, 0, 5, 10, 15)
            _quarter(s, 1, 6, 11, 12)
            _quarter(s, 2, 7, 8, 13)
            _quarter(s, 3, 4, 9, 14)
        for i in range(16):
            for lane in range(_LANES):
                s[i, lane] = _U(s[i, lane] + start[i, lane])
        for lane in range(here):
            row, block = divmod(base + lane, blocks)
            for i in range(min(8, count - 8 * block)):
                low, high = s[2 * i, lane], s[2 * i + 1, lane]
                out[row, 8 * block + i] = np.uint64(low) | (
                    np.uint64(high) << np.uint64(32)
                )
