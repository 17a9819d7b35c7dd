"""Gaussian clusters behind noise: nodes, ascent, covariances without the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from demur.cluster.decoding.gaussian_em import (
    COVARIANCE_TYPES,
    GaussianClusters,
    e_step,
    fit_gaussians,
    responsibilities,
)
from demur.cluster.decoding.noise import GaussianNoise, PureNoise, noise_of
from demur.cluster.decoding.radial import log_excess
from demur.cluster.decoding.scale_mixture import Nodes, scale_mixture
from demur.core.entropy import Seeded
from demur.mechanisms.bpm import BPM
from demur.mechanisms.bpm.constants import log_ball_volume

LONG = np.array([[0.02, 0.012], [0.012, 0.01]])


def model_density(nodes, clusters, x):
    """The report's density, spelled out."""
    d = x.shape[1]
    total = np.exp(nodes.log_floor) * np.ones(len(x))
    for weight, mean, matrix in zip(
        clusters.weights, clusters.means, clusters.covariances, strict=True
    ):
        for tau, share in zip(nodes.variances, nodes.weights, strict=True):
            law = stats.multivariate_normal(mean, matrix + tau * np.eye(d))
            total += nodes.informative * weight * share * law.pdf(x)
    return total


def two_clusters():
    return GaussianClusters(
        np.array([0.4, 0.6]),
        np.array([[0.25, 0.3], [0.75, 0.7]]),
        np.stack([LONG, 0.01 * np.eye(2)]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 3, 10])
@pytest.mark.parametrize("L", [0.3, 1.0, "auto", math.inf])
def test_the_nodes_are_the_noise(d, L):
    """Total variation distance to the exact law, the cluster's width included."""
    bpm = BPM(4.0, L, d)
    noise = noise_of(bpm)
    nodes = scale_mixture(noise)
    assert nodes.weights.sum() == pytest.approx(1.0) and (nodes.weights > 0).all()
    s = 0.05
    reach = min(noise.threshold, (d + 8 * math.sqrt(d)) / 4.0) + 6 * s
    r = np.linspace(1e-4, reach, 2000)
    log_shell = (d - 1) * np.log(r) + math.log(d) + log_ball_volume(d)
    variance = nodes.variances + s * s
    logs = np.log(nodes.weights) - 0.5 * d * np.log(2 * math.pi * variance)
    found = special.logsumexp(logs - 0.5 * r[:, None] ** 2 / variance, axis=1)
    found = nodes.informative * np.exp(found + log_shell)

    def distance(law):
        """Of the part above the floor; where there is none, of the whole."""
        k, top = law.rate, law.threshold
        exact = np.exp(log_excess(law, r, s) + BPM(k, top, d).log_lambda_L + log_shell)
        return 0.5 * np.trapezoid(np.abs(found - exact), r)

    # The floor is exact, so this is the distance of the whole law of a report.
    stated = 0.012 if L in ("auto", math.inf) else 0.025
    assert distance(noise) < stated
    if bpm.alpha > 0.3:
        assert distance(noise_of(BPM(5.0, noise.threshold, d))) > stated


def test_the_pass_is_the_spelled_out_density():
    nodes = scale_mixture(noise_of(BPM(4.0, 1.0, 2)))
    x = np.random.default_rng(0).uniform(-1, 2, size=(40, 2))
    clusters = two_clusters()
    exact = model_density(nodes, clusters, x)
    assert e_step(x, nodes, clusters).log_likelihood == pytest.approx(
        np.log(exact).mean()
    )
    shares = responsibilities(x, nodes, clusters)
    assert np.allclose(shares.sum(axis=1), 1.0)
    only = GaussianClusters(np.ones(1), clusters.means[:1], clusters.covariances[:1])
    floor = math.exp(nodes.log_floor)
    first = 0.4 * (model_density(nodes, only, x) - floor) + 0.4 * floor
    assert np.allclose(shares[:, 0], first / exact)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_the_likelihood_never_falls(covariance_type):
    bpm = BPM(6.0, 1.0, 2)
    rng = np.random.default_rng(1)
    X = np.clip(rng.multivariate_normal([0.5, 0.5], LONG, size=1500), 0, 1)
    reports = bpm.privatize(X, ledger=None, source=Seeded(0)).value.values
    start = GaussianClusters(
        np.full(2, 0.5),
        rng.random((2, 2)),
        np.repeat(0.02 * np.eye(2)[None], 2, axis=0),
    )
    fit = fit_gaussians(
        reports,
        scale_mixture(noise_of(bpm)),
        start,
        covariance_type=covariance_type,
        max_iter=60,
        pseudo_count=0.0,
        prior_points=0.0,
        tol=-1.0,
    )
    gains = np.diff(fit.log_likelihoods)
    assert len(gains) == 59 and (gains > -1e-10).all() and gains.sum() > 1e-3
    for matrix in fit.clusters.covariances:
        off = abs(matrix[0, 1])
        assert (off > 1e-6) == (covariance_type in ("full", "tied"))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_long_cluster_is_recovered_without_its_noise(noise):
    """And the twin that takes reports for points has the noise in its covariance."""
    rng = np.random.default_rng(4)
    X = np.clip(rng.multivariate_normal([0.5, 0.5], LONG, size=8000), 0, 1)
    if noise == "laplace":
        bpm = BPM(8.0, "auto", 2)
        law = noise_of(bpm)
        reports = bpm.privatize(X, ledger=None, source=Seeded(1)).value.values
    else:
        law = GaussianNoise(0.2, 2)
        reports = X + 0.2 * rng.normal(size=X.shape)
    start = GaussianClusters(np.ones(1), np.full((1, 2), 0.4), 0.01 * np.eye(2)[None])

    def fitted(nodes):
        return fit_gaussians(
            reports,
            nodes,
            start,
            covariance_type="full",
            max_iter=300,
            pseudo_count=0.0,
            tol=1e-9,
        ).clusters

    aware = fitted(scale_mixture(law))
    assert np.allclose(aware.means[0], 0.5, atol=0.01)
    assert np.allclose(aware.covariances[0], np.cov(X.T), atol=0.003)
    unaware = fitted(Nodes(np.array([1e-6]), np.ones(1), 1.0, -math.inf, 0.0))
    assert np.diag(unaware.covariances[0] - LONG).min() > 0.02


def test_laplace_nodes_have_the_moments_of_laplace():
    """E|noise|^2 = d (d + 1) / k^2."""
    for d in (1, 2, 10, 64):
        nodes = scale_mixture(PureNoise(4.0, math.inf, d, d))
        second = d * float(nodes.weights @ nodes.variances)
        assert second == pytest.approx(d * (d + 1) / 16.0, rel=2e-3)


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_few_nodes_more_keep_the_tail_straight(d):
    """The pull of one report, -d/dr log f = r E[1 / tau | r], is k for the exact law.

    Of the first 24 nodes alone (the twin) it grows with the distance. In high dimension
    these are close together, and so many more would make a fit twice as slow.
    """
    k = 4.0
    nodes = scale_mixture(PureNoise(k, math.inf, d, d))
    r = np.linspace(d / k, BPM(k, math.inf, d).reach, 500)[:, None]

    def strongest_pull(count):
        tau = nodes.variances[:count]
        logs = np.log(nodes.weights[:count]) - 0.5 * d * np.log(tau) - 0.5 * r**2 / tau
        return float((special.softmax(logs, axis=1) * r / tau).sum(axis=1).max())

    assert len(nodes.weights) <= 28
    assert strongest_pull(None) < 2.5 * k < 5 * k < strongest_pull(24)
