"""Lower triangular matrices as recursions: a row of A x from a row of x and a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


@dataclass(frozen=True)
class StreamingMatrix:
    """A linear map x -> A x, one row at a time.

    `init_multiply(row)` is the state before the first row, for rows of that shape;
    `multiply_next(row, state)` is the next row of A x and the state after it.

    >>> total, state = prefix_sum(), prefix_sum().init_multiply(jnp.zeros(()))
    >>> for row in (1.0, 2.0, 3.0):
    ...     result, state = total.multiply_next(jnp.asarray(row), state)
    >>> float(result)
    6.0
    """

    init_multiply: Callable[[PyTree], Any]
    multiply_next: Callable[[PyTree, Any], tuple[PyTree, Any]]

    @classmethod
    def from_array_implementation(
        cls,
        init_multiply_fn: Callable[[Any], Any],
        multiply_next_fn: Callable[[Any, Any], tuple[Any, Any]],
    ) -> StreamingMatrix:
        """The matrix for rows that are trees, from one for rows that are arrays."""

        def init(rows: PyTree) -> Any:
            return [init_multiply_fn(leaf) for leaf in jax.tree.leaves(rows)]

        def following(rows: PyTree, states: Any) -> tuple[PyTree, Any]:
            leaves, treedef = jax.tree.flatten(rows)
            results = [
                multiply_next_fn(leaf, state)
                for leaf, state in zip(leaves, states, strict=True)
            ]
            rows = jax.tree.unflatten(treedef, [result for result, _ in results])
            return rows, [state for _, state in results]

        return cls(init, following)

    def materialize(self, n: int) -> Any:
        """The first n rows and columns, as an array."""
        unit = jnp.eye(n)
        state = self.init_multiply(unit[0])

        def row(state: Any, x: Any) -> tuple[Any, Any]:
            result, state = self.multiply_next(x, state)
            return state, result

        # Row t of A applied to the rows of the identity is row t of A.
        return jax.lax.scan(row, state, unit)[1]

    def row_norms_squared(self, n: int) -> Any:
        """The squared norms of the first n rows."""
        return jnp.sum(self.materialize(n) ** 2, axis=1)

    def __mul__(self, factor: Any) -> StreamingMatrix:
        return scale_rows_and_columns(self, row_scale=jnp.asarray([factor], float))

    __rmul__ = __mul__

    def __matmul__(self, other: StreamingMatrix) -> StreamingMatrix:
        def init(rows: PyTree) -> Any:
            return other.init_multiply(rows), self.init_multiply(rows)

        def following(rows: PyTree, states: Any) -> tuple[PyTree, Any]:
            inner, first = other.multiply_next(rows, states[0])
            outer, second = self.multiply_next(inner, states[1])
            return outer, (first, second)

        return StreamingMatrix(init, following)


def identity() -> StreamingMatrix:
    """The identity."""
    return StreamingMatrix(lambda _: (), lambda rows, state: (rows, state))


def diagonal(diag: Any) -> StreamingMatrix:
    """A diagonal matrix; beyond the end of `diag` its last entry is repeated."""
    return scale_rows_and_columns(identity(), row_scale=jnp.asarray(diag))


def prefix_sum() -> StreamingMatrix:
    """All ones on and below the diagonal."""
    return momentum_sgd_matrix(0.0)


def momentum_sgd_matrix(
    momentum: float = 0.0, learning_rates: Any = None
) -> StreamingMatrix:
    """Gradients -> minus the position of SGD with momentum, at rates that may vary."""
    rates = jnp.asarray([1.0] if learning_rates is None else learning_rates)

    def init(leaf: Any) -> Any:
        zero = jnp.zeros(leaf.shape, leaf.dtype)
        return jnp.zeros((), jnp.int32), zero, zero

    def following(row: Any, state: Any) -> tuple[Any, Any]:
        step, velocity, position = state
        velocity = momentum * velocity + row
        rate = _entry(rates, step, row.dtype)
        position = position + rate * velocity
        return position, (step + 1, velocity, position)

    return StreamingMatrix.from_array_implementation(init, following)


def scale_rows_and_columns(
    matrix: StreamingMatrix, row_scale: Any = None, col_scale: Any = None
) -> StreamingMatrix:
    """diag(row_scale) A diag(col_scale); the last entry of a scale is repeated."""
    left = None if row_scale is None else jnp.asarray(row_scale)
    right = None if col_scale is None else jnp.asarray(col_scale)

    def scaled(rows: PyTree, by: Any, step: Any) -> PyTree:
        if by is None:
            return rows
        return jax.tree.map(lambda leaf: leaf * _entry(by, step, leaf.dtype), rows)

    def init(rows: PyTree) -> Any:
        return jnp.zeros((), jnp.int32), matrix.init_multiply(rows)

    def following(rows: PyTree, state: Any) -> tuple[PyTree, Any]:
        step, inner = state
        result, inner = matrix.multiply_next(scaled(rows, right, step), inner)
        return scaled(result, left, step), (step + 1, inner)

    return StreamingMatrix(init, following)


def _entry(scale: Any, step: Any, dtype: Any) -> Any:
    return scale[jnp.minimum(step, np.shape(scale)[0] - 1)].astype(dtype)
