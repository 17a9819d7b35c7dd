"""Centres in a subspace: the intervals know what lies outside it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from demur.cluster import PrivateKMeans
from demur.cluster.decoding.likelihood import Clusters
from demur.cluster.decoding.moments import moments
from demur.cluster.decoding.noise import GaussianNoise
from demur.cluster.decoding.subspace import subspace_for
from demur.core.entropy import Seeded
from demur.mechanisms import BPM


def test_draws_have_the_error_of_the_mean_and_the_variance_outside():
    d, n, sigma, rng = 16, 2000, 0.4, np.random.default_rng(3)
    # Means that differ by more than their error: pulled together by 1 in 1,000.
    means, middle = [], np.linspace(0.2, 0.8, d)
    for _ in range(40):
        points = middle + 0.05 * rng.normal(size=(n, d))
        known = moments(
            points + sigma * rng.normal(size=(n, d)), GaussianNoise(sigma, d)
        )
        means.append(known.mean - middle)
    # 640 squares of normal numbers: a deviation of 6%.
    assert known.mean_errors.mean() == pytest.approx(np.square(means).mean(), rel=0.25)
    space = subspace_for(known, 2)
    assert space is not None
    size = space.basis.shape[1]
    for w, share in ((0.5, 1.0), (0.8, 0.25), (1.0, 0.0)):
        many = Clusters(
            np.zeros((2000, 2, size + 1)),
            np.tile([w, 1.0 - w], (2000, 1)),
            np.ones((2000, 2)),
        )
        drawn = space.scattered(many, rng).centers[:, 0]
        gaps = (drawn - space.middle) @ space.outside
        wanted = space.mean_errors + share * space.variances
        # 2,000 draws: 3% each. The twin (nothing outside) has 0.
        assert gaps.var(axis=0) == pytest.approx(wanted, rel=0.2)
        assert np.abs((drawn - space.middle) @ space.basis).max() < 1e-9


@pytest.mark.slow
def test_intervals_cover_in_many_dimensions():
    d, n, rng = 16, 600, np.random.default_rng(4)
    true = rng.integers(0, 2, (3, d)) * 0.6 + 0.2
    X = true[rng.integers(3, size=n)] + 0.05 * rng.normal(size=(n, d))
    bpm = BPM(16.0, "auto", d)
    reports = bpm.privatize(np.clip(X, 0, 1), source=Seeded(1)).value
    found = PrivateKMeans(3, random_state=0).fit_reports(reports)
    gaps = ((true[:, None] - found.cluster_centers_[None]) ** 2).sum(axis=2)
    low, high = np.moveaxis(
        found.centers_interval_[linear_sum_assignment(gaps)[1]], 2, 0
    )
    # 48 coordinates: at 95%, fewer than 40 have a chance of 1e-3. Of the centres' own
    # posterior, whose prior follows the reports, six such sets had 89%.
    assert ((low <= true) & (true <= high)).sum() >= 40
    assert (high - low).mean() < 0.5  # and they say something
