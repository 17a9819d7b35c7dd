"""Noisy gradient descent: one charge for all steps, fresh noise in each."""

import math

import numpy as np
import pytest

from demur import Promise
from demur.convex import (
    BallLogisticRegression,
    BallSoftmaxClassifier,
    DataChanged,
    HeadForm,
    objective,
)
from demur.convex.heads.noisy_gd import Schedule, descend, plan_descent
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu
from demur.core.adjacency import Ball
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from tests.convex.kit import blobs, into_ball, largest_difference

UNIT = Ball(0.3, space="records")


FREE = HeadForm("softmax", lam=0.0, num_classes=3)


def plan_for(n=120, steps=10, lam=0.0):
    form = HeadForm("softmax", lam=lam, norm_bound=1.5, num_classes=3)
    promise = Promise(UNIT, epsilon=1.0, delta=1e-6)
    return plan_descent(form, promise, Schedule(steps), n=n, dimension=15)


@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("steps", [1, 10, 300])
def test_all_steps_together_meet_the_target(lam, steps):
    plan = plan_for(lam=lam, steps=steps)
    event = plan.declaration().cost.at(UNIT)
    assert isinstance(event, GaussianEvent)
    mu = gaussian_mu(1.0, 1e-6)
    assert mu * (1 - 1e-5) <= 1 / event.multiplier <= mu
    # Twin: one step's cost, declared for all, would be sqrt(steps) too little.
    one = plan.step.event(UNIT)
    assert isinstance(one, GaussianEvent)
    assert one.multiplier == pytest.approx(event.multiplier * math.sqrt(steps))


def test_a_step_moves_by_at_most_its_sensitivity():
    rng = np.random.default_rng(0)
    X, y = blobs(30, 4, 3)
    X = np.array([into_ball(x, 1.5) for x in X])
    plan = plan_for(n=30)
    limit = plan.step.sensitivity.at(UNIT)
    largest = 0.0
    for _ in range(200):
        other = X.copy()
        other[3] = into_ball(X[3] + into_ball(rng.normal(size=4), 0.3), 1.5)
        theta = rng.normal(size=(3, 5)) * 10 ** rng.uniform(-2, 2)
        one = objective(FREE, X, y).value_and_gradient(theta)[1]
        two = objective(FREE, other, y).value_and_gradient(theta)[1]
        largest = max(largest, float(np.linalg.norm(one - two)))
    assert 0.1 * limit < largest <= limit


def test_noise_is_fresh_in_every_step_and_paid_for_once():
    X, y = blobs(120, 4, 3)
    plan = plan_for(steps=2)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    seen = []
    real = type(plan.step).apply

    def spy(self, value, key, **named):
        noisy = real(self, value, key, **named)
        seen.append(noisy - value)
        return noisy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(plan.step), "apply", spy)
        stated = objective(FREE, X, y)
        release = descend(plan, stated, ledger=ledger, label="gd", source=Seeded(1))
    first, second = (noise.reshape(-1) for noise in seen)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.9
    assert np.linalg.norm(first - second) > plan.step.sigma
    assert len(ledger.entries()) == 1 and release.value.shape == (3, 5)
    with pytest.raises(BudgetExceeded):
        descend(plan, stated, ledger=ledger, label="again")


@pytest.mark.parametrize("steps", [1, 2])
def test_one_step_is_paid_for_and_released(steps):
    """With one draw the key compares its input: the data, not a gradient of them."""
    X, y = blobs(40, 3, 2)
    ledger = Ledger(Budget(1.0, 1e-6), unit=Ball(0.2, space="records"))
    head = BallLogisticRegression(
        radius=0.2, mechanism="noisy_gd", steps=steps, ledger=ledger
    )
    head.fit(X, y)
    assert 0.99 < ledger.epsilon() <= 1.0
    assert ledger.commit_of(ledger.entries()[0]) and np.isfinite(head.coef_).all()


def test_without_a_ledger_it_is_not_recorded():
    X, y = blobs(120, 4, 3)
    release = descend(plan_for(steps=2), objective(FREE, X, y))
    assert "Not recorded" in release.statement()
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        descend(plan_for(steps=2), objective(FREE, X, y), ledger="ledger.db")


def test_the_estimator_learns_without_lam():
    X, y = blobs(600, 4, 3, spread=0.2)
    head = BallSoftmaxClassifier(
        epsilon=8.0,
        radius=0.3,
        lam=0.0,
        norm_bound=1.5,
        mechanism="noisy_gd",
        steps=30,
        learning_rate=3.0,
        classes=[0, 1, 2],
    ).fit(X, y)
    assert head.score(X, y) > 0.8
    assert head.privacy_.mechanism == "noisy_gd"
    assert head.privacy_.epsilon_at(0.3) <= 8.0
    full = head.privacy_.full_replacement_epsilon
    assert full is not None and full > head.privacy_.same_label_epsilon


def test_rows_that_change_while_it_descends_release_nothing():
    X, y = blobs(120, 4, 3)
    stated = objective(FREE, X, y)

    def change(step, share):
        stated.X[0] = 0.0

    with pytest.raises(DataChanged, match="stays spent"):
        descend(plan_for(steps=3), stated, progress=change)


# -- a public bound on theta ----------------------------------------------------------


def bounded_plan(theta_radius, radius=0.2):
    form = HeadForm("logistic", lam=0.0, norm_bound=1.0)
    promise = Promise(Ball(radius, space="records"), epsilon=1.0, delta=1e-6)
    return plan_descent(
        form, promise, Schedule(5, theta_radius=theta_radius), n=1000, dimension=4
    )


def test_a_bound_on_theta_makes_a_small_radius_worth_something():
    """Without lam and without a bound, a move by 0.2 costs what any move costs."""
    free, whole = bounded_plan(None).step.sigma, bounded_plan(None, 2.0).step.sigma
    assert 0.7 * whole < free <= whole
    assert bounded_plan(2.0).step.sigma < 0.25 * whole
    assert bounded_plan(1e9).step.sigma == free


@pytest.mark.parametrize("theta_radius", [0.5, 2.0])
def test_no_theta_inside_the_bound_moves_a_gradient_further(theta_radius):
    limit = bounded_plan(theta_radius).step.sensitivity.at(Ball(0.2, space="records"))
    reached = largest_difference("logistic", 2, 0.2, theta_radius, restarts=4) / 1000
    assert 0.7 * limit < reached <= limit
    # Twin: with a theta outside, as a step without the projection would reach.
    outside = largest_difference("logistic", 2, 0.2, 4 * theta_radius, restarts=4)
    assert outside / 1000 > 1.2 * limit


def test_every_iterate_stays_inside_the_bound():
    X, y = blobs(300, 4, 2)
    for theta_radius in (0.3, 3.0):
        head = BallLogisticRegression(
            epsilon=0.2,
            radius=0.3,
            lam=0.0,
            mechanism="noisy_gd",
            learning_rate=20.0,
            steps=20,
            theta_radius=theta_radius,
        )
        head.fit(X, y)
        norm = math.hypot(np.linalg.norm(head.coef_), head.intercept_[0])
        assert norm <= theta_radius * (1 + 1e-12)
    with pytest.raises(ValueError, match="theta_radius is for mechanism='noisy_gd'"):
        head.set_params(mechanism="output", lam=0.1).fit(X, y)
    with pytest.raises(ValueError, match="theta_radius must be positive"):
        head.set_params(mechanism="noisy_gd", theta_radius=-1.0).fit(X, y)
