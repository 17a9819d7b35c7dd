"""Weights of rows and classes: the same minimiser, and noise for the largest weight."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.linear_model import LogisticRegression

from demur.convex import (
    BallLogisticRegression,
    BallSoftmaxClassifier,
    BallSVC,
    HeadForm,
    ParquetRows,
    minimise,
    objective,
)
from demur.convex.heads.row_weights import row_weights
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import clip_rows
from demur.ledger import Budget, Ledger
from tests.convex.kit import LOSSES, blobs

pytestmark = pytest.mark.slow

X, Y = blobs(120, 3, 2)
UNIT = Ball(0.3, space="records")


def weights_of(y, classes=2, unit=UNIT, sample=None, by_class=None, bound=1.0):
    return row_weights(
        sample, by_class, bound, classes=np.arange(classes), y=y, unit=unit
    )


@pytest.mark.parametrize(("loss", "classes"), LOSSES[:5])
def test_whole_weights_are_repeated_records(loss, classes):
    rows, y = blobs(60, 3, classes)
    rows = clip_rows(rows, 1.0).data
    times = np.random.default_rng(0).integers(0, 4, size=60)
    weights = weights_of(y, classes, sample=times, bound=3.0)
    assert weights is not None and weights.largest == 3.0
    form = HeadForm(loss, lam=0.3 / 3.0, norm_bound=1.0, num_classes=classes)
    weighted = minimise(objective(form, rows, y, weights.shares)).theta
    repeated = HeadForm(loss, lam=0.3 * 60 / times.sum(), num_classes=classes)
    again = objective(repeated, np.repeat(rows, times, axis=0), np.repeat(y, times))
    assert weighted == pytest.approx(minimise(again).theta, abs=1e-7)


def test_class_weights_are_those_of_scikit_learn():
    rows, y = blobs(200, 3, 3)
    keep = (y > 0) | (np.arange(200) < 60)
    rows, y = clip_rows(rows[keep], 1.0).data, y[keep]
    for given in ("balanced", {0: 5.0, 2: 0.5}):
        weights = weights_of(y, 3, by_class=given)
        assert weights is not None
        lam = 0.01
        form = HeadForm(
            "softmax", lam=lam / weights.largest, num_classes=3, bias_scale=0.0
        )
        ours = minimise(objective(form, rows, y, weights.shares)).theta
        theirs = LogisticRegression(
            C=1.0 / (lam * len(y)),
            class_weight=given,
            fit_intercept=False,
            tol=1e-10,
            max_iter=10_000,
        ).fit(rows, y)
        assert ours == pytest.approx(theirs.coef_, abs=1e-5)


@pytest.mark.parametrize(("loss", "classes"), LOSSES[:5])
@pytest.mark.parametrize("unit", [UNIT, ReplaceOne()])
def test_real_minimisers_with_weights_move_within_what_is_charged(loss, classes, unit):
    """The heaviest record moves, or is replaced with its label and its weight."""
    rng = np.random.default_rng(1)
    heads = {"softmax": BallSoftmaxClassifier, "logistic": BallLogisticRegression}
    rows, y = blobs(12, 2, classes)
    rows = clip_rows(rows, 1.0).data
    kind = heads.get(loss, BallSVC)
    extra = {} if loss in heads else {"loss": loss}
    head = kind(unit=unit, lam=0.5, weight_bound=5.0, classes=range(classes), **extra)
    sample = rng.uniform(0.0, 5.0, size=12)
    sample[3] = 5.0
    delta = head.fit(rows, y, sample).privacy_.sensitivity.total
    public = "weights of the records" in head.privacy_.statement()
    assert public == isinstance(unit, Ball)
    form = HeadForm(loss, lam=0.1, norm_bound=1.0, num_classes=classes)
    shares = weights_of(y, classes, sample=sample, bound=5.0).shares
    exact = minimise(objective(form, rows, y, shares)).theta
    largest = 0.0
    for trial in range(40):
        other, labels, weight = rows.copy(), y.copy(), shares.copy()
        away = rng.normal(size=2)
        if isinstance(unit, Ball):
            other[3] += 0.3 * away / np.linalg.norm(away)
        else:
            other[3] = away if trial % 4 else -rows[3]
            labels[3] = trial % classes
            weight[3] = trial % 2
        other = clip_rows(other, 1.0).data
        moved = minimise(objective(form, other, labels, weight)).theta
        largest = max(largest, float(np.linalg.norm(moved - exact)))
    # The slope of the squared hinge has no bound but that of the smallest lam.
    assert (0.03 if loss == "squared_hinge" else 0.15) * delta < largest <= delta
    # Twin: the noise of weights up to 1.
    if isinstance(unit, Ball):
        small = kind(unit=unit, lam=0.5, classes=range(classes), **extra).fit(rows, y)
        assert delta > 2.0 * small.privacy_.sensitivity.total


def test_weights_above_the_bound_are_cut():
    cut = weights_of(Y, sample=np.full(120, 7.0), bound=2.0)
    assert cut is not None and cut.largest == 2.0 and (cut.shares == 1.0).all()


@pytest.mark.parametrize(
    ("given", "weights", "words"),
    [
        ({}, np.ones(3), "one number for each"),
        ({}, np.full(120, -1.0), "finite numbers from 0"),
        ({}, np.where(np.arange(120) == 3, np.nan, 1.0), "finite numbers from 0"),
        ({"weight_bound": 0.0}, None, "weight_bound must be positive"),
        ({"class_weight": "equal"}, None, "class_weight must be"),
        ({"class_weight": {0: -1.0}}, None, "class_weight of 0 must be"),
        ({"class_weight": {0: 0.0, 1: 0.0}}, None, "largest_class_weight"),
        (
            {"class_weight": "balanced", "unit": ReplaceOne(), "classes": [0, 1]},
            None,
            "shows the class counts",
        ),
    ],
)
def test_wrong_weights_cost_nothing(given, weights, words):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    parameters = {"unit": UNIT, "ledger": ledger} | given
    with pytest.raises((ValueError, TypeError), match=words) as refused:
        BallLogisticRegression(**parameters).fit(X, Y, weights)
    assert "othing was" in str(refused.value) and not ledger.entries()


def test_weights_are_for_rows_in_memory(tmp_path):
    pyarrow.parquet.write_table(
        pa.table({"x": list(X), "y": Y}), tmp_path / "t.parquet"
    )
    head = BallLogisticRegression(radius=0.3, class_weight={0: 2.0})
    with pytest.raises(ValueError, match="rows in memory"):
        head.fit(ParquetRows(tmp_path / "t.parquet"))
