"""`PrivateGridSearch`: one entry for a search over heads, and what leaves it."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from demur import Ball, Budget, Ledger, ReplaceOne, Seeded
from demur.cluster import PrivateKMeans
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSVC,
    load_head,
    save_head,
)
from demur.errors import IdempotencyConflict, NotPriced, NotPrivate, NotSearchable
from demur.ledger import Filter
from demur.preprocessing import PublicScaler
from demur.tuning import (
    BinomialRepetitions,
    PoissonRepetitions,
    PrivateGridSearch,
    default_repetitions,
    held_back,
)
from tests.convex.kit import blobs

UNIT = Ball(0.3, space="records")
LAW = BinomialRepetitions(4, 0.9)
GRID = [{"lam": [0.1, 1.0]}, {"estimator": [BallLogisticRegression(lam=0.05)]}]


def data(n=400):
    X, y = blobs(n, 3, 2, spread=0.2)
    return X, y


def head(**options):
    return BallPrototypeClassifier(epsilon=2.0, radius=0.3, **options)


def ledger(filter="pure"):
    return Ledger(Budget(2.0, 1e-6), unit=UNIT, filter=filter)


def test_a_search_is_an_estimator_that_is_paid_for_once(tmp_path):
    X, y = data()
    paying = ledger()
    search = PrivateGridSearch(
        head(), GRID, ledger=paying, repetitions=LAW, source=Seeded(3)
    )
    search = clone(search).fit(X, y)
    (entry,) = paying.entries()
    best = search.best_estimator_
    assert search.entry_ == best.entry_ == search.privacy_.entry == entry
    assert search.score(X, y) > 0.8 and search.predict_proba(X).shape == (len(y), 2)
    report = search.privacy_
    assert report.searched and report.epsilon == 2.0
    # No discount at a smaller radius: the score costs what it costs.
    assert 1.5 < report.epsilon_at(0.3) <= 2.0
    assert report.epsilon_at(0.01) == pytest.approx(report.epsilon_at(0.3), rel=1e-6)
    assert 0.01 < report.reconstruction_bound(0.01) < 0.5
    assert best.ledger is None
    # What somebody holds who has the file of the winner: nothing of other runs.
    save_head(best, tmp_path / "head.npz")
    again = load_head(tmp_path / "head.npz")
    assert again.entry_.declaration == entry.declaration
    assert again.epsilon == best.epsilon == 2.0  # of the search, not of one run
    assert (again.predict(X) == best.predict(X)).all()
    kept = pickle.loads(pickle.dumps(search))
    assert kept.best_params_ == search.best_params_
    with pytest.raises(NotPrivate):
        kept.fit(X, y)


def test_what_may_not_be_searched_is_refused_and_nothing_is_spent():
    X, y = data(60)
    paying = ledger()

    def refused(error, match, estimator=None, grid=None, **options):
        options = {"ledger": paying, "repetitions": LAW} | options
        with pytest.raises(error, match=match):
            PrivateGridSearch(estimator or head(), grid or GRID, **options).fit(X, y)

    refused(NotSearchable, "local reports", PrivateKMeans(2, epsilon=1.0))
    refused(NotSearchable, "demur.convex", GridSearchCV(head(), {}))
    refused(NotSearchable, "to the search", head(ledger=paying))
    refused(NotSearchable, "epsilon", grid={"epsilon": [1.0, 2.0]})
    refused(TypeError, "(?s)lists of values.*othing was", grid={"lam": 0.1})
    refused(TypeError, "lists of values", grid={"prior": "uniform"})
    refused(ValueError, "1 to 1000 settings", grid=[{"lam": range(1, 1002)}])
    refused(ValueError, "scoring", scoring="auc")
    refused(ValueError, "share", share=1.5)
    refused(ValueError, "(?s)mean.*othing was", repetitions=0.5)
    svc = {"estimator": [BallSVC(lam=0.1)]}
    refused(NotSearchable, "no probabilities", grid=svc, scoring="loss")
    two = BallPrototypeClassifier(
        epsilon=2.0, unit=ReplaceOne(records_per_person=2), classes=[0, 1]
    )
    refused(ValueError, "(?s)ids must name.*trained on and scored", two)
    # One row that no head can answer would fail every run, after the payment.
    X[np.flatnonzero(held_back(np.arange(60)))[0], 0] = np.nan
    refused(ValueError, "(?s)NaN.*othing was")
    assert not paying.entries()


def test_heads_of_one_class_are_told_apart_by_their_parameters():
    X, y = data(80)
    heads = [BallLogisticRegression(lam=lam) for lam in (0.05, 0.5)]
    search = PrivateGridSearch(head(), {"estimator": heads}, repetitions=LAW)
    names = [each.setting for each in search.private_search(X, y).candidates]
    kind = "BallLogisticRegression"
    assert names == [{"estimator": kind, "lam": lam} for lam in (0.05, 0.5)]
    assert default_repetitions(1000).mean_without_limit < 1001  # the most settings


def test_a_gaussian_ledger_needs_a_share_for_blocks_and_says_so():
    X, y = data(80)
    paying = ledger("gaussian")
    with pytest.raises(NotPriced, match="blocks"):
        PrivateGridSearch(head(), GRID, ledger=paying, repetitions=LAW).fit(X, y)
    assert not paying.entries()
    paying = Ledger(Budget(8.0, 1e-6), unit=UNIT, filter=Filter.gaussian(blocks=0.5))
    PrivateGridSearch(head(), GRID, ledger=paying, repetitions=LAW).fit(X, y)
    assert len(paying.entries()) == 1


def test_a_search_that_was_interrupted_goes_on_for_the_same_call_alone(
    tmp_path, monkeypatch
):
    X, y = data(120)
    paying = Ledger.open(
        tmp_path / "ledger.db",
        dataset="rows",
        budgets={UNIT: Budget(2.0, 1e-6)},
        filter="pure",
    )

    def fit(rows=X, labels=y, ids=None, grid=GRID, **options):
        options = {"repetitions": LAW, "label": "s"} | options
        search = PrivateGridSearch(
            head(), grid, ledger=paying, idempotency_key="night", **options
        )
        return search.fit(rows, labels, ids)

    with monkeypatch.context() as patched:

        def killed(self, *rest):
            raise KeyboardInterrupt

        patched.setattr(BallPrototypeClassifier, "fit", killed)
        patched.setattr(BallLogisticRegression, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            fit()
    moved = X.copy()
    moved[0, 0] += 0.01
    # Other persons, as many of each class: every fit would be priced the same.
    back, ids = held_back(np.arange(120)), np.arange(120)
    alike = next(
        key
        for key in map(str, range(10_000))
        if (np.bincount(y[held_back(ids, key=key)]) == np.bincount(y[back])).all()
    )
    for other in (
        {"rows": moved},
        {"labels": 1 - y},
        {"ids": np.arange(120) + 1},
        {"grid": {"lam": [0.1, 2.0]}},
        {"repetitions": BinomialRepetitions(5, 0.9)},
        {"split_key": alike},
        {"share": 0.4},
        {"scoring": "loss"},
    ):
        with pytest.raises(IdempotencyConflict):
            fit(**other)
    assert fit().outcome_ == "found" and len(paying.entries()) == 1


def test_no_run_is_an_outcome_that_predicts_nothing():
    X, y = data(80)
    law = PoissonRepetitions(0.1)
    search = PrivateGridSearch(head(), GRID, repetitions=law, source=Seeded(1))
    search.fit(X, y)
    assert search.outcome_ == "empty"
    with pytest.raises(NotSearchable, match="no run"):
        search.predict(X)
    # The winner of an earlier search is not the winner of this one.
    search.set_params(repetitions=LAW, source=Seeded(3)).fit(X, y)
    assert search.outcome_ == "found" and search.best_estimator_
    search.set_params(repetitions=law, source=Seeded(1)).fit(X, y)
    assert search.outcome_ == "empty"
    assert not {"best_estimator_", "classes_", "n_features_in_"} & set(vars(search))


def test_losses_ids_pipelines_and_any_replacement():
    X, y = data(300)
    any_change = BallPrototypeClassifier(
        epsilon=4.0, unit=ReplaceOne(records_per_person=2), classes=[0, 1]
    )
    search = PrivateGridSearch(
        any_change, {"lam": [0.0, 0.1]}, repetitions=LAW, scoring="loss"
    )
    scaler = PublicScaler(-np.ones(3), np.ones(3))
    piped = Pipeline([("scaled", scaler), ("search", search)])
    piped.fit(X, y, search__ids=np.arange(len(y)) // 2)
    assert piped.score(X, y) > 0.5
    entry = piped["search"].entry_
    assert entry.epsilon(ReplaceOne(2), 1e-6) <= 4.0 * (1 + 1e-9)


def test_grid_search_cv_says_what_a_private_search_would_have_cost():
    X, y = data(60)
    with pytest.warns(UserWarning, match="charges each of its 4 fits") as said:
        GridSearchCV(head(), {"lam": [0.1, 1.0]}, cv=2).fit(X, y)
    (line,) = [str(w.message) for w in said if "charges" in str(w.message)]
    assert "\n" not in line and "PrivateGridSearch" in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head().fit(X, y)
    search = PrivateGridSearch(head(), {"lam": [0.1, 1.0]}, repetitions=LAW)
    with pytest.warns(UserWarning, match="charges each of its 4 private") as said:
        GridSearchCV(search, {"scoring": ["accuracy", "loss"]}, cv=2).fit(X, y)
    (line,) = [str(w.message) for w in said if "charges" in str(w.message)]
    assert "epsilon 2" in line
