"""What deletions cost: parts that never exceed the whole, against other accountants."""

import math
from fractions import Fraction

import numpy as np
import pytest

from demur.core.accounting import inverse_square_up, price
from demur.core.accounting.events import GaussianEvent, compose
from demur.core.adjacency import Erasure
from demur.ledger import Ledger
from demur.unlearning import CapacityExhausted
from demur.unlearning.pricing.capacity import mu_squared_limit, multiplier
from demur.unlearning.pricing.noise import NoiseNeed, moved_by
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms


def prices(**terms):
    defaults = {"mode": "ogd", "dimension": 3, "epsilon": 1.0, "delta": 1e-5}
    return DeletionPrices(ServiceTerms.make({}, **defaults | terms))


def test_parts_of_a_person_never_add_up_to_more_than_one():
    """6/(pi j)^2: the rational number below it, and Euler's sum."""
    of = prices().shares
    first = of.part_of_request(1)
    above_pi = Fraction(314159265358979323847, 10**20)
    assert first * above_pi**2 / 6 < 1  # sum 1/j^2 = pi^2 / 6
    assert float(first) == pytest.approx(6 / math.pi**2, rel=1e-14)
    assert of.part_of_request(5) == first / 25
    assert of.part_of_requests(2000) < 1
    exact = sum(Fraction(1, j * j) for j in range(1, 201)) * first
    assert 0 <= of.part_of_requests(200) - exact < Fraction(200, 2**64)
    three = prices(requests_per_subject=3).shares
    assert three.part_of_requests(3) == 1
    with pytest.raises(CapacityExhausted):
        three.part_of_request(4)


@pytest.mark.parametrize("terms", [{}, {"requests_per_subject": 6}])
def test_a_persons_requests_keep_the_budget_by_the_tight_accountant(terms):
    of = prices(**terms)
    events = [GaussianEvent(of.price(j).multiplier) for j in range(1, 7)]
    for count in range(1, 7):
        tight = price(compose(events[:count]), 1e-5)
        assert tight <= of.epsilon_of_requests(count) <= 1.0


def test_parts_of_a_harmonic_series_would_not_do():
    """The sabotaged twin: 1/j instead of 1/j^2 passes at first and then exceeds."""
    of = prices().shares
    first = of.part_of_request(1)
    events = [GaussianEvent(of.multiplier(first / j)) for j in range(1, 13)]
    assert price(compose(events[:1]), 1e-5) <= 1.0
    assert price(compose(events), 1e-5) > 1.0


@pytest.mark.parametrize("capacity", [1, 7, 100])
def test_joint_noise_is_that_of_the_capacity_formulas(capacity):
    gdp = prices(mode="logistic", capacity=capacity)
    z = gdp.price().multiplier
    # A sampler's share of 2^-20 of delta is set aside here, and not there.
    assert z == pytest.approx(multiplier(capacity, 1.0, 1e-5), rel=1e-6)
    zcdp = prices(scope="joint", capacity=capacity, accounting="zcdp")
    found = zcdp.price().multiplier
    assert found == pytest.approx(multiplier(capacity, 1.0, 1e-5, "zcdp"), rel=1e-6)


@pytest.mark.parametrize(
    "terms",
    [
        {"scope": "joint"},
        {"mode": "logistic"},
        {"scope": "joint", "accounting": "zcdp"},
    ],
)
def test_the_ledger_admits_exactly_the_capacity(terms):
    of = prices(**terms, capacity=9)
    ledger = Ledger(of.budget, unit=Erasure(), filter=of.filter)
    single = of.added_up(of.mechanism([NoiseNeed(of.price().multiplier, 0.01)]))
    four = of.price(records=4)
    assert four.used == (1 if of.composition == "publications" else 4)
    batch = of.added_up(of.mechanism([NoiseNeed(four.multiplier, 0.04)]))
    for _ in range(9 - four.used):
        ledger.charge(single, label="one")
    ledger.charge(batch, label="four at once")
    assert ledger.status()[0].spent_epsilon <= 1.0
    with pytest.raises(Exception, match="Declined"):
        ledger.charge(single, label="one too many")


def test_the_budget_per_person_fills_a_ledger_and_deletions_within_it_are_free():
    of = prices()
    ledger = Ledger(of.budget, unit=Erasure(), filter=of.filter)
    whole = ledger.charge(of.budget_per_person(), label="budget per person")
    spent = ledger.status()[0].spent_epsilon
    mechanism = of.mechanism([NoiseNeed(of.price().multiplier, 0.01)])
    for _ in range(50):
        free = of.within_budget_per_person(whole.id, mechanism)
        assert free.fingerprint == mechanism.fingerprint and free.sampler_distance > 0
        ledger.charge(free, label="a deletion")
    assert ledger.status()[0].spent_epsilon == spent <= 1.0
    assert spent == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("shift", [1e-12, 1e-3, 7.0])
def test_noise_is_enough_for_everyone_with_its_grid(shift):
    of = prices()
    needs = [
        NoiseNeed(*need)
        for need in ((3.7, shift), (9.0, shift / 3.0), (40.0, shift / 1000.0))
    ]
    mechanism = of.mechanism(needs)
    slack = moved_by(mechanism, 0.0)
    assert slack == pytest.approx(mechanism.grid * math.sqrt(3.0))
    for z, moved in needs:
        assert mechanism.sigma >= z * (moved + slack)
    assert mechanism.sigma <= 3.7 * shift * 1.001
    assert mechanism.grid == 2.0 ** round(math.log2(mechanism.grid))


def test_the_multiplier_is_the_least_that_fits():
    of = prices(mode="logistic", capacity=1)
    z = of.shares.multiplier(Fraction(1))
    whole = mu_squared_limit(1.0, of.shares.ideal_delta)
    assert inverse_square_up(z) <= whole < inverse_square_up(z * (1 - 1e-11))
    assert np.isfinite(of.epsilon(z)) and of.epsilon(z) <= 1.0
