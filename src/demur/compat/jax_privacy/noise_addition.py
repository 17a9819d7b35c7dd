"""`jax_privacy.noise_addition`: Gaussian noise, correlated by a matrix, on any tree.

These transformations take plain trees as well as clipped sums, and noise from a key
that the caller has. They are outside of every plan: no ledger pays for them, and their
account is yours. The noise of a plan is `plan.noise_addition_transform`.
"""

from __future__ import annotations

import enum
import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from demur.compat.jax_privacy.matrix_factorization.streaming_matrix import (
    StreamingMatrix,
    identity,
)
from demur.training import ClippedSum
from demur.training.clipping.rounding import wide
from demur.training.clipping.types import PyTree
from demur.training.noise.admission import check_place
from demur.training.noise.members import one_release
from demur.training.noise.threefry import own_keys

_LOG = logging.getLogger(__name__)


class SupportedStrategies(enum.Enum):
    """How noise is laid out over devices; both add the same noise here."""

    DEFAULT = "default"
    ZERO = "zero"


class _State(NamedTuple):
    step: Any
    key: Any
    memory: Any


def matrix_factorization_privatizer(
    noising_matrix: Any,
    *,
    stddev: float,
    prng_key: Any = None,
    dtype: Any = None,
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT,
) -> optax.GradientTransformation:
    """Noise with covariance stddev^2 M M^T over the steps, M the `noising_matrix`.

    `noising_matrix` is a square array or a `StreamingMatrix`. Without `prng_key` the
    noise comes from the operating system, fresh in every run. With a key it is the same
    in every run, and whoever knows the key can take it off: for tests. `dtype` is that
    of the noise, by default float32 or that of the tree if it is wider; the result has
    the tree's own.
    """
    del intermediate_strategy
    if not stddev >= 0:
        raise ValueError(f"stddev must be at least 0; got {stddev}")
    if prng_key is not None:
        _LOG.warning("noise follows prng_key: whoever has it can take the noise off")
        prng_key = jax.random.key(prng_key) if isinstance(prng_key, int) else prng_key
    streaming = isinstance(noising_matrix, StreamingMatrix)
    matrix = None if streaming else jnp.asarray(noising_matrix)
    if matrix is not None and (matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]):
        raise ValueError(f"Expected 2D square noising_matrix; got shape {matrix.shape}")

    def init(params: PyTree) -> _State:
        structs = [_noise_struct(leaf, dtype) for leaf in jax.tree.leaves(params)]
        memory = noising_matrix.init_multiply(structs) if streaming else ()
        return _State(jnp.zeros((), jnp.int32), _first_key(), memory)

    def _first_key() -> Any:
        if prng_key is not None:
            return prng_key
        # Rows of a dense matrix need the noise of other steps again: one key for all.
        return () if streaming else jax.random.wrap_key_data(own_keys(1)[0])

    def drawn(key: Any, step: Any, structs: list[Any]) -> list[Any]:
        if isinstance(key, tuple):  # fresh in every step
            keys = [jax.random.wrap_key_data(k) for k in own_keys(len(structs))]
        else:
            keys = list(jax.random.split(jax.random.fold_in(key, step), len(structs)))
        return [
            stddev * jax.random.normal(k, leaf.shape, leaf.dtype)
            for k, leaf in zip(keys, structs, strict=True)
        ]

    def update(
        sum_of_clipped_grads: PyTree, noise_state: _State, params: Any = None
    ) -> tuple[PyTree, _State]:
        del params
        value = sum_of_clipped_grads
        if isinstance(value, ClippedSum):
            value.check_intact()
            value = value.value
            fresh = isinstance(noise_state.key, tuple)
            check_place((value, noise_state), has_keys=not fresh)
        value, state = one_release((jax.tree.map(jnp.asarray, value), noise_state))
        leaves, treedef = jax.tree.flatten(value)
        structs = [_noise_struct(leaf, dtype) for leaf in leaves]
        step, key, memory = state
        if matrix is None:
            noise, memory = noising_matrix.multiply_next(
                drawn(key, step, structs), memory
            )
        else:
            row = matrix[step]

            def add(j: Any, so_far: list[Any]) -> list[Any]:
                return [
                    total + (row[j] * z).astype(total.dtype)
                    for total, z in zip(so_far, drawn(key, j, structs), strict=True)
                ]

            none = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in structs]
            noise = jax.lax.fori_loop(0, len(matrix), add, none)
            # Past the last row there is none: NaN, not the last row again.
            inside = jnp.where(step < len(matrix), 1.0, jnp.nan)
            noise = [z * inside.astype(z.dtype) for z in noise]
        noisy = [
            (leaf + z).astype(leaf.dtype) for leaf, z in zip(leaves, noise, strict=True)
        ]
        return jax.tree.unflatten(treedef, noisy), _State(step + 1, key, memory)

    return optax.GradientTransformation(init, update)


def gaussian_privatizer(
    *,
    stddev: float,
    prng_key: Any = None,
    dtype: Any = None,
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT,
) -> optax.GradientTransformation:
    """Independent noise at every step (`matrix_factorization_privatizer`)."""
    return matrix_factorization_privatizer(
        identity(),
        stddev=stddev,
        prng_key=prng_key,
        dtype=dtype,
        intermediate_strategy=intermediate_strategy,
    )


def _noise_struct(leaf: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
    kind = wide(kind) if dtype is None else jnp.dtype(dtype)
    return jax.ShapeDtypeStruct(leaf.shape, kind)


__all__ = [
    "SupportedStrategies",
    "gaussian_privatizer",
    "matrix_factorization_privatizer",
]
