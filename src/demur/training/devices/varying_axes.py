"""Varying axes inside `shard_map`: which values are the same on all devices.

JAX sums the cotangent of a value that does not vary over the devices. That is right for
a gradient of a total loss and wrong for a clipped one: the sum over devices would be
taken before the clip. So parameters are cast to varying before anything is
differentiated, and the result is this device's share, for the caller's `psum`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


def _axes(value: Any) -> frozenset[Any]:
    kind = jax.typeof(value)
    if hasattr(kind, "vma"):
        return frozenset(kind.vma)
    # Not knowing would bring back the defect in silence: an AttributeError is better.
    return frozenset(kind.manual_axis_type.varying)


def varying_axes(tree: Any) -> frozenset[Any]:
    """The mesh axes over which some leaf of `tree` varies."""
    return frozenset().union(*(_axes(leaf) for leaf in jax.tree.leaves(tree)))


def manual_axes() -> tuple[Any, ...]:
    """The mesh axes whose shards this code runs on one by one (`shard_map`, `pmap`)."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def are_tracked(axes: Iterable[Any]) -> bool:
    """Whether JAX says which values vary over these manual axes.

    It does not inside `pmap` and `shard_map(check_vma=False)`.
    """
    axes = frozenset(axes)
    probe = jax.lax.pcast(jnp.zeros(()), tuple(sorted(axes, key=str)), to="varying")
    return _axes(probe) >= axes


def may_vary_over(tree: Any) -> frozenset[Any]:
    """The mesh axes over which `tree` varies, or all where JAX does not say."""
    manual = manual_axes()
    if manual and not are_tracked(manual):
        return frozenset(manual)
    return varying_axes(tree)


def as_varying(tree: Any, *, like: Any) -> Any:
    """`tree` varying over every mesh axis over which `like` varies."""
    wanted = varying_axes(like)
    if not wanted:
        return tree

    def cast(leaf: Any) -> Any:
        missing = tuple(sorted(wanted - _axes(leaf), key=str))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def struct_of(leaf: Any, *, row: bool = False) -> Any:
    """Shape and dtype of a leaf, or of one row of it, to trace a program with."""
    if _axes(leaf):
        # Only a value carries its varying axes in every version of JAX.
        return leaf[0] if row else leaf
    kind = jax.typeof(leaf)
    shape = kind.shape[1:] if row else kind.shape
    weak = getattr(kind, "weak_type", False)
    return jax.ShapeDtypeStruct(shape, kind.dtype, weak_type=weak)
