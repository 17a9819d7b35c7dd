"""Prices against exact oracles, and the traps of dp_accounting kept out.

Truth comes from closed forms in high precision: a pure event is randomised response
(Kairouz, Oh and Viswanath 2015), whose composition is a binomial sum; a Gaussian beside
it is a mixture of Gaussian profiles; one sampled step is a difference of normal tails.
A price is right when the *true* delta at it is at most the one asked for.

Slack measured here (price minus truth): pure 1e-12 to 6e-4; Gaussian and pure 2e-4; one
sampled step below 1e-3; Renyi alone (delta < 1e-11) up to a few tenths.
"""

import logging
import math
import sys
from functools import cache
from itertools import product

import dp_accounting as dpa
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from demur import gaussian_epsilon, price
from demur.core.accounting import (
    composition,
    delta_of,
    from_dp_event,
    profile_of,
    renyi,
    sampled_profiles,
    to_dp_event,
    upper_bounds,
)
from demur.core.accounting import prices as pricing
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import total_of
from demur.errors import NotPriced
from tests.families import thinned

ADD, REPLACE, ZERO = (
    Neighbours.ADD_OR_REMOVE_ONE,
    Neighbours.REPLACE_ONE,
    Neighbours.ZERO_OUT,
)

# ------------------------------------------------------------------------- oracles


def gaussian_delta(mu, epsilon):
    """The profile of mu-GDP at any real epsilon, also a negative one."""
    if mu == 0:
        return max(mp.mpf(0), 1 - mp.exp(epsilon))
    a = epsilon / mu - mu / 2
    tail = mp.erfc(a / mp.sqrt(2)) / 2
    return tail - mp.exp(epsilon) * mp.erfc((a + mu) / mp.sqrt(2)) / 2


def true_delta(pure, mu, epsilon):
    """delta of `pure` = [(epsilon, count)] and one mu-GDP mechanism, composed."""
    with mp.workdps(40):
        losses = {mp.mpf(0): mp.mpf(1)}
        for eps, count in pure:
            eps = mp.mpf(eps)
            more = {}
            high = 1 / (1 + mp.exp(-eps))
            for i in range(count + 1):
                mass = mp.binomial(count, i) * high ** (count - i) * (1 - high) ** i
                for loss, weight in losses.items():
                    at = loss + (count - 2 * i) * eps
                    more[at] = more.get(at, 0) + weight * mass
            losses = more
        epsilon, mu = mp.mpf(epsilon), mp.mpf(mu)
        return mp.fsum(
            weight * gaussian_delta(mu, epsilon - loss)
            for loss, weight in losses.items()
            if mu or loss > epsilon
        )


def one_step_delta(q, z, epsilon, direction):
    """Hockey stick of one sampled Gaussian step; the log ratio rises, so it is a tail.

    The two worlds are N(0, z^2) and its mixture with N(1, z^2), or under "replace" the
    mixtures with N(1, z^2) and N(-1, z^2).
    """
    with mp.workdps(40):
        q, z, epsilon = mp.mpf(q), mp.mpf(z), mp.mpf(epsilon)

        def mix(x, centre):
            shift = (2 * x * centre - centre**2) / (2 * z * z)
            return mp.log(1 - q + q * mp.exp(shift))

        def ratio(x):
            match direction:
                case "remove":
                    return mix(x, 1)
                case "add":
                    return -mix(-x, 1)  # mirrored, so that it rises as well
                case "replace":
                    return mix(x, 1) - mix(x, -1)

        low, high = -100 * z - 10, 100 * z + 10
        if ratio(high) <= epsilon:
            return mp.mpf(0)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if ratio(middle) > epsilon else (middle, high)

        def tail(centre):
            return mp.erfc((high - centre) / (z * mp.sqrt(2))) / 2

        def mixed(centre):
            return (1 - q) * tail(0) + q * tail(centre)

        match direction:
            case "remove":
                return mixed(1) - mp.exp(epsilon) * tail(0)
            case "add":
                return tail(0) - mp.exp(epsilon) * mixed(-1)
            case "replace":
                return mixed(1) - mp.exp(epsilon) * mixed(-1)


def step_delta(event, epsilon):
    ways = ["replace"] if event.neighbours is REPLACE else ["remove", "add"]
    return max(
        one_step_delta(event.probability, event.multiplier, epsilon, way)
        for way in ways
    )


def truth(event, epsilon):
    """The exact delta of any mixture of Gaussians and pure events."""
    total = total_of(event)
    assert not total.sampled and not total.approx
    return true_delta(list(total.pure.items()), mp.sqrt(total.mu_squared), epsilon)


def below_truth(event, delta, pricing=price):
    """How far the true delta at the quoted epsilon exceeds the one asked for."""
    epsilon = pricing(event, delta)
    return float(truth(event, epsilon) / mp.mpf(delta) - 1)


MIXTURES = [
    GaussianEvent(1.0),
    Repeated(GaussianEvent(30.0), 1000),
    Pure(0.5),
    Repeated(Pure(0.1), 100),
    Repeated(Pure(0.5), 20),
    Repeated(Pure(1.0), 10),
    Repeated(Pure(0.01), 1000),
    Repeated(Pure(0.3), 3),
    Composed((GaussianEvent(2.0), Pure(0.5))),
    Composed((GaussianEvent(0.7), Repeated(Pure(0.25), 8), Pure(1.3))),
    Composed((Repeated(GaussianEvent(20.0), 50), Repeated(Pure(0.03), 40))),
]

# --------------------------------------------------------------- peers: their traps


def test_trap_nan_prices_at_zero_in_rdp(caplog):
    with caplog.at_level(logging.ERROR):
        peer = dpa.rdp.RdpAccountant()
        peer.compose(dpa.GaussianDpEvent(0.5), 100)
        before = peer.get_epsilon(1e-6)
        peer.compose(dpa.GaussianDpEvent(math.nan))
        assert before > 100
        assert peer.get_epsilon(1e-6) == 0.0  # one NaN erases everything
    for make in (GaussianEvent, Pure, lambda x: PoissonGaussian(0.1, x)):
        with pytest.raises(ValueError, match="nan"):
            make(math.nan)
    with pytest.raises(ValueError, match="nan"):
        from_dp_event(dpa.GaussianDpEvent(math.nan))


@pytest.mark.parametrize("delta", [math.nan, -1e-9, 1.1, math.inf])
def test_trap_bad_delta_and_epsilon(delta):
    with pytest.raises(ValueError, match="delta"):
        price(GaussianEvent(1.0), delta)
    with pytest.raises(ValueError, match="epsilon"):
        delta_of(GaussianEvent(1.0), -abs(delta))


@pytest.mark.parametrize("value", [True, None, "1e-6"])
def test_delta_and_epsilon_are_numbers(value):
    with pytest.raises(TypeError, match="delta"):
        price(GaussianEvent(1.0), value)
    with pytest.raises(TypeError, match="epsilon"):
        delta_of(GaussianEvent(1.0), value)


def test_trap_the_count_of_randomised_response_is_ignored():
    response = dpa.RandomizedResponseDpEvent(2 / (1 + math.exp(0.5)), 2)
    relation = dpa.NeighboringRelation.REPLACE_ONE
    at_once = dpa.pld.PLDAccountant(relation)
    at_once.compose(response, 20)
    one_by_one = dpa.pld.PLDAccountant(relation)
    for _ in range(20):
        one_by_one.compose(response)
    assert at_once.get_epsilon(1e-6) == pytest.approx(0.5, abs=1e-3)
    honest = one_by_one.get_epsilon(1e-6)
    assert honest == pytest.approx(9.987, abs=2e-3)
    ours = price(Repeated(Pure(0.5), 20), 1e-6)
    assert ours == pytest.approx(honest, abs=2e-3)
    assert ours == price([Pure(0.5)] * 20, 1e-6)


@pytest.mark.slow
def test_trap_replace_one_means_two_things():
    relation = dpa.NeighboringRelation.REPLACE_ONE
    prices = []
    for make in (dpa.pld.PLDAccountant, dpa.rdp.RdpAccountant):
        peer = make(neighboring_relation=relation)
        peer.compose(dpa.GaussianDpEvent(2.0))
        prices.append(peer.get_epsilon(1e-6))
    assert prices[0] == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-4)
    assert prices[1] == pytest.approx(2.42, abs=0.02)
    # Ours: the multiplier is that of the unit at hand, nobody rescales it.
    exact = gaussian_epsilon(0.5, 1e-6)
    assert exact <= price(GaussianEvent(2.0), 1e-6) <= exact * (1 + 1e-14)
    mixed = Composed((GaussianEvent(2.0), PoissonGaussian(1e-9, 50.0, REPLACE)))
    assert price(mixed, 1e-6) == pytest.approx(
        price(GaussianEvent(2.0), 1e-6), abs=1e-3
    )
    # Only the translation from dp_accounting's definition, sigma / C, knows the 2.
    halved = from_dp_event(dpa.GaussianDpEvent(2.0), REPLACE)
    assert 1 - 1e-15 <= halved.multiplier <= 1.0


def test_trap_a_failed_compose_is_half_applied():
    bad = dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(-1.0)])
    peer = dpa.rdp.RdpAccountant()
    with pytest.raises(Exception, match="."):
        peer.compose(bad)
    assert peer.get_epsilon(1e-6) > 1.0  # the first half stayed
    before = price(GaussianEvent(1.0), 1e-6)
    for work in (
        [GaussianEvent(1.0), "x"],
        [GaussianEvent(1.0), None],
        (GaussianEvent(1.0), 3),
    ):
        with pytest.raises(TypeError):
            price(work, 1e-6)
    with pytest.raises(ValueError):
        from_dp_event(bad)
    assert price(GaussianEvent(1.0), 1e-6) == before


@pytest.mark.slow
def test_trap_a_tiny_delta_is_infinite_on_pld():
    step = PoissonGaussian(0.01, 1.0)
    assert math.isinf(peer_step(step).get_epsilon_for_delta(1e-300))
    ours = price(step, 1e-300)
    assert 1.0 < ours < price(GaussianEvent(1.0), 1e-300) * (1 + 1e-12)


def test_trap_a_composed_event_keeps_the_callers_list():
    items = [dpa.GaussianDpEvent(1.0)]
    theirs = dpa.ComposedDpEvent(items)
    items.append(dpa.GaussianDpEvent(0.001))
    assert len(theirs.events) == 2
    with pytest.raises(TypeError):
        hash(theirs)
    mine = [GaussianEvent(1.0)]
    ours = Composed(mine)
    mine.append(GaussianEvent(0.001))
    assert price(ours, 1e-6) == price(GaussianEvent(1.0), 1e-6)
    assert from_dp_event(dpa.ComposedDpEvent(items[:1])) == ours


# ------------------------------------------------------------------ against truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta"), thinned(product(MIXTURES, [1e-3, 1e-7, 1.1e-11]), 2), ids=str
)
def test_price_is_close_to_the_truth(event, delta):
    epsilon = price(event, delta)
    # One pure event is quoted at its epsilon, whatever the delta.
    slack = 1e-3 if delta >= 1e-9 else 5e-3
    if not isinstance(event, Pure) and epsilon >= slack:
        assert truth(event, epsilon - slack) > delta
    # What is left is noise of the FFT: test_distributions_err_to_the_private_side.
    assert below_truth(event, delta) <= 2e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta"),
    thinned(product(MIXTURES, [1e-3, 1e-6]), 3, keep=(5, 17)),
    ids=str,
)
def test_delta_of_is_close_to_the_truth(event, delta):
    epsilon = price(event, delta)
    computed = delta_of(event, epsilon)
    assert computed <= delta * (1 + 1e-6)
    assert computed >= float(truth(event, epsilon)) * (1 - 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-13, 1e-20, 1e-100, 1e-300])
@pytest.mark.parametrize("event", MIXTURES, ids=str)
def test_tiny_deltas_are_answered_on_the_private_side(event, delta):
    with mp.workdps(400):
        epsilon = price(event, delta)
        assert math.isfinite(epsilon)
    pure = sum(e * n for e, n in total_of(event).pure.items())
    if not total_of(event).mu_squared:
        assert epsilon <= pure * (1 + 1e-14)
    if delta >= 1e-20:
        assert truth(event, epsilon) <= delta


def halved_under_replace(event, delta):
    """A sabotaged accountant: takes the unit's multiplier for sigma / C."""
    return price(GaussianEvent(2 * event.multiplier), delta)


def forgets_the_count(event, delta):
    """A sabotaged accountant: prices one repetition."""
    return price(event.event, delta)


def test_the_same_oracle_rejects_sabotaged_accountants():
    assert below_truth(GaussianEvent(2.0), 1e-6) <= 0
    assert below_truth(GaussianEvent(2.0), 1e-6, halved_under_replace) > 10
    many = Repeated(Pure(0.5), 20)
    assert below_truth(many, 1e-6) <= 1e-9
    assert below_truth(many, 1e-6, forgets_the_count) > 10


EPSILONS = st.sampled_from([0.5, 0.25, 2.0**-7, 0.3, 0.01, 1.0])


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    EPSILONS,
    st.integers(2, 60),
    st.floats(0.5, 20.0),
    st.sampled_from([1e-2, 1e-5, 1e-8]),
)
def test_random_mixtures_are_priced_above_the_truth(eps, count, z, delta):
    for event in (
        Repeated(Pure(eps), count),
        Composed((GaussianEvent(z), Repeated(Pure(eps), count))),
    ):
        epsilon = price(event, delta)
        if epsilon < 90:
            assert truth(event, epsilon) <= delta * (1 + 1e-6)
            assert epsilon < 2e-3 or truth(event, epsilon - 2e-3) > delta * (1 - 1e-6)


DEEP = pytest.mark.deep


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "z", "who"),
    [(0.1, 1.0, who) for who in (ADD, REPLACE, ZERO)]
    + [
        pytest.param(*step, who, marks=DEEP)
        for step, who in (
            ((0.5, 0.7), ADD),
            ((0.001, 0.5), ADD),
            ((0.99, 5.0), REPLACE),
            ((0.5, 0.7), REPLACE),
            ((0.001, 0.5), REPLACE),
            ((0.99, 5.0), ADD),
            *product([(0.01, 1.0), (0.9, 2.0)], (ADD, REPLACE)),
        )
    ],
)
def test_one_sampled_step_against_quadrature(q, z, who):
    event = PoissonGaussian(q, z, who)
    for delta in (1e-4, 2e-11):
        epsilon = price(event, delta)
        assert step_delta(event, epsilon) <= delta
        assert epsilon < 1e-3 or step_delta(event, epsilon - 1e-3) > delta
        assert delta_of(event, epsilon) <= delta * (1 + 1e-6)
        assert delta_of(event, epsilon) >= step_delta(event, epsilon)


@pytest.mark.slow
def test_the_oracle_itself_against_numerical_integration():
    q, z, epsilon = 0.3, 1.5, 0.4

    def normal(x, centre):
        return mp.npdf(x, centre, z)

    def mixed(x, centre):
        return (1 - q) * normal(x, 0) + q * normal(x, centre)

    pairs = {
        "remove": (lambda x: mixed(x, 1), lambda x: normal(x, 0)),
        "add": (lambda x: normal(x, 0), lambda x: mixed(x, 1)),
        "replace": (lambda x: mixed(x, 1), lambda x: mixed(x, -1)),
    }
    for way, (p, r) in pairs.items():
        area = mp.quad(
            lambda x, p=p, r=r: max(0, p(x) - mp.exp(epsilon) * r(x)),
            mp.linspace(-12, 12, 25),
        )
        assert float(one_step_delta(q, z, epsilon, way)) == pytest.approx(
            float(area), abs=1e-4
        )


@pytest.mark.slow
def test_the_step_oracle_rejects_the_wrong_relation():
    """A sabotaged twin: quoting the add-or-remove price for a replacement."""
    event = PoissonGaussian(0.9, 2.0, REPLACE)
    wrong = price(PoissonGaussian(0.9, 2.0, ADD), 1e-6)
    assert step_delta(event, wrong) > 10 * 1e-6


NOISY = [
    pytest.param(362.47342146038176, 300_000, marks=DEEP),
    (1007.5616275909849, 1_000_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("z", "steps"), NOISY)
@pytest.mark.parametrize("delta", [1.1e-11, 1e-10, 1e-9])
def test_distributions_err_to_the_private_side(z, steps, delta):
    """A sample of nearly everyone is a Gaussian, whose price is known exactly.

    The error of dp_accounting's FFT grows with the number of steps: about 6e-17 times
    it, absolute in delta, to either side.
    """
    exact = price(Repeated(GaussianEvent(z), steps), delta)
    sampled = price(Repeated(PoissonGaussian(1 - 2.0**-40, z), steps), delta)
    assert sampled >= exact * (1 - 1e-9)


@pytest.mark.parametrize(
    ("eps", "count", "delta"),
    [
        (0.01171875, 300, 1.7366192259127093e-10),
        (0.03125, 300, 1.1027124853587423e-10),
        (0.0078125, 300, 5.450654973574304e-10),
        (0.25, 100, 1.5323901960914453e-08),
        (0.0009765625, 2, 1.5554450246056048e-10),
    ],
)
def test_epsilons_on_the_grid_have_no_slack_to_hide_in(eps, count, delta):
    assert below_truth(Repeated(Pure(eps), count), delta) <= 0


# -------------------------------------------------------------- against dp_accounting


PLANS = [
    PoissonGaussian(0.01, 1.0),
    PoissonGaussian(0.001, 0.7),
    PoissonGaussian(0.05, 2.0, ZERO),
    PoissonGaussian(0.01, 1.0, REPLACE),
    PoissonGaussian(0.2, 5.0, REPLACE),
    TruncatedPoissonGaussian(1000, 0.05, 60, 5.0),
    TruncatedPoissonGaussian(1000, 0.05, 60, 5.0, REPLACE),
    TruncatedPoissonGaussian(10_000, 0.01, 130, 2.0),
    TruncatedPoissonGaussian(1000, 0.05, 60, 2.0, REPLACE),
    TruncatedPoissonGaussian(10_000, 0.01, 130, 1.0),
]
# Every plan of a thousand steps, and one step of each kind; not the costliest.
RUNS = [
    pytest.param(
        plan,
        steps,
        marks=DEEP if i in (1, 7, 8, 9) or (steps == 1 and i in (2, 4, 6)) else (),
    )
    for steps in (1, 1000)
    for i, plan in enumerate(PLANS)
]
RELATIONS = {
    ADD: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    ZERO: dpa.NeighboringRelation.REPLACE_SPECIAL,
    REPLACE: dpa.NeighboringRelation.REPLACE_ONE,
}


@cache
def peer_step(event):
    """dp_accounting's distribution of one step; most of the time goes into it."""
    peer = dpa.pld.PLDAccountant(RELATIONS[event.neighbours])
    peer.compose(to_dp_event(event))
    return peer._pld


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "steps"), thinned(RUNS, 2), ids=str)
def test_plans_against_the_pld_accountant(plan, steps):
    peer = peer_step(plan).self_compose(steps)
    for delta in (1e-5, 1e-8):
        ours = price(Repeated(plan, steps), delta)
        theirs = peer.get_epsilon_for_delta(delta)
        # Both are upper bounds on grids of about 1e-4, theirs 1e-4 and ours 2^-13.
        assert ours == pytest.approx(theirs, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        PLANS[0],
        PLANS[2],
        PLANS[4],
        *(pytest.param(plan, marks=DEEP) for plan in (PLANS[1], PLANS[3])),
    ],
    ids=str,
)
def test_plans_are_above_an_optimistic_estimate(plan):
    steps = 10
    sure = pld.from_gaussian_mechanism(
        plan.multiplier,
        sampling_prob=plan.probability,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-4,
        neighboring_relation=RELATIONS[plan.neighbours],
    ).self_compose(steps)
    for delta in (1e-3, 1e-6, 1e-9):
        ours = price(Repeated(plan, steps), delta)
        lower = sure.get_epsilon_for_delta(delta)
        assert lower <= ours <= lower + 2 * steps * 1e-4 + 1e-3


@pytest.mark.parametrize(("q", "z"), [(0.01, 1.0), (0.1, 2.0), (0.5, 0.8), (1e-4, 0.5)])
def test_renyi_divergences_against_the_rdp_accountant(q, z):
    orders = [2, 3, 7, 32, 64, 200]
    peer = dpa.rdp.RdpAccountant(orders)
    peer.compose(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), 10)
    ours = 10 * renyi.divergences(PoissonGaussian(q, z), np.array(orders))
    assert ours == pytest.approx(peer._rdp, rel=1e-6, abs=1e-10)
    assert (ours >= np.asarray(peer._rdp) * (1 - 1e-9) - 1e-13).all()


@pytest.mark.parametrize("eps", [1e-9, 1e-3, 0.5, 3.0, 50.0])
@pytest.mark.parametrize("order", [2, 3, 17, 64, 1024])
def test_renyi_of_a_pure_event_is_that_of_randomised_response(eps, order):
    with mp.workdps(60):
        e, a = mp.mpf(eps), mp.mpf(order)
        high = 1 / (1 + mp.exp(-e))
        low = 1 - high
        exact = mp.log(high**a * low ** (1 - a) + low**a * high ** (1 - a)) / (a - 1)
        divergence = renyi.divergence(Pure(eps), order)
        assert exact <= divergence <= max(float(exact) * 1.01, float(exact) + 2e-12)


@pytest.mark.parametrize("order", [1, 0, -2])
def test_renyi_orders_start_at_two(order):
    with pytest.raises(ValueError):
        renyi.divergence(GaussianEvent(1.0), order)


# --------------------------------------------------------------------- properties


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-20])
@pytest.mark.parametrize(
    "atom", [GaussianEvent(20.0), Pure(0.05), PoissonGaussian(0.01, 1)]
)
def test_k_fold_is_k_times_one(atom, delta):
    at_once = price(Repeated(atom, 10), delta)
    assert price([atom] * 10, delta) == at_once
    assert price(Composed((Repeated(atom, 4), Repeated(atom, 6))), delta) == at_once
    assert price(Repeated(Repeated(atom, 5), 2), delta) == at_once
    assert price(Composed((Repeated(Composed((atom, atom)), 5),)), delta) == at_once


@pytest.mark.slow
def test_many_equal_events_are_one():
    many = price([GaussianEvent(300.0)] * 90_000, 1e-6)
    assert many == price(Repeated(GaussianEvent(300.0), 90_000), 1e-6)
    assert many == pytest.approx(price(GaussianEvent(1.0), 1e-6), rel=1e-12)
    assert many >= price(GaussianEvent(1.0), 1e-6) * (1 - 1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [GaussianEvent(1.0), Repeated(GaussianEvent(10.0), 100), PoissonGaussian(0.1, 1.0)],
    ids=str,
)
def test_every_route_agrees_within_its_slack(event):
    delta = 1e-6
    total = total_of(event)
    least = price(event, delta)
    grid = composition.LossDistribution(total, {}).epsilon(delta)
    by_renyi = upper_bounds.renyi_epsilon(total, delta)
    closed = upper_bounds.closed_form(total, delta)
    assert least == min(grid, by_renyi, closed)
    if total.sampled:
        assert grid <= by_renyi <= closed
    else:
        assert closed <= grid <= closed + 1e-3
        assert grid <= by_renyi <= closed * 1.15


SLOW = pytest.mark.slow
TRUNCATED = TruncatedPoissonGaussian(1000, 0.05, 60, 5.0)
LADDERS = {
    "gaussian": [GaussianEvent(z) for z in (0.1, 0.5, 1.0, 5.0, 100.0)],
    "pure": [Pure(e) for e in (10.0, 3.0, 0.5, 1e-3, 0.0)],
    "poisson z": [PoissonGaussian(0.1, z) for z in (1.0, 2.0, 8.0)],
    "poisson q": [PoissonGaussian(q, 1.0) for q in (1.0, 0.1, 0.01, 0.0)],
    "replace z": [PoissonGaussian(0.2, z, REPLACE) for z in (5.0, 20.0)],
    "truncated": [TruncatedPoissonGaussian(1000, 0.05, 60, z) for z in (2.0, 5.0)],
    "truncated, more rungs": [
        TruncatedPoissonGaussian(1000, 0.05, 60, z) for z in (1.0, 2.0, 5.0, 8.0)
    ],
    "count": [Repeated(Pure(0.1), n) for n in (1000, 100, 10, 2, 1)],
    "sampled count": [
        Repeated(PoissonGaussian(0.01, 1.0), n) for n in (10**5, 1000, 1)
    ],
    "gaussian count": [Repeated(GaussianEvent(10.0), n) for n in (10**8, 10**4, 10, 1)],
    "mixed": [
        Composed((GaussianEvent(z), Repeated(Pure(0.1), 10))) for z in (0.5, 1, 9)
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            n, marks={"truncated": SLOW, "truncated, more rungs": DEEP}.get(n, ())
        )
        for n in LADDERS
    ],
)
def test_prices_grow_with_count_and_fall_with_noise(name):
    for delta in (1e-6, 1e-15):
        prices = [price(event, delta) for event in LADDERS[name]]
        assert prices == sorted(prices, reverse=True)
    deltas = [delta_of(event, 0.5) for event in LADDERS[name]]
    for high, low in zip(deltas, deltas[1:], strict=False):
        assert low <= high * (1 + 1e-9) + 1e-12


ALL = [
    *thinned(MIXTURES, 3, keep=(2, 8)),
    PoissonGaussian(0.1, 1.0),
    Repeated(PoissonGaussian(0.01, 1.0), 100),
    Repeated(PoissonGaussian(0.01, 1.0, REPLACE), 10),
    pytest.param(TRUNCATED, marks=SLOW),
    Composed((GaussianEvent(3.0), Pure(0.2), PoissonGaussian(0.05, 1.0))),
    Composed((GaussianEvent(3.0), ApproxDP(0.5, 1e-9))),
    Repeated(ApproxDP(0.1, 1e-12), 10),
    Pure(0.0),
    Composed(()),
    PoissonGaussian(0.0, 1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("event", thinned(ALL, 2), ids=str)
def test_price_and_delta_are_inverse(event):
    for delta in (1e-3, 1e-9, 1e-15):
        epsilon = price(event, delta)
        if math.isfinite(epsilon):
            assert delta_of(event, epsilon) <= delta * (1 + 1e-5)
    for epsilon in (0.0, 0.3, 8.0):
        delta = delta_of(event, epsilon)
        assert 0.0 <= delta <= 1.0
        if 1e-10 < delta < 1.0 and not isinstance(event, Pure):
            assert price(event, delta * (1 + 1e-5)) <= epsilon * (1 + 1e-6) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("event", ALL, ids=str)
def test_prices_never_jump_or_turn_as_delta_shrinks(event):
    """microsoft/prv_accountant#17: epsilon jumped around delta 1e-18."""
    deltas = [10.0**-k for k in (3, 6, 10.9, 11, 11.1, 12, 15, 18, 30, 100, 300)]
    prices = [price(event, delta) for delta in deltas]
    assert not any(math.isnan(p) or p < 0 for p in prices)
    assert prices == sorted(prices)
    # Leaving the grid at 1e-11 costs the slack of Renyi, never a multiple.
    at, below = prices[3], prices[4]
    if math.isfinite(below) and below > 0.01 and not total_of(event).approx:
        assert below <= 2.0 * at + 0.2 or _no_renyi(event)


def _no_renyi(event):
    return any(renyi.divergence(e, 2) is None for e in total_of(event).sampled)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.floats(1e-300, 1e300).map(GaussianEvent),
        st.floats(0.0, 1e150).map(Pure),
        st.builds(ApproxDP, st.floats(0.0, 1e150), st.floats(0.0, 1.0)),
    ),
    st.integers(1, 2**62),
    st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0)),
)
def test_simple_prices_are_numbers_from_zero(atom, count, delta):
    epsilon = price(atom, delta)
    assert epsilon >= 0.0
    if isinstance(atom, GaussianEvent):
        many = price(Repeated(atom, count), delta)
        assert many >= epsilon
    assert 0.0 <= delta_of(atom, 1.0) <= 1.0


@pytest.mark.parametrize("z", [1e-200, 1e-320, 5e-324, 1e-10, 1e10, 1e300])
@pytest.mark.parametrize("who", [ADD, REPLACE])
def test_extreme_noise_has_a_price(z, who):
    epsilon = price(PoissonGaussian(0.5, z, who), 1e-6)
    assert epsilon >= 0.0
    whole = price(GaussianEvent(z), 1e-6)
    assert epsilon <= 4.1 * whole + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("q", [5e-324, 1e-300, 1e-20, 1 - 2.0**-53])
@pytest.mark.parametrize("who", [ADD, REPLACE])
def test_extreme_sampling_has_a_price(q, who):
    epsilon = price(PoissonGaussian(q, 8.0, who), 1e-6)
    top = 0.25 if who is REPLACE else 0.125
    assert 0.0 <= epsilon <= gaussian_epsilon(top, 1e-6) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("q", "who"),
    [(0.0, ZERO), (0.0, REPLACE), pytest.param(1.0, ZERO, marks=SLOW)],
)
def test_truncated_samples_of_nobody_and_everybody(q, who):
    event = TruncatedPoissonGaussian(100, q, 10, 4.0, who)
    assert 0.0 <= price(event, 1e-6) <= gaussian_epsilon(0.5, 1e-6) * (1 + 1e-6)
    assert 0.0 <= delta_of(event, 1.0) <= 1.0


@pytest.mark.slow
def test_a_full_batch_truncates_nothing():
    plain = price(PoissonGaussian(0.1, 3.0, ZERO), 1e-6)
    for batch in (100, 1000):
        whole = TruncatedPoissonGaussian(100, 0.1, batch, 3.0)
        assert price(whole, 1e-6) == pytest.approx(plain, abs=1e-9)
    assert price(TruncatedPoissonGaussian(100, 0.1, 5, 3.0), 1e-6) > 2 * plain


@pytest.mark.parametrize(("eps", "delta"), [(1.0, 1e-6), (0.0, 1e-9), (2.0, 0.0)])
def test_an_approximate_event_costs_what_it_says(eps, delta):
    event = ApproxDP(eps, delta)
    assert price(event, delta) == eps
    assert delta_of(event, eps) == delta
    assert price(event, max(delta * 2, 1e-5)) <= eps


def test_approximate_events_add_up():
    event = Repeated(ApproxDP(1.0, 1e-6), 2)
    assert price(event, 2e-6) == 2.0
    assert price(event, 1e-6) == math.inf
    assert price(event, 3e-6) <= 2.0
    mixed = Composed((GaussianEvent(3.0), ApproxDP(0.5, 1e-7)))
    assert price(mixed, 1e-7) == math.inf
    alone = price(GaussianEvent(3.0), 9e-7)
    assert price(mixed, 1e-6) <= alone + 0.5 + 1e-9
    assert price(mixed, 1e-6) >= alone


def test_many_small_blocks_cost_less_than_their_sum():
    event = Repeated(ApproxDP(0.1, 1e-10), 100)
    ours = price(event, 1e-6)
    pure = price(Repeated(Pure(0.1), 100), 1e-6 - 1e-8)
    assert pure * (1 - 1e-3) <= ours <= 1.02 * pure


def test_nothing_costs_nothing():
    for event in (Pure(0.0), Composed(()), PoissonGaussian(0.0, 0.001), []):
        assert price(event, 0.0) == 0.0
        assert price(event, 1e-6) == 0.0
        assert delta_of(event, 0.0) == 0.0
    assert price(GaussianEvent(1.0), 0.0) == math.inf
    assert price(PoissonGaussian(0.5, 1.0), 0.0) == math.inf
    assert price(GaussianEvent(1e-9), 1.0) == 0.0


def test_pure_epsilons_add_exactly_on_the_private_side():
    """openmed PR#2457: a subnormal spend must not be lost."""
    assert price([Pure(5e-324)] * 1000, 0.0) == 1000 * 5e-324
    tenth = price([Pure(0.1)] * 10, 0.0)
    assert tenth >= 1.0
    assert price([Pure(1.0), Pure(1e-30)], 0.0) > 1.0


@pytest.mark.parametrize("eps", [1e152, 1e200, 1e308])
def test_extreme_pure_events_have_a_price(eps):
    assert price(Pure(eps), 1e-6) == eps
    assert delta_of(Pure(eps), 1.0) == 1.0
    assert price(Repeated(Pure(eps), 10), 1e-6) >= eps


def test_a_price_refuses_what_is_no_event():
    for work in ("x", None, 3.0, ["x"], [[GaussianEvent(1.0)]], {"type": "gaussian"}):
        with pytest.raises(TypeError):
            price(work, 1e-6)
        with pytest.raises(TypeError):
            delta_of(work, 1.0)


# ------------------------------------------------------------ no grid when not needed


@pytest.fixture
def no_grid(monkeypatch):
    """Any distribution on a grid is an error."""

    def refuse(*_, **__):
        raise AssertionError("a grid was built")

    monkeypatch.setattr(pricing, "LossDistribution", refuse)
    monkeypatch.setattr(sampled_profiles, "sampled_profile", refuse)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)


LARGE = [
    GaussianEvent(0.01),
    Repeated(Pure(1.0), 1000),
    Composed((GaussianEvent(0.05), Repeated(Pure(1.0), 3))),
    Repeated(PoissonGaussian(0.5, 0.5), 10_000),
    PoissonGaussian(0.5, 0.02),
    Repeated(PoissonGaussian(0.5, 0.3, REPLACE), 10_000),
    PoissonGaussian(0.5, 0.02, REPLACE),
    Repeated(TruncatedPoissonGaussian(1000, 0.5, 600, 0.3), 10_000),
    Composed((GaussianEvent(0.05), PoissonGaussian(0.01, 1.0, REPLACE))),
]


@pytest.mark.parametrize("event", LARGE, ids=str)
def test_an_epsilon_above_100_needs_no_grid(event, no_grid):
    epsilon = price(event, 1e-6)
    assert 100 < epsilon < math.inf
    assert delta_of(event, 1.0) <= 1.0


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(1.0),
        Repeated(GaussianEvent(3.0), 10**9),
        Pure(0.5),
        ApproxDP(0.5, 1e-9),
        PoissonGaussian(1.0, 1.0),
    ],
    ids=str,
)
def test_closed_forms_need_no_grid(event, no_grid):
    assert price(event, 1e-6) > 0


@pytest.mark.parametrize(
    "event",
    [
        Repeated(Pure(1e-6), 10**12),
        Repeated(Pure(1e-4), 10**8),
        Repeated(ApproxDP(1e-4, 1e-16), 10**8),
        Repeated(Pure(1e-9), 2**62),
    ],
    ids=str,
)
def test_countless_tiny_events_need_no_grid(event, no_grid):
    """Their grid would have to be finer than memory: Renyi answers."""
    assert 0 < price(event, 1e-6) < math.inf
    assert delta_of(event, 1.0) <= 1.0


def test_countless_repetitions_have_a_price():
    event = PoissonGaussian(0.5, 1.0)
    for _ in range(20):
        event = Repeated(event, 2**62)
    assert price(event, 1e-6) == math.inf
    assert delta_of(event, 1.0) == 1.0


# ----------------------------------------------------------------------- profiles


PLAN = Repeated(PoissonGaussian(0.01, 1.0), 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [
        PLAN,
        Repeated(PoissonGaussian(0.02, 2.0, REPLACE), 100),
        pytest.param(TRUNCATED, marks=SLOW),
    ],
    ids=str,
)
def test_stored_profiles_give_the_same_price(event):
    stored = {event: Profile.from_bytes(profile_of(event).to_bytes())}
    for delta in (1e-4, 1e-6, 1e-9):
        fresh = price(event, delta)
        read = price(event, delta, profiles=stored)
        assert fresh - 1e-9 <= read <= fresh + 1e-3
    assert delta_of(event, 1.0, profiles=stored) == pytest.approx(
        delta_of(event, 1.0), rel=1e-2
    )


@pytest.mark.slow
def test_stored_profiles_make_up_larger_and_mixed_ledgers(monkeypatch):
    ledger = Composed((Repeated(PLAN, 3), GaussianEvent(5.0), Repeated(Pure(0.1), 2)))
    fresh = price(ledger, 1e-6)
    stored = {PLAN: profile_of(PLAN)}

    def refuse(*_, **__):
        raise AssertionError("a stored profile was built again")

    monkeypatch.setattr(sampled_profiles, "sampled_profile", refuse)
    read = price(ledger, 1e-6, profiles=stored)
    assert fresh - 1e-9 <= read <= fresh + 2e-3


@pytest.mark.slow
def test_unrelated_profiles_are_left_alone():
    other = PoissonGaussian(0.5, 0.7)
    stored = {other: profile_of(other), GaussianEvent(1.0): profile_of(other)}
    assert price(PLAN, 1e-6, profiles=stored) == price(PLAN, 1e-6)


@pytest.mark.slow
def test_only_sampled_plans_have_a_profile():
    for event in (GaussianEvent(1.0), Pure(1.0), Composed((PLAN, GaussianEvent(1.0)))):
        assert profile_of(event) is None
    half = Repeated(PLAN.event, PLAN.count // 2)
    assert profile_of(Composed((half, half))) is not None


# -------------------------------------------------------------------- translation


PLAIN = [
    GaussianEvent(1.5),
    PoissonGaussian(0.1, 1.0),
    Repeated(GaussianEvent(2.0), 7),
    Composed((GaussianEvent(1.0), Repeated(PoissonGaussian(0.5, 2.0), 3))),
    Pure(0.0),
]


@pytest.mark.parametrize("event", PLAIN, ids=str)
def test_translation_round_trip(event):
    assert from_dp_event(to_dp_event(event)) == event


@pytest.mark.parametrize("who", [ZERO, REPLACE])
def test_translation_round_trip_of_sampled_events(who):
    for event in (
        PoissonGaussian(0.1, 1.0, who),
        TruncatedPoissonGaussian(100, 0.1, 20, 1.0, who),
    ):
        assert from_dp_event(to_dp_event(event), who) == event


@pytest.mark.parametrize(
    "event",
    [
        dpa.LaplaceDpEvent(1.0),
        dpa.NonPrivateDpEvent(),
        dpa.UnsupportedDpEvent(),
        dpa.ZCDpEvent(0.5),
        dpa.RandomizedResponseDpEvent(0.5, 2),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
        dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(1.0)),
        dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), dpa.NonPrivateDpEvent()]),
        None,
        "gaussian",
    ],
    ids=repr,
)
def test_events_without_a_counterpart_are_refused(event):
    with pytest.raises(NotPriced):
        from_dp_event(event)


@pytest.mark.parametrize(
    "event",
    [
        dpa.GaussianDpEvent(0.0),
        dpa.GaussianDpEvent(-1.0),
        dpa.PoissonSampledDpEvent(1.5, dpa.GaussianDpEvent(1.0)),
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 0),
    ],
    ids=repr,
)
def test_bad_foreign_events_are_refused(event):
    with pytest.raises(ValueError):
        from_dp_event(event)


@pytest.mark.parametrize("event", [Pure(0.5), ApproxDP(0.5, 1e-6)])
def test_events_without_a_word_are_not_translated(event):
    for work in (event, Repeated(event, 2), Composed((GaussianEvent(1.0), event))):
        with pytest.raises(NotPriced):
            to_dp_event(work)
