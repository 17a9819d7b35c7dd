"""Canaries: orthogonal, found again, and public in everything they tell."""

import math

import numpy as np
import pytest

from demur.audit import Canaries, Claim, audit_canaries, flip_coins
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure

DIMENSION, COUNT = 600, 500


def test_canaries_are_orthogonal_and_longer_than_the_clip():
    canaries = Canaries.draw(COUNT, DIMENSION, clip_norm=0.5, random_state=3)
    rows = canaries.rows().astype(float)
    assert rows.shape == (COUNT, DIMENSION) and len(canaries) == COUNT
    assert np.allclose(rows @ rows.T, np.eye(COUNT) * 4.0)
    chosen = canaries.rows(np.arange(COUNT) < 7)
    assert np.array_equal(chosen, canaries.rows()[:7])
    again = Canaries.draw(COUNT, DIMENSION, clip_norm=0.5, random_state=3)
    assert np.array_equal(again.rows(), canaries.rows())


def test_scores_are_weighted_inner_products():
    rng = np.random.default_rng(0)
    canaries = Canaries.draw(20, 30, clip_norm=1.0)
    releases, weights = rng.normal(size=(3, 30)), np.array([1.0, 0.5, -2.0])
    units = canaries.rows().astype(float) / canaries.length
    expected = units @ (weights @ releases)
    assert np.allclose(canaries.scores(releases, weights), expected)
    assert canaries.scores(releases) == pytest.approx(units @ releases.sum(axis=0))


def noisy_sum(canaries, coins, sigma, *, clip=1.0, steps=1, seed=0):
    """The clipped sum of the canaries that are in, plus noise, step by step."""
    rng = np.random.default_rng(seed)
    rows = canaries.rows(coins).astype(float)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows * np.minimum(1.0, clip / norms)).sum(axis=0)
    return [total + sigma * rng.normal(size=total.size) for _ in range(steps)]


TWINS = {
    "half the noise": {"sigma": 0.5},
    "no clip": {"clip": math.inf},
    "clipped to twice the norm": {"clip": 2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 5])
def test_a_correct_step_and_its_twins(steps):
    canaries = Canaries.draw(2000, 2000, clip_norm=1.0)
    coins = flip_coins(2000, random_state=1)
    claim = Claim.of(GaussianEvent(1.0 / math.sqrt(steps)))

    def results(sigma=1.0, clip=1.0):
        releases = noisy_sum(canaries, coins, sigma, clip=clip, steps=steps)
        return audit_canaries(canaries.scores(releases), coins, claim)

    sound = results()
    assert [r.method for r in sound] == [
        f"one-run audit, {form} form" for form in ("classical", "f-DP", "GDP")
    ]
    assert not any(result.refuted for result in sound)
    assert sum(result.alpha for result in sound) == pytest.approx(1e-6)
    assert sound[2].lower_bound > 0.6 * sound[2].claimed
    for name, twin in TWINS.items():
        assert any(result.refuted for result in results(**twin)), name


@pytest.mark.slow
def test_the_forms_follow_the_claim():
    scores, coins = (
        np.random.default_rng(0).normal(size=64),
        flip_coins(64, random_state=0),
    )
    assert len(audit_canaries(scores, coins, Pure(1.0))) == 2
    assert len(audit_canaries(scores, coins, PoissonGaussian(0.5, 1.0))) == 2
    assert len(audit_canaries(scores, coins, GaussianEvent(1.0), forms=["GDP"])) == 1
    with pytest.raises(ValueError, match="at least one form"):
        audit_canaries(scores, coins, Pure(1.0), forms=[])


def test_the_summary_is_a_function_of_releases_canaries_and_coins():
    """Private records in the same sum change it only through the release."""
    canaries, coins = (
        Canaries.draw(200, 300, clip_norm=1.0),
        flip_coins(200, random_state=1),
    )
    (release,) = noisy_sum(canaries, coins, 1.0)
    results = [
        audit_canaries(canaries.scores([release]), coins, GaussianEvent(1.0))
        for _ in range(2)
    ]
    assert results[0] == results[1]
    for result in results[0]:
        # Counts of guesses and bounds alone: no score and no sum is in it.
        numbers = [v for v in result.to_json().values() if isinstance(v, float)]
        assert not set(numbers) & set(release.tolist())


def test_coins_are_fair_and_fresh():
    ours = flip_coins(40_000)
    assert abs(ours.mean() - 0.5) < 0.03
    assert not np.array_equal(ours, flip_coins(40_000))
    assert np.array_equal(flip_coins(9, random_state=2), flip_coins(9, random_state=2))
    assert flip_coins(3).shape == (3,) and ours.dtype == np.bool_


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at most the dimension"):
        Canaries.draw(5, 4, clip_norm=1.0)
    with pytest.raises(ValueError, match="clip_norm"):
        Canaries.draw(4, 4, clip_norm=math.nan)
    canaries = Canaries.draw(4, 4, clip_norm=1.0)
    with pytest.raises(ValueError, match="vectors of 4"):
        canaries.scores([np.zeros(5)])
    with pytest.raises(ValueError, match="vectors of 4"):
        canaries.scores([])
    with pytest.raises(ValueError, match="weights"):
        canaries.scores([np.zeros(4)], [1.0, 2.0])
