"""Microbatches: a batch processed a few examples at a time, padding skipped.

Padding keeps the shape of a batch public while its size is secret. Padded rows have
weight zero; whole microbatches of padding are not run at all, because the
number of turns of the loop is computed from the data (and the shapes are not).
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from demur.training.clipping.rounding import in_float64
from demur.training.devices.varying_axes import as_varying


class ChunkSums(NamedTuple):
    """Sums over some examples, and outputs with one row for each of them."""

    sums: Any
    rows: Any


def batch_size(batch: Any) -> int:
    """The common length of all leaves along their first axis."""
    leaves = jax.tree.leaves(batch)
    if not leaves:
        raise ValueError("the batch arguments hold no arrays")
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if () in sizes:
        raise ValueError("a batch argument has no batch axis: it is a scalar")
    if len(sizes) > 1:
        lengths = sorted(size[0] for size in sizes)
        raise ValueError(
            f"batch arguments must have one batch size; got the sizes {lengths}"
        )
    return int(sizes.pop()[0])


def real_examples(rows: Any, is_padding_example: Any, num_real: Any) -> Any:
    """Which rows are real: one truth per row, or None when all are."""
    size = batch_size(rows)
    if is_padding_example is not None and num_real is not None:
        raise ValueError("give is_padding_example or num_real, not both")
    if num_real is not None:
        if isinstance(num_real, numbers.Integral) and not 0 <= int(num_real) <= size:
            raise ValueError(
                f"num_real must be between 0 and the {size} rows of the batch"
            )
        if jnp.shape(num_real) != () or not jnp.issubdtype(
            jnp.result_type(num_real), jnp.integer
        ):
            raise TypeError("num_real must be a whole number")
        return jnp.arange(size) < num_real
    if is_padding_example is None:
        return None
    if jnp.shape(is_padding_example) != (size,):
        raise ValueError(
            f"is_padding_example must have shape ({size},);"
            f" got {jnp.shape(is_padding_example)}"
        )
    if jnp.result_type(is_padding_example) != jnp.bool_:
        raise TypeError("is_padding_example must be an array of booleans")
    return ~jnp.asarray(is_padding_example)


def _blank(rows: Any, real: Any) -> Any:
    """Zero the outputs of padding, which are those of arbitrary rows."""
    if real is None:
        return rows

    def blank(leaf: Any) -> Any:
        return jnp.where(real.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(
        lambda leaf: (
            leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else blank(leaf)
        ),
        rows,
    )


def process(
    chunk: Callable[[Any, Any], ChunkSums], rows: Any, real: Any, size: int | None
) -> ChunkSums:
    """`chunk(rows, real)` over all rows, `size` at a time, up to the last real one."""
    count = batch_size(rows)
    if count == 0:
        return _nothing(chunk, rows)
    if size is None or count <= size and real is None:
        result = chunk(rows, real)
        return ChunkSums(result.sums, _blank(result.rows, real))
    turns = -(-count // size)
    last: Any = count
    if real is None:
        real = jnp.ones(count, bool)
    else:
        last = jnp.max(jnp.where(real, jnp.arange(1, count + 1), 0))
    # Rows that fill up the last microbatch repeat the last row, with weight zero.
    index = jnp.minimum(jnp.arange(turns * size), count - 1)
    if turns * size > count:
        rows = jax.tree.map(lambda leaf: leaf[index], rows)
        real = real[index] & (jnp.arange(turns * size) < count)

    def part(leaf: Any, turn: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(leaf, turn * size, size)

    def turn_of(turn: Any, so_far: ChunkSums) -> ChunkSums:
        some, flags = jax.tree.map(lambda leaf: part(leaf, turn), (rows, real))
        result = chunk(some, flags)
        sums = jax.tree.map(in_float64(jnp.add), so_far.sums, result.sums)
        written = jax.tree.map(
            lambda whole, piece: jax.lax.dynamic_update_slice_in_dim(
                whole, piece, turn * size, 0
            ),
            so_far.rows,
            _blank(result.rows, flags),
        )
        return ChunkSums(sums, written)

    first = jax.tree.map(lambda leaf: part(leaf, 0), (rows, real))
    shapes = jax.eval_shape(chunk, *first)
    start = ChunkSums(
        jax.tree.map(_zeros, shapes.sums),
        jax.tree.map(
            lambda leaf: jnp.zeros((turns * size, *leaf.shape[1:]), leaf.dtype),
            shapes.rows,
        ),
    )
    start = as_varying(start, like=rows)
    turns_needed = (last + size - 1) // size
    done = jax.lax.fori_loop(0, turns_needed, turn_of, start)
    return ChunkSums(done.sums, jax.tree.map(lambda leaf: leaf[:count], done.rows))


@in_float64
def _zeros(leaf: Any) -> Any:
    return jnp.zeros(leaf.shape, leaf.dtype)


def _nothing(chunk: Callable[[Any, Any], ChunkSums], rows: Any) -> ChunkSums:
    """The result for an empty batch: zero sums, no rows."""
    single = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), rows
    )
    shapes = jax.eval_shape(lambda some: chunk(some, None), single)
    result = ChunkSums(
        jax.tree.map(_zeros, shapes.sums),
        jax.tree.map(
            lambda leaf: jnp.zeros((0, *leaf.shape[1:]), leaf.dtype), shapes.rows
        ),
    )
    return as_varying(result, like=rows)
