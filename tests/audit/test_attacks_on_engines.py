"""Membership attacks on real releases of each engine, beside their bounds.

Each attack knows all records but one, scores by the claimed likelihood, and comes close
to the bound of the entry that was charged. The twin is the same attack beside the bound
of a smaller claim, which it exceeds.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from demur import Ball, Budget, Erasure, Ledger, ReplaceOne, Seeded
from demur.audit import Canaries, flip_coins
from demur.audit.attacks import (
    attack_gains,
    direction_scores,
    membership,
    report_scores,
)
from demur.convex import BallPrototypeClassifier
from demur.core.accounting.events import Pure
from demur.mechanisms import BPM, GaussianReports
from demur.training import dp_sgd, gradient_run, step_weights
from demur.unlearning import MemoryPair, PrivacyOdometer
from tests.audit.twins import key_of

pytestmark = pytest.mark.slow

FALSE = 0.1


def beside_its_bound(scores, gains, careless, least):
    """Close to the bound, and beyond it by chance alone; beyond the careless one."""
    there, absent = scores
    attempt = membership(there, absent, gains, false_positives=FALSE)
    # Both shares are drawn: the threshold's false positives and the hits, at 1e-6.
    rate = stats.binom.ppf(1 - 5e-7, len(absent), FALSE) / len(absent)
    most = gains.true_positives(min(1.0, rate))
    assert attempt.success * len(there) <= stats.binom.ppf(1 - 5e-7, len(there), most)
    assert attempt.success >= least * attempt.bound
    wrong = membership(there, absent, careless, false_positives=FALSE)
    assert wrong.success > wrong.bound + 0.1


def test_a_head():
    unit, radius = Ball(0.5, space="records"), 0.5
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    rows = rng.normal(size=(30, 2)) * 0.1
    moved = rows.copy()
    moved[-1] += (0.3, 0.4)

    def fitted(data, seed):
        return BallPrototypeClassifier(
            epsilon=10.0,
            delta=1e-6,
            radius=radius,
            norm_bound=1.0,
            classes=(0, 1, 2),
            source=Seeded(seed),
        ).fit(data, labels)

    there = [fitted(moved, seed) for seed in range(100)]
    absent = [fitted(rows, 1000 + seed) for seed in range(100)]
    direction = np.zeros((3, 2))
    direction[labels[-1]] = (0.3, 0.4)
    scores = [
        direction_scores(
            [head.prototypes_ for head in side], direction, np.zeros((3, 2))
        )
        for side in (there, absent)
    ]
    gains = attack_gains(there[0].privacy_.entry, unit)
    beside_its_bound(scores, gains, attack_gains(Pure(0.5)), 0.8)


def test_a_plan():
    plan = dp_sgd(
        iterations=4,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        sampling_prob=1.0,
        noise_multiplier=1.0,
    ).make()
    canaries = Canaries.draw(1000, dimension=1024, clip_norm=1.0)
    coins = flip_coins(1000, random_state=3)
    run = gradient_run(plan, {"w": jnp.zeros(1024)})
    scores = canaries.scores(run(canaries.rows(coins)), step_weights(plan))
    gains = attack_gains(plan.event(), plan.unit)
    beside_its_bound(
        (scores[coins], scores[~coins]), gains, attack_gains(Pure(0.5)), 0.9
    )


@pytest.mark.parametrize("mechanism", [BPM(6.0, 0.4, 1), GaussianReports(12.0, 1)])
def test_reports(mechanism):
    point, other = np.array([0.2]), np.array([0.6])
    unit = Ball(0.4, space="cube")
    reports = [
        mechanism.apply(np.tile(at, (2000, 1)), key_of(Seeded(seed)))
        for seed, at in enumerate((point, other))
    ]
    scores = [report_scores(each, mechanism, point, other) for each in reports]
    gains = attack_gains(mechanism.declaration().cost.at(unit), unit)
    # The densities of two reports at BPM's bound differ on a part of the cube alone.
    beside_its_bound(scores, gains, attack_gains(Pure(0.3)), 0.3)


def test_a_deletion():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    # Targets out of reach: there a record moves the model as far as it can.
    targets = 20.0 * np.sign(rows @ np.linspace(1.0, -0.5, 4))
    blank = rows.copy()
    blank[25] = 0.0

    def left(data, seed, silent=False):
        ledger = Ledger(Budget(6.0, 1e-5), unit=Erasure())
        odometer = PrivacyOdometer(
            6.0, 1e-5, 0.1, gamma=4.0, source=Seeded(seed), ledger=ledger
        )
        model = MemoryPair(4, odometer, mode="ogd")
        for row, target in zip(data[:10], targets[:10], strict=True):
            model.calibrate_step(row, target)
        constants = model.finalize_calibration(1.0)
        for i in range(10, 30):
            model.insert(data[i], targets[i], record_id=f"r{i}")
        odometer.finalize_with(constants, T_estimate=100_000)
        exact = np.array(model.theta) if silent else None
        model.delete(data[25], targets[25], record_id="r25")
        return exact if silent else model.theta, ledger

    exact = [left(data, 0, silent=True)[0] for data in (rows, blank)]
    there = [left(rows, seed) for seed in range(100)]
    absent = [left(blank, 1000 + seed) for seed in range(100)]
    scores = [
        direction_scores([model for model, _ in side], *exact)
        for side in (there, absent)
    ]
    gains = attack_gains(there[0][1], Erasure())
    beside_its_bound(scores, gains, attack_gains(Pure(0.02)), 0.3)


def test_scores_of_equal_values_are_refused():
    with pytest.raises(ValueError, match="two different values"):
        direction_scores([[1.0]], [0.0], [0.0])
    assert ReplaceOne().covers(Ball(0.4, space="cube"))
