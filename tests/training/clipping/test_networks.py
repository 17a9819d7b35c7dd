"""Ghost clipping gives what differentiating example by example gives, everywhere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demur.training.clipping import norms
from demur.training.clipping.ghost import lookups, routes
from tests.families import thinned
from tests.training.clipping.kit import (
    EVERY_NETWORK,
    Draw,
    Network,
    attention,
    both_methods,
    distance,
    standardised,
    ways,
)

SINGLE, DOUBLE = 1e-6, 1e-12
NEARLY_DOUBLE = 1e-10  # where saturation takes some digits


def assert_equal(network, tolerance=SINGLE, **options):
    (auto, auto_aux), (plain, plain_aux) = both_methods(network, **options)
    assert distance(auto.value, plain.value) < tolerance
    assert distance(auto_aux.grad_norms, plain_aux.grad_norms) < tolerance
    assert auto.l2_norm_bound == plain.l2_norm_bound


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(EVERY_NETWORK, 2))
def test_sums_and_norms_agree(name):
    assert_equal(EVERY_NETWORK[name](Draw(1)))


@pytest.mark.deep
@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_sums_and_norms_agree_in_double_precision(name):
    with jax.enable_x64(True):
        assert_equal(EVERY_NETWORK[name](Draw(2, jnp.float64)), DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {"microbatch_size": 4}),
        ("dense", {"rescale_to_unit_norm": True, "normalize_by": 7.0}),
        pytest.param(
            "convolutions",
            {"rescale_to_unit_norm": True, "normalize_by": 7.0},
            marks=pytest.mark.deep,
        ),
        ("dense", {"l2_clip_norm": 1e6}),
    ],
)
def test_options_agree(name, options):
    assert_equal(EVERY_NETWORK[name](Draw(3)), **options)


@pytest.mark.slow
def test_convolutions_by_their_patches_agree(monkeypatch):
    """On a CPU these kernels are formed by JAX's own rule; elsewhere they are not."""
    monkeypatch.setattr(routes, "_is_better_formed_by_jax", lambda way: False)
    network = EVERY_NETWORK["convolutions"](Draw(1))
    found = ways(network)
    assert found["plain"] == found["grouped"] == "instantiated"
    assert found["deep"] == "Gram"
    assert_equal(network)


@pytest.mark.slow
def test_users_with_several_examples_agree():
    draw = Draw(4)
    network = EVERY_NETWORK["dense"](draw)
    users = network._replace(batch=(draw.array(5, 3, 7), draw.whole(5, 5, 3)))
    assert_equal(users, keep_batch_dim=False, microbatch_size=2)


@pytest.mark.slow
def test_clip_norms_of_parts_agree_in_double_precision():
    with jax.enable_x64(True):
        network = EVERY_NETWORK["dense"](Draw(5, jnp.float64))
        norms_of_parts = {"w1": 0.1, "b1": 0.2, "w2": 0.3, "b2": 4.0}
        assert_equal(network, DOUBLE, l2_clip_norm=norms_of_parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("dense", jnp.float16),
        ("convolutions", jnp.bfloat16),
    ],
)
def test_half_precision_agrees_to_its_own_tolerance(name, dtype):
    """Sums are float32, and what rounding may add is taken off the clip norm."""
    network = EVERY_NETWORK[name](Draw(6, dtype))
    (auto, _), (plain, _) = both_methods(network)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(auto.value))
    assert distance(auto.value, plain.value) < 0.06


@pytest.mark.slow
def test_each_parameter_goes_the_way_it_should():
    assert ways(EVERY_NETWORK["dense"](Draw(1))) == {
        "w1": "one position",
        "b1": "per example",
        "w2": "one position",
        "b2": "per example",
    }
    found = ways(EVERY_NETWORK["convolutions"](Draw(1)))
    assert found["plain"] == found["grouped"] == found["deep"] == "per example"
    found = ways(EVERY_NETWORK["transformer"](Draw(1)))
    assert found["words"] == "equal rows"
    assert found["places"] == "per example"
    assert {found[name] for name in ("q", "k", "v", "o")} == {"Gram"}
    found = ways(EVERY_NETWORK["awkward"](Draw(1)))
    assert found["twice"] == "instantiated"
    assert found["rows"] == "equal rows"
    assert found["unused"] == "zero"
    made_of_others = {"base", "low", "rank"}
    assert {found[name] for name in made_of_others} == {"instantiated"}
    others = set(found) - {"twice", "rows", "unused"} - made_of_others
    assert {found[name] for name in others} == {"per example"}


def test_scanned_layers_are_not_instantiated():
    network = EVERY_NETWORK["scanned"](Draw(1))
    found = ways(network)
    assert found["layers']['w"] == found["saved']['v"] == "Gram"
    assert found["recurrent"] == found["nested"] == "instantiated"
    assert found["layers']['b"] == found["start"] == "per example"


def _diagonal_only(left, right, scale_left):
    """A Gram sum without its cross terms."""
    with jax.enable_x64(True):
        a = jnp.sum(left.astype(jnp.float64) ** 2, -1)
        b = jnp.sum(right.astype(jnp.float64) ** 2, -1)
        square = jnp.sum(a * b, (1, 2))
        return square, square, (square * 0, square * 0), [square * 0] * 2


def _half_of_gradients(gradients):
    return norms.measure_instantiated(gradients / 2)


def _rows_apart(numbers, right):
    """A look-up in which equal rows are not added before the square."""
    with jax.enable_x64(True):
        square = jnp.sum(right.astype(jnp.float64) ** 2, (1, 2, 3))
        return square, square, square * 0


def gram(draw):
    return Network(
        {"w": draw.array(12, 12, fan_in=12)},
        lambda p, x: jnp.sum(jnp.tanh(x @ p["w"]) ** 2),
        (draw.array(4, 3, 12),),
    )


def look_up(draw):
    return Network(
        {"rows": draw.array(9, 5)},
        lambda p, ids: jnp.sum(jnp.sin(p["rows"][ids])),
        (draw.whole(9, 6, 7) // 2,),
    )


def kinds(draw):
    """Few rows, looked up many times; numbers beyond the table take no part."""

    def loss(p, ids, x):
        found = p["rows"].at[ids].get(mode="fill", fill_value=0.5)
        return jnp.sum(jnp.sin(found * x))

    ids = draw.whole(4, 6, 7)
    return Network({"rows": draw.array(3, 5)}, loss, (ids, draw.array(6, 7, 5)))


def mirrored(draw):
    over = (((1,), (1,)), ((), ()))

    def loss(p, x):
        h = jnp.tanh(x @ p["w"])
        return jnp.sum(jax.lax.dot_general(h, p["w"], over) ** 2)

    return Network({"w": draw.array(6, 6)}, loss, (draw.array(4, 6),))


def scaled(draw):
    return Network(
        {"w": draw.array(6, 6)},
        lambda p, x: jnp.sum(jnp.tanh(x @ jnp.sin(p["w"]))),
        (draw.array(4, 6),),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "broken", "make"),
    [
        (norms, "_gram", _diagonal_only, gram),
        (lookups, "_paired_lookup", _rows_apart, look_up),
        (lookups, "measure_instantiated", _half_of_gradients, kinds),
        (routes, "lined_up", lambda _, paths: list(paths), mirrored),
        (routes, "keeps_norms", lambda eqn: len(eqn.invars) == 1, scaled),
    ],
)
def test_broken_rules_are_noticed(monkeypatch, where, name, broken, make):
    """The comparison has power: each rule, broken, is told from the right one."""
    network = make(Draw(7))
    assert_equal(network)
    monkeypatch.setattr(where, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        assert_equal(network)


@pytest.mark.slow
def test_many_look_ups_are_sorted(monkeypatch):
    monkeypatch.setattr(lookups, "_MOST_PAIRS", 2)
    assert_equal(look_up(Draw(9)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_rows_outside_a_table(mode):
    """Two numbers beyond the end are one row when clipped, and none when dropped."""
    draw = Draw(10)
    ids = jnp.asarray([[0, 7, 9, 3], [8, 8, 1, 2], [1, 2, 3, 4]])
    if mode == "promise_in_bounds":
        ids = ids % 5

    def loss(p, ids):
        found = p.at[ids].get(mode=mode, fill_value=0.5)
        return jnp.sum(jnp.sin(found + 0.1 * jnp.arange(4)[:, None]))

    assert_equal(Network(draw.array(5, 6), loss, (ids,)), keep_batch_dim=False)


@pytest.mark.slow
def test_long_strips_and_pieces(monkeypatch):
    """The tables are built from strips and pieces; small ones here, same result."""
    monkeypatch.setattr(norms, "STRIP", 2)
    monkeypatch.setattr(norms, "_LONGEST", 3)
    draw = Draw(11)
    assert_equal(gram(draw)._replace(batch=(draw.array(4, 5, 12),)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        lambda p, x: jnp.sum(jnp.abs(jnp.fft.fft(p["w"]) * x) ** 2),
        lambda p, x: jnp.sum(jnp.abs((x * (1 + 2j)) @ p["w"]) ** 2 + x @ p["w"]),
    ],
)
def test_parameters_that_become_complex(loss):
    """On their way to a real loss: no use of a parameter is overlooked."""
    draw = Draw(13)
    assert_equal(Network({"w": draw.array(3, 3)}, loss, (draw.array(2, 3),)))


@pytest.mark.slow
def test_stacked_layers_that_are_run_twice():
    """A scan over layers inside one that shares them all."""

    def loss(p, x):
        def all_layers(h, _):
            return jax.lax.scan(lambda h, w: (jnp.sin(h @ w), None), h, p["w"])[0], None

        return jnp.sum(jax.lax.scan(all_layers, x, None, length=2)[0] ** 2)

    draw = Draw(14)
    network = Network({"w": draw.array(3, 4, 4, fan_in=4)}, loss, (draw.array(2, 4),))
    assert ways(network) == {"w": "Gram"}
    assert_equal(network)


@pytest.mark.slow
def test_no_positions_at_all():
    """A convolution that leaves no pixel has no gradient."""
    assert_equal(gram(Draw(12))._replace(batch=(Draw(12).array(3, 0, 12),)))


LAYERS = st.lists(
    st.sampled_from(
        ["dense", "bias", "scale", "norm", "attend", "conv", "scan", "again", "low"]
    ),
    min_size=1,
    max_size=5,
)


def random_network(seed, kinds, width, tokens):
    """A stack of layers over [1, tokens, width] rows, each with its parameters."""
    draw = Draw(seed)
    params = {"rows": draw.array(9, width)}
    shared = draw.array(width, width, fan_in=width)
    for number, kind in enumerate(kinds):
        square = draw.array(width, width, fan_in=width)
        params[f"{number}"] = {
            "dense": {"w": square},
            "bias": {"b": draw.array(width)},
            "scale": {"s": draw.array(width)},
            "norm": {"s": draw.array(width), "b": draw.array(width)},
            "attend": {"qkv": draw.array(width, 3 * width, fan_in=width)},
            "conv": {"k": draw.array(3, width, width, fan_in=3 * width)},
            "scan": {"w": draw.array(2, width, width, fan_in=width)},
            "again": {},
            "low": {"a": draw.array(width, 2), "b": draw.array(2, width)},
        }[kind]
    if "again" in kinds:
        params["shared"] = shared

    def layer(kind, p, shared, x):
        if kind == "dense":
            return jnp.tanh(x @ p["w"])
        if kind == "bias":
            return x + p["b"]
        if kind == "scale":
            return x * p["s"]
        if kind == "norm":
            return standardised(x) * p["s"] + p["b"]
        if kind == "attend":
            return x + attention(*jnp.split(x @ p["qkv"], 3, axis=-1))
        if kind == "conv":
            return jax.lax.conv_general_dilated(
                x, p["k"], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
            )
        if kind == "scan":
            return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, p["w"])[0]
        if kind == "again":
            return jnp.tanh(x @ shared)
        return x + (x @ p["a"]) @ p["b"]

    def loss(params, ids):
        x = params["rows"][ids]
        for number, kind in enumerate(kinds):
            x = layer(kind, params[f"{number}"], params.get("shared"), x)
        return jnp.mean(x**2)

    return Network(params, loss, (draw.whole(9, 3, tokens),))


quietly = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
any_network = given(
    seed=st.integers(0, 2**16),
    kinds=LAYERS,
    width=st.sampled_from([2, 5, 16]),
    tokens=st.sampled_from([1, 3, 8]),
)


def in_double(network):
    return network._replace(
        params=jax.tree.map(lambda leaf: leaf.astype(jnp.float64), network.params)
    )


def assert_as_exact(network):
    """Equal in double precision, and in single as near to that as `vmap` is.

    A layer in saturation has a derivative 1 - tanh^2 near 0, which loses most of its
    digits in float32 before either method sees it. Two programs round it differently,
    and the more the smaller it is, whatever the size of the network: no fixed distance
    between them fits every loss. The error of the plain method, against double
    precision, is how many digits the loss itself leaves.
    """
    with jax.enable_x64(True):
        (auto, auto_aux), (plain, plain_aux) = both_methods(in_double(network))
        exact = jax.device_get((plain.value, plain_aux.grad_norms))
        assert distance(auto.value, exact[0]) < NEARLY_DOUBLE
        assert distance(auto_aux.grad_norms, exact[1]) < NEARLY_DOUBLE
    singles = [(total.value, aux.grad_norms) for total, aux in both_methods(network)]
    for ours, theirs, true in zip(*singles, exact, strict=True):
        assert distance(ours, true) < 3e-6 + 3 * distance(theirs, true)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kinds", "width", "tokens"),
    [
        pytest.param(
            1,
            ["dense", "norm", "attend", "bias", "again"],
            5,
            3,
            marks=pytest.mark.deep,
        ),
        (2, ["again", "conv", "scan", "scale", "low", "again"], 2, 8),
    ],
)
def test_stacks_of_all_layers_agree(seed, kinds, width, tokens):
    """Each layer once, the shared one twice; `make deep` draws stacks at random."""
    assert_as_exact(random_network(seed, kinds, width, tokens))


@pytest.mark.deep
@settings(quietly, max_examples=150)
@any_network
def test_many_random_networks_agree(seed, kinds, width, tokens):
    assert_as_exact(random_network(seed, kinds, width, tokens))
