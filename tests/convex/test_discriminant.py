"""Discriminant analysis: its sensitivity, its numbers by hand, and its habits."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from demur.convex import (
    BallDiscriminantClassifier,
    BallPrototypeClassifier,
    load_head,
    save_head,
)
from demur.convex.heads.discriminant import plan_discriminant
from demur.convex.rows.class_sums import exact_sums
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource, clip_rows
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded, NotCovered
from demur.core.promise import Promise
from demur.ledger import Budget, Ledger
from demur.preprocessing.second_moments import second_moment_bound
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

UNIT = Ball(0.3, space="records")


def moved(p: float, q: float, cosine: float) -> tuple[float, float]:
    """|x - x'| and |xx^T - x'x'^T|_F for rows of norms p and q."""
    x = np.array([p, 0.0])
    other = q * np.array([cosine, math.sqrt(1.0 - cosine**2)])
    apart = float(np.linalg.norm(x - other))
    return apart, float(np.linalg.norm(np.outer(x, x) - np.outer(other, other)))


def test_the_bound_holds_for_every_pair_and_is_attained_at_every_radius():
    grid = np.linspace(0.0, 1.0, 26)
    pairs = [moved(p, q, c) for p in grid for q in grid for c in 2 * grid - 1]
    assert all(m <= second_moment_bound(r, 1.0) + 1e-12 for r, m in pairs)
    # Twin: two rows of full length alone are not the worst for a small radius.
    turned = [(r, r * math.sqrt(max(2 - r * r / 2, 0.0))) for r, _ in pairs]
    assert any(m > 1.1 * t for (_, m), (_, t) in zip(pairs, turned, strict=True))
    for r in (0.1, 0.5, 2 / 3, 1.0, 1.3):
        shortened = moved(1.0, 1.0 - r, 1.0)[1] if r <= 1 else 0.0
        rotated = moved(1.0, 1.0, 1.0 - r * r / 2)[1]
        best = second_moment_bound(r, 1.0)
        assert max(shortened, rotated) == pytest.approx(best, rel=1e-12)
    assert moved(1.0, 1.0, 0.0)[1] == pytest.approx(second_moment_bound(2.0, 1.0))
    assert second_moment_bound(0.6, 2.0) == pytest.approx(
        4 * second_moment_bound(0.3, 1.0)
    )


def plan_of(X, y, unit=UNIT, epsilon=1.0):
    classes = int(y.max()) + 1
    sums, step = exact_sums(X, y, classes, 1.0)
    counts = np.bincount(y)
    plan = plan_discriminant(
        counts,
        Promise(unit, epsilon, 1e-6),
        dimension=X.shape[1],
        bound=Bound(1.0, BoundSource.ENFORCED),
        step=step,
    )
    return plan, plan.value(sums, X, counts)


@pytest.mark.parametrize("unit", [UNIT, ReplaceOne()])
def test_without_noise_it_is_linear_discriminant_analysis(unit):
    X, y = blobs(900, 5, 3)
    X = clip_rows(X, 1.0).data
    # No budget is this large; the noise that is left is far below the ridge.
    plan, value = plan_of(X, y, unit, epsilon=400.0)
    coef, intercept, counts = plan.read(value, "counts")
    np.testing.assert_allclose(counts, np.bincount(y), atol=0.2)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(X, y)
    ours = X @ coef.T + intercept
    theirs = X @ peer.coef_.T + peer.intercept_
    agree = np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))
    assert agree > 0.98
    gaps = [s[:, 1:] - s[:, :1] for s in (ours, theirs)]
    assert np.corrcoef(gaps[0].ravel(), gaps[1].ravel())[0, 1] > 0.999


def test_one_vector_holds_sums_and_moments_and_moves_as_declared():
    X, y = blobs(60, 3, 3)
    X = clip_rows(X, 1.0).data
    X[0] = [1.0, 0.0, 0.0]
    plan, value = plan_of(X, y)
    assert value.size == 3 * 3 + 6
    other = X.copy()
    other[0] = [0.7, 0.0, 0.0]
    shift = np.linalg.norm(plan_of(other, y)[1] - value)
    declared = plan.mechanism.sensitivity.at(UNIT)
    exact = math.hypot(0.3, plan.scale * 0.3 * 1.7)
    assert shift == pytest.approx(exact, rel=1e-9) and shift <= declared
    assert declared == pytest.approx(exact, rel=1e-6)
    share = (plan.scale * 0.3 * 1.7) ** 2 / exact**2
    assert share == pytest.approx(0.3, rel=1e-9)
    with pytest.raises(NotCovered):
        plan.mechanism.sensitivity.at(ReplaceOne())


def test_it_uses_what_class_means_do_not_see():
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    noise = rng.normal(size=4000)
    X = np.stack([0.5 * noise, 0.5 * noise + 0.1 * (2 * y - 1)], axis=1)
    X = clip_rows(X + 0.02 * rng.normal(size=X.shape), 1.0).data
    kinds = (BallDiscriminantClassifier, BallPrototypeClassifier)
    found, means = (
        np.mean([kind(epsilon=2.0, radius=0.3).fit(X, y).score(X, y) for _ in range(5)])
        for kind in kinds
    )
    assert found > 0.9 > means + 0.2


def test_the_estimator_charges_declines_saves_and_clones(tmp_path):
    X, y = blobs(300, 3, 2)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    head = BallDiscriminantClassifier(radius=0.3, ledger=ledger).fit(X, y)
    assert 0.99 < ledger.epsilon() <= 1.0
    assert head.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(300))
    assert np.array_equal(head.predict(X), head.decision_function(X) > 0)
    with pytest.raises(BudgetExceeded, match="would have fitted"):
        clone(head).fit(X, y)
    save_head(head, tmp_path / "head.npz")
    again = load_head(tmp_path / "head.npz")
    np.testing.assert_array_equal(again.predict_proba(X), head.predict_proba(X))
    assert pickle.loads(pickle.dumps(head)).coef_.shape == (2, 3)
    with pytest.raises(ValueError, match="prior must be"):
        BallDiscriminantClassifier(radius=0.3, prior="none").fit(X, y)


def test_a_class_without_records_is_not_refused():
    X, y = blobs(120, 3, 2)
    for unit in (UNIT, ReplaceOne()):
        head = BallDiscriminantClassifier(
            unit=unit, classes=[0, 1, 2], epsilon=8.0, source=Seeded(1)
        ).fit(X, y)
        assert np.isfinite(head.predict_proba(X)).all()
