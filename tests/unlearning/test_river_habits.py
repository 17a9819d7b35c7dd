"""river's own checks, clones, ensembles, and dicts at full speed."""

from __future__ import annotations

import threading
import time
from collections import Counter, UserDict, defaultdict

import numpy as np
import pytest
from river import checks, compose, datasets, ensemble, metrics, multiclass

from demur.core.adjacency import Erasure
from demur.ledger import Budget, Ledger
from demur.unlearning import (
    MemoryPair,
    PrivacyOdometer,
    RangeScaler,
    UnlearnableClassifier,
    UnlearnableRegressor,
)
from demur.unlearning.estimators import base
from demur.unlearning.estimators.dict_events import SlowWay, dict_events
from demur.unlearning.estimators.river_habits import RIVER_EXCEPTIONS
from demur.unlearning.models import OGD
from tests.families import thinned

ESTIMATORS = {
    "regressor, ogd": UnlearnableRegressor(),
    "regressor, ridge": UnlearnableRegressor(mode="ridge"),
    "regressor, standardised": UnlearnableRegressor(mode="ridge", standardise=True),
    "classifier, ogd": UnlearnableClassifier(),
    "classifier, ridge": UnlearnableClassifier(mode="ridge"),
    "classifier, logistic": UnlearnableClassifier(mode="logistic"),
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)
POLLS = ("ordinal_date", "gallup", "ipsos", "morning_consult", "rasmussen", "you_gov")


def outcomes(model):
    """The names of river's checks that pass throughout, and of those that do not."""
    passed, failed = set(), set()
    for check in checks.yield_checks(model):
        try:
            check(model.clone())
        except Exception:
            failed.add(check.__name__)
        else:
            passed.add(check.__name__)
    return passed - failed, failed


@pytest.mark.parametrize("name", thinned(ESTIMATORS, 3))
@pytest.mark.slow
def test_rivers_checks(name):
    """All but those on the list, and each of the list fails: none is there in vain.

    So `checks.check_estimator`, which runs all that is not skipped, passes.
    """
    passed, failed = outcomes(ESTIMATORS[name])
    assert failed == set(RIVER_EXCEPTIONS) == ESTIMATORS[name]._unit_test_skips()
    assert len(passed) >= 20


@pytest.mark.slow
def test_rivers_checks_of_the_scaler():
    scaler = RangeScaler({poll: (0.0, 1e6) for poll in POLLS})
    passed, failed = outcomes(scaler)
    assert not failed and "check_transform_one" in passed


def test_clones():
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure())
    model = UnlearnableClassifier(mode="ridge", classes=("a", "b"), ledger=ledger)
    model.learn_one({"x": 0.5}, "a")
    other = model.clone({"classes": ("c", "d")})
    assert other.classes == ("c", "d") and other.mode == "ridge"
    assert other.ledger is ledger and not hasattr(other, "model_")
    with pytest.raises(TypeError, match="cannot be cloned"):
        model.clone(include_attributes=True)
    assert model._mutable_attributes == set()
    model.mutate({})
    with pytest.raises(ValueError, match="'lam' is not a mutable attribute"):
        model.mutate({"lam": 1.0})
    assert model.lam == 0.1


def test_pipelines_by_bars():
    model = UnlearnableRegressor()
    pipeline = (lambda x: {"b": x["a"] / 2}) | model
    pipeline.learn_one({"a": 0.5}, 0.1)
    assert model.features_ == ["b"]
    nothing = compose.FuncTransformer(lambda x: x)
    assert list((nothing | UnlearnableRegressor()).steps)[-1] == "UnlearnableRegressor"


def test_bagging():
    wide = {"norm_bound": 40.0, "y_bound": 100.0}
    bag = ensemble.BaggingRegressor(
        UnlearnableRegressor(mode="ridge", mode_config=wide), n_models=3, seed=0
    )
    error = metrics.MAE()
    for x, y in datasets.TrumpApproval().take(300):
        x = {k: v / 10 for k, v in x.items() if k != "ordinal_date"}
        error.update(y, bag.predict_one(x))
        bag.learn_one(x, y)
    assert error.get() < 3.0
    digests = {member.model_.mode.digest() for member in bag}
    assert len(digests) == 3, "each member learned a sample of its own"
    votes = ensemble.BaggingClassifier(UnlearnableClassifier(), n_models=3, seed=0)
    for x, label in datasets.Phishing().take(200):
        votes.learn_one(x, label)
    assert set(votes.predict_proba_one(x)) == {0, 1}


@pytest.mark.slow
def test_one_vs_rest():
    model = multiclass.OneVsRestClassifier(
        UnlearnableClassifier(mode="ridge", standardise=True)
    )
    accuracy = metrics.Accuracy()
    for x, y in datasets.ImageSegments().take(600):
        accuracy.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert accuracy.get() > 0.5  # seven classes
    assert len(model.classifiers) == 7


# -- dicts -------------------------------------------------------------------------


def records(n=40, d=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / 5
    return X, (X[:, 0] > 0).astype(float)


def named(x):
    return {f"f{j}": float(value) for j, value in enumerate(x)}


@every_estimator
def test_dicts_learn_what_arrays_learn(name):
    X, y = records()
    declared = {"features": [f"f{j}" for j in range(12)]}
    over_dicts, over_arrays = (ESTIMATORS[name].clone(declared) for _ in range(2))
    for x, target in zip(X, y, strict=True):
        over_dicts.learn_one(UserDict(named(x)) if target else named(x), target)
        over_arrays.partial_fit([x], [target])
    for one, two in zip(
        over_dicts.model_.mode.state().values(),
        over_arrays.model_.mode.state().values(),
        strict=True,
    ):
        assert one.tobytes() == two.tobytes()
    assert over_dicts.model_.inserts_seen == 40
    answers = [over_dicts.predict_one(named(x)) for x in X]
    assert answers == over_arrays.predict(X).tolist()


@every_estimator
def test_a_bad_dict_changes_nothing(name):
    X, y = records()
    model = ESTIMATORS[name].clone()
    for x, target in zip(X, y, strict=True):
        model.learn_one(named(x), target)
    before, seen = model.model_.mode.digest(), model.model_.inserts_seen
    good = named(X[0])
    for bad, message in (
        (good | {"f3": "0.5"}, "must be numbers"),
        (good | {"f3": None}, "must be numbers"),
        (good | {"f3": 10**400}, "must be numbers"),
        (good | {"f3": float("nan")}, "finite"),
        (good | {"f3": float("inf")}, "finite"),
        (good | {"extra": 1.0}, "1 are unknown and 0 missing. Nothing"),
        ({k: v for k, v in good.items() if k != "f3"}, "0 are.*1 missing .*position 5"),
        ({("g" if k == "f3" else k): v for k, v in good.items()}, "1 are.*1 missing"),
        (Counter({("g" if k == "f3" else k): v for k, v in good.items()}), "1 missing"),
        (defaultdict(float, {"extra": 1.0} | good), "1 are unknown"),
    ):
        for act in (model.predict_one, lambda x: model.learn_one(x, 1)):
            with pytest.raises(ValueError, match=message):
                act(bad)
    for target in (float("nan"), "?", None):
        with pytest.raises(ValueError, match="y must"):
            model.learn_one(good, target)
    for act in (model.predict_one, lambda x: model.learn_one(x, 1)):
        with pytest.raises(TypeError, match="must be a dict"):
            act([float(v) for v in X[0]])
    assert model.model_.mode.digest() == before
    assert model.model_.inserts_seen == seen
    assert model.predict_one(good | {"f3": True}) is not None


class Watched(OGD):
    """Keeps the very array that it was handed, and copies of what it held."""

    def __init__(self, dimension):
        super().__init__(dimension)
        self.rows, self.copies = [], []

    def on_row(self, row, emptied):
        predict, insert = super().on_row(row, emptied)

        def seen(act):
            def acting(*y):
                self.rows.append(row)
                self.copies.append(row.copy())
                return act(*y)

            return acting

        return seen(predict), seen(insert)


def test_no_row_stays_in_the_buffer():
    X, y = records()
    pair = MemoryPair(13, PrivacyOdometer(1.0, 1e-5, 0.1), mode=Watched(13))
    pair.finalize_calibration(1.0)
    pair.insert(np.append(X[0], 1.0), y[0])
    slow = []
    way = SlowWay(slow.append, lambda x, y: slow.append((x, y)), float)
    names = [f"f{j}" for j in range(12)]
    predict, learn = dict_events(pair, names, way, constant=True)
    learn(named(X[1]), 1.0)
    predict(named(X[2]))
    assert not slow and pair.inserts_seen == 2
    bad = [{"f0": 1.0}, named(X[3]) | {"f3": "?"}, named(X[4]) | {"f0": float("inf")}]
    for x in bad:
        learn(x, 1.0)
        predict(x)
    learn(named(X[5]), "?")
    assert slow == [(b, 1.0) if turn else b for b in bad for turn in (1, 0)] + [
        (named(X[5]), "?")
    ]
    first, second, third, fourth = pair.mode.copies
    np.testing.assert_array_equal(first, np.append(X[1], 1.0))
    np.testing.assert_array_equal(second, np.append(X[2], 1.0))
    assert third[0] == fourth[0] == np.inf and pair.inserts_seen == 2
    for row in pair.mode.rows:  # the constant alone is left
        np.testing.assert_array_equal(row, np.eye(13)[12])


def test_hooks_see_every_dict():
    X, y = records()
    model = UnlearnableRegressor()
    model.learn_one(named(X[0]), y[0])
    kinds = []
    model.model_.on("*", lambda event: kinds.append(event.kind))
    for x, target in zip(X[1:], y[1:], strict=True):
        model.learn_one(named(x), target)
    assert kinds == ["insert"] * 39


def test_threads_share_a_model():
    """Four threads learn their records once each: sums do not depend on the order."""
    X, y = records(400)
    model = UnlearnableRegressor(mode="ridge", features=[f"f{j}" for j in range(12)])
    whole = model.clone().partial_fit(X, y)
    model.learn_one(named(X[0]), y[0])

    def learn(begin):
        for i in range(begin, 400, 4):
            model.predict_one(named(X[i]))
            if i:
                model.learn_one(named(X[i]), y[i])

    threads = [threading.Thread(target=learn, args=(b,)) for b in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.model_.mode.digest() == whole.model_.mode.digest()
    assert model.model_.inserts_seen == 400


def all_at_once(act, count=6):
    """Run act(0), act(1), ... in threads; the errors."""
    errors = []

    def acting(number):
        try:
            act(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=acting, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def slowly(act, calls):
    """The same call, in time for the other threads to come to it as well."""

    def acting(*arguments, **options):
        calls.append(arguments)
        time.sleep(0.02)
        return act(*arguments, **options)

    return acting


@pytest.mark.parametrize("bad", [None, 0])
def test_threads_share_the_first_record(monkeypatch, bad):
    """One model is made; none is lost with those who learned before its refusal."""
    X, y = records(6)
    model = UnlearnableRegressor(mode="ridge")
    made, finite = [], X.copy()
    if bad is not None:
        X[bad, 3] = np.nan
    monkeypatch.setattr(base, "MemoryPair", slowly(MemoryPair, made))
    monkeypatch.setattr(MemoryPair, "insert", slowly(MemoryPair.insert, []))
    errors = all_at_once(lambda i: model.learn_one(named(X[i]), y[i]))
    assert len(errors) == (bad is not None)
    assert 1 <= len(made) <= 1 + len(errors)
    rest = model.clone()
    for i in range(6):
        if i != bad:
            rest.learn_one(named(finite[i]), y[i])
    assert model.model_.mode.digest() == rest.model_.mode.digest()


def test_threads_share_the_first_deletion():
    X, y = records(12)
    model = UnlearnableRegressor(mode="ridge", features=[f"f{j}" for j in range(12)])
    model.partial_fit(X, y)
    odometer, calls = model.model_.odometer, []
    odometer.finalize_with = slowly(odometer.finalize_with, calls)
    assert all_at_once(lambda i: model.unlearn_one(named(X[i]), y[i])) == []
    rest = model.clone().partial_fit(X[6:], y[6:])
    assert len(calls) == 1
    assert model.model_.mode.digest() == rest.model_.mode.digest()
