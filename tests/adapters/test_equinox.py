"""Releasing an Equinox head: what is recognised, measured, refused and returned."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demur as dm
from demur.adapters import release_equinox
from demur.adapters.equinox.heads import (
    LogisticRegressorEqx,
    RidgePrototypesEqx,
    SoftmaxLinearEqx,
    SquaredHingeSVMEqx,
    fit_ridge_prototypes_eqx,
    logistic_objective,
    softmax_objective,
    squared_hinge_objective,
)
from demur.adapters.equinox.release import predict_eqx_svm, train_head_eqx
from demur.adapters.errors import NotALinearHead
from demur.convex import NotAtMinimiser, NotConverged, objective
from tests.adapters import kit

pytestmark = pytest.mark.slow  # not in `make check`


def key():
    return jax.random.key(0)


def linear(outputs, **options):
    return eqx.nn.Linear(kit.D, outputs, key=key(), **options)


HEADS = [
    (lambda: linear(kit.K), "softmax"),
    (lambda: linear("scalar"), "logistic"),
    (lambda: linear(1), "huber"),
    (lambda: linear("scalar", use_bias=False), "squared_hinge"),
    (lambda: eqx.nn.Sequential([eqx.nn.Identity(), linear("scalar")]), "logistic"),
    (lambda: SquaredHingeSVMEqx(kit.D, key=key()), "squared_hinge"),
    (lambda: LogisticRegressorEqx(kit.D, key=key()), "logistic"),
    (lambda: SoftmaxLinearEqx(kit.D, kit.K, key=key()), "softmax"),
]


def train(model, loss, **options):
    form = kit.form_of(loss)
    return train_head_eqx(model, kit.rows(), kit.labels(loss), form, **options)


def released(model, loss, **options):
    form, promise = kit.form_of(loss), kit.promise_of()
    return release_equinox(
        model, kit.rows(), kit.labels(loss), form, promise, **options
    )


def arrays(model):
    leaves = jax.tree_util.tree_leaves(eqx.filter(model, eqx.is_array))
    return [np.asarray(leaf).copy() for leaf in leaves]


@pytest.mark.parametrize(("make", "loss"), HEADS)
def test_trained_then_released(make, loss):
    model = train(make(), loss)
    before = arrays(model)
    private = released(model, loss)
    assert type(private.value) is type(model)
    for old, new, still in zip(
        before, arrays(private.value), arrays(model), strict=True
    ):
        assert old.shape == new.shape and old.dtype == new.dtype
        assert (old != new).all()
        np.testing.assert_array_equal(old, still)
    x = jnp.asarray(kit.rows()[0], dtype=jnp.float32)
    assert private.value(x).shape == model(x).shape
    assert private.entry.epsilon(dm.Ball(0.3, space="records"), 1e-6) <= 1.0


@pytest.mark.parametrize(("make", "loss"), HEADS)
def test_an_untrained_head_is_refused(make, loss):
    ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=dm.Ball(0.3, space="records"))
    with pytest.raises(NotAtMinimiser):
        released(make(), loss, ledger=ledger)
    assert not list(ledger.entries())


class Around(eqx.Module):
    """A module of the caller's own around one linear layer."""

    fc: eqx.nn.Linear
    note: str = eqx.field(static=True, default="")

    def __call__(self, x):
        return self.fc(x)


class WithNumber(eqx.Module):
    fc: eqx.nn.Linear
    scale: float

    def __call__(self, x):
        return self.scale * self.fc(x)


class NeedsItsField(eqx.Module):
    fc: eqx.nn.Linear
    scale: float = eqx.field(static=True)

    def __call__(self, x):
        return self.scale * self.fc(x)


def test_a_module_around_one_layer_keeps_its_class_and_loses_its_fields():
    model = train(Around(linear(kit.K), "mean of the data: 0.123"), "softmax")
    private = released(model, "softmax").value
    assert type(private) is Around
    assert "note" not in vars(private) and private.note == ""
    for old, new in zip(arrays(model), arrays(private), strict=True):
        assert old.shape == new.shape and (old != new).all()
    x = jnp.asarray(kit.rows()[0], dtype=jnp.float32)
    np.testing.assert_array_equal(eqx.filter_jit(private)(x), private.fc(x))


class Deep(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return jnp.tanh(self.layer(x))


NOT_HEADS = {
    "Deep": lambda: Deep(linear("scalar")),
    "a number": lambda: WithNumber(linear("scalar"), 2.0),
    "a static field": lambda: NeedsItsField(linear("scalar"), 2.0),
    "MLP": lambda: eqx.nn.MLP(kit.D, 1, 4, 1, key=key()),
    "two layers": lambda: eqx.nn.Sequential(
        [linear(4), eqx.nn.Linear(4, 1, key=key())]
    ),
    "tanh": lambda: eqx.nn.Sequential([linear("scalar"), eqx.nn.Lambda(jnp.tanh)]),
    "LayerNorm": lambda: eqx.nn.LayerNorm(kit.D),
    "prototypes": lambda: RidgePrototypesEqx(jnp.zeros((2, kit.D))),
    "str": lambda: "a model",
}


@pytest.mark.parametrize("name", NOT_HEADS)
def test_anything_else_is_refused_and_the_way_is_named(name):
    ways = {
        "Deep": r"Release model\.layer on",
        "a number": r"model\.scale: float .* Release model\.fc on",
        "a static field": r"\(AttributeError\): .* Release model\.fc on",
        "MLP": r"Release model\.layers\[1\] on",
        "two layers": r"Release model\.layers\[1\] on",
        "tanh": r"Release model\.layers\[0\] on",
    }
    with pytest.raises(NotALinearHead, match=ways.get(name, "Release the flat vector")):
        released(NOT_HEADS[name](), "logistic")


def test_float64_is_kept_where_jax_has_it():
    with jax.enable_x64(True):
        model = LogisticRegressorEqx(kit.D, key=key())
        trained = train(model, "logistic")
        assert trained.w.dtype == np.float64
        private = released(trained, "logistic", tau=1e-9)
        assert private.value.w.dtype == np.float64


def test_three_steps_of_gradient_descent_are_refused():
    X, y = jnp.asarray(kit.rows()), jnp.asarray(kit.labels("logistic"))

    def value(model):
        return logistic_objective(model, None, X, y, None, lam=kit.LAM)[0]

    model = LogisticRegressorEqx(kit.D, key=key())
    for _ in range(3):
        step = eqx.filter_grad(value)(model)
        model = eqx.apply_updates(model, jax.tree_util.tree_map(lambda g: -g, step))
    with pytest.raises(NotAtMinimiser, match="Train longer"):
        released(model, "logistic")


@pytest.mark.parametrize(
    ("kind", "stated", "loss"),
    [
        (SquaredHingeSVMEqx, squared_hinge_objective, "squared_hinge"),
        (LogisticRegressorEqx, logistic_objective, "logistic"),
        (SoftmaxLinearEqx, softmax_objective, "softmax"),
    ],
)
def test_objectives_are_those_of_the_engine(kind, stated, loss):
    """Value and gradient against demur.convex, in float64."""
    X, y = kit.rows(), kit.labels(loss)
    untrained = kind(kit.D, *([kit.K] * (loss == "softmax")), key=key())
    with jax.enable_x64(True):
        model = jax.tree_util.tree_map(
            lambda a: jnp.asarray(a, jnp.float64) + 0.1, untrained
        )
        (value, aux), gradient = eqx.filter_value_and_grad(
            lambda m: stated(
                m, None, jnp.asarray(X), jnp.asarray(y), None, lam=kit.LAM
            ),
            has_aux=True,
        )(model)
        weight, bias = arrays(model)
        theta = np.concatenate([np.atleast_2d(weight), bias.reshape(-1, 1)], axis=1)
        slopes = arrays(gradient)
    theta = theta if loss == "softmax" else theta[0]
    form = kit.form_of(loss, num_classes=kit.K if loss == "softmax" else 2)
    F = objective(form, X, y)
    wanted, wanted_slope = F.value_and_gradient(theta)
    assert float(value) == pytest.approx(wanted, rel=1e-12)
    assert set(aux) == {"loss", "reg"}
    found = np.concatenate([np.atleast_2d(slopes[0]), slopes[1].reshape(-1, 1)], axis=1)
    np.testing.assert_allclose(
        found.reshape(wanted_slope.shape), wanted_slope, atol=1e-12
    )


def test_predict_eqx_svm():
    model = train(SquaredHingeSVMEqx(kit.D, key=key()), "squared_hinge")
    predicted = predict_eqx_svm(model, kit.rows())
    scores = jax.vmap(model)(jnp.asarray(kit.rows(), dtype=jnp.float32))
    np.testing.assert_array_equal(predicted, np.where(np.asarray(scores) >= 0, 1, -1))
    assert np.mean(predicted == kit.labels("squared_hinge")) > 0.8
    with pytest.raises(NotALinearHead, match="one score"):
        predict_eqx_svm(linear(kit.K), kit.rows())


def test_prototypes():
    X, y = kit.rows(), kit.labels("softmax")
    model, counts = fit_ridge_prototypes_eqx(X, y, num_classes=kit.K + 1, lam=0.1)
    own = X[y == 1]
    wanted = 2 * own.sum(axis=0) / (2 * len(own) + 0.1 * kit.N)
    np.testing.assert_allclose(np.asarray(model.mus)[1], wanted, rtol=1e-6)
    assert np.asarray(counts).tolist() == np.bincount(y, minlength=kit.K + 1).tolist()
    assert np.asarray(model.mus)[kit.K].tolist() == [0.0] * kit.D
    predicted = np.asarray(model.predict(jnp.asarray(X, dtype=jnp.float32)))
    assert predicted[0] == model(jnp.asarray(X[0], dtype=jnp.float32))


def test_a_trainer_that_cannot_certify_says_so():
    with pytest.raises(NotConverged):
        train(LogisticRegressorEqx(kit.D, key=key()), "logistic", tau=1e-30)


def test_nothing_exact_hangs_on_the_release():
    model = train(SoftmaxLinearEqx(kit.D, kit.K, key=key()), "softmax")
    found = set(kit.numbers_in(released(model, "softmax")))
    exact = np.concatenate([a.reshape(-1) for a in arrays(model)]).astype(float)
    noisy = arrays(released(model, "softmax").value)
    assert len(noisy) == 2 and len(found) > exact.size
    assert not found & {*exact.tolist(), *kit.rows().reshape(-1).tolist()}
