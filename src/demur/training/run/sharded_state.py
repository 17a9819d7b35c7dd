"""State of a run on its devices, and sums where parameters are cut over a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from demur.training.clipping.rounding import wide
from demur.training.clipping.types import ClippedSum, PyTree
from demur.training.devices.placement import shard
from demur.training.devices.shardings import like_parameters


class TrainState(NamedTuple):
    """What a step changes. `noise` is secret; the rest may be released."""

    params: PyTree
    optimizer: Any
    average: PyTree | None
    steps: Any
    noise: Any


@jax.jit
def copied(tree: PyTree) -> PyTree:
    """A copy of every leaf, by one program; leaf by leaf it is one for each shape."""
    return jax.tree.map(partial(jnp.array, copy=True), tree)


def structs(tree: Any, *, placed: bool = True) -> Any:
    """Shapes, dtypes and, if `placed`, shardings of the leaves, to compile with."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding if placed else None
        ),
        tree,
    )


def placed(tree: PyTree, shardings: PyTree) -> PyTree:
    """Copies of the leaves, cut as `shardings` say; on no device whole."""

    def place(leaf: Any, sharding: NamedSharding) -> Any:
        given = getattr(leaf, "sharding", None)
        elsewhere = given is not None and not leaf.is_fully_addressable
        if given == sharding or elsewhere:  # parts of it are with other processes
            return jax.jit(jnp.copy, out_shardings=sharding)(leaf)
        return shard(leaf, sharding)

    return jax.tree.map(place, tree, shardings)


def first_state(optimizer: optax.GradientTransformation, params: PyTree) -> Any:
    """The optimiser's first state, in the dtypes that an update leaves it in.

    Noisy sums of narrow parameters are float32, and so are the moments of them.
    """
    state = optimizer.init(params)
    sums = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, wide(p.dtype)), params)
    after = jax.eval_shape(optimizer.update, sums, state, params)[1]

    def as_later(leaf: Any, later: Any) -> Any:
        same = getattr(leaf, "dtype", later.dtype) == later.dtype
        return leaf if same else leaf.astype(later.dtype)

    return jax.tree.map(as_later, state, after)


def cut_state(make: Callable[[PyTree], Any], params: PyTree, cut: PyTree) -> Any:
    """The optimiser's first state, each moment cut as its parameter is."""
    shardings = like_parameters(jax.eval_shape(make, params), params, cut)
    return jax.jit(make, out_shardings=shardings)(params)


def noise_of_zeros(
    update: Callable[[ClippedSum, Any, Any], Any],
    bound: float,
    state: TrainState,
    keys: Iterable[Any],
) -> Any:
    """The noise state after a step with each of `keys`, from `state.noise` on.

    The sums are zeros, and what is added to them is dropped: it does not leave.
    """

    def advance(params: PyTree, noise: Any, keys: Any) -> Any:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, wide(p.dtype)), params)
        return update(ClippedSum(zeros, bound), noise, keys)[1]

    where = jax.tree.map(lambda leaf: leaf.sharding, state.noise)
    one = jax.jit(advance, out_shardings=where, donate_argnums=1)
    noise = copied(state.noise)
    for own in keys:
        noise = one(state.params, noise, own)
    return noise


def padding(size: int, real: Any) -> Any:
    """Which of `size` rows are padding: those after `real`, in each run if several."""
    place = jnp.arange(size)
    if not real.ndim:
        return place >= real
    each = size // real.shape[0]
    return place % each >= real[place // each]


def real_rows_at(place: Any, devices: int, rows: int, real: Any) -> Any:
    """How many of a device's `rows` are real; `place` is the device's, in order."""
    if real.ndim:  # the devices of one process after those of another
        each = devices // real.shape[0]
        real, place = real[place // each], place % each
    return jnp.clip(real - place * rows, 0, rows)


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
    padded = by_turn(padding(size, real))

    def turn(i: Any) -> Any:
        return sum_of(jax.tree.map(lambda leaf: leaf[i], parts), padded[i])

    def add(i: Any, so_far: Any) -> Any:
        total, value = so_far
        added, more = turn(i)
        return ClippedSum.join([total, added]), jax.tree.map(jnp.add, value, more)

    return jax.lax.fori_loop(1, turns, add, turn(0))
