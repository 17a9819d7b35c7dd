"""Ghost clipping in two passes: the same sums, at ordinary memory."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import Reporting, Resources, clipped_grad
from demur.training.clipping.clip_factors import Clip
from demur.training.clipping.ghost import memory, streaming, two_passes
from demur.training.clipping.rounding import in_float64
from demur.training.run import trainer
from tests.training.clipping.kit import (
    EVERY_NETWORK,
    QUICK_TO_COMPILE,
    Draw,
    Network,
    attention,
    distance,
    length,
    standardised,
)
from tests.training.kit import make_plan

SINGLE, DOUBLE = 1e-6, 1e-12
SLACK = two_passes._SLACK
NORM = 0.5

# XLA's default schedule for a CPU starts everything as early as it can, and needs more
# memory for that. This one is like that of a GPU.
SPARING = QUICK_TO_COMPILE | {"xla_cpu_scheduler_type": 1}


def run(network, call=None, **options):
    numbers = tuple(range(1, 1 + len(network.batch)))
    given = {"l2_clip_norm": NORM, "return_grad_norms": True} | options
    grad = clipped_grad(network.loss, batch_argnums=numbers, **given)
    program = jax.jit(
        lambda *args: grad(*args, **(call or {})), compiler_options=QUICK_TO_COMPILE
    )
    return program(network.params, *network.batch)


def assert_equal(network, tolerance=SINGLE, slack=SLACK, call=None, **options):
    """The slack is part of the form: so much is taken off the clip norm."""
    ours, aux = run(network, call, memory="ordinary", **options)
    plain, plain_aux = run(
        network, call, method="vmap", l2_clip_norm=NORM * (1 - slack), **options
    )
    assert distance(ours.value, plain.value) < tolerance
    assert distance(aux.grad_norms, plain_aux.grad_norms) < tolerance
    assert ours.l2_norm_bound * (1 - slack) == plain.l2_norm_bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {"microbatch_size": 4}),
        ("scanned", {}),
        pytest.param("convolutions", {}, marks=pytest.mark.deep),
        pytest.param("transformer", {}, marks=pytest.mark.deep),
    ],
)
def test_sums_and_norms_agree(name, options):
    call = {"num_real": 4} if options else None
    assert_equal(EVERY_NETWORK[name](Draw(1)), call=call, **options)


@pytest.mark.deep
@pytest.mark.parametrize("name", EVERY_NETWORK)
def test_sums_and_norms_agree_in_double_precision(name):
    with jax.enable_x64(True):
        assert_equal(EVERY_NETWORK[name](Draw(2, jnp.float64)), DOUBLE)


def pairs(draw, rows=4):
    """One layer of several positions; a row of infinities has no gradient."""

    def loss(p, x):
        return jnp.mean(jnp.tanh(x @ p["w"] + p["b"]) ** 2)

    params = {"w": draw.array(5, 5), "b": draw.array(5)}
    return Network(params, loss, (3 * draw.array(rows, 2, 5),))


@pytest.mark.slow
def test_half_precision_agrees_to_its_own_tolerance():
    network = pairs(Draw(6, jnp.bfloat16))
    ours, _ = run(network, memory="ordinary")
    plain, _ = run(network, method="vmap")
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(ours.value))
    assert distance(ours.value, plain.value) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("bad", [[1], [0, 1, 2, 3]])
def test_examples_that_are_not_finite_take_no_part(bad):
    network = pairs(Draw(3))
    x = network.batch[0].at[np.array(bad)].set(jnp.inf)
    good = jnp.array([row for row in range(4) if row not in bad], int)
    ours, _ = run(network._replace(batch=(x,)), memory="ordinary")
    if not good.size:
        assert length(ours.value) == 0.0
        return
    alone, _ = run(network._replace(batch=(x[good],)), memory="ordinary")
    assert 0 < distance(ours.value, jax.tree.map(jnp.zeros_like, alone.value))
    assert distance(ours.value, alone.value) < SINGLE


def too_long(monkeypatch, times):
    """A first pass that lets every example through `times` as long as it may be."""
    factors = Clip.factors

    def wrong(self, leaves, groups, real, slack=0.0):
        weights, finite = factors(self, leaves, groups, real, slack)
        return [w * (times if slack else 1.0) for w in weights], finite

    monkeypatch.setattr(Clip, "factors", wrong)


def length_of_one(network):
    """The largest contribution of one example, each in a batch of its own."""
    (x,) = network.batch
    grad = clipped_grad(network.loss, l2_clip_norm=NORM, memory="ordinary")
    program = jax.jit(grad, compiler_options=QUICK_TO_COMPILE)
    return max(
        length(program(network.params, x[row : row + 1]).value) for row in range(len(x))
    )


def test_the_second_pass_is_judged_by_its_own_norms(monkeypatch):
    """Whatever the first pass says, no contribution is longer than the clip norm."""
    network = pairs(Draw(4))
    too_long(monkeypatch, 3.0)
    assert 0.99 * NORM < length_of_one(network) <= NORM


def test_a_second_pass_that_is_not_judged_is_found(monkeypatch):
    network = pairs(Draw(4))
    too_long(monkeypatch, 3.0)
    judged = two_passes.TwoPasses._second
    monkeypatch.setattr(
        two_passes.TwoPasses,
        "_second",
        lambda *args: judged(*args)._replace(accepted=jnp.array(True)),
    )
    assert length_of_one(network) > 2 * NORM


@pytest.mark.slow
def test_a_layer_that_is_left_out_of_the_norms_is_found(monkeypatch):
    network = EVERY_NETWORK["dense"](Draw(1))
    measured = streaming.StreamedLayer.measured

    def left_out(self, numbers, sums, back):
        leaf = measured(self, numbers, sums, back)
        if self.shape != network.params["w1"].shape:
            return leaf
        nothing = in_float64(jnp.zeros_like)(leaf.upper)
        return replace(leaf, square=nothing, upper=nothing)

    monkeypatch.setattr(streaming.StreamedLayer, "measured", left_out)
    with pytest.raises(AssertionError):
        assert_equal(network)


def stack(draw, batch=8, layers=12, tokens=32, width=64, words=97):
    """A transformer whose layers are scanned and rematerialised."""
    square = (layers, width, width)
    params = {
        "words": draw.array(words, width),
        "head": draw.array(width, words, fan_in=width),
        "layers": {name: draw.array(*square, fan_in=width) for name in "qkvo"}
        | {
            "scale": 1 + draw.array(layers, width, fan_in=10),
            "up": draw.array(layers, width, 4 * width, fan_in=width),
            "down": draw.array(layers, 4 * width, width, fan_in=4 * width),
        },
    }

    def block(x, p):
        h = standardised(x) * p["scale"]
        x = x + attention(h @ p["q"], h @ p["k"], h @ p["v"]) @ p["o"]
        return x + jax.nn.gelu(standardised(x) @ p["up"]) @ p["down"], None

    def loss(p, ids):
        x, _ = jax.lax.scan(jax.checkpoint(block), p["words"][ids], p["layers"])
        logits = standardised(x) @ p["head"]
        picked = jnp.take_along_axis(logits[:, :-1], ids[:, 1:, None], -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1)) - jnp.mean(picked)

    return Network(params, loss, (draw.whole(words, batch, tokens),))


@pytest.mark.slow
def test_what_is_rematerialised_stays_so():
    """XLA's own figures, for the same schedule. The fast form is the broken twin."""
    network = stack(Draw(1))

    def figure(function):
        lowered = jax.jit(function).lower(network.params, *network.batch)
        compiled = lowered.compile(compiler_options=SPARING)
        return compiled.memory_analysis().temp_size_in_bytes

    def form(name):
        return clipped_grad(network.loss, l2_clip_norm=NORM, memory=name)

    gradient = figure(jax.grad(network.loss))
    assert figure(form("ordinary")) < 1.2 * gradient
    assert figure(form("fast")) > 5 * gradient


def test_the_form_follows_from_the_bytes_that_the_fast_one_holds():
    network = pairs(Draw(1))
    # Two positions of five numbers and their cotangents; the gradient of a bias.
    held = 4 * 4 * (2 * 5 + 2 * 5 + 5)

    def form(option, **options):
        grad = clipped_grad(network.loss, l2_clip_norm=1.0, memory=option, **options)
        return grad.explain(network.params, *network.batch).memory

    assert form(None) == form("fast") == form(held)
    assert form(held).held == held
    assert form(held - 1).form == form("ordinary").form == "ordinary"
    assert form(held // 2, microbatch_size=2).form == "fast"


def test_the_default_follows_the_device(monkeypatch):
    assert memory.form_for(None, 2**60) == "ordinary"
    assert memory.default_budget(3) == 3 * memory.default_budget()
    monkeypatch.setattr(memory, "default_budget", lambda: None)
    assert memory.form_for(None, 2**60) == "fast"


def test_a_run_passes_the_option_on():
    plan, mesh = make_plan(), jax.make_mesh((1,), ("rows",))

    def passed(**options):
        resources, reporting = Resources(**options), Reporting()
        made = trainer._gradient(plan, jnp.sum, resources, reporting)
        return made.arguments["memory"]

    assert passed() is None
    assert passed(memory="ordinary") == "ordinary"
    assert passed(memory=7, mesh=mesh) == 7
    assert passed(mesh=mesh) == memory.default_budget()


@pytest.mark.slow
def test_xlas_figures_are_shown():
    network = pairs(Draw(1))
    grad = clipped_grad(network.loss, l2_clip_norm=1.0, memory="ordinary")
    shown = grad.explain(network.params, *network.batch, compiled=True)
    figures = shown.memory.compiled
    assert min(figures.gradient, figures.fast, figures.ordinary) > 0
    assert "for the ordinary gradient" in str(shown)


@pytest.mark.parametrize("wrong", ["slow", -1, True, 0.5])
def test_other_options_are_refused(wrong):
    with pytest.raises(ValueError, match="'ordinary', 'fast' or a number of bytes"):
        clipped_grad(jnp.sum, l2_clip_norm=1.0, memory=wrong)


def test_the_plain_method_has_no_ordinary_form():
    with pytest.raises(ValueError, match="hold every gradient"):
        clipped_grad(jnp.sum, l2_clip_norm=1.0, memory="ordinary", method="vmap")
