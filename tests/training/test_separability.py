"""A loss is checked in its precision: narrow dtypes pass, interactions do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import LossNotSeparable
from demur.training.run import separability
from demur.training.run.separability import check_separable

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
        (0.01, jnp.bfloat16, None),  # by little: below one rounding of bfloat16
        (0.2, jnp.bfloat16, jnp.bfloat16),
        pytest.param(0.01, jnp.float16, None, marks=pytest.mark.deep),
    ],
)
def test_examples_that_mix_in_narrow_precision_are_found(amount, dtype, inside):
    with pytest.raises(LossNotSeparable):
        check(mixing(amount, inside), dtype)


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
    monkeypatch.setattr(separability, "_coarsest", lambda closed: 0.0)
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
