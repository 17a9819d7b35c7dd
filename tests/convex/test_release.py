"""`release_head`: what it refuses, what it charges and what it says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demur import Promise
from demur.convex import DeclaredForm, Fit, HeadForm, NotAtMinimiser, release_head
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.errors import BudgetExceeded, NotCovered
from demur.ledger import Budget, Ledger

FORM = HeadForm("logistic", lam=0.01, norm_bound=1.0)
PROMISE = Promise(Ball(0.3, space="records"), epsilon=1.0, delta=1e-6)
CERTIFIED = Fit(5000, gradient_norm=1e-10)
THETA = np.array([0.4, -0.1, 0.2])


def new_ledger(epsilon=1.0):
    return Ledger(Budget(epsilon, 1e-6), unit=Ball(0.3, space="records"))


def test_it_fits_its_budget_exactly_and_only_once():
    ledger = new_ledger()
    release = release_head(THETA, FORM, PROMISE, CERTIFIED, ledger=ledger)
    assert release.value.shape == (3,) and not np.array_equal(release.value, THETA)
    assert 0.999 < release.entry.epsilon(Ball(0.3, space="records"), 1e-6) <= 1.0
    assert release.entry.epsilon(Ball(0.1, space="records"), 1e-6) < 0.5
    assert release.entry.epsilon(ReplaceOne(), 1e-6) > 1.0
    with pytest.raises(BudgetExceeded):
        release_head(THETA, FORM, PROMISE, CERTIFIED, ledger=ledger)
    assert len(ledger.entries()) == 1


def test_a_head_that_is_not_the_minimiser_is_refused():
    ledger = new_ledger()
    with pytest.raises(NotAtMinimiser, match="nothing was charged"):
        far = Fit(5000, gradient_norm=1e-3)
        release_head(THETA, FORM, PROMISE, far, ledger=ledger)
    assert not ledger.entries()


def test_without_data_the_statement_is_conditional():
    unchecked = release_head(THETA, FORM, PROMISE, Fit(5000))
    assert "this was not checked" in unchecked.statement()
    certified = release_head(THETA, FORM, PROMISE, CERTIFIED).statement()
    assert "this was not checked" not in certified
    assert "Not recorded" in certified and "labels" in certified


def test_an_estimated_radius_or_bound_is_named():
    radius = Bound(0.3, BoundSource.ESTIMATED, what="radius")
    release = release_head(THETA, FORM, PROMISE, Fit(5000), bounds=(radius,))
    assert "CONDITIONAL on bounds estimated" in release.statement()
    form = replace(FORM, norm_source="estimated")
    release = release_head(THETA, form, PROMISE, Fit(5000))
    assert "CONDITIONAL on bounds estimated" in release.statement()


def test_a_declared_loss():
    form = DeclaredForm(lam=0.01, norm_bound=1.0, lz=2.0)
    release = release_head(THETA, form, PROMISE, Fit(5000))
    assert "Lz of the loss <= 2" in release.statement()
    with pytest.raises(NotCovered):
        release.entry.epsilon(ReplaceOne(), 1e-6)
    capped = replace(form, gradient_bound=4.0)
    release = release_head(THETA, capped, PROMISE, Fit(5000))
    assert release.entry.epsilon(ReplaceOne(), 1e-6) > 1.0
    with pytest.raises(ValueError, match="is a DeclaredForm"):
        HeadForm("declared", lam=0.01, norm_bound=1.0)


def test_classes_read_off_the_labels_leave_replacement_out():
    release = release_head(THETA, FORM, PROMISE, Fit(5000, classes_public=False))
    with pytest.raises(NotCovered):
        release.entry.epsilon(ReplaceOne(), 1e-6)


def test_a_promise_is_made_where_n_is_public():
    for promise in (Promise(AddOrRemoveOne(), 1.0, 1e-6), (1.0, 1e-6)):
        with pytest.raises(TypeError, match="promise must be a Promise at a Ball"):
            release_head(THETA, FORM, promise, CERTIFIED)


def test_a_form_without_a_norm_bound_has_no_sensitivity():
    with pytest.raises(ValueError, match="norm_bound must be positive and finite"):
        release_head(THETA, HeadForm("logistic", lam=0.01), PROMISE, CERTIFIED)


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
        {"theta": []},
        {"tau": -1.0},
        {"tau": 0.0},
    ],
    ids=str,
)
def test_bad_arguments_charge_nothing(change):
    ledger = new_ledger()
    given: dict[str, Any] = {"theta": THETA, "loss": "logistic", "n": 5000}
    given |= {"lam": 0.01, "norm_bound": 1.0, "radius": 0.3, "tau": 1e-9}
    given |= {"epsilon": 1.0, "delta": 1e-6} | change
    with pytest.raises(ValueError):
        release_head(
            given["theta"],
            HeadForm(given["loss"], lam=given["lam"], norm_bound=given["norm_bound"]),
            Promise(
                Ball(given["radius"], space="records"), given["epsilon"], given["delta"]
            ),
            Fit(given["n"], tau=given["tau"]),
            ledger=ledger,
        )
    assert not ledger.entries()


def test_a_ledger_must_be_a_ledger():
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        release_head(THETA, FORM, PROMISE, CERTIFIED, ledger="ledger.db")
