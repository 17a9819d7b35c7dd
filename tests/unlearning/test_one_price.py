"""A deletion has one price: MemoryPair's odometer and the service charge the same."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from demur import unlearning
from demur.core.accounting import inverse_square_up
from demur.core.accounting.events import GaussianEvent
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
    make_mode,
)
from demur.unlearning.pricing import capacity, odometer_plan
from demur.unlearning.pricing.budget import DeletionBudget
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from tests.unlearning.service_kit import UnlearningService

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
    return odometer.multiplier(), prices.price().multiplier


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

    def second(terms, constants, m):
        return best_real_order(m, terms.epsilon, ideal_delta(terms.delta))

    monkeypatch.setattr(odometer_plan, "first_multiplier", second)
    by_odometer, by_service = joint_multipliers(epsilon, delta, "zcdp")
    assert by_odometer < by_service < 1.02 * by_odometer


def test_the_two_formulas_of_one_input():
    ideal = ideal_delta(1e-5)
    assert best_real_order(100, 1.0, ideal) == pytest.approx(40.45131, abs=1e-5)
    one = capacity.multiplier(100, 1.0, ideal, "zcdp")
    assert one == pytest.approx(40.45386, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["gdp", "zcdp", "rdp"])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_ledger_of_the_budget_admits_them_all_and_no_less_noise(
    epsilon, delta, accounting
):
    def admitted(z):
        rule = "gaussian" if accounting == "gdp" else "rdp"
        ledger = Ledger(Budget(epsilon, delta), unit=Erasure(), filter=rule)
        cost = Cost((Fixed(Erasure(), GaussianEvent(z)),))
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
        z = prices.price(number).multiplier
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
        unlearning.UnlearningService.open,
        ServiceTerms,
    ):
        default = inspect.signature(callable_).parameters["requests_per_subject"]
        assert default.default is None, callable_


RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(60, 4)) / 3.0, RNG.normal(size=60)
IDS = [f"r{i}" for i in range(60)]


def by_stream(delete, subjects, **terms):
    """The deviations that a MemoryPair draws for these deletions, and its odometer."""
    sigmas = []
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=3000.0, **terms)
    draw = odometer.noise

    def noted(*arguments):
        noise = draw(*arguments)
        sigmas.append(noise.sigma)
        return noise

    odometer.noise = noted
    model = MemoryPair(4, odometer, mode=make_mode("ogd", 4, lam=0.1))
    odometer.finalize_with(model.finalize_calibration(1.0), T_estimate=10**6)
    for x, y, record_id, subject_id in zip(X, Y, IDS, subjects, strict=True):
        model.insert(x, y, record_id, subject_id)
    for named in delete:
        model.delete(**named)
    return sigmas, odometer


def by_service(path, delete, subjects, **terms):
    """The same of a service, and how much of its capacity is used."""
    options = {"mode": "ogd", "dimension": 4, "lam": 0.1, "epsilon": 1.0}
    sigmas = []
    with UnlearningService.open(path, delta=1e-5, **options, **terms) as service:
        service.insert_many(X, Y, record_ids=IDS, subject_ids=subjects)
        for named in delete:
            if "subject_id" in named:
                sigmas.append(service.delete_subject(**named)[0].sigma)
            else:
                sigmas.append(service.delete(**named).sigma)
        assert service.verify().ok
        return sigmas, service.status().used


@pytest.mark.parametrize("terms", [{}, {"requests_per_subject": 2}])
def test_a_deletion_draws_the_same_noise_in_both(tmp_path, terms):
    """End to end: the deviation of a person's first and second deletion."""
    subjects = [f"p{i // 2}" for i in range(60)]
    delete = [{"record_id": f"r{i}"} for i in (6, 7, 20)]
    sigmas, odometer = by_stream(delete, subjects, **terms)
    in_service, used = by_service(tmp_path / "model.db", delete, subjects, **terms)
    assert sigmas == in_service
    assert odometer.deletions_made == 3
    assert odometer.capacity_used == used == (1 + 4 + 1 if not terms else 3)


# A person's three records at once, then two records of another person one by one.
THREE = [{"subject_id": "p2"}, {"record_id": "r0"}, {"record_id": "r1"}]
OWNERS = [f"p{i // 3}" for i in range(60)]


def three_records(path, scope):
    """Deviations and capacity used, by the stream and by the service."""
    sigmas, odometer = by_stream(THREE, OWNERS, scope=scope)
    capacity = odometer.deletion_capacity if scope == "joint" else None
    service = by_service(path, THREE, OWNERS, scope=scope, capacity=capacity)
    return (sigmas, odometer.capacity_used), service, odometer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scope", "used", "noise"),
    [
        # (k z_j / z_1)^2: three times the noise, then a first and a second request.
        ("subject", 9 + 1 + 4, (3.0, 1.0, 2.0)),
        # One part for each record, and the noise of three deletions one by one.
        ("joint", 3 + 1 + 1, (math.sqrt(3.0), 1.0, 1.0)),
    ],
)
def test_several_records_in_one_request_have_one_price(tmp_path, scope, used, noise):
    stream, service, odometer = three_records(tmp_path / "model.db", scope)
    assert stream == service
    assert stream[1] == used
    ratios = np.array(stream[0]) / stream[0][1]
    # The shifts of the three differ in the grids of the deletions before.
    assert ratios == pytest.approx(noise, rel=1e-4)
    drawn = odometer._payment.reservation.drawn
    assert drawn == (used if scope == "joint" else 3)
    assert odometer.deletions_made == 3


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["subject", "joint"])
def test_one_part_for_any_number_of_records_is_refused(tmp_path, monkeypatch, scope):
    """The twin: the stream's old rule, which did not ask how many records."""
    price = odometer_plan.request_price

    def careless(*plan, request=1, records=1):
        return price(*plan, request=request)

    monkeypatch.setattr(odometer_plan, "request_price", careless)
    stream, service, _ = three_records(tmp_path / "model.db", scope)
    assert stream[1] < service[1]
    if scope == "joint":
        assert stream[0][0] == pytest.approx(service[0][0] * math.sqrt(3.0), rel=1e-5)


@pytest.mark.parametrize("accounting", ["gdp", "zcdp", "rdp", "basic"])
def test_a_request_of_several_records_costs_what_its_draws_paid(accounting):
    """k draws of multiplier z pay for one noise of z / sqrt(k), to the last bit."""
    for m in (7, 100, 3179):
        budget = DeletionBudget(1.0, 1e-5, accounting)
        first = budget.multiplier(Fraction(1, m))
        for k in range(2, 8):
            price = budget.price("deletions", first=first, capacity=m, records=k)
            assert (price.part, price.used) == (Fraction(k, m), k)
            assert inverse_square_up(price.multiplier) <= k * inverse_square_up(first)
            assert price.multiplier == pytest.approx(first / math.sqrt(k), rel=1e-14)
            # Never less noise than the part itself asks for, but for its rounding.
            least = budget.multiplier(price.part)
            assert price.multiplier >= least * (1.0 - 2.0**-50)


def test_a_publication_is_one_part_whatever_was_deleted():
    budget = DeletionBudget(1.0, 1e-5, "gdp")
    one = budget.price("publications", first=2.0, capacity=9)
    assert budget.price("publications", first=2.0, capacity=9, records=5) == one
    assert (one.part, one.used, one.multiplier) == (Fraction(1, 9), 1, 2.0)


@pytest.mark.parametrize(("requests", "used"), [(None, 36), (4, 9)])
def test_more_noise_of_one_person_takes_more_of_the_capacity(requests, used):
    """Three records in a second request: (3 z_2 / z_1)^2."""
    budget = DeletionBudget(1.0, 1e-5, "gdp", requests)
    first = budget.multiplier(budget.part_of_request(1))
    price = budget.price("nothing", first=first, capacity=None, records=3, request=2)
    assert price.used == used
    assert price.part == budget.part_of_request(2)
    assert price.multiplier == budget.multiplier(price.part)
