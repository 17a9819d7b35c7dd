"""One-run audits of sampled plans: valid, tight, and half the noise is refuted."""

import math

import numpy as np
import pytest
from scipy import stats

from demur.audit import audit_sampled_run
from demur.audit.sampled_runs import Curve, curve_of, with_noise
from demur.core import accounting
from demur.core.accounting.events import (
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from tests.audit.power import DELTA, sampled_scores

PLAN = Repeated(PoissonGaussian(0.25, 5.5), 80)


def test_a_gaussian_curve_is_its_closed_form_from_outside():
    curve = Curve(GaussianEvent(1.0))
    for x in (0.001, 0.05, 0.3, 0.8):
        exact = stats.norm.cdf(stats.norm.ppf(x) + 1.0)
        assert exact <= curve.most(x) <= exact * 1.001
        assert exact == pytest.approx(curve.most(x), rel=1e-3)
        # The least that may become y is the inverse.
        assert curve.least(curve.most(x)) == pytest.approx(x, rel=2e-3)
        assert curve.least(exact) <= x * (1 + 1e-12)


def test_a_sampled_curve_lies_below_that_of_all_its_records_and_above_the_scores():
    """Neyman and Pearson: no score's true positives exceed the plan's curve."""
    curve, whole = curve_of(PLAN), Curve(Repeated(GaussianEvent(5.5), 80))
    scores, coins = sampled_scores(PLAN, 400_000, 3)
    for x in (0.01, 0.1, 0.5):
        threshold = np.quantile(scores[~coins], 1 - x)
        power = (scores[coins] >= threshold).mean()
        assert 0.8 * curve.most(x) < power < curve.most(x) + 0.004
        assert curve.most(x) < whole.most(x)


def test_more_noise_is_a_smaller_claim():
    prices = [accounting.price(with_noise(PLAN, s), DELTA) for s in (0.5, 1.0, 2.0)]
    assert prices[0] > prices[1] > prices[2]
    assert with_noise(PLAN, 1.0) == PLAN
    with pytest.raises(ValueError, match="Gaussian steps"):
        with_noise(Pure(1.0), 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["f-DP", "counts"])
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_ideal_canaries_come_within_a_factor_two(test, epsilon):
    multiplier = {2.0: 5.35, 8.0: 1.81}[epsilon]
    plan = Repeated(PoissonGaussian(0.25, multiplier), 80)
    shares, refuted = [], []
    for seed in range(3):
        result = audit_sampled_run(
            *sampled_scores(plan, 4000, seed), plan, delta=DELTA, test=test
        )
        assert result.claimed == pytest.approx(epsilon, rel=0.03)
        assert not result.refuted
        shares.append(result.lower_bound / result.claimed)
        twin = audit_sampled_run(
            *sampled_scores(plan, 4000, seed, noise=0.5), plan, delta=DELTA, test=test
        )
        refuted.append(twin.refuted)
    print(test, epsilon, shares, refuted)
    assert np.median(shares) > 0.5
    assert all(refuted)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["f-DP", "counts"])
def test_the_bound_exceeds_a_known_epsilon_at_most_at_its_rate(test):
    """One full-batch step: scores are the dominating pair itself, the hardest case."""
    event = Repeated(PoissonGaussian(0.5, 0.8), 2)
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(200):
        coins = rng.random(600) < 0.5
        drawn = rng.random((2, 600)) < 0.5
        seen = (drawn & coins) + 0.8 * rng.normal(size=(2, 600))
        # The exact log-likelihood ratio of each step.
        ratio = np.log(0.5 + 0.5 * np.exp((2 * seen - 1) / (2 * 0.8**2))).sum(axis=0)
        result = audit_sampled_run(
            ratio, coins, event, delta=DELTA, test=test, alpha=0.2
        )
        above += result.refuted
    assert stats.binom.sf(above - 1, 200, 0.2) > 1e-6
    # A bound that took twice the alpha on each side of a curve 0.9 as wide would fail:
    # the same counts against nine tenths of the claim's noise budget are refuted often.
    wrong = with_noise(event, 1.5)
    coins = rng.random(6000) < 0.5
    drawn = rng.random((2, 6000)) < 0.5
    seen = (drawn & coins) + 0.8 * rng.normal(size=(2, 6000))
    ratio = np.log(0.5 + 0.5 * np.exp((2 * seen - 1) / (2 * 0.8**2))).sum(axis=0)
    twin = audit_sampled_run(ratio, coins, wrong, delta=DELTA, test=test, alpha=0.2)
    assert twin.refuted


def test_bad_arguments_are_refused():
    scores, coins = sampled_scores(PLAN, 100, 0)
    with pytest.raises(ValueError, match="f-DP or counts"):
        audit_sampled_run(scores, coins, PLAN, delta=DELTA, test="GDP")
    with pytest.raises(ValueError, match="100 scores for 99 coins"):
        audit_sampled_run(scores, coins[:-1], PLAN, delta=DELTA)
    with pytest.raises(ValueError, match="both sides"):
        audit_sampled_run(scores, np.ones(100, bool), PLAN, delta=DELTA, test="counts")
    blind = audit_sampled_run(np.zeros(100), coins, PLAN, delta=DELTA)
    assert blind.lower_bound == 0.0 and math.isinf(blind.power)
