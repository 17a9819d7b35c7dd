"""Questions to dp_accounting's accountants: who is asked, and about what."""

import math

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from demur import price
from demur.core import accounting
from demur.core.accounting import accountants
from demur.core.accounting.events import (
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Repeated,
)
from demur.errors import NotPriced

RELATION = dpa.NeighboringRelation
EVENT = Repeated(GaussianEvent(3.0), 4)


def used(accountant):
    return accountant.compose(dpa.GaussianDpEvent(10.0))


@pytest.mark.parametrize("kind", [RdpAccountant, PLDAccountant])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_relation_of_an_accountant_is_found(kind, neighbours):
    relation = accountants.to_relation(neighbours)
    accountant = kind(neighboring_relation=relation)
    assert accounting.relation_of_accountant(accountant) is neighbours


def test_only_an_accountant_has_a_relation():
    with pytest.raises(TypeError, match="PrivacyAccountant; got str"):
        accounting.relation_of_accountant("pld")


def test_the_grid_is_that_of_a_new_pld_accountant_and_of_no_other():
    assert accounting.grid_of_accountant(PLDAccountant()) == 1e-4
    fine = PLDAccountant(value_discretization_interval=2.0**-15)
    assert accounting.grid_of_accountant(fine) == 2.0**-15
    assert accounting.grid_of_accountant(used(fine)) is None
    assert accounting.grid_of_accountant(RdpAccountant()) is None
    other = type("Other", (PLDAccountant,), {})
    assert accounting.grid_of_accountant(other()) is None


def test_an_accountant_that_has_composed_is_refused():
    accounting.check_accountant(RdpAccountant(), EVENT)
    with pytest.raises(ValueError, match="must be new"):
        accounting.check_accountant(used(RdpAccountant()), EVENT)
    with pytest.raises(TypeError, match="accountant"):
        accounting.check_accountant(None, EVENT)


def test_an_event_that_an_accountant_cannot_price_is_refused():
    sampled = PoissonGaussian(0.1, 1.0, Neighbours.ADD_OR_REMOVE_ONE)
    replacing = RdpAccountant(neighboring_relation=RELATION.REPLACE_ONE)
    with pytest.raises(NotPriced, match="no price for PoissonGaussian"):
        accounting.check_accountant(replacing, sampled)
    with pytest.raises(NotPriced):
        accounting.accountant_epsilon(replacing, sampled, 1e-6)


def test_an_accountant_is_asked_about_the_event_alone_and_left_as_it_was():
    asked = RdpAccountant()
    truth = price(EVENT, 1e-6)
    for _ in range(2):  # the first question leaves no trace in the second
        epsilon = accounting.accountant_epsilon(asked, EVENT, 1e-6)
        assert truth <= epsilon <= 1.1 * truth
    assert isinstance(asked.ledger, dpa.NoOpDpEvent)


# ------------------------------------------------------------------ batches of one size


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("multiplier", [8.0, 40.0])
def test_full_batches_cost_a_gaussian_that_moves_by_two_contributions(
    multiplier, count
):
    epsilon = accounting.fixed_batch_epsilon(50, 50, multiplier, count, 1e-6)
    truth = price(Repeated(GaussianEvent(multiplier / 2), count), 1e-6)
    assert truth <= epsilon <= 1.2 * truth
    # Sabotaged twin: noise per one contribution.
    assert epsilon > 1.5 * price(Repeated(GaussianEvent(multiplier), count), 1e-6)


@pytest.mark.slow
def test_smaller_batches_cost_less_and_more_of_them_more():
    def cost(batch_size=10, multiplier=4.0, count=20, delta=1e-6):
        return accounting.fixed_batch_epsilon(
            1000, batch_size, multiplier, count, delta
        )

    assert cost(batch_size=5) < cost() < cost(batch_size=20)
    assert cost(count=10) < cost() < cost(count=40)
    assert cost(multiplier=5.0) < cost() < cost(multiplier=3.0)
    assert cost(delta=1e-5) < cost() < cost(delta=1e-7)


def test_fixed_batches_in_the_words_of_dp_accounting():
    event = accountants.fixed_batch_dp_event(100, 7, 3.0, 5)
    assert isinstance(event, dpa.SelfComposedDpEvent) and event.count == 5
    batch = event.event
    assert (batch.source_dataset_size, batch.sample_size) == (100, 7)
    noise = batch.event.noise_multiplier
    assert noise <= 1.5 == pytest.approx(noise)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch_size": 101}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"dataset_size": 0}, "dataset_size"),
        ({"count": 0}, "count"),
        ({"multiplier": 0.0}, "multiplier"),
        ({"multiplier": math.nan}, "multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_bad_fixed_batches_are_refused(change, named):
    good = {"dataset_size": 100, "batch_size": 100, "multiplier": 3.0}
    good |= {"count": 5, "delta": 1e-6}
    assert accounting.fixed_batch_epsilon(**good) > 0
    with pytest.raises(ValueError, match=named):
        accounting.fixed_batch_epsilon(**(good | change))
