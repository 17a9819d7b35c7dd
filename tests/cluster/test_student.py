"""The Student-t mixture: densities, ascent, recovery, and the step that divides."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, special, stats

from demur.cluster.decoding.student_em import (
    LARGEST_NU,
    SMALLEST_NU,
    StudentClusters,
    degrees_of_freedom,
    fit_students,
    squared_distances,
    student_step,
)

TRUTH = StudentClusters(
    np.array([0.3, 0.7]), np.array([[0.2, 0.3, 0.5], [0.8, 0.6, 0.4]]), 0.004, 4.0
)


def drawn(n, truth=TRUTH, seed=0):
    rng = np.random.default_rng(seed)
    which = rng.choice(len(truth.weights), n, p=truth.weights)
    u = rng.gamma(truth.nu / 2, 2 / truth.nu, size=n)
    z = rng.normal(size=(n, truth.means.shape[1]))
    return truth.means[which] + z * np.sqrt(truth.alpha / u)[:, None]


def start(seed=0):
    rng = np.random.default_rng(seed)
    return StudentClusters(np.full(2, 0.5), rng.random((2, 3)), 0.05, 15.0)


def test_the_density_is_scipys():
    rows = drawn(50)
    for j, mean in enumerate(TRUTH.means):
        law = stats.multivariate_t(mean, TRUTH.alpha * np.eye(3), df=TRUTH.nu)
        exact = law.logpdf(rows) + np.log(TRUTH.weights[j])
        assert np.allclose(TRUTH.log_densities(rows)[:, j], exact)


@pytest.mark.parametrize("fixed_nu", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_step_increases_the_likelihood(fixed_nu, seed):
    rows = drawn(500, seed=seed)
    fit = fit_students(rows, start(seed), max_iter=100, tol=0.0, fixed_nu=fixed_nu)
    gains = np.diff(fit.log_likelihoods)
    assert len(gains) > 5 and (gains > -1e-8 * abs(fit.log_likelihoods[-1])).all()


@pytest.mark.slow
def test_known_parameters_are_recovered():
    fit = fit_students(drawn(20_000), start(), max_iter=500, tol=1e-4).clusters
    order = fit.means[:, 0].argsort()
    assert np.allclose(fit.means[order], TRUTH.means, atol=0.006)
    assert np.allclose(fit.weights[order], TRUTH.weights, atol=0.015)
    assert fit.alpha == pytest.approx(TRUTH.alpha, rel=0.05)
    assert fit.nu == pytest.approx(TRUTH.nu, rel=0.1)


def dividing_step(rows, now, logs):
    """The reference's: outliers get the larger weight."""
    shares = special.softmax(logs, axis=1)
    squares = squared_distances(rows, now.means)
    pull = (now.nu + rows.shape[1]) / (now.nu + squares / now.alpha)
    heavy = shares / pull
    means = heavy.T @ rows / heavy.sum(axis=0)[:, None]
    alpha = float((shares * pull * squares).sum()) / rows.size
    return StudentClusters(shares.mean(axis=0), means, alpha, now.nu)


def test_a_step_that_divides_is_told_apart():
    rows = drawn(500)
    histories = []
    for step in (
        lambda now, logs: student_step(rows, now, logs, fixed_nu=True),
        lambda now, logs: dividing_step(rows, now, logs),
    ):
        now, history = StudentClusters(TRUTH.weights, TRUTH.means, 0.01, 4.0), []
        for _ in range(40):
            logs = now.log_densities(rows)
            history.append(special.logsumexp(logs, axis=1).sum())
            now = step(now, logs)
        histories.append(np.array(history))
    right, wrong = histories
    assert (np.diff(right) > -1e-9 * abs(right[-1])).all()
    assert (np.diff(wrong) < -1e-3).any() and right[-1] > wrong[-1] + 10


def test_the_equation_of_nu_maximises_its_part_of_the_likelihood():
    """Q(nu) by brute force; the equation with psi(nu) in place of psi(nu/2) misses."""
    moment = float(special.psi(2.0) - np.log(2.0) - 1.0)  # as if nu were 4

    def minus_q(nu):
        half = nu / 2
        return -(half * np.log(half) - special.gammaln(half) + half * moment)

    best = optimize.minimize_scalar(minus_q, bounds=(0.2, 50), method="bounded").x
    assert degrees_of_freedom(moment) == pytest.approx(best, rel=1e-4)
    wrong = optimize.brentq(
        lambda nu: float(np.log(nu) - special.psi(nu)) + 1.0 + moment, 0.1, 500
    )
    assert wrong != pytest.approx(best, rel=0.3)
    assert degrees_of_freedom(-1.0 - 1e-9) == LARGEST_NU
    assert degrees_of_freedom(-1e6) == SMALLEST_NU
