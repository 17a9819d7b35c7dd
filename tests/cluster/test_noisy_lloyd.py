"""Central k-means: the sensitivity by brute force, the charge, a broken twin."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from demur.cluster import CentralKMeans, PrivateKMeans
from demur.cluster.noisy_lloyd import block_sums, plan_lloyd, rounded_points
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, ZeroOut
from demur.core.errors import NotCovered
from demur.core.promise import Promise
from demur.ledger import Budget, Ledger
from demur.mechanisms import GridResponse


def worst(d, weight, present):
    """The largest move of the blocks over corners, by the definition."""
    rng = np.random.default_rng(d)
    centers = rng.random((3, d))
    corners = rounded_points(np.array(np.meshgrid(*[[0.0, 1.0]] * d)).reshape(d, -1).T)
    rest = rounded_points(rng.random((20, d)))
    # Close to a border between two clusters: a small move changes the cluster.
    some = np.vstack([corners, centers, centers[:2].mean(axis=0, keepdims=True)])

    def blocks(*extra):
        return block_sums(np.vstack([rest, *extra]), centers, weight)

    base = [blocks(x[None]) for x in rounded_points(some)]
    if present:
        empty = blocks()
        return max(float(np.linalg.norm(one - empty)) for one in base)
    return max(float(np.linalg.norm(a - b)) for a in base for b in base)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_no_record_moves_the_sums_further_than_is_charged(d):
    plan = plan_lloyd(
        Promise(ReplaceOne(), 1.0, 1e-6), clusters=3, dimension=d, steps=4
    )
    for unit, present in ((ReplaceOne(), False), (AddOrRemoveOne(), True)):
        of_step = plan.step.declaration().cost.at(unit)
        assert isinstance(of_step, GaussianEvent)
        charged = plan.step.sigma / of_step.multiplier
        found = worst(d, plan.count_scale, present)
        assert 0.6 * charged < found <= charged
        # The twin counts with the weight 1 + sqrt(d) and is charged no more for it.
        assert worst(d, 1.0 + math.sqrt(d), present) > charged
        # All steps together: sqrt(T) times the mu of one.
        whole = plan.declaration().cost.at(unit)
        assert isinstance(whole, GaussianEvent)
        assert whole.multiplier <= of_step.multiplier / 2.0


def test_the_noise_is_the_least_at_every_unit():
    sigma = {}
    for unit in (ReplaceOne(), AddOrRemoveOne(), Ball(0.1, space="cube")):
        promise = Promise(unit, 1.0, 1e-6)
        plan = plan_lloyd(promise, clusters=2, dimension=4, steps=3)
        event = plan.declaration().cost.at(unit)
        assert isinstance(event, GaussianEvent)
        mu = gaussian_mu(1.0, ideal_delta(1e-6))
        assert (1 - 1e-6) * mu < 1.0 / event.multiplier <= mu
        sigma[type(unit)] = plan.step.sigma
    # Presence moves the blocks by sqrt(d / 2), a replacement by sqrt(d).
    assert sigma[ReplaceOne] == pytest.approx(math.sqrt(2) * sigma[AddOrRemoveOne])
    assert sigma[ReplaceOne] == sigma[Ball]


def test_a_second_fit_forgets_the_names_and_rows_are_transformed():
    X = np.random.default_rng(0).random((50, 2))
    found = CentralKMeans(2, random_state=0).fit(pd.DataFrame(X, columns=["a", "b"]))
    assert list(found.feature_names_in_) == ["a", "b"]
    found.fit(X)
    assert not hasattr(found, "feature_names_in_")
    gaps = found.transform(X)
    assert gaps.shape == (50, 2)
    assert (gaps.argmin(axis=1) == found.predict(X)).all()
    for wrong, error in (({"unit": "x"}, TypeError), ({"steps": 10**9}, ValueError)):
        with pytest.raises(error, match="Nothing was spent"):
            CentralKMeans(2, **wrong).fit(X)


def test_a_fit_charges_what_it_says_and_is_what_was_paid_for():
    rng = np.random.default_rng(0)
    true = np.array([[0.2, 0.2], [0.8, 0.5]])
    X = np.clip(np.repeat(true, 2000, axis=0) + 0.03 * rng.normal(size=(4000, 2)), 0, 1)
    ledger = Ledger(Budget(1.0, 1e-6), unit=ReplaceOne())
    found = CentralKMeans(2, epsilon=1.0, random_state=0, ledger=ledger).fit(X)
    assert 0.99 < ledger.epsilon() <= 1.0 and len(ledger.entries()) == 1
    gaps = np.linalg.norm(true[:, None] - found.cluster_centers_, axis=2)
    # A coordinate has noise of 0.007: 0.02 was exceeded once in 40 fits.
    assert gaps.min(axis=1).max() < 0.05
    assert found.counts_.sum() == pytest.approx(4000, rel=0.1)
    assert not hasattr(found, "labels_") and not hasattr(found, "inertia_")
    # Balls cost what a replacement costs: a small move may change the cluster.
    ball = CentralKMeans(2, epsilon=1.0, unit=Ball(0.01, space="cube"), random_state=0)
    assert ball.fit(X).entry_.promises[0].epsilon <= 1.0


@pytest.mark.parametrize(
    ("X", "error", "text"),
    [
        ([[0.5, 1.5]], ValueError, "unit cube"),
        (csr_matrix([[0.5, 0.5]]), TypeError, "sparse"),
        ([[0.5, float("nan")]], ValueError, "finite"),
    ],
)
def test_bad_points_are_refused_before_the_charge(X, error, text):
    ledger = Ledger(Budget(1.0, 1e-6), unit=ReplaceOne())
    with pytest.raises(error, match=text):
        CentralKMeans(1, ledger=ledger).fit(X)
    assert not len(ledger.entries())


def test_a_unit_without_a_price_is_refused():
    with pytest.raises(NotCovered):
        CentralKMeans(1, unit=ZeroOut()).fit([[0.5, 0.5]])


def test_a_mechanism_that_the_decoder_does_not_know_costs_nothing():
    ledger = Ledger(Budget(4.0), unit=ReplaceOne(), filter="pure")
    grid = GridResponse(epsilon=4.0, dimension=2, bits=3)
    with pytest.raises(TypeError, match=r"'plain'\. Nothing was spent"):
        PrivateKMeans(1, mechanism=grid, ledger=ledger).fit([[0.5, 0.5]])
    assert not len(ledger.entries())
