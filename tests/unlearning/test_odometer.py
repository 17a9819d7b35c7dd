"""The odometer: what it promises, what it ledgers, and that it stops."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.core import accounting as prices
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_delta, ideal_delta
from demur.core.adjacency import Erasure
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded, NotPaidFor, NotPriced, NotPrivate
from demur.ledger import Budget, Draw, Ledger
from demur.unlearning import (
    CapacityExhausted,
    IllegalTransition,
    PrivacyOdometer,
    make_mode,
)
from demur.unlearning.models import OGD
from demur.unlearning.pricing import capacity, odometer_plan, stream_constants
from demur.unlearning.pricing.noise import (
    NoiseNeed,
    draw_noise,
    mechanism_for,
    noise_fingerprint,
)

STATS = {"G": 1.0, "D": 1.0, "c": 1.0, "C": 1.0}
SEED_STATS = {"G": 4.72, "D": 4.78, "c": 1.0, "C": 1.0}


def made(stats=STATS, T=10**6, mode=None, **options):
    options = {"gamma": 2.0, "lam": 0.1} | options
    odometer = PrivacyOdometer(1.0, 1e-5, **options)
    if mode is not None:
        odometer.bind(mode)
    odometer.finalize_with(stats, T_estimate=T)
    return odometer


def ogd(**options):
    mode = make_mode("ogd", 4, lam=0.1, radius=1.0, **options)
    rng = np.random.default_rng(0)
    mode.insert_many(rng.normal(size=(2000, 4)), rng.normal(size=2000))
    return mode


# -- capacity ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("T", "m", "sigma"), [(10**4, 4, 967), (10**5, 65, 1.73e4), (10**6, 683, 1.9e5)]
)
def test_the_seeds_numbers(T, m, sigma):
    """The table of the seed's own constants: noise of 200 to 40,000 diameters."""
    odometer = made(SEED_STATS, T, gamma=0.5, formula="seed")
    assert odometer.deletion_capacity == m
    assert odometer.sigma_step == pytest.approx(sigma, rel=0.05)
    width = math.sqrt(2 * math.log(1.25 * m / 1e-5))
    assert odometer.sigma_step == pytest.approx(47.2 * width * m, rel=1e-12)
    assert odometer.epsilon_step == pytest.approx(1.0 / m)
    assert odometer.delta_step == pytest.approx(1e-5 / m)


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["seed", "consistent"])
@settings(max_examples=25, deadline=None)
@given(gammas=st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)))
def test_capacity_grows_with_gamma(formula, gammas):
    low, high = sorted(gammas)
    few = made(gamma=low, formula=formula).deletion_capacity
    assert few <= made(gamma=high, formula=formula).deletion_capacity


@pytest.mark.parametrize("accounting", ["basic", "zcdp", "rdp", "gdp"])
def test_joint_capacity_keeps_both_limits_and_is_largest(accounting):
    odometer = made(accounting=accounting, scope="joint")
    m, z, found = odometer.deletion_capacity, odometer.z, odometer.constants
    assert m > 1
    # privacy: the real delta of m Gaussians at epsilon
    assert gaussian_delta(math.sqrt(m) / z, 1.0) <= 1e-5
    assert odometer_plan.within_regret(odometer.terms, found, m, z)
    more = odometer_plan.first_multiplier(odometer.terms, found, m + 1)
    assert not odometer_plan.within_regret(odometer.terms, found, m + 1, more)


def test_tighter_accounting_gives_more_deletions():
    found = [
        made(accounting=a, scope="joint").deletion_capacity
        for a in ("basic", "zcdp", "gdp")
    ]
    assert found == sorted(found) and found[0] < found[-1]


@pytest.mark.parametrize("name", ["ogd"])
def test_subject_scope_composes_nothing(name):
    few, many = (
        made(T=T, mode=ogd(), gamma=0.5, requests_per_subject=1) for T in (10**4, 10**6)
    )
    assert few.deletion_capacity < many.deletion_capacity
    assert few.z == many.z == capacity.multiplier(1, 1.0, ideal_delta(1e-5))
    many.spend()
    one = many.epsilon_spent
    for _ in range(20):
        many.spend()
    assert many.epsilon_spent == one <= 1.0


@pytest.mark.parametrize("k", [2, 5])
def test_several_requests_of_one_subject_compose(k):
    odometer = made(
        mode=ogd(), gamma=0.5, requests_per_subject=k, accounting="zcdp", T=10**5
    )
    assert gaussian_delta(math.sqrt(k) / odometer.z, 1.0) <= 1e-5
    assert odometer.z == capacity.multiplier(k, 1.0, ideal_delta(1e-5), "zcdp")


class Unproved(OGD):
    """A mode whose theorem stops at zCDP, as one of a third party may."""

    theorem = replace(OGD.theorem, joint_accounting=("basic", "rdp", "zcdp"))


def unproved():
    mode = Unproved(4, lam=0.1, radius=1.0)
    mode.insert_many(np.zeros((2000, 4)), np.zeros(2000))
    return mode


def test_gaussian_composition_that_is_not_proved_is_refused_with_the_reason():
    for options in ({"scope": "joint"}, {"requests_per_subject": 2}):
        odometer = PrivacyOdometer(1.0, 1e-5, 0.1, accounting="gdp", **options)
        with pytest.raises(ValueError, match="proved to compose.*zcdp.*Nothing was"):
            odometer.bind(unproved())
        odometer.bind(ogd())
    for accounting in ("zcdp", "rdp", "basic"):
        PrivacyOdometer(1.0, 1e-5, 0.1, accounting=accounting, scope="joint").bind(
            unproved()
        )
    PrivacyOdometer(1.0, 1e-5, 0.1, scope="joint").bind(make_mode("logistic", 3))


def test_gaussian_composition_of_ogd_pays_for_more_deletions_than_zcdp():
    options = {"scope": "joint", "gamma": 50.0, "T": 10**5}
    m = made(mode=ogd(), accounting="gdp", **options).deletion_capacity
    fewer = made(mode=ogd(), accounting="zcdp", **options).deletion_capacity
    assert m > 1.05 * fewer > 1


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0, 15.0])
def test_basic_composition_that_is_not_proved_is_never_below_zcdp(epsilon):
    """Basic is allowed there because its noise is at least what zCDP asks for."""
    odometer = PrivacyOdometer(
        epsilon, 1e-5, 0.1, gamma=0.5, accounting="basic", scope="joint"
    )
    odometer.bind(unproved())
    odometer.finalize_with(STATS, 10**6)
    m = odometer.deletion_capacity
    assert m >= 1
    assert odometer.z >= capacity.multiplier(m, epsilon, ideal_delta(1e-5), "zcdp")


def test_regret_is_sized_by_what_ogd_enforces():
    mode = ogd()
    found = stream_constants.constants_from_mode(mode, SEED_STATS, 0.1)
    assert found.enforced and found.G == mode.gradient_bound
    # Weights and comparator may be at opposite ends of the ball.
    w = np.full(4, mode.radius)
    mode.delete(noise=1e20 * w)
    gap = np.linalg.norm(mode.published() + mode.radius * w / np.linalg.norm(w))
    assert found.D * (1 - 1e-12) <= gap <= found.D * (1 + 1e-12)


def test_exact_modes_are_unlimited_and_cost_nothing():
    odometer = made(mode=make_mode("ridge", 3))
    assert odometer.deletion_capacity == capacity.UNLIMITED
    odometer.spend()
    assert (
        odometer.epsilon_spent == odometer.sigma_step == odometer.noise_scale() == 0.0
    )
    assert odometer.ledger.epsilon() == 0.0


def test_publications_compose_under_either_scope():
    for scope in ("subject", "joint"):
        mode = make_mode("logistic", 3, tolerance=1e-3)
        odometer = made(mode=mode, gamma=0.5, scope=scope, T=10**4)
        m = odometer.deletion_capacity
        assert m > 1 and not odometer.plan.per_subject
        assert gaussian_delta(math.sqrt(m) / odometer.z, 1.0) <= 1e-5


# -- degenerate --------------------------------------------------------------------


def test_degenerate_under_the_seeds_formula_is_one(caplog):
    with caplog.at_level(logging.WARNING):
        odometer = made(SEED_STATS, 1000, gamma=0.05, formula="seed")
    assert odometer.deletion_capacity == 1 and odometer._status == "degenerate"
    assert "Capacity is 1; next delete forces retrain" in caplog.text
    assert "regret budget" in caplog.text
    done = 0
    while odometer.ready_to_delete:  # a stream loop stops cleanly
        odometer.spend()
        done += 1
    assert done == 1


def test_degenerate_otherwise_is_none(caplog):
    with caplog.at_level(logging.WARNING):
        odometer = made(SEED_STATS, 1000, gamma=0.05)
    assert odometer.deletion_capacity == 0 and odometer._status == "degenerate"
    assert not odometer.ready_to_delete and odometer.finalised
    assert "Capacity is 0" in caplog.text
    with pytest.raises(CapacityExhausted) as refused:
        odometer.spend()
    assert refused.value.reason == "regret" and refused.value.retrain_required
    assert odometer.ledger is None, "nothing was recorded"


# -- spending ----------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["subject", "joint"])
def test_blocked_after_the_last(scope, caplog):
    odometer = made(scope=scope, T=20_000, gamma=5.0)
    m = odometer.deletion_capacity
    assert 1 < m < 200
    indices = [odometer.spend().index for _ in range(m)]
    assert indices == list(range(m)) and odometer.capacity_remaining == 0
    assert "Capacity is 1; next delete forces retrain" in caplog.text
    assert not odometer.ready_to_delete
    with pytest.raises(CapacityExhausted, match="Nothing was spent") as refused:
        odometer.spend()
    assert refused.value.reason == "privacy"
    assert odometer.deletions_made == m
    with pytest.raises(BudgetExceeded):  # the ledger itself would not give one more
        odometer._payment.reservation.draw()


def test_the_draw_is_in_the_ledger_before_there_is_noise():
    odometer = made(scope="joint")
    before = odometer._payment.reservation.drawn
    odometer.spend()
    assert odometer._payment.reservation.drawn == before + 1


def test_before_finalisation():
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1)
    assert not odometer.ready_to_delete and odometer.epsilon_spent == 0.0
    assert odometer.epsilon_step is odometer.sigma_step is odometer.z is None
    with pytest.raises(CapacityExhausted, match="not finalised"):
        odometer.spend()
    with pytest.raises(IllegalTransition):
        odometer.noise_scale()


def test_finalising_twice_would_be_a_second_budget():
    odometer = made()
    with pytest.raises(IllegalTransition, match="second budget"):
        odometer.finalize_with(STATS, 10**6)
    assert len(odometer.ledger.entries()) == 1


def test_finalising_twice_at_once_charges_once(monkeypatch):
    odometer = PrivacyOdometer(
        1.0, 1e-5, 0.1, gamma=2.0, scope="joint", ledger=new_ledger()
    )
    solve, outcomes = odometer_plan.solve, []

    def slow(*terms):
        time.sleep(0.05)
        return solve(*terms)

    def finalise():
        try:
            odometer.finalize_with(STATS, 20_000)
            outcomes.append("made")
        except IllegalTransition:
            outcomes.append("refused")

    monkeypatch.setattr(odometer_plan, "solve", slow)
    threads = [threading.Thread(target=finalise) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused"]
    assert len(odometer.ledger.entries()) == 1


def test_one_odometer_counts_for_one_model():
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1)
    mode = ogd()
    odometer.bind(mode)
    odometer.bind(mode)
    with pytest.raises(ValueError, match="another model"):
        odometer.bind(ogd())


def test_epsilon_spent_against_the_accountant():
    odometer = made(scope="joint")
    for _ in range(9):
        odometer.spend()
    # A share of delta is set aside for the samplers.
    exact = prices.price([GaussianEvent(odometer.z)] * 9, ideal_delta(1e-5))
    assert odometer.epsilon_spent == pytest.approx(exact, rel=1e-9)
    basic = made(scope="joint", accounting="basic")
    basic.spend()
    assert basic.epsilon_spent == pytest.approx(1.0 / basic.deletion_capacity)


# -- the ledger ----------------------------------------------------------------------


def new_ledger(epsilon=1.0, delta=1e-5, filter=None):
    return Ledger(Budget(epsilon, delta), unit=Erasure(), filter=filter)


def test_a_whole_budget_fits_its_ledger_exactly():
    for options in (
        {"scope": "joint"},
        {"scope": "joint", "accounting": "basic"},
        {"mode": ogd(), "gamma": 0.5},
        {"mode": ogd(), "gamma": 0.5, "scope": "joint"},
        {"mode": ogd(), "gamma": 0.5, "requests_per_subject": 3},
        {"mode": ogd(), "gamma": 0.5, "requests_per_subject": 1},
        {"mode": ogd(), "gamma": 0.5, "accounting": "basic"},
        {"mode": ogd(), "gamma": 0.5, "accounting": "zcdp"},
    ):
        ledger = new_ledger()
        odometer = made(ledger=ledger, **options)
        assert odometer.ledger is ledger
        assert ledger.epsilon() <= 1.0
        assert ledger.verify().ok


def test_a_smaller_ledger_declines_and_nothing_is_lost():
    ledger = new_ledger(epsilon=0.9)
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0, scope="joint", ledger=ledger)
    with pytest.raises(BudgetExceeded):
        odometer.finalize_with(STATS, 10**6)
    assert not odometer.finalised and not ledger.entries()


def test_what_is_not_proved_gaussian_is_not_recorded_as_gaussian():
    options = {"mode": unproved(), "scope": "joint", "accounting": "zcdp", "gamma": 0.5}
    with pytest.raises(NotPriced):
        made(ledger=new_ledger(), **options)
    ledger = new_ledger(filter="pure")
    odometer = made(ledger=ledger, **options)
    promise, draws = ledger.entries()
    assert promise.declaration.cost.at(Erasure()).epsilon == 1.0
    assert draws.count == odometer.deletion_capacity
    alone = made(**(options | {"mode": unproved()}))
    for kept in (ledger, alone.ledger):
        assert kept.status()[0].spent_epsilon <= 1.0
        assert kept.epsilon() == pytest.approx(1.0, abs=1e-8)


def test_the_entry_says_what_it_is_worth():
    seed = made(SEED_STATS, 10**5, formula="seed", gamma=0.5, mode=make_mode("seed", 3))
    text = seed.entry.statement()
    assert "nobody has proved" in text
    text = made(mode=ogd(), gamma=0.5).entry.statement()
    assert "ogd-shift" in text and "published before the deletion" in text


def test_above_epsilon_eight_the_classic_formula_is_recorded_at_its_real_cost():
    odometer = PrivacyOdometer(20.0, 1e-5, 0.1, gamma=0.05, formula="seed")
    odometer.finalize_with(SEED_STATS, 1000)
    assert odometer.deletion_capacity == 1
    assert odometer.ledger.epsilon() > 20.0
    strict = PrivacyOdometer(
        20.0, 1e-5, 0.1, gamma=0.05, formula="seed", ledger=new_ledger(20.0)
    )
    with pytest.raises(BudgetExceeded):
        strict.finalize_with(SEED_STATS, 1000)


def test_a_seeded_source_is_for_tests_alone(tmp_path):
    odometer = made(scope="joint", source=Seeded(1))
    assert not odometer.entry.private
    with Ledger.open(
        tmp_path / "ledger.db", dataset="d", budgets={Erasure(): Budget(1.0, 1e-5)}
    ) as durable:
        with pytest.raises(NotPrivate):
            made(scope="joint", source=Seeded(1), ledger=durable)
        kept = made(scope="joint", ledger=durable)
        kept.spend()
        assert durable.verify(durable.tip()).ok
    assert "key" not in repr(kept).lower()


# -- recalibration -----------------------------------------------------------------

stats = st.fixed_dictionaries(
    {
        "G": st.floats(0.01, 100.0),
        "D": st.floats(0.01, 10.0),
        "c": st.just(1.0),
        "C": st.floats(1.0, 50.0),
    }
)


def never_mints(odometer, recalibrate, changes):
    """Capacity never grows, and the ledger does not move."""
    paid, z = odometer._payment.entry.count, odometer.z
    entries = [e.id for e in odometer.ledger.entries()]
    left = odometer.capacity_remaining
    for change in changes:
        recalibrate(odometer, change)
        if odometer.capacity_remaining > left or odometer.z != z:
            return False
        left = odometer.capacity_remaining
        if left:
            odometer.spend()
            left -= 1
    return odometer._payment.entry.count == paid and entries == [
        e.id for e in odometer.ledger.entries()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["seed", "consistent"])
@settings(max_examples=20, deadline=None)
@given(changes=st.lists(stats, min_size=1, max_size=6))
def test_recalibration_never_mints(formula, changes):
    odometer = made(scope="joint", formula=formula)
    assert never_mints(odometer, PrivacyOdometer.recalibrate_with, changes)


def test_a_recalibration_that_solves_anew_is_caught():
    def minting(odometer, change):
        found = stream_constants.constants_from_stats(change, 0.1)
        odometer.plan = odometer_plan.solve(odometer.terms, found)
        odometer.deletion_capacity = odometer.deletions_made + odometer.plan.m

    calm = [{"G": 0.1, "D": 0.1, "c": 1.0, "C": 1.0}]
    assert not never_mints(made(scope="joint"), minting, calm)


def test_recalibration_can_end_deletions():
    odometer = made(scope="joint")
    odometer.spend()
    odometer.recalibrate_with({"G": 1e3, "D": 10.0, "c": 1.0, "C": 1.0})
    assert odometer.capacity_remaining == 0 and odometer._status == "degenerate"
    with pytest.raises(IllegalTransition):
        PrivacyOdometer(1.0, 1e-5, 0.1).recalibrate_with(STATS)


# -- noise -------------------------------------------------------------------------


def deviation(values):
    """Two-sided 1e-9 interval of the deviation of centred Gaussians."""
    n = values.size
    wide = 6.2 / math.sqrt(2 * n)
    found = float(np.sqrt(np.mean(values**2)))
    return found / (1 + wide), found / (1 - wide)


def noise_is_right(odometer, shift, draw):
    values = np.concatenate([draw(odometer) for _ in range(10)])
    low, high = deviation(values)
    return low <= odometer.z * shift <= high


def test_noise_has_the_deviation_that_was_paid_for():
    odometer, shift, dimension = made(scope="joint"), 0.01, 2000

    def right(o):
        return o.noise(o.spend(), shift, dimension).values

    def half(o):
        return 0.5 * o.noise(o.spend(), shift, dimension).values

    assert noise_is_right(odometer, shift, right)
    assert not noise_is_right(odometer, shift, half)


@pytest.mark.parametrize(
    ("dimension", "z"),
    # At 1e8 the grid is as coarse as it may be, and the first guess does not pay.
    [*((d, z) for d in (1, 20, 5000) for z in (0.7, 3.73, 500.0)), (1, 1e8), (20, 1e8)],
)
def test_the_grid_is_paid_for(dimension, z):
    found = mechanism_for([NoiseNeed(z, 1e-3)], dimension)
    slack = float(found.grid) * math.sqrt(dimension)
    assert float(found.sigma) / (1e-3 + slack) >= z
    assert float(found.sigma) <= z * 1e-3 * (1 + 3e-4)


def test_draws_differ_and_lie_on_the_grid():
    odometer = made(scope="joint")
    first, second = (odometer.noise(odometer.spend(), 0.01, 50) for _ in range(2))
    assert not np.array_equal(first.values, second.values)
    steps = first.values / first.grid
    np.testing.assert_array_equal(steps, np.rint(steps))


def test_a_draws_noise_is_drawn_once():
    odometer = made(scope="joint")
    draw = odometer.spend()
    odometer.noise(draw, 0.01, 5)
    with pytest.raises(Exception, match="already taken from this key"):
        odometer.noise(draw, 0.01, 5)
    with pytest.raises(Exception, match="already taken from this key"):
        paid_as = noise_fingerprint(odometer.z)
        draw_noise(
            mechanism_for([NoiseNeed(1.0, 0.01)], 5),
            odometer._payment.key.authorise(
                paid_as, draw=draw.index, runs=odometer.deletion_capacity
            ),
            draw.index,
            paid_as=paid_as,
        )


def test_only_draws_of_the_odometers_own_are_drawn():
    """Not invented ones, and not those of another odometer: neither was paid for."""
    odometer, other = made(scope="joint"), made(scope="joint")
    own, foreign = odometer.spend(), other.spend()
    for draw in (Draw(own.entry, own.index + 1), Draw(own.entry, -1), foreign):
        with pytest.raises(NotPaidFor, match="Nothing was drawn"):
            odometer.noise(draw, 0.01, 5)
    assert odometer.noise(own, 0.01, 5).values.shape == (5,)


# -- bad input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0.0, 1e-5, 0.1), {}),
        ((math.nan, 1e-5, 0.1), {}),
        ((1.0, 0.0, 0.1), {}),
        ((1.0, 1.0, 0.1), {}),
        ((1.0, 1e-5, -0.1), {}),
        ((1.0, 1e-5, 0.1), {"gamma": math.inf}),
        ((1.0, 1e-5, 0.1), {"delta_B": 0.0}),
        ((1.0, 1e-5, 0.1), {"T": 0}),
        ((1.0, 1e-5, 0.1), {"accounting": "moments"}),
        ((1.0, 1e-5, 0.1), {"formula": "mine"}),
        ((1.0, 1e-5, 0.1), {"formula": "seed", "accounting": "gdp"}),
        ((1.0, 1e-5, 0.1), {"scope": "everyone"}),
        ((1.0, 1e-5, 0.1), {"requests_per_subject": 0}),
    ],
)
def test_bad_terms(arguments, options):
    with pytest.raises(ValueError, match="must be"):
        PrivacyOdometer(*arguments, **options)


def test_bad_types():
    with pytest.raises(TypeError, match="Ledger or None"):
        PrivacyOdometer(1.0, 1e-5, 0.1, ledger="ledger.db")
    with pytest.raises(TypeError, match="whole number"):
        PrivacyOdometer(1.0, 1e-5, 0.1, T=10.5)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"G": 1.0, "D": 1.0, "c": 1.0},
        STATS | {"G": math.nan},
        STATS | {"c": 0.0},
        STATS | {"G": 0.0},
    ],
)
def test_bad_stats(bad):
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0)
    with pytest.raises(ValueError, match=r"must|nothing"):
        odometer.finalize_with(bad, 10**6)
    assert not odometer.finalised
    with pytest.raises(ValueError, match="T_estimate"):
        odometer.finalize_with(STATS, 0)
