"""A loss that sums over the shards or members around it is refused."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from demur.training import clipped_grad
from demur.training.clipping.ghost import gradients
from tests.training.clipping.kit import QUICK_TO_COMPILE, length

METHODS = ("auto", "vmap")
RNG = np.random.default_rng(0)
PARAMS = {"a": RNG.normal(size=(3, 5)), "b": RNG.normal(size=(5, 2))}
PARAMS = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in PARAMS.items()}
ROWS = RNG.normal(size=(2, 1, 3)).astype(np.float32)  # two members, one row each
CLIP = 0.1


def normalised(params, x):
    """Batch normalisation that is synchronised over "d": its mean, taken off."""
    hidden = jnp.tanh(x @ params["a"])
    hidden = hidden - jax.lax.pmean(hidden, "d")
    return jnp.sum((hidden @ params["b"]) ** 2)


def gradient(loss=normalised, method="auto", **options):
    return clipped_grad(loss, l2_clip_norm=CLIP, method=method, **options)


def over_members(grad, rows):
    run = jax.vmap(lambda x: grad(PARAMS, x), axis_name="d")
    return jax.jit(run, compiler_options=QUICK_TO_COMPILE)(rows).members()


def over_shards(grad, rows, **options):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    whole, spread = PartitionSpec(), PartitionSpec("d")
    run = jax.shard_map(
        lambda p, x: grad(p, x).psum("d"),
        mesh=mesh,
        in_specs=(whole, spread),
        out_specs=whole,
        **options,
    )
    return run(PARAMS, rows[:, 0])


@pytest.mark.parametrize("method", METHODS)
def test_sums_over_shards_and_members_are_refused(method):
    grad = gradient(method=method)
    with pytest.raises(ValueError, match=r"over the axis 'd' around it"):
        over_members(grad, ROWS)
    for options in ({}, {"check_vma": False}):
        with pytest.raises(ValueError, match=r"over the axis 'd' around it"):
            over_shards(grad, ROWS, **options)


SUMS = {
    "psum": jax.lax.psum,
    "pmax": jax.lax.pmax,
    "all_gather": lambda x, axis: jax.lax.all_gather(x, axis).sum(0),
    "ppermute": lambda x, axis: jax.lax.ppermute(x, axis, [(0, 1), (1, 0)]),
    "all_to_all": lambda x, axis: jax.lax.all_to_all(jnp.stack([x, x]), axis, 0, 0).sum(
        0
    ),
    "psum_scatter": lambda x, axis: jax.lax.psum_scatter(jnp.stack([x, x]), axis),
}


@pytest.mark.parametrize("name", SUMS)
def test_every_way_to_look_across_is_refused(name):
    """Also inside of what a loss is made of: calls, scans, checkpoints, branches."""

    def loss(params, x):
        @jax.jit
        def turn(carry, _):
            seen = jax.lax.stop_gradient(SUMS[name](x @ params["a"], "d"))
            return carry + jnp.sum(seen), None

        return jnp.sum(x @ params["a"]) + jax.lax.scan(turn, 0.0, None, length=2)[0]

    with pytest.raises(ValueError, match="around it"):
        over_members(gradient(loss), ROWS)


def test_a_transform_before_the_clip_is_refused_too():
    def averaged(grads):
        return jax.lax.pmean(grads, "d")

    def plain(params, x):
        return jnp.sum((x @ params["a"] @ params["b"]) ** 2)

    with pytest.raises(ValueError, match="around it"):
        over_members(gradient(plain, pre_clipping_transform=averaged), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_without_the_check_one_row_moves_the_sums_of_others(monkeypatch, method):
    """The attack: member 1 has the same row, and its sum moves by what 0's row does."""
    for module in (gradients, sys.modules[clipped_grad.__module__]):
        monkeypatch.setattr(module, "check_no_collectives", lambda closed: None)
    other = ROWS.copy()
    other[0] *= -3
    both = [over_members(gradient(method=method), rows) for rows in (ROWS, other)]
    moved = jax.tree.map(jnp.subtract, both[0][1].value, both[1][1].value)
    assert length(moved) > 0.5 * CLIP


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_sums_inside_of_one_example_are_taken(method):
    """Over an axis that the loss binds itself, and where an axis is only named."""

    def loss(params, x):
        def one(row):
            hidden = jnp.tanh(row @ params["a"])
            return jnp.sum((hidden - jax.lax.pmean(hidden, "own")) ** 2)

        rows = jnp.stack([x[0], 2 * x[0]])
        here = 1.0 + 0.0 * jax.lax.axis_index("d")
        return here * jnp.sum(jax.vmap(one, axis_name="own")(rows))

    first, second = over_members(gradient(loss, method), ROWS)
    assert 0 < length(first.value) <= CLIP * (1 + 1e-6)
    assert length(jax.tree.map(jnp.subtract, first.value, second.value)) > 1e-3
