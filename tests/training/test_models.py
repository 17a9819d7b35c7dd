"""The plain models: sizes, shapes, and that no example sees another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.training.models import (
    CNN,
    MLP,
    Transformer,
    _pool,
    accuracy,
    cross_entropy,
)
from demur.training.run.loss_checks.separability import check_separable

MODELS = {
    "mlp": (MLP(12, (7,), 3), (3, 4), jnp.float32),
    "softmax": (MLP(12, (), 3), (12,), jnp.float32),
    "cnn": (CNN(14, 15, 2, 3), (14, 15, 2), jnp.float32),
    "transformer": (Transformer(5, 6, 3, width=8, heads=2, layers=1), (6,), jnp.int32),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mlp", "cnn", "transformer")
        ),
    ],
)
def test_shapes_and_no_mixing(name):
    model, shape, dtype = MODELS[name]
    params = model.init(jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: leaf + 0.05 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape),
        params,
    )
    x = jax.ShapeDtypeStruct((4, *shape), dtype)
    assert jax.eval_shape(model.logits, params, x).shape == (4, 3)
    structs = {
        "x": jax.ShapeDtypeStruct((2, *shape), dtype),
        "y": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    check_separable(cross_entropy(model), params, (structs,))


@pytest.mark.slow
def test_the_cnn_of_the_benchmark_has_26010_parameters():
    params = CNN(28, 28, 1, 10).init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 26_010


@pytest.mark.slow
def test_a_pool_is_the_largest_of_each_window():
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))
    np.testing.assert_array_equal(_pool(x), windows.max(axis=(-2, -1)))


@pytest.mark.slow
def test_accuracy_counts_every_row():
    model = MLP(2, (), 2)
    params = [{"w": jnp.eye(2), "b": jnp.zeros(2)}]
    x = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [0, 1]], np.float32)
    y = np.array([0, 1, 0, 1, 1])
    assert accuracy(model, params, x, y, rows=2) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP(0, (), 2),
        lambda: CNN(5, 28, 1, 10),
        lambda: Transformer(5, 6, 3, width=9, heads=2),
    ],
)
def test_impossible_sizes(make):
    with pytest.raises(ValueError):
        make()
