"""Sums over a batch of per-example outputs that were clipped, as plain arrays."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from demur.core import validate
from demur.core.accounting.events import Neighbours
from demur.training.clipping import microbatches
from demur.training.clipping.rounding import wide
from demur.training.clipping.types import PyTree
from demur.training.plans.relations import neighbours_of


@dataclass(frozen=True)
class BoundedSensitivityCallable(metaclass=ABCMeta):
    """A function whose result one example moves by at most `l2_norm_bound`.

    With `has_aux` that is true of the first of two results; the second has a row for
    each example, which is exact.
    """

    bounded_sensitivity_fun: Callable[..., Any]
    l2_norm_bound: float
    has_aux: bool

    def __call__(
        self, *args: Any, is_padding_example: Any = None, **kwargs: Any
    ) -> Any:
        """The sum over a batch; examples marked as padding do not count."""
        return self.bounded_sensitivity_fun(
            *args, is_padding_example=is_padding_example, **kwargs
        )

    def sensitivity(self, neighboring_relation: Any = "REPLACE_SPECIAL") -> float:
        """How far one record moves the sum; a replaced one moves it twice."""
        twice = neighbours_of(neighboring_relation) is Neighbours.REPLACE_ONE
        return 2.0 * self.l2_norm_bound if twice else self.l2_norm_bound


def bounded_sum(
    fun: Callable[..., Any],
    clip: Callable[[PyTree], tuple[PyTree, PyTree]],
    *,
    bound: float,
    has_aux: bool,
    batch_argnums: int | Sequence[int],
    keep_batch_dim: bool,
    normalize_by: float,
    return_norms: bool,
    microbatch_size: int | None,
    dtype: Any,
    prng_argnum: int | None,
    spmd_axis_name: Any,
) -> BoundedSensitivityCallable:
    """The sum of `clip(fun(example))` over a batch, divided by `normalize_by`."""
    batched: tuple[int, ...] = (
        (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    )
    if not batched:
        raise ValueError("batch_argnums must name an argument")
    if prng_argnum in batched:
        raise ValueError(
            f"prng_argnum={prng_argnum} is batched too: an argument is one or the other"
        )
    if microbatch_size is not None:
        validate.count(microbatch_size=microbatch_size)

    def one(args: tuple[Any, ...], row: Any) -> tuple[PyTree, PyTree, PyTree]:
        examples, key, named = row
        if keep_batch_dim:
            examples = jax.tree.map(lambda leaf: leaf[None], examples)
        call = dict(enumerate(args)) | dict(zip(batched, examples, strict=True))
        if prng_argnum is not None:
            call[prng_argnum] = key
        result = fun(*(call[i] for i in range(len(args))), **named)
        value, aux = result if has_aux else (result, None)
        if keep_batch_dim:
            aux = jax.tree.map(_without_batch_axis, aux)
        clipped, norm = clip(jax.tree.map(jnp.asarray, value))
        return clipped, jax.tree.map(jnp.asarray, aux), norm

    def call(*args: Any, is_padding_example: Any = None, **named: Any) -> Any:
        examples = [jax.tree.map(jnp.asarray, args[i]) for i in batched]
        count = microbatches.batch_size((examples, named))
        key = None
        if prng_argnum is not None:
            key = jax.random.split(args[prng_argnum], count)
        rows = (examples, key, named)
        kinds: list[Any] = []

        def chunk(some: Any, real: Any) -> microbatches.ChunkSums:
            clipped, aux, norms = jax.vmap(
                lambda row: one(args, row), spmd_axis_name=spmd_axis_name
            )(some)
            kinds[:] = [jax.tree.map(lambda leaf: leaf.dtype, clipped)]
            sums = jax.tree.map(lambda leaf: _sum(leaf, real), clipped)
            return microbatches.ChunkSums(sums, (aux, norms))

        real = microbatches.real_examples(examples, is_padding_example, None)
        result = microbatches.process(chunk, rows, real, microbatch_size)
        total = jax.tree.map(
            lambda leaf, kind: _divided(leaf, normalize_by).astype(dtype or kind),
            result.sums,
            kinds[0],
        )
        aux, norms = result.rows
        if has_aux and return_norms:
            return total, (aux, norms)
        if has_aux or return_norms:
            return total, (aux if has_aux else norms)
        return total

    return BoundedSensitivityCallable(call, float(bound), has_aux or return_norms)


def _sum(leaf: Any, real: Any) -> Any:
    """The sum over rows, in float32 or wider; whole numbers stay whole."""
    if real is not None:
        leaf = jnp.where(real.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = leaf.astype(wide(leaf.dtype))
    return leaf.sum(axis=0)


def _divided(leaf: Any, by: float) -> Any:
    return leaf if by == 1.0 else leaf / by


def _without_batch_axis(leaf: Any) -> Any:
    shape = jnp.shape(leaf)
    return jnp.squeeze(leaf, 0) if shape and shape[0] == 1 else leaf
