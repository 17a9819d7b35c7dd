"""Meta-estimators, folds and workers around a head: refused, or conditions."""

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, RFECV
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    TunedThresholdClassifierCV,
    cross_validate,
)
from sklearn.multiclass import (
    OneVsOneClassifier,
    OneVsRestClassifier,
    OutputCodeClassifier,
)
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from demur.convex import BallLogisticRegression, BallPrototypeClassifier
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import Seeded
from demur.core.errors import NotPrivate
from demur.ledger import Budget, Ledger
from demur.preprocessing import ClipRows, pipelines
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

X, Y = blobs(60, 3, 2)
Y3 = np.arange(60) % 3
SOME = np.where(np.arange(60) % 5 == 0, -1, Y)
BALL, ANY = Ball(0.2, space="records"), ReplaceOne()


def prototypes(**given):
    return BallPrototypeClassifier(**({"unit": BALL, "epsilon": 4.0} | given))


def logistic(**given):
    return BallLogisticRegression(**({"unit": BALL, "epsilon": 4.0} | given))


def said(head):
    return " ".join(head.privacy_.statement().split())


# -- what is wrong with them, measured -------------------------------------------------


def _stacks():
    """1-NN votes: 40 rows change their nearest neighbour when the first one moves."""
    y = np.r_[1, np.zeros(40, int), np.ones(19, int)]
    far = np.zeros((19, 40))
    far[:, 0] = 0.9 + np.arange(19) * 1e-4
    rows = np.vstack([np.zeros((1, 40)), 0.1 * np.eye(40), far])
    moved = rows.copy()
    moved[0, 1] = -0.2
    head = prototypes(epsilon=1.0, classes=[0, 1], source=Seeded(1))
    knn = KNeighborsClassifier(1)
    stacks = [StackingClassifier([("knn", knn)], head) for _ in range(2)]
    return stacks, (rows, moved), y


def test_the_final_head_of_a_stack_moves_far_more_than_it_declares(monkeypatch):
    stacks, rows, y = _stacks()
    for stack, one in zip(stacks, rows, strict=True):
        with pytest.raises(NotPrivate, match="StackingClassifier.*Nothing was charged"):
            stack.fit(one, y)
    # Twin: without the check both are fitted, and tell the worlds apart at once.
    monkeypatch.setattr(pipelines, "conditions_around", lambda head, unit: ())
    one, two = (s.fit(r, y).final_estimator_ for s, r in zip(stacks, rows, strict=True))
    sigma = np.asarray(one.privacy_.sigma)[:, None]
    assert np.linalg.norm((one.prototypes_ - two.prototypes_) / sigma) > 10.0


# -- refused by name -------------------------------------------------------------------

REFUSED = {
    "a final pipeline": (
        lambda h: StackingClassifier(
            [("knn", KNeighborsClassifier(1))], make_pipeline(ClipRows(), h)
        ),
        prototypes(),
        Y,
    ),
    "bootstrap": (lambda h: BaggingClassifier(h, 2), prototypes(), Y),
    "bootstrap of pipelines": (
        lambda h: BaggingClassifier(make_pipeline(ClipRows(), h), 2),
        logistic(),
        Y,
    ),
    "bootstrap of columns": (
        lambda h: BaggingClassifier(h, 2, bootstrap=False, bootstrap_features=True),
        prototypes(),
        Y,
    ),
    "pairs": (OneVsOneClassifier, logistic(unit=ANY, classes=[0, 1]), Y3),
    "self-training": (SelfTrainingClassifier, logistic(), SOME),
    "boosting": (lambda h: AdaBoostClassifier(h, n_estimators=2), logistic(), Y),
    "a chain": (lambda h: ClassifierChain(h, cv=2), logistic(), np.c_[Y, Y]),
    "columns by scores": (lambda h: RFECV(h, cv=2), logistic(), Y),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_meta_estimator_that_breaks_the_promise_is_refused_by_name(case):
    around, head, y = REFUSED[case]
    unit = head.unit
    ledger = Ledger(Budget(400.0, 1e-3), unit=unit)
    whole = around(clone(head).set_params(ledger=ledger))
    with pytest.raises(NotPrivate, match=f"inside {type(whole).__name__}"):
        whole.fit(X, y)
    assert not ledger.entries()


def test_a_pair_of_classes_is_found_in_a_worker():
    head = logistic(unit=ANY, classes=[0, 1])
    with joblib.parallel_backend("threading", n_jobs=2), pytest.raises(NotPrivate):
        OneVsOneClassifier(head, n_jobs=2).fit(X, Y3)


ALLOWED = {
    "a vote": (lambda h: VotingClassifier([("a", h)]), logistic(), Y),
    "subsets": (lambda h: BaggingClassifier(h, 2, bootstrap=False), prototypes(), Y),
    "weights": (lambda h: BaggingClassifier(h, 2), logistic(), Y),
    "pairs at a ball": (OneVsOneClassifier, logistic(), Y3),
    "one class": (OneVsRestClassifier, logistic(), Y3),
    "a first layer": (
        lambda h: StackingClassifier([("a", h)], KNeighborsClassifier(), cv=2),
        prototypes(),
        Y,
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_those_that_keep_it_are_not(case):
    around, head, y = ALLOWED[case]
    for one in around(head).fit(X, y).estimators_:
        assert "conditional" not in said(one), said(one)


def test_an_ensemble_that_only_stands_by_is_not_concerned():
    def fit_beside(ensemble, head):
        return head.fit(X, Y)

    beside = AdaBoostClassifier(logistic())
    assert "conditional" not in said(fit_beside(beside, prototypes()))
    assert "conditional" not in said(fit_beside(Own(), prototypes()))


# -- conditions ------------------------------------------------------------------------


class Own(ClassifierMixin, BaseEstimator):
    """A pipeline of the user's own, with names of its own."""

    def __init__(own, head=None):
        own.head = head

    def fit(own, X, y):
        own.head_ = clone(own.head).fit(StandardScaler().fit_transform(X), y)
        return own


class Scaled(ClipRows):
    def _map(self, rows):
        return StandardScaler().fit_transform(rows)


def test_estimators_and_maps_of_the_users_own_are_conditions():
    assert "Own, which fitted this head" in said(Own(prototypes()).fit(X, Y).head_)
    words = "(Scaled) of the pipeline maps one row at a time"
    assert words in said(make_pipeline(Scaled(), prototypes()).fit(X, Y)[-1])
    assert words not in said(make_pipeline(ClipRows(), prototypes()).fit(X, Y)[-1])


def test_a_prefit_stack_and_a_chosen_set_of_columns_are_conditions():
    knn = KNeighborsClassifier(3).fit(X, Y)
    stack = StackingClassifier([("knn", knn)], prototypes(), cv="prefit").fit(X, Y)
    assert "StackingClassifier were fitted on public data" in said(
        stack.final_estimator_
    )
    chosen = RFE(logistic(), n_features_to_select=2).fit(X, Y)
    assert "chosen by earlier releases of RFE" in said(chosen.estimator_)


RENUMBERED = {
    "a vote": lambda h: VotingClassifier([("a", h)]),
    "a stack": lambda h: StackingClassifier([("a", h)], KNeighborsClassifier(), cv=2),
    "subsets": lambda h: BaggingClassifier(h, 1, bootstrap=False, random_state=0),
    "one class": OneVsRestClassifier,
    "codes": lambda h: OutputCodeClassifier(h, random_state=0),
}


@pytest.mark.parametrize("around", RENUMBERED)
def test_classes_that_are_numbered_by_the_labels_are_a_condition(around):
    words = "numbers all of them anew"
    for unit in (ANY, BALL):  # labels are public at a ball
        two = {"one class": [0, 1], "codes": [-1, 1]}.get(around)
        head = logistic if two else prototypes
        one = head(unit=unit, classes=two or [0, 1, 2])
        fitted = RENUMBERED[around](one).fit(X, Y3).estimators_[0]
        assert (words in said(fitted)) == (unit is ANY)


def test_one_label_moves_those_of_all_others_in_a_vote():
    # The only record of class 0 is replaced: what is wrong with them, measured.
    y = np.r_[0, 1 + np.arange(59) % 2]
    heads = []
    for labels in (y, np.r_[1, y[1:]]):
        head = prototypes(unit=ANY, classes=[0, 1, 2], source=Seeded(1))
        (fitted,) = VotingClassifier([("a", head)]).fit(X, labels).estimators_
        heads.append(fitted)
    moved = np.subtract(*(np.asarray(head.privacy_.counts) for head in heads))
    assert np.abs(moved).max() > 10.0  # a replacement moves two counts by one
    assert "numbers all of them anew" in said(heads[0])


def test_weights_that_decide_who_is_drawn():
    weights = np.linspace(0.0, 1.0, len(Y))
    bag = BaggingClassifier(logistic(), 1, max_samples=20, random_state=0)
    (fitted,) = bag.fit(X, Y, sample_weight=weights).estimators_
    assert "weights, by which BaggingClassifier draws records, are public" in said(
        fitted
    )
    # One weight decides all draws.
    drawn = bag.estimators_samples_[0]
    bag.fit(X, Y, sample_weight=np.r_[30.0, weights[1:]])
    assert not np.array_equal(drawn, bag.estimators_samples_[0])
    bag.set_params(estimator=logistic(unit=ANY, classes=[0, 1]))
    with pytest.raises(NotPrivate, match="weights of all records decide"):
        bag.fit(X, Y, sample_weight=weights)


def test_what_a_search_chose_by_scores_is_a_condition():
    ledger = Ledger(Budget(1000.0, 1e-3), unit=BALL)
    head = prototypes(ledger=ledger)
    for lams, chosen in (([0.0, 0.1], True), ([0.1], False)):
        before = len(ledger.entries())
        GridSearchCV(head, {"lam": lams}, cv=KFold(2), error_score="raise").fit(X, Y)
        words = "by scores on the same records"
        entries = ledger.entries()[before:]
        found = [words in " ".join(e.declaration.assumptions) for e in entries]
        # In a fold the parameters are those of the grid, which is public.
        assert found == [False] * (2 * len(lams)) + [chosen]


def test_so_are_the_later_rounds_of_a_halving_search():
    ledger = Ledger(Budget(1000.0, 1e-3), unit=BALL)
    head, folds = prototypes(ledger=ledger), KFold(2)
    halving = HalvingGridSearchCV(
        head, {"lam": [0.0, 0.1]}, cv=folds, factor=2, min_resources=20, refit=False
    )
    halving.fit(X, Y)
    words = "by scores on the same records"
    found = [words in " ".join(e.declaration.assumptions) for e in ledger.entries()]
    assert found == [False] * 4 + [True] * 2


def test_what_a_meta_estimator_fits_without_noise_is_named():
    calibrated = CalibratedClassifierCV(prototypes(), cv=KFold(2)).fit(X, Y)
    (one, _) = calibrated.calibrated_classifiers_
    assert "the calibration of CalibratedClassifierCV" in said(one.estimator)
    tuned = TunedThresholdClassifierCV(prototypes(), cv=KFold(2)).fit(X, Y)
    assert "the threshold of TunedThresholdClassifierCV" in said(tuned.estimator_)
    stack = StackingClassifier([("a", prototypes())], KNeighborsClassifier(), cv=2)
    (first,) = stack.fit(X, Y).estimators_
    assert "the final estimator of StackingClassifier" in said(first)


FOLDS = "no label decides which records are in a fold"


def test_folds_that_look_at_labels_are_a_condition_of_a_replacement():
    any_change = prototypes(unit=ANY, classes=[0, 1])

    def fold(head, cv):
        found = cross_validate(
            head, X, Y, cv=cv, return_estimator=True, error_score="raise"
        )
        return said(found["estimator"][0])

    assert FOLDS in fold(any_change, 2) and "StratifiedKFold" in fold(any_change, 2)
    assert FOLDS not in fold(any_change, KFold(2))
    assert FOLDS not in fold(prototypes(), 2)  # labels are public at a ball
    calibrated = CalibratedClassifierCV(clone(any_change), cv=2).fit(X, Y)
    assert FOLDS in said(calibrated.calibrated_classifiers_[0].estimator)
    ledger = Ledger(Budget(100.0, 1e-3), unit=ANY)
    any_change.set_params(ledger=ledger)
    search = GridSearchCV(any_change, {"lam": [0.1]}, cv=2, error_score="raise")
    search.fit(X, Y)
    found = [" ".join(entry.declaration.assumptions) for entry in ledger.entries()]
    # The last fit is on all records, whatever the folds were.
    assert [FOLDS in words for words in found] == [True, True, False]


@pytest.mark.parametrize("around", ["a vote", "one class"])
def test_a_worker_says_that_it_did_not_see_the_steps_around_it(around):
    head = logistic() if around == "one class" else prototypes()
    inner = OneVsRestClassifier(head, n_jobs=2)
    if around == "a vote":
        inner = VotingClassifier([("a", head), ("b", clone(head))], n_jobs=2)
    y = Y3 if around == "one class" else Y
    with joblib.parallel_backend("threading", n_jobs=2):
        whole = make_pipeline(StandardScaler(), inner).fit(X, y)
    for one in whole[-1].estimators_:
        assert "steps around this worker were not seen" in said(one)
    # In one thread the scaler is seen.
    with pytest.raises(NotPrivate, match="StandardScaler"):
        make_pipeline(StandardScaler(), clone(inner).set_params(n_jobs=1)).fit(X, y)


@pytest.mark.deep
def test_so_does_a_process():
    words = "steps around this worker were not seen"
    for jobs in (1, 2):
        found = joblib.Parallel(n_jobs=jobs)(
            joblib.delayed(prototypes().fit)(X, Y) for _ in range(2)
        )
        assert [words in said(one) for one in found] == [jobs == 2] * 2
