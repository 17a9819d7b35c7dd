"""Recursions of correlated noise: C^-1 z one step at a time, with little memory.

    banded     x_t = (z_t - sum_(0<j<b) C[t, t-j] x_(t-j)) / C[t, t]
    buffered   x_t = z_t - sum_i w_i s_i,   s_i <- d_i s_i + x_t
    dense      row t of C^-1 times all z so far, drawn again from their keys

The ring of a banded strategy is never shifted: slot t mod (b - 1) is overwritten, in
place when the state is donated, so that a step reads b - 1 numbers and writes one for
each parameter. A dense strategy with few bands is streamed like a banded one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from demur.mechanisms.correlated import BandedToeplitz, Buffered, Dense, Strategy
from demur.training.noise.threefry import normals, wide

_LONGEST_RING = 64  # past outputs; a dense strategy with more bands stores keys
Memory = Any


class Recursion(NamedTuple):
    """How a strategy turns independent noise z into C^-1 z, step by step.

    `empty_memory(leaves)` is the empty memory for leaves of these shapes;
    `advance(step, memory, keys, leaves)` is C^-1 z at this step, and the next memory.
    `by_element` says whether the memory holds numbers for each element, behind one
    leading axis, or keys.
    """

    empty_memory: Callable[[list[Any]], Memory]
    advance: Callable[[Any, Memory, Any, list[Any]], tuple[list[Any], Memory]]
    by_element: bool = True


def recursion_of(strategy: Strategy) -> Recursion:
    """The recursion of `strategy`."""
    if isinstance(strategy, Buffered):
        return _buffers(strategy)
    if isinstance(strategy, Dense) and strategy.bands - 1 > _LONGEST_RING:
        return _regenerated(strategy)
    return _ring(strategy)


def _ring(strategy: Strategy) -> Recursion:
    past = strategy.bands - 1
    row = _row(strategy)

    def empty_memory(leaves: list[Any]) -> Memory:
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

    return Recursion(empty_memory, advance)


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


def _buffers(strategy: Buffered) -> Recursion:
    decays = jnp.asarray(np.asarray(strategy.decays), jnp.float32)
    scales = jnp.asarray(np.asarray(strategy.scales), jnp.float32)

    def empty_memory(leaves: list[Any]) -> Memory:
        return [jnp.zeros((len(decays), *leaf.shape), wide(leaf)) for leaf in leaves]

    def advance(
        step: Any, memory: Memory, keys: Any, leaves: list[Any]
    ) -> tuple[list[Any], Memory]:
        del step
        outputs, updated = [], []
        for z, buffers in zip(normals(keys, leaves), memory, strict=True):
            x = z - jnp.einsum(
                "j,j...->...",
                scales.astype(z.dtype),
                buffers,
                precision=jax.lax.Precision.HIGHEST,
            )
            shape = (-1,) + (1,) * z.ndim
            outputs.append(x)
            updated.append(buffers * decays.astype(z.dtype).reshape(shape) + x)
        return outputs, updated

    return Recursion(empty_memory, advance)


def _regenerated(strategy: Dense) -> Recursion:
    """All past z, drawn again from their keys, times row t of C^-1."""
    size = strategy.iterations
    inverse = np.linalg.solve(strategy.matrix(), np.eye(size))
    table = jnp.asarray(np.tril(inverse), jnp.float32)

    def empty_memory(leaves: list[Any]) -> Memory:
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

    return Recursion(empty_memory, advance, by_element=False)
