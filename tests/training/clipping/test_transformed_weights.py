"""Tied and transformed weights: the gradients of `vmap`, without forming them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import clipped_grad
from demur.training.clipping import norms
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.ghost import lookups, routes, transforms
from demur.training.clipping.norms import measure
from tests.training.clipping.kit import (
    QUICK_TO_COMPILE,
    Draw,
    Network,
    both_methods,
    distance,
    ways,
)

DOUBLE = 1e-12


def assert_equal(network, memory=None, tolerance=DOUBLE):
    (auto, auto_aux), (plain, plain_aux) = both_methods(network, memory)
    assert distance(auto_aux.grad_norms, plain_aux.grad_norms) < tolerance
    if memory is None:
        assert distance(auto.value, plain.value) < tolerance
    else:  # 2^-16 is taken off the clip norm there
        assert distance(auto.value, plain.value) < 1.1 * 2**-16


def tied(draw, batch=3, words=40, width=12, tokens=4, cast=None):
    """Input and output embedding are one matrix, and so are two look-ups of it."""
    params = {"rows": draw.array(words, width), "w": draw.array(width, width)}

    def loss(p, ids):
        table = p["rows"] if cast is None else p["rows"].astype(cast)
        h = p["rows"][ids] * 3.0 + jnp.roll(p["rows"][ids % 5], 1, axis=1)
        logits = jnp.tanh(h @ p["w"]) @ table.T.astype(h.dtype)
        picked = jnp.take_along_axis(logits[:, :-1], ids[:, 1:, None], -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1)) - jnp.mean(picked)

    return Network(params, loss, (draw.whole(words, batch, tokens),))


def soft_and_hard(draw):
    """A table is looked up, and mixed by weights over its rows; untransposed."""

    def loss(p, ids, x):
        soft = jax.nn.softmax(x) @ p["rows"]
        return jnp.sum(jnp.sin(soft[:, None] * p["rows"][ids]))

    params = {"rows": draw.array(30, 9)}
    return Network(params, loss, (draw.whole(7, 3, 4), draw.array(3, 30)))


def scanned_and_not(draw):
    """One weight in every turn of a recurrence, and transposed behind it."""

    def loss(p, x):
        def turn(h, step):
            return jnp.tanh(h @ p["w"] + step), None

        h, _ = jax.lax.scan(turn, jnp.zeros((1, 12), x.dtype), jnp.moveaxis(x, 1, 0))
        behind = jax.checkpoint(lambda w, h: jnp.sin(h @ w.T))
        return jnp.sum(behind(p["w"], h) ** 2)

    return Network({"w": draw.array(12, 12, fan_in=4)}, loss, (draw.array(3, 3, 12),))


def made(draw, weight, **params):
    """Two positions of a layer whose weight is made of `params`."""

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ weight(p)) ** 2)

    return Network(params, loss, (draw.array(3, 2, 12),))


def low_rank(draw):
    return made(
        draw,
        lambda p: 2.0 * p["w"] - p["a"] @ p["b"] / 3.0,
        w=draw.array(12, 14),
        a=draw.array(12, 5),
        b=draw.array(5, 14),
    )


def deep_product(draw):
    return made(
        draw,
        lambda p: (p["c"] @ (p["a"] @ p["b"]).T).T,
        a=draw.array(12, 9),
        b=draw.array(9, 10),
        c=draw.array(11, 10),
    )


def masked(draw):
    keep = draw.array(12, 14) > 0
    return made(
        draw,
        lambda p: p["w"] * p["gate"] + jnp.where(keep, 0.0, p["v"]),
        w=draw.array(12, 14),
        gate=draw.array(12, 14),
        v=draw.array(12, 14),
    )


def scaled(draw):
    return made(
        draw,
        lambda p: -(p["w"] * jnp.arange(12.0)[:, None]).T.T / p["s"] * 0.7,
        w=draw.array(12, 14),
        s=2 + draw.array(14) ** 2,
    )


def squared(draw):
    """Two ways through one equation: the product rule."""
    return made(draw, lambda p: p["w"] + p["w"].T, w=draw.array(12, 12))


def scanned_layers(draw):
    params = {
        "w": draw.array(3, 12, 12, fan_in=12),
        "a": draw.array(3, 12, 4, fan_in=12),
        "b": draw.array(3, 4, 12, fan_in=4),
        "s": draw.array(3, 12),
    }

    def block(h, p):
        return jnp.tanh(h @ (p["w"] * p["s"] + p["a"] @ p["b"])), None

    def loss(p, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(block), x, p)[0] ** 2)

    return Network(params, loss, (draw.array(3, 2, 12),))


def recurrent(draw):
    """The other operand of a step is the same in every turn."""

    def loss(p, x):
        def turn(h, step):
            return jnp.tanh(h @ (p["a"] @ p["b"]) + step), None

        h, _ = jax.lax.scan(turn, jnp.zeros((1, 12), x.dtype), jnp.moveaxis(x, 1, 0))
        return jnp.sum(h**2)

    params = {"a": draw.array(12, 8, fan_in=12), "b": draw.array(8, 12, fan_in=8)}
    return Network(params, loss, (draw.array(3, 3, 12),))


def factored_table(draw):
    def loss(p, ids):
        return jnp.sum(jnp.sin((p["a"] @ p["b"] * p["s"])[ids]))

    params = {"a": draw.array(20, 3), "b": draw.array(3, 8), "s": draw.array(8)}
    return Network(params, loss, (draw.whole(6, 3, 5),))


def batched(draw):
    """Experts: an axis that weight and data share, scaled along it."""

    def loss(p, x):
        return jnp.sum(jnp.einsum("bei,eio->beo", x, p["w"] * p["s"][:, None]) ** 3)

    params = {"w": draw.array(4, 6, 7), "s": draw.array(4, 7)}
    return Network(params, loss, (draw.array(3, 4, 6),))


def split(draw):
    """Queries, keys and values from one weight; a part of another is never used."""

    def loss(p, x):
        q, k, v = (x @ w for w in jnp.split(p["qkv"], 3, axis=1))
        mixed = jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2)) @ v
        half = jnp.tanh(mixed @ p["w"][:, :5]) @ p["w"][:5, 7:].astype(x.dtype)
        return jnp.sum(half**2)

    params = {"qkv": draw.array(12, 36, fan_in=12), "w": draw.array(12, 12)}
    return Network(params, loss, (draw.array(3, 2, 12),))


def overlapping(draw):
    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["w"][:, :8]) * (x @ p["w"][:, 4:]))

    return Network({"w": draw.array(12, 12)}, loss, (draw.array(3, 2, 12),))


EVERY = {
    "split": (split, {"qkv": "Gram", "w": "Gram"}),
    "overlapping": (overlapping, {"w": "per example"}),
    "tied": (tied, {"rows": "rows and Gram"}),
    "soft and hard": (soft_and_hard, {"rows": "rows and Gram"}),
    "scanned and not": (scanned_and_not, {"w": "Gram"}),
    "low rank": (low_rank, {"w": "Gram", "a": "Gram", "b": "Gram"}),
    "deep product": (deep_product, {"a": "Gram", "b": "Gram", "c": "Gram"}),
    "masked": (masked, {name: "a few at a time" for name in ("w", "gate", "v")}),
    "scaled": (scaled, {"w": "Gram"}),
    "squared": (squared, {"w": "Gram"}),
    "scanned layers": (scanned_layers, {"w": "Gram", "a": "Gram", "b": "Gram"}),
    "recurrent": (recurrent, {"a": "Gram", "b": "Gram"}),
    "factored table": (factored_table, {"a": "equal rows"}),
    "batched": (batched, {"w": "one position"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_sums_and_norms_agree_in_double_precision(name):
    make, expected = EVERY[name]
    with jax.enable_x64(True):
        network = make(Draw(1, jnp.float64))
        assert expected.items() <= ways(network).items()
        assert_equal(network)


@pytest.mark.deep
@pytest.mark.parametrize("name", EVERY)
def test_sums_and_norms_agree_in_the_ordinary_form(name):
    with jax.enable_x64(True):
        assert_equal(EVERY[name][0](Draw(2, jnp.float64)), "ordinary")


@pytest.mark.slow
def test_in_single_precision_with_a_cast_in_one_use():
    assert_equal(tied(Draw(3), cast=jnp.bfloat16), tolerance=2e-2)
    assert_equal(tied(Draw(3)), tolerance=1e-6)


def _half_of_it(looked_up, product):
    cross, error = CROSS(looked_up, product)
    return cross / 2, error


def _not_lined_up(layers, paths):
    return list(paths)


CROSS = lookups._cross_term


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "broken", "make"),
    [
        (lookups, "_cross_term", _half_of_it, tied),
        (lookups, "_cross_term", _half_of_it, soft_and_hard),
        (routes, "lined_up", _not_lined_up, scanned_and_not),
        (routes, "are_apart", lambda eqns: True, overlapping),
        (transforms.Back, "_scale", lambda self, value: 1 + 0 * value, batched),
        (
            norms,
            "_masked",
            lambda left, right, mask: norms._gram(left, right, 1),
            masked,
        ),
    ],
)
def test_broken_rules_are_noticed(monkeypatch, where, name, broken, make):
    """The comparison has power: each rule, broken, is told from the right one."""
    with jax.enable_x64(True):
        network = make(Draw(4, jnp.float64))
        monkeypatch.setattr(where, name, broken)
        with pytest.raises((AssertionError, TypeError)):
            assert_equal(network, tolerance=1e-6)


def temporary(network, **options):
    numbers = tuple(range(1, 1 + len(network.batch)))
    grad = clipped_grad(
        network.loss, l2_clip_norm=1.0, batch_argnums=numbers, **options
    )
    lowered = jax.jit(grad).lower(network.params, *network.batch)
    program = lowered.compile(compiler_options=QUICK_TO_COMPILE)
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_no_gradient_of_a_tied_table_is_formed():
    """XLA's own figures: batch x vocabulary x width is many times what is used."""
    words, width, batch = 3000, 64, 16
    network = tied(Draw(5), batch=batch, words=words, width=width)
    whole = 4 * batch * words * width
    assert temporary(network, method="vmap") > whole
    for memory in ("fast", "ordinary"):
        assert temporary(network, memory=memory) < whole / 2


@pytest.mark.slow
def test_upper_bounds_are_above_and_close():
    """In float32, against float64: look-up with product, and a mask."""
    rng = np.random.default_rng(6)
    left, right, looked = (
        rng.normal(size=size).astype(np.float32)
        for size in ((5, 1, 6, 50), (5, 1, 6, 30), (5, 1, 7, 30))
    )
    numbers = rng.integers(-1, 9, size=(5, 1, 7))
    product = np.einsum("bsti,bsto->bio", left.astype(float), right.astype(float))
    table = np.zeros_like(product)
    for b, t in np.ndindex(5, 7):
        if numbers[b, 0, t] >= 0:
            table[b, numbers[b, 0, t]] += looked[b, 0, t]
    mask = rng.normal(size=(1, 50, 30)).astype(np.float32)
    whole = FactoredGradients(jnp.asarray(left), jnp.asarray(right))
    rows = FactoredGradients(None, looked, rows=jnp.asarray(numbers), table=50)
    for found, true in (
        (lookups.measure_mixed(rows, whole), product + table),
        (
            measure(FactoredGradients(whole.left, whole.right, mask=jnp.asarray(mask))),
            product * mask.astype(float),
        ),
    ):
        squares, upper = np.sum(true**2, (1, 2)), np.asarray(found.upper)
        assert np.asarray(found.square) == pytest.approx(squares, rel=1e-6)
        assert (squares <= upper).all() and (upper < squares * (1 + 1e-5)).all()


def test_what_has_no_factored_form_is_formed():
    """Weight norm: a length is no linear step."""
    draw = Draw(7)
    network = made(
        draw,
        lambda p: p["v"] * p["g"] / jnp.linalg.norm(p["v"], axis=0),
        v=draw.array(12, 14),
        g=draw.array(14),
    )
    assert ways(network) == {"v": "per example", "g": "per example"}
    assert_equal(network, tolerance=1e-6)
