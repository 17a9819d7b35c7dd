"""river's and scikit-learn's conventions over one model that forgets."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import compose, datasets, evaluate, metrics, preprocessing
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import demur.unlearning
from demur.core.adjacency import Erasure
from demur.core.entropy import Seeded
from demur.core.errors import NotPrivate
from demur.ledger import Budget, Ledger, LedgerLeftBehind
from demur.unlearning import (
    CapacityExhausted,
    MemoryPair,
    PrivacyOdometer,
    UnknownRecord,
    UnlearnableClassifier,
    UnlearnableRegressor,
    make_mode,
)

WIDE = {"norm_bound": 4.0}


def rows(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) / 3.0
    return X, X @ np.array([0.5, -0.2, 0.3]) + 0.1


def as_dicts(X):
    return [dict(zip("abc", map(float, x), strict=True)) for x in X]


# -- river -------------------------------------------------------------------------


def test_progressive_validation_of_a_classifier():
    model = compose.Pipeline(
        preprocessing.StandardScaler(),
        UnlearnableClassifier(lam=0.01, mode_config=WIDE),
    )
    found = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.ROCAUC())
    assert found.get() > 0.90
    accuracy = evaluate.progressive_val_score(
        datasets.Phishing(),
        UnlearnableClassifier(mode="logistic", mode_config={"norm_bound": 3.0}),
        metrics.Accuracy(),
    )
    assert accuracy.get() > 0.80


def test_progressive_validation_of_a_regressor():
    def score(model):
        made = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(
            regressor=model
        )
        data = datasets.TrumpApproval()
        return evaluate.progressive_val_score(data, made, metrics.MAE()).get()

    ridge = UnlearnableRegressor(
        mode="ridge", mode_config={"norm_bound": 6.0, "y_bound": 5.0}
    )
    plain = evaluate.progressive_val_score(
        datasets.TrumpApproval(),
        preprocessing.StandardScaler()
        | UnlearnableRegressor(
            mode="ridge", mode_config={"norm_bound": 6.0, "y_bound": 100.0}
        ),
        metrics.MAE(),
    )
    assert score(ridge) < 1.0 and plain.get() < 2.0


def test_dicts_and_the_machine_learn_the_same():
    X, y = rows()
    model = UnlearnableRegressor(fit_intercept=False)
    machine = MemoryPair(3, PrivacyOdometer(1.0, 1e-5, 0.1))
    machine.finalize_calibration(1.0)
    for x, row, target in zip(as_dicts(X), X, y, strict=True):
        model.learn_one(x, target)
        machine.insert(row, float(target))
    assert model.model_.mode.digest() == machine.mode.digest()


def test_order_in_a_dict_does_not_matter():
    X, y = rows()
    one, other = (UnlearnableRegressor(mode="ridge") for _ in range(2))
    for at, x in enumerate(as_dicts(X)):
        one.learn_one(x, y[at])
        other.learn_one(x if at == 0 else dict(reversed(x.items())), y[at])
    assert one.model_.mode.digest() == other.model_.mode.digest()


def test_unlearn_one_is_the_replay():
    X, y = rows()
    model = UnlearnableRegressor(mode="ridge")
    rest = UnlearnableRegressor(mode="ridge")
    for at, x in enumerate(as_dicts(X)):
        model.learn_one(x, y[at], record_id=f"r{at}" if at % 2 else None)
        if at not in (10, 11):
            rest.learn_one(x, y[at])
    model.unlearn_one(as_dicts(X)[10], y[10])
    model.unlearn_one(as_dicts(X)[11], y[11], record_id="r11")
    assert model.model_.mode.digest() == rest.model_.mode.digest()
    with pytest.raises(UnknownRecord):
        model.unlearn_one(as_dicts(X)[11], y[11], record_id="r11")


def test_features_are_fixed_at_first_use():
    model = UnlearnableRegressor()
    model.learn_one({"a": 0.1, "b": 0.2}, 0.3)
    digest = model.model_.mode.digest()
    for x in ({"a": 0.1, "c": 0.2}, {"a": 0.1}, {"a": 1, "b": 1, "c": 1}, {}):
        for act in (
            lambda x=x: model.learn_one(x, 0.1),
            lambda x=x: model.predict_one(x),
            lambda x=x: model.unlearn_one(x, 0.1),
        ):
            with pytest.raises(ValueError, match="unknown and . missing"):
                act()
    with pytest.raises(ValueError, match="numbers"):
        words: dict = {"a": "high", "b": 0.2}
        model.learn_one(words, 0.3)
    with pytest.raises(TypeError, match="dict"):
        model.learn_one([0.1, 0.2], 0.3)
    assert model.model_.mode.digest() == digest
    declared = UnlearnableRegressor(features=["b", "a"])
    declared.learn_one({"a": 0.1, "b": 0.2}, 0.3)
    assert declared.features_ == ["b", "a"]


@pytest.mark.parametrize("names", ["ba", (10, 9), (("b", 1), "a")])
def test_the_order_of_a_deleted_first_record_is_forgotten(names):
    """Twins whose first records had the names in either order, and one without it."""
    X, y = rows(20)
    data = [dict(zip(names, x, strict=False)) for x in X.tolist()]
    twins = [UnlearnableRegressor(mode="ridge", standardise=True) for _ in range(3)]
    twins[0].learn_one(data[0], y[0])
    twins[1].learn_one(dict(reversed(data[0].items())), y[0])
    for x, target in zip(data[1:], y[1:], strict=True):
        for twin in twins:
            twin.learn_one(dict(reversed(x.items())), target)
    for twin in twins[:2]:
        twin.unlearn_one(data[0], y[0])
    assert len({str(twin.features_) for twin in twins}) == 1
    assert len({twin.model_.mode.digest() for twin in twins}) == 1
    assert len({twin.predict_one(data[0]) for twin in twins}) == 1


def test_columns_without_names_do_not_follow_dicts():
    """Names were sorted; which column is which, only the caller knows."""
    X, y = rows(20)
    model = UnlearnableRegressor(mode="ridge")
    model.learn_one({"b": X[0, 0], "a": X[0, 1]}, y[0])
    digest = model.model_.mode.digest()
    for act in (
        lambda: model.partial_fit(X[1:, :2], y[1:]),
        lambda: model.predict(X[:, :2]),
        lambda: model.unfit(X[:1, :2], y[:1]),
    ):
        with pytest.raises(ValueError, match="no names.*features="):
            act()
    assert model.model_.mode.digest() == digest
    model.partial_fit(pd.DataFrame(X[1:, 1::-1], columns=["a", "b"]), y[1:])
    numbered = UnlearnableRegressor(mode="ridge")
    numbered.learn_one({1: X[0, 0], 0: X[0, 1]}, y[0])
    numbered.partial_fit(X[1:, 1::-1], y[1:])
    assert numbered.model_.mode.digest() == model.model_.mode.digest()


def test_names_and_values_that_are_no_numbers_stay_out_of_errors():
    model = UnlearnableRegressor()
    model.learn_one({"a": 0.1, "b": 0.2}, 0.3)
    with pytest.raises(ValueError, match="1 are unknown") as refusal:
        model.learn_one({"a": 0.1, "diagnosis of Ada": 1.0}, 0.3)
    assert "Ada" not in str(refusal.value)
    values: list[Any] = [np.complex64(1.0), 1 + 0j, b"1.0", "1.0"]
    for value in values:
        for first in (model, UnlearnableRegressor()):
            with pytest.raises(ValueError, match="numbers"):
                first.learn_one({"a": value, "b": 0.2}, 0.3, record_id="r")


@pytest.mark.parametrize("x", [{"a": math.nan, "b": 0.1}, {"a": "x", "b": 1}, {}])
def test_a_bad_first_record_fixes_nothing(x):
    model = UnlearnableRegressor()
    with pytest.raises(ValueError):
        model.learn_one(x, 0.3)
    assert not hasattr(model, "features_") and not hasattr(model, "model_")
    model.learn_one({"z": 0.1}, 0.3)
    assert model.features_ == ["z"]


def test_before_anything_is_learned():
    assert UnlearnableRegressor().predict_one({"a": 1.0}) == 0.0
    assert UnlearnableClassifier().predict_proba_one({"a": 1.0}) == {0: 0.5, 1: 0.5}
    for model in (UnlearnableRegressor(), UnlearnableClassifier()):
        for act in (
            lambda m=model: m.predict([[1.0]]),
            lambda m=model: m.unlearn_one({"a": 1.0}, 1),
            lambda m=model: m.unfit([[1.0]], [1]),
        ):
            with pytest.raises(NotFittedError):
                act()


# -- scikit-learn ------------------------------------------------------------------


@pytest.mark.slow
def test_partial_fit_predict_unfit():
    X, y = rows(400)
    model = UnlearnableRegressor(mode="ridge", mode_config=WIDE)
    assert model.partial_fit(X[:200], y[:200]) is model
    model.partial_fit(X[200:], y[200:])
    assert np.abs(model.predict(X) - y).max() < 0.05
    assert model.n_features_in_ == 3
    model.unfit(X[100:200], y[100:200])
    rest = UnlearnableRegressor(mode="ridge", mode_config=WIDE)
    rest.partial_fit(np.vstack([X[:100], X[200:]]), np.r_[y[:100], y[200:]])
    assert model.model_.mode.digest() == rest.model_.mode.digest()
    np.testing.assert_array_equal(model.predict(X), rest.predict(X))


def test_by_ids():
    X, y = rows()
    model = UnlearnableRegressor()
    ids = [f"r{i}" for i in range(200)]
    model.partial_fit(X, y, record_ids=ids)
    model.unfit(record_ids=["r3", "r4"])
    assert model.model_.odometer.deletions_made == 2
    with pytest.raises(UnknownRecord):
        model.unfit(record_ids=["r3"])
    with pytest.raises(ValueError, match="equal length"):
        model.unfit(X[:2], y[:3])
    with pytest.raises(ValueError, match="equal length"):
        model.unfit()


def test_arrays_and_dicts_mix():
    X, y = rows()
    model = UnlearnableRegressor(mode="ridge", features=list("abc"))
    model.partial_fit(X[:100], y[:100])
    for x, target in zip(as_dicts(X[100:]), y[100:], strict=True):
        model.learn_one(x, target)
    whole = UnlearnableRegressor(mode="ridge").partial_fit(X, y)
    assert model.model_.mode.digest() == whole.model_.mode.digest()
    with pytest.raises(ValueError, match="2 features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="two dimensions"):
        model.predict(X[0])


@pytest.mark.parametrize("mode", ["ogd", "logistic"])
def test_classes_of_any_name(mode):
    X, y = rows(600)
    labels = np.where(y > 0.1, "spam", "ham")
    model = UnlearnableClassifier(mode=mode, lam=0.01)
    model.partial_fit(X, labels, classes=["ham", "spam"])
    assert np.mean(model.predict(X) == labels) > 0.9
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert list(model.classes_) == ["ham", "spam"]
    with pytest.raises(ValueError, match="one of the classes"):
        model.partial_fit(X[:1], ["eggs"])
    with pytest.raises(ValueError, match="cannot change"):
        model.partial_fit(X[:1], ["ham"], classes=["spam", "ham"])
    with pytest.raises(ValueError, match="two labels"):
        UnlearnableClassifier(classes=("a",)).learn_one({"x": 1.0}, "a")


def test_a_clone_is_empty_and_shares_the_ledger():
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure())
    model = UnlearnableRegressor(ledger=ledger, epsilon=1.0)
    X, y = rows()
    model.partial_fit(X, y)
    other = clone(model)
    assert other.ledger is ledger and not hasattr(other, "model_")
    model.unfit(X[:1], y[:1])
    assert ledger.status()[0].spent_epsilon == pytest.approx(1.0, abs=1e-9)
    other.partial_fit(X, y)
    with pytest.raises(Exception, match="nothing was spent"):
        other.unfit(X[:1], y[:1])  # the budget is one


def test_a_pickle_leaves_the_ledger_behind():
    """As for the private heads: a worker's copy must not delete without a charge."""
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure(), dataset="people")
    X, y = rows()
    for model in (
        UnlearnableRegressor(ledger=ledger, source=Seeded(3)),
        UnlearnableClassifier(ledger=ledger),
    ):
        copy = pickle.loads(pickle.dumps(model))
        assert copy.ledger == LedgerLeftBehind("people") and copy.source is None
        assert copy.get_params().keys() == model.get_params().keys()
        with pytest.raises(NotPrivate, match="'people' stayed behind"):
            copy.partial_fit(X, np.sign(y) > 0)
        assert not hasattr(copy, "model_")
        copy.set_params(ledger=ledger).partial_fit(X, np.sign(y) > 0)
    assert pickle.loads(pickle.dumps(UnlearnableRegressor())).ledger is None
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(copy)  # its odometer would be a second budget


def test_capacity_runs_out_as_a_whole():
    X, y = rows(300)
    model = UnlearnableRegressor(gamma=0.5, events=4000, mode_config={"radius": 1.0})
    model.partial_fit(X, y)
    model.unfit(X[:1], y[:1])
    left = model.model_.odometer.capacity_remaining
    assert 0 < left < 299
    with pytest.raises(CapacityExhausted):
        model.unfit(X[1 : left + 2], y[1 : left + 2])
    assert model.model_.odometer.capacity_remaining == left


def test_the_constant_is_a_feature_like_any_other():
    X, y = rows()
    model = UnlearnableRegressor(mode="ridge").partial_fit(X, y)
    machine = make_mode("ridge", 4)
    machine.insert_many(np.hstack([X, np.ones((200, 1))]), y)
    assert model.model_.mode.digest() == machine.digest()


@pytest.mark.slow
def test_the_package_does_not_load_scikit_learn():
    code = "import sys, demur.unlearning as u; print('sklearn' in sys.modules);"
    code += "print(u.UnlearnableRegressor.__name__, 'sklearn' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "UnlearnableRegressor", "True"]
    with pytest.raises(AttributeError, match="no attribute 'Unlearnabel'"):
        _ = demur.unlearning.Unlearnabel
    assert "UnlearnableClassifier" in dir(demur.unlearning)


@pytest.mark.parametrize("kind", [UnlearnableRegressor, UnlearnableClassifier])
def test_an_estimator_leads_to_its_entry(kind):
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure())
    model = kind(fit_intercept=False, gamma=1e6, ledger=ledger)
    with pytest.raises(NotFittedError):
        _ = model.entry_
    model.partial_fit(np.eye(3), [0.0, 1.0, 1.0], record_ids=["a", "b", "c"])
    assert model.entry_ is None, "learning costs nothing"
    model.unfit(record_ids=["b"])
    assert model.entry_ == ledger.entries()[0] == model.model_.entry
    assert "Erasure" in repr(model.entry_.declaration.cost)
