"""Constants, calibration, audits and random features against what they claim."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from demur.compat.ball_dp import lz, rff
from demur.compat.ball_dp.analytical_gaussian_mechanism import (
    calibrate_analytic_gaussian,
)
from demur.compat.ball_dp.attacks import audit
from demur.compat.ball_dp.metrics import l2_dist
from demur.compat.ball_dp.sensitivity import ERMSensitivity, erm_sensitivity_l2


def test_constants_have_the_original_s_values():
    at: dict[str, Any] = {"B": 1.0, "lam": 0.01}
    assert lz.lz_prototypes_exact() == 2.0
    assert lz.lz_logistic_binary_bound(**at) == pytest.approx(51.0)
    assert lz.lz_logistic_binary_bound(**at, include_bias=False) == pytest.approx(26.0)
    assert lz.lz_softmax_linear_bound(**at) == pytest.approx(math.sqrt(2) * 101.0)
    assert lz.lz_squared_hinge_bound(**at) == pytest.approx(82.0)
    assert lz.lz_glm_data_independent_bound(A=2.0, L=0.5, **at) == pytest.approx(202.0)


@pytest.mark.parametrize(
    "bound",
    [
        lz.lz_logistic_binary_bound,
        lz.lz_softmax_linear_bound,
        lz.lz_squared_hinge_bound,
    ],
)
@pytest.mark.parametrize("bad", [{"B": 0.0}, {"lam": 0.0}, {"B": -1.0}])
def test_bad_constants(bound, bad):
    with pytest.raises(ValueError, match="must be positive"):
        bound(**({"B": 1.0, "lam": 0.1} | bad))


def test_an_empirical_constant_stays_below_the_bound():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=4) * 3.0

    def gradient(x):
        return -expit(-x @ theta) * x

    pairs = [rng.normal(size=(200, 4)) for _ in range(2)]
    pairs = [p / np.linalg.norm(p, axis=1, keepdims=True) for p in pairs]
    found = lz.estimate_lz_empirical_torch(
        gradient, pairs=(pairs[0], pairs[1]), metric=l2_dist
    )
    bound = lz.lz_logistic_binary_bound(B=1.0, lam=0.1, include_bias=False)
    assert 0.5 < found < bound
    with pytest.raises(ValueError, match="equal length"):
        lz.estimate_lz_empirical_torch(
            gradient, pairs=(pairs[0], pairs[1][:5]), metric=l2_dist
        )


def test_sensitivity():
    found = erm_sensitivity_l2(lz=51.0, r=0.5, lam=0.01, n=1000)
    assert found == ERMSensitivity(2.55, 51.0, 0.5, 0.01, 1000)


def test_calibration_meets_its_delta():
    sigma = calibrate_analytic_gaussian(epsilon=2.0, delta=1e-6, GS=3.0)
    delta = audit.gaussian_dp_slack_from_distance_closed_form(3.0, sigma, 2.0)[0]
    assert delta == pytest.approx(1e-6, rel=1e-6)


def test_closed_forms():
    mu0, mu1 = np.zeros(3), np.array([0.0, 2.0, 0.0])
    assert audit.gaussian_llr(mu0, mu0, mu1, 2.0) == pytest.approx(0.5)
    assert audit.llr_attack_predict(mu0, mu0, mu1, 2.0) == 0
    assert audit.llr_attack_predict(mu1, mu0, mu1, 2.0) == 1
    accuracy = audit.gaussian_expected_llr_attack_acc(mu0, mu1, 2.0)
    assert accuracy == pytest.approx(norm.cdf(0.5))
    there, back = audit.gaussian_dp_slack_closed_form(mu0, mu1, 2.0, 0.5)
    wanted = norm.cdf(0.0) - math.exp(0.5) * norm.cdf(-1.0)
    assert there == back == pytest.approx(wanted)
    assert audit.gaussian_dp_slack_closed_form(mu0, mu0, 1.0, 1.0) == (0.0, 0.0)


@pytest.mark.slow
def test_trials_agree_with_the_closed_forms():
    mu0, mu1 = np.zeros(5), np.full(5, 0.4)

    def neighbour(D, rng):
        return D, int(rng.integers(2)), mu0, mu1

    found = audit.run_llr_audit_trials(
        f=np.mean,
        make_neighbor=neighbour,
        D=np.zeros(1),
        sigma=1.0,
        eps=0.5,
        n_trials=20_000,
    )
    accuracy = audit.gaussian_expected_llr_attack_acc(mu0, mu1, 1.0)
    delta, _ = audit.gaussian_dp_slack_closed_form(mu0, mu1, 1.0, 0.5)
    assert found.attack_acc == pytest.approx(accuracy, abs=0.02)
    assert found.delta_hat_D_to_Dprime == pytest.approx(delta, abs=0.04)
    assert found.delta_hat_Dprime_to_D == pytest.approx(delta, abs=0.04)
    assert found.llr_mean_under_D == pytest.approx(0.4, abs=0.05)
    assert found.n_D + found.n_Dprime == found.n_trials == 20_000


def test_bad_trials():
    with pytest.raises(ValueError, match="bit of 0 or 1"):
        audit.run_llr_audit_trials(
            f=np.mean,
            make_neighbor=lambda D, rng: (D, 2, D, D),
            D=np.zeros(1),
            sigma=1.0,
            eps=1.0,
        )


def test_aggregate():
    found = audit.aggregate_closed_form_gaussian_audit([0.0, 1.0], sigma=1.0, eps=1.0)
    assert set(found) == {
        "attack_acc_mean",
        "delta_dir_max",
        "delta_rev_max",
        "d_summary",
    }
    assert found["attack_acc_mean"] == pytest.approx((0.5 + norm.cdf(0.5)) / 2)
    delta = audit.gaussian_dp_slack_from_distance_closed_form(1.0, 1.0, 1.0)
    assert (found["delta_dir_max"], found["delta_rev_max"]) == delta
    summary = {"min": 0.0, "med": 0.5, "p95": 0.95, "max": 1.0, "n": 2}
    assert found["d_summary"] == pytest.approx(summary)
    with pytest.raises(ValueError, match="at least one"):
        audit.aggregate_closed_form_gaussian_audit([], sigma=1.0, eps=1.0)


@pytest.mark.slow
@pytest.mark.slow
def test_spectral_norms_bound_from_above_and_approach_from_below():
    omega, _ = rff.sample_rff_rbf(jax.random.key(1), d_in=6, m=40)
    exact = float(np.sqrt(np.linalg.eigvalsh(np.asarray(omega.T @ omega)).max()))
    bound = rff.spectral_norm_svd(omega)
    assert exact < bound < exact * (1 + 1e-4)
    few, many = (
        rff.spectral_norm_power_iteration(omega, key=jax.random.key(2), num_iters=k)
        for k in (1, 60)
    )
    assert few < 0.999 * exact < many <= bound
    assert many == pytest.approx(exact, rel=1e-3)
    with pytest.raises(ValueError, match="num_iters"):
        rff.spectral_norm_power_iteration(omega, key=jax.random.key(2), num_iters=0)


def test_random_features():
    omega, phase = rff.sample_rff_rbf(jax.random.key(0), d_in=5, m=4000, gamma=0.5)
    X = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    features = np.asarray(rff.rff_transform(X, omega, phase), dtype=np.float64)
    assert np.linalg.norm(features, axis=1).max() <= rff.rff_feature_norm_bound()
    apart = ((X[:, None] - X) ** 2).sum(axis=2)
    np.testing.assert_allclose(features @ features.T, np.exp(-0.5 * apart), atol=0.1)
    tight, loose = (rff.rff_lipschitz_bound(omega, method=m) for m in ("svd", "fro"))
    assert tight < loose
    moved = np.linalg.norm(features[:, None] - features, axis=2)
    assert (moved <= tight * np.sqrt(apart) * (1 + 1e-5) + 1e-6).all()


@pytest.mark.slow
def test_clipped_frequencies():
    omega, _ = rff.sample_rff_rbf(jax.random.key(0), d_in=5, m=50, clip_omega_norm=1.0)
    assert np.linalg.norm(np.asarray(omega, dtype=np.float64), axis=1).max() < 1 + 1e-6
    bound = rff.rff_lipschitz_bound(omega, method="clip", clip_omega_norm=1.0)
    assert bound >= rff.rff_lipschitz_bound(omega, method="svd")


@pytest.mark.parametrize(
    ("method", "says"), [("power", "below"), ("clip", "needs"), ("guess", "must be")]
)
def test_refused_methods(method, says):
    with pytest.raises(ValueError, match=says):
        rff.rff_lipschitz_bound(jnp.ones((3, 2)), method=method)
