"""When a ledger declines: exact arithmetic, capacities, and why filters are split."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from demur import Budget, Filter, Ledger
from demur.core.accounting import gdp, renyi, samplers
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu, ideal_delta
from demur.errors import BudgetExceeded, NotPriced
from demur.ledger import GaussianMeter, RenyiMeter
from demur.ledger.rules import filters
from tests.ledger.kit import UNIT, says

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "capacity.json").read_text()
)["rows"]


def exact_delta(mu, epsilon):
    """The Gaussian profile with 60 digits; epsilon may be negative."""
    with mp.workdps(60):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        a = epsilon / mu - mu / 2
        upper = mp.erfc(a / mp.sqrt(2)) / 2
        return upper - mp.exp(epsilon) * mp.erfc((a + mu) / mp.sqrt(2)) / 2


def root(value):
    """The square root of an exact fraction, with 60 digits."""
    with mp.workdps(60):
        return mp.sqrt(mp.mpf(value.numerator) / value.denominator)


# -- arithmetic --------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["pure", "gaussian", "rdp"])
def test_a_million_subnormal_spends_do_not_add_up_to_nothing(rule):
    tiny = math.ulp(0.0)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter=rule)
    ledger.reserve(says(Pure(tiny)), count=10**6, label="dust")
    event = Repeated(Pure(tiny), 10**6)
    (way,) = filters.payment_options(
        ledger.terms.filter, Budget(1.0, 1e-6), event, Fraction(0)
    )
    assert all(way[k] or k == filters.BLOCK_DELTA for k in way)


def test_dust_fills_a_budget_to_the_last_grain():
    tiny = math.ulp(0.0)
    ledger = Ledger(Budget(tiny * 1_000_000), unit=UNIT, filter="pure")
    ledger.reserve(says(Pure(tiny)), count=999_999, label="dust")
    with pytest.raises(BudgetExceeded):
        ledger.reserve(says(Pure(tiny)), count=2, label="two grains")
    ledger.charge(says(Pure(tiny)), label="one grain")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(Pure(tiny)), label="one more")
    assert ledger.epsilon(delta=0.0) == tiny * 1_000_000


def test_dust_is_not_lost_beside_a_large_spend():
    ledger = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    ledger.charge(says(Pure(1.0 - 2.0**-53)), label="almost all")
    ledger.charge(says(Pure(2.0**-54)), label="half of the rest")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(Pure(math.nextafter(2.0**-54, 1.0))), label="a grain more")
    ledger.charge(says(Pure(2.0**-54)), label="the rest")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(Pure(math.ulp(0.0))), label="a grain")


def test_gaussian_dust_counts():
    meter = GaussianMeter()
    amount = meter.amount(GaussianEvent(1e308))
    assert amount is not None and amount > 0 and float(amount) == 0.0
    assert filters.payment_options(
        Filter.gaussian(),
        Budget(1.0, 1e-6),
        Repeated(GaussianEvent(1e308), 10**6),
        Fraction(0),
    ) == [{"mu squared": amount * 10**6}]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 4.0),
    st.lists(st.floats(0, 2.0, allow_subnormal=True), min_size=1, max_size=12),
)
def test_pure_spends_against_exact_sums(epsilon, spends):
    ledger = Ledger(Budget(epsilon), unit=UNIT, filter="pure")
    total = Fraction(0)
    for spend in spends:
        after = total + Fraction(spend)
        if after <= Fraction(epsilon):
            ledger.charge(says(Pure(spend)), label="fits")
            total = after
        else:
            with pytest.raises(BudgetExceeded):
                ledger.charge(says(Pure(spend)), label="does not")
    assert ledger.verify(ledger.tip()).ok


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.05, 8.0),
    st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]),
    st.lists(st.floats(0.5, 200.0), min_size=1, max_size=10),
)
def test_gaussian_spends_against_sixty_digits(epsilon, delta, multipliers):
    """Admitted: the exact delta is within the budget. Declined: it would not be."""
    ledger = Ledger(Budget(epsilon, delta), unit=UNIT, filter="gaussian")
    total = Fraction(0)
    for z in multipliers:
        after = total + 1 / Fraction(z) ** 2
        try:
            ledger.charge(says(GaussianEvent(z)), label="x")
        except BudgetExceeded:
            # The samplers' share, and the certified rounding of the profile.
            assert exact_delta(root(after), epsilon) > delta * (1 - 2.0**-19)
        else:
            total = after
            assert exact_delta(root(total), epsilon) <= delta


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.5, 6.0),
    st.sampled_from([1e-6, 1e-4]),
    st.lists(st.floats(0.001, 1.0), max_size=5),
    st.lists(st.floats(1.0, 50.0), max_size=5),
)
def test_pure_and_gaussian_mixed_in_a_gaussian_meter(epsilon, delta, pures, zs):
    """Randomised responses and Gaussians: the exact delta of what was admitted."""
    ledger = Ledger(Budget(epsilon, delta), unit=UNIT, filter="gaussian")
    losses, mu_squared = [(mp.mpf(1), mp.mpf(0))], Fraction(0)
    spends: list[Pure | GaussianEvent] = [*map(Pure, pures), *map(GaussianEvent, zs)]
    for event in spends:
        try:
            ledger.charge(says(event), label="x")
        except BudgetExceeded:
            continue
        if isinstance(event, GaussianEvent):
            mu_squared += 1 / Fraction(event.multiplier) ** 2
            continue
        p = 1 / (1 + mp.exp(-mp.mpf(event.epsilon)))
        losses = [
            (q * chance, loss + sign * mp.mpf(event.epsilon))
            for q, loss in losses
            for chance, sign in ((p, 1), (1 - p, -1))
        ]
    if mu_squared:
        mu = root(mu_squared)
        at_the_stop = sum(q * exact_delta(mu, epsilon - loss) for q, loss in losses)
    else:
        at_the_stop = sum(q * max(0, 1 - mp.exp(epsilon - loss)) for q, loss in losses)
    assert at_the_stop <= delta


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-3, 1e3),
    st.floats(1e-300, 0.5),
    st.floats(0.0, 0.999),
    st.sampled_from([(), (8,), (4, 32), (2, 16, 64)]),
)
def test_shares_never_add_up_to_more_than_the_budget(epsilon, delta, blocks, orders):
    budget = Budget(epsilon, delta)
    meters: tuple[Any, ...] = (GaussianMeter(), *map(RenyiMeter, orders))
    share = filters.shares(Filter(meters, blocks), budget)
    assert share.meter_budget is not None
    assert Fraction(share.meter_budget.epsilon) + share.block_epsilon <= Fraction(
        epsilon
    )
    used = Fraction(share.meter_budget.delta) * len(meters) + share.block_delta
    assert used <= Fraction(delta) - samplers.aside(delta)


def test_a_sampler_distance_is_added_exactly():
    budget = Budget(1.0, 1e-6)
    room = filters.room_for_samplers(Filter.gaussian(), budget.delta, {})
    eta = float(room) / 3.0
    ledger = Ledger(budget, unit=UNIT)
    fits = math.floor(room / Fraction(eta))
    ledger.reserve(
        says(GaussianEvent(1e6), sampler_distance=eta),
        count=fits,
        label="as many as fit",
    )
    with pytest.raises(BudgetExceeded, match="rounding in the noise sampler"):
        ledger.charge(says(GaussianEvent(1e6), sampler_distance=eta), label="one more")
    with pytest.raises(BudgetExceeded, match="too little of delta 0 for rounding"):
        Ledger(Budget(1.0), unit=UNIT, filter="pure").charge(
            says(Pure(0.1), sampler_distance=1e-30), label="no delta to pay it from"
        )


@pytest.mark.parametrize(
    "budget", [Budget(60.0, 1e-300), Budget(500.0, 1e-100), Budget(1e-6, 1e-300)]
)
def test_extreme_budgets_can_be_spent(budget):
    ledger = Ledger(budget, unit=UNIT)
    z = 1.0 / gaussian_mu(budget.epsilon, ideal_delta(budget.delta))
    ledger.charge(says(GaussianEvent(z * 1.0001)), label="all of it")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(GaussianEvent(z * 1.0001)), label="again")


@pytest.mark.parametrize("rule", [Filter.pure(), Filter.gaussian(blocks=0.5)])
def test_absurd_spends_are_declined_in_words(rule):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter=rule)
    for event in (Pure(1e308), ApproxDP(1e308, 1.0), GaussianEvent(1e-300)):
        with pytest.raises((BudgetExceeded, NotPriced)):
            ledger.reserve(says(event), count=2**40, label="absurd")
    assert ledger.status()[0].spent_epsilon == 0.0


def test_counts_that_were_admitted_can_be_read():
    ledger = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    for _ in range(2):
        ledger.reserve(says(Pure(1e-30)), count=2**40, label="many")
    assert ledger.epsilon(delta=0.0) == pytest.approx(2**41 * 1e-30)
    with pytest.raises(ValueError, match="at most 2\\^40"):
        ledger.reserve(says(Pure(1e-30)), count=2**40 + 1, label="too many")


# -- capacities --------------------------------------------------------------------


def admitted(z, epsilon, delta):
    """How many releases of multiplier z a Gaussian filter admits."""
    budget = Budget(epsilon, delta)
    share = filters.shares(Filter.gaussian(), budget)
    amount = GaussianMeter().amount(GaussianEvent(z))
    assert amount is not None
    return math.floor(share.capacities["mu squared"] / amount)


@pytest.mark.slow
@pytest.mark.parametrize("row", VECTORS, ids=lambda r: "-".join(map(str, r.values())))
def test_capacity_vectors(row):
    """As many releases as the exact composition allows; the samplers' share is free.

    The filter works at delta * (1 - 2^-20). A capacity is floor(mu*^2 z^2), and mu*^2
    moves by a relative 1e-7 there: no row of the vectors lies that close to a whole
    number.
    """
    z, epsilon = row["sigma_over_delta"], float(row["epsilon"])
    delta, capacity = float(row["delta"]), row["gdp_capacity"]
    assert admitted(z, epsilon, delta) == capacity
    if capacity:
        ledger = Ledger(Budget(epsilon, delta), unit=UNIT)
        ledger.reserve(says(GaussianEvent(float(z))), count=capacity, label="all")
        with pytest.raises(BudgetExceeded):
            ledger.charge(says(GaussianEvent(float(z))), label="one more")
    # The oracle itself, with 60 digits and the whole delta.
    assert exact_delta(root(Fraction(max(capacity, 1), z**2)), epsilon) <= delta or (
        capacity == 0
    )
    assert exact_delta(root(Fraction(capacity + 1, z**2)), epsilon) > delta


@pytest.mark.parametrize("order", [2, 8, 33, 256])
def test_a_renyi_filter_stops_within_its_budget(order):
    budget = Budget(3.0, 1e-5)
    meter = RenyiMeter(order)
    capacity = meter.capacity(Budget(3.0, ideal_delta(1e-5)))
    for z in (1.0, 7.0, 100.0):
        amount = meter.amount(GaussianEvent(z))
        assert amount is not None
        count = math.floor(capacity / amount)
        if not count:
            continue
        ledger = Ledger(budget, unit=UNIT, filter=Filter.rdp(order))
        ledger.reserve(says(GaussianEvent(z)), count=count, label="all")
        with pytest.raises(BudgetExceeded):
            ledger.charge(says(GaussianEvent(z)), label="one more")
        assert exact_delta(root(Fraction(count) / Fraction(z) ** 2), 3.0) <= 1e-5
        assert ledger.status()[0].spent_epsilon <= 3.0 * (1 + 1e-9)


@pytest.mark.slow
def test_blocks_add_up_in_both():
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter="pure")
    ledger.charge(says(ApproxDP(0.25, 4e-7)), label="a pair")
    with pytest.raises(BudgetExceeded, match="delta"):
        ledger.charge(says(ApproxDP(0.25, 7e-7)), label="too much delta")
    with pytest.raises(BudgetExceeded, match="epsilon"):
        ledger.charge(says(ApproxDP(0.8, 1e-8)), label="too much epsilon")
    ledger.charge(says(ApproxDP(0.75, 4e-7)), label="the rest")


@pytest.mark.slow
def test_a_plan_is_a_block_priced_at_the_asked_delta():
    plan = says(Repeated(PoissonGaussian(0.01, 2.0), 100))
    ledger = Ledger(Budget(4.0, 1e-5), unit=UNIT, filter=Filter.gaussian(blocks=0.5))
    ledger.charge(plan, label="a plan", block_delta=1e-6)
    accounts = ledger.status()[0].accounts
    assert float(accounts[filters.BLOCK_DELTA]) == pytest.approx(1e-6)
    assert accounts.get("mu squared") is None
    with pytest.raises(BudgetExceeded, match="delta"):
        ledger.charge(plan, label="a plan", block_delta=4.5e-6)
    with pytest.raises(ValueError):
        ledger.charge(plan, label="a plan", block_delta=0.0)


# -- why filters are split ---------------------------------------------------------
#
# An adversary releases a Gaussian of mu_1, looks at its privacy loss l, and goes on in
# the way that gains most. P-distribution of l: N(mu_1^2 / 2, mu_1^2). What he gains in
# the end is E[max over ways of E[h(l + L_way - epsilon)]], computed by quadrature.


def gaussian_gain(mu, x):
    """E[h(N(mu^2/2, mu^2) - x)], for an array of any x."""
    return ndtr(mu / 2 - x / mu) - np.exp(x) * ndtr(-mu / 2 - x / mu)


def response_gain(epsilon, x):
    """E[h(L - x)] of randomised response."""
    p = 1.0 / (1.0 + math.exp(-epsilon))
    up = np.maximum(0.0, -np.expm1(x - epsilon))
    down = np.maximum(0.0, -np.expm1(x + epsilon))
    return p * up + (1 - p) * down


def expected(mu, epsilon, ways):
    """E[max of the ways] after a first release of mu."""
    t = np.linspace(-14.0, 14.0, 400_001)
    loss = mu * mu / 2 + mu * t
    density = np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    best = np.max([way(epsilon - loss) for way in ways], axis=0)
    return float(np.trapezoid(best * density, t))


def mu_star(epsilon, delta):
    return gaussian_mu(epsilon, delta)


def largest_response(meter, room):
    """The largest pure epsilon whose amount still fits into what is left."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        amount = meter.amount(Pure(middle))
        low, high = (middle, high) if amount <= room else (low, middle)
    return low


EPSILON, DELTA = 2.0, 1e-5


def test_the_quadrature_is_right():
    full = mu_star(EPSILON, DELTA)
    first = 0.6 * full
    rest = math.sqrt(full**2 - first**2)
    overdrawn = expected(first, EPSILON, [lambda x: gaussian_gain(rest, x)])
    assert overdrawn == pytest.approx(DELTA, rel=1e-6)


def best_of_two(epsilon, delta_each, first, order):
    """Gain and the two continuations under "whichever meter still has room"."""
    full = mu_star(epsilon, delta_each)
    rest = math.sqrt(max(full**2 - first**2, 0.0))
    meter = RenyiMeter(order)
    used = meter.amount(GaussianEvent(1.0 / first))
    assert used is not None
    room = meter.capacity(Budget(epsilon, delta_each)) - used
    response = largest_response(meter, room) if room > 0 else 0.0
    ways = [lambda x: gaussian_gain(rest, x)] if rest else []
    if response:
        ways.append(lambda x: response_gain(response, x))
    return expected(first, epsilon, ways), rest, response


@pytest.mark.slow
def test_the_best_of_two_meters_without_a_split_overdraws_and_ours_does_not():
    order = 16
    first = 0.5 * mu_star(EPSILON, DELTA)
    gain, rest, response = best_of_two(EPSILON, DELTA, first, order)
    assert gain > DELTA * 1.05  # the sabotaged twin: the promise is broken
    split, *_ = best_of_two(EPSILON, DELTA / 2, first, order)
    assert split <= DELTA
    # And this is the rule of the ledger: both continuations are declined.
    rule = Filter((GaussianMeter(), RenyiMeter(order)), blocks=0.0)
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT, filter=rule)
    ledger.charge(says(GaussianEvent(1.0 / first)), label="first")
    for event in (GaussianEvent(1.0 / rest * (1 + 1e-9)), Pure(response * (1 - 1e-9))):
        with pytest.raises(BudgetExceeded):
            ledger.charge(says(event), label="second")
    # Each meter alone admits the continuation that suits it.
    for meter, event in (
        (GaussianMeter(), GaussianEvent(1.0 / rest * 1.001)),
        (RenyiMeter(order), Pure(response * 0.999)),
    ):
        alone = Ledger(
            Budget(EPSILON, DELTA), unit=UNIT, filter=Filter((meter,), blocks=0.0)
        )
        alone.charge(says(GaussianEvent(1.0 / first)), label="first")
        alone.charge(says(event), label="second")


@pytest.mark.slow
def test_moving_unspent_epsilon_to_the_blocks_overdraws_and_ours_does_not():
    """After a first release: either all the rest as Gaussian, or all as one block."""
    full = mu_star(EPSILON, DELTA)
    worst = 0.0
    for share in (0.2, 0.35, 0.5, 0.65, 0.8):
        first = share * full
        rest = math.sqrt(full**2 - first**2)
        block = EPSILON - gaussian_epsilon(first, DELTA)
        ways = [lambda x, r=rest: gaussian_gain(r, x)]
        assert expected(first, EPSILON, ways) == pytest.approx(DELTA, rel=1e-6)
        ways.append(lambda x, b=block: response_gain(b, x))
        gain = expected(first, EPSILON, ways)
        worst = np.maximum(worst, gain)
        for blocks in (0.1, 0.3, 0.5):
            rule = Filter.gaussian(blocks=blocks)
            ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT, filter=rule)
            try:
                ledger.charge(says(GaussianEvent(1.0 / first)), label="first")
            except BudgetExceeded:
                continue
            with pytest.raises(BudgetExceeded):
                ledger.charge(
                    says(GaussianEvent(1.0 / rest * (1 + 1e-9))), label="rest"
                )
    assert worst > DELTA * 1.05


@pytest.mark.parametrize("blocks", [0.1, 0.3, 0.5, 0.8])
def test_a_split_fixed_in_advance_keeps_delta(blocks):
    """Both accounts used up to the last: the most that any order of choices gains."""
    budget = Budget(EPSILON, DELTA)
    share = filters.shares(Filter.gaussian(blocks=blocks), budget)
    mu = math.sqrt(share.capacities["mu squared"])
    block = float(share.block_epsilon)
    ways = [lambda x: response_gain(block, x)]
    gain = expected(mu, EPSILON, ways) + float(share.block_delta)
    assert 0 < gain <= DELTA


def test_pure_in_a_gaussian_meter_is_dominated():
    for epsilon in (0.01, 0.3, 1.0, 3.0):
        mu = gdp.mu_of_pure(epsilon)
        x = np.linspace(-5, 5, 2001)
        assert np.all(response_gain(epsilon, x) <= gaussian_gain(mu, x) + 1e-12)
        d = renyi.divergence(Pure(epsilon), 4)
        assert d is not None and d <= epsilon + 1e-9


def test_filters_that_can_spend_nothing_are_refused():
    with pytest.raises(ValueError, match="nothing"):
        Ledger(Budget(1.0), unit=UNIT, filter="gaussian")
    with pytest.raises(ValueError):
        Ledger(Budget(0.1, 1e-9), unit=UNIT, filter=Filter.rdp(2))
    with pytest.raises(ValueError):
        Filter((GaussianMeter(), GaussianMeter()))
    with pytest.raises(ValueError):
        Filter((GaussianMeter(),), 1.0)
    with pytest.raises(ValueError):
        Ledger(Budget(1.0, 1e-6), unit=UNIT, filter="the best of all")


@pytest.mark.parametrize(
    ("rule", "event"),
    [
        (Filter.rdp(3), AllocatedGaussian(10, 5.0)),
        (Filter.gaussian(), AllocatedGaussian(10, 5.0)),
        (Filter.gaussian(), PoissonGaussian(0.01, 5.0)),
    ],
    ids=["allocated, rdp", "allocated, gaussian", "poisson, gaussian"],
)
def test_every_filter_that_a_refusal_names_has_a_price(rule, event):
    budget = Budget(8.0, 1e-6)
    with pytest.raises(NotPriced) as refused:
        filters.payment_options(rule, budget, event, Fraction(0))
    named = {
        "Filter.gaussian(blocks=0.5)": Filter.gaussian(blocks=0.5),
        "Filter.pure()": Filter.pure(),
        "Filter.rdp(order)": Filter.rdp(3),
    }
    offered = [one for name, one in named.items() if name in str(refused.value)]
    assert len(offered) >= 2
    for other in offered:
        assert filters.payment_options(other, budget, event, Fraction(0))
