"""`clipped_grad` against jax-privacy, and where that one is wrong or gives up."""

from __future__ import annotations

from functools import cache

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import clipping as peer

from demur.core.adjacency import AddOrRemoveOne, Ball, Erasure, ReplaceOne, ZeroOut
from demur.core.errors import NotCovered
from demur.training import Aux, ClippedSum, clipped_grad
from tests.training.clipping.kit import (
    EVERY_NETWORK,
    QUICK_TO_COMPILE,
    Draw,
    distance,
    length,
)

# The peer calls a function that its own dependency has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")

METHODS = ("auto", "vmap")
both = pytest.mark.parametrize("method", METHODS)
NETWORK = EVERY_NETWORK["dense"](Draw(1), batch=9)
TOLERANCE = 1e-6


def mine(method="auto", **options):
    options = {"l2_clip_norm": 1.0, "batch_argnums": (1, 2), **options}
    return clipped_grad(NETWORK.loss, method=method, **options)


def theirs(**options):
    options = {"l2_clip_norm": 1.0, "batch_argnums": (1, 2), **options}
    return peer.clipped_grad(NETWORK.loss, **options)


def run(function, *args, **named):
    """Compiled: op by op, each of these takes seconds."""
    return jax.jit(function, compiler_options=QUICK_TO_COMPILE)(*args, **named)


@cache
def my_program(method="auto", **options):
    """One for all tests that ask for it: compiled once for each shape."""
    return jax.jit(mine(method, **options), compiler_options=QUICK_TO_COMPILE)


@cache
def their_program(**options):
    return jax.jit(theirs(**options), compiler_options=QUICK_TO_COMPILE)


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    "options",
    [
        {"l2_clip_norm": 0.3},
        {"l2_clip_norm": 0.3, "rescale_to_unit_norm": True, "normalize_by": 128.0},
        {"microbatch_size": 3, "return_values": True, "return_grad_norms": True},
    ],
)
def test_sums_are_those_of_the_peer(method, options):
    ours, other = mine(method, **options), theirs(**options)
    got = my_program(method, **options)(NETWORK.params, *NETWORK.batch)
    wanted = their_program(**options)(NETWORK.params, *NETWORK.batch)
    assert ours.l2_norm_bound == pytest.approx(other.sensitivity())
    assert ours.has_aux == other.has_aux
    if ours.has_aux:
        assert distance(got[1].values, wanted[1].values) < TOLERANCE
        assert distance(got[1].grad_norms, wanted[1].grad_norms) < TOLERANCE
        got, wanted = got[0], wanted[0]
    assert distance(got.value, wanted) < TOLERANCE


@pytest.mark.slow
@both
def test_auxiliary_outputs_keys_and_several_arguments(method):
    """Everything at once, as the peer spells it."""

    def loss(w, b, key, x, y):
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        h = (x * kept) @ w + b
        return jnp.mean((h[..., 0] - y) ** 2), {"h": h}

    draw = Draw(3)
    args = (draw.array(7, 1), draw.array(1), jax.random.key(5))
    args += (draw.array(6, 7), draw.array(6))
    options = {
        "argnums": (0, 1),
        "has_aux": True,
        "l2_clip_norm": 0.8,
        "batch_argnums": (3, 4),
        "prng_argnum": 2,
    }
    total, aux = run(clipped_grad(loss, method=method, **options), *args)
    wanted, other = run(peer.clipped_grad(loss, **options), *args)
    assert distance(total.value, wanted) < TOLERANCE
    assert distance(aux.aux["h"], other.aux["h"]) < TOLERANCE
    assert isinstance(total.value, tuple)


@pytest.mark.slow
def test_a_transform_before_the_clip_is_the_peers():
    options = {
        "l2_clip_norm": 0.4,
        "pre_clipping_transform": lambda g: {"w": g["w1"] * 3, "b": g["b2"]},
        "return_grad_norms": True,
    }
    total, aux = run(mine(**options), NETWORK.params, *NETWORK.batch)
    wanted, other = run(theirs(**options), NETWORK.params, *NETWORK.batch)
    assert distance(total.value, wanted) < TOLERANCE
    assert distance(aux.grad_norms, other.grad_norms) < TOLERANCE


@pytest.mark.slow
def test_a_transform_to_complex_numbers_is_refused():
    """The norm of a real part alone would let the rest through."""
    grad = clipped_grad(
        lambda p, x: jnp.sum(p * x),
        l2_clip_norm=1.0,
        pre_clipping_transform=lambda g: g * 1j,
    )
    with pytest.raises(TypeError, match="real floating"):
        grad(jnp.zeros(3), jnp.ones((2, 3)))


@pytest.mark.slow
@both
def test_users_are_clipped_as_one(method):
    """The example of the peer's own page: the gradient of each user's mean loss."""

    def loss(w, x):
        return 0.5 * jnp.mean((x - w) ** 2)

    users = jnp.asarray([[1.0, -1.0], [2.0, 2.0], [0.0, 3.0]])
    options = {"l2_clip_norm": np.inf, "keep_batch_dim": False}
    total = clipped_grad(loss, method=method, **options)(jnp.float32(3.0), users)
    assert float(total.value) == pytest.approx(5.5)


@pytest.mark.slow
@both
def test_norms_of_parts(method):
    """Each part is clipped by itself; the bound is the root of the sum of squares."""
    parts = {"w1": 0.3, "b1": 0.4, "w2": 1e-3, "b2": 1.2}
    grad = mine(method, l2_clip_norm=parts)
    one = [part[:1] for part in NETWORK.batch]
    total = run(grad, NETWORK.params, *one)
    for name, norm in parts.items():
        assert length(total.value[name]) <= norm
        assert length(total.value[name]) >= min(norm, 0.999 * norm) * 0.5
    assert grad.l2_norm_bound == pytest.approx(np.hypot.reduce(list(parts.values())))
    unit = mine(method, l2_clip_norm=parts, rescale_to_unit_norm=True, normalize_by=5.0)
    assert unit.l2_norm_bound == pytest.approx(2.0 / 5.0)
    with pytest.raises(ValueError, match="prefix of the gradient"):
        run(mine(method, l2_clip_norm={"w1": 1.0}), NETWORK.params, *NETWORK.batch)


@pytest.mark.slow
def test_two_groups_can_share_a_norm():
    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["net"]["w"] + p["net"]["b"])) + jnp.sum(
            x @ p["last"]
        )

    draw = Draw(4)
    params = {
        "net": {"w": draw.array(5, 5), "b": draw.array(5)},
        "last": draw.array(5),
    }
    sums = [
        run(
            clipped_grad(loss, l2_clip_norm={"net": 0.5, "last": 0.1}, method=method),
            params,
            draw.array(1, 5),
        ).value
        for method in METHODS
    ]
    for value in sums:
        assert length(value["net"]) == pytest.approx(0.5, rel=1e-6)
        assert length(value["last"]) == pytest.approx(0.1, rel=1e-6)


# --- padding, microbatches, empty batches


@pytest.mark.slow
@both
@pytest.mark.parametrize("microbatch", [None, 4])
def test_padding_takes_no_part(method, microbatch):
    grad = my_program(method, microbatch_size=microbatch, return_grad_norms=True)
    real = 5
    spoiled = (NETWORK.batch[0].at[real:].set(jnp.nan), NETWORK.batch[1])
    wanted = their_program()(NETWORK.params, *(part[:real] for part in NETWORK.batch))
    mask = jnp.arange(9) >= real
    for flags in ({"num_real": real}, {"is_padding_example": mask}):
        total, aux = grad(NETWORK.params, *spoiled, **flags)
        assert distance(total.value, wanted) < TOLERANCE
        assert np.all(np.asarray(aux.grad_norms)[real:] == 0)
        assert np.all(np.asarray(aux.grad_norms)[:real] > 0)


@pytest.mark.slow
def test_padding_may_stand_anywhere_in_a_mask():
    mask = jnp.asarray([True, False, False, True, False, False, False, True, True])
    total = run(
        mine(microbatch_size=2),
        NETWORK.params,
        *NETWORK.batch,
        is_padding_example=mask,
    )
    kept = np.flatnonzero(~np.asarray(mask))
    wanted = their_program()(NETWORK.params, *(part[kept] for part in NETWORK.batch))
    assert distance(total.value, wanted) < TOLERANCE


@pytest.mark.slow
@both
def test_microbatches_of_padding_are_not_run(method):
    seen = []

    def loss(w, x):
        jax.debug.callback(lambda value: seen.append(float(value)), x[0])
        return jnp.sum((x - w) ** 2)

    rows = jnp.arange(12.0)
    grad = jax.jit(
        clipped_grad(loss, l2_clip_norm=1.0, microbatch_size=3, method=method)
    )
    for real, expected in ((4, 6), (0, 0), (12, 12)):
        seen.clear()
        jax.block_until_ready(grad(jnp.float32(0.5), rows, num_real=real).value)
        jax.effects_barrier()
        assert set(seen) == set(range(expected))


@pytest.mark.slow
@both
@pytest.mark.parametrize("microbatch", [None, 3])
def test_an_empty_batch_is_an_ordinary_one(method, microbatch):
    """The peer raises: a Poisson sample is empty now and then."""
    grad = mine(method, microbatch_size=microbatch, return_values=True)
    empty = tuple(part[:0] for part in NETWORK.batch)
    total, aux = run(grad, NETWORK.params, *empty)
    assert length(total.value) == 0.0
    assert jax.tree.map(jnp.shape, total.value) == jax.tree.map(
        jnp.shape, NETWORK.params
    )
    assert aux.values.shape == (0,)
    all_padding, _ = run(grad, NETWORK.params, *NETWORK.batch, num_real=0)
    assert length(all_padding.value) == 0.0
    if method == "auto" and microbatch is None:
        with pytest.raises(ValueError, match="must be positive"):
            theirs()(NETWORK.params, *empty)


# --- what must not get through the clip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "bad"), [("auto", np.nan), ("auto", -np.inf), ("vmap", np.nan)]
)
def test_a_non_finite_example_contributes_nothing(method, bad):
    """As a whole: the peer zeroes the bad entries and keeps the others."""
    spoiled = NETWORK.batch[0].at[3, 2].set(bad)
    total = my_program(method)(NETWORK.params, spoiled, NETWORK.batch[1])
    kept = np.arange(9) != 3
    wanted = their_program()(NETWORK.params, *(part[kept] for part in NETWORK.batch))
    assert distance(total.value, wanted) < TOLERANCE


@pytest.mark.slow
@both
def test_small_half_precision_gradients_are_clipped(method):
    """A million entries of 1e-4: squares vanish in float16, and the peer lets
    a gradient of length 0.1 through a clip norm of 0.01."""
    count, norm = 1_000_000, 0.01
    params = jnp.zeros(count, jnp.float16)

    def loss(p, x):
        return jnp.sum(p * x[0])

    batch = jnp.full((1, 1), 1e-4, jnp.float16)
    total = clipped_grad(loss, l2_clip_norm=norm, method=method)(params, batch)
    assert total.value.dtype == jnp.float32
    assert norm * (1 - 1e-5) < length(total.value) <= norm
    passed = peer.clipped_grad(loss, l2_clip_norm=norm)(params, batch)
    assert length(passed) > 9 * norm


@pytest.mark.slow
@both
def test_entries_lost_in_a_running_sum_count(method):
    """1 and a million entries of 1e-4: float32 may add them up to 1."""
    params = jnp.zeros(1_000_001)
    gradient = jnp.full(1_000_001, 1e-4).at[0].set(1.0)
    grad = clipped_grad(
        lambda p, x: jnp.sum(p * gradient) * x[0],
        l2_clip_norm=1.0,
        method=method,
        return_grad_norms=True,
    )
    total, aux = grad(params, jnp.ones(1))
    assert float(aux.grad_norms[0]) == pytest.approx(np.sqrt(1.01), rel=1e-6)
    assert 1 - 1e-6 < length(total.value) <= 1.0


@pytest.mark.slow
@both
def test_huge_gradients_keep_their_direction(method):
    """Squares beyond float32 do not overflow; no example is lost that is finite."""
    grad = clipped_grad(lambda p, x: jnp.sum(p * x[0]), l2_clip_norm=1.0, method=method)
    total = grad(jnp.zeros(2), jnp.asarray([[3e25, 4e25]])).value
    assert np.allclose(total, [0.6, 0.8], rtol=1e-6)


# --- the declared sensitivity


def test_sensitivity_knows_the_relation():
    grad = mine(l2_clip_norm=3.0, normalize_by=2.0)
    relation = dp_accounting.NeighboringRelation
    once, twice = 1.5, 3.0
    for unit, wanted in [
        (relation.ADD_OR_REMOVE_ONE, once),
        (relation.REPLACE_SPECIAL, once),
        (relation.REPLACE_ONE, twice),
        ("REPLACE_ONE", twice),
        (AddOrRemoveOne(), once),
        (ZeroOut(), once),
        (ReplaceOne(), twice),
        (Ball(0.1, space="pixels"), twice),
        (AddOrRemoveOne(records_per_person=4), 4 * once),
    ]:
        assert grad.sensitivity(unit) == pytest.approx(wanted)
    for unknown in (Erasure(), "SOMETHING", None, 3):
        with pytest.raises(NotCovered):
            grad.sensitivity(unknown)


@pytest.mark.slow
@both
def test_real_neighbours_move_the_sum_by_no_more(method):
    grad = mine(method, l2_clip_norm=0.2, normalize_by=4.0)
    x, y = NETWORK.batch
    worlds = {
        "REPLACE_ONE": (x.at[0].multiply(-30), y),
        "ADD_OR_REMOVE_ONE": (x[1:], y[1:]),
    }
    program = my_program(method, l2_clip_norm=0.2, normalize_by=4.0)
    base = program(NETWORK.params, x, y).value
    for name, world in worlds.items():
        other = program(NETWORK.params, *world).value
        moved = length(jax.tree.map(jnp.subtract, base, other))
        limit = grad.sensitivity(name)
        # The two sums are rounded to float32.
        assert 0.2 * limit < moved <= limit * (1 + 1e-5)


@pytest.mark.slow
def test_one_move_reaches_the_replacement_bound():
    """The factor two is needed: a pair of worlds attains it."""
    grad = clipped_grad(lambda w, x: jnp.sum(w * x), l2_clip_norm=1.0)
    ends = [grad(jnp.zeros(3), jnp.full((1, 3), s)).value for s in (9.0, -9.0)]
    assert length(ends[0] - ends[1]) == pytest.approx(2.0, rel=1e-6)


# --- the typed sum


@pytest.mark.slow
def test_nothing_but_a_privatizer_takes_a_clipped_sum():
    total = my_program()(NETWORK.params, *NETWORK.batch)
    assert isinstance(total, ClippedSum)
    for act in (
        lambda: total + total,
        lambda: total / 9,
        lambda: 2 * total,
        lambda: -total,
        lambda: np.asarray(total),
        lambda: jnp.sum(total),
        lambda: float(total),
        lambda: bool(total),
        lambda: total[0],
        lambda: list(total),
    ):
        with pytest.raises(TypeError, match="privatizer"):
            act()
    assert jax.jit(lambda one: one)(total).l2_norm_bound == 1.0


@pytest.mark.slow
def test_parts_of_a_batch_join():
    grad = my_program()
    parts = [
        grad(NETWORK.params, *(part[rows] for part in NETWORK.batch))
        for rows in (slice(0, 4), slice(4, 9))
    ]
    whole = ClippedSum.join(parts)
    wanted = grad(NETWORK.params, *NETWORK.batch)
    assert distance(whole.value, wanted.value) < TOLERANCE
    assert whole.l2_norm_bound == 1.0
    other = run(mine(l2_clip_norm=2.0), NETWORK.params, *NETWORK.batch)
    with pytest.raises(ValueError, match="one bound"):
        ClippedSum.join([wanted, other])
    with pytest.raises(ValueError, match="at least one"):
        ClippedSum.join([])
    with pytest.raises(ValueError, match="one part twice"):
        ClippedSum.join([wanted, wanted])
    with pytest.raises(TypeError, match="ClippedSum parts"):
        ClippedSum.join([wanted.value])


@pytest.mark.slow
def test_nothing_exact_is_printed():
    total, aux = run(mine(return_values=True), NETWORK.params, *NETWORK.batch)
    for text in (repr(total), repr(aux), str(total), repr(mine())):
        for number in (aux.values[0], total.value["b2"][0]):
            assert f"{float(number):.3f}" not in text
    assert repr(Aux(values=1)) == "Aux(values; exact, not private)"


# --- bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"l2_clip_norm": -1.0}, ValueError, "positive"),
        ({"l2_clip_norm": 0.0}, ValueError, "positive"),
        ({"l2_clip_norm": np.nan}, ValueError, "positive"),
        ({"l2_clip_norm": "1"}, TypeError, "number"),
        ({"l2_clip_norm": {}}, ValueError, "hold a number"),
        (
            {"l2_clip_norm": np.inf, "rescale_to_unit_norm": True},
            ValueError,
            "positive",
        ),
        ({"normalize_by": 0.0}, ValueError, "normalize_by"),
        ({"normalize_by": np.inf}, ValueError, "normalize_by"),
        ({"microbatch_size": 0}, ValueError, "microbatch_size"),
        ({"microbatch_size": 2.5}, TypeError, "microbatch_size"),
        ({"argnums": 1}, ValueError, "only one of these"),
        ({"argnums": -1}, ValueError, "at least 0"),
        ({"argnums": ()}, ValueError, "each name an argument"),
        ({"prng_argnum": 0}, ValueError, "only one of these"),
        ({"method": "ghost"}, ValueError, "method"),
        ({"nan_safe": False}, ValueError, "left out"),
        ({"dtype": jnp.bfloat16}, ValueError, "float32 or wider"),
        ({"dtype": jnp.int32}, ValueError, "float32 or wider"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        mine(**options)


@pytest.mark.slow
@both
def test_bad_calls_are_refused(method):
    grad, (x, y) = mine(method), NETWORK.batch
    params = NETWORK.params
    with pytest.raises(ValueError, match="one batch size"):
        grad(params, x, y[:3])
    with pytest.raises(ValueError, match="no batch axis"):
        grad(params, x, jnp.int32(3))
    with pytest.raises(TypeError, match="at least 3 arguments"):
        grad(params, x)
    with pytest.raises(TypeError, match="real floating"):
        grad({**params, "b2": jnp.arange(5)}, x, y)
    with pytest.raises(ValueError, match="not both"):
        grad(params, x, y, num_real=3, is_padding_example=jnp.zeros(9, bool))
    with pytest.raises(ValueError, match="between 0 and the 9 rows"):
        grad(params, x, y, num_real=10)
    with pytest.raises(TypeError, match="whole number"):
        grad(params, x, y, num_real=2.0)
    with pytest.raises(ValueError, match=r"shape \(9,\)"):
        grad(params, x, y, is_padding_example=jnp.zeros(8, bool))
    with pytest.raises(TypeError, match="booleans"):
        grad(params, x, y, is_padding_example=jnp.zeros(9))
    with pytest.raises(TypeError, match="must be a scalar"):
        clipped_grad(lambda p, x: p * x, l2_clip_norm=1.0, method=method)(
            jnp.ones(2), jnp.ones((3, 2))
        )
    with pytest.raises(ValueError, match="hold no arrays"):
        grad({}, x, y)
    for kind in (jnp.int32, jnp.complex64):
        whole = clipped_grad(
            lambda p, x, kind=kind: jnp.sum(p * x).astype(kind),
            l2_clip_norm=1.0,
            method=method,
        )
        with pytest.raises(TypeError, match="loss must be a real floating"):
            whole(jnp.ones(2), jnp.ones((3, 2)))


def test_arguments_can_be_changed_and_are_explained():
    grad = mine()
    other = grad.with_(microbatch_size=4, l2_clip_norm=2.0)
    assert (grad.l2_norm_bound, other.l2_norm_bound) == (1.0, 2.0)
    assert other.arguments["microbatch_size"] == 4
    structs = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tuple(NETWORK)[::2]
    )
    text = str(grad.explain(structs[0], *structs[1]))
    assert "one position" in text and "product: T=1, 7 x 9" in text
    plain = grad.with_(method="vmap").explain(NETWORK.params, *NETWORK.batch)
    assert {leaf.method for leaf in plain.leaves} == {"per example"}
