"""The estimators: conventions, refusals, charges and secrets."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    HeadForm,
    NotConverged,
    load_head,
    minimise,
    objective,
    save_head,
)
from demur.convex.rows.class_sums import exact_sums
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit
from demur.core.bounds import clip_rows
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded, NotPrivate
from demur.ledger import Budget, Ledger
from tests.convex.kit import blobs

UNIT = Ball(0.3, space="records")

HEADS: dict[str, Any] = {
    "prototypes": BallPrototypeClassifier(radius=0.3),
    "logistic": BallLogisticRegression(radius=0.3),
    "softmax": BallSoftmaxClassifier(radius=0.3),
    "huber": BallSVC(radius=0.3),
    "squared hinge": BallSVC(loss="squared_hinge", radius=0.3),
    "noisy gd": BallLogisticRegression(radius=0.3, mechanism="noisy_gd", steps=5),
}
every_head = pytest.mark.parametrize("name", HEADS)


def head_of(name, **parameters):
    return clone(HEADS[name]).set_params(**parameters)


# -- scikit-learn's contract ---------------------------------------------------------

# What a private estimator cannot promise: two fits draw two noises, and the checks'
# sets of 20 to 300 records leave little signal under noise for any real epsilon.
NOISY = {
    "check_fit_idempotent",
    "check_supervised_y_2d",
    "check_classifier_data_not_an_array",
    "check_classifiers_train",
    "check_classifiers_classes",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
    "check_class_weight_classifiers",
    # All weights 0: refusing them would be a function of private weights.
    "check_all_zero_sample_weights_error",
}
# All checks on a head of each kind of fit, and a third of them on the others.
WHOLE = {"prototypes", "softmax"}


def contract():
    for h, name in enumerate(HEADS):
        # A very weak promise, so that the noise hides as little as may be.
        estimator = head_of(name, epsilon=100.0, norm_bound=10.0, lam=0.1)
        for c, (_, check) in enumerate(estimator_checks_generator(estimator)):
            what = check.func.__name__
            if what not in NOISY:
                rest = name not in WHOLE and (h + c) % 3
                yield pytest.param(
                    name,
                    check,
                    id=f"{name}-{what}-{c}",
                    marks=pytest.mark.deep if rest else (),
                )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(("name", "check"), list(contract()))
def test_the_contract_of_scikit_learn(name, check):
    estimator = head_of(name, epsilon=100.0, norm_bound=10.0, lam=0.1)
    try:
        check(estimator)
    except Exception as error:
        if type(error).__name__ != "SkipTest":
            raise


# -- learning ------------------------------------------------------------------------


@pytest.mark.slow
@every_head
def test_every_head_learns_something_it_may_say(name):
    X, y = blobs(2000, 4, 2, spread=0.2)
    labels = np.array(["no", "yes"])[y]
    head = head_of(name, epsilon=8.0, classes=["no", "yes"]).fit(X, labels)
    assert head.score(X, labels) > 0.7
    report = head.privacy_
    assert report.mu == pytest.approx(1.53, abs=0.01)
    assert report.epsilon_at(0.3) <= 8.0 and report.epsilon_at(0.1) < 7.0
    radii, epsilons = zip(*report.curve(), strict=True)
    assert list(epsilons) == sorted(epsilons) and radii[-1] == 2.0
    assert epsilons[-1] == report.same_label_epsilon == report.epsilon_at(50.0)
    assert 0.1 < report.reconstruction_bound(0.1) < 0.7
    assert report.to_json()["recorded"] is False
    assert "Not recorded" in report.statement() and "labels" in report.statement()
    assert "fixed without looking" in report.statement()
    full = report.full_replacement_epsilon
    assert full is None if name == "prototypes" else full >= epsilons[-1]
    if hasattr(head, "predict_proba"):
        assert np.allclose(head.predict_proba(X).sum(axis=1), 1.0)


def test_the_reconstruction_bound_is_the_papers():
    X, y = blobs(500, 4, 2)
    head = BallPrototypeClassifier(epsilon=8.0, delta=1e-6, radius=0.3).fit(X, y)
    assert head.privacy_.reconstruction_bound(0.1) == pytest.approx(0.5987, abs=2e-4)


def test_classes_read_off_the_labels_say_nothing_about_a_change_of_label():
    X, y = blobs(500, 4, 2)
    head = BallLogisticRegression(radius=0.3).fit(X, y)
    assert head.privacy_.full_replacement_epsilon is None
    assert "read off the labels" in head.privacy_.statement()


def test_no_bias_and_a_small_bias():
    X, y = blobs(500, 4, 3)
    none = BallSoftmaxClassifier(radius=0.3, bias_scale=0.0).fit(X, y)
    assert none.coef_.shape == (3, 4) and not none.intercept_.any()
    whole = BallSoftmaxClassifier(radius=0.3).fit(X, y)
    small = BallSoftmaxClassifier(radius=0.3, bias_scale=0.1).fit(X, y)
    assert np.max(small.privacy_.sigma) < np.max(whole.privacy_.sigma)


# -- the ledger ------------------------------------------------------------------------


@pytest.mark.slow
@every_head
def test_a_fit_is_charged_once_and_a_second_is_declined(name):
    X, y = blobs(300, 4, 2)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    head = head_of(name, ledger=ledger).fit(X, y)
    assert len(ledger.entries()) == 1 and ledger.epsilon() <= 1.0
    assert head.entry_ is head.privacy_.entry
    assert head.entry_.id == ledger.entries()[0].id
    with pytest.raises(BudgetExceeded):
        head.fit(X, y)
    assert len(ledger.entries()) == 1


def test_a_clone_shares_the_ledger_and_a_pickle_leaves_it():
    X, y = blobs(300, 4, 2)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    head = head_of("logistic", ledger=ledger, epsilon=0.6)
    assert clone(head).ledger is ledger
    with pytest.raises(NotPrivate, match="stayed behind"):
        pickle.loads(pickle.dumps(head)).fit(X, y)
    with pytest.raises(BudgetExceeded):
        # Five fits at 0.6 do not fit: every fold of a cross-validation is a release.
        cross_val_score(head, X, y, cv=5, error_score="raise", n_jobs=None)
    assert 1 <= len(ledger.entries()) < 5


def test_a_durable_ledger_is_named_in_the_statement(tmp_path):
    X, y = blobs(300, 4, 2)
    budgets: dict[Unit, Budget] = {
        UNIT: Budget(2.0, 1e-6),
        ReplaceOne(): Budget(50.0, 1e-6),
    }
    with Ledger.open(
        tmp_path / "ledger.db", dataset="blobs", budgets=budgets
    ) as ledger:
        head = head_of("logistic", ledger=ledger, classes=[0, 1]).fit(X, y)
        assert "Recorded as entry 1" in head.privacy_.statement()
        assert ledger.verify().ok


# -- bad input: a clear error, and nothing charged -----------------------------------

X_GOOD, Y_GOOD = blobs(60, 3, 2)
X_NAN = np.where(np.arange(60)[:, None] == 7, np.nan, X_GOOD)
BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "nan": (X_NAN, Y_GOOD, {}, "NaN"),
    "infinity": (np.where(np.isnan(X_NAN), np.inf, X_NAN), Y_GOOD, {}, "infinity"),
    "rows over the bound": (
        X_GOOD,
        Y_GOOD,
        {"clip": False, "norm_bound": 0.1},
        "longer",
    ),
    "radius and unit": (X_GOOD, Y_GOOD, {"unit": UNIT}, "both given"),
    "a unit without public n": (
        X_GOOD,
        Y_GOOD,
        {"unit": AddOrRemoveOne(), "radius": None},
        "number of records is public",
    ),
    "replacement without classes": (
        X_GOOD,
        Y_GOOD,
        {"unit": ReplaceOne(), "radius": None},
        "classes must be given",
    ),
    "labels outside classes": (X_GOOD, Y_GOOD, {"classes": [1, 5]}, "outside classes"),
    "one record": (X_GOOD[:1], Y_GOOD[:1], {}, "minimum of 2"),
    "one class": (X_GOOD, np.zeros(60, int), {}, "one class"),
    "words": ([["a", "b"]] * 60, Y_GOOD, {}, "could not convert"),
    "complex": (X_GOOD + 1j, Y_GOOD, {}, "omplex"),
    "a vector": (X_GOOD[:, 0], Y_GOOD, {}, "2D"),
    "lengths": (X_GOOD, Y_GOOD[:-1], {}, "inconsistent"),
    "continuous labels": (X_GOOD, X_GOOD[:, 0], {}, "label type"),
    "no radius": (X_GOOD, Y_GOOD, {"radius": None}, "radius must be declared"),
    "negative radius": (X_GOOD, Y_GOOD, {"radius": -1.0}, "radius must be"),
    "epsilon 0": (X_GOOD, Y_GOOD, {"epsilon": 0.0}, "epsilon must be"),
    "delta 0": (X_GOOD, Y_GOOD, {"delta": 0.0}, "delta must be"),
    "norm bound 0": (X_GOOD, Y_GOOD, {"norm_bound": 0.0}, "norm_bound must be"),
    "lam negative": (X_GOOD, Y_GOOD, {"lam": -1.0}, "lam must be"),
}


@pytest.mark.slow
@every_head
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_a_clear_error_and_charges_nothing(name, bad):
    X, y, parameters, words = BAD[bad]
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    head = head_of(name, ledger=ledger, **parameters)
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        head.fit(X, y)
    assert "othing was" in str(raised.value)
    assert not ledger.entries()
    assert not hasattr(head, "privacy_") and not hasattr(head, "entry_")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "softmax", "huber", "squared hinge"])
def test_lam_zero_is_refused_where_it_cannot_be(name):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    with pytest.raises(ValueError, match="lam must be positive"):
        head_of(name, ledger=ledger, lam=0.0).fit(X_GOOD, Y_GOOD)
    assert not ledger.entries()
    head_of("prototypes", lam=0.0).fit(X_GOOD, Y_GOOD)
    head_of("noisy gd", lam=0.0).fit(X_GOOD, Y_GOOD)


@pytest.mark.parametrize("name", ["logistic", "softmax", "huber", "squared hinge"])
def test_a_solver_without_certificate_charges_nothing(name):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    with pytest.raises(NotConverged):
        head_of(name, ledger=ledger, tau=1e-15).fit(X_GOOD, Y_GOOD)
    assert not ledger.entries()


@every_head
def test_constant_features_are_data_like_any_other(name):
    """Refusing them would tell two neighbours apart, and no spread is divided by."""
    head = head_of(name).fit(np.full((60, 3), 0.2), Y_GOOD)
    assert np.isfinite(head.decision_function(X_GOOD)).all()


# -- secrets -------------------------------------------------------------------------


def exact_values(name, X, y):
    """What the fit computes before noise, float by float."""
    rows = clip_rows(X, 1.0).data
    if name == "prototypes":
        sums, _ = exact_sums(rows, y, 2, 1.0)
        counts = np.bincount(y)[:, None]
        return np.concatenate([sums.ravel(), (sums / counts).ravel()])
    loss = {"squared hinge": "squared_hinge"}.get(name, name)
    form = HeadForm(loss, lam=0.01, norm_bound=1.0)
    return minimise(objective(form, rows, y)).theta.ravel()


@pytest.mark.parametrize(
    "name", ["prototypes", "logistic", "softmax", "huber", "squared hinge"]
)
def test_no_exact_parameter_leaves_the_fit(name, tmp_path):
    X, y = blobs(300, 4, 2)
    head = head_of(name).fit(X, y)
    path = tmp_path / "head.npz"
    save_head(head, path)
    stored = {k: v for k, v in np.load(path).items() if k != "meta"}
    kept = pickle.dumps(head) + b"".join(v.tobytes() for v in stored.values())
    text = repr(vars(head)) + np.load(path)["meta"].tobytes().decode()
    found = exact_values(name, X, y)
    assert len(found) >= 5
    for value in found:
        assert value.tobytes() not in kept
        assert repr(float(value)) not in text and f"{value:.12g}" not in text
    # The search itself finds what is there.
    released = head.prototypes_ if name == "prototypes" else head.coef_
    assert released.ravel()[0].tobytes() in kept


@pytest.mark.slow
def test_fitted_attributes_are_the_released_ones_only():
    X, y = blobs(300, 4, 2)
    for name in HEADS:
        head = head_of(name).fit(X, y)
        fitted = {key for key in vars(head) if key.endswith("_")}
        released = {"coef_", "intercept_"}
        if name == "prototypes":
            released = {"prototypes_"}
        assert fitted == released | {"classes_", "n_features_in_", "privacy_"}
        assert set(vars(head)) - fitted == set(head.get_params())


@pytest.mark.slow
def test_a_seeded_head_is_stamped():
    X, y = blobs(300, 4, 2)
    one = head_of("logistic", source=Seeded(1)).fit(X, y)
    assert "NOT PRIVATE" in one.privacy_.statement()
    assert "NOT PRIVATE" not in head_of("logistic").fit(X, y).privacy_.statement()


# -- files ---------------------------------------------------------------------------


@pytest.mark.slow
@every_head
def test_a_saved_head_says_and_predicts_the_same(name, tmp_path):
    X, y = blobs(300, 4, 2)
    head = head_of(name, epsilon=2.0).fit(X, np.array(["no", "yes"])[y])
    save_head(head, tmp_path / "head.npz")
    loaded = load_head(tmp_path / "head.npz")
    assert (loaded.predict(X) == head.predict(X)).all()
    # Who charged it is the ledger's to tell, not a published file's.
    entry = replace(head.entry_, actor="")
    assert loaded.privacy_ == replace(head.privacy_, entry=entry)
    assert loaded.entry_ == entry
    assert loaded.privacy_.to_json() == head.privacy_.to_json()


def test_a_file_that_is_no_head_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    bomb = np.empty(1, dtype=object)
    bomb[0] = Bomb()
    np.savez(tmp_path / "bomb.npz", meta=bomb, allow_pickle=True)
    np.savez(tmp_path / "other.npz", X=np.zeros(3))
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("bomb", "other", "text"):
        with pytest.raises(ValueError, match="not a head"):
            load_head(tmp_path / f"{name}.npz")
    with pytest.raises(TypeError, match="fitted head"):
        save_head(HEADS["logistic"], tmp_path / "unfitted.npz")
