"""Refusals that depend on the data: which are left, and that a statement names each.

A fit that is refused on one dataset and goes through on its neighbour tells them
apart, at no epsilon. So no label decides whether a head with public classes is fitted,
and what can still be refused is a condition of the statement.
"""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from demur import Promise
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    HeadForm,
    NotConverged,
    ParquetRows,
)
from demur.convex.heads import inputs
from demur.convex.heads.noisy_gd import Schedule, plan_descent
from demur.core.adjacency import Ball, ReplaceOne
from demur.preprocessing import ClipRows
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

X, Y = blobs(60, 3, 2)
HEADS = {
    "prototypes": BallPrototypeClassifier,
    "ridge prototypes": lambda **k: BallPrototypeClassifier(lam=0.1, **k),
    "logistic": BallLogisticRegression,
    "softmax": BallSoftmaxClassifier,
    "svm": BallSVC,
    "noisy gd": lambda **k: BallLogisticRegression(mechanism="noisy_gd", steps=3, **k),
}
every_head = pytest.mark.parametrize("name", HEADS)


def neighbours():
    """Two datasets that differ in one label: the only record of its class."""
    with_one = np.zeros(60, dtype=int)
    with_one[17] = 1
    return with_one, np.zeros(60, dtype=int)


def refused(head, X, y=None):
    """What an observer of the refusal alone learns."""
    try:
        head.fit(X, y)
    except (ValueError, TypeError, NotConverged) as error:
        return str(error)
    return None


@every_head
@pytest.mark.parametrize("unit", [ReplaceOne(), Ball(0.2, space="records")])
def test_a_class_that_loses_its_only_record_is_not_refused(name, unit, monkeypatch):
    heads = [HEADS[name](unit=unit, classes=[0, 1], epsilon=4.0) for _ in range(2)]
    assert [refused(h, X, y) for h, y in zip(heads, neighbours(), strict=True)] == [
        None,
        None,
    ]
    for head in heads:
        assert np.isfinite(head.decision_function(X)).all()
        assert set(head.predict(X)) <= {0, 1}
    if isinstance(unit, ReplaceOne):
        one, two = (head.entry_.declaration for head in heads)
        assert one.fingerprint == two.fingerprint and one == two
    # Twin: a check for missing classes tells the two apart.
    real = inputs._indices

    def indices(labels, known):
        found = real(labels, known)
        if len(np.unique(found)) < len(known):
            raise ValueError("y holds no record of a class")
        return found

    monkeypatch.setattr(inputs, "_indices", indices)
    told = [refused(h, X, y) for h, y in zip(heads, neighbours(), strict=True)]
    assert told[0] is None and told[1] is not None


@pytest.mark.parametrize("name", ["prototypes", "logistic", "noisy gd"])
def test_nor_is_it_in_files_that_are_read_in_passes(name, tmp_path):
    for y in neighbours():
        table = pa.table({"x": list(X), "y": y})
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
        head = HEADS[name](unit=ReplaceOne(), classes=[0, 1], epsilon=4.0)
        assert refused(head, ParquetRows(tmp_path / "t.parquet")) is None


def test_an_empty_class_of_prototypes_gets_its_prior():
    y = np.zeros(60, dtype=int)
    y[::2] = 2
    head = BallPrototypeClassifier(radius=0.2, classes=[0, 1, 2], epsilon=4.0).fit(X, y)
    assert head.class_prior_[1] == 0.0 and (head.predict(X) != 1).all()
    head.set_params(prior=[0.4, 0.2, 0.4]).fit(X, y)
    assert head.decision_function(X)[:, 1] == pytest.approx(np.log(0.2), abs=1e-3)


# What is left: (data, parameters, words of the refusal, words of the statement).
OUTSIDE = np.where(np.arange(60) == 3, 2, Y)
NAN = np.where(np.arange(60)[:, None] == 3, np.nan, X)
LONG = np.where(np.arange(60)[:, None] == 3, 9.0, X)
LEFT = {
    "a row with NaN": (NAN, Y, {}, "NaN", "a row of finite numbers"),
    "a label outside classes": (
        X,
        OUTSIDE,
        {},
        "outside classes",
        "a label among the public classes",
    ),
    "a long row": (
        LONG,
        Y,
        {"clip": False, "norm_bound": 2.0},
        "longer than norm_bound",
        "no row is longer than the norm bound",
    ),
}


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.parametrize("name", ["prototypes", "logistic", "noisy gd"])
def test_a_refusal_that_is_left_is_a_condition_of_the_statement(name, case):
    rows, labels, parameters, words, condition = LEFT[case]
    head = HEADS[name](radius=0.2, classes=[0, 1], **parameters)
    why = refused(head, rows, labels)
    assert why is not None and words in why and "othing was" in why
    good = HEADS[name](radius=0.2, classes=[0, 1], **parameters).fit(X, Y)
    assert condition in " ".join(good.privacy_.statement().split())
    if "clip" in parameters:
        other = HEADS[name](radius=0.2, classes=[0, 1]).fit(X, Y)
        assert condition not in " ".join(other.privacy_.statement().split())


def test_a_solver_that_gives_up_is_a_condition_of_output_perturbation_alone():
    head = BallLogisticRegression(radius=0.2, classes=[0, 1])
    assert "solver reaches tau" in head.fit(X, Y).privacy_.statement()
    why = refused(head.set_params(tau=1e-15), X, Y)
    assert why is not None and "othing was" in why
    noisy = HEADS["noisy gd"](radius=0.2, classes=[0, 1]).fit(X, Y)
    assert "solver reaches tau" not in noisy.privacy_.statement()


@pytest.mark.parametrize("name", ["prototypes", "logistic"])
def test_the_size_of_a_value_is_checked_by_public_bounds(name):
    """Values too large for their noise are refused for every dataset alike."""
    head = HEADS[name](epsilon=1e6, radius=1e-25, norm_bound=1e9, classes=[0, 1])
    told = [refused(head, X * 1e-12, Y), refused(head, np.full_like(X, 5e8), Y)]
    assert told[0] is not None and told[0] == told[1]


def test_the_size_of_gradients_is_checked_before_the_charge():
    form = HeadForm("logistic", lam=0.0, norm_bound=1.0)
    promise = Promise(Ball(1e-9, space="records"), 300.0, 1e-6)
    with pytest.raises(ValueError, match="too large for its noise"):
        plan_descent(form, promise, Schedule(3), n=10**9, dimension=4)


# -- labels, warnings and errors -------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_no_label_of_the_classes_decides_a_fit(stream, tmp_path, monkeypatch):
    """Labels 0.5 and 1.0: scikit-learn calls the first dataset continuous."""
    told = []
    for first in (0.5, 1.0):
        y = np.r_[first, np.ones(59)]
        rows: object = X
        if stream:
            path = tmp_path / "t.parquet"
            pyarrow.parquet.write_table(pa.table({"x": list(X), "y": y}), path)
            rows, y = ParquetRows(path), None
        head = BallPrototypeClassifier(unit=ReplaceOne(), classes=[0.5, 1.0])
        told.append(refused(head, rows, y))
        # Twin: where the classes are read off the labels it does decide.
        told.append(refused(BallPrototypeClassifier(radius=0.2), rows, y))
    assert told[0] is None and told[2] is None and told[1] != told[3]


def test_no_label_decides_the_type_of_a_list_of_labels():
    """With the only word of a list gone, numpy finds numbers in it."""
    for first in ("x", 2):
        y = [first, *([1, 2] * 30)[1:]]
        head = BallPrototypeClassifier(unit=ReplaceOne(), classes=["1", "2", "x"])
        assert refused(head, X, y) is None and head.classes_.tolist() == ["1", "2", "x"]
    why = refused(BallPrototypeClassifier(radius=0.2, classes=[0, 1]), X, Y.astype(str))
    assert why is not None and "they are numbers, and y holds words" in why


@pytest.mark.parametrize("kind", [np.float64, np.uint64])
def test_classes_that_numpy_cannot_tell_apart_are_refused(kind):
    """int64 and uint64 have float64 in common, where two large classes are one."""
    large = 2**60 + Y.astype(np.int64)
    head = BallPrototypeClassifier(radius=0.2, classes=[2**60, 2**60 + 1])
    why = refused(head, X, large.astype(kind))
    assert why is not None and "cannot all be told apart" in why
    assert refused(head, X, large) is None
    small = BallPrototypeClassifier(radius=0.2, classes=[0, 1])
    assert refused(small, X, Y.astype(kind)) is None


def test_no_warning_counts_the_labels():
    """20 and 21 different labels of 41 records are on two sides of a warning."""
    for labels in (20, 21):
        y = np.arange(41) % 20
        y[0] = 30 if labels == 21 else 0
        head = BallPrototypeClassifier(unit=ReplaceOne(), classes=list(range(40)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            head.fit(X[:41], y)


def test_no_error_quotes_a_record():
    words = np.array(["a", "HIV-positive"], dtype=object)[Y]
    mixed = np.array(["a", 3.5], dtype=object)[Y]
    head = BallPrototypeClassifier(unit=ReplaceOne(), classes=["a", "b"])
    assert "HIV" not in refused(head, X, words)
    assert "3.5" not in refused(head, X, mixed)
    for name in ("emb", "plain"):
        table = pd.DataFrame({"emb": list(X), "name": ["Alice Smith"] * 60})
        if name == "plain":
            table["emb"] = X[:, 0]
        why = refused(BallPrototypeClassifier(radius=0.2), table, Y)
        assert why is not None and "Alice" not in why


def test_a_solver_that_gives_up_does_not_say_after_how_many_steps():
    told = set()
    for scale in (0.01, 1.0, 10.0):
        head = BallLogisticRegression(radius=0.2, classes=[0, 1], tau=1e-300)
        told.add(refused(head, X * scale, Y))
    assert len(told) == 1 and "steps" in told.pop()


def test_wrong_weights_are_a_condition_where_weights_are_given():
    head = BallLogisticRegression(unit=ReplaceOne(), classes=[0, 1])
    for wrong in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match="finite numbers from 0"):
            head.fit(X, Y, np.r_[wrong, np.ones(59)])
    words = "every record has a finite weight from 0"
    assert words in " ".join(head.fit(X, Y, np.ones(60)).privacy_.statement().split())
    assert words not in " ".join(head.fit(X, Y).privacy_.statement().split())


def test_a_weight_of_no_class_is_refused():
    for key in (7, "1"):
        head = BallSVC(radius=0.2, classes=[0, 1], class_weight={key: 3.0})
        assert "is no class" in refused(head, X, Y)


def test_norm_bounds_beyond_float64_are_refused():
    for bound in (1e-200, 1e200):
        for name in ("prototypes", "logistic"):
            why = refused(
                HEADS[name](radius=bound / 10, norm_bound=bound), X * bound, Y
            )
            assert why is not None and "norm_bound must be from" in why
    for bound in (1e-49, 1e49):
        head = BallPrototypeClassifier(radius=bound / 10, norm_bound=bound, epsilon=9.0)
        assert np.isfinite(head.fit(X * bound, Y).predict_proba(X * bound)).all()


# -- names of a table with a column of arrays ------------------------------------------


def test_a_table_with_arrays_keeps_its_names():
    table = pd.DataFrame({"emb": list(X[:, :2]), "age": X[:, 2]})
    head = BallPrototypeClassifier(radius=0.2, epsilon=50.0).fit(table, Y)
    assert head.feature_names_in_.tolist() == ["emb[0]", "emb[1]", "age"]
    assert np.array_equal(head.predict(table), head.predict(table.copy()))
    for other in (table[["age", "emb"]], table.rename(columns={"age": "salary"})):
        with pytest.raises(ValueError, match="feature names"):
            head.predict(other)
    clipped = ClipRows(1.0).fit(table)
    with pytest.raises(ValueError, match="feature names"):
        clipped.transform(table[["age", "emb"]])
    twice = pd.DataFrame(X[:, :2], columns=["a", "a"])
    assert "two columns with the name 'a'" in refused(head, twice, Y)


def test_dates_are_no_numbers():
    days = pd.date_range("2020", periods=60)
    for table in (
        pd.DataFrame({"day": days}),
        pd.DataFrame({"day": days.tz_localize("UTC"), "emb": list(X)}),
        pd.DataFrame({"a": X[:, 0], "long": days - days[0]}),
    ):
        why = refused(BallPrototypeClassifier(radius=1.0), table, Y)
        assert why is not None and "holds dates" in why
