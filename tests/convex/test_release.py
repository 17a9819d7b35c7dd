"""`release_head`: what it refuses, what it charges and what it says."""

from typing import Any

import numpy as np
import pytest

from demur.convex import NotAtMinimiser, release_head
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger

HEAD: dict[str, Any] = {
    "loss": "logistic",
    "n": 5000,
    "lam": 0.01,
    "norm_bound": 1.0,
    "radius": 0.3,
    "epsilon": 1.0,
    "delta": 1e-6,
}
THETA = np.array([0.4, -0.1, 0.2])


def new_ledger(epsilon=1.0):
    return Ledger(Budget(epsilon, 1e-6), unit=Ball(0.3, space="records"))


def test_it_fits_its_budget_exactly_and_only_once():
    ledger = new_ledger()
    release = release_head(THETA, **HEAD, ledger=ledger, gradient_norm=1e-10)
    assert release.value.shape == (3,) and not np.array_equal(release.value, THETA)
    assert 0.999 < release.entry.epsilon(Ball(0.3, space="records"), 1e-6) <= 1.0
    assert release.entry.epsilon(Ball(0.1, space="records"), 1e-6) < 0.5
    assert release.entry.epsilon(ReplaceOne(), 1e-6) > 1.0
    with pytest.raises(BudgetExceeded):
        release_head(THETA, **HEAD, ledger=ledger, gradient_norm=1e-10)
    assert len(ledger.entries()) == 1


def test_a_head_that_is_not_the_minimiser_is_refused():
    ledger = new_ledger()
    with pytest.raises(NotAtMinimiser, match="nothing was charged"):
        release_head(THETA, **HEAD, ledger=ledger, gradient_norm=1e-3)
    assert not ledger.entries()


def test_without_data_the_statement_is_conditional():
    assert "this was not checked" in release_head(THETA, **HEAD).statement()
    certified = release_head(THETA, **HEAD, gradient_norm=0.0).statement()
    assert "this was not checked" not in certified
    assert "Not recorded" in certified and "labels" in certified


def test_an_estimated_radius_or_bound_is_named():
    release = release_head(
        THETA,
        **HEAD,
        norm_source="estimated",
        bounds=(Bound(0.3, BoundSource.ESTIMATED, what="radius"),),
    )
    assert "CONDITIONAL on bounds estimated" in release.statement()


def test_a_declared_loss():
    head = HEAD | {"loss": "declared"}
    release = release_head(THETA, **head, lz=2.0)
    assert "Lz of the loss <= 2" in release.statement()
    with pytest.raises(ValueError, match="needs lz"):
        release_head(THETA, **head)
    with pytest.raises(ValueError, match="lz is for"):
        release_head(THETA, **HEAD, lz=2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"lam": 0.0},
        {"n": 0},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"radius": 0.0},
        {"norm_bound": -1.0},
        {"loss": "absolute"},
        {"theta": [np.nan, 0.0, 0.0]},
        {"tau": -1.0},
    ],
    ids=str,
)
def test_bad_arguments_charge_nothing(change):
    ledger = new_ledger()
    arguments: dict[str, Any] = {"theta": THETA} | HEAD | change
    with pytest.raises(ValueError):
        release_head(**arguments, ledger=ledger)
    assert not ledger.entries()


def test_a_ledger_must_be_a_ledger():
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        release_head(THETA, **(HEAD | {"ledger": "ledger.db"}))
