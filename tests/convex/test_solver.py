"""The solver: exact gradients, a certificate, and refusal without one."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from demur.convex import (
    HeadForm,
    NotConverged,
    gradient_norm,
    minimise,
    minimiser_radius,
    objective,
)
from tests.convex.kit import LOSSES, blobs


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_gradient_and_curvature_are_derivatives(loss, classes, bias):
    X, y = blobs(60, 3, classes, seed=1)
    form = HeadForm(loss, lam=0.03, bias_scale=bias, num_classes=classes)
    stated = objective(form, X, y)
    rng = np.random.default_rng(0)
    theta, along = rng.normal(size=stated.shape), rng.normal(size=stated.shape)
    h = 1e-6
    up, gradient_up = stated.value_and_gradient(theta + h * along)
    down, gradient_down = stated.value_and_gradient(theta - h * along)
    _, gradient = stated.value_and_gradient(theta)
    assert (up - down) / (2 * h) == pytest.approx(np.vdot(gradient, along), rel=1e-6)
    bent = stated.curvature(theta).product(along)
    numeric = (gradient_up - gradient_down) / (2 * h)
    # The hinges are kinked, and a finite difference may straddle a kink.
    assert np.allclose(bent, numeric, atol=1e-4 if loss != "softmax" else 1e-7)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_the_minimiser_is_certified_and_inside_its_radius(loss, classes, lam, scale):
    X, y = blobs(120, 4, classes, seed=2)
    form = HeadForm(loss, lam=lam, num_classes=classes)
    found = minimise(objective(form, scale * X, y), tau=1e-9)
    assert gradient_norm(form, scale * X, y, found.theta) <= 1e-9
    R = minimiser_radius(form)
    assert np.linalg.norm(found.theta) <= R + 1e-9 / lam


def test_agrees_with_scikit_learn():
    X, y = blobs(300, 5, 4, seed=3)
    lam = 0.01
    form = HeadForm("softmax", lam=lam, bias_scale=0.0, num_classes=4)
    ours = minimise(objective(form, X, y)).theta
    theirs = LogisticRegression(
        C=1 / (lam * len(X)), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(X, y)
    assert np.allclose(ours, theirs.coef_, atol=1e-5)


def test_chunks_do_not_matter(monkeypatch):
    X, y = blobs(100, 3, 3)
    stated = objective(HeadForm("softmax", lam=0.1, num_classes=3), X, y)
    theta = np.random.default_rng(0).normal(size=stated.shape)
    whole = stated.value_and_gradient(theta), stated.curvature(theta).product(theta)
    monkeypatch.setattr("demur.convex.solving.objective.CHUNK", 7)
    monkeypatch.setattr("demur.convex.solving.objective._CACHED_ENTRIES", 0)
    parts = stated.value_and_gradient(theta), stated.curvature(theta).product(theta)
    assert parts[0][0] == pytest.approx(whole[0][0], rel=1e-14)
    assert np.allclose(parts[0][1], whole[0][1], atol=1e-15)
    assert np.allclose(parts[1], whole[1], atol=1e-15)


def test_a_computed_gradient_is_within_its_rounding_bound():
    X, y = blobs(3000, 6, 3, seed=5)
    stated = objective(HeadForm("softmax", lam=0.1, num_classes=3), X, y)
    theta = np.random.default_rng(1).normal(size=stated.shape)
    _, found = stated.value_and_gradient(theta)
    wide = np.hstack([X, np.ones((len(X), 1))]).astype(np.longdouble)
    scores = wide @ theta.T.astype(np.longdouble)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    exact = p.T @ wide / len(X) + np.longdouble(0.1) * theta
    off = float(np.linalg.norm(exact - found))
    bound = stated.rounding(10.0)
    assert off <= bound <= 1e-11
    # Without a norm bound it is the longest row's; a larger one is a larger error.
    longest = float(np.linalg.norm(X, axis=1).max())
    form = replace(stated.form, norm_bound=longest)
    assert objective(form, X, y).rounding(10.0) == pytest.approx(bound, rel=1e-12)
    form = replace(stated.form, norm_bound=2.0 * longest)
    assert objective(form, X, y).rounding(10.0) > bound


def test_no_certificate_no_result():
    X, y = blobs(200, 4, 2)
    with pytest.raises(NotConverged, match="nothing was charged"):
        minimise(objective(HeadForm("logistic", lam=1e-6), X, y), max_iter=1)
    with pytest.raises(NotConverged, match="below what float64 can certify"):
        minimise(objective(HeadForm("logistic", lam=1e-2), X, y), tau=1e-15)
    with pytest.raises(ValueError, match="lam must be positive"):
        minimise(objective(HeadForm("logistic", lam=0.0), X, y))


def test_progress_goes_from_zero_to_one():
    X, y = blobs(200, 4, 2)
    seen = []
    minimise(
        objective(HeadForm("logistic", lam=1e-2), X, y),
        progress=lambda i, share: seen.append(share),
    )
    assert seen[0] == 0.0 and seen[-1] == 1.0 and seen == sorted(seen)


@pytest.mark.parametrize(
    ("X", "y", "error"),
    [
        ([[1.0], [np.nan]], [0, 1], "NaN"),
        ([[1.0], [np.inf]], [0, 1], "NaN or infinity"),
        ([["a"], ["b"]], [0, 1], "must (be|hold)"),
        ([[1.0], [2.0]], [0], "one label for each"),
        ([[1.0], [2.0]], [0, 5], "0 and 1"),
        ([1.0, 2.0], [0, 1], "matrix"),
    ],
)
def test_bad_data(X, y, error):
    with pytest.raises(ValueError, match=error):
        objective(HeadForm("logistic", lam=0.1), X, y)


def test_a_theta_of_another_shape_is_refused():
    X, y = blobs(20, 3, 2)
    with pytest.raises(ValueError, match="theta must have shape"):
        gradient_norm(HeadForm("logistic", lam=0.1), X, y, np.zeros(3))
