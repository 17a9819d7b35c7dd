"""Pipelines around a head: steps fitted on the same rows are found and named."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    QuantileTransformer,
    StandardScaler,
)

from demur.convex import BallLogisticRegression, BallPrototypeClassifier
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.errors import NotCovered, NotPrivate
from demur.ledger import Budget, Ledger
from demur.preprocessing import (
    ClipRows,
    NormalizeRows,
    PrivatePCA,
    PrivateStandardScaler,
    PublicScaler,
    RandomProjection,
)
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

X, Y = blobs(300, 4, 2)
HEAD = BallPrototypeClassifier(radius=0.2, epsilon=4.0)


def said(head):
    return " ".join(head.privacy_.statement().split())


# -- what is wrong with them, measured -------------------------------------------------


def test_a_scaler_moves_a_row_by_more_than_the_ball_and_everybody_elses_too():
    rows = X.copy()
    rows[:, 0] *= 0.01  # a column whose spread one record can change
    other = rows.copy()
    other[0, 0] += 0.2
    one, two = (StandardScaler().fit_transform(r) for r in (rows, other))
    moved = np.linalg.norm(one - two, axis=1)
    assert moved[0] > 1.0 and (moved[1:] > 1e-3).all()
    scaler = PublicScaler(-1.0, 1.0)
    one, two = (scaler.fit_transform(r) for r in (rows, other))
    moved = np.linalg.norm(one - two, axis=1)
    assert moved[0] <= 0.1 * (1 + 1e-9) and not moved[1:].any()


# -- refused by name -------------------------------------------------------------------

FITTED = {
    "StandardScaler": StandardScaler(),
    "MinMaxScaler": MinMaxScaler(),
    "QuantileTransformer": QuantileTransformer(n_quantiles=10),
    "PCA": PCA(2),
    "SimpleImputer": SimpleImputer(),
    "SelectKBest": SelectKBest(k=2),
    "RBFSampler": RBFSampler(gamma="scale"),  # of the variance of all the rows
}
AROUND = {
    "a step": lambda step: make_pipeline(step, clone(HEAD)),
    "the first of two steps": lambda step: make_pipeline(step, ClipRows(), clone(HEAD)),
    "inside columns": lambda step: make_pipeline(
        ColumnTransformer([("some", step, [0, 1, 2])], remainder="passthrough"),
        clone(HEAD),
    ),
    "inside a union": lambda step: make_pipeline(
        FeatureUnion([("one", step)]), clone(HEAD)
    ),
    "inside a pipeline": lambda step: make_pipeline(make_pipeline(step), clone(HEAD)),
    "around a pipeline": lambda step: make_pipeline(step, make_pipeline(clone(HEAD))),
    "around a calibrator": lambda step: make_pipeline(
        step, CalibratedClassifierCV(clone(HEAD), cv=2)
    ),
}


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("around", AROUND)
def test_a_step_fitted_on_the_same_rows_is_refused_by_name(name, around):
    ledger = Ledger(Budget(4.0, 1e-6), unit=Ball(0.2, space="records"))
    pipeline = AROUND[around](clone(FITTED[name]))
    for step in pipeline.get_params().values():
        if isinstance(step, BallPrototypeClassifier):
            step.set_params(ledger=ledger)
    with pytest.raises(NotPrivate, match=rf"\({name}\) of the pipeline") as refused:
        pipeline.fit(X, Y)
    assert "Nothing was charged" in str(refused.value) and not ledger.entries()


def test_it_is_found_in_cross_validation_and_in_a_search():
    pipeline = make_pipeline(StandardScaler(), HEAD)
    with pytest.raises(NotPrivate, match="StandardScaler"):
        cross_val_score(pipeline, X, Y, cv=2, error_score="raise")
    search = GridSearchCV(
        pipeline,
        {"ballprototypeclassifier__lam": [0.0, 0.1]},
        cv=2,
        error_score="raise",
    )
    with pytest.raises(NotPrivate, match="StandardScaler"):
        search.fit(X, Y)


def test_a_head_outside_a_pipeline_is_not_concerned():
    StandardScaler().fit(X)
    assert "pipeline" not in said(clone(HEAD).fit(X, Y))


# -- conditions ------------------------------------------------------------------------


class Doubled(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.asarray(X) * 2.0


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Doubled(), "'doubled' (Doubled) of the pipeline maps one row at a time"),
        (FunctionTransformer(np.tanh), "demur does not know it"),
        (
            FrozenEstimator(StandardScaler().fit(X)),
            "(FrozenEstimator) of the pipeline was fitted on public data",
        ),
        (Normalizer(), "the radius is measured after step 'normalizer' (Normalizer)"),
        (Doubled(), "the radius is measured after step 'doubled' (Doubled)"),
        (RBFSampler(gamma=1.0), "the radius is measured after step 'rbfsampler'"),
    ],
)
def test_what_demur_cannot_check_is_a_condition(step, words):
    head = make_pipeline(step, clone(HEAD)).fit(X, Y)[-1]
    assert words in said(head)


def test_a_map_of_single_rows_needs_no_condition_at_a_replacement():
    head = BallPrototypeClassifier(unit=ReplaceOne(), classes=[0, 1], epsilon=4.0)
    assert "pipeline" not in said(make_pipeline(Normalizer(), head).fit(X, Y)[-1])
    some = ColumnTransformer([("a", ClipRows(), [0, 1])], remainder="passthrough")
    assert "pipeline" not in said(make_pipeline(some, head).fit(X, Y)[-1])


# -- maps that keep the promise --------------------------------------------------------


@pytest.mark.parametrize("kind", [BallPrototypeClassifier, BallLogisticRegression])
def test_the_radius_is_carried_through_the_maps(kind):
    """Twice as far in the cube: the noise of Ball(0.2) before is that of 0.4 there."""
    cube = PublicScaler(-0.25, 0.25)
    carried = make_pipeline(cube, kind(radius=0.2)).fit(X, Y)[-1].privacy_
    there = kind(radius=0.4, space="cube of records").fit(cube.fit_transform(X), Y)
    assert np.allclose(carried.sigma, there.privacy_.sigma, rtol=1e-6)
    assert carried.epsilon_at(0.2) <= 1.0 < carried.epsilon_at(0.21)
    in_cube = make_pipeline(cube, kind(radius=0.4, space="cube of records"))
    head = in_cube.fit(X, Y)[-1]
    assert np.allclose(head.privacy_.sigma, carried.sigma, rtol=1e-6)
    # Twin: the radius taken as it is would be half the noise.
    twin = kind(radius=0.2).fit(cube.fit_transform(X), Y).privacy_
    assert np.max(twin.sigma) < 0.6 * np.max(carried.sigma)


def test_a_ledger_before_the_maps_is_charged_there():
    unit = Ball(0.2, space="records")
    ledger = Ledger(Budget(1.0, 1e-6), unit=unit)
    head = BallPrototypeClassifier(radius=0.2, ledger=ledger)
    make_pipeline(PublicScaler(-1, 1), RandomProjection(3), head).fit(X, Y)
    assert 0.99 < ledger.epsilon() <= 1.0


def test_a_map_without_a_constant_needs_a_radius_after_it():
    with pytest.raises(NotCovered, match="normalized records"):
        make_pipeline(NormalizeRows(), clone(HEAD)).fit(X, Y)
    after = BallPrototypeClassifier(radius=0.2, space="normalized records")
    make_pipeline(NormalizeRows(), after).fit(X, Y)
    any_change = BallPrototypeClassifier(unit=ReplaceOne(), classes=[0, 1])
    make_pipeline(NormalizeRows(), any_change).fit(X, Y)


@pytest.mark.parametrize("step", [Normalizer(), Doubled()])
def test_no_radius_is_carried_through_a_step_without_a_known_constant(step):
    """Rows of length 0.01 are a hundred times as far apart when normalised."""
    with pytest.raises(NotCovered, match=f"after {type(step).__name__.lower()}"):
        make_pipeline(PublicScaler(-1, 1), step, clone(HEAD)).fit(X, Y)


def test_a_space_of_the_callers_own_passes_through_the_maps():
    head = BallPrototypeClassifier(unit=Ball(0.2, space="minilm"))
    report = make_pipeline(ClipRows(), head).fit(X, Y)[-1].privacy_
    assert report.space == "minilm" and report.epsilon_at(0.2) <= 1.0


@pytest.mark.parametrize("step", [PrivateStandardScaler, PrivatePCA])
def test_a_private_step_and_a_head_share_a_ledger(step):
    unit = Ball(0.2, space="records")
    ledger = Ledger(Budget(2.0, 1e-6), unit=unit)
    before = step(epsilon=1.0, radius=0.2, norm_bound=2.0, ledger=ledger)
    head = BallPrototypeClassifier(
        epsilon=1.0, radius=0.2, norm_bound=5.0, ledger=ledger
    )
    pipeline = make_pipeline(before, head).fit(X, Y)
    assert len(ledger.entries()) == 2 and 1.3 < ledger.epsilon() <= 2.0
    assert "whose release is entry 1 of the same ledger" in said(pipeline[-1])
    if step is PrivateStandardScaler:
        assert np.max(head.privacy_.sigma) > 0
        factor = 1.0 / before.scale_.min()
        alone = BallPrototypeClassifier(
            epsilon=1.0, radius=0.2 * factor, norm_bound=5.0, space="there"
        ).fit(before.transform(X), Y)
        assert np.allclose(alone.privacy_.sigma, head.privacy_.sigma, rtol=1e-6)
    apart = make_pipeline(clone(before).set_params(ledger=None), clone(HEAD)).fit(X, Y)
    assert "is not charged to this ledger" in said(apart[-1])
