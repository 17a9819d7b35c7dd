"""A kernel's gradient from its two factors, wherever its offsets stand.

The oracle is JAX's own derivative of the convolution.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training import clipped_grad
from demur.training.clipping import clipped_grad as clipped_grad_module
from demur.training.clipping.ghost import convolution, inlining, layers, routes

# Space, window, strides, padding, dilation of the data, of the window; groups.
CASES = {
    "3 x 3": ((6, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1),
    "no padding": ((6, 5), (3, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1),
    "uneven padding": ((5, 6), (3, 3), (1, 1), ((2, 0), (0, 3)), (1, 1), (1, 1), 1),
    "cut off": ((7, 7), (3, 3), (1, 1), ((-1, 1), (0, -2)), (1, 1), (1, 1), 1),
    "strides": ((8, 9), (4, 2), (2, 2), ((1, 1), (0, 1)), (1, 1), (1, 1), 1),
    "uneven strides": ((9, 8), (3, 4), (2, 3), ((1, 1), (2, 1)), (1, 1), (1, 1), 1),
    "dilated window": ((9, 8), (3, 2), (1, 1), ((2, 2), (0, 0)), (1, 1), (2, 3), 1),
    "both": ((12, 12), (2, 2), (2, 1), ((0, 1), (0, 0)), (1, 1), (3, 3), 1),
    "dilated data": ((4, 5), (3, 3), (1, 2), ((2, 2), (1, 1)), (2, 2), (1, 1), 1),
    "groups": ((6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 2),
    "by channel": ((8, 8), (7, 7), (1, 1), ((3, 3), (3, 3)), (1, 1), (1, 1), 4),
    "a row": ((11,), (4,), (1,), ((3, 0),), (1,), (1,), 4),
    "a row in steps": ((12,), (6,), (3,), ((0, 0),), (1,), (1,), 1),
    "a block": ((4, 5, 4), (2, 3, 2), (1, 1, 2), ((1, 0),) * 3, (1,) * 3, (1,) * 3, 1),
    "one position": ((3, 4), (3, 4), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1),
}
OUTPUTS, CHANNELS = 4, 4
SHIFTED = convolution.WindowAxis.of_cotangent
PHASES = convolution.WindowAxis.of_data


def found(name):
    """The layer, data, cotangent, and the kernel's gradient by JAX, of two examples."""
    space, window, strides, padding, of_data, of_window, groups = CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    letters = "DHW"[-len(space) :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    kernel = rng.normal(size=(*window, CHANNELS // groups, OUTPUTS))
    data = rng.normal(size=(2, 1, *space, CHANNELS))

    def conv(kernel, one):
        return jax.lax.conv_general_dilated(
            one, kernel, strides, padding, of_data, of_window, numbers, groups
        )

    (eqn,) = jax.make_jaxpr(conv)(kernel, data[0]).eqns
    layer = layers.recognise(eqn, 1)
    assert isinstance(layer, convolution.Convolution)
    cotangent = rng.normal(size=(2, *layer.output.shape))
    wanted = jax.jit(
        jax.vmap(lambda one, g: jax.vjp(lambda k: conv(k, one), kernel)[1](g)[0])
    )
    return layer, data, cotangent, np.asarray(wanted(data, cotangent))


def choices(layer):
    """The same layer with its offsets everywhere that they may stand."""
    plain = [replace(axis, shifted=False) for axis in layer.window]
    each = [
        [axis, replace(axis, shifted=True)] if axis.can_shift else [axis]
        for axis in plain
    ]
    for window in product(*each):
        other = convolution.Convolution(
            layer.params, layer.kernel, layer.output, layer.other
        )
        vars(other)["window"] = window
        yield other


def gradients(layer, data, cotangent):
    @jax.jit
    def run(data, cotangent):
        factors = layer.factors(data, cotangent, ())
        assert factors.left.shape[2:] == (layer.form[0], layer.form[1])
        assert factors.right.shape[2:] == (layer.form[0], layer.form[2])
        each = jnp.einsum("bsti,bsto->bsio", factors.left, factors.right)
        return jnp.stack([layer.restore(one, ()) for one in each])

    return np.asarray(run(data, cotangent))


def error(layer, data, cotangent, wanted):
    return np.abs(gradients(layer, data, cotangent) - wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_every_choice_gives_the_gradient(name):
    with jax.enable_x64(True):
        layer, data, cotangent, wanted = found(name)
        for other in choices(layer):
            assert error(other, data, cotangent, wanted) < 1e-12


@pytest.mark.parametrize(
    ("name", "wrong", "twin"),
    [
        ("dilated window", "_step", property(lambda axis: 1)),
        ("3 x 3", "of_cotangent", lambda *given: SHIFTED(*given)[::-1]),
        ("strides", "of_data", lambda *given: PHASES(*given)[::-1]),
    ],
)
def test_a_wrong_shift_is_noticed(monkeypatch, name, wrong, twin):
    with jax.enable_x64(True):
        layer, data, cotangent, wanted = found(name)
        shifted = max(
            choices(layer), key=lambda one: sum(a.shifted for a in one.window)
        )
        assert error(shifted, data, cotangent, wanted) < 1e-12
        monkeypatch.setattr(convolution.WindowAxis, wrong, twin)
        assert error(shifted, data, cotangent, wanted) > 1e-3


def test_the_smallest_factors_are_chosen():
    def numbers(layer):
        positions, left, right = layer.form
        return positions * (left + right)

    for name in CASES:
        layer = found(name)[0]
        if layer.form[0] > 1:
            assert numbers(layer) == min(map(numbers, choices(layer)))
    assert [axis.shifted for axis in found("3 x 3")[0].window].count(True) == 1
    assert found("one position")[0].form[0] == 1


def norms(network_of, data, method="auto"):
    """Norms by this method, and that the sum is finite."""
    kernel = np.random.default_rng(1).normal(size=(2, 3, 4))

    def loss(kernel, batch):
        return jnp.sum(jnp.sin(network_of(kernel, batch)))

    grad = clipped_grad(loss, l2_clip_norm=1.0, return_grad_norms=True, method=method)
    total, aux = grad(kernel.astype(data.dtype), data)
    assert np.isfinite(total.value).all()
    return np.asarray(aux.grad_norms)


def line(**options):
    numbers = ("NHC", "HIO", "NHC")
    options = {"window_strides": (1,), "padding": "VALID", **options}
    return lambda kernel, batch: jax.lax.conv_general_dilated(
        batch, kernel, dimension_numbers=numbers, **options
    )


def rows(length, dtype=jnp.float32):
    return np.random.default_rng(2).normal(size=(3, length, 3)).astype(dtype)


def test_an_image_smaller_than_the_window_has_no_gradient(monkeypatch):
    monkeypatch.setattr(routes, "_is_better_formed_by_jax", lambda way: False)
    far = line(rhs_dilation=(9,))
    np.testing.assert_array_equal(norms(far, rows(3)), np.zeros(3))


def test_what_no_window_covers_does_not_count(monkeypatch):
    """Two pixels under a window of two rows, three apart: the middle row is in none."""
    monkeypatch.setattr(routes, "_is_better_formed_by_jax", lambda way: False)
    gaps, data = line(rhs_dilation=(3,)), rows(5)
    wanted = norms(gaps, data)
    data[1, 2] = np.nan
    np.testing.assert_array_equal(norms(gaps, data), wanted)
    monkeypatch.setattr(
        convolution.WindowAxis,
        "can_shift",
        property(lambda axis: axis.stride == 1 and axis.offsets > 1),
    )
    monkeypatch.setattr(
        convolution.Convolution,
        "_sizes",
        lambda layer, window: (1, 0, -sum(axis.shifted for axis in window)),
    )
    assert np.isnan(norms(gaps, data)[1])


def doubled(kernel, x):
    return line()(2 * kernel, x)


def twice(kernel, x):
    return line()(kernel, x) + line()(kernel, x[:, ::-1])


@pytest.mark.parametrize("method", ["auto", "vmap"])
@pytest.mark.parametrize("loss", [line(), doubled, twice])
def test_an_example_that_is_not_a_number_stays_alone_in_double_precision(
    monkeypatch, loss, method
):
    """JAX's own rule makes one convolution of all examples, with zeros between them.

    So a kernel without a route of ours is differentiated example by example.
    """
    with jax.enable_x64(True):
        data = rows(6, jnp.float64)
        data[1] = np.nan
        found = norms(loss, data, method=method)
        np.testing.assert_array_equal(np.isnan(found), [0, 1, 0])
        monkeypatch.setattr(routes, "_is_better_formed_by_jax", lambda way: True)
        for where in (inlining, clipped_grad_module):
            monkeypatch.setattr(where, "mixing_convolutions", lambda closed: ())
        assert np.isnan(norms(loss, data, method=method)).sum() > 1
