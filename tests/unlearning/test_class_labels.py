"""Estimators and streams over several classes, with labels of any hashable kind."""

import math
import pickle

import numpy as np
import pytest
from river import datasets, evaluate, metrics, preprocessing
from sklearn.base import clone

from demur.core.adjacency import Erasure
from demur.ledger import Budget, Ledger
from demur.unlearning import (
    DriftDetector,
    MemoryPair,
    PrivacyOdometer,
    RecordMismatch,
    UnknownRecord,
    UnlearnableClassifier,
)
from demur.unlearning.estimators.labels import label_array, numbered
from demur.unlearning.stream.losses import Loss, best_in_hindsight, loss_of
from tests.unlearning.classes_kit import class_records, probabilities
from tests.unlearning.service_kit import open_service

pytestmark = pytest.mark.slow

MODES = ("ogd", "ridge", "logistic")
every_mode = pytest.mark.parametrize("mode", MODES)
COLOURS = ("red", "green", "blue", "grey")


def coloured(n=300, d=3, seed=0):
    X, Y = class_records(n, d, 4, seed=seed)
    return X, [COLOURS[int(y)] for y in Y]


def as_dicts(X):
    return [dict(zip("abcdef", map(float, x), strict=False)) for x in X]


@every_mode
def test_strings_one_at_a_time_and_in_arrays(mode):
    X, labels = coloured()
    one = UnlearnableClassifier(mode=mode, classes=COLOURS, lam=0.01)
    before = one.predict_proba_one({"a": 1.0})
    assert before == dict.fromkeys(COLOURS, 0.25)
    for x, label in zip(as_dicts(X), labels, strict=True):
        one.learn_one(x, label)
    many = UnlearnableClassifier(mode=mode, lam=0.01, features=list("abc"))
    many.partial_fit(X, np.array(labels), classes=COLOURS)
    assert one.model_.mode.digest() == many.model_.mode.digest()
    assert list(many.classes_) == list(COLOURS) and one._multiclass
    p = many.predict_proba(X)
    assert p.shape == (300, 4) and p.min() >= 0.0
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    said = many.predict(X)
    assert np.mean(said == labels) > 0.5  # a quarter is chance
    for x, row, label in zip(as_dicts(X[:20]), p, said, strict=False):
        assert one.predict_proba_one(x) == dict(zip(COLOURS, row, strict=True))
        assert one.predict_one(x) == label


@every_mode
def test_a_label_that_was_not_declared_changes_nothing(mode):
    X, labels = coloured(50)
    model = UnlearnableClassifier(mode=mode, classes=COLOURS, features=list("abc"))
    x = as_dicts(X)[0]
    for bad in ("mauve", 0, None, ["red"], math.nan):
        with pytest.raises(ValueError, match="one of the classes.*'red'"):
            model.learn_one(x, bad)
        assert not hasattr(model, "model_")  # nothing is fixed either
    model.partial_fit(X, labels)
    digest = model.model_.mode.digest()
    for act in (
        lambda: model.learn_one(x, "mauve"),
        lambda: model.partial_fit(X[:2], ["red", "mauve"]),
        lambda: model.unlearn_one(x, "mauve"),
        lambda: model.unfit(X[:1], ["mauve"]),
    ):
        with pytest.raises(ValueError, match="one of the classes") as error:
            act()
        assert "mauve" not in str(error.value)  # a label is data too
    assert model.model_.mode.digest() == digest
    assert model.model_.inserts_seen == 50 and model.model_.deletes_seen == 0


def test_unlearning_a_string_label_is_exact():
    X, labels = coloured(120)
    dicts = as_dicts(X)
    model, rest = (
        UnlearnableClassifier(mode="ridge", classes=COLOURS, features=list(dicts[0]))
        for _ in range(2)
    )
    for at, x in enumerate(dicts):
        model.learn_one(x, labels[at], record_id=f"r{at}" if at % 2 else None)
        if at not in (10, 11, 12):
            rest.learn_one(x, labels[at])
    model.unlearn_one(dicts[10], labels[10])
    wrong = next(c for c in COLOURS if c != labels[11])
    with pytest.raises(RecordMismatch):
        model.unlearn_one(dicts[11], wrong, record_id="r11")
    model.unlearn_one(dicts[11], labels[11], record_id="r11")
    with pytest.raises(UnknownRecord):
        model.unlearn_one(dicts[11], labels[11], record_id="r11")
    model.unfit(X[12:13], labels[12:13])
    assert model.model_.mode.digest() == rest.model_.mode.digest()
    assert (model.predict_proba(X) == rest.predict_proba(X)).all()


@pytest.mark.parametrize("mode", ["ogd", "logistic"])
def test_noise_is_drawn_for_every_weight_and_paid_for(mode):
    X, labels = coloured(300)
    ledger = Ledger(Budget(1.0, 1e-5), unit=Erasure())
    config = {"Lambda": 20.0, "tolerance": 1e3} if mode == "logistic" else None
    model = UnlearnableClassifier(
        mode=mode, classes=COLOURS, gamma=1e6, mode_config=config, ledger=ledger
    )
    model.partial_fit(X, labels, record_ids=[f"r{i}" for i in range(300)])
    before = model.model_.theta
    assert before.shape == (16,)  # four features with the constant, four classes
    model.unfit(X[7:8], labels[7:8], record_ids=["r7"])
    assert (model.model_.theta != before).all()
    assert model.entry_ == ledger.entries()[0]


@pytest.mark.parametrize(
    "classes",
    [
        (7, 3, 11),
        ("a", 1, None),
        ((0, 1), (1, 0), (1, 1)),
        (True, "true", 0),
        (frozenset("a"), frozenset("b"), 2.5),
    ],
    ids=str,
)
def test_labels_of_any_hashable_kind(classes):
    X, Y = class_records(60, 3, 3)
    labels = [classes[int(y)] for y in Y]
    model = UnlearnableClassifier(mode="ridge", classes=classes, features=list("abc"))
    for x, label in zip(as_dicts(X), labels, strict=True):
        model.learn_one(x, label)
    assert set(model.predict_proba_one(as_dicts(X)[0])) == set(classes)
    assert model.predict_one(as_dicts(X)[0]) in classes
    assert list(model.classes_) == list(classes)
    assert all(label in classes for label in model.predict(X))
    model.unlearn_one(as_dicts(X)[5], labels[5])
    model.unfit(X[6:8], labels[6:8])
    assert model.model_.deletes_seen == 3


def test_classes_that_make_no_sense_are_refused():
    for bad in (["a"], [], ["a", "b", "a"], [1, True, 2], [0, 1, math.nan]):
        with pytest.raises(ValueError, match="classes must"):
            UnlearnableClassifier(classes=bad).learn_one({"x": 1.0}, "a")
    with pytest.raises(TypeError, match="hashable"):
        UnlearnableClassifier(classes=[["a"], ["b"]]).learn_one({"x": 1.0}, "a")
    with pytest.raises(ValueError, match="not of mode_config"):
        UnlearnableClassifier(mode_config={"classes": 3}).learn_one({"x": 1.0}, 1)
    with pytest.raises(ValueError, match="mode 'seed' takes two classes; got 3"):
        UnlearnableClassifier(mode="seed", classes="abc").learn_one({"x": 1.0}, "a")
    assert [type(c) for c in numbered(np.array(["a", "b"]))] == [str, str]
    assert numbered("ab") == {"a": 0.0, "b": 1.0}
    assert label_array([1, 2]).dtype.kind == "i" and label_array(["a", 1])[1] == 1


def test_classes_are_fixed_with_the_first_record():
    model = UnlearnableClassifier(mode="ridge", classes=["a", "b", "c"])
    model.learn_one({"x": 0.5}, "c")
    model.set_params(classes=["c", "b", "a"])
    assert list(model.classes_) == ["a", "b", "c"] and model._target("c") == 2.0
    with pytest.raises(ValueError, match="cannot change"):
        model.partial_fit([[0.1]], ["a"], classes=["c", "b", "a"])
    other = clone(model)
    assert list(other.classes_) == ["c", "b", "a"] and not hasattr(other, "model_")
    empty = UnlearnableClassifier(classes=COLOURS)
    assert list(pickle.loads(pickle.dumps(empty)).classes_) == list(COLOURS)


def test_two_classes_have_one_row_of_weights_as_before():
    X, Y = class_records(100, 3, 2)
    for mode in ("ogd", "logistic"):
        model = UnlearnableClassifier(mode=mode, fit_intercept=False)
        model.partial_fit(X, Y.astype(int))
        assert model.model_.mode.classes is None and model.model_.theta.shape == (3,)
    seed = UnlearnableClassifier(mode="seed", classes=("no", "yes"))
    seed.learn_one({"a": 0.1}, "yes")
    assert seed.model_.mode.classes is None
    exact = UnlearnableClassifier(mode="ridge", fit_intercept=False)
    exact.partial_fit(X, Y.astype(int))
    p = exact.predict_proba(X)
    assert exact.model_.mode.classes == 2 and 0.0 <= p.min() <= p.max() <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "least", "config"),
    [
        ("ogd", 0.70, {"norm_bound": 6.0}),
        ("ridge", 0.75, {"norm_bound": 20.0}),
        ("logistic", 0.80, {"norm_bound": 6.0}),
    ],
)
def test_progressive_validation_of_seven_classes(mode, least, config):
    names = sorted({y for _, y in datasets.ImageSegments()})
    assert len(names) == 7 and isinstance(names[0], str)
    model = preprocessing.StandardScaler() | UnlearnableClassifier(
        mode=mode, classes=names, lam=1e-3, mode_config=config
    )
    data = datasets.ImageSegments().take(800)
    found = evaluate.progressive_val_score(data, model, metrics.Accuracy())
    assert found.get() > least


# -- MemoryPair ------------------------------------------------------------------------


def test_a_memory_pair_calibrates_watches_and_measures_over_classes():
    X, Y = class_records(400, 4, 3, seed=3)
    odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1, gamma=1e4)
    model = MemoryPair(
        4, odometer, classes=3, drift=DriftDetector(), metrics=True, radius=2.0
    )
    for x, y in zip(X[:100], Y[:100], strict=True):
        model.calibrate_step(x, y)
    assert max(model.calibrator.grad_norms) <= model.mode.gradient_bound
    stats = model.finalize_calibration(1.0)
    for at in range(100, 300):
        model.insert(X[at], Y[at], record_id=f"r{at}")
    odometer.finalize_with(stats, T_estimate=10_000)
    assert odometer.constants.dimension == 12
    model.delete(record_id="r150")
    model.insert_many(X[300:], Y[300:])
    assert model.predict(X[0]) in (0.0, 1.0, 2.0)
    assert model.probabilities(X[0]).shape == (3,)
    found = model.metrics()
    assert 0.0 < found.avg_loss_empirical < 2.0 and found.avg_regret_theory > 0.0


def test_the_loss_over_classes_bounds_the_gradient():
    rng = np.random.default_rng(0)
    loss = Loss("logistic", classes=5)
    for _ in range(300):
        W, x = rng.normal(size=(5, 3)) * 4, rng.normal(size=3)
        y = int(rng.integers(5))
        p = probabilities(W @ x)
        gradient = np.outer(p - np.eye(5)[y], x)
        prediction = loss.of_parameters(W.ravel(), x, float(y))
        assert prediction == pytest.approx(p[y], abs=1e-12)
        assert loss.value(prediction, float(y)) == pytest.approx(-math.log(p[y]))
        bound = np.linalg.norm(loss.gradient(prediction, x, float(y)))
        assert np.linalg.norm(gradient) <= bound * (1 + 1e-9)
    assert loss.of_parameters(None, x, 3.0) == pytest.approx(0.2)
    squared = Loss("squared", classes=5)
    score = squared.of_parameters(W.ravel(), x, 2.0)
    assert score == pytest.approx(W[2] @ x)
    assert squared.value(score, 2.0) == pytest.approx((score - 1) ** 2 / 2)
    assert squared.slope(score, 2.0) == pytest.approx(score - 1)
    assert loss_of(
        MemoryPair(2, PrivacyOdometer(1, 1e-5, 0.1), classes=4).mode
    ) == Loss("logistic", 1.0, 0.1, 4)
    with pytest.raises(ValueError, match="without classes"):
        best_in_hindsight(loss, np.ones((2, 3)), np.zeros(2))


# -- the service -----------------------------------------------------------------------


@every_mode
def test_a_service_over_classes_deletes_and_comes_back(mode, tmp_path):
    X, Y = class_records(40, 4, 3)
    terms = {"mode": mode, "classes": 3}
    if mode == "logistic":
        terms["tolerance"] = 1e3
    service = open_service(tmp_path / "model.db", **terms)
    service.insert_many(X, Y, record_ids=list(range(40)))
    before = service.published()
    assert before.shape == (12,)
    service.delete(7, None if mode == "ogd" else X[7], None if mode == "ogd" else Y[7])
    after = service.published()
    assert (after != before).all()  # noise in every weight, or new weights
    service.close()
    again = open_service(tmp_path / "model.db", **terms)
    assert np.array_equal(again.published(), after)
    assert again.predict(X[0]) in (0.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="y must be a class"):
        again.insert(X[0], 3.0, record_id=99)
    again.close()
