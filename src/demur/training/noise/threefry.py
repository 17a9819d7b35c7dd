"""Threefry normals: float32 noise on the device, a function of a key and a position.

A step takes one fresh key for each leaf (`step_keys`, `own_keys`). Numbers are
addressed by element, so that shards on different devices draw different numbers and
together the same bits as one device.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import NDArray

from demur.core.entropy import NoiseKey, OsEntropy, Stream

STEP_NOISE = "step noise"  # the stream of a run's key that a step's keys come from
_ROOT_2 = np.float32(np.sqrt(2.0))
_SMALL = 2**17  # leaves up to here share one loop,
_ROW = 128  # in rows of as many numbers
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class FlatLeaf(NamedTuple):
    """A leaf of shape `whole`, flat over the devices, with padding at its end."""

    whole: tuple[int, ...]
    shape: tuple[int]
    dtype: Any
    sharding: Any


class PlacedLeaf(NamedTuple):
    """A leaf in its own shape, cut over the devices by `sharding`."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any


def step_keys(stream: Stream, leaves: int) -> NDArray[np.uint32]:
    """Fresh threefry keys for one step, one for each leaf: 8 bytes of the stream each.

    Two keys in a run of N are equal with probability below N^2 2^-65.
    """
    return np.frombuffer(stream.read(8 * leaves), dtype="<u4").reshape(leaves, 2)


def own_keys(leaves: int) -> Any:
    """Fresh keys of the operating system, drawn when the step runs, also in `jit`."""

    def draw() -> NDArray[np.uint32]:
        fresh = NoiseKey.free(OsEntropy())
        return step_keys(fresh.stream("threefry"), leaves)

    return io_callback(draw, jax.ShapeDtypeStruct((leaves, 2), jnp.uint32))


def keys_at(keys: Any, step: Any) -> Any:
    """The keys of one step, from keys that may be those of other steps too.

    A loop that hands the same array to every step would else add the same noise to all
    of them, and the difference of two noisy sums would be exact.
    """
    here = jnp.broadcast_to(jnp.asarray(step, jnp.uint32), keys.shape[:1])
    return jnp.stack(threefry(keys[:, 0], keys[:, 1], here, here), axis=1)


def normals(keys: Any, leaves: list[Any]) -> list[Any]:
    """Standard normals for each leaf, from its own key."""
    drawn: dict[int, Any] = {}
    small = [i for i, leaf in enumerate(leaves) if _is_small(leaf)]
    if len(small) > 1:
        shapes = tuple(leaves[i].shape for i in small)
        drawn.update(zip(small, _together(keys[np.array(small)], shapes), strict=True))
    return [
        (drawn[i] if i in drawn else _normal(keys[i], leaf)).astype(wide(leaf))
        for i, leaf in enumerate(leaves)
    ]


def _is_small(leaf: Any) -> bool:
    return (
        not isinstance(leaf, FlatLeaf | PlacedLeaf) and math.prod(leaf.shape) <= _SMALL
    )


@partial(jax.jit, static_argnums=1, inline=True)
def _together(keys: Any, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """`standard_normal` for each key and shape, by one loop over all the numbers.

    A network has dozens of small leaves, and the cipher takes 0.2 to 0.4 s to compile
    wherever it stands. The counters are those of the same elements, so the numbers are
    the same bits.
    """
    sizes = [math.prod(shape) for shape in shapes]
    rows = [-(-size // _ROW) for size in sizes]
    # Rows of equal length, each of one leaf: what differs between leaves is looked up
    # by row, and a few numbers at the end of each leaf's last row are dropped.
    leaf = np.repeat(np.arange(len(shapes)), rows)
    first = np.concatenate([[0], *(np.arange(count) for count in rows)])[1:] * _ROW
    # Along one axis, and for a number alone, the first counter word is 0.
    pairs = zip(shapes, sizes, strict=True)
    later = [size if len(s) < 2 else math.prod(s[1:]) for s, size in pairs]
    stride = np.maximum(1, later)[leaf].astype(np.uint32)[:, None]
    column = jax.lax.broadcasted_iota(jnp.uint32, (len(leaf), _ROW), 1)
    place = first.astype(np.uint32)[:, None] + column
    high = place // stride
    key = keys[leaf]
    flat = _at((key[:, :1], key[:, 1:]), high, place - high * stride)
    # Or a compiler draws it again for every leaf that is cut out of it.
    flat = jax.lax.optimization_barrier(flat)
    ends = np.cumsum(rows)
    return [
        flat[end - count : end].reshape(-1)[:size].reshape(shape)
        for end, count, size, shape in zip(ends, rows, sizes, shapes, strict=True)
    ]


def _normal(key: Any, leaf: Any) -> Any:
    if isinstance(leaf, PlacedLeaf):
        drawn = standard_normal(key, leaf.shape)
        return jax.lax.with_sharding_constraint(drawn, leaf.sharding)
    if not isinstance(leaf, FlatLeaf):
        return standard_normal(key, leaf.shape)
    # Constrained where the numbers arise, so that each device draws its share alone.
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
            f"a leaf of shape {shape} has more than 2^32 numbers along its later axes,"
            " more than one counter word can tell apart: split it. Nothing was drawn."
        )
    return _at(key, high, low)


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def flat_normal(key: Any, shape: tuple[int, ...], size: int) -> Any:
    """`standard_normal(key, shape)`, flat, and other numbers behind it up to `size`.

    The counters are those of the same elements, so the numbers are the same bits.
    """
    if size > 2**32:
        raise ValueError(
            f"a leaf of shape {shape} has more than 2^32 numbers, more than one counter"
            " word can tell apart: split it to train on a mesh. Nothing was drawn."
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
        for bits in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def wide(leaf: Any) -> Any:
    """float32, or what the leaf has if that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)
