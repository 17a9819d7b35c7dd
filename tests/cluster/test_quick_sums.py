"""The sums that chains use are those of the exact pass."""

from __future__ import annotations

import numpy as np
import pytest

from demur.cluster.decoding.likelihood import MixtureObjective
from demur.cluster.decoding.noise import GaussianNoise, noise_of
from demur.cluster.decoding.radial import radial_table
from demur.cluster.rows.ranked_rows import RowsInMemory
from demur.mechanisms import BPM, LaplaceReports


def objective_of(noise, reports, clusters, product=False):
    rows = RowsInMemory(reports, np.arange(len(reports), dtype=np.uint64))
    return MixtureObjective(rows, radial_table(noise, None), clusters, product)


@pytest.mark.parametrize(
    "noise", [noise_of(BPM(4.0, "auto", 3)), GaussianNoise(0.3, 3)]
)
@pytest.mark.parametrize("n", [1, 31, 128, 300])
def test_quick_sums_are_the_exact_sums(noise, n):
    rng = np.random.default_rng(n)
    reports = 0.5 + rng.normal(size=(n, 3))
    reports[0] = 40.0  # beyond the table, which goes on as a straight line
    objective = objective_of(noise, reports, 4)
    low, high = np.array(objective.bounds).T
    vectors = low + (high - low) * rng.random((5, len(low)))
    vectors[0, :3] = reports[-1]  # a centre on a report: at distance 0
    exact = objective.parts(vectors)
    quick = objective.parts(vectors, objective.columns())
    assert quick.likelihood == pytest.approx(exact.likelihood, rel=1e-11)
    gradient = quick.likelihood_gradient - exact.likelihood_gradient
    size = np.abs(exact.likelihood_gradient).max()
    assert np.abs(gradient).max() < 1e-10 * size
    # The twin has a report more.
    more = objective_of(noise, np.vstack([reports, reports[-1]]), 4)
    other = objective.parts(vectors, more.columns()).likelihood
    twin = more.parts(vectors, more.columns()).likelihood
    assert np.abs(twin / exact.likelihood - 1.0).min() > 1e-6
    assert other == pytest.approx(exact.likelihood, rel=1e-11)


def test_noise_by_coordinate_has_exact_sums_alone():
    noise = noise_of(LaplaceReports(2.0, 2))
    assert objective_of(noise, np.zeros((3, 2)), 2, product=True).columns() is None
