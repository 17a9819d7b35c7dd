"""Confidence bounds: closed forms, exact coverage, and twins that do not cover."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from demur import gaussian_epsilon
from demur.audit.confidence import (
    epsilon_from_counts,
    epsilon_of_mu,
    mu_from_counts,
    mu_from_shift,
    proportion_lower,
    proportion_upper,
)

ALPHA = 0.05


def test_closed_forms():
    for n in (1, 7, 400):
        assert proportion_lower(n, n, ALPHA) == pytest.approx(ALPHA ** (1 / n))
        assert proportion_upper(0, n, ALPHA) == pytest.approx(1 - ALPHA ** (1 / n))
        assert proportion_lower(0, n, ALPHA) == 0.0
        assert proportion_upper(n, n, ALPHA) == 1.0


@pytest.mark.parametrize("alpha", [0.2, 0.01, 1e-6])
def test_agrees_with_scipys_exact_interval(alpha):
    for hits, runs in [(1, 9), (5, 10), (30, 1000), (999, 1000)]:
        exact = stats.binomtest(hits, runs).proportion_ci(1 - 2 * alpha, "exact")
        assert proportion_lower(hits, runs, alpha) == pytest.approx(exact.low, rel=1e-6)
        assert proportion_upper(hits, runs, alpha) == pytest.approx(
            exact.high, rel=1e-6
        )


# -- exact coverage: every count enumerated, no simulation -----------------------------


def wald_lower(hits, runs, alpha):
    p = hits / runs
    return max(0.0, p - stats.norm.isf(alpha) * math.sqrt(p * (1 - p) / runs))


def worst_miss(lower, runs):
    """The largest probability, over p, that the bound lies above p."""
    bounds = np.array([lower(k, runs, ALPHA) for k in range(runs + 1)])
    # The miss probability jumps up just below a bound: those are the worst p.
    places = np.concatenate([bounds - 1e-9, np.linspace(0.01, 0.99, 50)])
    places = places[(places > 0) & (places < 1)]
    counts = np.arange(runs + 1)
    return max(stats.binom.pmf(counts, runs, p)[bounds > p].sum() for p in places)


@pytest.mark.parametrize("runs", [5, 30, 200])
def test_the_lower_limit_covers_exactly(runs):
    worst = worst_miss(proportion_lower, runs)
    assert 0.9 * ALPHA < worst <= ALPHA + 1e-9


def test_coverage_rejects_other_limits():
    assert worst_miss(wald_lower, 30) > 1.5 * ALPHA
    doubled = worst_miss(lambda k, n, a: proportion_lower(k, n, 2 * a), 30)
    assert doubled > 1.5 * ALPHA
    one_more = worst_miss(lambda k, n, a: proportion_lower(min(k + 1, n), n, a), 30)
    assert one_more > 1.5 * ALPHA


def joint_miss(bound, truth, p, q, runs):
    """P(bound > truth) over both binomials, by enumeration."""
    counts = np.arange(runs + 1)
    first, second = stats.binom.pmf(counts, runs, p), stats.binom.pmf(counts, runs, q)
    return sum(
        first[a] * second[b]
        for a in counts
        for b in counts
        if first[a] * second[b] > 1e-12 and bound(int(a), int(b)) > truth
    )


PAIRS = [(0.6, 0.4), (0.9, 0.1), (0.3, 0.02), (0.99, 0.5)]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_epsilon_and_mu_from_counts_cover(p, q):
    runs, delta = 40, 0.05
    truth = math.log((p - delta) / q)
    miss = joint_miss(
        lambda a, b: epsilon_from_counts(
            (a, runs), (b, runs), delta=delta, alpha=ALPHA
        ),
        truth,
        p,
        q,
        runs,
    )
    assert miss <= ALPHA
    mu = special.ndtri(p) - special.ndtri(q)
    miss = joint_miss(
        lambda a, b: mu_from_counts((a, runs), (b, runs), alpha=ALPHA), mu, p, q, runs
    )
    assert miss <= ALPHA


def test_joint_coverage_rejects_a_plug_in_and_a_forgotten_delta():
    runs = 40
    p, q, delta = 0.3, 0.02, 0.25
    plugged = joint_miss(
        lambda a, b: (
            math.log(max(wald_lower(a, runs, ALPHA / 2), 1e-9) / (b + 0.5))
            + math.log(runs)
        ),
        math.log(p / q),
        p,
        q,
        runs,
    )
    assert plugged > ALPHA
    # Without its delta the bound speaks of another epsilon, and is wrong for this one.
    forgotten = joint_miss(
        lambda a, b: epsilon_from_counts((a, runs), (b, runs), delta=0.0, alpha=ALPHA),
        max(0.0, math.log((p - delta) / q)),
        p,
        q,
        runs,
    )
    assert forgotten > ALPHA


# -- shift over deviation --------------------------------------------------------------


def tail_by_quadrature(t, freedom, noncentrality):
    """P(T >= t) = E Phi(noncentrality - t S), S the root of a mean chi-square."""

    def integrand(s):
        density = stats.chi.pdf(s * math.sqrt(freedom), freedom) * math.sqrt(freedom)
        return special.ndtr(noncentrality - t * s) * density

    width = 12 / math.sqrt(2 * freedom)
    return integrate.quad(integrand, max(0, 1 - width), 1 + width, epsabs=1e-14)[0]


@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-6])
@pytest.mark.parametrize(
    ("mu", "n", "m"), [(0.1, 300, 500), (1.0, 40, 60), (5.0, 9, 7)]
)
def test_the_shift_bound_is_the_exact_limit(alpha, mu, n, m):
    rng = np.random.default_rng(n)
    one, two = 3 + 2 * rng.normal(mu, 1, n), 3 + 2 * rng.normal(0, 1, m)
    bound = mu_from_shift(one, two, alpha=alpha)
    spread = math.sqrt(1 / n + 1 / m)
    pooled = math.sqrt(
        ((n - 1) * one.var(ddof=1) + (m - 1) * two.var(ddof=1)) / (n + m - 2)
    )
    t = (one.mean() - two.mean()) / pooled / spread
    tail = tail_by_quadrature(t, n + m - 2, bound / spread)
    if bound > 0:
        assert tail == pytest.approx(alpha, rel=1e-6)
    else:
        assert tail > alpha


def shift_misses(lower, mu, n, repeats):
    rng = np.random.default_rng(7)
    return sum(
        lower(rng.normal(mu, 1, n), rng.normal(0, 1, n)) > mu for _ in range(repeats)
    )


def wald_shift(one, two):
    pooled = math.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 2)
    z = stats.norm.isf(ALPHA)
    return (one.mean() - two.mean()) / pooled - z * math.sqrt(2 / one.size)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "n"), [(0.5, 30), (4.0, 8)])
def test_the_shift_bound_covers_and_is_sharp(mu, n):
    repeats = 500
    missed = shift_misses(lambda a, b: mu_from_shift(a, b, alpha=ALPHA), mu, n, repeats)
    low, high = stats.binom.interval(1 - 2e-6, repeats, ALPHA)
    assert low <= missed <= high


@pytest.mark.slow
def test_coverage_rejects_a_normal_limit_for_the_shift():
    repeats = 1500
    limit = stats.binom.isf(1e-6, repeats, ALPHA)
    assert shift_misses(wald_shift, 4.0, 8, repeats) > limit


def test_randomised_response_shows_why_the_shift_needs_gaussian_scores():
    """epsilon 4 is 4.2-GDP; its shift over deviation is 7.3. Counts stay right."""
    rng = np.random.default_rng(0)
    p = float(special.expit(4.0))
    one, two = (np.sign(rng.random(20_000) - 1 + q) for q in (p, 1 - p))
    assert mu_from_shift(one, two, alpha=1e-6) > 6.0
    hits = [(int((side > 0).sum()), side.size) for side in (one, two)]
    assert 3.5 < mu_from_counts(*hits, alpha=1e-6) < 4.2


def test_epsilon_of_mu_is_just_below_the_upper_bound():
    for mu in (0.01, 1.0, 10.0):
        upper = gaussian_epsilon(mu, 1e-6)
        assert upper * (1 - 1e-9) < epsilon_of_mu(mu, 1e-6) < upper
    assert epsilon_of_mu(0.0, 1e-6) == 0.0


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1.0, math.nan, -1.0])
def test_alpha_must_be_a_probability(alpha):
    with pytest.raises(ValueError, match="alpha"):
        proportion_lower(1, 2, alpha)
    with pytest.raises(ValueError, match="alpha"):
        mu_from_shift([1.0, 2.0], [0.0, 1.0], alpha=alpha)


@pytest.mark.parametrize("hits", [-1, 11, True])
def test_hits_must_fit_the_runs(hits):
    with pytest.raises(ValueError, match="hits"):
        proportion_lower(hits, 10, 0.05)


def test_scores_must_be_finite_and_vary():
    with pytest.raises(ValueError, match="1 of 2 scores"):
        mu_from_shift([1.0, math.nan], [0.0, 1.0], alpha=0.05)
    with pytest.raises(ValueError, match="no noise"):
        mu_from_shift([1.0, 1.0], [0.0, 0.0], alpha=0.05)
    with pytest.raises(ValueError, match="at least two"):
        mu_from_shift([1.0], [0.0, 1.0], alpha=0.05)
    with pytest.raises(ValueError, match="shape"):
        mu_from_shift([[1.0]], [0.0, 1.0], alpha=0.05)
    with pytest.raises(ValueError, match="one number"):
        mu_from_shift(["a"], [0.0, 1.0], alpha=0.05)
