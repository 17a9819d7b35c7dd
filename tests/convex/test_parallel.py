"""Heads in parallel workers: a durable ledger is opened again and charged."""

import os
import pickle

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import Ball
from demur.core.errors import BudgetExceeded, LedgerMismatch, NotPrivate
from demur.ledger import Budget, Ledger
from tests.convex.kit import blobs

X, Y = blobs(300, 4, 2)
UNIT = Ball(0.3, space="records")


def test_a_worker_opens_the_ledger_again(tmp_path, monkeypatch):
    """As a child of the process that pickled the head sees it."""
    budgets = {UNIT: Budget(2.0, 1e-6)}
    path = tmp_path / "ledger.db"
    with Ledger.open(path, dataset="blobs", budgets=budgets) as ledger:
        head = BallPrototypeClassifier(epsilon=1.5, radius=0.3, ledger=ledger)
        copy = pickle.loads(pickle.dumps(head))
        monkeypatch.setattr(os, "getppid", os.getpid)
        copy.fit(X, Y)
        assert [entry.id for entry in ledger.entries()] == [copy.entry_.id]
        with pytest.raises(BudgetExceeded, match="would have fitted"):
            pickle.loads(pickle.dumps(head)).fit(X, Y)
    moved = tmp_path / "other.db"
    with Ledger.open(moved, dataset="others", budgets=budgets) as other:
        head.set_params(ledger=other)
        stored = pickle.dumps(head)
    moved.unlink()
    with Ledger.open(moved, dataset="blobs", budgets=budgets):
        with pytest.raises(LedgerMismatch, match="another ledger"):
            pickle.loads(stored).fit(X, Y)


@pytest.mark.deep
def test_every_fold_is_charged_to_the_durable_ledger(tmp_path):
    budgets = {UNIT: Budget(4.0, 1e-6)}
    path = tmp_path / "ledger.db"
    with Ledger.open(path, dataset="blobs", budgets=budgets) as ledger:
        head = BallPrototypeClassifier(epsilon=1.5, radius=0.3, ledger=ledger)
        scores = cross_val_score(head, X, Y, cv=2, n_jobs=2, error_score="raise")
        assert np.isfinite(scores).all() and len(ledger.entries()) == 2
        assert all(ledger.commit_of(entry) for entry in ledger.entries())
        assert ledger.verify().ok and ledger.epsilon() <= 4.0


@pytest.mark.deep
def test_workers_share_one_budget(tmp_path):
    budgets = {UNIT: Budget(4.0, 1e-6)}
    path = tmp_path / "ledger.db"
    with Ledger.open(path, dataset="blobs", budgets=budgets) as ledger:
        head = BallPrototypeClassifier(epsilon=1.5, radius=0.3, ledger=ledger)
        with pytest.raises(BudgetExceeded):
            cross_val_score(head, X, Y, cv=9, n_jobs=2, error_score="raise")
        assert ledger.verify().ok and ledger.epsilon() <= 4.0


def test_a_pickle_that_comes_from_elsewhere_is_refused(tmp_path):
    """Only workers of the process that has the ledger open may open it again."""
    budgets = {UNIT: Budget(4.0, 1e-6)}
    path = tmp_path / "ledger.db"
    with Ledger.open(path, dataset="blobs", budgets=budgets) as ledger:
        head = BallPrototypeClassifier(epsilon=1.5, radius=0.3, ledger=ledger)
        copy = pickle.loads(pickle.dumps(head))
        with pytest.raises(NotPrivate, match="stayed behind"):
            copy.fit(X, Y)
        assert not ledger.entries()


@pytest.mark.deep
def test_a_ledger_in_memory_stays_behind():
    ledger = Ledger(Budget(4.0, 1e-6), unit=UNIT)
    head = BallPrototypeClassifier(epsilon=1.5, radius=0.3, ledger=ledger)
    with pytest.raises(NotPrivate, match="stayed behind"):
        cross_val_score(head, X, Y, cv=2, n_jobs=2, error_score="raise")
    assert not ledger.entries()
