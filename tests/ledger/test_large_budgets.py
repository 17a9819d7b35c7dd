"""Large budgets and small noise: a larger budget never declines what a smaller allows.

The sabotaged twin is the rule that this one replaced: room for samplers that falls with
the epsilon of the budget.
"""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur import AddOrRemoveOne, Budget, Filter, Ledger
from demur.convex import BallLogisticRegression
from demur.core.accounting import samplers
from demur.core.accounting.events import ApproxDP, GaussianEvent, Pure
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import Ball
from demur.core.promise import NO_LIMIT
from demur.errors import BudgetExceeded
from demur.ledger import GaussianMeter, RenyiMeter
from demur.ledger.rules import filters
from demur.mechanisms import Gaussian
from tests.families import thinned
from tests.ledger.kit import UNIT, says

EPSILONS = (0.1, 1.0, 8.0, 49.0, 51.0, 100.0, 178.0, 200.0, 400.0, 700.0, 1e4)
RULES = {
    "pure": Filter.pure(),
    "gaussian": Filter.gaussian(),
    "gaussian and blocks": Filter.gaussian(blocks=0.5),
    "rdp": Filter.rdp(8),
    "rdp and blocks": Filter.rdp((4, 16), blocks=0.3),
    "both": Filter((GaussianMeter(), RenyiMeter(8)), 0.0),
}
DISTANCES = (0.0, 1e-300, 2.0**-288, 2.0**-116, 1e-20, 1e-15)


def filling(rule, budget, part):
    """Totals that fill every account of `rule` under `budget` to `part`."""
    share = filters.shares(rule, budget)
    return {
        filters.BLOCK_EPSILON: share.block_epsilon * part,
        filters.BLOCK_DELTA: share.block_delta * part,
        **{account: c * part for account, c in share.capacities.items()},
    }


def old_fits(rule, budget, totals):
    """The rule before: the distances are held against e^epsilon of the budget."""
    if budget.epsilon >= 700:
        room = Fraction(0)
    else:
        room = samplers.aside(budget.delta) / Fraction(1 + math.exp(budget.epsilon))
    needed = totals.get(filters.SAMPLERS, Fraction(0))
    return filters._within(rule, budget, totals) and needed <= room


def shrinking(fits, rule, delta):
    """Pairs of budgets of which the smaller one admits totals that the larger does not.

    Totals fill a smaller budget, beside samplers at several distances.
    """
    found = []
    for small, part, eta in itertools.product(
        EPSILONS, (Fraction(0), Fraction(1, 1000), Fraction(1)), DISTANCES
    ):
        totals = filling(rule, Budget(small, delta), part)
        totals[filters.SAMPLERS] = Fraction(eta)
        admitted = [fits(rule, Budget(e, delta), totals) for e in EPSILONS]
        if admitted != sorted(admitted):
            found.append((small, part, eta))
    return found


CASES = [
    pytest.param(
        name, delta, marks=() if name == "gaussian and blocks" else pytest.mark.slow
    )
    for name, delta in itertools.product(RULES, (1e-5, 1e-10, 1e-2))
]


@pytest.mark.parametrize(("name", "delta"), thinned(CASES, 3))
def test_a_larger_budget_admits_what_a_smaller_one_does(name, delta):
    assert not shrinking(filters.fits, RULES[name], delta)


@pytest.mark.parametrize("name", RULES)
def test_the_rule_before_is_found_out(name):
    assert shrinking(old_fits, RULES[name], 1e-5)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.floats(0.1, 1e4),
    st.floats(0.1, 1e4),
    st.sampled_from([1e-12, 1e-5, 1e-3]),
    st.lists(
        st.tuples(
            st.one_of(
                st.builds(GaussianEvent, st.floats(0.01, 100.0)),
                st.builds(Pure, st.floats(0.001, 1e3)),
            ),
            st.sampled_from(DISTANCES),
        ),
        max_size=6,
    ),
)
def test_charges_that_a_smaller_budget_took_fit_a_larger_one(
    name, one, other, delta, charges
):
    """Each charge in the same account: the totals of the smaller fit the larger."""
    rule, (small, large) = RULES[name], sorted((one, other))
    totals: filters.Amounts = {}
    for event, eta in charges:
        for way in filters.payment_options(
            rule, Budget(small, delta), event, Fraction(eta)
        ):
            after = filters.add(totals, way)
            if filters.fits(rule, Budget(small, delta), after):
                totals = after
                break
        assert filters.fits(rule, Budget(large, delta), totals)


# -- the theorem -------------------------------------------------------------------


def test_the_parts_of_the_theorem_add_up_to_less_than_is_set_aside():
    for delta in (1e-300, 1e-12, 1e-5, 0.1):
        aside = samplers.aside(delta)
        rooms = [samplers.room(level, delta) for level in samplers.LEVELS]
        assert rooms == sorted(rooms, reverse=True) and rooms[-1] > 0
        rest = sum(
            # e^c rounded up: exp is within an ulp.
            room * Fraction(math.exp(level)) * (1 + Fraction(1, 2**50))
            for room, level in zip(rooms, samplers.LEVELS, strict=True)
        )
        levels = 2 * len(rooms) * Fraction(samplers.level_delta(delta))
        assert rooms[0] + rest + levels < aside
        assert aside + Fraction(ideal_delta(delta)) == Fraction(delta)
    assert samplers.aside(0.0) == samplers.room(1.0, 0.0) == 0


@pytest.mark.parametrize("mu", thinned([0.05, 0.3, 1.0, 3.0, 8.0], 2))
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_the_worst_sampler_beside_a_gaussian_stays_in_its_share(mu, delta):
    """Q' loses the likeliest mass eta of Q. By Neyman and Pearson that is a tail.

    What delta gains is P of that tail where it was not counted before, and eta itself.
    With the whole share at once, as the old rule had it at epsilon 0, it gains more.
    """

    def gained(eta):
        with mp.workdps(60):
            z = mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(eta))  # Q(L > .) = eta
            return mp.ncdf(mu - z) + eta

    totals: filters.Amounts = {"mu squared": Fraction(mu) ** 2}
    room = filters.room_for_samplers(Filter.gaussian(), delta, totals)
    aside = float(samplers.aside(delta))
    assert 0 < gained(float(room)) <= aside
    assert gained(aside / 2) > aside or mu < 0.1


def test_room_depends_on_what_was_used_and_falls_with_it():
    rule, delta = Filter.gaussian(blocks=0.5), 1e-5
    rooms = [
        filters.room_for_samplers(rule, delta, filling(rule, Budget(e, delta), 1))
        for e in EPSILONS
    ]
    assert rooms == sorted(rooms, reverse=True) and rooms[0] > 1e-15
    assert rooms[-1] == 0  # only exact samplers draw at epsilon 1e4
    # What the deltas of blocks are does not matter; their epsilons and meters do.
    blocks: filters.Amounts = {filters.BLOCK_DELTA: Fraction(1, 10**6)}
    assert filters.room_for_samplers(rule, delta, blocks) == samplers.room(1.0, delta)
    blocks = {filters.BLOCK_EPSILON: Fraction(40)}
    assert filters.room_for_samplers(rule, delta, blocks) == samplers.room(40.0, delta)
    assert not filters.room_for_samplers(rule, delta, {"mu squared": None})


def test_a_sampler_that_cannot_be_paid_for_is_declined_in_words():
    z = 1.0 / gaussian_mu(150.0, ideal_delta(1e-6)) * 1.001
    ledger = Ledger(Budget(400.0, 1e-6), unit=UNIT)
    ledger.charge(says(GaussianEvent(z), sampler_distance=1e-200), label="fits")
    with pytest.raises(BudgetExceeded, match="Use more noise. Declined: nothing"):
        ledger.charge(says(Pure(0.1), sampler_distance=1e-40), label="too rough")
    with pytest.raises(BudgetExceeded, match="Open the ledger with a larger delta"):
        ledger.charge(says(Pure(0.1), sampler_distance=1e-9), label="far too rough")


# -- engines -----------------------------------------------------------------------

RNG = np.random.default_rng(7)
X = RNG.normal(size=(60, 2))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = (X[:, 0] > 0).astype(int)


def head(epsilon, ledger=None):
    model = BallLogisticRegression(epsilon, 1e-5, 0.5, lam=0.1, ledger=ledger)
    return model.fit(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [50.0, 100.0, 200.0, 1e4])
def test_a_head_fits_its_budget_and_every_larger_one(epsilon):
    for larger in (epsilon, 2 * epsilon, 1e5):
        ledger = Ledger(Budget(larger, 1e-5), unit=Ball(0.5, space="records"))
        entry = head(epsilon, ledger).entry_
        assert entry.epsilon(Ball(0.5, space="records"), 1e-5) <= min(epsilon, 401)
    alone = head(epsilon).entry_.statement()
    assert ("NO MEANINGFUL PROTECTION" in alone) == (epsilon > 50)


@pytest.mark.parametrize("sigma", [0.1, 1e-2, 1e-3, 1e-8])
def test_a_nearly_noiseless_release_runs_and_says_so(sigma):
    release = Gaussian(sigma, {AddOrRemoveOne(): 1.0}).release([0.5])
    assert abs(release.value[0] - 0.5) < 40 * sigma + 1e-6
    assert "NO MEANINGFUL PROTECTION" in release.statement()
    assert "Not recorded" in release.statement()


def test_meaningful_statements_are_as_they_were():
    statement = Gaussian(4.0, {AddOrRemoveOne(): 1.0}).release([0.5]).statement()
    assert "It protects the presence or absence of one record, with" in statement
    assert "MEANINGFUL" not in statement


def test_a_budget_without_a_limit_is_for_memory_alone(tmp_path):
    budget = Budget(NO_LIMIT, 1e-6)
    ledger = Ledger(budget, unit=UNIT)
    for event in (GaussianEvent(1e-300), Pure(1e308), ApproxDP(3.0, 0.9)):
        ledger.charge(says(event, sampler_distance=0.5), label="anything")
    assert ledger.verify(ledger.tip()).ok and not ledger.durable
    with pytest.raises(ValueError, match="Nothing was created"):
        Ledger.open(tmp_path / "l.db", dataset="d", budgets={UNIT: budget})
