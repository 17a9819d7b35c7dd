"""State of a run on its devices, and sums where parameters are cut over a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from demur.training.clipping.types import ClippedSum, PyTree
from demur.training.devices.placement import shard
from demur.training.devices.shardings import like_parameters


@jax.jit
def copied(tree: PyTree) -> PyTree:
    """A copy of every leaf, by one program; leaf by leaf it is one for each shape."""
    return jax.tree.map(partial(jnp.array, copy=True), tree)


def structs(tree: Any) -> Any:
    """Shapes, dtypes and shardings of the leaves, to compile with."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding
        ),
        tree,
    )


def placed(tree: PyTree, shardings: PyTree) -> PyTree:
    """Copies of the leaves, cut as `shardings` say; on no device whole."""

    def place(leaf: Any, sharding: NamedSharding) -> Any:
        if getattr(leaf, "sharding", None) == sharding:
            return jax.jit(jnp.copy, out_shardings=sharding)(leaf)
        return shard(leaf, sharding)

    return jax.tree.map(place, tree, shardings)


def cut_state(make: Callable[[PyTree], Any], params: PyTree, cut: PyTree) -> Any:
    """The optimiser's first state, each moment cut as its parameter is."""
    shardings = like_parameters(jax.eval_shape(make, params), params, cut)
    return jax.jit(make, out_shardings=shardings)(params)


def sum_in_turns(
    sum_of: Callable[[Any, Any], Any],
    batch: Any,
    real: Any,
    at_once: int,
    rows: NamedSharding | None,
) -> Any:
    """`sum_of(rows, is_padding)` over microbatches that have rows of every device.

    No row has to be moved. `shard_map` over the devices would gather all parameters
    beforehand; here the compiler gathers those of a layer when it needs them.
    """
    assert rows is not None
    axes = rows.spec[0]
    names = axes if isinstance(axes, tuple) else (axes,)
    size = jax.tree.leaves(batch)[0].shape[0]
    shares = math.prod(rows.mesh.shape[name] for name in names)
    own = max(1, at_once // shares)
    if size % (shares * own):  # no equal turns: all at once
        own = size // shares
    turns = size // (shares * own)
    by_rows = NamedSharding(rows.mesh, PartitionSpec(None, axes))

    def by_turn(leaf: Any) -> Any:
        shape = leaf.shape[1:]
        leaf = leaf.reshape(shares, turns, own, *shape).swapaxes(0, 1)
        leaf = leaf.reshape(turns, shares * own, *shape)
        return jax.lax.with_sharding_constraint(leaf, by_rows)

    parts = jax.tree.map(by_turn, batch)
    padding = by_turn(jnp.arange(size) >= real)

    def turn(i: Any) -> Any:
        return sum_of(jax.tree.map(lambda leaf: leaf[i], parts), padding[i])

    def add(i: Any, so_far: Any) -> Any:
        total, value = so_far
        added, more = turn(i)
        return ClippedSum.join([total, added]), jax.tree.map(jnp.add, value, more)

    return jax.lax.fori_loop(1, turns, add, turn(0))
