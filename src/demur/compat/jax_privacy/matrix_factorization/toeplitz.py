"""Banded Toeplitz matrices: the inverse of a lower triangular one, row by row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from demur.compat.jax_privacy.matrix_factorization.streaming_matrix import (
    StreamingMatrix,
    scale_rows_and_columns,
)


def inverse_as_streaming_matrix(
    coef: Any, column_normalize_for_n: int | None = None
) -> StreamingMatrix:
    """x -> C^-1 x for the C with first column `coef`: c_0 y_t = x_t - sum c_j y_(t-j).

    `column_normalize_for_n` divides the columns of C, of size n, by their norms first;
    its inverse then has rows that are multiplied by these norms.
    """
    coefs = jnp.asarray(coef, float)
    past = coefs.shape[0] - 1

    def init(leaf: Any) -> Any:
        return jnp.zeros((past, *leaf.shape), leaf.dtype)

    def following(row: Any, before: Any) -> tuple[Any, Any]:
        weights = coefs[1:].astype(row.dtype)
        carried = jnp.tensordot(weights, before, axes=1) if past else 0.0
        here = (row - carried) / coefs[0].astype(row.dtype)
        after = jnp.concatenate([here[None], before])[:past] if past else before
        return here, after

    inverse = StreamingMatrix.from_array_implementation(init, following)
    if column_normalize_for_n is None:
        return inverse
    squares = np.zeros(column_normalize_for_n)
    kept = min(len(squares), len(coefs))
    squares[:kept] = np.asarray(coefs[:kept]) ** 2
    norms = np.sqrt(np.cumsum(squares))[::-1]
    return scale_rows_and_columns(inverse, row_scale=jnp.asarray(norms.copy()))


__all__ = ["inverse_as_streaming_matrix"]
