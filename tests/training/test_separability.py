"""A loss is checked in its precision: narrow dtypes pass, interactions do not."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import LossNotSeparable
from demur.training.run.loss_checks import separability
from demur.training.run.loss_checks.separability import _made_up, check_separable
from demur.training.run.loss_checks.widened_programs import WidenedProgram
from tests.training.clipping.test_every_primitive import BY_HAND, found

WIDTH = 24


def parameters(dtype):
    rng = np.random.default_rng(0)
    shapes = {"w": (6, WIDTH), "b": (WIDTH,), "v": (WIDTH, 3)}
    return {
        name: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), dtype)
        for name, shape in shapes.items()
    }


def mixing(amount, inside=None):
    """A network that takes `amount` of the batch's mean off its hidden values."""

    def loss(params, x):
        if inside is not None:
            params, x = jax.tree.map(lambda leaf: leaf.astype(inside), (params, x))
        hidden = jnp.tanh(x @ params["w"] + params["b"])
        if amount:
            hidden = hidden - amount * hidden.mean(axis=0, keepdims=True)
        return jnp.mean((hidden @ params["v"]) ** 2)

    return loss


def check(loss, dtype):
    structs = (jax.ShapeDtypeStruct((2, 6), dtype),)
    return check_separable(loss, parameters(dtype), structs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "inside"),
    [
        (jnp.bfloat16, None),
        pytest.param(jnp.float32, jnp.bfloat16, marks=pytest.mark.deep),
        pytest.param(jnp.float16, None, marks=pytest.mark.deep),
        pytest.param(jnp.bfloat16, jnp.float16, marks=pytest.mark.deep),
    ],
)
def test_narrow_precision_passes(dtype, inside):
    assert check(mixing(0.0, inside), dtype) == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("amount", "dtype", "inside"),
    [
        # By little: below one rounding of bfloat16, or of an 8-bit float.
        pytest.param(0.01, jnp.bfloat16, None, marks=pytest.mark.deep),
        (0.01, jnp.float32, jnp.bfloat16),
        pytest.param(0.01, jnp.bfloat16, jnp.bfloat16, marks=pytest.mark.deep),
        pytest.param(0.01, jnp.float16, None, marks=pytest.mark.deep),
        pytest.param(0.01, jnp.float32, jnp.float8_e4m3fn, marks=pytest.mark.deep),
    ],
)
def test_examples_that_mix_in_narrow_precision_are_found(amount, dtype, inside):
    with pytest.raises(LossNotSeparable):
        check(mixing(amount, inside), dtype)


def deep(amount):
    """Eight layers in bfloat16, with all that a program can be made of around them."""

    @jax.custom_jvp
    def curved(x):
        return jnp.tanh(x)

    curved.defjvps(lambda t, y, x: t * (1 - y * y))

    def layer(hidden, w):
        hidden = curved(hidden @ w)
        if amount:
            hidden = hidden - amount * hidden.mean(axis=0, keepdims=True)
        return hidden, None

    def loss(params, ids):
        table, layers = (params[n].astype(jnp.bfloat16) for n in ("table", "layers"))
        hidden = table[ids]
        hidden = jax.lax.scan(jax.checkpoint(layer), hidden, layers)[0]
        hidden = jax.lax.cond(params["table"][0, 0] > 0, jnp.sin, jnp.cos, hidden)
        hidden = jax.nn.relu(hidden).at[:, 0].add(hidden[:, 1])
        many = jax.lax.while_loop(lambda n: n < 3, lambda n: n + 1, jnp.bfloat16(0))
        return jnp.mean(jnp.sum(hidden**2, axis=1)) * many

    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(2, WIDTH)), jnp.float32),
        "layers": jnp.asarray(rng.normal(size=(8, WIDTH, WIDTH)) / 5, jnp.float32),
    }
    return loss, params, (jax.ShapeDtypeStruct((2,), jnp.int32),)


@pytest.mark.deep
def test_little_mixing_in_a_deep_narrow_network_is_found(monkeypatch):
    """And is not by a comparison in the network's own precision."""
    check_separable(*deep(0.0))
    with pytest.raises(LossNotSeparable):
        check_separable(*deep(0.02))
    monkeypatch.setattr(separability, "WidenedProgram", not_widened)
    check_separable(*deep(0.02))


def not_widened(closed):
    raise TypeError("as a program that cannot be widened")


def keeps_its_precision(loss):
    """A loss that does not take wider numbers."""

    def strict(params, x):
        assert x.dtype == jnp.bfloat16
        return loss(params, x)

    return strict


@pytest.mark.slow
def test_a_flat_tolerance_refuses_what_is_separable(monkeypatch):
    """The bug made again: compared in bfloat16 as if it were float32."""
    rows = keeps_its_precision(cancelling)
    structs = (jax.ShapeDtypeStruct((2, 64), jnp.bfloat16),)
    params = {"w": jnp.ones(64, jnp.bfloat16)}
    check_separable(rows, params, structs)
    # What cannot be widened has a tolerance that is measured.
    monkeypatch.setattr(separability, "WidenedProgram", not_widened)
    check_separable(rows, params, structs)
    monkeypatch.setattr(separability, "narrow_roundoff", lambda closed: 0.0)
    with pytest.raises(LossNotSeparable):
        check_separable(rows, params, structs)


def cancelling(params, x):
    """Sums in bfloat16, one after the other: the mean over a batch rounds elsewhere."""
    scores = jax.lax.scan(lambda s, c: (s + c, None), x[:, 0], (x * params["w"]).T)[0]
    return jnp.mean(scores * scores)


@pytest.mark.slow
def test_gradients_that_cancel_do_not_count_as_mixing():
    """Two opposite examples: their sum is rounding alone, each is not."""
    structs = (jax.ShapeDtypeStruct((2, 6), jnp.float32),)
    assert check_separable(
        lambda p, x: jnp.mean(jnp.sin(x) @ p["w"] @ p["v"]) + 0 * p["b"].sum(),
        parameters(jnp.float32),
        structs,
    ) == [False, True, True]


WORDS = {
    name: jax.ShapeDtypeStruct((2, 5), jnp.int32)
    for name in ("labels", "mask", "words")
}


def by_words(table, batch):
    """The mean over all words of a batch that its mask leaves."""
    scores = jax.nn.log_softmax(table[batch["words"]])
    each = jnp.take_along_axis(scores, batch["labels"][..., None], -1)[..., 0]
    return (each * batch["mask"]).sum() / jnp.maximum(batch["mask"].sum(), 1)


def test_a_mean_over_the_words_of_a_batch_is_found():
    """With equal columns all words that are left are 1, and have one loss."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))
    with pytest.raises(LossNotSeparable):
        check_separable(by_words, table, (WORDS,))


def test_with_equal_columns_it_is_not(monkeypatch):
    table, real = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3))), _made_up
    monkeypatch.setattr(separability, "_made_up", lambda s, n, place: real(s, n, 0))
    check_separable(by_words, table, (WORDS,))


@pytest.mark.deep
def test_widened_operations_give_what_float32_gives():
    """All but those that hold a constant in bfloat16, or work on bits (360 of 379).

    Every fourth of them.
    """
    rng = np.random.default_rng(0)
    narrow = [jnp.asarray(rng.uniform(0.2, 0.8, (3, 3)), jnp.bfloat16) for _ in "ab"]
    wide = [array.astype(jnp.float32) for array in narrow]
    agree, kept, tried = 0, 0, 0
    for operation in list((found() | BY_HAND).values())[::4]:
        made = real_part(operation)
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            closed, wanted = jax.make_jaxpr(made)(*narrow), made(*wide)
            tried += 1
            agree += is_near(jax.jit(WidenedProgram(closed))(*narrow)[0], wanted)
            kept += is_near(made(*narrow), wanted)  # the twin: not widened
    assert tried > 85
    assert agree > 0.93 * tried
    assert kept < 0.5 * tried


def real_part(operation):
    return lambda a, b: jnp.real(operation(a, b))


def is_near(array, wanted):
    array, wanted = (np.asarray(x, np.float64) for x in (array, wanted))
    return np.allclose(array, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
