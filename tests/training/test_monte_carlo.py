"""Sampled privacy losses against closed forms and the peer, and their verification."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jax_privacy import batch_selection as peer_selection
from jax_privacy.experimental.monte_carlo import sample_generation as peer
from scipy.stats import binom, ks_2samp

from demur.core import accounting
from demur.core.accounting.events import ApproxDP, Neighbours, PoissonGaussian, Repeated
from demur.core.accounting.gaussian import gaussian_delta
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import BandedToeplitz, optimize_banded_toeplitz
from demur.training import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    ExecutionPlanConfig,
    MonteCarlo,
)
from demur.training.accounting import monte_carlo
from demur.training.accounting.accounts import ParticipationAccount, run_event
from demur.training.accounting.loss_samples import (
    _expected_over_patterns,
    _start_law,
    hockey_stick,
    loss_sampler,
)
from demur.training.batches.selection import STEP_DISTANCE

ADD = Neighbours.ADD_OR_REMOVE_ONE


def estimate(selection, strategy, deviation, epsilon, samples=60_000):
    """Mean and error of delta, with the record and without it."""
    draw = loss_sampler(selection, strategy, deviation)
    both = draw(samples, np.random.default_rng(8))
    sticks = [hockey_stick(losses, epsilon) for losses in both]
    return [(s.mean(), s.std() / math.sqrt(samples)) for s in sticks]


def test_one_bin_is_a_gaussian():
    strategy = BandedToeplitz([1.0, 0.5], 4)
    moved = np.linalg.norm(strategy.matrix().sum(axis=1))
    exact = gaussian_delta(moved / 3.0, 0.5)
    for mean, error in estimate(BallsInBinsSampling(4, 1), strategy, 3.0, 0.5):
        assert abs(mean - exact) < 5 * error
        assert error < 0.01 * exact


@pytest.mark.slow
def test_no_separation_is_poisson_sampling():
    steps, p, z = 20, 0.1, 1.0
    (with_record, without) = estimate(
        BMinSepSampling(p, steps, 1), BandedToeplitz([1.0], steps), z, 1.0
    )
    exact = accounting.delta_of(Repeated(PoissonGaussian(p, z), steps), 1.0)
    assert abs(with_record[0] - exact) < 5 * with_record[1] + 1e-5
    # The directions differ by far more than the error of either.
    assert without[0] < exact / 5


def patterns(p, steps, apart, free, blocked):
    """Every set of steps of one record, and its chance."""
    found: dict[tuple[int, ...], float] = {}

    def walk(step, free_at, seen, weight):
        if step == steps:
            found[seen] = found.get(seen, 0.0) + weight
        elif step < free_at:
            walk(step + 1, free_at, seen, weight)
        else:
            walk(step + 1, step + apart, (*seen, step), weight * p)
            walk(step + 1, free_at, seen, weight * (1 - p))

    for free_at, weight in enumerate([free] + [blocked] * (apart - 1)):
        walk(0, free_at, (), weight)
    return found


@pytest.mark.parametrize(("p", "blocked"), [(0.3, 0.3 / 1.6), (0.3, 0.0), (1.0, 0.2)])
def test_the_recursion_is_the_sum_over_all_patterns(p, blocked):
    steps, apart = 9, 3
    free = 1 - (apart - 1) * blocked
    scores = np.random.default_rng(0).normal(scale=2.0, size=(5, steps))
    every = patterns(p, steps, apart, free, blocked)
    assert sum(every.values()) == pytest.approx(1.0)
    wanted = [
        math.log(sum(w * math.exp(row[list(u)].sum()) for u, w in every.items()))
        for row in scores
    ]
    found = _expected_over_patterns(scores, p, apart, free, blocked)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    # One more step of separation is another sum.
    other = _expected_over_patterns(scores, p, apart + 1, free - blocked, blocked)
    assert np.abs(other - wanted).max() > 0.01


def test_a_warm_start_is_stationary():
    """As many are drawn as come back from each of the ways to be blocked."""
    free, blocked = _start_law(BMinSepSampling(0.3, 5, 4))
    assert free * 0.3 == pytest.approx(blocked, rel=1e-12)
    assert free + 3 * blocked == pytest.approx(1.0, rel=1e-12)
    assert _start_law(BMinSepSampling(0.3, 5, 4, warm_start=False)) == (1.0, 0.0)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("positive", [True, False])
def test_separated_losses_have_the_peers_law(warm, positive):
    best = optimize_banded_toeplitz(5, 4)
    ours = loss_sampler(BMinSepSampling(0.5, 5, 4, warm), best, 1.0)
    mine = ours(20_000, np.random.default_rng(0))[0 if positive else 1]

    def theirs(start):
        selection = peer_selection.BMinSepSampling(0.5, 5, 4, start)
        coefs = np.asarray(best.coefs)
        return peer.get_privacy_loss_sample(selection, 1.0, coefs, 1, positive, 20_000)[
            0
        ]

    assert ks_2samp(mine, theirs(warm)).pvalue > 1e-4
    assert ks_2samp(mine, theirs(not warm)).pvalue < 1e-6


@pytest.mark.slow
def test_balls_in_bins_losses_have_the_peers_law():
    best = optimize_banded_toeplitz(20, 4)
    mine, _ = loss_sampler(BallsInBinsSampling(20, 4), best, 1.5)(
        2500, np.random.default_rng(0)
    )
    theirs = [
        peer.get_privacy_loss_sample(
            peer_selection.BallsInBinsSampling(20, 4), 1.5, np.asarray(best.coefs), seed
        )[0]
        for seed in range(2500)
    ]
    assert ks_2samp(mine, np.ravel(theirs)).pvalue > 1e-4
    fewer, _ = loss_sampler(BallsInBinsSampling(20, 5), best, 1.5)(
        2500, np.random.default_rng(0)
    )
    assert ks_2samp(fewer, np.ravel(theirs)).pvalue < 1e-6


@pytest.mark.slow
def test_certain_participation_is_balls_in_bins():
    best = optimize_banded_toeplitz(20, 4)
    one = estimate(BMinSepSampling(1.0, 20, 4), best, 1.5, 1.0)
    other = estimate(BallsInBinsSampling(20, 4), best, 1.5, 1.0)
    for (a, x), (b, y) in zip(one, other, strict=True):
        assert abs(a - b) < 5 * (x + y)


@pytest.mark.slow
def test_bins_that_no_step_uses_are_bins_too():
    """With fewer steps than bins a record may never take part."""
    strategy = BandedToeplitz([1.0], 2)
    few = estimate(BallsInBinsSampling(2, 2), strategy, 1.0, 0.5)
    many = estimate(BallsInBinsSampling(2, 8), strategy, 1.0, 0.5)
    assert many[0][0] < few[0][0] / 2


# -- the verification ------------------------------------------------------------------


def test_a_plan_that_misses_its_target_is_hardly_ever_accepted():
    """For 0/1 sticks, the worst case, the chance of acceptance is a Binomial tail."""
    for samples, delta, failure in [(2000, 0.05, 1e-3), (10**6, 1e-4, 1e-6)]:
        check = MonteCarlo(1.0, delta, samples, failure)
        most = math.floor(check.largest_mean() * samples)
        missed = math.nextafter(delta, 1.0)
        assert binom.cdf(most, samples, missed) <= failure / 2
        # No more careful than it must be: a little more and the bound would not hold.
        assert binom.cdf(math.ceil(most * 1.35), samples, missed) > failure / 2


def test_each_direction_has_half_of_the_failure():
    for samples, delta, failure in [(2000, 0.05, 1e-3), (10**6, 1e-4, 1e-6)]:
        mean = MonteCarlo(1.0, delta, samples, failure).largest_mean()
        kl = mean * math.log(mean / delta)
        kl += (1 - mean) * math.log((1 - mean) / (1 - delta))
        assert math.exp(-samples * kl) == pytest.approx(failure / 2, rel=1e-6)


def test_too_few_samples_are_refused_beforehand():
    check = MonteCarlo(1.0, 1e-6, 1000)
    with pytest.raises(NotPriced, match="cannot verify"):
        check.verify(BallsInBinsSampling(20, 4), BandedToeplitz([1.0], 20), 1.0, ADD)


def verified(multiplier, epsilon=2.0):
    check = MonteCarlo(epsilon, 1e-2, 20_000, failure=1e-6)
    return check.verify(
        BallsInBinsSampling(20, 4),
        BandedToeplitz([1.0], 20),
        multiplier,
        ADD,
        np.random.default_rng(1),
    )


def test_enough_noise_is_accepted_and_too_little_is_not():
    account = verified(2.0)
    assert account.draw_event(2.0, ADD) == ApproxDP(2.0, 1e-2)
    with pytest.raises(NotPriced, match="Use more noise"):
        verified(0.8)
    with pytest.raises(NotPriced, match="only noise_multiplier"):
        account.draw_event(1.9, ADD)
    with pytest.raises(NotPriced, match="only noise_multiplier"):
        account.draw_event(2.0, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("bad", [0, 1])
def test_both_directions_must_hold(monkeypatch, bad):
    def sampler(selection, strategy, deviation):
        return lambda count, rng: tuple(
            np.full(count, 5.0 if way == bad else -5.0) for way in (0, 1)
        )

    monkeypatch.setattr(monte_carlo, "loss_sampler", sampler)
    with pytest.raises(NotPriced, match="Use more noise"):
        verified(2.0)


def test_noise_is_counted_per_column_and_batches_at_their_distance():
    check = MonteCarlo(2.0, 1e-2, 20_000, failure=1e-6)
    selection = BMinSepSampling(0.3, 20, 4)

    def accepted(scale, multiplier):
        strategy = BandedToeplitz([scale], 20)
        rng = np.random.default_rng(1)
        return check.verify(selection, strategy, multiplier, ADD, rng)

    account = accepted(0.1, 2.0)  # a scale of C changes nothing
    assert accepted(10.0, 2.0).noise_multiplier == 2.0
    assert account.selection_distance == 20 * STEP_DISTANCE
    assert account.scale(BandedToeplitz([0.1], 20)) == pytest.approx(0.1)
    with pytest.raises(NotPriced, match="Use more noise"):
        accepted(0.1, 0.4)


def test_amplification_is_worth_something():
    account = ParticipationAccount(BallsInBinsSampling(20, 4))
    strategy = BandedToeplitz([1.0], 20)
    whole = 2.0 / account.scale(strategy)
    alone = accounting.price(run_event(account, whole, ADD), 1e-2)
    assert alone > 2.0


NEGATIVE = BandedToeplitz([1.0, -0.3], 20)


class OtherBins(BallsInBinsSampling):
    pass


@pytest.mark.parametrize(
    ("selection", "strategy", "message"),
    [
        (OtherBins(20, 4), BandedToeplitz([1.0], 20), "OtherBins"),
        (BallsInBinsSampling(20, 4), NEGATIVE, "negative"),
        (BMinSepSampling(0.1, 20, 1), BandedToeplitz([1.0, 0.3], 20), "bands"),
        (BMinSepSampling(0.1, 20, 2, True, 5), BandedToeplitz([1.0], 20), "truncated"),
        (CyclicPoissonSampling(0.1, 20), BandedToeplitz([1.0], 20), "no verification"),
        (BallsInBinsSampling(19, 4), BandedToeplitz([1.0], 20), "20 steps"),
    ],
)
def test_what_has_no_pair_is_refused(selection, strategy, message):
    with pytest.raises(NotPriced, match=message):
        loss_sampler(selection, strategy, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [(0.0, 1e-3, 10), (1.0, 0.0, 10), (1.0, 1e-3, 0), (1.0, 1e-10, 10, 1e-9)],
)
def test_bad_verifications(arguments):
    with pytest.raises(ValueError, match="must be"):
        MonteCarlo(*arguments)


def test_a_plan_states_what_was_verified():
    config = ExecutionPlanConfig(
        batch_selection_strategy=BallsInBinsSampling(20, 4),
        account=MonteCarlo(2.0, 1e-2, 20_000, failure=1e-6),
        noise_multiplier=2.5,
        neighboring_relation="REPLACE_SPECIAL",
        l2_clip_norm=1.0,
    )
    plan = config.make()
    assert plan.price(1e-2) == 2.0
    assert any("20000 samples" in line for line in plan.declaration().assumptions)
    assert type(plan.dp_event).__name__ == "UnsupportedDpEvent"
