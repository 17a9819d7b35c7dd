"""The rules of a ledger in figures: ways to pay, refusals in words, meters, terms."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    BudgetExceeded,
    Erasure,
    Filter,
    Ledger,
    ReplaceOne,
    gaussian_epsilon,
)
from demur.core.accounting import gaussian, gdp
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.adjacency import LipschitzMap
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.rounding import printed_up
from demur.errors import LedgerMismatch, NotCovered, NotPriced
from demur.ledger import ApprovalRule
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import is_paid, pay, ways_to_pay
from demur.ledger.rules.approval import costs_alone
from demur.ledger.rules.meters import GaussianMeter, RenyiMeter, best_order, meter_named
from demur.ledger.rules.terms import Terms
from tests.ledger.kit import UNIT, says

END = (
    " spent so far. Use more noise, or ask whoever set the budget. Declined: nothing"
    " was released and nothing was spent."
)


def declined(ledger, event):
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge(says(event), label="more")
    text = str(caught.value)
    assert text.startswith("'more' would ") and text.endswith(END)
    return text.removeprefix("'more' would ").removesuffix(END)


# -- refusals in words --------------------------------------------------------------


def test_a_refusal_says_what_the_epsilons_would_add_up_to():
    ledger = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    at = "(delta 0) at AddOrRemoveOne();"
    assert declined(ledger, Pure(1.25)) == f"bring epsilon to 1.25 of 1 {at} 0 is"
    ledger.charge(says(Pure(0.75)), label="x")
    assert declined(ledger, Pure(0.75)) == f"bring epsilon to 1.5 of 1 {at} 0.75 is"
    ledger.charge(says(Pure(0.25)), label="all of it")
    tiny = declined(ledger, Pure(2.0**-60))
    assert tiny == f"bring epsilon to 1.001 of 1 {at} 1 is", "rounded up, not equal"


def test_a_refusal_says_what_the_deltas_would_add_up_to():
    ledger = Ledger(Budget(8.0, 1e-6), unit=UNIT, filter="pure")
    ledger.charge(says(ApproxDP(0.25, 7.5e-7)), label="x")
    said = declined(ledger, ApproxDP(0.25, 7.5e-7))
    at = "(delta 1e-06) at AddOrRemoveOne();"
    assert said == f"bring delta to 1.5e-06 of 9.999e-07 {at} 0.25 is"


def test_a_refusal_of_a_gaussian_ledger_says_what_the_noise_would_cost():
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    ledger.charge(says(GaussianEvent(8.0)), label="x")
    delta = gaussian.ideal_delta(1e-6)
    before, after = (
        printed_up(gaussian_epsilon(math.sqrt(count) / 8.0, delta)) for count in (1, 9)
    )
    said = declined(ledger, Repeated(GaussianEvent(8.0), 8))
    at = "(delta 1e-06) at AddOrRemoveOne();"
    assert said == f"bring epsilon to {after} of 1 {at} {before} is"


def test_a_refusal_names_the_share_that_is_used_up():
    ledger = Ledger(Budget(2.0, 1e-6), unit=UNIT, filter=Filter.gaussian(blocks=0.25))
    at = "(delta 1e-06) at AddOrRemoveOne(); 0 is"
    assert declined(ledger, ApproxDP(0.75, 1e-9)) == (
        f"bring epsilon to 0.75 of 0.5 set aside for blocks {at}"
    )
    assert declined(ledger, ApproxDP(0.25, 5e-7)) == (
        f"bring delta to 5e-07 of 2.499e-07 {at}"
    )
    both = declined(ledger, Pure(1.75))
    meter, _, block = both.partition(" or ")
    assert meter.endswith(" of 1.5 (2 less the share for blocks)")
    assert block == f"bring epsilon to 1.75 of 0.5 set aside for blocks {at}"


def test_what_is_left_to_meters_holds_beside_full_blocks():
    """The blocks' share is full; the meter's own is told apart from it."""
    rule, budget = Filter.gaussian(blocks=0.25), Budget(2.0, 1e-6)
    full = filters.capacities(rule, budget)
    assert filters.fits(rule, budget, full)
    for account in full:
        more = full | {account: full[account] + Fraction(1, 10**40)}
        assert not filters.fits(rule, budget, more)
    words = filters.overdraft_words(rule, budget, full | {"mu squared": Fraction(1)})
    assert words.endswith(" of 1.5 (2 less the share for blocks)")
    assert filters.spent_epsilon(rule, budget, {}) == 0.0
    assert filters.spent_epsilon(rule, budget, full) == pytest.approx(2.0, rel=1e-6)


def test_a_meter_that_is_used_up_has_spent_everything():
    rule, budget = Filter.gaussian(), Budget(2.0, 1e-6)
    used = {"mu squared": None}
    assert not filters.fits(rule, budget, used)
    assert filters.spent_epsilon(rule, budget, used) == math.inf
    assert filters.overdraft_words(rule, budget, used) == "bring epsilon to inf of 2"
    assert filters.add(used, {"mu squared": Fraction(1)}) == used
    assert filters.add({}, {"a": Fraction(1), "b": None}) == {
        "a": Fraction(1),
        "b": None,
    }


def test_a_budget_without_a_limit_takes_everything():
    endless = Budget(float.fromhex("0x1.fffffffffffffp+1023"))
    rule = Filter.pure()
    assert filters.fits(rule, endless, {"block epsilon": Fraction(10) ** 400})
    assert filters.spent_epsilon(rule, endless, {}) == 0.0
    assert filters.spent_epsilon(rule, endless, {"samplers": Fraction(1)}) == math.inf
    event = GaussianEvent(1e-3)
    assert filters.payment_options(rule, endless, event, Fraction(0)) == [{}]
    assert filters.payment_options(rule, endless, event, Fraction(1, 8)) == [
        {"samplers": Fraction(1, 8)}
    ]


# -- ways to pay --------------------------------------------------------------------


def test_the_meter_pays_first_and_the_blocks_where_it_cannot():
    rule, budget = Filter.gaussian(blocks=0.5), Budget(2.0, 1e-6)
    ways = filters.payment_options(rule, budget, Pure(0.5), Fraction(1, 10**9))
    assert ways == [
        {
            "mu squared": Fraction(gdp.mu_of_pure(0.5)) ** 2,
            "samplers": Fraction(1, 10**9),
        },
        {
            "block epsilon": Fraction(1, 2),
            "block delta": Fraction(0),
            "samplers": Fraction(1, 10**9),
        },
    ]
    (only,) = filters.payment_options(rule, budget, ApproxDP(0.5, 1e-8), Fraction(0))
    assert only == {"block epsilon": Fraction(1, 2), "block delta": Fraction(1e-8)}


def test_a_block_takes_an_eighth_of_delta_unless_it_is_told():
    rule, budget = Filter.pure(), Budget(4.0, 1e-6)
    share = Fraction(gaussian.ideal_delta(1e-6))
    (own,) = filters.payment_options(rule, budget, GaussianEvent(8.0), Fraction(0))
    assert (
        own["block delta"] <= share / 8 < own["block delta"] * (1 + Fraction(1, 2**50))
    )
    (told,) = filters.payment_options(
        rule, budget, GaussianEvent(8.0), Fraction(0), block_delta=1e-8
    )
    assert told["block delta"] == Fraction(1e-8)
    assert told["block epsilon"] == Fraction(filters._price(GaussianEvent(8.0), 1e-8))
    mixed = Repeated(ApproxDP(0.25, 1e-8), 3)
    (pairs,) = filters.payment_options(rule, budget, mixed, Fraction(0))
    assert pairs == {
        "block epsilon": Fraction(3, 4),
        "block delta": 3 * Fraction(1e-8),
    }
    for wrong in (0.0, 1.0, -1e-9):
        with pytest.raises(ValueError, match="block_delta"):
            filters.payment_options(
                rule, budget, GaussianEvent(8.0), Fraction(0), block_delta=wrong
            )


def test_what_no_account_can_price_is_refused_with_advice():
    budget = Budget(4.0, 1e-6)
    sampled = PoissonGaussian(0.01, 2.0)
    with pytest.raises(
        NotPriced, match=r"blocks=0\.5\), Filter\.pure\(\) or Filter\.r"
    ):
        filters.payment_options(Filter.gaussian(), budget, sampled, Fraction(0))
    with pytest.raises(NotPriced, match=r"blocks=0\.5\) or Filter\.pure\(\)\. Nothing"):
        pair = ApproxDP(0.5, 1e-8)
        filters.payment_options(Filter.gaussian(), budget, pair, Fraction(0))
    with pytest.raises(
        NotPriced, match="no price at delta 0: the budget needs a delta"
    ):
        filters.payment_options(Filter.pure(), Budget(4.0), sampled, Fraction(0))


def test_every_budget_pays_or_none():
    budgets = {UNIT: Budget(1.0), ReplaceOne(): Budget(1.0)}
    terms = Terms.make(dataset="d", budgets=budgets, filter="pure")
    both = Declaration(
        "both", Cost((Fixed(UNIT, Pure(0.25)), Fixed(ReplaceOne(), Pure(0.75))))
    )
    ways = ways_to_pay(terms, both, 1, None)
    totals = [{}, {}]
    paid = pay(terms, "x", ways, totals)
    one = {"block epsilon": Fraction(1, 4), "block delta": Fraction(0)}
    assert paid == [one, one | {"block epsilon": Fraction(3, 4)}] == totals
    assert is_paid(ways, paid)
    before = [dict(total) for total in totals]
    with pytest.raises(BudgetExceeded, match=r"at ReplaceOne\(\); 0\.75 is spent"):
        pay(terms, "x", ways, [dict(total) for total in totals])
    assert totals == before
    assert ways_to_pay(terms, both, 3, None)[0] == [
        one | {"block epsilon": Fraction(3, 4)}
    ]


def test_a_deletion_is_paid_for_at_its_own_unit():
    budgets = {UNIT: Budget(1.0), Erasure(): Budget(2.0)}
    terms = Terms.make(dataset="d", budgets=budgets, filter="pure")
    release = ways_to_pay(terms, says(Pure(0.25)), 1, None)
    assert release[0] is not None and release[1] is None
    deletion = ways_to_pay(terms, says(Pure(0.5), Erasure()), 1, None)
    assert deletion[0] is None and deletion[1] is not None
    totals = [{}, {}]
    assert pay(terms, "x", deletion, totals)[0] is None and totals[0] == {}
    alone = Terms.make(dataset="d", budgets={UNIT: Budget(1.0)}, filter="pure")
    with pytest.raises(NotCovered, match="states its cost at .*and this ledger has"):
        ways_to_pay(alone, says(Pure(0.5), Erasure()), 1, None)


@pytest.mark.parametrize(
    ("paid", "enough"),
    [
        ([{"a": Fraction(2), "b": Fraction(1)}, None], True),
        ([{"a": Fraction(3), "b": Fraction(1)}, None], True),
        ([{"a": 2 * (1 - Fraction(1, 10**9)), "b": Fraction(1)}, None], True),
        ([{"a": 2 * (1 - Fraction(2, 10**9)), "b": Fraction(1)}, None], False),
        ([{"a": Fraction(2)}, None], False),
        ([{"a": None, "b": Fraction(1)}, None], True),
        ([{"c": None}, None], True),
        ([{"c": Fraction(9)}, None], False),
        ([None, None], False),
        ([{"a": Fraction(2), "b": Fraction(1)}, {}], False),
        ([{"a": Fraction(2), "b": Fraction(1)}], False),
    ],
)
def test_a_price_is_paid_by_one_of_its_ways(paid, enough):
    ways = [[{"a": Fraction(2), "b": Fraction(1)}, {"c": None}], None]
    assert is_paid(ways, paid) is enough


# -- meters -------------------------------------------------------------------------


def test_what_a_gaussian_meter_adds():
    meter = GaussianMeter()
    assert meter.amount(GaussianEvent(2.0)) == Fraction(1, 4)
    assert meter.amount(PoissonGaussian(1.0, 2.0)) == meter.amount(
        GaussianEvent(PoissonGaussian(1.0, 2.0).whole_multiplier)
    )
    for free in (Pure(0.0), PoissonGaussian(0.0, 2.0)):
        assert meter.amount(free) == 0
    for dear in (PoissonGaussian(0.5, 2.0), ApproxDP(0.1, 1e-9)):
        assert meter.amount(dear) is None
    assert meter.capacity(Budget(1.0)) == 0
    mu = gaussian.gaussian_mu(1.0, 1e-6)
    assert meter.capacity(Budget(1.0, 1e-6)) == Fraction(mu) ** 2
    assert meter.epsilon(Fraction(10) ** 301, 1e-6) == math.inf
    assert meter.epsilon(Fraction(0), 0.0) == 0.0
    assert meter.account == "mu squared" and meter_named("mu squared") == meter


@pytest.mark.parametrize("order", [2, 8, 1024])
def test_what_a_renyi_meter_adds(order):
    meter, delta = RenyiMeter(order), 1e-6
    exact = Fraction(order, 8)  # of a Gaussian of multiplier 2
    assert exact <= meter.amount(GaussianEvent(2.0)) <= exact * (1 + Fraction(1, 10**9))
    assert meter.amount(Pure(0.0)) == 0
    assert meter.amount(Pure(1e-200)) >= Fraction(math.ulp(0.0)) > 0
    assert meter.amount(ApproxDP(0.1, 1e-9)) is None
    assert meter.capacity(Budget(1.0)) == 0 == meter.epsilon(Fraction(0), delta)
    assert meter.epsilon(Fraction(1), 0.0) == math.inf
    assert meter.epsilon(Fraction(10) ** 301, delta) == math.inf
    budget = Budget(40.0, delta)
    most = meter.capacity(budget)
    # Its meaning in epsilon is the budget, but for a margin of 1e-12.
    assert 40.0 * (1 - 1e-9) <= meter.epsilon(most, delta) <= 40.0
    assert meter_named(f"renyi {order}") == meter
    for wrong in ("renyi", "mu", 5, None):
        with pytest.raises(ValueError, match="not a meter"):
            meter_named(wrong)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(8.0, 1e-9)])
def test_the_best_order_admits_most(budget):
    best = best_order(budget)
    mine = RenyiMeter(best).capacity(budget) / best
    for order in (2, best - 1, best + 1, 1024):
        if order >= 2:
            assert RenyiMeter(order).capacity(budget) / order <= mine
    assert Filter.named("rdp", budget) == Filter.rdp(best)
    assert Filter.named("pure", budget) == Filter.pure() == Filter()
    assert Filter.named("gaussian", budget) == Filter.gaussian()


def test_filters_are_read_as_they_are_written():
    for rule in (
        Filter.pure(),
        Filter.gaussian(),
        Filter.gaussian(blocks=0.25),
        Filter.rdp([4, 8], blocks=0.5),
    ):
        assert Filter.from_json(rule.to_json()) == rule
    assert str(Filter.pure()) == "pure (epsilons and deltas add up)"
    assert str(Filter.gaussian(blocks=0.25)) == (
        "gaussian (squares of mu add up), 25% set aside for blocks"
    )
    assert str(Filter.rdp([4, 8])) == (
        "rdp (Renyi divergences of order 4 add up) or rdp (Renyi divergences of order"
        " 8 add up)"
    )
    given = Filter.gaussian(blocks=np.float32(0.25))
    assert given == Filter.gaussian(blocks=0.25) and type(given.blocks) is float
    assert type(Filter([], 1).blocks) is float
    for wrong in (1.0, 1.5, -0.1):
        with pytest.raises(ValueError, match="blocks"):
            Filter.gaussian(blocks=wrong)
    with pytest.raises(ValueError, match="blocks must be 1"):
        Filter((), 0.5)
    with pytest.raises(ValueError, match="meters must differ"):
        Filter.rdp([4, 4])


def test_amounts_are_read_as_they_are_written():
    totals = [{"a": Fraction(1, 3), "b": None, "c": Fraction(0)}, {}]
    text = amounts.to_text(totals)
    assert text == '[{"a":"1/3","b":null,"c":"0"},{}]'
    assert amounts.from_text(text) == totals
    for wrong in ('{"a":1}', '["x"]', '[{"a":1}]', '[{"a":"-1"}]', '[{"a":"1/0"}]'):
        with pytest.raises(ValueError, match="not "):
            amounts.from_text(wrong)


# -- terms and approval -------------------------------------------------------------

RULE = ApprovalRule(above=0.5, mechanisms=("a sharp *",))
TERMS = Terms.make(
    dataset="people",
    budgets={UNIT: Budget(1.0, 1e-6), ReplaceOne(): Budget(2.0, 1e-6)},
    maps=[LipschitzMap("raw", "cube", 2.0)],
    approval=RULE,
)


def test_terms_are_read_as_they_are_written():
    for terms in (TERMS, replace(TERMS, approval=None, testing=True, maps=())):
        assert Terms.from_text(terms.to_text()) == terms
        assert Terms.from_text(terms.to_text()).to_text() == terms.to_text()
    assert '"approval"' not in replace(TERMS, approval=None).to_text()
    assert list(dict(TERMS.budgets)) == [UNIT, ReplaceOne()]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"dataset": "others"}, "with dataset 'people'; asked for now: 'others'"),
        ({"filter": Filter.pure()}, r"with filter gaussian .*now: pure"),
        ({"maps": ()}, r"with maps \[.*cube.*now: none"),
        ({"testing": True}, "with testing False; asked for now: True"),
        ({"approval": None}, "with approval approval above .*now: None"),
        ({"budgets": TERMS.budgets[:1]}, r"with budgets \{AddOrRemoveOne\(\): .*Repl"),
        ({"budgets": ((UNIT, Budget(3.0, 1e-6)),)}, "with budgets"),
    ],
)
def test_other_terms_are_refused_and_shown(change, shown):
    with pytest.raises(LedgerMismatch, match=shown):
        TERMS.must_equal(replace(TERMS, **change))
    TERMS.must_equal(replace(TERMS, signer="a" * 64))
    TERMS.must_equal(replace(TERMS, budgets=TERMS.budgets[::-1]))


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"dataset": ""}, ValueError, "dataset"),
        ({"signer": "a" * 63}, ValueError, "signer"),
        ({"signer": "A" * 64}, ValueError, "signer"),
        ({"testing": 1}, TypeError, "testing"),
        ({"approval": {}}, TypeError, "approval"),
        ({"budgets": ()}, ValueError, "at least one unit"),
        ({"budgets": TERMS.budgets[:1] * 2}, ValueError, "a unit twice"),
    ],
)
def test_terms_that_make_no_sense_are_refused(change, kind, text):
    with pytest.raises(kind, match=text):
        replace(TERMS, **change)


@pytest.mark.parametrize("budgets", [{}, [], None, {UNIT: 1.0}, {"x": Budget(1.0)}])
def test_budgets_are_by_unit(budgets):
    with pytest.raises((TypeError, ValueError), match="budgets must map"):
        Terms.make(dataset="d", budgets=budgets)


def test_the_filter_follows_from_delta():
    def chosen(*budgets, **more):
        units = [UNIT, ReplaceOne(), Erasure()]
        named = dict(zip(units[3 - len(budgets) :], budgets, strict=True))
        return Terms.make(dataset="d", budgets=named, **more).filter

    with_delta, without = Budget(1.0, 1e-6), Budget(1.0)
    assert chosen(with_delta) == chosen(with_delta, with_delta) == Filter.gaussian()
    assert chosen(without) == chosen(with_delta, without) == Filter.pure()
    # The order of a Renyi filter is that of the first budget for releases.
    rdp = chosen(Budget(8.0, 1e-9), Budget(20.0, 1e-3), filter="rdp")
    assert rdp == Filter.rdp(best_order(Budget(8.0, 1e-9)))


@pytest.mark.parametrize(
    ("epsilon", "waits"), [(0.5, False), (0.5 * (1 + 5e-10), False), (0.50001, True)]
)
def test_a_charge_above_the_limit_waits(epsilon, waits):
    terms = Terms.make(
        dataset="d",
        budgets={UNIT: Budget(4.0)},
        filter="pure",
        approval=ApprovalRule(above=0.5),
    )
    assert terms.needs_approval(says(Pure(epsilon))) is waits
    assert terms.needs_approval(says(Pure(epsilon / 2)), 2) is waits
    assert terms.needs_approval(says(Pure(epsilon / 2)), 3)
    assert not replace(terms, approval=None).needs_approval(says(Pure(3.0)))


def test_a_charge_waits_by_its_name_or_for_no_cost_at_all():
    assert TERMS.needs_approval(says(Pure(0.01), name="a sharp count"))
    assert not TERMS.needs_approval(says(Pure(0.01), name="A sharp count"))
    every = replace(TERMS, approval=ApprovalRule(above=0))
    assert every.needs_approval(says(Pure(0.0)))
    named = replace(TERMS, approval=ApprovalRule(mechanisms=("x",)))
    assert not named.needs_approval(says(Pure(9.0)))
    assert every.approval.above == 0.0 and type(every.approval.above) is float
    assert str(every.approval) == "approval for every charge"
    assert str(RULE) == "approval above epsilon 0.5 and for a sharp *"
    for rule in (RULE, every.approval, named.approval):
        assert ApprovalRule.from_json(rule.to_json()) == rule
    assert ApprovalRule.from_json(None) is None
    for wrong in ({}, {"above": 1.0}, [], "x", {"above": 1, "mechanisms": [], "a": 1}):
        with pytest.raises(ValueError, match="not an approval rule"):
            ApprovalRule.from_json(wrong)
    with pytest.raises(TypeError, match="must be a list"):
        ApprovalRule(mechanisms="DP-SGD")
    with pytest.raises(ValueError, match="names above="):
        ApprovalRule()
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="above"):
            ApprovalRule(above=wrong)


def test_what_a_charge_costs_alone():
    units = (UNIT, ReplaceOne(), Ball(0.1, space="cube"))
    budgets = tuple((unit, Budget(1.0)) for unit in units)
    assert costs_alone(budgets, (), says(Pure(0.25)), 3) == (0.75, None, None)
    sampled = says(GaussianEvent(4.0))
    free = ((UNIT, Budget(1.0)),)
    assert costs_alone(free, (), sampled, 1) in ((math.inf,), (None,))
    priced = costs_alone(((AddOrRemoveOne(), Budget(1.0, 1e-6)),), (), sampled, 1)
    assert priced[0] == pytest.approx(gaussian_epsilon(0.25, 1e-6), rel=1e-4)
