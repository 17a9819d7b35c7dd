"""The objectives of logistic regression: values, and the rounding that is stated."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from demur.unlearning.models import newton_fit
from demur.unlearning.models.newton_fit import LogisticObjective, SoftmaxObjective

U = 2.0**-53


def objective(classes=0, n=60, d=4, Lambda=2.0, bound=3.0):
    rng = np.random.default_rng(n + d)
    X = rng.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True) / bound, 1.0)
    Y = rng.integers(0, classes or 2, size=n).astype(float)
    if classes:
        return SoftmaxObjective(X, Y, Lambda, bound, classes)
    return LogisticObjective(X, Y, Lambda, bound)


def loss(problem, w):
    """The sum of log-losses, in plain numpy."""
    if isinstance(problem, SoftmaxObjective):
        scores = problem.X @ w.reshape(problem.classes, -1).T
        own = scores[np.arange(len(scores)), problem.Y.astype(int)]
        total = (np.log(np.exp(scores).sum(axis=1)) - own).sum()
    else:
        score = problem.X @ w
        total = (np.log1p(np.exp(score)) - problem.Y * score).sum()
    return total + problem.Lambda / 2.0 * (w @ w)


def size(problem):
    return problem.X.shape[1] * getattr(problem, "classes", 1)


def numerically(f, w, h=1e-5):
    steps = np.eye(len(w)) * h
    return np.array([(f(w + s) - f(w - s)) / (2 * h) for s in steps])


@pytest.mark.parametrize("classes", [0, 3])
def test_gradient_and_hessian_are_those_of_the_loss(classes):
    problem = objective(classes)
    w = np.random.default_rng(1).normal(size=size(problem)) / 2.0
    gradient = problem.gradient(w).value
    expected = numerically(lambda v: loss(problem, v), w)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)
    H = problem.hessian(w)
    expected = numerically(lambda v: problem.gradient(v).value, w)
    np.testing.assert_allclose(H, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("classes", [0, 3])
def test_rows_are_summed_in_blocks(classes, monkeypatch):
    problem = objective(classes)
    w = np.random.default_rng(1).normal(size=size(problem)) / 2.0
    whole = problem.gradient(w).value, problem.hessian(w)
    assert newton_fit._BLOCK == 4096
    for block in (1, 7, 60, 61):
        monkeypatch.setattr(newton_fit, "_BLOCK", block)
        assert len(list(problem._blocks())) == math.ceil(60 / block)
        np.testing.assert_allclose(problem.gradient(w).value, whole[0], rtol=1e-10)
        np.testing.assert_allclose(problem.hessian(w), whole[1], rtol=1e-10)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("block", [16, 4096])
def test_the_rounding_of_a_gradient_is_what_is_stated(classes, block, monkeypatch):
    monkeypatch.setattr(newton_fit, "_BLOCK", block)
    problem = objective(classes)
    w = np.random.default_rng(1).normal(size=size(problem)) / 2.0
    told = problem.gradient(w)
    n, d, B, weight = 60, 4, 3.0, float(np.linalg.norm(w))
    terms = min(n, block) + n / block + d + 32.0 + 2.0 * classes
    slope = math.sqrt(2.0) if classes else 1.0
    exact = 2.0 * U * terms * (slope * n * B * (1.0 + weight * B) + 2.0 * weight)
    assert told.rounding == pytest.approx(exact, rel=1e-12)
    norm = float(np.linalg.norm(told.value))
    assert told.bound == pytest.approx(norm * (1 + 1e-12) + exact, rel=1e-15)
    assert told.bound > norm + exact


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_the_minimum_is_found_with_its_hessian_and_its_drift(classes, far):
    problem = objective(classes)
    start = np.full(size(problem), far)
    found = problem.minimum(start)
    best = minimize(lambda w: loss(problem, w), 0 * start, method="BFGS", tol=1e-9)
    np.testing.assert_allclose(found.w, best.x, atol=1e-5)
    here = problem.gradient(found.w)
    assert found.residual == here.bound <= 1.5 * here.rounding
    H = problem.hessian(found.w)
    np.testing.assert_array_equal(found.H, H)
    np.testing.assert_allclose(found.P @ H, np.eye(len(H)), atol=1e-10)
    np.testing.assert_allclose(found.gram, problem.X.T @ problem.X, rtol=1e-14)
    n, B, weight = 60, 3.0, float(np.linalg.norm(found.w))
    curved = 4 + 6.0 * classes + 48.0 if classes else 4 + 16.0
    drift = (4096 + n / 4096 + 16.0) * np.trace(H)
    drift += n * curved * (1.0 + weight * B) * B * B
    assert found.drift == pytest.approx(U * drift, rel=1e-12)
    assert np.array_equal(start, np.full(size(problem), far)), "left alone"


def test_an_inverse_has_no_eigenvalue_that_rounding_made():
    problem = objective()
    H = np.diag([8.0, 4.0, 1e-20, -1.0])
    expected = np.diag([1 / 8, 1 / 4, 1 / 2, 1 / 2])
    np.testing.assert_allclose(problem._inverse(H), expected, rtol=1e-15)
