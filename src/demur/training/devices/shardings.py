"""Shardings of parameters: how each leaf is cut over the axes of a mesh.

A leaf keeps the sharding that it was given. `spread` cuts it further, over the axes
that are left, wherever an axis of the array divides evenly; a leaf that does not divide
stays whole (biases and scales, as a rule). Where a value lies changes no value: the
compiler computes the same sums, up to their order.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray


def spread(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """`sharding`, cut along the mesh axes that it leaves free, as far as they divide.

    The longest dimension is cut first, so that shards stay long runs of memory.

    >>> mesh = Mesh(jax.devices()[:1], ("data",))
    >>> tuple(spread(NamedSharding(mesh, PartitionSpec()), (3, 8)).spec)
    (None, 'data')
    """
    mesh = sharding.mesh
    axes = [_names(entry) for entry in sharding.spec]
    axes += [()] * (len(shape) - len(axes))
    taken = {name for names in axes for name in names}
    longest_first = sorted(range(len(shape)), key=lambda i: -shape[i])
    for name in mesh.axis_names:
        if name in taken:
            continue
        for i in longest_first:
            parts = math.prod(mesh.shape[axis] for axis in (*axes[i], name))
            if shape[i] and shape[i] % parts == 0:
                axes[i] = (*axes[i], name)
                break
    return NamedSharding(mesh, PartitionSpec(*(_entry(names) for names in axes)))


def covers_mesh(sharding: NamedSharding) -> bool:
    """Whether every axis of the mesh cuts the array: each device has its own part."""
    taken = {name for entry in sharding.spec for name in _names(entry)}
    return taken >= set(sharding.mesh.axis_names)


def own_sharding(leaf: Any, mesh: Mesh | None) -> NamedSharding | None:
    """How the caller has cut `leaf` over `mesh`; None if it is whole.

    A leaf that is cut over other devices is refused.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or sharding.is_fully_replicated:
        return None
    if mesh is None:
        raise ValueError(
            "params are cut over several devices: pass their mesh as"
            " Resources(mesh=...). Nothing was spent."
        )
    same = (
        isinstance(sharding, NamedSharding)
        and sharding.mesh.axis_names == mesh.axis_names
        and sharding.mesh.devices.shape == mesh.devices.shape
        and (sharding.mesh.devices == mesh.devices).all()
    )
    if not same:
        raise ValueError(
            "params are cut over another mesh than Resources(mesh=...): place them by"
            " NamedSharding(mesh, ...) of that mesh. Nothing was spent."
        )
    return NamedSharding(mesh, sharding.spec)


def own_parts(leaf: Any) -> list[NDArray[Any]]:
    """What this process holds of an array: all of it, or the parts of its devices."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return [np.asarray(leaf)]
    return [np.asarray(part.data) for part in leaf.addressable_shards]


def own_copy(leaf: Any) -> Any:
    """A copy of an array: on the host, or, of parts alone, where they are.

    No other process takes part, so one of them may call it by itself.
    """
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return jax.device_get(leaf)
    parts = [jnp.array(part.data, copy=True) for part in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def like_parameters(tree: Any, params: Any, shardings: Any) -> Any:
    """For each leaf of an optimiser's state, the sharding of the parameter it is of.

    A moment has the path of its parameter at the end of its own, and its shape. What
    has not is cut where it divides: row sums of a factored moment, say.
    """
    where = jax.tree.leaves(shardings)
    whole = NamedSharding(where[0].mesh, PartitionSpec())
    known = {
        (path, leaf.shape): sharding
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), where, strict=True
        )
    }

    def placed(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        for start in range(len(path) + 1):
            found = known.get((path[start:], leaf.shape))
            if found is not None:
                return found
        return spread(whole, leaf.shape)

    return jax.tree_util.tree_map_with_path(placed, tree)


def _names(entry: Any) -> tuple[Any, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def _entry(names: tuple[Any, ...]) -> Any:
    return None if not names else names[0] if len(names) == 1 else names
