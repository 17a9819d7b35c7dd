"""Bounds on attacks: closed forms, and attacks that stay below them."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from demur.audit.attacks import AttackGains, attack_gains, identification, membership
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import NoiseKey, Seeded
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian

NORMAL = NormalDist()


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_a_gaussian_has_its_closed_forms(mu):
    gains = attack_gains(GaussianEvent(1 / mu))
    assert gains.membership_advantage == pytest.approx(2 * NORMAL.cdf(mu / 2) - 1)
    for x in (0.001, 0.01, 0.1, 0.5):
        exact = NORMAL.cdf(NORMAL.inv_cdf(x) + mu)
        assert exact <= gains.true_positives(x) <= exact * 1.003
    # (r / R)^d of a ball is the blind success.
    ball = gains.reconstruction(within=0.1, of=1.0, dimension=2)
    assert ball == pytest.approx(gains.identification(blind=0.01))


def test_pure_and_approximate_claims():
    gains = attack_gains(Pure(1.0))
    assert gains.true_positives(0.01) == pytest.approx(math.e * 0.01)
    assert gains.true_positives(0.9) == pytest.approx(1 - 0.1 / math.e)
    assert gains.membership_advantage == pytest.approx(math.tanh(0.5))
    with_delta = attack_gains(ApproxDP(1.0, 0.05))
    assert with_delta.true_positives(0.0) == pytest.approx(0.05)


def test_no_protection_bounds_nothing_and_bad_arguments_are_refused():
    gains = AttackGains(((0.0, 1.0),), "x")
    assert gains.true_positives(0.0) == gains.membership_advantage == 1.0
    for wrong in ({}, {"candidates": 3, "blind": 0.1}):
        with pytest.raises(TypeError, match="either"):
            gains.identification(**wrong)
    with pytest.raises(ValueError, match="pairs"):
        AttackGains((), "x")
    with pytest.raises(TypeError, match="entry"):
        attack_gains(3.0)


def test_an_entry_and_a_whole_ledger():
    unit = ReplaceOne()
    ledger = Ledger(Budget(4.0, 1e-6), unit=unit)
    for label in ("one", "two"):
        ledger.charge(Gaussian(2.0, {unit: 1.0}), label=label)
    alone = attack_gains(ledger.entries()[0])
    whole = attack_gains(ledger)
    exact = [NORMAL.cdf(NORMAL.inv_cdf(0.01) + mu) for mu in (0.5, math.sqrt(0.5))]
    assert exact[0] <= alone.true_positives(0.01) < 1.01 * exact[0]
    assert exact[1] <= whole.true_positives(0.01) < 1.15 * exact[1]
    assert "any change to the content of one record" in whole.statement()
    assert alone.to_json()["membership_advantage"] < 0.2
    with pytest.raises(TypeError, match="unit must be given"):
        attack_gains(
            Ledger({unit: Budget(1.0, 1e-6), Ball(0.1, "x"): Budget(1.0, 1e-6)})
        )


@pytest.mark.slow
def test_a_sampled_plan_is_bounded_by_its_whole_run():
    plan = attack_gains(Repeated(PoissonGaussian(0.02, 0.8), 100))
    whole = attack_gains(Repeated(GaussianEvent(0.8), 100))
    assert 0.01 < plan.true_positives(0.01) < 0.2 < whole.true_positives(0.01)


def test_membership_on_a_head_comes_close_to_its_bound_and_half_the_noise_exceeds_it():
    rng = np.random.default_rng(0)
    gains = attack_gains(GaussianEvent(1.0))
    without = rng.normal(size=40_000)
    for noise, beyond in ((1.0, False), (0.5, True)):
        there = 1.0 + noise * rng.normal(size=40_000)
        absent = noise * without
        attempt = membership(there, absent, gains)
        assert (attempt.success > attempt.bound) is beyond
        assert attempt.success > 0.8 * attempt.bound
        assert "at most" in attempt.statement()


def test_identification_of_a_report_stays_below_its_bound():
    mechanism = BPM(epsilon=3.0, L=0.4, dimension=1)
    candidates = [np.array([x]) for x in (0.0, 0.5, 1.0)]
    points = np.concatenate(candidates)

    def release(candidate, number):
        key = NoiseKey(Seeded(number).new_key(), private=False)
        return mechanism.apply(candidate.reshape(1, 1), key)[0]

    def likelihood(candidate, report):
        return float(mechanism.log_density(candidate, report))

    gains = attack_gains(mechanism.declaration().cost.at(ReplaceOne()))
    attempt = identification(release, candidates, likelihood, gains, runs=300)
    assert 0.4 < attempt.success < attempt.bound <= 1.0
    assert points.size == 3
    careless = attack_gains(Pure(0.1))
    wrong = identification(release, candidates, likelihood, careless, runs=300)
    assert wrong.success > wrong.bound
