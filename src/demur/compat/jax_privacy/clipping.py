"""`jax_privacy.clipping`: clipped gradients, and clipped sums of other functions.

`clipped_grad` gives a `ClippedSum`, which the noise of a plan takes and nothing else.
`clip_pytree`, `clipped_fun` and whatever has a `grid_scale` give plain arrays: exact
sums, which no plan takes and no ledger pays for. Their noise and its account are yours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from demur import training
from demur.compat.jax_privacy.bounded_sums import (
    BoundedSensitivityCallable as BoundedSensitivityCallable,
)
from demur.compat.jax_privacy.bounded_sums import bounded_sum
from demur.core import validate
from demur.training import Aux as AuxiliaryOutput
from demur.training import ClippedGrad
from demur.training.clipping.rounding import unit_roundoff, wide
from demur.training.clipping.types import PyTree

BoundedSensitivityCallable.register(ClippedGrad)


def clipped_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    grid_scale: int | None = None,
    **options: Any,
) -> ClippedGrad | BoundedSensitivityCallable:
    """The clipped gradient of `demur.training`, with its options.

    With `grid_scale` it sums gradients on a grid of whole numbers, as `clipped_fun`
    does: plain arrays for a discrete Gaussian of your own. A plan has `noise="lattice"`
    for that.
    """
    if grid_scale is None:
        return training.clipped_grad(fun, argnums, has_aux, **options)
    allowed = ("l2_clip_norm", "batch_argnums", "keep_batch_dim", "microbatch_size")
    for name in options:
        if name not in allowed:
            raise ValueError(f"{name} cannot be used with grid_scale")
    gradient = jax.grad(fun, argnums, has_aux=has_aux)
    given = {"batch_argnums": 1} | options
    return clipped_fun(gradient, has_aux, grid_scale=grid_scale, **given)


def clip_pytree(
    pytree: PyTree,
    clip_norm: PyTree,
    rescale_to_unit_norm: bool = False,
    nan_safe: bool = True,
    return_zero: Any = False,
) -> tuple[PyTree, PyTree]:
    """The tree scaled down to norm `clip_norm` at most, and the norm it had.

    `clip_norm` is a number, or a tree that is a prefix of `pytree`: each part is then
    clipped by itself, and has a norm of its own. `rescale_to_unit_norm` divides by it.
    With `nan_safe`, entries that are no finite numbers count as zero; the norm that is
    returned is not finite then. Dtypes stay as they are; the bound holds after rounding
    to them.

    >>> clipped, norm = clip_pytree({"w": jnp.array([3.0, 4.0])}, 1.0)
    >>> float(norm), round(float(clipped["w"][0]), 4)
    (5.0, 0.6)
    """
    norms, tree = jax.tree.flatten(clip_norm)
    for norm in norms:
        if not isinstance(norm, jax.core.Tracer) and not float(norm) >= 0.0:
            raise ValueError(f"clip_norm must be at least 0; got {float(norm)}")
    parts: list[Any] = []
    jax.tree.map(lambda _, part: parts.append(part), clip_norm, pytree)
    results = [
        _clip_part(part, norm, rescale_to_unit_norm, nan_safe, return_zero)
        for part, norm in zip(parts, norms, strict=True)
    ]
    clipped = [part for part, _ in results]
    lengths = [length for _, length in results]
    return jax.tree.unflatten(tree, clipped), jax.tree.unflatten(tree, lengths)


def _clip_part(
    part: PyTree, norm: Any, rescale: bool, nan_safe: bool, zero: Any
) -> tuple[PyTree, Any]:
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, part))
    if not leaves:
        return part, jnp.zeros((), jnp.float32)
    given = [leaf.astype(_wide(leaf)) for leaf in leaves]
    length = _length(given)
    finite = [jnp.where(jnp.isfinite(leaf), leaf, 0) for leaf in given]
    safe = _length(finite)
    # Without nan_safe an entry that is no finite number makes itself NaN, and no other.
    used = [
        leaf if nan_safe else jnp.where(jnp.isfinite(before), leaf, jnp.nan)
        for leaf, before in zip(finite, given, strict=True)
    ]
    # The norm as it was computed, and the rounding to the leaves' own dtypes, may each
    # leave the result a little too long.
    size = sum(leaf.size for leaf in leaves)
    coarse = max(2.0 * unit_roundoff(leaf.dtype) for leaf in leaves)
    room = 1.0 - 4.0 * max(coarse, 1.2e-7 * max(1.0, math.log2(size + 1) / 8))
    bound = jnp.asarray(norm, jnp.float32)
    nonzero = jnp.where(safe > 0, safe, 1.0)
    long = safe > bound * room
    if rescale:
        inside = jnp.where(bound > 0, 1.0 / jnp.where(bound > 0, bound, 1.0), 0.0)
        factor = jnp.where(long, room / nonzero, inside * room)
    else:
        factor = jnp.where(safe > bound, bound / nonzero * room, 1.0)
    factor = jnp.where(bound >= 0, factor, 0.0)
    # A tree of zeros is left alone, and infinity times it is no number.
    factor = jnp.where((safe > 0) & ~jnp.asarray(zero, bool), factor, 0.0)
    scaled = [
        (factor * leaf).astype(before.dtype)
        for leaf, before in zip(used, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, scaled), length


def _wide(leaf: Any) -> Any:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(f"clip_pytree takes real floating numbers; got {leaf.dtype}")
    return wide(leaf.dtype)


def _length(leaves: list[Any]) -> Any:
    """The norm in float32, by way of the largest entry, so that no square overflows."""
    tops = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
    largest = jnp.stack([top.astype(jnp.float32) for top in tops]).max()
    scale = jnp.where(jnp.isfinite(largest) & (largest > 0), largest, 1.0)
    squares = [jnp.sum((leaf / scale) ** 2).astype(jnp.float32) for leaf in leaves]
    return jnp.where(largest > 0, scale * jnp.sqrt(sum(squares)), largest)


def clip_and_round_to_grid(
    gradient: PyTree, l2_clip_norm: float, grid_scale: int
) -> tuple[PyTree, Any]:
    """The tree in whole numbers of norm `grid_scale` at most, and the norm it had.

    It is clipped a little below `l2_clip_norm`, scaled by grid_scale / l2_clip_norm and
    rounded. Needs 64-bit numbers (`jax.enable_x64`).
    """
    _check_grid(l2_clip_norm, grid_scale)
    count = sum(jnp.size(leaf) for leaf in jax.tree.leaves(gradient))
    inner = _adjusted_clip_norm(l2_clip_norm, grid_scale, count)
    doubles = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), gradient)
    clipped, norm = clip_pytree(doubles, inner)
    per_step = grid_scale / l2_clip_norm
    rounded = jax.tree.map(
        lambda leaf: jnp.round(leaf * per_step).astype(jnp.int64), clipped
    )
    return rounded, norm


def _adjusted_clip_norm(l2_clip_norm: float, grid_scale: int, num_params: int) -> float:
    """The clip norm before rounding: each coordinate may move by half a step."""
    inner = l2_clip_norm * (1.0 - math.sqrt(num_params) / 2.0 / grid_scale)
    if inner <= 0.0:
        raise ValueError(
            f"grid_scale={grid_scale} is too coarse for {num_params} numbers: rounding"
            " alone may exceed the clip norm"
        )
    return inner


def _check_grid(l2_clip_norm: Any, grid_scale: int) -> None:
    validate.count(grid_scale=grid_scale)
    if isinstance(l2_clip_norm, dict | list | tuple):
        raise ValueError("l2_clip_norm must be one number with grid_scale")
    if jax.dtypes.canonicalize_dtype(jnp.int64) != jnp.int64:
        raise ValueError("grid_scale needs 64-bit numbers: jax.enable_x64(True)")


def clipped_fun(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 0,
    keep_batch_dim: bool = True,
    l2_clip_norm: PyTree = 1.0,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    return_norms: bool = False,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
    grid_scale: int | None = None,
) -> BoundedSensitivityCallable:
    """A function that clips the output of `fun` for each example, and adds them up.

    The result is a plain tree of arrays: an exact sum that no plan takes. With
    `has_aux` or `return_norms` it comes with outputs per example: `(value, aux)`,
    `(value, norms)`, or `(value, (aux, norms))`. Examples whose norm is not finite
    count as zero.

    >>> total = clipped_fun(jnp.mean, l2_clip_norm=1.0)
    >>> float(total(jnp.arange(6.0)))
    5.0
    """
    validate.positive(normalize_by=normalize_by)
    norms = [float(norm) for norm in jax.tree.leaves(l2_clip_norm)]
    if not norms or not all(norm >= 0.0 for norm in norms):
        raise ValueError(f"l2_clip_norm must be at least 0; got {norms}")
    bound = math.sqrt(len(norms)) if rescale_to_unit_norm else math.hypot(*norms)
    if grid_scale is not None:
        _check_grid(l2_clip_norm, grid_scale)
        if rescale_to_unit_norm or normalize_by != 1.0:
            raise ValueError(
                "grid_scale cannot be used with rescale_to_unit_norm or normalize_by:"
                " a sum on a grid of whole numbers is not divided"
            )
        bound = float(grid_scale)

    def clip(value: PyTree) -> tuple[PyTree, PyTree]:
        if grid_scale is not None:
            clipped, norm = clip_and_round_to_grid(value, l2_clip_norm, grid_scale)
        else:
            clipped, norm = clip_pytree(
                value, l2_clip_norm, rescale_to_unit_norm, nan_safe
            )
        if nan_safe:
            lengths = jnp.stack(jax.tree.leaves(norm))
            usable = jnp.isfinite(lengths).all()
            clipped = jax.tree.map(lambda leaf: jnp.where(usable, leaf, 0), clipped)
        return clipped, norm

    return bounded_sum(
        fun,
        clip,
        bound=bound / normalize_by,
        has_aux=has_aux,
        batch_argnums=batch_argnums,
        keep_batch_dim=keep_batch_dim,
        normalize_by=normalize_by,
        return_norms=return_norms,
        microbatch_size=microbatch_size,
        dtype=dtype if grid_scale is None else None,
        prng_argnum=prng_argnum,
        spmd_axis_name=spmd_axis_name,
    )


__all__ = [
    "AuxiliaryOutput",
    "BoundedSensitivityCallable",
    "clip_and_round_to_grid",
    "clip_pytree",
    "clipped_fun",
    "clipped_grad",
]
