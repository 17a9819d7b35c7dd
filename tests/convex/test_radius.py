"""The radius: public, or paid for exactly."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from demur.convex import (
    BallPrototypeClassifier,
    compute_radius_policy,
    private_radius,
)
from demur.convex.sensitivity.radius import (
    _disjoint_pairs,
    within_class_nn_distances,
)
from demur.convex.sensitivity.radius_origin import (
    EstimatedRadius,
    PaidRadius,
    was_estimated,
)
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import BoundSource, clip_rows
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import BudgetExceeded, NotCovered, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms.exponential import (
    base_numerator,
    check_size,
    draw_index,
    integer_weights,
    quantile_scores,
)
from tests.convex.kit import blobs


def test_private_data_are_refused():
    X, y = blobs(50, 3, 2)
    with pytest.raises(NotPrivate, match="private_radius"):
        compute_radius_policy(X, y, norm_bound=2.0)


def test_public_data_give_percentiles_and_bounds():
    X, y = blobs(200, 3, 2)
    policy = compute_radius_policy(X, y, norm_bound=3.0, public=True)
    assert set(policy.radii) == {10.0, 25.0, 50.0, 75.0, 90.0}
    assert policy.radii[10.0] < policy.radii[90.0] < policy.same_label_radius == 6.0
    assert policy.bound.source is BoundSource.DECLARED
    one = X[y == 0]
    gaps = np.linalg.norm(one[:, None] - one[None], axis=2) + 1e9 * np.eye(len(one))
    two = X[y == 1]
    more = np.linalg.norm(two[:, None] - two[None], axis=2) + 1e9 * np.eye(len(two))
    nearest = np.concatenate([gaps.min(axis=0), more.min(axis=0)])
    assert policy.radii[50.0] == pytest.approx(np.median(nearest))
    with pytest.raises(ValueError, match="does not hold"):
        compute_radius_policy(X, y, norm_bound=0.1, public=True)
    unchecked = compute_radius_policy(X, y, norm_bound=0.1, tolerance=None, public=True)
    assert unchecked.bound.value == 0.1 < unchecked.largest_norm


@pytest.mark.parametrize("quantile", [1.0, 0.999])
def test_a_bound_read_off_the_rows_is_estimated(quantile):
    X, y = blobs(200, 3, 2)
    policy = compute_radius_policy(X, y, norm_quantile=quantile, public=True)
    assert policy.bound.source is BoundSource.ESTIMATED
    largest = np.linalg.norm(X, axis=1).max()
    assert policy.largest_norm == largest
    if quantile == 1.0:
        assert policy.bound.value == largest
    else:
        assert policy.bound.value < largest


@pytest.mark.parametrize("norm", [{}, {"norm_bound": 1.0, "norm_quantile": 0.5}])
def test_a_norm_bound_is_declared_or_read_off(norm):
    X, y = blobs(50, 3, 2)
    with pytest.raises(ValueError, match="give norm_bound"):
        compute_radius_policy(X, y, public=True, **norm)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
def test_the_exponential_mechanism_is_pure_exactly(epsilon):
    """Every output's probability, as a fraction, for scores that differ by 1."""
    beta = Fraction(base_numerator(epsilon), 2**32)
    assert float(beta) >= math.exp(-epsilon / 2) * (1 - 1e-15)
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 400, size=12)
        other = np.maximum(scores + rng.integers(-1, 2, size=12), 0)
        one = integer_weights([int(s) for s in scores], epsilon)
        two = integer_weights([int(s) for s in other], epsilon)
        for a, b in zip(one, two, strict=True):
            ratio = Fraction(a, sum(one)) / Fraction(b, sum(two))
            assert ratio <= 1 / beta**2
    # Twin: beta^2 for one step of score (epsilon counted twice) would break it.
    one, two = integer_weights([0, 2], epsilon), integer_weights([2, 0], epsilon)
    assert Fraction(one[0], sum(one)) / Fraction(two[0], sum(two)) > 1 / beta


@pytest.mark.slow
def test_draws_follow_the_weights():
    key = NoiseKey(bytes(range(32)), private=False)
    stream = key.stream("test")
    scores = [0, 1, 2, 8]
    drawn = np.bincount([draw_index(scores, 1.0, stream) for _ in range(6000)])
    weights = np.exp(-0.5 * np.array(scores))
    expected = weights / weights.sum()
    assert np.abs(drawn / 6000 - expected).max() < 0.03


def test_a_paid_radius_is_near_the_median_pair_and_charged():
    X, y = blobs(2000, 3, 2)
    unit = Ball(4.0, space="records")
    ledger = Ledger(Budget(1.0), unit=unit)
    found = private_radius(X, y, epsilon=1.0, norm_bound=2.0, ledger=ledger)
    rng = np.random.default_rng(0)
    rows = X[y == 0]
    pairs = np.linalg.norm(
        rows[rng.permutation(len(rows))] - rows[rng.permutation(len(rows))], axis=1
    )
    assert abs(found.value - np.median(pairs)) < 0.1
    assert ledger.epsilon() == 1.0
    assert "itself a release" in found.statement()
    with pytest.raises(NotCovered):
        found.entry.epsilon(ReplaceOne(), 1e-6)
    with pytest.raises(BudgetExceeded):
        private_radius(X, y, epsilon=0.1, norm_bound=2.0, ledger=ledger)


def _largest_of_the_quantiles(values, groups, quantile, grid):
    """By counting: the smallest candidate with every group's share at or below it."""
    for candidate in grid:
        if all(
            (values[groups == g] <= candidate).sum()
            >= round(quantile * (groups == g).sum())
            for g in np.unique(groups)
        ):
            return candidate
    return grid[-1]


def test_labelwise_aims_at_the_largest_of_the_classes_quantiles():
    rng = np.random.default_rng(0)
    grid = np.linspace(0.0, 2.0, 201)[1:]
    for _ in range(50):
        groups = rng.integers(0, 4, size=200)
        values = rng.uniform(0.0, 0.4, size=200) * (1 + groups)
        quantile = rng.uniform(0.2, 0.8)
        scores = quantile_scores(values, quantile, grid, groups)
        best = _largest_of_the_quantiles(values, groups, quantile, grid)
        at = int(np.flatnonzero(grid == best)[0])
        # Up to there the worst class is behind, and from there on none is.
        assert scores[at] <= min(scores[:at])
        pooled = quantile_scores(values, quantile, grid)
        assert int(np.argmin(pooled)) < at


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pooled", "labelwise"])
def test_a_replacement_changes_every_score_by_at_most_one(strategy):
    """The same pairs on two neighbouring datasets, whatever the row becomes."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0.0, 2.0, 101)[1:]
    most = twin = 0
    for trial in range(60):
        X, y = blobs(60, 3, 3)
        X = clip_rows(X, 1.0).data
        other, row = X.copy(), int(rng.integers(60))
        other[row] = -X[row] if trial % 2 else rng.normal(size=3) / 4
        scores = []
        for rows in (X, clip_rows(other, 1.0).data):
            key = NoiseKey(bytes([trial] * 32), private=False)
            pairs = _disjoint_pairs(rows, y, key.stream("pairs"))
            groups = pairs.groups if strategy == "labelwise" else None
            scores.append(quantile_scores(pairs.distances, 0.5, grid, groups))
        most = max(most, np.abs(np.subtract(*scores)).max())
        # Twin: nearest neighbours share records, and one changes many distances.
        near = [
            quantile_scores(within_class_nn_distances(rows, y), 0.5, grid)
            for rows in (X, other)
        ]
        twin = max(twin, np.abs(np.subtract(*near)).max())
    assert most == 1
    assert twin > 1


def test_a_labelwise_radius_is_larger_and_costs_one_epsilon():
    rng = np.random.default_rng(0)
    y = np.arange(3000) % 3
    X = rng.normal(size=(3000, 2)) * np.array([0.02, 0.05, 0.2])[y][:, None]
    ledger = Ledger(Budget(2.0), unit=Ball(2.0, space="records"))
    pooled, worst = (
        private_radius(
            X, y, epsilon=1.0, norm_bound=1.0, strategy=strategy, ledger=ledger
        )
        for strategy in ("pooled", "labelwise")
    )
    widest = X[y == 2]
    gaps = np.linalg.norm(widest[:500] - widest[500:], axis=1)
    assert abs(worst.value - np.median(gaps)) < 0.05 < worst.value - pooled.value
    assert ledger.epsilon() == 2.0
    assert "(labelwise)" in worst.statement()
    with pytest.raises(ValueError, match="strategy must be"):
        private_radius(X, y, epsilon=1.0, norm_bound=1.0, strategy="mean")


@pytest.mark.slow
def test_a_head_at_a_paid_radius_says_so():
    X, y = blobs(300, 3, 2)
    r = private_radius(X, y, epsilon=1.0, norm_bound=1.0).value
    for radius, says in ((r, True), (round(r / 2, 3), True), (float(r), False)):
        head = BallPrototypeClassifier(epsilon=1.0, radius=radius).fit(X, y)
        assert ("was paid for" in head.entry_.statement()) is says
    again = pickle.loads(pickle.dumps(2 * r))
    assert isinstance(again, PaidRadius) and not was_estimated(again)
    mixed = r + EstimatedRadius(0.123456789)
    assert was_estimated(mixed)
    head = BallPrototypeClassifier(epsilon=1.0, unit=Ball(mixed, space="records"))
    assert "it was estimated from the data" in head.fit(X, y).entry_.statement()


def test_the_candidates_are_public():
    X, y = blobs(100, 3, 2)
    grid = [0.1, 0.2, 0.4, 0.8]
    for seed in range(5):
        found = private_radius(
            X, y, epsilon=0.5, norm_bound=2.0, grid=grid, source=Seeded(seed)
        )
        assert found.value in grid
    with pytest.raises(ValueError, match="grid must be"):
        private_radius(X, y, epsilon=0.5, norm_bound=2.0, grid=[0.0])
    with pytest.raises(ValueError, match="no class has two"):
        private_radius(X[:2], [0, 1], epsilon=0.5, norm_bound=2.0)


def test_weights_that_memory_would_not_hold_are_refused_before_the_charge():
    with pytest.raises(ValueError, match="GiB"):
        check_size(200, 1e-5)
    check_size(200, 1e-2)


@pytest.mark.parametrize(
    "grid", [[math.inf], [math.nan], [0.0], [], [-1.0, 0.5], ["wide"], [[0.1, 0.2]]]
)
def test_a_grid_of_no_radii_is_refused(grid):
    X, y = blobs()[:2]
    ledger = Ledger(Budget(1.0), unit=Ball(2.0, space="records"))
    with pytest.raises(ValueError, match="grid"):
        private_radius(X, y, epsilon=0.5, norm_bound=1.0, ledger=ledger, grid=grid)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "change",
    [
        {"X": np.full((200, 4), np.nan)},
        {"X": np.zeros(3)},
        {"y": np.zeros(7)},
        {"y": np.full(200, np.nan)},
        {"y": np.arange(200)},
        {"epsilon": 0.0},
        {"epsilon": 1e-6},
        {"quantile": 1.0},
        {"norm_bound": math.inf},
        {"space": ""},
        {"label": ""},
        {"ledger": "ledger.db"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_bad_input_is_refused_before_the_charge(change):
    X, y = blobs()
    ledger = Ledger(Budget(1.0), unit=Ball(2.0, space="records"))
    given = {"X": X, "y": y, "epsilon": 0.5, "norm_bound": 1.0, "ledger": ledger}
    with pytest.raises((ValueError, TypeError)):
        private_radius(**(given | change))
    assert ledger.entries() == []


def test_no_error_of_a_paid_radius_tells_of_the_records():
    X, y = blobs(40, 3, 2)
    words = "a row of finite numbers with a label"
    paid = private_radius(X, y, epsilon=1.0, norm_bound=1.0)
    assert words in " ".join(paid.entry.declaration.assumptions)
    broken = X.copy()
    broken[:7] = np.nan
    with pytest.raises(ValueError, match="some rows hold NaN.*Nothing was spent"):
        private_radius(broken, y, epsilon=1.0, norm_bound=1.0)
    labels = np.array(["SECRET", None] * 20, dtype=object)
    with pytest.raises(ValueError, match="y must be labels of one type") as refused:
        private_radius(X, labels, epsilon=1.0, norm_bound=1.0)
    assert "SECRET" not in str(refused.value)
