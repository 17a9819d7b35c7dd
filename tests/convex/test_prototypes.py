"""Prototypes: exact movement, noise by class, and noise-aware distances."""

import math

import numpy as np
import pytest

from demur import Promise
from demur.convex import BallPrototypeClassifier
from demur.convex.heads.prototypes import plan_prototypes
from demur.convex.rows.class_sums import exact_sums
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.errors import NotCovered
from tests.convex.kit import blobs, into_ball


def plan_for(counts, *, lam=0.0, radius=0.3, epsilon=1.0, step=2.0**-44, d=3):
    return plan_prototypes(
        np.asarray(counts),
        Promise(Ball(radius, space="records"), epsilon, 1e-6),
        dimension=d,
        lam=lam,
        bound=Bound(1.0, BoundSource.ENFORCED),
        step=step,
    )


def test_sums_are_exact_on_their_grid():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (5000, 3)), rng.integers(4, size=5000)
    sums, step = exact_sums(X, y, 4, 2.0)
    snapped = np.rint(X / step)
    for c in range(4):
        for j in range(3):
            assert sums[c, j] / step == math.fsum(snapped[y == c, j])
    assert np.allclose(sums, [X[y == c].sum(axis=0) for c in range(4)], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.01, 1.0])
def test_every_pair_is_one_shift_of_at_most_mu(lam):
    """Movement over sigma, class by class, is within the declared mu, and meets it."""
    rng = np.random.default_rng(1)
    mu = gaussian_mu(1.0, 1e-6)
    counts = np.array([1, 2, 5, 40])
    y = np.repeat(np.arange(4), counts)
    largest = 0.0
    for trial in range(40):
        X = np.array([into_ball(v, 1.0) for v in rng.normal(size=(len(y), 3))])
        j = trial % len(y)
        other = X.copy()
        away = rng.normal(size=3)
        X[j] *= 0.5
        other[j] = X[j] + 0.3 * away / np.linalg.norm(away)
        sums, step = exact_sums(X, y, 4, 1.0)
        moved, _ = exact_sums(other, y, 4, 1.0)
        plan = plan_for(counts, lam=lam, step=step)
        assert plan.denominators is not None
        sigma = plan.width / plan.denominators
        shift = (sums - moved) / plan.denominators[:, None] / sigma[:, None]
        largest = max(largest, float(np.linalg.norm(shift)))
        # Twin: noise for the largest class everywhere would be far too little.
        twin = (sums - moved) / plan.denominators[:, None] / sigma.min()
        if y[j] == 0:
            assert np.linalg.norm(twin) > 2 * mu
    assert mu * (1 - 1e-5) <= largest <= mu


def test_exact_gdp_at_the_ball_and_silence_beyond():
    plan = plan_for([10, 100, 7])
    event = plan.mechanism.event(Ball(0.3, space="records"))
    assert isinstance(event, GaussianEvent)
    mu = gaussian_mu(1.0, 1e-6)
    assert mu * (1 - 1e-5) <= 1 / event.multiplier <= mu
    with pytest.raises(NotCovered):
        plan.mechanism.event(ReplaceOne())


def test_the_estimator_names_what_is_open():
    X, y = blobs(300, 4, 3)
    head = BallPrototypeClassifier(epsilon=2.0, radius=0.2).fit(X, y)
    statement = head.privacy_.statement(records=300)
    assert "number of records of each class" in statement and "labels" in statement
    assert head.privacy_.full_replacement_epsilon is None
    assert head.privacy_.epsilon_at(0.2) <= 2.0 < head.privacy_.same_label_epsilon
    assert head.score(X, y) > 0.8
    assert np.shape(head.privacy_.sigma) == (3,)
