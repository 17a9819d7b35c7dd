"""Releases of the compatibility layer: keys, noise, ledgers, marks and refusals."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import demur as dm
from demur.adapters.equinox.heads import RidgePrototypesEqx, SoftmaxLinearEqx
from demur.adapters.errors import NotALinearHead
from demur.compat.ball_dp import api, lz
from demur.compat.ball_dp.heads.prototypes import (
    fit_ridge_prototypes,
    predict_nearest_prototype,
    prototypes_sensitivity_l2,
)
from demur.compat.ball_dp.mechanisms import add_gaussian_noise, gaussian_sigma
from demur.convex import NotAtMinimiser, private_radius
from demur.convex.sensitivity import radius_origin
from demur.core.errors import NotPrivate
from tests.adapters import kit

MARKS = {"private", "conditional", "statement"}
ERM_KEYS = {
    "params_noisy",
    "Delta",
    "sigma",
    "eps",
    "delta",
    "sigma_method",
    "lz",
    "r",
    "lam",
    "n",
}
PROTOTYPE_KEYS = {
    "mus_noisy",
    "Delta",
    "sigma",
    "eps",
    "delta",
    "sigma_method",
    "r",
    "lam",
    "n_total",
    "n_min",
}
MODEL_KEYS = {"theta_private", "model_private", "dp_report"}

STATED: dict[str, Any] = {
    "lz": 51.0,
    "r": 0.25,
    "lam": kit.LAM,
    "n": kit.N,
    "eps": 1.0,
    "delta": 1e-6,
}
DELTA = 51.0 * 0.25 / (kit.LAM * kit.N)
CHECKED: dict[str, Any] = {"loss": "logistic", "B": 1.0}


def params(theta=None, **changed):
    theta = kit.exact("logistic") if theta is None else theta
    return api.dp_release_erm_params_gaussian(theta, **(STATED | changed))


def data() -> dict[str, Any]:
    return {"X": kit.rows(), "y": kit.labels("logistic")}


def test_keys_and_types():
    out = params()
    assert set(out) == ERM_KEYS | MARKS
    assert out["params_noisy"].dtype == np.float32
    assert out["params_noisy"].shape == (kit.D + 1,)
    report = {k: v for k, v in out.items() if k != "params_noisy"}
    assert json.loads(json.dumps(report)) == report


def test_classic_and_analytic_noise():
    classic, analytic = params(), params(sigma_method="analytic")
    assert classic["sigma_method"] == "classic"
    formula = DELTA * math.sqrt(2 * math.log(1.25e6))
    assert classic["sigma"] == pytest.approx(formula, rel=1e-9)
    exact = gaussian_sigma(DELTA, 1.0, 1e-6, method="analytic")
    assert exact <= analytic["sigma"] < exact * (1 + 1e-5)
    for out in (classic, analytic):
        assert out["Delta"] == pytest.approx(DELTA, rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: params(eps=2.0),
        lambda: params(eps=1.0000001),
        lambda: gaussian_sigma(1.0, 2.0, 1e-6),
        lambda: api.dp_release_ridge_prototypes_gaussian(
            np.zeros((2, 3)), [5, 5], r=0.1, lam=0.1, eps=2.0, delta=1e-6
        ),
    ],
)
def test_classic_above_one_raises(call):
    with pytest.raises(ValueError, match="classic"):
        call()


def test_noise_is_recorded_and_declined():
    unit = dm.Ball(0.25, space="records")
    ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=unit)
    params(ledger=ledger, sigma_method="analytic", label="one")
    assert [e.label for e in ledger.entries()] == ["one"]
    assert 0.999 < ledger.epsilon() <= 1.0
    with pytest.raises(dm.BudgetExceeded):
        params(ledger=ledger)


def test_a_ledger_in_another_space_says_so():
    ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=dm.Ball(0.25, space="minilm"))
    with pytest.raises(dm.DemurError, match="minilm"):
        params(ledger=ledger)
    params(ledger=ledger, space="minilm")


def test_without_data_a_release_is_conditional_on_the_minimiser():
    out = params(kit.exact("logistic").astype(np.float32))
    assert any("minimiser" in mark for mark in out["conditional"])
    assert any("rounding" in mark for mark in out["conditional"])
    assert "conditional" in out["statement"] and "Lz of the loss" in out["statement"]
    assert "labels" in out["statement"]
    wide = params(kit.exact("logistic"))
    assert not any("rounding" in mark for mark in wide["conditional"])


def test_with_data_it_is_not():
    out = params(**CHECKED, **data())
    assert out["conditional"] == []
    assert "conditional" not in out["statement"]


def test_loss_and_bound_take_the_engine_s_sensitivity():
    loose, tight = params(), params(**CHECKED)
    assert tight["Delta"] < loose["Delta"] / 10
    assert tight["sigma"] < loose["sigma"] / 10
    charged = params(**CHECKED, **data(), tau=1e-6)
    assert charged["Delta"] - tight["Delta"] == pytest.approx(2e-6 / kit.LAM, rel=1e-3)


def test_a_small_lz_typed_by_hand_does_not_help():
    """With loss and B the proved bound counts, whatever lz says."""
    assert params(lz=1e-9, **CHECKED)["Delta"] == params(**CHECKED)["Delta"]


def test_parameters_that_are_not_the_minimiser_are_refused():
    ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=dm.Ball(0.25, space="records"))
    with pytest.raises(NotAtMinimiser):
        params(kit.exact("logistic") + 0.01, **CHECKED, **data(), ledger=ledger)
    assert not list(ledger.entries())


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"r": 0.0}, ValueError, "r must be positive"),
        ({"r": math.nan}, ValueError, "r must be"),
        ({"lam": 0.0}, ValueError, "lam must be positive"),
        ({"lz": -1.0}, ValueError, "lz must be positive"),
        ({"n": 0}, ValueError, "n must be"),
        ({"n": 10.5}, TypeError, "n must be"),
        ({"eps": 0.0}, ValueError, "eps"),
        ({"delta": 0.0}, ValueError, "delta"),
        ({"sigma_method": "magic"}, ValueError, "sigma_method must be"),
        ({"rng": "seed"}, TypeError, "rng must be"),
        ({"ledger": "ledger.db"}, TypeError, "ledger must be"),
        ({"loss": "logistic"}, TypeError, "loss and B together"),
        ({"X": np.zeros((kit.N, kit.D))}, TypeError, "X, y, loss and B together"),
        ({"tau": -1.0}, ValueError, "tau must be"),
        (CHECKED | data() | {"n": 3}, ValueError, "matrix of n=3 rows"),
    ],
)
def test_bad_arguments(changed, error, says):
    with pytest.raises(error, match=says):
        params(**changed)


def test_bad_parameters():
    with pytest.raises(ValueError, match="NaN"):
        params(np.array([np.nan, 1.0]))
    with pytest.raises(ValueError, match="7 parameters"):
        params(np.zeros(3), **CHECKED, **data())


@pytest.mark.slow
def test_a_generator_or_a_seed_cannot_repeat_noise():
    for rng in (7, np.random.default_rng(7), np.random.RandomState(7)):
        one, two = params(rng=rng), params(rng=rng)
        assert not np.array_equal(one["params_noisy"], two["params_noisy"])
        assert one["private"] and "NOT PRIVATE" not in one["statement"]
    np.random.seed(3)
    one = params()
    np.random.seed(3)
    assert not np.array_equal(one["params_noisy"], params()["params_noisy"])


def test_a_seeded_source_repeats_and_is_stamped():
    one, two = (params(rng=dm.Seeded(7)) for _ in range(2))
    assert np.array_equal(one["params_noisy"], two["params_noisy"])
    assert not one["private"] and one["statement"].startswith("NOT PRIVATE")


def test_a_radius_from_training_data_is_marked_and_a_public_one_is_not(monkeypatch):
    monkeypatch.setattr(radius_origin, "_ESTIMATED_RADII", set())
    X, y = kit.rows(), kit.labels("softmax")
    policy = api.compute_radius_policy(X, y, B_public=1.0)
    r = float(policy.r_values[50.0])
    out = params(r=r)
    assert any("radius" in mark for mark in out["conditional"])
    assert "CONDITIONAL on bounds estimated from the data" in out["statement"]
    other = X + 1e-3 * np.random.default_rng(5).normal(size=X.shape)
    public = api.compute_radius_policy(other, y, B_public=1.1, public=True)
    assert policy.estimated and not public.estimated
    out = params(r=float(public.r_values[50.0]))
    assert not any("radius" in mark for mark in out["conditional"])
    assert "estimated" not in params(r=policy.r_std)["statement"]


@pytest.mark.parametrize(
    "changed",
    [
        lambda r: round(r, 4),
        lambda r: 2 * r,
        lambda r: float(2 * r),
        lambda r: float(round(r / 3, 3)),
        lambda r: np.float32(r),
        lambda r: float(np.float32(r)),
        lambda r: float(np.float16(r)),
        lambda r: float(f"{r:.4f}"),
        lambda r: 1.0 - r,
        lambda r: np.float64(2.0) * r,
        lambda r: np.round(np.sqrt(r), 2),
        lambda r: pickle.loads(pickle.dumps(r)),
    ],
)
def test_what_is_computed_from_an_estimated_radius_is_estimated(changed, monkeypatch):
    monkeypatch.setattr(radius_origin, "_ESTIMATED_RADII", set())
    X, y = kit.rows(), kit.labels("softmax")
    policy = api.compute_radius_policy(X, y, B_public=1.0)
    r = policy.r_values[50.0]
    assert radius_origin.was_estimated(changed(r))
    assert radius_origin.was_estimated(changed(policy.nn_dists_summary["nn_med"]))
    # A radius that has nothing to do with it is not.
    assert not radius_origin.was_estimated(float(r) * 1.2345 + 0.01)
    assert not radius_origin.was_estimated(policy.r_std)


def test_quantiles_of_a_summary_are_estimated(monkeypatch):
    monkeypatch.setattr(radius_origin, "_ESTIMATED_RADII", set())
    X, y = kit.rows(), kit.labels("softmax")
    policy = api.compute_radius_policy(X, y, B_public=1.0)
    summary = policy.nn_dists_summary
    assert all(radius_origin.was_estimated(summary[k]) for k in ("nn_min", "nn_p95"))
    assert not radius_origin.was_estimated(summary["n_nn"])
    read = api.compute_radius_policy(X, y, B_mode="max")
    assert radius_origin.was_estimated(read.r_std) and radius_origin.was_estimated(
        read.B
    )


def test_a_paid_radius_is_said_and_is_no_condition():
    X, y = kit.rows(), kit.labels("softmax")
    r = private_radius(X, y, epsilon=1.0, norm_bound=1.0, strategy="labelwise").value
    out = params(r=2 * r)
    assert out["r"] == 2 * float(r)
    assert "was paid for" in out["statement"]
    assert not any("radius" in mark for mark in out["conditional"])
    assert "was paid for" not in params(r=float(2 * r))["statement"]


def test_from_flat_params():
    theta = kit.exact("logistic")
    out = api.dp_release_from_flat_params(theta, lambda v: {"w": v}, **STATED)
    assert set(out) == MODEL_KEYS and set(out["dp_report"]) == ERM_KEYS | MARKS
    assert out["model_private"]["w"] is out["theta_private"]
    assert out["dp_report"]["sigma_method"] == "analytic"


def torch_head(dtype=torch.float64):
    return kit.torch_linear(kit.exact("softmax"), dtype=dtype)


def test_a_torch_model():
    model = torch_head()
    before = kit.state(model)
    out = api.dp_release_torch_model_gaussian(model, **STATED)
    assert set(out) == MODEL_KEYS
    private = kit.state(out["model_private"])
    flat = np.concatenate([private["weight"].reshape(-1), private["bias"]])
    np.testing.assert_array_equal(flat.astype(np.float32), out["theta_private"])
    for name, value in kit.state(model).items():
        np.testing.assert_array_equal(value, before[name])
    certified = api.dp_release_torch_model_gaussian(
        model, **STATED, loss="softmax", B=1.0, X=kit.rows(), y=kit.labels("softmax")
    )
    assert certified["dp_report"]["conditional"] == []
    assert certified["dp_report"]["sigma"] < out["dp_report"]["sigma"]


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch_head()

    def forward(self, x):
        return self.fc(x)


@pytest.mark.slow
@pytest.mark.parametrize("make", [torch_head, Around])
def test_a_released_torch_model_is_in_float32(make):
    """Like the original's: what was trained in float64 takes float32 rows."""
    model = make()
    private = api.dp_release_torch_model_gaussian(model, **STATED)["model_private"]
    assert type(private) is type(model)
    scores = private(torch.as_tensor(kit.rows()[:4], dtype=torch.float32))
    assert scores.dtype == torch.float32 and scores.shape == (4, kit.K)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.slow
def test_an_equinox_model():
    theta = kit.exact("softmax")
    model = SoftmaxLinearEqx(kit.D, kit.K, key=jax.random.key(0))
    model = _with(model, theta)
    out = api.dp_release_eqx_model_gaussian(
        model, **STATED, loss="softmax", B=1.0, X=kit.rows(), y=kit.labels("softmax")
    )
    assert set(out) == MODEL_KEYS and out["dp_report"]["conditional"] == []
    private = out["model_private"]
    flat = np.append(np.asarray(private.W), np.asarray(private.b))
    np.testing.assert_array_equal(flat, out["theta_private"])


def _with(model, theta):
    W, b = theta[:, :-1].astype(np.float32), theta[:, -1].astype(np.float32)
    return eqx.tree_at(lambda m: (m.W, m.b), model, (jnp.asarray(W), jnp.asarray(b)))


def test_equinox_prototypes_are_a_convex_model_too():
    model = RidgePrototypesEqx(jnp.ones((2, 3)))
    out = api.dp_release_eqx_model_gaussian(
        model, **(STATED | {"lz": lz.lz_prototypes_exact()})
    )
    assert out["model_private"].mus.shape == (2, 3)
    assert not np.array_equal(np.asarray(out["model_private"].mus), np.ones((2, 3)))


@pytest.mark.parametrize(
    ("release", "make"),
    [
        (
            api.dp_release_torch_model_gaussian,
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)),
        ),
        (api.dp_release_torch_model_gaussian, lambda: torch.nn.Bilinear(2, 2, 1)),
        (
            api.dp_release_eqx_model_gaussian,
            lambda: eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)),
        ),
    ],
)
def test_other_models_are_refused(release, make):
    with pytest.raises(NotALinearHead):
        release(make(), **STATED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_flatten_round_trip(dtype):
    model = torch_head(dtype)
    theta, unflatten = api.torch_flatten_adapter(model)
    assert theta.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    copy = unflatten(theta)
    assert copy is not model and torch.equal(copy.weight, model.weight)
    assert torch.equal(copy.bias, model.bias)
    with pytest.raises(ValueError, match="parameters"):
        unflatten(theta[:-1])


@pytest.mark.slow
def test_eqx_flatten_is_that_of_ravel_pytree():
    model = SoftmaxLinearEqx(kit.D, kit.K, key=jax.random.key(1))
    theta, unflatten = api.eqx_flatten_adapter(model)
    leaves = jax.tree_util.tree_leaves(model)
    np.testing.assert_array_equal(
        theta, np.concatenate([np.asarray(v).reshape(-1) for v in leaves])
    )
    assert eqx.tree_equal(unflatten(theta), model)


def prototypes(**changed):
    mus, counts = fit_ridge_prototypes(
        kit.rows(), kit.labels("softmax"), num_classes=kit.K, lam=0.1
    )
    stated = {"r": 0.2, "lam": 0.1, "eps": 1.0, "delta": 1e-6} | changed
    return api.dp_release_ridge_prototypes_gaussian(mus, counts, **stated)


def test_prototypes():
    out = prototypes()
    counts = np.bincount(kit.labels("softmax"))
    assert set(out) == PROTOTYPE_KEYS | MARKS
    assert (out["n_total"], out["n_min"]) == (kit.N, counts.min())
    formula = 2 * 0.2 / (2 * counts.min() + 0.1 * kit.N)
    assert out["Delta"] == pytest.approx(formula, rel=1e-8)
    assert formula == prototypes_sensitivity_l2(
        r=0.2, n_min=counts.min(), n_total=kit.N, lam=0.1
    )
    assert out["mus_noisy"].dtype == np.float32
    assert any("closed form" in mark for mark in out["conditional"])
    assert "class counts" in out["statement"]


def test_prototypes_are_float64_and_minimise():
    X, y = kit.rows(), kit.labels("softmax")
    mus, counts = fit_ridge_prototypes(X, y, num_classes=kit.K, lam=0.3)
    assert mus.dtype == np.float64 and counts.dtype == np.int64

    def slope(c):
        return 2 * (mus[c] - X[y == c]).sum(axis=0) / kit.N + 0.3 * mus[c]

    assert max(np.abs(slope(c)).max() for c in range(kit.K)) < 1e-14
    predicted = predict_nearest_prototype(X, mus)
    brute = np.argmin(((X[:, None] - mus) ** 2).sum(axis=2), axis=1)
    np.testing.assert_array_equal(predicted, brute)


def test_an_empty_class_does_not_move():
    mus, counts = np.zeros((3, 2)), np.array([4, 0, 6])
    out = api.dp_release_ridge_prototypes_gaussian(
        mus, counts, r=0.2, lam=0.0, eps=1.0, delta=1e-6
    )
    assert out["n_min"] == 4


@pytest.mark.parametrize(
    ("mus", "counts", "says"),
    [
        (np.zeros((2, 2)), [1], "counts must hold"),
        (np.zeros((2, 2)), [1.5, 1], "counts must hold"),
        (np.zeros((2, 2)), [0, 0], "one above 0"),
        (np.zeros((2, 2)), [-1, 3], "at least 0"),
        (np.zeros(2), [1, 1], "mus"),
        (np.full((2, 2), np.inf), [1, 1], "finite|infinity"),
    ],
)
def test_bad_prototypes(mus, counts, says):
    with pytest.raises(ValueError, match=says):
        api.dp_release_ridge_prototypes_gaussian(
            mus, counts, r=0.1, lam=0.1, eps=1.0, delta=1e-6
        )


def test_nothing_exact_is_returned_by_a_release():
    model = torch_head()
    out = api.dp_release_torch_model_gaussian(model, **STATED)
    exact = np.concatenate([v.reshape(-1) for v in kit.state(model).values()])
    secret = {*exact.tolist(), *exact.astype(np.float32).astype(float).tolist()}
    assert not set(kit.numbers_in(out)) & secret


@pytest.mark.slow
def test_added_noise():
    x = np.zeros(4000, dtype=np.float32)
    noisy = add_gaussian_noise(x, 2.0)
    assert noisy.dtype == np.float32 and noisy.shape == x.shape
    assert abs(noisy.std() - 2.0) < 0.2 and abs(noisy.mean()) < 0.25
    assert add_gaussian_noise(np.zeros((2, 3)), 1.0).shape == (2, 3)
    for sigma in (1e-9, 1e12):
        assert abs(add_gaussian_noise(x, sigma).std() / sigma - 1.0) < 0.1
    one, two = (add_gaussian_noise(x, 1.0, rng=dm.Seeded(1)) for _ in range(2))
    assert np.array_equal(one, two)


def test_added_noise_can_be_recorded():
    unit = dm.AddOrRemoveOne()
    ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=unit)
    add_gaussian_noise([1.0, 2.0], 10.0, sensitivity={unit: 1.0}, ledger=ledger)
    assert 0.3 < ledger.epsilon() < 0.5
    with pytest.raises(TypeError, match="together"):
        add_gaussian_noise([1.0], 1.0, ledger=ledger)
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="sigma"):
            add_gaussian_noise([1.0], bad)
    with pytest.raises(NotPrivate, match="sigma=0 adds nothing"):
        add_gaussian_noise([1.0], 0.0, sensitivity={unit: 1.0}, ledger=ledger)
    assert len(list(ledger.entries())) == 1


def test_a_radius_of_nothing_is_refused():
    """The original returns the exact parameters at r = 0."""
    with pytest.raises(ValueError, match="r must be positive"):
        params(r=0.0)


def test_sigma_of_nothing_is_nothing():
    assert gaussian_sigma(0.0, 1.0, 1e-6) == 0.0
