"""Nothing computes with a clipped sum before the noise: not by hand, not by optax."""

import inspect
import pickle
import warnings
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec
from jax_privacy import noise_addition as peer

from demur.training import ClippedSum, clipped_grad, gaussian_privatizer
from tests.training.clipping.kit import QUICK_TO_COMPILE, length

VALUE = {"b": jnp.array([0.3, -0.4]), "w": jnp.array([[0.5, 0.1], [0.0, -0.2]])}
KEYS = jnp.arange(4, dtype=jnp.uint32).reshape(2, 2)
NOISE = gaussian_privatizer(1e-3, 5, l2_norm_bound=1.0)


def total():
    return ClippedSum(VALUE, 1.0)


def released(given):
    """The noisy sum less its noise, which is small here."""
    return NOISE.update(given, NOISE.init(VALUE), key=KEYS)[0]


class OpenSum:
    """The twin: a pytree whose leaves are floats, with a bound that comes along."""

    def __init__(self, value):
        self.value = value

    def check_intact(self):
        """A twin notices nothing."""


jax.tree_util.register_pytree_node(
    OpenSum, lambda s: ((s.value,), None), lambda _, parts: OpenSum(parts[0])
)


def harmless(make):
    """Whether `make()` raises, is refused by the noise, or has no larger entries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = make()
        except Exception:
            return True
    if not isinstance(made, ClippedSum | OpenSum):
        return True  # no sum any more: a privatizer takes nothing else
    try:
        made.check_intact()
        value = made.value
    except TypeError:
        return True
    return length(value) <= length(VALUE) * (1 + 1e-6)


# -- optax -----------------------------------------------------------------------------


def transformations():
    """Every transformation of optax that can be made without arguments, or from these.

    By name, so that one that is new in a later optax is tried too.
    """
    by_hand = {
        "scale": (1000.0,),
        "scale_by_learning_rate": (1000.0,),
        "scale_by_schedule": (lambda step: 1000.0,),
        "trace": (0.9,),
        "ema": (0.9,),
        "clip": (0.1,),
        "clip_by_global_norm": (0.1,),
        "clip_by_block_rms": (0.1,),
        "adaptive_grad_clip": (0.1,),
        "add_noise": (1.0, 0.5, 0),
        "add_decayed_weights": (0.1,),
        "sgd": (1000.0,),
        "adam": (1000.0,),
        "lion": (1000.0,),
    }
    found = {}
    for name in dir(optax):
        make = getattr(optax, name)
        if not callable(make) or inspect.isclass(make):
            continue
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(*by_hand.get(name, ()))
            if isinstance(made, optax.GradientTransformation):
                found[name] = made
    wrapped = optax.scale(1000.0)
    found |= {
        "masked": optax.masked(wrapped, True),
        "multi_transform": optax.multi_transform({"a": wrapped}, "a"),
        "MultiSteps": optax.MultiSteps(wrapped, 2).gradient_transformation(),
        "apply_if_finite": optax.apply_if_finite(wrapped, 3),
        "chain": optax.chain(wrapped, optax.trace(0.9)),
        "stateless": optax.stateless(
            lambda updates, _: jax.tree.map(lambda leaf: 7 * leaf, updates)
        ),
    }
    return found


def before_the_noise(transformation, make_sum):
    """Two updates, with a state made from parameters or from the sum itself."""
    for like in (VALUE, make_sum()):
        with suppress(Exception):
            state = transformation.init(like)
            for _ in range(2):
                changed, state = transformation.update(make_sum(), state, like)
            yield changed


@pytest.mark.slow
def test_nothing_of_optax_changes_a_sum_before_the_noise():
    found = transformations()
    assert len(found) > 40 and {"scale", "trace", "clip_by_global_norm"} <= set(found)
    for name, transformation in found.items():
        for changed in before_the_noise(transformation, total):
            assert harmless(lambda made=changed: made), name


@pytest.mark.slow
def test_optax_changes_an_open_sum():
    """The same comparison has power: momentum, scales and accumulation grow a twin."""
    grown = set()
    for name in ("scale", "trace", "stateless", "masked", "multi_transform"):
        made = before_the_noise(transformations()[name], lambda: OpenSum(VALUE))
        if not all(harmless(lambda change=change: change) for change in made):
            grown.add(name)
    assert grown == {"scale", "trace", "stateless", "masked", "multi_transform"}


@pytest.mark.slow
@pytest.mark.parametrize("first", [optax.scale(1000.0), optax.trace(0.9)])
def test_a_chain_adds_noise_first(first):
    """A peer's chain: the noise, then the optimiser. The other way round is refused."""
    right = optax.chain(NOISE, first)
    updates, _ = right.update(total(), right.init(VALUE), VALUE, key=KEYS)
    wanted, _ = first.update(released(total()), first.init(VALUE))
    assert length(jax.tree.map(jnp.subtract, updates, wanted)) < 1e-5
    wrong = optax.chain(first, NOISE)
    for state in (wrong.init(VALUE), (first.init(total()), NOISE.init(VALUE))):
        with pytest.raises((TypeError, ValueError)):
            wrong.update(total(), state, VALUE, key=KEYS)


@pytest.mark.slow
def test_the_peer_takes_a_sum_that_was_scaled():
    wrong = optax.chain(
        optax.scale(1000.0), peer.gaussian_privatizer(stddev=1e-3, prng_key=1)
    )
    updates, _ = wrong.update(VALUE, wrong.init(VALUE))
    assert length(updates) == pytest.approx(1000 * length(VALUE), rel=1e-3)


def test_the_refusal_says_what_to_do():
    with pytest.raises(TypeError, match="add noise before any arithmetic"):
        jax.tree.map(lambda leaf: 2.0 * leaf, total())


# -- tree.map --------------------------------------------------------------------------


def functions(module):
    """Every public function of a module, some of which take one array or two."""
    for name in dir(module):
        function = getattr(module, name)
        if callable(function) and not inspect.isclass(function) and name[0] != "_":
            yield name, function


BY_HAND = {
    "astype": lambda x: x.astype(jnp.float32),
    "float": lambda x: jnp.asarray(x, jnp.float32),
    "numpy": np.asarray,
    "view": lambda x: x.view(jnp.float32),
    "twice": lambda x: jnp.concatenate([x, x]),
    "broadcast": lambda x: jnp.broadcast_to(x, (5, *x.shape)),
    "one row": lambda x: x[0],
    "bits": lambda x: jax.random.key_data(x),
    "other key": lambda x: jax.random.key(0),
    "other sum": lambda x: jnp.zeros(x.shape),
    "nothing": lambda x: None,
    "at": lambda x: x.at[0].add(1.0),
    "compiled": jax.jit(lambda x: x + x),
    "in place": lambda x: x.__imul__(3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "least"),
    [
        (jax.lax, 150),
        pytest.param(jnp, 300, marks=pytest.mark.deep),
        pytest.param(jax.nn, 25, marks=pytest.mark.deep),
        pytest.param(jax.scipy.special, 30, marks=pytest.mark.deep),
    ],
)
def test_no_function_of_jax_changes_a_sum(module, least):
    tried = list(functions(module))
    assert len(tried) >= least
    given = total()
    for name, function in tried:
        for arguments in ((given,), (given, given)):
            assert harmless(lambda: jax.tree.map(function, *arguments)), name  # noqa: B023


@pytest.mark.parametrize("name", BY_HAND)
def test_no_function_by_hand_changes_a_sum(name):
    assert harmless(lambda: jax.tree.map(BY_HAND[name], total()))
    by_path = jax.tree_util.tree_map_with_path
    assert harmless(lambda: by_path(lambda _, leaf: BY_HAND[name](leaf), total()))


@pytest.mark.parametrize("name", ["add", "multiply", "sinh", "exp", "cumsum", "square"])
def test_functions_change_an_open_sum(name):
    function = getattr(jnp, name)
    twin = OpenSum(jax.tree.map(lambda leaf: 3 * leaf, VALUE))
    two = (twin, twin) if name in ("add", "multiply") else (twin,)
    assert not harmless(lambda: jax.tree.map(function, *two))


def test_a_changed_sum_is_refused_by_the_noise():
    for change in (
        lambda x: jnp.zeros(x.shape),
        lambda x: jnp.concatenate([x, x]),
        lambda x: x[:1],
        lambda x: None,
        lambda x: jax.random.split(jax.random.key(0), x.shape),
    ):
        with pytest.raises(TypeError, match=r"changed between clipping and noise"):
            released(jax.tree.map(change, total()))
    with pytest.raises(AttributeError, match="cannot be changed"):
        total()._sealed = VALUE


# -- what a sum must survive -----------------------------------------------------------


def assert_whole(given):
    given.check_intact()
    assert length(jax.tree.map(jnp.subtract, given.value, VALUE)) == 0.0


def test_a_sum_crosses_jit_scan_checkpoint_and_donation():
    assert_whole(jax.jit(lambda one: one)(total()))
    assert_whole(jax.checkpoint(lambda one: one)(total()))
    carried, _ = jax.lax.scan(lambda one, _: (one, None), total(), None, length=3)
    assert_whole(carried)
    join = jax.jit(
        lambda one, two: ClippedSum.join([one, two]), donate_argnums=0
    ).lower(total(), total())
    assert join.compile().memory_analysis().alias_size_in_bytes == 4 * 6
    assert_whole(jax.device_put(total(), jax.devices()[0]))
    assert_whole(jax.block_until_ready(total()))
    with pytest.raises(TypeError, match="not saved or sent"):
        pickle.dumps(total())


@pytest.mark.slow
def test_wide_and_narrow_sums():
    assert ClippedSum(jnp.ones(3, jnp.bfloat16), 1.0).value.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = ClippedSum(jnp.ones(3, jnp.float64) / 3, 1.0)
    assert np.asarray(wide.value).dtype == np.float64
    assert float(wide.value[0]) == 1 / 3
    with pytest.raises(TypeError, match="real numbers"):
        ClippedSum(jnp.ones(3, jnp.int32), 1.0)


@pytest.mark.slow
def test_a_sum_has_no_derivative():
    """A gradient through it would be silently zero."""
    grad = clipped_grad(
        lambda w, x: jnp.sum((w * x) ** 2), l2_clip_norm=1.0, method="vmap"
    )

    def outer(w):
        return jnp.sum(grad(w, jnp.ones((2, 3))).value)

    with pytest.raises(TypeError, match="no derivative"):
        jax.grad(outer)(jnp.ones(3))


def on_mesh(function, in_specs, **options):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    whole = PartitionSpec()
    made = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=whole, **options
    )
    return jax.jit(made, compiler_options=QUICK_TO_COMPILE)


@pytest.mark.slow
def test_shards_are_added_by_psum_and_counted_once():
    """On one device here; `test_sharded` adds up eight."""
    rows, params = jnp.ones((2, 3)), jnp.zeros(3)
    grad = clipped_grad(lambda w, x: jnp.sum(w * x), l2_clip_norm=1.0, method="vmap")
    wanted = grad(params, rows).value
    spread, whole = PartitionSpec("d"), PartitionSpec()

    def once(params, rows):
        return grad(params, rows).psum("d")

    def twice(params, rows):
        return grad(params, rows).psum("d").psum(("d",))

    for options in ({}, {"check_vma": False}):
        summed = on_mesh(once, (whole, spread), **options)(params, rows)
        np.testing.assert_array_equal(summed.value, wanted)
        with pytest.raises(ValueError, match="count once for every shard"):
            on_mesh(twice, (whole, spread), **options)(params, rows)
    # The same rows on every shard, and even if the parameters are not the same.
    for specs in ((whole, whole), (spread, whole)):
        with pytest.raises(ValueError, match="hold the same examples"):
            on_mesh(once, specs)(params, rows)
    with pytest.raises(TypeError, match="add noise before any arithmetic"):
        on_mesh(lambda p, r: jax.lax.psum(grad(p, r), "d"), (whole, spread))(
            params, rows
        )
    with pytest.raises(ValueError, match="over mesh axes"):
        jax.vmap(lambda r: grad(params, r).psum("d"), axis_name="d")(rows[:, None])


@pytest.mark.slow
def test_pmap_adds_up_and_adds_no_noise():
    rows, params = jnp.ones((1, 2, 3)), jnp.zeros(3)
    grad = clipped_grad(lambda w, x: jnp.sum(w * x), l2_clip_norm=1.0, method="vmap")
    act = gaussian_privatizer(1.0, 5)
    state = act.init(params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack = jax.pmap(lambda r: grad(params, r).psum("d"), axis_name="d")(rows)
        with pytest.raises(TypeError, match=r"outside shard_map and pmap"):
            jax.pmap(lambda r: act.update(grad(params, r), state, key=KEYS[:1])[0])(
                rows
            )
    (member,) = stack.members()
    np.testing.assert_array_equal(member.value, grad(params, rows[0]).value)


@pytest.mark.slow
def test_noise_inside_shard_map():
    """Only what JAX knows to be the same on all shards, with keys that are."""
    act = gaussian_privatizer(1.0, 5)
    whole, spread = PartitionSpec(), PartitionSpec("d")

    def noisy(value, keys):
        state = act.init(value)
        return act.update(ClippedSum(value, 1.0), state, key=keys)[0]

    alone = noisy(jnp.zeros(3), KEYS[:1])
    inside = on_mesh(noisy, (whole, whole))(jnp.zeros(3), KEYS[:1])
    np.testing.assert_array_equal(inside, alone)
    for specs, options in (
        ((spread, whole), {}),
        ((whole, spread), {}),
        ((whole, whole), {"check_vma": False}),
    ):
        with pytest.raises(TypeError, match="outside shard_map"):
            on_mesh(noisy, specs, **options)(jnp.zeros(3), KEYS[:1])
    with pytest.raises(TypeError, match="outside shard_map"):
        on_mesh(lambda v: noisy(v, None), (whole,))(jnp.zeros(3))
