"""Sealed arrays: exact numbers that cross `jit` and devices but take no arithmetic.

A clipped sum has to pass through everything that JAX does with a pytree: `jit`, `scan`,
`shard_map`, donation, sharding. Whatever passes there is also within reach of
`jax.tree.map`, and all of optax is `tree.map`. So the leaves are given a dtype that no
operation accepts. JAX has one kind of dtype that users can define, that of random keys:
such an array has the shape and the sharding of the numbers it holds, it can be moved,
cut, stacked and chosen from, and every operation that would compute with it is an error
at trace time: mostly a `TypeError` that names the dtype, else JAX's own ("Cannot call
abstract method ...", or a pytree structure error that names `ClippedSum`). Numbers are
stored as their bits; inside a compiled program sealing and opening cost nothing.

What is left to `tree.map` is to move entries about. `types.ClippedSum` remembers the
shapes it was made with, so nothing can be stacked, repeated or broadcast into another
shape on the way.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend import random as prng

from demur.training.clipping.rounding import in_float64, wide

# Seen by users: "multiply does not accept dtypes float32, key<...>".
_NAME = "clipped sum: add noise before any arithmetic"


def _no_key(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("a clipped sum is not a random key")


def _implementation(words: int) -> Any:
    return prng.define_prng_impl(
        key_shape=(words,),
        seed=_no_key,
        split=_no_key,
        random_bits=_no_key,
        fold_in=_no_key,
        name=f"{_NAME} ({32 * words} bits)",
        tag=_NAME,
    )


_WORDS = {jnp.dtype(jnp.float32): 1, jnp.dtype(jnp.float64): 2}
_SEALS = {number: _implementation(words) for number, words in _WORDS.items()}


@jax.custom_jvp
def _as_bits(array: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
    return bits[..., None] if array.dtype == jnp.float32 else bits


@_as_bits.defjvp
def _no_derivative(primals: Any, tangents: Any) -> NoReturn:
    raise TypeError(
        "a clipped sum has no derivative: differentiate the loss, or read `.value`,"
        " which gives up the guarantee"
    )


@partial(jax.jit, inline=True)
def _sealed(array: Any) -> Any:
    return jax.random.wrap_key_data(_as_bits(array), impl=_SEALS[array.dtype])


@partial(jax.jit, inline=True, static_argnums=1)
def _opened(leaf: Any, dtype: Any) -> Any:
    bits = jax.random.key_data(leaf)
    if dtype == jnp.float32:
        bits = bits[..., 0]
    return jax.lax.bitcast_convert_type(bits, dtype)


@in_float64
def seal(array: Any) -> Any:
    """The array, float32 or wider, with a dtype that takes no arithmetic."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.eval_shape(seal, array)
    array = jnp.asarray(array)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"a clipped sum holds real numbers; got {array.dtype}")
    return _sealed(array.astype(wide(array.dtype)))


def unsealed(leaf: Any) -> Any:
    """The numbers of a sealed array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(unsealed, leaf)
    dtype = number_dtype(leaf)
    if dtype is None:
        raise TypeError(f"not a sealed array: {type(leaf).__name__}")
    if dtype == jnp.float64:
        return in_float64(_opened)(leaf, dtype)
    return _opened(leaf, dtype)


def is_sealed(leaf: Any) -> bool:
    """Whether the leaf is such an array, or stands for one in a trace."""
    return number_dtype(leaf) is not None


def number_dtype(leaf: Any) -> Any:
    """The dtype of the numbers in a sealed array; None for anything else."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return None
    return _number_dtypes().get(dtype)


@cache
def _number_dtypes() -> dict[Any, Any]:
    def seal_of(number: Any) -> Any:
        bits = jax.ShapeDtypeStruct((_WORDS[number],), jnp.uint32)
        wrap = partial(jax.random.wrap_key_data, impl=_SEALS[number])
        return jax.eval_shape(wrap, bits)

    return {seal_of(number).dtype: number for number in _SEALS}
