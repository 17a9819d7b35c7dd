"""Parts of the decoder: moments and subspace, moves, the clipped law, intervals, K."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from demur.cluster import PrivateKMeans, UnsupportedClusters
from demur.cluster.decoding import noise as noise_module
from demur.cluster.decoding import posterior, search
from demur.cluster.decoding.clipped_law import with_clipped_law
from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.lloyd import predictive_points
from demur.cluster.decoding.moments import moments
from demur.cluster.decoding.moves import (
    additions,
    cluster_logs,
    log_parts,
    losses_without,
    without,
)
from demur.cluster.decoding.noise import GaussianNoise, noise_of
from demur.cluster.decoding.posterior import Draws, numbered
from demur.cluster.decoding.radial import radial_table
from demur.cluster.decoding.subspace import subspace_for
from demur.cluster.decoding.uncertainty import uncertainty
from demur.cluster.rows.ranked_rows import RowsInMemory
from demur.core.entropy import Seeded
from demur.mechanisms import BPM

CENTERS = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])


def held(values):
    return RowsInMemory(values, np.arange(len(values), dtype=np.uint64))


def drawn(n, d, noise, seed=0, scale=(0.2, 0.1)):
    """Points of known moments in the first two coordinates, and their reports."""
    rng = np.random.default_rng(seed)
    points = np.full((n, d), 0.4)
    points[:, :2] += np.array(scale) * rng.choice([-1.0, 1.0], size=(n, 2))
    if isinstance(noise, GaussianNoise):
        return points, points + noise.sigma * rng.normal(size=(n, d))
    bpm = BPM(noise.rate, noise.threshold, d)
    return points, bpm.privatize(points, source=Seeded(seed)).value.values


@pytest.mark.parametrize("L", [0.7, "auto"])
def test_moments_are_those_of_the_points_whatever_the_floor(L):
    noise = noise_of(BPM(6.0, L, 2))
    _, reports = drawn(40_000, 2, noise)
    found = moments(reports, noise)
    covariance = (found.directions * found.variances) @ found.directions.T
    # The error of a variance of 40,000 reports of deviation 0.3 to 0.6 is below 0.01.
    assert np.abs(found.mean - 0.4).max() < 0.02
    assert np.abs(covariance - np.diag([0.04, 0.01])).max() < 0.015
    # The twin takes the noise for points.
    assert np.cov(reports.T)[0, 0] > 0.1


def test_directions_of_noise_alone_are_not_seen():
    """d = 40: eigenvalues of the noise spread by 60%; held-out variances do not."""
    noise = GaussianNoise(1.0, 40)
    points, reports = drawn(1500, 40, noise, scale=(0.9, 0.4))
    found = moments(reports, noise)
    assert 1 <= found.visible <= 6
    assert found.variances[0] == pytest.approx(0.81, abs=0.25)
    assert found.variances[10:].max() < 0.1
    # The twin reads variances off the eigenvalues of all reports.
    naive = np.linalg.eigvalsh(np.cov(reports.T))[::-1] - 1.0
    assert naive[2] > 0.2 and np.abs(naive).sum() > 2 * found.variances.sum()


def test_the_subspace_changes_no_distance():
    noise = GaussianNoise(0.5, 20)
    _, reports = drawn(500, 20, noise)
    space = subspace_for(moments(reports, noise), 3)
    assert space is not None
    rng = np.random.default_rng(1)
    small = np.column_stack(
        [0.05 * rng.normal(size=(4, space.basis.shape[1])), np.zeros(4)]
    )
    here = space.reduced(held(reports)).values
    close = np.linalg.norm(here[:, None] - small, axis=2)
    whole = np.linalg.norm(reports[:, None] - space.lifted(small), axis=2)
    assert np.allclose(close, whole)
    low, high = space.box
    corners = rng.integers(0, 2, size=(200, 20)).astype(float)
    along = (corners - space.middle) @ space.basis
    assert (along >= low[:-1] - 1e-9).all() and (along <= high[:-1] + 1e-9).all()
    assert subspace_for(moments(reports[:, :3], GaussianNoise(0.5, 3)), 3) is None


def mixture(n, weights, epsilon=8.0, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.vstack([CENTERS, [[0.9, 0.9]]])
    which = rng.choice(4, n, p=weights)
    X = np.clip(centers[which] + 0.04 * rng.normal(size=(n, 2)), 0, 1)
    bpm = BPM(epsilon, "auto", 2)
    return X, bpm.privatize(X, source=Seeded(seed)).value


def objective_of(reports, clusters):
    table = radial_table(noise_of(reports.mechanism), None)
    return MixtureObjective(held(reports.values), table, clusters, False)


def test_a_move_is_judged_by_what_it_gains():
    _, reports = mixture(3000, [0.33, 0.33, 0.33, 0.01])
    objective = objective_of(reports, 3)
    now = Clusters(CENTERS, np.full(3, 1 / 3), np.full(3, 0.04))
    logs = log_parts(objective, now, reports.values)
    lost = losses_without(now, logs)
    # By the definition: the log-likelihood of the others alone.
    for j in range(3):
        rest = without(now, j)
        gap = np.logaddexp.reduce(logs, axis=1)
        gap = gap - np.logaddexp.reduce(
            log_parts(objective, rest, reports.values), axis=1
        )
        assert lost[j] == pytest.approx(gap.sum(), rel=1e-9)
    assert (lost > 100).all()
    best = additions(objective, now, np.random.default_rng(0))[0]
    assert np.linalg.norm(best.centers[3] - 0.9) < 0.3
    gained = objective_of(reports, 4).log_likelihood(best) - objective.log_likelihood(
        now
    )
    assert gained * 3000 > 1.0
    exact = cluster_logs(objective, CENTERS[:1], np.array([0.04]), reports.values)
    radii = np.linalg.norm(reports.values - CENTERS[0], axis=1)
    assert np.allclose(exact[:, 0], objective.table.log_density(radii, 0.04), atol=1e-5)


@pytest.mark.slow
def test_a_small_cluster_is_found_and_too_many_are_warned_of(monkeypatch):
    """1 in 100; without the moves, from three starts, it is lost."""
    monkeypatch.setattr(search, "_AVERAGED", 0)
    _, reports = mixture(12_000, [0.33, 0.33, 0.33, 0.01], epsilon=14.0, seed=3)

    def farthest(**more):
        model = PrivateKMeans(4, n_init=3, random_state=1, **more).fit_reports(reports)
        return np.linalg.norm(model.cluster_centers_ - 0.9, axis=1).min(), model

    found, model = farthest()
    assert found < 0.1
    low, high = model.weights_interval_[model.weights_.argmin()]
    assert 0.003 < low < 0.01 < high < 0.03
    _, vague = mixture(300, [0.25] * 4, epsilon=1.0)
    with pytest.warns(UnsupportedClusters, match="do not show 4 clusters: 3 are"):
        PrivateKMeans(4, n_init=3, random_state=0).fit_reports(vague)
    monkeypatch.setattr(search, "_MOVES", 0)
    assert farthest()[0] > 0.2


@pytest.mark.slow
def test_the_number_of_clusters_comes_from_the_reports():
    _, reports = mixture(3000, [0.3, 0.3, 0.2, 0.2], epsilon=12.0)
    model = PrivateKMeans("auto", n_init=3, random_state=0).fit_reports(reports)
    assert model.n_clusters_ == 4 == len(model.cluster_centers_)
    with pytest.raises(ValueError, match="n_clusters must be"):
        PrivateKMeans("auto", decoder="clip").fit_reports(reports)
    # Noise that hides them: fewer, and no error.
    _, vague = mixture(300, [0.3, 0.3, 0.2, 0.2], epsilon=1.0)
    assert PrivateKMeans("auto", n_init=1).fit_reports(vague).n_clusters_ == 1


def test_intervals_are_quantiles_of_the_draws():
    rng = np.random.default_rng(0)
    many = 2000
    clusters = Clusters(
        CENTERS[::-1] + 0.01 * rng.normal(size=(many, 3, 2)),
        np.tile([0.2, 0.3, 0.5], (many, 1)),
        np.full((many, 3), 0.05),
    )
    known = uncertainty(Draws(clusters, np.full(many, 1 / many), 1.0), CENTERS)
    half = 1.96 * 0.01
    assert np.allclose(known.centers_interval[..., 0], CENTERS - half, atol=2e-3)
    assert np.allclose(known.centers_interval[..., 1], CENTERS + half, atol=2e-3)
    assert np.allclose(known.weights, [0.5, 0.3, 0.2])
    assert np.allclose(known.centers_covariance, 1e-4 * np.eye(2), atol=1e-5)
    # A draw without weight has no say.
    more = Clusters(
        np.concatenate([clusters.centers, CENTERS[None] + 1.0]),
        np.concatenate([clusters.weights, np.full((1, 3), 1 / 3)]),
        np.concatenate([clusters.widths, np.full((1, 3), 0.05)]),
    )
    weights = np.append(np.full(many, 1 / many), 0.0)
    same = uncertainty(Draws(more, weights, 1.0), CENTERS)
    assert np.array_equal(same.centers_interval, known.centers_interval)


@pytest.mark.parametrize("count", [2, 5])
def test_draws_are_numbered_by_the_assignment_of_least_distance(count):
    rng = np.random.default_rng(count)
    centers, drawn = rng.random((count, 2)), rng.random((60, count, 2))
    found = numbered(Clusters(drawn, drawn[:, :, 0], drawn[:, :, 1]), centers)
    orders = [list(order) for order in permutations(range(count))]
    nearest = 0
    for one, there in zip(drawn, found.centers, strict=True):
        totals = [((one[order] - centers) ** 2).sum() for order in orders]
        assert ((there - centers) ** 2).sum() == pytest.approx(min(totals))
        gaps = ((centers[:, None] - one[None]) ** 2).sum(axis=2).argmin(axis=1)
        nearest += len(set(gaps)) == count
    assert 0 < nearest < 60  # both ways of finding it
    assert np.array_equal(found.weights, found.centers[:, :, 0])


def test_reports_on_the_floor_do_not_hide_the_variance_of_points():
    """One report in a hundred lies on a floor of side 87 in d = 48."""
    rng = np.random.default_rng(0)
    points = 0.5 + 0.3 * rng.choice([-1.0, 1.0], size=(4000, 1)) * np.ones((1, 48))
    bpm = BPM(4.0, "auto", 48)
    reports = bpm.privatize(points, source=Seeded(0)).value.values
    noise = noise_of(bpm)
    radius, spread = noise.within()
    kept = ((reports - 0.5) ** 2).sum(axis=1) <= radius**2
    # The floor's share is 1%: of 4,000 reports 40, with a deviation of 6.
    assert 10 <= (~kept).sum() <= 75
    rest = reports[kept] - points[kept]
    # 192,000 squares, 48 of a report alike by its radius: 2%.
    assert (rest**2).mean() == pytest.approx(spread.noise, rel=0.04)
    found = moments(reports, noise)
    # 48 coordinates move together: a variance of 0.09 times 48 along one direction.
    assert found.variances[0] == pytest.approx(48 * 0.09, rel=0.1)
    assert found.variances[1:].max() < 0.5
    # The twin keeps them all: noise of three times the variance, and nothing is seen.
    every = replace(noise, threshold=1e9)
    assert math.isinf(replace(noise, threshold=math.inf).within()[0])
    assert noise.spread.noise > 2.5 * spread.noise
    assert every.within()[1].noise == pytest.approx(spread.noise, rel=0.01)
    # In the plane the floor cannot be told apart by distance.
    assert math.isinf(noise_of(BPM(4.0, "auto", 2)).within()[0])


def test_reports_on_a_floor_that_does_not_hold_the_ball_are_left_out(monkeypatch):
    """d = 16: the ball is wider than the cube of reports, and 2% of its volume."""
    rng = np.random.default_rng(0)
    bpm = BPM(16.0, "auto", 16)
    points = 0.5 + 0.08 * rng.normal(size=(600, 16))
    noise, total = noise_of(bpm), points.var(axis=0).sum()
    assert 0.5 + bpm.L < noise.within()[0] < math.inf

    def found():
        each = [
            moments(bpm.privatize(points, source=Seeded(s)).value.values, noise)
            for s in range(8)
        ]
        return np.array([one.variances.sum() for one in each]) / total

    assert np.abs(found() - 1.0).max() < 0.5
    # The twin keeps them all: six reports are most of the variance, or none of it.
    monkeypatch.setattr(noise_module, "_LITTLE", 1e-300)
    assert np.abs(found() - 1.0).max() > 0.8


def test_few_reports_shrink_their_mean():
    """d = 64: the squared error of the mean of 100 reports, over 30 sets of them."""
    noise = GaussianNoise(2.0, 64)
    rng = np.random.default_rng(0)
    alike, apart = np.full(64, 0.4), rng.random(64)
    for mean, most in ((alike, 0.1), (apart, 1.0)):
        errors, plain = [], []
        for _ in range(30):
            reports = mean + noise.sigma * rng.normal(size=(100, 64))
            errors.append(((moments(reports, noise).mean - mean) ** 2).sum())
            plain.append(((reports.mean(axis=0) - mean) ** 2).sum())
        assert np.mean(errors) < most * np.mean(plain)


def test_more_is_open_where_reports_do_not_show_their_cluster(monkeypatch):
    """The same points, seen well and badly, and a peak of wide clusters."""
    monkeypatch.setattr(posterior, "_MOST", 6000)
    rows = {}
    for epsilon, width in ((40.0, 0.04), (2.0, 0.2)):
        _, reports = mixture(300, [0.34, 0.33, 0.33, 0.0], epsilon)
        objective = objective_of(reports, 3)
        peak = Clusters(CENTERS, np.full(3, 1 / 3), np.full(3, width))
        information = noise_of(reports.mechanism).information
        share = posterior._open_share(objective, peak, information)
        # The twin takes the labels for known.
        error = 3 / (300 * information)
        rows[epsilon] = share, error / (error + width**2)
    assert rows[40.0][0] < 0.05 and rows[40.0][1] < 0.05
    assert rows[2.0][0] > 0.7 and rows[2.0][1] < 0.2
    assert posterior.steps_for(900, 2, rows[2.0][0]) > 5000
    assert posterior.steps_for(900, 2, rows[40.0][0]) == 480


def test_the_clipped_law_has_points_for_its_share():
    _, reports = mixture(100, [0.34, 0.33, 0.33, 0.0], epsilon=1.0)
    objective = objective_of(reports, 3)
    many = 300
    ours = Clusters(
        np.tile(CENTERS, (many, 1, 1)),
        np.full((many, 3), 1 / 3),
        np.full((many, 3), 0.05),
    )
    draws = Draws(ours, np.full(many, 1 / many), 1.0)
    rng = np.random.default_rng(0)
    both, share = with_clipped_law(objective, draws, CENTERS, rng)
    assert 0.1 < share < 0.9 and both.weights.sum() == pytest.approx(1.0)
    assert both.weights[many:].sum() == pytest.approx(share)
    # No draw stands for many others, as a single one of the clipped law would.
    assert both.weights.max() < 2.0 / many < 0.1 * share
    _, weights = predictive_points(both, rng)
    assert weights.max() < 10 * weights.mean()


def test_chains_that_stand_still_are_no_intervals(monkeypatch):
    """No step is taken, and all draws are the peak."""
    usual = posterior.posterior_draws

    def stuck(objective, peak, *more, **steps):
        draws = usual(objective, peak, *more, **{**steps, "steps": 16})
        still = objective.unpack(np.tile(peak, (len(draws.weights), 1)))
        return replace(draws, clusters=still, moving=0.0)

    monkeypatch.setattr(search, "posterior_draws", stuck)
    _, reports = mixture(400, [0.34, 0.33, 0.33, 0.0], epsilon=16.0)
    model = PrivateKMeans(3, n_init=3, random_state=0, fallback=False)
    model.fit_reports(reports)
    assert not model.averaged_
    width = np.diff(model.centers_interval_, axis=2)
    assert (width > 0.005).all() and (width < 0.2).all()
    # The twin takes the draws as they are.
    monkeypatch.setattr(search, "_MOVING", -1.0)
    model.fit_reports(reports)
    assert model.averaged_ and np.diff(model.centers_interval_, axis=2).max() < 1e-9


@pytest.mark.deep
def test_intervals_cover_and_fits_agree():
    """95% intervals over 20 sets of reports; six fits of each differ by 5% at most."""
    rng = np.random.default_rng(5)
    inside, apart = [], []
    for seed in range(20):
        X = np.clip(
            CENTERS[rng.integers(3, size=600)] + 0.05 * rng.normal(size=(600, 2)), 0, 1
        )
        reports = BPM(6.0, "auto", 2).privatize(X, source=Seeded(seed)).value
        fits = [PrivateKMeans(3, random_state=s).fit_reports(reports) for s in range(6)]
        sse = [one.compute_sse(X) for one in fits]
        apart.append(max(sse) / min(sse))
        order = [
            np.linalg.norm(fits[0].cluster_centers_ - c, axis=1).argmin()
            for c in CENTERS
        ]
        low, high = np.moveaxis(fits[0].centers_interval_[order], -1, 0)
        inside.append(((CENTERS >= low) & (CENTERS <= high)).mean())
    assert np.median(apart) < 1.05 and max(apart) < 1.15
    assert np.mean(inside) > 0.85


def test_soft_labels_follow_the_densities():
    _, reports = mixture(400, [0.33, 0.33, 0.33, 0.01])
    model = PrivateKMeans(3, decoder="clip", random_state=0).fit_reports(reports)
    with pytest.raises(AttributeError, match="has no probabilities"):
        model.predict_proba(CENTERS)
    model.weights_, model.widths_ = np.array([0.5, 0.25, 0.25]), np.full(3, 0.1)
    model.cluster_centers_ = CENTERS
    proba = model.predict_proba(CENTERS)
    assert (
        np.allclose(proba.sum(axis=1), 1.0) and (proba.argmax(axis=1) == range(3)).all()
    )
    middle = CENTERS[:2].mean(axis=0, keepdims=True)
    assert proba.shape == (3, 3)
    two = model.predict_proba(middle)[0]
    assert two[0] / two[1] == pytest.approx(2.0)
    seen = model.report_proba(reports.values[:5])
    assert np.allclose(seen.sum(axis=1), 1.0)
    # A report says less than a point: its noise is wider than a cluster.
    assert model.report_proba(CENTERS).max() < proba.max()
    assert np.allclose(model.transform(CENTERS)[0, 1], math.dist(*CENTERS[:2]))
