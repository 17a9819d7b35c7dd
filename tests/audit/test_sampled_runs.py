"""One-run audits of sampled plans: valid, tight, and half the noise is refuted."""

import math

import numpy as np
import pytest
from scipy import stats

from demur.audit import audit_sampled_run
from demur.audit.one_run.sampled_runs import (
    CanaryCounts,
    TradeoffCurve,
    curve_of,
    refutes,
    with_noise,
)
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
    curve = TradeoffCurve(GaussianEvent(1.0))
    for x in (0.001, 0.05, 0.3, 0.8):
        exact = stats.norm.cdf(stats.norm.ppf(x) + 1.0)
        assert exact <= curve.most(x) <= exact * 1.001
        assert exact == pytest.approx(curve.most(x), rel=1e-3)
        # The least that may become y is the inverse.
        assert curve.least(curve.most(x)) == pytest.approx(x, rel=2e-3)
        assert curve.least(exact) <= x * (1 + 1e-12)


def test_a_sampled_curve_lies_below_that_of_all_its_records_and_above_the_scores():
    """Neyman and Pearson: no score's true positives exceed the plan's curve."""
    curve, whole = curve_of(PLAN), TradeoffCurve(Repeated(GaussianEvent(5.5), 80))
    scores, coins = sampled_scores(PLAN, 400_000, 3)
    for x in (0.01, 0.1, 0.5):
        threshold = np.quantile(scores[~coins], 1 - x)
        power = (scores[coins] >= threshold).mean()
        assert 0.8 * curve.most(x) < power < curve.most(x) + 0.004
        assert curve.most(x) < whole.most(x)


def sizes_of(p_value, curve, alpha, inside=14, outside=12):
    """How often the claim is refuted where it is kept to the edge, by enumeration."""
    refuted = np.array(
        [
            [
                p_value(CanaryCounts(h, inside, k, outside)) <= alpha
                for k in range(outside + 1)
            ]
            for h in range(inside + 1)
        ]
    )
    sizes = []
    for q in np.linspace(0.0, 1.0, 101):
        h = stats.binom.pmf(np.arange(inside + 1), inside, curve.most(q))
        k = stats.binom.pmf(np.arange(outside + 1), outside, q)
        sizes.append(h @ refuted @ k)
    return np.array(sizes), refuted


def test_counts_keep_their_level_at_every_rate_of_false_positives():
    curve, alpha = TradeoffCurve(GaussianEvent(1.0)), 0.1
    sizes, refuted = sizes_of(lambda seen: seen.p_value(curve, alpha), curve, alpha)
    assert 0.04 < sizes.max() <= alpha
    # More hits and fewer false ones never save a claim.
    assert (np.diff(refuted.astype(int), axis=0) >= 0).all()
    assert (np.diff(refuted.astype(int), axis=1) <= 0).all()
    # Twins: p-values of one hit more, and of a curve with three quarters of the noise.
    careless, _ = sizes_of(
        lambda seen: CanaryCounts(
            min(seen.hits + 1, seen.inside), seen.inside, seen.false, seen.outside
        ).p_value(curve, alpha),
        curve,
        alpha,
    )
    assert careless.max() > alpha
    wrong = TradeoffCurve(GaussianEvent(1.0 / 0.75))
    tight, _ = sizes_of(lambda seen: seen.p_value(wrong, alpha), curve, alpha)
    assert tight.max() > alpha


def test_more_noise_is_a_smaller_claim():
    prices = [accounting.price(with_noise(PLAN, s), DELTA) for s in (0.5, 1.0, 2.0)]
    assert prices[0] > prices[1] > prices[2]
    assert with_noise(PLAN, 1.0) == PLAN
    with pytest.raises(ValueError, match="Gaussian steps"):
        with_noise(Pure(1.0), 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("test", "share"), [("f-DP", 0.35), ("counts", 0.5)])
@pytest.mark.parametrize(("epsilon", "multiplier"), [(2.0, 4.6415), (8.0, 1.5718)])
def test_ideal_canaries_come_close_to_the_claim(test, share, epsilon, multiplier):
    plan = Repeated(PoissonGaussian(0.25, multiplier), 80)
    shares, twins = [], []
    for seed in range(2):
        result = audit_sampled_run(
            *sampled_scores(plan, 4000, seed), plan, delta=DELTA, test=test
        )
        assert result.claimed == pytest.approx(epsilon, rel=0.001)
        assert not result.refuted
        shares.append(result.lower_bound / result.claimed)
        twin = audit_sampled_run(
            *sampled_scores(plan, 4000, seed, noise=0.5), plan, delta=DELTA, test=test
        )
        twins.append(twin)
    assert min(shares) > share
    # Half the noise: the bound doubles, and counts refute the claim.
    assert min(twin.lower_bound or 0.0 for twin in twins) > 1.5 * share * epsilon
    assert test == "f-DP" or all(twin.refuted for twin in twins)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["f-DP", "counts"])
def test_a_claim_that_is_kept_to_the_edge_is_refuted_at_most_at_the_rate(test):
    """Scores are the dominating pair's own log-likelihood ratios, the hardest case."""
    event = Repeated(PoissonGaussian(0.5, 0.8), 2)
    rng = np.random.default_rng(0)

    def drawn(canaries: int) -> tuple[np.ndarray, np.ndarray]:
        coins = rng.random(canaries) < 0.5
        taken = (rng.random((2, canaries)) < 0.5) & coins
        seen = taken + 0.8 * rng.normal(size=(2, canaries))
        ratio = np.log(0.5 + 0.5 * np.exp((2 * seen - 1) / (2 * 0.8**2)))
        return ratio.sum(axis=0), coins

    refuted = sum(refutes(*drawn(600), event, test, 0.2) for _ in range(200))
    assert stats.binom.sf(refuted - 1, 200, 0.2) > 1e-6
    # A claim of twice the noise is refuted by as many canaries as it takes.
    assert refutes(*drawn(6000), with_noise(event, 2.0), test, 0.2)


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
