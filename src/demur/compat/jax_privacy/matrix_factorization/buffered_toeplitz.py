"""Buffered Toeplitz matrices: exponentials that decay, each with one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from demur.compat.jax_privacy.matrix_factorization.streaming_matrix import (
    StreamingMatrix,
)


@dataclass(frozen=True, eq=False)
class BufferedToeplitz:
    """The matrix with 1 on the diagonal and sum_i w_i d_i^(k-1) k places below it."""

    buf_decay: Any
    output_scale: Any

    @classmethod
    def build(
        cls, buf_decay: Any, output_scale: Any, dtype: Any = None
    ) -> BufferedToeplitz:
        """From decays d and scales w, equally many."""
        decays, scales = (
            jnp.asarray(values, dtype or float) for values in (buf_decay, output_scale)
        )
        if decays.ndim != 1 or decays.shape != scales.shape:
            raise ValueError(
                "buf_decay and output_scale must be lists of equal length; got shapes"
                f" {decays.shape} and {scales.shape}"
            )
        return cls(decays, scales)

    def as_streaming_matrix(self) -> StreamingMatrix:
        """x -> C x: y_t = x_t + sum of the buffers, which then decay and take x_t."""
        return self._streaming(inverse=False)

    def inverse_as_streaming_matrix(self) -> StreamingMatrix:
        """x -> C^-1 x: y_t = x_t - sum of the buffers, which then take y_t."""
        return self._streaming(inverse=True)

    def _streaming(self, *, inverse: bool) -> StreamingMatrix:
        decays, scales = self.buf_decay, self.output_scale

        def init(leaf: Any) -> Any:
            return jnp.zeros((decays.shape[0], *leaf.shape), leaf.dtype)

        def following(row: Any, buffers: Any) -> tuple[Any, Any]:
            held = jnp.tensordot(scales.astype(row.dtype), buffers, axes=1)
            result = row - held if inverse else row + held
            # C's column continues with what entered it: x itself, or C^-1 x.
            entered = result if inverse else row
            shape = (-1,) + (1,) * row.ndim
            faded = decays.astype(row.dtype).reshape(shape) * buffers
            return result, faded + entered[None]

        return StreamingMatrix.from_array_implementation(init, following)


__all__ = ["BufferedToeplitz"]
