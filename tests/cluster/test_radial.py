"""The density of a report from a round cluster, against integrals done another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from demur.cluster.decoding.noise import GaussianNoise, PureNoise, noise_of
from demur.cluster.decoding.radial import _log_scaled_bessel, log_density, radial_table
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from tests.families import thinned

CASES = [(d, 4.0, L) for d in (1, 2, 3, 10) for L in (0.3, 1.0, "auto", math.inf)]
CASES += [(2, 1.0, 1.0), (2, 16.0, "auto"), (1, 16.0, 0.3), (10, 16.0, math.inf)]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


def by_noncentral_chi(bpm: BPM, r: float, s: float) -> float:
    """log E[density at R] with R^2 / s^2 from scipy's noncentral chi-square."""
    k, d = bpm.epsilon, bpm.dimension
    floor = math.exp(-k * bpm.L) if math.isfinite(bpm.L) else 0.0
    middle = math.sqrt(r * r + d * s * s)
    low, high = max(0.0, middle - 12 * s - k * s * s), min(middle + 12 * s, bpm.L)
    inside = 0.0
    if high > low:
        edges = np.linspace(low, high, 1 + math.ceil((high - low) * (2 / s + k / 4)))
        half = 0.5 * np.diff(edges)[:, None]
        rho = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES
        law = 2 * rho / s**2 * stats.ncx2.pdf((rho / s) ** 2, d, (r / s) ** 2)
        inside = float((half * WEIGHTS * law * (np.exp(-k * rho) - floor)).sum())
    return bpm.log_lambda_L + math.log(inside + floor)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "epsilon", "L"), thinned(CASES, 3, keep=(17, 19)))
def test_the_table_is_the_density(d, epsilon, L):
    """To 1e-3 in log f where reports are: the stated accuracy of the decoder."""
    bpm = BPM(epsilon, L, d)
    table = radial_table(noise_of(bpm), None)
    rng = np.random.default_rng(7)
    low, high = table.log_widths
    typical = (d + 3 * math.sqrt(d)) / epsilon
    right, wrong = [], []
    for s in map(float, np.exp(rng.uniform(low, high, 4))):
        radii = rng.uniform(0.0, min(bpm.L, typical) + 2 * s, 6)
        exact = np.array([by_noncentral_chi(bpm, float(r), s) for r in radii])
        right.append(np.abs(table.log_density(radii, s) - exact).max())
        # The twin has an epsilon that is 2% off.
        other = log_density(noise_of(BPM(1.02 * epsilon, bpm.L, d)), radii, s)
        wrong.append(np.abs(other - exact).max())
    assert max(right) < 1e-3
    assert max(wrong) > 3e-3


@pytest.mark.slow
@pytest.mark.parametrize(("d", "L"), [(1, 0.3), (2, 1.0), (3, "auto"), (10, "auto")])
def test_the_table_is_the_average_of_the_mechanism_itself(d, L):
    """Many points of a cluster, and BPM's own density of the report at each."""
    bpm = BPM(4.0, L, d)
    table = radial_table(noise_of(bpm), None)
    rng = np.random.default_rng(3)
    z = 0.5 + 0.08 * rng.normal(size=(300_000, d))
    for r in (0.05, 0.25, 0.7):
        x = np.full(d, 0.5)
        x[0] += r
        draws = bpm.density(z, x)
        deviation = draws.std() / math.sqrt(len(z)) / draws.mean()
        found = float(np.exp(table.log_density(np.array([r]), 0.08))[0])
        assert abs(found / draws.mean() - 1.0) < 5 * deviation + 1e-3
        assert deviation < 4e-3


@pytest.mark.slow
def test_without_the_uniform_floor_the_density_is_wrong():
    """The twin: Laplace noise in place of BPM at a small L."""
    bpm = BPM(4.0, 0.5, 2)
    forgetful = radial_table(PureNoise(4.0, math.inf, 2, 2), None)
    radii = np.array([0.05, 0.6, 1.5])
    exact = np.array([by_noncentral_chi(bpm, float(r), 0.08) for r in radii])
    assert (
        np.abs(radial_table(noise_of(bpm), None).log_density(radii, 0.08) - exact).max()
        < 1e-3
    )
    assert np.abs(forgetful.log_density(radii, 0.08) - exact).max() > 0.3


@pytest.mark.slow
def test_noise_by_coordinate_and_gaussian_noise():
    per = noise_of(LaplaceReports(4.0, 4))
    assert per == PureNoise(2.0, math.inf, 1, 4)
    z = 0.08 * np.random.default_rng(0).normal(size=400_000)
    table = radial_table(per, None)
    for r in (0.0, 0.3):
        direct = (np.exp(-2.0 * np.abs(r - z))).mean()  # rate / 2 = 1
        assert math.exp(table.log_density(np.array([r]), 0.08)[0]) == pytest.approx(
            direct, rel=2e-3
        )
    gaussian = GaussianReports(4.0, 3)
    table = radial_table(noise_of(gaussian), None)
    radii = np.array([0.1, 1.0, 3.0])
    law = stats.multivariate_normal(np.zeros(3), (gaussian.sigma**2 + 0.01) * np.eye(3))
    exact = law.logpdf(radii[:, None] * np.eye(3)[0])
    assert np.allclose(table.log_density(radii, 0.1), exact, atol=1e-4)


@pytest.mark.slow
def test_a_student_cluster_is_the_mixture_over_widths():
    bpm, nu, s = BPM(4.0, "auto", 2), 5.0, 0.1
    table = radial_table(noise_of(bpm), nu)
    rng = np.random.default_rng(1)
    u = rng.gamma(nu / 2, 2 / nu, size=500_000)
    z = 0.5 + s * rng.normal(size=(len(u), 2)) / np.sqrt(u)[:, None]
    for r in (0.0, 0.3, 1.0):
        draws = bpm.density(z, np.array([0.5 + r, 0.5]))
        found = math.exp(table.log_density(np.array([r]), s)[0])
        assert found == pytest.approx(draws.mean(), rel=6e-3)
        gaussian = math.exp(
            radial_table(noise_of(bpm), None).log_density(np.array([r]), s)[0]
        )
        if r == 0.0:
            assert gaussian != pytest.approx(draws.mean(), rel=0.015)


def test_large_dimensions_stay_finite_and_right():
    """d = 64 and 784, where Bessel functions of large order under- and overflow."""
    for d, epsilon in ((64, 16.0), (784, 64.0)):
        noise = noise_of(BPM(epsilon, "auto", d))
        laplace = PureNoise(epsilon, math.inf, d, d)
        radii = np.linspace(0.5, 1.2, 5) * d / epsilon
        cut, whole = (log_density(n, radii, 0.1) for n in (noise, laplace))
        # The floor of "auto" takes 1% of the mass; near the shell f is that of Laplace.
        assert np.isfinite(cut).all()
        assert np.abs(cut - whole).max() < 0.03


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-12])
def test_tiny_epsilon_stays_finite_and_right(epsilon):
    """L = "auto" is then thousands of cubes wide, and so are Bessel's arguments."""
    noise = noise_of(BPM(epsilon, "auto", 2))
    radii = np.array([0.0, 0.3, 1.0, 3.0, 7.0]) / epsilon
    cut = log_density(noise, radii, 0.05)
    whole = log_density(PureNoise(epsilon, math.inf, 2, 2), radii, 0.05)
    assert np.isfinite(cut).all() and np.abs(cut - whole)[:3].max() < 0.03
    assert log_density(noise, np.array([20.0 / epsilon]), 0.05)[0] == pytest.approx(
        noise.log_peak - epsilon * noise.threshold
    )


def test_far_bessel_functions_are_scipys_where_scipy_has_them():
    """Both branches meet; beyond 1e9, where scipy has NaN, ours goes on."""
    for order in (0.0, 0.5, 4.0, 19.5):
        z = np.array([0.99, 1.01, 20.0]) * 1e7
        assert np.allclose(
            _log_scaled_bessel(order, z), np.log(special.ive(order, z)), atol=1e-8
        )
        # The twin leaves the order out; it shows where the order still counts.
        assert order < 4 or abs(-0.5 * math.log(2e3 * math.pi) - math.log(
            special.ive(order, 1e3))) > 1e-3  # fmt: skip
        assert np.isfinite(_log_scaled_bessel(order, np.array([1e12, 1e20]))).all()


def test_a_floor_that_nobody_falls_on_is_left_out():
    assert noise_of(BPM(8.0, 3.0, 2)).threshold == 3.0
    bpm = BPM(100.0, 1.0, 2)
    assert bpm.uniform_weight < 1e-30
    assert noise_of(bpm) == PureNoise(100.0, math.inf, 2, 2)
    radii = np.array([0.0, 0.05, 0.3])
    exact = [by_noncentral_chi(bpm, float(r), 0.05) for r in radii]
    assert np.allclose(log_density(noise_of(bpm), radii, 0.05), exact, atol=1e-6)


@pytest.mark.slow
def test_beyond_the_table_the_density_goes_on():
    laplace = PureNoise(4.0, math.inf, 2, 2)
    table = radial_table(laplace, None)
    far = np.array([50.0, 500.0])
    assert np.allclose(np.diff(table.log_density(far, 0.05)), -4.0 * 450, rtol=1e-3)
    bounded = radial_table(noise_of(BPM(4.0, 1.0, 2)), None)
    floor = BPM(4.0, 1.0, 2).log_lambda_L - 4.0
    assert np.allclose(bounded.log_density(far, 0.05), floor, atol=1e-6)


def test_an_unknown_noise_is_refused():
    with pytest.raises(TypeError, match="not known"):
        noise_of(object())
    assert GaussianNoise(0.5, 2).information == 4.0
    bpm = noise_of(BPM(4.0, 1.0, 2))
    assert bpm.information == pytest.approx(8.0 * BPM(4.0, 1.0, 2).p_L)
