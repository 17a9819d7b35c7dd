"""Value, gradient and power of the likelihood; the search; the posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special
from scipy.optimize import check_grad

from demur.cluster.decoding import posterior
from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import best_centers
from demur.cluster.decoding.noise import GaussianNoise, PureNoise, noise_of
from demur.cluster.decoding.posterior import Draws, posterior_draws
from demur.cluster.decoding.priors import CentrePrior, weight_prior
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


def objective_for(reports, noise, clusters, prior=None, shared=False):
    product = noise.block != noise.dimension
    table = radial_table(noise, None)
    return MixtureObjective(
        held(reports), table, clusters, product, prior, math.log(0.2), shared
    )


def fields(clusters):
    return clusters.centers, clusters.weights, clusters.widths


def widths(clusters, width):
    return np.full(clusters, width)


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
    prior = CentrePrior(np.full(3, 0.5), np.diag([2.0, 3.0, 5.0]))
    for shared in (False, True, False):
        clipped = np.clip(reports, -0.5, 1.5)
        objective = objective_for(clipped, noise, 4, prior, shared)
        wide = np.array([0.1, 0.25, 0.06, 0.1])
        start = Clusters(rng.random((4, 3)), rng.dirichlet(np.ones(4)), wide)
        vector = objective.pack(start)
        size = np.linalg.norm(objective(vector)[1])

        def value(v, objective=objective):
            return objective(v)[0]

        def gradient(v, factor=1.0, objective=objective):
            return factor * objective(v)[1]

        error = check_grad(value, gradient, vector, epsilon=1e-6)
        assert error < 1e-4 * max(size, 0.1)
        wrong = check_grad(value, lambda v, g=gradient: g(v, 0.97), vector)
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
    truth = Clusters(CENTERS, np.full(3, 1 / 3), widths(3, 0.05))

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
    truth = objective.log_likelihood(
        Clusters(CENTERS, np.full(3, 1 / 3), widths(3, 0.05))
    )
    assert found.log_likelihood > truth - 1e-3
    gaps = np.linalg.norm(found.centers[:, None] - CENTERS, axis=2)
    assert gaps.min(axis=0).max() < 0.06  # 2,000 reports of deviation 0.43 / sqrt(2)
    assert sorted(gaps.argmin(axis=0)) == [0, 1, 2]


def test_the_prior_of_the_weights_is_that_of_an_unknown_concentration():
    """Against quadrature; its slope is the points it adds. The twin has them fixed."""
    for weights in ([0.2, 0.3, 0.5], [0.9, 0.09, 0.01], [1 / 3] * 3):
        logs = np.log(weights)

        def density(t, logs=logs):
            a = math.exp(t)
            norm = special.gammaln(3 * a) - 3 * special.gammaln(a)
            return math.exp(norm + a * logs.sum())

        exact, _ = integrate.quad(density, 0.0, math.log(100.0), epsabs=0)
        value, added = weight_prior(logs)
        assert value == pytest.approx(math.log(exact / math.log(100.0)), abs=0.03)
        slope = (weight_prior(logs + 1e-5)[0] - weight_prior(logs - 1e-5)[0]) / 6e-5
        assert slope == pytest.approx(added, rel=1e-6)
    even, odd = (
        weight_prior(np.log(w)) for w in ([0.25] * 4, [0.33, 0.33, 0.33, 0.01])
    )
    fixed = 30.0 * (np.log([0.25] * 4).sum() - np.log([0.33, 0.33, 0.33, 0.01]).sum())
    assert even[1] > 30.0 > 5.0 > odd[1]
    assert even[0] - odd[0] < 10.0 < 50.0 < fixed


@pytest.mark.slow
def test_equal_reports_give_equal_centres(monkeypatch):
    """Averages of draws are seeded by the reports, not by the generator."""
    monkeypatch.setattr(posterior, "_MOST", 24)
    monkeypatch.setattr(posterior, "_FEWEST", 24)
    bpm = BPM(4.0, "auto", 2)
    reports = reports_of(bpm, points(400))

    def once(seed, reports=reports):
        rng = np.random.default_rng(seed)
        return fit_clusters(
            held(reports), noise_of(bpm), 3, rng=rng, n_init=3, max_iter=50
        ).centers

    one = once(1)
    assert np.array_equal(one, once(1))
    assert np.array_equal(one, once(2))
    assert not np.array_equal(one, once(1, reports_of(bpm, points(401))))


@pytest.mark.slow
def test_posterior_draws_have_the_closed_form_of_one_gaussian_cluster():
    """One cluster, Gaussian noise: mu has mean and deviation sigma / sqrt(n)."""
    rng = np.random.default_rng(2)
    sigma, n = 0.4, 400
    reports = 0.5 + sigma * rng.normal(size=(n, 2))
    noise = GaussianNoise(sigma, 2)
    objective = objective_for(reports, noise, 1)
    peak = objective.pack(
        Clusters(reports.mean(axis=0)[None], np.ones(1), widths(1, 0.013))
    )
    drawn = []
    for seed in range(4):
        draws = posterior_draws(
            objective, peak, noise.information, np.random.default_rng(seed), steps=160
        )
        drawn += list(draws.clusters.centers[:, 0])
    centers = np.array(drawn)
    # The width is drawn as well, up to what 400 reports allow (s^2 << sigma^2).
    expected = sigma / math.sqrt(n)
    assert np.abs(centers.mean(axis=0) - reports.mean(axis=0)).max() < 0.3 * expected
    assert np.abs(centers.std(axis=0) / expected - 1.0).max() < 0.2
    # The twin sees a quarter of the reports and is told apart.
    quarter = objective_for(reports[: n // 4], noise, 1)
    rng = np.random.default_rng(0)
    wide = posterior_draws(quarter, peak, noise.information, rng, steps=300)
    spread = wide.clusters.centers[:, 0].std(axis=0)
    assert (np.abs(spread / expected - 1.0) > 0.4).all()


@pytest.mark.slow
def test_draws_stay_in_the_box():
    bpm = BPM(2.0, "auto", 2)
    corner = points(100, np.array([[0.0, 1.0]]), 0.02)
    reports = reports_of(bpm, corner)
    objective = objective_for(reports, noise_of(bpm), 2)
    two = np.array([[0.0, 1.0]] * 2), np.full(2, 0.5), widths(2, 0.05)
    peak = objective.pack(Clusters(*two))
    found = posterior_draws(objective, peak, 1.0, np.random.default_rng(0), steps=120)
    drawn = found.clusters
    # Of 120 steps a third is warm-up, and each gives two draws.
    assert len(drawn.centers) == 80 * 2 and found.weights.sum() == pytest.approx(1.0)
    assert (drawn.centers >= 0.0).all() and (drawn.centers <= 1.0).all()
    assert (objective.table.narrowest <= drawn.width * (1 + 1e-9)).all()
    assert len(np.unique(drawn.width)) > 80


@pytest.mark.slow
def test_places_on_the_way_are_draws_only_if_taken_by_their_own_acceptance(monkeypatch):
    """Leapfrog steps that are far too long: the posterior is still the closed form's.

    One cluster of reports under Gaussian noise; the twin takes every place.
    """
    rng = np.random.default_rng(2)
    sigma, n = 0.4, 400
    reports = 0.5 + sigma * rng.normal(size=(n, 1))
    noise = GaussianNoise(sigma, 1)
    objective = objective_for(reports, noise, 1)
    start = np.full((1, 1), reports.mean())
    peak = objective.pack(Clusters(start, np.ones(1), widths(1, 0.013)))
    scales = posterior._scales(objective, objective.unpack(peak), noise.information)
    scales[1:] = 0.0
    expected = sigma / math.sqrt(n)

    def spread():
        monkeypatch.setattr(posterior, "_WANTED", 0.2)  # acceptance: steps grow
        heats = np.ones((1500, 8))
        rng = np.random.default_rng(0)
        chains = posterior.Chains(objective, peak, scales.copy(), 8, rng)
        monkeypatch.setattr(posterior, "_MEASURED", 10**6)  # scales stay
        chains.warm_up(heats[:500])
        places, _ = chains.go_on(heats[500:])
        return places[:, :, :, 0].std() / expected

    assert spread() == pytest.approx(1.0, abs=0.08)
    # The twin: nothing on the way is ever left.
    monkeypatch.setattr(np, "minimum", lambda a, b: np.zeros_like(a))
    assert not spread() == pytest.approx(1.0, abs=0.08)


def test_the_best_centres_are_the_k_means_of_the_predictive_law():
    """Two draws that disagree about one centre meet in the middle, by their weights."""
    one = Clusters(
        np.array([[0.1, 0.1], [0.8, 0.8]]), np.array([0.5, 0.5]), widths(2, 0.01)
    )
    two = Clusters(
        np.array([[0.1, 0.1], [0.9, 0.8]]), np.array([0.5, 0.5]), widths(2, 0.01)
    )
    both = Clusters(
        *(np.stack(pair) for pair in zip(fields(one), fields(two), strict=True))
    )
    found = best_centers(Draws(both, np.full(2, 0.5), 1.0), np.random.default_rng(0))
    found = found[found[:, 0].argsort()]
    assert np.allclose(found, [[0.1, 0.1], [0.85, 0.8]], atol=1e-3)
