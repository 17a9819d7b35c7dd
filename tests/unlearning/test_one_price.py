"""A deletion has one price: MemoryPair's odometer and the service charge the same."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from demur.core.accounting.events import Gaussian
from demur.core.accounting.gaussian import ideal_delta
from demur.core.adjacency import Erasure
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from demur.unlearning import (
    MemoryPair,
    PrivacyOdometer,
    UnlearnableClassifier,
    UnlearnableRegressor,
    UnlearningService,
    make_mode,
)
from demur.unlearning.pricing import capacity, plan
from demur.unlearning.pricing.prices import DeletionPrices
from demur.unlearning.pricing.terms import ServiceTerms

BUDGETS = [(0.3, 1e-6), (1.0, 1e-5), (4.0, 1e-8), (1.0, 1e-3)]
ACCOUNTINGS = ["gdp", "zcdp"]  # what a service offers


def odometer_of(epsilon, delta, accounting, **terms):
    """The odometer of a MemoryPair, sized after a stream."""
    odometer = PrivacyOdometer(
        epsilon, delta, 0.1, gamma=30.0, accounting=accounting, **terms
    )
    model = MemoryPair(4, odometer, radius=1.0)
    stats = model.finalize_calibration(1.0)
    rng = np.random.default_rng(1)
    model.insert_many(rng.normal(size=(300, 4)) / 3.0, rng.normal(size=300))
    odometer.finalize_with(stats, T_estimate=10_000)
    return odometer


def prices_of(epsilon, delta, accounting, **terms):
    return DeletionPrices(
        ServiceTerms.make(
            {"lam": 0.1, "radius": 1.0},
            mode="ogd",
            dimension=4,
            epsilon=epsilon,
            delta=delta,
            accounting=accounting,
            **terms,
        )
    )


def joint_multipliers(epsilon, delta, accounting):
    """Of one among m deletions that compose: by the odometer, by the service."""
    odometer = odometer_of(epsilon, delta, accounting, scope="joint")
    m = odometer.deletion_capacity
    assert m > 1
    prices = prices_of(epsilon, delta, accounting, scope="joint", capacity=m)
    return odometer.multiplier(), prices.multiplier_of(1)


def best_real_order(count, epsilon, delta):
    """The second formula that there was: zCDP at the best real order."""

    def minus_rho(u):
        a = 1.0 + math.exp(u)
        rho = epsilon - math.log1p(-1.0 / a) + math.log(delta * a) / (a - 1.0)
        return -rho / a

    best = minimize_scalar(minus_rho, bounds=(-8.0, 16.0), method="bounded")
    return math.sqrt(count / (-2.0 * best.fun))


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_deletions_that_compose_have_one_multiplier(epsilon, delta, accounting):
    by_odometer, by_service = joint_multipliers(epsilon, delta, accounting)
    assert by_odometer == by_service


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_second_formula_is_refused(monkeypatch, epsilon, delta):
    """The twin: an odometer that sizes by the best real order, as it once did."""

    def second(terms, constants, m, request=1):
        return best_real_order(m, terms.epsilon, ideal_delta(terms.delta))

    monkeypatch.setattr(plan, "multiplier", second)
    by_odometer, by_service = joint_multipliers(epsilon, delta, "zcdp")
    assert by_odometer < by_service < 1.02 * by_odometer


def test_the_two_formulas_of_one_input():
    ideal = ideal_delta(1e-5)
    assert best_real_order(100, 1.0, ideal) == pytest.approx(40.45131, abs=1e-5)
    one = capacity.multiplier(100, 1.0, ideal, "zcdp")
    assert one == pytest.approx(40.45386, abs=1e-5)


@pytest.mark.parametrize("accounting", ["gdp", "zcdp", "rdp"])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_ledger_of_the_budget_admits_them_all_and_no_less_noise(
    epsilon, delta, accounting
):
    def admitted(z):
        rule = "gaussian" if accounting == "gdp" else "rdp"
        ledger = Ledger(Budget(epsilon, delta), unit=Erasure(), filter=rule)
        cost = Cost((Fixed(Erasure(), Gaussian(z)),))
        try:
            ledger.reserve(Declaration("a deletion", cost), count=100, label="all")
        except BudgetExceeded:
            return False
        return True

    z = capacity.multiplier(100, epsilon, ideal_delta(delta), accounting)
    assert admitted(z)
    assert not admitted(z * (1.0 - 2.0**-40))
    if accounting != "gdp":
        assert not admitted(best_real_order(100, epsilon, ideal_delta(delta)))


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("requests", [None, 1, 3])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS[:2])
def test_requests_of_one_person_have_one_multiplier(
    epsilon, delta, accounting, requests
):
    terms = {"requests_per_subject": requests}
    odometer = odometer_of(epsilon, delta, accounting, **terms)
    prices = prices_of(epsilon, delta, accounting, **terms)
    for number in range(1, (requests or 5) + 1):
        z = prices.multiplier_of_request(number)
        assert odometer.multiplier(number) == z
        series = Fraction(number**2) / Fraction(607927101854026, 10**15)
        count = series if requests is None else requests
        assert z == capacity.multiplier(count, epsilon, ideal_delta(delta), accounting)


def test_the_default_for_requests_is_one():
    """No number limits a person's requests, wherever nobody says otherwise."""
    for callable_ in (
        PrivacyOdometer,
        UnlearnableRegressor,
        UnlearnableClassifier,
        UnlearningService.open,
        ServiceTerms,
    ):
        default = inspect.signature(callable_).parameters["requests_per_subject"]
        assert default.default is None, callable_


@pytest.mark.parametrize("terms", [{}, {"requests_per_subject": 2}])
def test_a_deletion_draws_the_same_noise_in_both(tmp_path, monkeypatch, terms):
    """End to end: the deviation of a person's first and second deletion."""
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(60, 4)) / 3.0, rng.normal(size=60)
    subjects = [f"p{i // 2}" for i in range(60)]
    drawn = []
    draw = PrivacyOdometer.noise

    def noted(*arguments, **more):
        noise = draw(*arguments, **more)
        drawn.append((noise.sigma, noise.grid))
        return noise

    monkeypatch.setattr(PrivacyOdometer, "noise", noted)
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=30.0, **terms)
    model = MemoryPair(4, odometer, mode=make_mode("ogd", 4, lam=0.1))
    odometer.finalize_with(model.finalize_calibration(1.0), T_estimate=10**6)
    for i in range(60):
        model.insert(X[i], Y[i], f"r{i}", subjects[i])
    for i in (6, 7, 20):
        model.delete(record_id=f"r{i}")
    with UnlearningService.open(
        tmp_path / "model.db",
        mode="ogd",
        dimension=4,
        lam=0.1,
        epsilon=1.0,
        delta=1e-5,
        **terms,
    ) as service:
        service.insert_many(
            X, Y, record_ids=[f"r{i}" for i in range(60)], subject_ids=subjects
        )
        sigmas = [service.delete(f"r{i}").sigma for i in (6, 7, 20)]
    assert [sigma for sigma, _ in drawn] == sigmas
    assert odometer.deletions_made == 3
    assert odometer.capacity_used == (2 + 4 if not terms else 3)
