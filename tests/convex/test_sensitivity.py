"""Delta(r) against what minimisers really do, and twins that must be caught."""

import numpy as np
import pytest
from scipy.optimize import minimize

from demur.convex import (
    DeclaredForm,
    Fit,
    HeadForm,
    grad_diff_bound,
    minimise,
    objective,
)
from demur.convex.sensitivity.curves import declared_sensitivity, erm_sensitivity
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.errors import NotCovered
from tests.convex.kit import LOSSES, into_ball


def problem(rng, classes, n, d=2):
    X = rng.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    return X, rng.integers(classes, size=n)


def ball(radius):
    return Ball(radius, space="records")


def theta_of(loss, X, y, lam, classes, tau=1e-9):
    form = HeadForm(loss, lam=lam, num_classes=classes)
    return minimise(objective(form, X, y), tau=tau).theta


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_real_minimisers_never_move_farther_than_delta(loss, classes):
    rng = np.random.default_rng(classes)
    closest = 0.0
    for _ in range(12):
        n, lam = int(rng.integers(2, 8)), float(10 ** rng.uniform(-3, 0))
        X, y = problem(rng, classes, n)
        radius = float(10 ** rng.uniform(-2, 0.3))
        other = X.copy()
        # The most telling record is one on the border of the ball of rows.
        other[0] = into_ball(X[0] + into_ball(rng.normal(size=2) * 9, radius), 1.0)
        form = HeadForm(loss, lam=lam, norm_bound=1.0, num_classes=classes)
        found = erm_sensitivity(form, ball(radius), Fit(n)).table
        before = theta_of(loss, X, y, lam, classes)
        after = theta_of(loss, other, y, lam, classes)
        near = float(np.linalg.norm(before - after))
        assert near <= found.at(Ball(radius, space="records"))
        closest = max(closest, near / found.at(Ball(radius, space="records")))
        labels = y.copy()
        labels[0] = (y[0] + 1) % classes
        far = np.linalg.norm(before - theta_of(loss, other, labels, lam, classes))
        assert far <= found.at(ReplaceOne())
    assert closest > 0.02  # the test sees movements of the bound's order


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("lam", [1e-3, 0.3])
def test_the_curve_lies_above_delta_everywhere(loss, classes, lam):
    n, tau, B = 50, 1e-6, 1.3
    form = HeadForm(loss, lam=lam, norm_bound=B, num_classes=classes)
    found = erm_sensitivity(form, ball(0.31), Fit(n, tau=tau))
    (curve,) = [curve for _, curve in found.table.spaces]
    for radius in np.concatenate([np.geomspace(1e-7, 10, 200), [0.31, 2 * B]]):
        G = grad_diff_bound(form, radius)
        exact = G / (lam * n) + 2 * tau / lam
        assert exact <= curve(float(radius))
        if radius > 1e-3:
            assert curve(float(radius)) <= 1.1 * exact
    tight = grad_diff_bound(form, 0.31)
    assert curve(0.31) <= (tight / (lam * n) + 2 * tau / lam) * (1 + 3e-8)
    assert found.parts.total == curve(0.31)
    assert found.parts.same_label == curve(2 * B) == curve(1e6)


def test_twin_without_the_solvers_slack_is_caught():
    """Two approximate minimisers can be 2 tau / lam farther apart; it is charged."""
    rng = np.random.default_rng(0)
    X, y = problem(rng, 2, 2000)
    lam, tau, radius = 0.1, 1e-3, 0.01
    other = X.copy()
    other[0] = into_ball(X[0] + np.array([radius, 0.0]), 1.0)
    u = theta_of("logistic", X, y, lam, 2)
    v = theta_of("logistic", other, y, lam, 2)
    away = np.array([0.0, 0.0, 1.0])
    form = HeadForm("logistic", lam=lam, norm_bound=1.0)
    stated = objective(form, X, y)

    def pushed(theta, sign):
        """As far along `away` as a gradient norm of tau allows."""
        low, high = 0.0, tau / lam
        for _ in range(60):
            middle = (low + high) / 2
            _, g = stated.value_and_gradient(theta + sign * middle * away)
            low, high = (middle, high) if np.linalg.norm(g) <= tau else (low, middle)
        return theta + sign * low * away

    moved = np.linalg.norm(pushed(u, 1.0) - pushed(v, -1.0))
    charged = erm_sensitivity(form, ball(radius), Fit(2000, tau=tau))
    twin = erm_sensitivity(form, ball(radius), Fit(2000, tau=0.0))
    assert moved <= charged.parts.total
    assert moved > twin.parts.total


def test_twin_with_a_free_bias_is_caught():
    """Without a regularised bias one label moves the head beyond any such bound."""
    n, lam = 400, 0.1
    X = np.zeros((n, 1))

    def free_bias(labels):
        signs = 2.0 * labels - 1.0
        found = minimize(
            lambda t: float(np.mean(np.logaddexp(0, -signs * t[1])) + lam * t[0] ** 2),
            np.zeros(2),
            tol=1e-12,
        )
        return found.x

    y = np.zeros(n, dtype=int)
    y[0] = 1
    other = y.copy()
    other[1] = 1
    form = HeadForm("logistic", lam=lam, norm_bound=1.0)
    bound = erm_sensitivity(form, ball(1.0), Fit(n))
    limit = bound.table.at(ReplaceOne())
    assert np.linalg.norm(free_bias(y) - free_bias(other)) > 5 * limit
    ours = theta_of("logistic", X, y, lam, 2) - theta_of("logistic", X, other, lam, 2)
    assert np.linalg.norm(ours) <= limit


def test_a_declared_loss_goes_the_same_way():
    form = DeclaredForm(lz=3.0, lam=0.1, norm_bound=1.0, gradient_bound=1.0)
    found = declared_sensitivity(form, ball(0.2), Fit(100))
    assert found.parts.total == pytest.approx(0.06 + 2e-8, rel=1e-6)
    assert found.table.at(ReplaceOne()) == pytest.approx(0.2, rel=1e-6)
    assert found.table.at(Ball(1.9, space="records")) <= 0.2 * (1 + 1e-6)
    form = DeclaredForm(lz=3.0, lam=0.1, norm_bound=1.0)
    silent = declared_sensitivity(form, ball(0.2), Fit(100))
    with pytest.raises(NotCovered):
        silent.table.at(ReplaceOne())
