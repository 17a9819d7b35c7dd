"""z to C^-1 z, one step at a time, with the memory that each strategy needs.

    banded     x_t = (z_t - sum_(0<j<b) C[t, t-j] x_(t-j)) / C[t, t]
    buffered   x_t = z_t - sum_i w_i s_i,   s_i <- d_i s_i + x_t
    dense      row t of C^-1 times all z so far, drawn again from their keys

The ring of a banded strategy is never shifted: slot t mod (b - 1) is overwritten, in
place when the state is donated, so that a step reads b - 1 numbers and writes one for
each parameter. A dense strategy with few bands is streamed like a banded one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import NDArray

from demur.core.entropy import NoiseKey, OsEntropy, Stream
from demur.mechanisms.correlated import BandedToeplitz, Buffered, Dense, Strategy

_LONGEST_RING = 64  # outputs kept; a dense strategy with more bands keeps keys
_ROOT_2 = np.float32(np.sqrt(2.0))
_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
Memory = Any


class Streamed(NamedTuple):
    """The two halves of a strategy's recursion.

    `remember(leaves)` is the empty memory for leaves of these shapes;
    `advance(step, memory, keys, leaves)` is C^-1 z at this step, and the next memory.
    `by_element` says whether the memory holds numbers for each element, behind one
    leading axis, or keys.
    """

    remember: Callable[[list[Any]], Memory]
    advance: Callable[[Any, Memory, Any, list[Any]], tuple[list[Any], Memory]]
    by_element: bool = True


class Flat(NamedTuple):
    """A leaf of shape `whole` laid out flat over devices, with padding at its end."""

    whole: tuple[int, ...]
    shape: tuple[int]
    dtype: Any
    sharding: Any


def streamed(strategy: Strategy) -> Streamed:
    """The recursion of `strategy`."""
    if isinstance(strategy, Buffered):
        return _buffers(strategy)
    if isinstance(strategy, Dense) and strategy.bands - 1 > _LONGEST_RING:
        return _drawn_again(strategy)
    return _ring(strategy)


def step_keys(stream: Stream, leaves: int) -> NDArray[np.uint32]:
    """Fresh threefry keys for one step, one for each leaf: 8 bytes of the stream each.

    Two keys in a run of N are equal with probability below N^2 2^-65.
    """
    return np.frombuffer(stream.read(8 * leaves), dtype="<u4").reshape(leaves, 2)


def own_keys(leaves: int) -> Any:
    """Keys from the operating system, drawn when the step runs, also under `jit`."""

    def draw() -> NDArray[np.uint32]:
        fresh = NoiseKey.free(OsEntropy())
        return step_keys(fresh.stream("threefry"), leaves)

    return io_callback(draw, jax.ShapeDtypeStruct((leaves, 2), jnp.uint32))


def normals(keys: Any, leaves: list[Any]) -> list[Any]:
    """Standard normals for each leaf, from its own key."""
    return [_normal(keys[i], leaf).astype(wide(leaf)) for i, leaf in enumerate(leaves)]


def _normal(key: Any, leaf: Any) -> Any:
    if not isinstance(leaf, Flat):
        return standard_normal(key, leaf.shape)
    # Said here, where the numbers arise: each device then draws its own share alone.
    drawn = flat_normal(key, leaf.whole, leaf.shape[0])
    return jax.lax.with_sharding_constraint(drawn, leaf.sharding)


@partial(jax.jit, static_argnums=1, inline=True)
def standard_normal(key: Any, shape: tuple[int, ...]) -> Any:
    """float32 normals, each a function of its position and of a threefry key.

    A number is sqrt(2) erfinv((m + 1/2) 2^-23), m the upper 24 bits of a word, signed:
    exact in float32 up to erfinv, symmetric, and at most 5.42 in size. Counters are
    element positions, so that shards on different devices draw different numbers and a
    sharded array is the same as a whole one. Each number has a block of its own: half
    the words go unused, but nothing is moved, and the whole is one fused loop.
    """
    high = low = jnp.zeros(shape, jnp.uint32)
    split = len(shape) > 1
    if split:
        high = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    stride = 1
    for axis in reversed(range(split, len(shape))):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        low, stride = low + place * np.uint32(stride), stride * shape[axis]
    if stride > 2**32:
        raise ValueError(
            f"a leaf of shape {shape} has more numbers along its later axes than one"
            " counter word can tell apart; split it"
        )
    return _at(key, high, low)


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def flat_normal(key: Any, shape: tuple[int, ...], size: int) -> Any:
    """`standard_normal(key, shape)`, flat, and other numbers behind it up to `size`.

    The counters are those of the same elements, so the numbers are the same bits.
    """
    if size > 2**32:
        raise ValueError(
            f"a leaf of shape {shape} has more numbers than one counter word can tell"
            " apart; split it to train on a mesh"
        )
    place = jax.lax.iota(jnp.uint32, size)
    if len(shape) < 2:
        return _at(key, jnp.zeros(size, jnp.uint32), place)
    stride = np.uint32(max(1, math.prod(shape[1:])))
    high = place // stride
    return _at(key, high, place - high * stride)


def _at(key: Any, high: Any, low: Any) -> Any:
    words = threefry(key[0], key[1], high, low)[0]
    signed = jax.lax.bitcast_convert_type(words, jnp.int32) >> 8
    return _ROOT_2 * jax.lax.erf_inv((signed.astype(jnp.float32) + 0.5) * 2.0**-23)


def threefry(key0: Any, key1: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), written out.

    JAX's own primitive is a loop over whole arrays on a CPU: it moves them through
    memory five times, cannot be fused with what follows, and compiles slowly.
    """
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for turn in _TURNS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def wide(leaf: Any) -> Any:
    """float32, or what the leaf has if that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _ring(strategy: Strategy) -> Streamed:
    past = strategy.bands - 1
    row = _row(strategy)

    def remember(leaves: list[Any]) -> Memory:
        return [jnp.zeros((past, *leaf.shape), wide(leaf)) for leaf in leaves]

    def advance(
        step: Any, memory: Memory, keys: Any, leaves: list[Any]
    ) -> tuple[list[Any], Memory]:
        drawn = normals(keys, leaves)
        first, rest = row(step)
        if not past:
            return [z / first.astype(z.dtype) for z in drawn], memory
        # Slot s holds the output of the last step t - j that is s modulo `past`.
        slots = jnp.arange(past)
        behind = jnp.mod(step - 1 - slots, past)
        weights, slot = rest[behind], jnp.mod(step, past)
        outputs, rings = [], []
        for z, ring in zip(drawn, memory, strict=True):
            seen = jnp.einsum(
                "j,j...->...",
                weights.astype(z.dtype),
                ring,
                precision=jax.lax.Precision.HIGHEST,
            )
            x = (z - seen) / first.astype(z.dtype)
            ring = ring.at[slot].set(x)
            rings.append(ring)
            # Read back: two uses of x itself would be two fused loops, and the
            # normals would be drawn in both.
            outputs.append(ring[slot])
        return outputs, rings

    return Streamed(remember, advance)


def _row(strategy: Strategy) -> Callable[[Any], tuple[Any, Any]]:
    """step -> C[t, t] and C[t, t-1], ..., C[t, t-b+1] (anything before step 0)."""
    bands = strategy.bands
    if isinstance(strategy, BandedToeplitz):
        coefs = jnp.asarray(np.asarray(strategy.coefs), jnp.float32)
        if not strategy.column_normalize:
            return lambda step: (coefs[0], coefs[1:])
        scales = jnp.asarray(strategy.output_scales(), jnp.float32)

        def normalised(step: Any) -> tuple[Any, Any]:
            columns = jnp.maximum(step - jnp.arange(bands), 0)
            divided = coefs / scales[columns]
            return divided[0], divided[1:]

        return normalised
    matrix = strategy.matrix()
    steps = np.arange(len(matrix))[:, None]
    columns = steps - np.arange(bands)
    entries = np.where(columns >= 0, matrix[steps, np.maximum(columns, 0)], 0.0)
    table = jnp.asarray(entries, jnp.float32)
    return lambda step: (table[step, 0], table[step, 1:])


def _buffers(strategy: Buffered) -> Streamed:
    decays = jnp.asarray(np.asarray(strategy.decays), jnp.float32)
    scales = jnp.asarray(np.asarray(strategy.scales), jnp.float32)

    def remember(leaves: list[Any]) -> Memory:
        return [jnp.zeros((len(decays), *leaf.shape), wide(leaf)) for leaf in leaves]

    def advance(
        step: Any, memory: Memory, keys: Any, leaves: list[Any]
    ) -> tuple[list[Any], Memory]:
        del step
        outputs, kept = [], []
        for z, buffers in zip(normals(keys, leaves), memory, strict=True):
            x = z - jnp.einsum(
                "j,j...->...",
                scales.astype(z.dtype),
                buffers,
                precision=jax.lax.Precision.HIGHEST,
            )
            shape = (-1,) + (1,) * z.ndim
            outputs.append(x)
            kept.append(buffers * decays.astype(z.dtype).reshape(shape) + x)
        return outputs, kept

    return Streamed(remember, advance)


def _drawn_again(strategy: Dense) -> Streamed:
    """All past z from their keys, times row t of C^-1: no memory, more drawing."""
    size = strategy.iterations
    inverse = np.linalg.solve(strategy.matrix(), np.eye(size))
    table = jnp.asarray(np.tril(inverse), jnp.float32)

    def remember(leaves: list[Any]) -> Memory:
        return jnp.zeros((size, len(leaves), 2), jnp.uint32)

    def advance(
        step: Any, memory: Memory, keys: Any, leaves: list[Any]
    ) -> tuple[list[Any], Memory]:
        here = jnp.minimum(step, size - 1)
        memory = memory.at[here].set(keys)

        def add(s: Any, total: list[Any]) -> list[Any]:
            drawn = normals(memory[s], leaves)
            weight = table[here, s]
            return [
                x + weight.astype(z.dtype) * z
                for x, z in zip(total, drawn, strict=True)
            ]

        start = [jnp.zeros(leaf.shape, wide(leaf)) for leaf in leaves]
        return jax.lax.fori_loop(0, here + 1, add, start), memory

    return Streamed(remember, advance, by_element=False)
