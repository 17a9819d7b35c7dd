"""Value, gradient and power of the likelihood; the search; the posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.optimize import check_grad

from demur.cluster.decoding import posterior, search
from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.noise import GaussianNoise, PureNoise, noise_of
from demur.cluster.decoding.posterior import best_centers, posterior_draws
from demur.cluster.decoding.radial import radial_table
from demur.cluster.decoding.search import fit_clusters
from demur.cluster.rows.ranked_rows import RowsInMemory
from demur.core.entropy import Seeded
from demur.mechanisms.bpm import BPM

CENTERS = np.array([[0.15, 0.2], [0.8, 0.3], [0.45, 0.85]])


def points(n, centers=CENTERS, width=0.05, seed=0):
    rng = np.random.default_rng(seed)
    which = rng.integers(len(centers), size=n)
    drawn = centers[which] + width * rng.normal(size=(n, centers.shape[1]))
    return np.clip(drawn, 0.0, 1.0)


def reports_of(bpm, X, seed=0):
    return bpm.privatize(X, ledger=None, source=Seeded(seed)).value.values


def held(reports):
    return RowsInMemory(reports, np.arange(len(reports), dtype=np.uint64))


def objective_for(reports, noise, clusters, pseudo_count=5.0):
    product = noise.block != noise.dimension
    table = radial_table(noise, None)
    return MixtureObjective(held(reports), table, clusters, product, pseudo_count)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise",
    [
        noise_of(BPM(4.0, 0.5, 3)),
        noise_of(BPM(4.0, "auto", 3)),
        PureNoise(2.0, math.inf, 1, 3),
        GaussianNoise(0.4, 3),
    ],
    ids=["small L", "auto", "by coordinate", "gaussian"],
)
def test_the_gradient_is_that_of_the_value(noise):
    rng = np.random.default_rng(5)
    reports = rng.normal(0.5, 0.6, size=(300, 3))
    objective = objective_for(np.clip(reports, -0.5, 1.5), noise, 4)
    for _ in range(3):
        start = Clusters(rng.random((4, 3)), rng.dirichlet(np.ones(4)), 0.1)
        vector = objective.pack(start)
        size = np.linalg.norm(objective(vector)[1])
        error = check_grad(
            lambda v: objective(v)[0], lambda v: objective(v)[1], vector, epsilon=1e-6
        )
        assert error < 1e-4 * max(size, 0.1)
        wrong = check_grad(
            lambda v: objective(v)[0], lambda v: 0.97 * objective(v)[1], vector
        )
        assert wrong > 1e-4 * max(size, 0.1)


@pytest.mark.slow
def test_the_model_is_a_density():
    """In one dimension its integral over the reports' range is 1."""
    for L in (0.3, 1.0, "auto"):
        bpm = BPM(4.0, L, 1)
        table = radial_table(noise_of(bpm), None)
        found, _ = integrate.quad(
            lambda x, t=table: math.exp(
                t.log_density(np.array([abs(x - 0.5)]), 0.05)[0]
            ),
            -bpm.L,
            1 + bpm.L,
            limit=200,
            points=[0.5 - bpm.L, 0.5, 0.5 + bpm.L],
        )
        assert found == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_the_truth_is_more_likely_under_the_right_noise_than_under_a_wrong_one():
    """Sabotaged twins: no uniform floor, and an epsilon that is 25% off."""
    bpm = BPM(4.0, 0.7, 2)
    X = points(20_000)
    reports = reports_of(bpm, X)
    truth = Clusters(CENTERS, np.full(3, 1 / 3), 0.05)

    def likelihood(noise):
        return objective_for(reports, noise, 3).log_likelihood(truth)

    right = likelihood(noise_of(bpm))
    # Gains in nats per report; their deviation over 20,000 is below 0.01.
    assert right > likelihood(PureNoise(4.0, math.inf, 2, 2)) + 0.1
    for wrong in (3.0, 5.0):
        assert right > likelihood(noise_of(BPM(wrong, 0.7, 2))) + 0.003


@pytest.mark.slow
def test_the_search_finds_what_a_start_from_the_truth_finds():
    bpm = BPM(4.0, "auto", 2)
    reports = reports_of(bpm, points(6_000), seed=3)
    found = fit_clusters(
        held(reports),
        noise_of(bpm),
        3,
        rng=np.random.default_rng(0),
        n_init=6,
        max_iter=300,
    )
    objective = objective_for(reports, noise_of(bpm), 3)
    truth = objective.log_likelihood(Clusters(CENTERS, np.full(3, 1 / 3), 0.05))
    assert found.log_likelihood > truth - 1e-3
    gaps = np.linalg.norm(found.centers[:, None] - CENTERS, axis=2)
    assert gaps.min(axis=0).max() < 0.06  # 2,000 reports of deviation 0.43 / sqrt(2)
    assert sorted(gaps.argmin(axis=0)) == [0, 1, 2]


@pytest.mark.slow
def test_the_prior_of_the_weights_keeps_clusters_alive(monkeypatch):
    """The smallest of three equal weights, 150 reports; the twin has no prior."""
    bpm = BPM(4.0, "auto", 2)
    monkeypatch.setattr(search, "_AVERAGED", 0)  # the peak alone

    def smallest(pseudo_count, seed):
        monkeypatch.setattr(search, "PSEUDO_COUNT", pseudo_count)
        reports = held(reports_of(bpm, points(150, seed=seed), seed=seed))
        rng = np.random.default_rng(seed)
        found = fit_clusters(reports, noise_of(bpm), 3, rng=rng, n_init=4, max_iter=100)
        return found.peak.weights.min()

    kept, bare = (np.array([smallest(n, s) for s in range(4)]) for n in (30.0, 0.0))
    assert (kept > bare).all()
    assert kept.min() > 0.25 and bare.min() < 0.2


@pytest.mark.slow
def test_equal_generators_give_equal_centres(monkeypatch):
    monkeypatch.setattr(posterior, "WARM_UP", 6)
    monkeypatch.setattr(posterior, "DRAWS", 6)
    bpm = BPM(4.0, "auto", 2)
    reports = reports_of(bpm, points(400))

    def once(seed):
        rng = np.random.default_rng(seed)
        return fit_clusters(
            held(reports), noise_of(bpm), 3, rng=rng, n_init=3, max_iter=50
        ).centers

    one = once(1)
    assert np.array_equal(one, once(1))
    assert not np.array_equal(one, once(2))


@pytest.mark.slow
def test_posterior_draws_have_the_closed_form_of_one_gaussian_cluster():
    """One cluster, Gaussian noise: mu has mean and deviation sigma / sqrt(n)."""
    rng = np.random.default_rng(2)
    sigma, n = 0.4, 400
    reports = 0.5 + sigma * rng.normal(size=(n, 2))
    noise = GaussianNoise(sigma, 2)
    objective = objective_for(reports, noise, 1, 0.0)
    peak = objective.pack(Clusters(reports.mean(axis=0)[None], np.ones(1), 0.013))
    drawn = []
    for seed in range(4):
        draws = posterior_draws(
            objective, peak, noise.information, np.random.default_rng(seed)
        )
        drawn += [one.centers[0] for one in draws]
    centers = np.array(drawn)
    # The width is drawn as well, up to what 400 reports allow (s^2 << sigma^2).
    expected = sigma / math.sqrt(n)
    assert np.abs(centers.mean(axis=0) - reports.mean(axis=0)).max() < 0.3 * expected
    assert np.abs(centers.std(axis=0) / expected - 1.0).max() < 0.2
    # The twin sees a quarter of the reports and is told apart.
    quarter = objective_for(reports[: n // 4], noise, 1, 0.0)
    wide = posterior_draws(quarter, peak, noise.information, np.random.default_rng(0))
    spread = np.array([one.centers[0] for one in wide]).std(axis=0)
    assert (np.abs(spread / expected - 1.0) > 0.4).all()


@pytest.mark.slow
def test_draws_stay_in_the_box():
    bpm = BPM(2.0, "auto", 2)
    corner = points(100, np.array([[0.0, 1.0]]), 0.02)
    reports = reports_of(bpm, corner)
    objective = objective_for(reports, noise_of(bpm), 2)
    peak = objective.pack(Clusters(np.array([[0.0, 1.0]] * 2), np.full(2, 0.5), 0.05))
    draws = posterior_draws(objective, peak, 1.0, np.random.default_rng(0))
    assert len(draws) == posterior.DRAWS
    for one in draws:
        assert (one.centers >= 0.0).all() and (one.centers <= 1.0).all()
        assert objective.table.narrowest <= one.width * (1 + 1e-9)
    assert len({one.width for one in draws}) > posterior.DRAWS // 3


def test_the_best_centres_are_the_k_means_of_the_predictive_law():
    """Two draws that disagree about one centre meet in the middle, by their weights."""
    one = Clusters(np.array([[0.1, 0.1], [0.8, 0.8]]), np.array([0.5, 0.5]), 0.01)
    two = Clusters(np.array([[0.1, 0.1], [0.9, 0.8]]), np.array([0.5, 0.5]), 0.01)
    found = best_centers([one, two], np.random.default_rng(0))
    found = found[found[:, 0].argsort()]
    assert np.allclose(found, [[0.1, 0.1], [0.85, 0.8]], atol=1e-3)
