"""The Gaussian profile against the definition in high-precision arithmetic."""

import math
import random
from functools import cache

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.core.accounting import gdp

pytestmark = pytest.mark.slow  # not in `make check`

U = 2.0**-53


@cache
def exact_delta(mu, epsilon):
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), with digits to spare."""
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    a = epsilon / mu - mu / 2
    spare = a * a / 2 / mp.log(10) + 2 * abs(mp.log10(mu)) + 2 * mp.log10(abs(a) + 1)
    with mp.workdps(60 + int(min(spare, 3000))):
        a = epsilon / mu - mu / 2
        upper = mp.erfc(a / mp.sqrt(2)) / 2
        return upper - mp.exp(epsilon) * mp.erfc((a + mu) / mp.sqrt(2)) / 2


def points(count, seed):
    """(mu, epsilon) over every branch: mu in [1e-12, 1e3], delta from 1e-320 up."""
    rng = random.Random(seed)
    for _ in range(count):
        mu = rng.choice(
            [
                10 ** rng.uniform(-12, 3),
                10 ** rng.uniform(-3, 1),
                rng.uniform(0.5, 3),
                rng.uniform(1, 200),
            ]
        )
        edge = min(mu / 2, 30)
        a = rng.choice([rng.uniform(0, 38), rng.uniform(-edge, 0), rng.uniform(0, 3)])
        yield mu, max(0.0, mu * a + mu * mu / 2)


EXTREME = [
    (1e-12, 0.0),
    (1e-12, 37e-12),
    (1e-12, 1e-18),
    (1e-300, 1e-299),
    (1.0, 0.0),
    (math.nextafter(1.0, 0.0), 0.25),
    (1.0, 0.5),
    (2.0, 3.0),
    (1e3, 5e5),
    (1e3, 537_000.0),
    (141.0, 1e4),
    (60.0, 3.0),
    (1e-3, 1e-9),
]


@pytest.mark.parametrize(
    "upper", [gdp.log_delta_upper, lambda mu, eps: gdp.log_delta(mu, eps)]
)
def test_upper_bound_holds_and_the_estimate_alone_would_not(upper):
    """The twin without the error bound is below the truth somewhere."""
    violations = 0
    for mu, epsilon in [*EXTREME, *points(240, seed=1)]:
        delta = exact_delta(mu, epsilon)
        with mp.workdps(400):
            violations += mp.mpf(upper(mu, epsilon)) < mp.log(delta)
    assert (violations == 0) == (upper is gdp.log_delta_upper)


def test_relative_accuracy():
    for mu, epsilon in [*EXTREME, *points(200, seed=2)]:
        true = mp.log(exact_delta(mu, epsilon))
        assert abs(gdp.log_delta(mu, epsilon) - true) < 1e-12
        assert gdp.log_delta_upper(mu, epsilon) - true < 1e-11


def test_error_bound_has_a_margin():
    """The error given `a` stays below 0.6 of the stated bound on every branch."""
    for mu, epsilon in points(200, seed=3):
        a = epsilon / mu - mu / 2
        with mp.workdps(400):
            true = exact_delta(mu, mp.mpf(mu) * mp.mpf(a) + mp.mpf(mu) ** 2 / 2)
            estimate = gdp._log_delta(a, mu)
            assert abs(estimate.value - mp.log(true)) <= 0.6 * estimate.error
            if a < 0:
                estimate = gdp._log_complement(a, mu)
                error = abs(estimate.value - mp.log(1 - true))
                assert error <= 0.6 * estimate.error


def test_epsilon_zero_is_total_variation():
    for mu in (1e-300, 1e-12, 1e-3, 0.9, 1.1, 5.0):
        value = math.erf(mu / math.sqrt(8.0))
        assert math.exp(gdp.log_delta(mu, 0.0)) == pytest.approx(value, rel=3e-13)


def test_far_beyond_floats():
    assert gdp.log_delta(1e-320, 1e4) == -math.inf
    assert gdp.log_delta(1.0, 1e200) == -math.inf
    assert gdp.log_delta(1e200, 1e4) == 0.0
    assert gdp.log_delta(1.0, 1e4) == pytest.approx(-0.5 * 9999.5**2, rel=1e-6)
    assert gdp.meets(1.0, math.nextafter(math.inf, 0.0), 5e-324)
    # epsilon / mu and mu / 2 both huge: the sign of `a` decides
    assert not gdp.meets(1.5e157, 1.7e308, 0.5)
    assert not gdp.meets(1.5e157, 1.7e308, 0.9)


@settings(max_examples=200, deadline=None)
@given(
    mu=st.floats(1e-12, 1e3),
    epsilon=st.floats(0.0, 1e4),
    growth=st.floats(1e-9, 10.0),
)
def test_profile_grows_with_mu_and_falls_with_epsilon(mu, epsilon, growth):
    here = gdp.log_delta(mu, epsilon)
    slack = 1e-12 * max(1.0, abs(here))
    assert gdp.log_delta(mu * (1 + growth), epsilon) >= here - slack
    assert gdp.log_delta(mu, epsilon * (1 + growth)) <= here + slack


def test_meets_compares_one_minus_delta_above_a_half():
    delta = 1.0 - 2.0**-53
    with mp.workdps(60):
        target = mp.mpf(delta)
        mu = gdp.closest_float(
            lambda mu: exact_delta(mu, 2.0) <= target, good=1.0, bad=100.0
        )
    assert gdp.meets(mu * (1 - 1e-13), 2.0, delta)
    assert not gdp.meets(mu * (1 + 1e-13), 2.0, delta)


def pure_mu(epsilon, start):
    """-2 Phi^-1(1 / (1 + e^eps)) by Newton's method from a close start."""
    epsilon, mu = mp.mpf(epsilon), mp.mpf(start)
    corner = 1 / (1 + mp.exp(epsilon))
    for _ in range(4):
        density = mp.exp(-mu * mu / 8) / mp.sqrt(2 * mp.pi)
        mu += 2 * (mp.erfc(mu / mp.sqrt(8)) / 2 - corner) / density
    return mu


@pytest.mark.parametrize(
    "epsilon",
    [1e-200, 1e-12, 9.9e-9, 1.1e-8, 1e-3, 0.5, 1.0, 1.1, 5.0, 40.0, 709.0, 711.0, 1e4],
)
def test_pure_is_rounded_up_and_tight(epsilon):
    mu = gdp.mu_of_pure(epsilon)
    # Newton works on 1/2 - Phi(-mu/2), of the size of epsilon when that is small
    with mp.workdps(60 + int(max(0.0, -math.log10(epsilon)))):
        true = pure_mu(epsilon, mu)
        assert mu >= true
        assert mu <= true * (1 + 1e-13)


def test_pure_of_the_smallest_epsilons():
    assert gdp.mu_of_pure(0.0) == 0.0
    for steps in range(1, 40):
        epsilon = steps * 5e-324
        mu = gdp.mu_of_pure(epsilon)
        assert mp.mpf(mu) >= mp.mpf(epsilon) * mp.sqrt(mp.pi / 2)
        assert mu <= epsilon * 1.2534 + 1e-323


@settings(max_examples=100, deadline=None)
@given(epsilon=st.floats(1e-6, 50.0), at=st.floats(0.0, 1.0))
def test_pure_mechanism_is_covered_at_every_epsilon(epsilon, at):
    """delta of randomised response, (e^eps - e^x) / (1 + e^eps), is below the GDP's."""
    x = epsilon * at
    mu = gdp.mu_of_pure(epsilon)
    response = -math.expm1(x - epsilon) / (1.0 + math.exp(-epsilon))
    assert response <= math.exp(gdp.log_delta_upper(mu, x)) * (1 + 1e-14)


def test_closest_float_returns_what_it_has_seen_hold():
    seen = []

    def holds(x):
        if x <= 0.1:
            seen.append(x)
        return x <= 0.1

    assert gdp.closest_float(holds, good=0.0, bad=math.inf) == 0.1
    assert 0.1 in seen


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="mu .*got"):
        gdp.log_delta(bad, 1.0)
    with pytest.raises(ValueError, match="epsilon .*got"):
        gdp.log_delta_upper(1.0, bad)
    with pytest.raises(ValueError, match="epsilon .*got"):
        gdp.mu_of_pure(bad)
    with pytest.raises(ValueError, match="delta .*got"):
        gdp.meets(1.0, 1.0, bad)


@pytest.mark.parametrize("bad", [True, "1", None, 1j])
def test_what_is_not_a_number_is_refused(bad):
    with pytest.raises(TypeError, match="mu .*got"):
        gdp.log_delta(bad, 1.0)
    with pytest.raises(TypeError, match="epsilon .*got"):
        gdp.mu_of_pure(bad)
