"""Noise tests: the right law passes, 5% off does not, and the sizes are computed."""

import math

import numpy as np
import pytest
from scipy import stats

from demur import Seeded
from demur.audit import (
    Law,
    NoPower,
    draws_needed,
    independence_test,
    law_of,
    noise_test,
    repeat_test,
)
from demur.audit.distributions import bpm_radius, laplace, normal
from demur.audit.noise_tests import failures
from demur.core.entropy import NoiseKey
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplaceReports
from tests.audit.twins import UNIT, seed_reports
from tests.families import thinned
from tests.keys import os_key

LAWS = {
    "normal": normal(3.0),
    "fine lattice": normal(3.0, 2.0**-20),
    "coarse lattice": normal(1.3, 1.0),
    "laplace": laplace(2.0),
    "laplace lattice": laplace(2.0, 2.0**-10),
    "radius": bpm_radius(BPM(8.0, 1.0, 2)),
    "radius, no cut": bpm_radius(BPM(4.0, math.inf, 7)),
}


def sample(law, n, seed=0, ratio=1.0):
    values = law.off_by(ratio).quantile(np.random.default_rng(seed).random(n))
    return np.rint(values / law.step) * law.step if law.step else values


# -- the laws --------------------------------------------------------------------------


def test_laws_are_those_of_scipy():
    x = np.linspace(-4, 4, 41)
    assert normal(1.5).cdf(x) == pytest.approx(stats.norm(scale=1.5).cdf(x))
    assert laplace(2.0).cdf(x) == pytest.approx(stats.laplace(scale=0.5).cdf(x))
    r = np.linspace(0, 0.5, 21)
    cut = stats.gamma(2, scale=0.25)
    assert bpm_radius(BPM(4.0, 0.5, 2)).cdf(r) == pytest.approx(
        cut.cdf(r) / cut.cdf(0.5)
    )


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_invert_the_distribution(name):
    law = LAWS[name]
    p = np.linspace(0.01, 0.99, 30)
    assert law.cdf(law.quantile(p)) == pytest.approx(p)
    edges = law.edges(p)
    if law.step:
        assert np.all(edges / law.step - np.floor(edges / law.step) == 0.5)


# -- sizes and power -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(LAWS, 2, keep=(5,)))
def test_the_right_law_passes_and_5_percent_off_does_not(name):
    law = LAWS[name]
    n = draws_needed(law)
    result = noise_test(sample(law, n), law)
    assert not result.refuted and result.runs == n and result.level == "noise"
    assert "as wide do not" in result.evidence
    for ratio in (1.05, 1 / 1.05):
        assert noise_test(sample(law, n, 1, ratio), law).refuted
    with pytest.raises(NoPower, match="too few"):
        noise_test(sample(law, n - 1), law)


@pytest.mark.slow
def test_the_computed_power_is_the_real_one():
    """Sizes for a miss of 30%: the tail test alone misses no more, and not far less."""
    law, alpha, repeats = normal(1.0), 1e-3, 120
    n = draws_needed(law, alpha=alpha, miss=0.3)
    missed = sum(
        not failures(sample(law, n, seed, 1.05), law, alpha) for seed in range(repeats)
    )
    assert 0.05 * repeats < missed <= stats.binom.isf(1e-6, repeats, 0.3)


@pytest.mark.slow
def test_sizes_follow_from_what_must_be_seen():
    law = normal(1.0)
    n = draws_needed(law)
    # Four times as many for half the error; fewer where a miss may be likelier.
    assert draws_needed(law, ratio=1.025) == pytest.approx(4 * n, rel=0.1)
    assert draws_needed(law, miss=0.01) < 0.7 * n
    assert draws_needed(law, alpha=1e-3) < 0.8 * n
    with pytest.raises(ValueError, match="right scale"):
        draws_needed(law, ratio=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["normal", "coarse lattice", "radius"], 2))
def test_the_level_is_kept(name):
    """At alpha = 5% no more than that many right samples fail."""
    law, repeats = LAWS[name], 160
    failed = sum(
        bool(failures(sample(law, 4000, seed), law, 0.05)) for seed in range(repeats)
    )
    assert 0 < failed <= stats.binom.isf(1e-6, repeats, 0.05)


def cut(draws):
    return draws[np.abs(draws) < 3]


SHAPES = {
    "a sum of uniforms": lambda rng, n: rng.random((n, 12)).sum(axis=1) - 6,
    "cut at 3 deviations": lambda rng, n: stats.truncnorm(-3, 3).rvs(
        n, random_state=rng
    ),
    "a shifted centre": lambda rng, n: rng.normal(0.04, 1, n),
    "student t with 9": lambda rng, n: rng.standard_t(9, n) * math.sqrt(7 / 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes_of_the_same_variance_are_refuted(name):
    n = 200_000
    draws = SHAPES[name](np.random.default_rng(1), n)
    assert noise_test(draws, normal(1.0)).refuted


def test_draws_off_the_lattice_are_refuted():
    law = LAWS["fine lattice"]
    draws = sample(law, draws_needed(law))
    draws[7] += law.step / 4
    result = noise_test(draws, law)
    assert result.refuted and "1 draws are not on the lattice" in result.evidence


def test_a_test_without_power_says_so():
    """A law whose scale does not matter cannot be tested for it."""
    flat = Law(
        "two points", lambda x: np.where(np.asarray(x) < 0, 0.5, 0.5), lambda p: p
    )
    with pytest.raises(NoPower):
        draws_needed(flat)


@pytest.mark.parametrize("draws", [[], [math.nan], [[1.0, 2.0]], [math.inf] * 9])
def test_bad_draws_are_refused(draws):
    with pytest.raises(ValueError):
        noise_test(draws, normal(1.0))


# -- the mechanisms --------------------------------------------------------------------


@pytest.mark.slow
def test_the_gaussian_mechanism():
    law = law_of(Gaussian(2.0, {UNIT: 1.0}, dimension=1))
    n = draws_needed(law)
    mechanism = Gaussian(2.0, {UNIT: 1.0}, dimension=n)
    noise = mechanism.apply(np.zeros(n), os_key(mechanism))
    assert not noise_test(noise, law_of(mechanism)).refuted
    other = Gaussian(1.9, {UNIT: 1.0}, dimension=n)
    half = other.apply(np.zeros(n), os_key(other))
    assert noise_test(half, law_of(mechanism)).refuted
    plain = NoiseKey(Seeded(0).new_key(), private=False)
    assert noise_test(
        mechanism.apply_plain_float(np.zeros(n), plain), law_of(mechanism)
    ).refuted


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LaplaceReports, GaussianReports])
def test_coordinates_of_reports(kind):
    mechanism = kind(2.0, 2)
    law = law_of(mechanism)
    rows = max(draws_needed(law) // 2 + 1, 21_000)
    ids = np.arange(rows, dtype=np.uint64)
    noise = mechanism.privatize(np.zeros((rows, 2)), row_ids=ids).value.values
    assert not noise_test(noise.reshape(-1), law).refuted
    wide = np.rint(noise.reshape(-1) * 1.05 / law.step) * law.step
    assert noise_test(wide, law).refuted
    assert not independence_test(noise[:21_000], law).refuted
    assert independence_test(noise[:21_000, [0, 0]], law).refuted


@pytest.mark.slow
def test_the_radius_of_bpm_reports():
    bpm = BPM(8.0, 1.0, 2)
    law = law_of(bpm)
    point = np.array([0.25, 0.5])
    n = 1.1 * draws_needed(law)

    def radii(reports):
        radii_drawn = np.linalg.norm(reports - point, axis=1)
        return radii_drawn[radii_drawn <= bpm.L]

    tiled = np.tile(point, (int(n / bpm.p_L), 1))
    assert not noise_test(radii(bpm.apply(tiled, os_key(bpm))), law).refuted
    other = BPM(8.4, 1.0, 2)
    sharper = other.apply(tiled, os_key(other))
    assert noise_test(radii(sharper), law).refuted
    # The first sampler's radii are right; how often they are drawn is not.
    inside = radii(seed_reports(bpm)(point, Seeded(1), 20_000)).size
    assert stats.binomtest(inside, 20_000, bpm.p_L).pvalue < 1e-6


def test_no_law_for_something_else():
    with pytest.raises(TypeError, match="no known law"):
        law_of(object())


# -- independence ----------------------------------------------------------------------

N = 30_000


def matrix(seed=0):
    return np.random.default_rng(seed).normal(size=(N, 3))


def reused(draws):
    draws[:, 2] = draws[:, 0]


def reused_in_part(draws):
    draws[: N // 5, 2] = draws[: N // 5, 0]


def negated(draws):
    draws[:, 1] = -draws[:, 0]


def signs_drawn_anew(draws):
    draws[:, 1] = np.abs(draws[:, 0]) * np.sign(draws[:, 1])


def repeated_in_time(draws):
    draws[1::2, 0] = draws[::2, 0]


TWINS = [reused, reused_in_part, negated, signs_drawn_anew, repeated_in_time]


def test_independent_columns_pass():
    assert not independence_test(matrix(), normal(1.0)).refuted
    assert not independence_test(matrix()[:, :1], normal(1.0)).refuted


@pytest.mark.parametrize("spoil", TWINS)
def test_shared_noise_is_refuted(spoil):
    draws = matrix()
    spoil(draws)
    result = independence_test(draws, normal(1.0))
    assert result.refuted and "shared" in result.evidence


@pytest.mark.slow
def test_the_level_of_independence_is_kept():
    repeats, law = 80, normal(1.0, 0.5)
    failed = 0
    for seed in range(repeats):
        draws = np.rint(np.random.default_rng(seed).normal(size=(12_000, 3)) * 2) / 2
        failed += independence_test(draws, law, alpha=0.05).refuted
    assert failed <= stats.binom.isf(1e-6, repeats, 0.05)


def test_noise_of_exactly_zero_in_two_series_is_no_alarm():
    """A zero has no magnitude; as one of -37 deviations, two in a row would alarm."""
    step = 2.0**-10
    draws = np.rint(matrix() / step) * step
    draws[:3, :2] = 0.0  # likely once in some 100 matrices of this size
    assert not independence_test(draws, normal(1.0, step)).refuted


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_a_series_that_never_varies_is_refuted(value):
    draws = matrix()
    draws[:, 1] = value
    for law in (normal(1.0), normal(1.0, 2.0**-10)):
        result = independence_test(draws, law)
        assert result.refuted and "all draws of series 1" in result.evidence


def test_few_rows_or_nothing_to_compare_are_refused():
    with pytest.raises(NoPower, match="too few"):
        independence_test(matrix()[:100], normal(1.0))
    with pytest.raises(ValueError, match="nothing to compare"):
        independence_test(matrix()[:, :1], normal(1.0), lags=())
    with pytest.raises(ValueError, match="matrix"):
        independence_test(np.zeros(5), normal(1.0))


def test_repeated_rows_are_found():
    law = normal(1.0, 2.0**-10)
    rng = np.random.default_rng(0)
    rows = np.rint(rng.normal(size=(1000, 6)) * 2**10) * 2.0**-10
    assert not repeat_test(rows, law).refuted
    rows[700] = rows[3]
    result = repeat_test(rows, law)
    assert result.refuted and result.evidence.startswith("1 of 1000")
    with pytest.raises(NoPower, match="longer rows"):
        repeat_test(rows[:, :1], law)
    with pytest.raises(ValueError, match="lattice"):
        repeat_test(rows, normal(1.0))
