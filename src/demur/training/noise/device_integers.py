"""Integers round(scale * N(0, 1)) where the gradients are: the host's sampler in JAX.

Coordinate i takes words 2 (i mod 8) and 2 (i mod 8) + 1 of ChaCha20 block i // 8: the
bytes that `mechanisms.sampling.rounded_gaussian` reads from a `Stream` under the same
key. The quantile is the certified table of `normal_quantile`, by the same operations in
float64; its argument needs IEEE additions, products and conversions, each rounded to
nearest, or fused. So what is decided here is the integer that the host returns, bit for
bit, and the law is the host's, with its statistical distance.

Open coordinates (`rounded_gaussian`: 64 bits and float64 do not settle the rounding)
are found by rows of 1,024. The host draws them again from the same words, and compares
in integer arithmetic, with further words of the cipher if need be: under the same key
and the coordinate's number plus one as nonce, so that no block occurs twice (the words
above have nonce zero). That is a function of the key alone: numbers of rows go to the
host, and nothing of the gradients does. Which are open says nothing about what the
noise is added to.

On one device a program asks the host when it meets an open row. Over a mesh the open
rows are looked for first (`open_rows`) and handed in (`drawn_again`): devices that wait
for each other must not wait for a thread of the host, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from demur.mechanisms.sampling.normal_quantile import ERROR, SLOPE, TABLE
from demur.mechanisms.sampling.rounded_gaussian import rounded_gaussian, settled
from demur.training.clipping.rounding import in_float64
from demur.training.noise import chacha

PER_BLOCK = 8  # coordinates
ROW = 1024
_ROWS_AT_ONCE = 64
_KEY_SHIFT = 52 - 7
_FIRST_KEY = (1023 + 18) << 7
_LOW_BITS = 2**63 - 1


def rows_for(count: int, shares: int = 1) -> int:
    """How many rows hold `count` coordinates, a multiple of `shares`."""
    rows = -(-count // ROW)
    return -(-rows // shares) * shares


@in_float64
def integers(
    key: Any, rows: int, scale: float, sharding: Any = None, again: Any = None
) -> Any:
    """round(scale * N) for `rows` * 1,024 coordinates, as float64 [rows, 1024].

    `key` has 8 words. With `sharding` each device draws its own rows. `again` are the
    rows that `drawn_again` gave; without them the host is asked.
    """
    drawn, undecided = rounded_rows(key, _numbers(rows, sharding), scale)
    if again is not None:
        numbers, found = again
        values = jax.lax.bitcast_convert_type(found, jnp.float64)
        return drawn.at[numbers].set(values, mode="drop")

    def replaced(drawn: Any, some: Any, exact: Any) -> Any:
        return drawn.at[some].set(exact, mode="drop")

    return settle_rows(key, drawn, jnp.any(undecided, axis=1), scale, replaced)


def settle_rows(
    key: Any,
    values: Any,
    opened: Any,
    scale: float,
    replace: Callable[[Any, Any, Any], Any],
) -> Any:
    """`values` with `replace(values, numbers, integers)` done for all open rows.

    The integers [64, 1024] are exact; numbers past the last row fill up.
    """
    rows = len(opened)

    def settle(state: tuple[Any, Any]) -> tuple[Any, Any]:
        values, opened = state
        (some,) = jnp.nonzero(opened, size=_ROWS_AT_ONCE, fill_value=rows)
        some = some.astype(jnp.int32)
        drawn, flags = rounded_rows(key, some.astype(jnp.uint32), scale)
        flags = flags & (some < rows)[:, None]
        # As 32-bit words: a callback's thread knows nothing of `enable_x64`.
        found = jax.pure_callback(
            partial(_settled_on_host, scale=scale),
            jax.ShapeDtypeStruct((_ROWS_AT_ONCE, ROW, 2), jnp.uint32),
            key,
            some,
            flags,
        )
        exact = jax.lax.bitcast_convert_type(found, jnp.float64)
        values = replace(values, some, jnp.where(flags, exact, drawn))
        return values, opened.at[some].set(False, mode="drop")

    values, _ = jax.lax.while_loop(
        lambda state: jnp.any(state[1]), settle, (values, opened)
    )
    return values


def rounded_rows(key: Any, numbers: Any, scale: float) -> tuple[Any, Any]:
    """The integers of these rows, and which are undecided; both [rows, 1024]."""
    return _rounded(_words(key, numbers), scale)


@in_float64
def open_rows(key: Any, rows: int, scale: float, sharding: Any = None) -> Any:
    """Which rows have an open coordinate, as booleans."""
    _, undecided = rounded_rows(key, _numbers(rows, sharding), scale)
    return jnp.any(undecided, axis=1)


def drawn_again(
    key: NDArray[np.uint32], opened: NDArray[np.bool_], scale: float
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Numbers of the open rows, and the rows as the host draws them, as 32-bit words.

    There are as many as a program takes at once, or a power of two times that; numbers
    past the last row fill up.
    """
    (some,) = np.flatnonzero(opened)[None]
    room = _ROWS_AT_ONCE
    while room < len(some):
        room *= 2
    numbers = np.full(room, len(opened), np.int32)
    numbers[: len(some)] = some
    return numbers, _rows_on_host(key, numbers, rows=len(opened), scale=scale)


def check_rows(rows: int) -> None:
    """Refuse more coordinates than one key stream has words for."""
    if rows * ROW > PER_BLOCK * 2**32:
        raise ValueError(
            f"{rows * ROW} coordinates are more than one key stream has words for (2^35"
            " coordinates). Nothing was drawn."
        )


def _numbers(rows: int, sharding: Any) -> Any:
    check_rows(rows)
    numbers = jax.lax.iota(jnp.uint32, rows)
    if sharding is None:
        return numbers
    return jax.lax.with_sharding_constraint(numbers, sharding)


def _words(key: Any, rows: Any) -> Any:
    """The 64-bit words of whole rows, uint64 [rows, 1024]."""
    each = ROW // PER_BLOCK
    place = jax.lax.broadcasted_iota(jnp.uint32, (rows.shape[0], each), 1)
    counter = rows[:, None] * np.uint32(each) + place
    # Behind the barrier: else the cipher is computed again for each of its words.
    halves = jax.lax.optimization_barrier(chacha.blocks(key, counter))
    pairs = [
        halves[2 * i].astype(jnp.uint64)
        | (halves[2 * i + 1].astype(jnp.uint64) << np.uint64(32))
        for i in range(PER_BLOCK)
    ]
    return jnp.stack(pairs, axis=-1).reshape(rows.shape[0], ROW)


def _rounded(words: Any, scale: float) -> tuple[Any, Any]:
    """What `_enclose` and `_round` of the host compute, and which are undecided."""
    k = (words & np.uint64(_LOW_BITS)).astype(jnp.int64)
    near = (k & ~np.int64(2047)).astype(jnp.float64)
    at = jax.lax.bitcast_convert_type(near, jnp.int64) >> _KEY_SHIFT
    inside = at >= _FIRST_KEY
    at = jnp.maximum(at, np.int64(_FIRST_KEY))
    shift = (at >> 7) - 1023 - 7  # j - 7
    width = jnp.left_shift(jnp.ones_like(at), shift)
    cell = jax.lax.bitcast_convert_type((1023 - shift) << 52, jnp.float64)  # 2^(7-j)
    v = (2 * (k & (width - 1)) + 1 - width).astype(jnp.float64) * cell
    at = (at - _FIRST_KEY).astype(jnp.int32)
    table = jnp.asarray(TABLE)
    c = [table[:, column][at] for column in range(8)]
    q = c[5] + v * (c[6] + v * c[7])
    low = c[1] + v * (c[2] + v * (c[3] + v * (c[4] + v * q)))
    error = jnp.where(inside, ERROR + SLOPE * jnp.abs(c[2]) * cell, jnp.inf)
    # The upper 26 bits of the scale by mask, as on the host.
    bits = np.float64(scale).view(np.int64) & ~np.int64(0x7FF_FFFF)
    first = bits.view(np.float64)
    rest = scale - first
    whole = jnp.rint(first * c[0])
    f = (first * c[0] - whole) + (rest * c[0] + scale * low)
    nearest = jnp.rint(f)
    e = scale * (error + 2.0**-59) + 2.0**-52
    undecided = ~(jnp.abs(f - nearest) < 0.5 - e)
    magnitude = whole + nearest
    negative = (words >> np.uint64(63)) != 0
    return jnp.where(negative, -magnitude, magnitude), undecided


class _Words:
    """The key stream from one counter on, under one nonce."""

    def __init__(self, key: bytes, counter: int, nonce: int) -> None:
        start = counter.to_bytes(4, "little") + nonce.to_bytes(12, "little")
        self._cipher = Cipher(algorithms.ChaCha20(key, start), None).encryptor()

    def read(self, count: int, /) -> bytes:
        return self._cipher.update(bytes(count))


def _settled_on_host(key: Any, numbers: Any, flags: Any, *, scale: float) -> Any:
    """The flagged coordinates of these rows; zero elsewhere."""
    secret = np.asarray(key).astype("<u4").tobytes()
    places, found = np.asarray(numbers), np.zeros(np.shape(flags))
    for row, column in np.argwhere(np.asarray(flags)).tolist():
        coordinate = int(places[row]) * ROW + column
        block, inside = divmod(coordinate, PER_BLOCK)
        words = _Words(secret, block, 0).read(8 * PER_BLOCK)[8 * inside :][:8]
        found[row, column] = settled(
            int.from_bytes(words, "little"),
            scale,
            partial(further_words, secret, 0, coordinate),
        )
    return found.view(np.uint32).reshape(*found.shape, 2)


def _rows_on_host(key: Any, numbers: Any, *, rows: int, scale: float) -> Any:
    """Whole rows, every coordinate settled; zero for numbers past the last row."""
    secret = np.asarray(key).astype("<u4").tobytes()
    found = np.zeros((len(numbers), ROW))
    for place, number in enumerate(np.asarray(numbers).tolist()):
        if number < rows:
            first = _Words(secret, number * (ROW // PER_BLOCK), 0)
            found[place] = rounded_gaussian(
                ROW, scale, first, partial(further_words, secret, number * ROW)
            )
    return found.view(np.uint32).reshape(len(numbers), ROW, 2)


def further_words(key: bytes, start: int, place: int) -> _Words:
    """Words for coordinate `start` + `place`, behind its first."""
    return _Words(key, 0, start + place + 1)
