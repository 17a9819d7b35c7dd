"""What decides where reports are few: seeds, the prior of centres, the clipped law."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import special, stats

from demur.cluster import PrivateKMeans
from demur.cluster.decoding import clipped_law, lloyd, posterior, search
from demur.cluster.decoding.clipped_law import best_law, with_clipped_law
from demur.cluster.decoding.likelihood import Clusters, MixtureObjective
from demur.cluster.decoding.noise import noise_of
from demur.cluster.decoding.posterior import Draws
from demur.cluster.decoding.priors import CentrePrior
from demur.cluster.decoding.radial import radial_table
from demur.cluster.rows.ranked_rows import (
    RowsInMemory,
    in_order,
    new_key,
    shuffled,
    subsample,
)
from demur.core.entropy import Seeded
from demur.mechanisms import BPM, Reports

CENTERS = np.array([[0.1, 0.15], [0.9, 0.3], [0.4, 0.9]])


def reports_of(n, epsilon, seed=0):
    rng = np.random.default_rng(seed)
    X = CENTERS[rng.integers(3, size=n)] + 0.04 * rng.normal(size=(n, 2))
    X = np.clip(X, 0.0, 1.0)
    return X, BPM(epsilon, "auto", 2).privatize(X, source=Seeded(seed)).value


def objective_of(reports):
    table = radial_table(noise_of(reports.mechanism), None)
    rows = RowsInMemory(reports.values, np.arange(len(reports.values), dtype=np.uint64))
    return MixtureObjective(rows, table, 3, False)


# -- fits of one set of reports --------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Few steps, and few points of them."""
    for name, value in (("_LEAST", 96), ("_FIRST", 96), ("_MOST", 96)):
        monkeypatch.setattr(posterior, name, value)
    monkeypatch.setattr(lloyd, "_MOST_POINTS", 24_000)
    monkeypatch.setattr(clipped_law, "_STARTS", 3)


@pytest.mark.slow
def test_a_fit_is_a_function_of_the_reports(quick, monkeypatch):
    X, reports = reports_of(200, 2.0)
    order = np.random.default_rng(1).permutation(200)
    ids = reports.row_ids + np.uint64(7)
    turned = Reports(reports.values[order], ids, reports.mechanism)

    def centers(state, given=reports):
        model = PrivateKMeans(3, n_init=3, random_state=state)
        return model.fit_reports(given).cluster_centers_

    first = centers(0)
    assert np.array_equal(centers(1), first)
    assert np.array_equal(centers(2, turned), first)
    auto = PrivateKMeans("auto", n_init=3).fit_reports(reports).cluster_centers_
    again = PrivateKMeans("auto", n_init=3).fit_reports(turned).cluster_centers_
    assert np.array_equal(auto, again)

    # The twin takes reports in the order of their ids, and its seeds from random_state.
    state = iter((3, 4))

    def by_ids(rows):
        rng = np.random.default_rng(next(state))
        return in_order(rows), rng

    monkeypatch.setattr(search, "shuffled", by_ids)
    assert np.abs(centers(0) - centers(1)).max() > 1e-3


@pytest.mark.deep
def test_fits_that_are_not_seeded_by_the_reports_agree(monkeypatch):
    """Six fits of one set under other seeds and orders differ by 5% in SSE at most.

    The chains of the twin end after 1,500 steps. Ratios of 12 worlds: 300 reports in
    groups in the plane at epsilon 2.
    """
    seeds = iter(range(10_000))

    def any_order(rows):
        rng = np.random.default_rng(next(seeds))
        order = rng.permutation(rows.shape[0])
        return RowsInMemory(rows.values[order], rows.row_ids[order]), rng

    monkeypatch.setattr(search, "shuffled", any_order)

    def apart():
        found = []
        for world in range(12):
            X, reports = reports_of(300, 2.0, world)
            sse = [
                PrivateKMeans(3).fit_reports(reports).compute_sse(X) for _ in range(6)
            ]
            found.append(max(sse) / min(sse) - 1.0)
        return np.array(found)

    found = apart()
    # A world in which two sets of centres are about equally good may differ.
    assert np.median(found) < 0.03 and (found > 0.05).sum() <= 2
    monkeypatch.setattr(posterior, "_MOST", 1_500)
    assert np.median(apart()) > 0.03


def test_the_seed_follows_every_report_and_no_id():
    _, reports = reports_of(50, 2.0)
    ids = np.arange(50, dtype=np.uint64)

    def once(values, row_ids):
        rows, rng = shuffled(RowsInMemory(values, row_ids))
        assert np.array_equal(np.sort(rows.values, axis=0), np.sort(values, axis=0))
        return rows.values.tobytes(), int(rng.integers(2**62))

    first = once(reports.values, ids)
    assert once(reports.values[::-1], ids + np.uint64(1)) == first
    # Not sorted: a subsample of the first is one at random.
    assert np.abs(np.diff(np.frombuffer(first[0])[::2])).mean() > 0.1
    changed = reports.values.copy()
    changed[17, 1] = np.nextafter(changed[17, 1], 9.0)
    assert once(changed, ids)[1] != first[1]
    zeros = np.zeros((3, 2))
    assert once(zeros, ids[:3]) == once(-zeros, ids[:3])


# -- the prior of the centres ----------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 5])
def test_half_of_the_prior_is_uniform(d):
    rng = np.random.default_rng(d)
    middle = rng.random(d)
    root = np.linalg.qr(rng.normal(size=(d, d)))[0] * rng.uniform(2.0, 9.0, size=d)
    prior = CentrePrior.in_cube(middle, root)
    law = stats.multivariate_t(middle, np.linalg.inv(root @ root.T), df=4.0)
    centers = rng.random((6, 3, d))
    dense = np.array([law.pdf(c) for c in centers.reshape(-1, d)]).reshape(6, 3)
    exact = np.log(0.5 * dense + 0.5).sum(axis=1)
    value, slope = prior(centers)
    assert np.allclose(value - value[0], exact - exact[0], atol=1e-9)
    for i in range(d):
        step = np.zeros(d)
        step[i] = 1e-6
        ahead, behind = prior(centers + step)[0], prior(centers - step)[0]
        assert np.allclose(
            (ahead - behind) / 2e-6, slope[..., i].sum(axis=1), rtol=1e-4
        )


def test_a_wrong_covariance_costs_a_bounded_number_of_nats():
    """Centres at the faces, and points that are said to hardly vary."""
    middle, root = np.full(2, 0.5), np.eye(2) / 0.05
    peak = stats.multivariate_t(middle, np.eye(2) * 0.05**2, df=4.0).pdf(middle)
    far, near = CENTERS[None], np.full((1, 3, 2), 0.5)
    lost = CentrePrior.in_cube(middle, root)
    gap = float((lost(near)[0] - lost(far)[0])[0])
    assert gap <= 3 * np.log(1.0 + peak) + 1e-9
    # The Student-t alone.
    twin = CentrePrior(middle, root)
    assert float((twin(near)[0] - twin(far)[0])[0]) > 1.5 * gap


# -- the share of the clipped law ------------------------------------------------------


def test_the_likelihood_of_a_law_is_the_integral():
    _, reports = reports_of(60, 2.0)
    objective = objective_of(reports)
    law, height = best_law(objective, CENTERS, reports.values)
    z = np.random.default_rng(0).normal(size=(3000, 2))
    z = np.concatenate([z, -z])
    dense = np.zeros(60)
    for center, width, weight in zip(CENTERS, law.widths, law.weights, strict=True):
        points = center + width * z
        dense += weight * np.array(
            [reports.mechanism.density(points, x).mean() for x in reports.values]
        )
    # An error of 1% in each density, alike for reports near each other.
    assert height == pytest.approx(np.log(dense).sum(), abs=0.3)


def test_the_reports_choose_and_no_estimator_is_always_taken():
    """Two worlds: in one the posterior's centres are wrong, in the other clipping's."""
    shares = []
    for n, epsilon, ours in ((400, 4.0, CENTERS[[0, 0, 0]]), (2000, 4.0, CENTERS)):
        _, reports = reports_of(n, epsilon)
        many = 50
        drawn = Clusters(
            np.tile(ours, (many, 1, 1)),
            np.full((many, 3), 1 / 3),
            np.full((many, 3), 0.04),
        )
        draws = Draws(drawn, np.full(many, 1 / many), 1.0)
        objective = objective_of(reports)
        both, share = with_clipped_law(objective, draws, ours, np.random.default_rng(0))
        shares.append(share)
        assert both.weights.sum() == pytest.approx(1.0)
        # By the definition.
        clipped = Clusters(both.clusters.centers[-1], *(np.ones(3),) * 2)
        if share:
            other = best_law(objective, clipped.centers, reports.values)[1]
            own = best_law(objective, ours, reports.values)[1]
            assert share == pytest.approx(special.expit(other - own))
    # Neither "always the posterior" (0, 0) nor "always clipped" (1, 1) passes.
    assert shares[0] > 0.95 and shares[1] == 0.0


# -- a small cluster -------------------------------------------------------------------


class _Peak(Exception):
    """Raised where the search ends."""


@pytest.mark.slow
def test_all_reports_decide_on_a_move_where_a_part_does_not(monkeypatch):
    """1 in 120 of 30,120: better than a wide cluster by 2 nats, too few for a third."""
    centers = np.array([[0.25, 0.25], [0.7, 0.3], [0.3, 0.75], [0.85, 0.85]])
    rng = np.random.default_rng(20)
    which = rng.choice(4, 30_120, p=[119 / 360] * 3 + [1 / 120])
    X = np.clip(centers[which] + 0.05 * rng.normal(size=(30_120, 2)), 0.0, 1.0)
    reports = BPM(8.0, "auto", 2).privatize(X, source=Seeded(157651643664997)).value

    def ended(objective, peak, *rest):
        raise _Peak(np.linalg.norm(objective.unpack(peak).centers - 0.85, axis=1).min())

    def in_an_order(rows):
        """One of few in which the first 10,000 show another cluster instead."""
        held = in_order(rows)
        digest = hashlib.sha256(held.row_ids.tobytes() + held.values.tobytes()).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return subsample(rows, new_key(rng), rows.shape[0]), rng

    monkeypatch.setattr(search, "posterior_draws", ended)
    monkeypatch.setattr(search, "shuffled", in_an_order)

    def missed():
        with pytest.raises(_Peak) as found:
            PrivateKMeans(4).fit_reports(reports)
        return found.value.args[0]

    assert missed() < 0.2
    # The twin asks the part alone.
    monkeypatch.setattr(search, "_DOUBT", 0.0)
    assert missed() > 0.3
