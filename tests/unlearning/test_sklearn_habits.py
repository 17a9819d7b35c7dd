"""scikit-learn's own checks, `fit`, and what surrounds it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from demur.core.adjacency import Erasure
from demur.ledger import Budget, Ledger
from demur.preprocessing import PublicScaler
from demur.unlearning import (
    CapacityExhausted,
    UnknownRecord,
    UnlearnableClassifier,
    UnlearnableRegressor,
)
from demur.unlearning.estimators.base import SKLEARN_EXCEPTIONS

ESTIMATORS = {
    "regressor, ogd": UnlearnableRegressor(),
    "regressor, ridge": UnlearnableRegressor(mode="ridge"),
    "regressor, standardised": UnlearnableRegressor(mode="ridge", standardise=True),
    "classifier, ogd": UnlearnableClassifier(),
    "classifier, ridge": UnlearnableClassifier(mode="ridge"),
    "classifier, standardised": UnlearnableClassifier(mode="ridge", standardise=True),
    "classifier, logistic": UnlearnableClassifier(mode="logistic"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore")  # of the checks themselves
@pytest.mark.slow
def test_scikit_learns_checks(name):
    """All but those on the list, and each of the list fails: none is there in vain."""
    results = check_estimator(ESTIMATORS[name], on_fail=None, on_skip=None)
    failed = {r["check_name"] for r in results if r["status"] == "failed"}
    assert failed == set(SKLEARN_EXCEPTIONS), failed
    assert sum(r["status"] == "passed" for r in results) >= 40


def labelled(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 100.0, 0.1] + [0.0, 1e4, 5.0]
    return X, np.where(X[:, 0] + X[:, 1] / 100 - 100 > 0, "yes", "no")


def test_fit_is_a_stream_from_nothing():
    X, y = labelled()
    model = UnlearnableClassifier(mode="ridge", standardise=True)
    assert model.fit(X, y, record_ids=[f"r{i}" for i in range(120)]) is model
    assert list(model.classes_) == ["no", "yes"] and model.score(X, y) > 0.9
    again = model.model_
    model.fit(X[:50], y[:50])
    assert model.model_ is not again and model.model_.inserts_seen == 50
    streamed = UnlearnableClassifier(
        mode="ridge", standardise=True, classes=("no", "yes")
    )
    for x, label in zip(X[:50], y[:50], strict=True):
        streamed.learn_one(dict(enumerate(x.tolist())), str(label))
    assert streamed.model_.mode.digest() == model.model_.mode.digest()
    model.unfit(X[3:5], y[3:5])
    rest = model.clone().fit(np.delete(X[:50], [3, 4], 0), np.delete(y[:50], [3, 4]))
    assert rest.model_.mode.digest() == model.model_.mode.digest()


def test_a_refused_fit_keeps_what_was_learned():
    X, y = labelled()
    model = UnlearnableClassifier(mode="ridge", standardise=True).fit(X, y)
    digest, classes = model.model_.mode.digest(), list(model.classes_)
    bad = X.copy()
    bad[7, 1] = np.nan
    for rows, labels in ((bad, y), (X, y[:-1]), (X, None), (X, ["yes"] * 120)):
        with pytest.raises(ValueError):
            model.fit(rows, labels)
        assert model.model_.mode.digest() == digest
        assert list(model.classes_) == classes
    assert model.predict(X[:1]).shape == (1,)


@pytest.mark.parametrize("standardise", [False, True])
def test_unfit_by_content_is_all_or_nothing(standardise):
    """The second of three rows is nobody's: the first stays, and nothing is spent."""
    X, y = labelled()
    config = {} if standardise else {"norm_bound": 2e4}
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure())
    model = UnlearnableClassifier(
        mode="ridge", standardise=standardise, mode_config=config, ledger=ledger
    ).fit(X, y)
    model.unfit(X[5:7], y[5:7])
    digest, made = model.model_.mode.digest(), model.model_.odometer.deletions_made
    strangers = X[:3].copy()
    strangers[1] += [0.0, 0.0, 9e3]
    with pytest.raises(ValueError, match="not among the live|cannot be"):
        model.unfit(strangers, y[:3])
    assert model.model_.mode.digest() == digest
    with pytest.raises(UnknownRecord, match="119 records.*118 live"):
        model.unfit(X[:119], y[:119])
    assert model.model_.mode.digest() == digest
    assert model.model_.odometer.deletions_made == made == 2


def test_an_exhausted_certificate_stops_unfit_before_it_begins():
    """Six rows can be certified; of eight none goes."""
    X = np.random.default_rng(0).normal(size=(40, 3)) / 2
    y = np.where(X[:, 0] > 0, "yes", "no")
    config = {"tolerance": 1.0, "Lambda": 5.0}
    model = UnlearnableClassifier(mode="logistic", gamma=1e6, mode_config=config)
    model.fit(X, y)
    digest = model.model_.mode.digest()
    with pytest.raises(CapacityExhausted) as refusal:
        model.unfit(X[:8], y[:8])
    assert refusal.value.reason == "numeric"
    assert model.model_.mode.digest() == digest and model.model_.deletes_seen == 0
    model.unfit(X[:6], y[:6])
    assert model.model_.deletes_seen == 6


def test_options_that_contradict_each_other():
    X, y = labelled()
    for model in (
        UnlearnableClassifier(mode="ridge", standardise=True, fit_intercept=False),
        UnlearnableClassifier(mode="standardised_ridge", fit_intercept=False),
    ):
        with pytest.raises(ValueError, match="fit_intercept=False does not go"):
            model.fit(X, y)
        assert not hasattr(model, "model_")
    declared = UnlearnableClassifier(mode="ridge", classes=("no", "yes"))
    with pytest.raises(ValueError, match="declared already"):
        declared.partial_fit(X / 2e4, y, classes=["yes", "no"])
    declared.partial_fit(X / 2e4, y, classes=["no", "yes"])
    for first in (
        UnlearnableRegressor(features=["a", "a", "b"]),
        UnlearnableRegressor(),
    ):
        with pytest.raises(ValueError, match="3 have 2 names"):
            first.fit(pd.DataFrame(X, columns=["a", "a", "b"]), X[:, 0])


def test_classes_of_fit():
    X, y = labelled()
    declared = UnlearnableClassifier(mode="ridge", classes=("yes", "no", "maybe"))
    assert list(declared.fit(X / 2e4, y).classes_) == ["yes", "no", "maybe"]
    with pytest.raises(ValueError, match="one class.*declare"):
        UnlearnableClassifier().fit(X[:4], [1, 1, 1, 1])
    with pytest.raises(ValueError, match="one of the classes"):
        UnlearnableClassifier(classes=("a", "b")).fit(X, y)
    assert UnlearnableClassifier().predict_one({"a": 0.0}) == 0
    two = UnlearnableClassifier(mode="ogd").fit([[1.0], [-1.0]] * 50, [5, 2] * 50)
    assert two.predict([[1.0], [-1.0]]).tolist() == [5, 2]
    assert two.predict_one({0: 1.0}) == 5 and two.predict_one({0: -1.0}) == 2


def test_a_column_is_a_vector_with_a_warning():
    X, _ = labelled()
    y = X[:, 1]
    model = UnlearnableRegressor(mode="ridge", standardise=True)
    with pytest.warns(DataConversionWarning):
        column = model.clone().fit(X, y[:, None])
    assert column.model_.mode.digest() == model.fit(X, y).model_.mode.digest()


def test_frames():
    X, _ = labelled()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = UnlearnableRegressor(mode="ridge", standardise=True).fit(frame, X[:, 1])
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="not the features"):
        model.predict(frame[["b", "a", "c"]])
    assert not hasattr(model.fit(X, X[:, 1]), "feature_names_in_")


@pytest.mark.slow
def test_cross_validation_and_pipelines():
    X, y = labelled()
    standardised = UnlearnableClassifier(mode="ridge", standardise=True)
    assert cross_val_score(standardised, X, y, cv=3).mean() > 0.9
    ranges = PublicScaler(low=[-3, 9_700, 4.7], high=[3, 10_300, 5.3])
    config = {"norm_bound": 2.0}
    ridge = UnlearnableClassifier(mode="ridge", mode_config=config)
    assert cross_val_score(make_pipeline(ranges, ridge), X, y, cv=3).mean() > 0.9
