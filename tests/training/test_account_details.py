"""Every account: what it refuses, how it divides a run, and what a draw costs."""

from typing import Any

import pytest

from demur.core.accounting import fixed_batch_epsilon
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    GaussianEvent,
    Neighbours,
    Pure,
    Repeated,
    atoms,
)
from demur.core.rounding import down
from demur.errors import NotPriced
from demur.mechanisms.correlated import BandedToeplitz
from demur.training.accounting.accounts import (
    STEP_DISTANCE,
    AllocationAccount,
    FixedBatchAccount,
    ParticipationAccount,
    PoissonAccount,
    block_sizes,
    run_event,
)
from demur.training.batches.selection import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
)

ADD, ZERO, REPLACE = (
    Neighbours.ADD_OR_REMOVE_ONE,
    Neighbours.ZERO_OUT,
    Neighbours.REPLACE_ONE,
)
POISSON = {"sampling_prob": 0.1, "iterations": 10, "cycle_length": 4}
ALLOCATED = {"total_participations": 3, "iterations": 10}
FIXED = {"batch_size": 5, "iterations": 10}
ACCOUNTS: dict[str, Any] = {
    "Poisson": (CyclicPoissonSampling, POISSON, lambda s: PoissonAccount(s, 2)),
    "participation": (CyclicPoissonSampling, POISSON, ParticipationAccount),
    "allocation": (RandomAllocationSampling, ALLOCATED, AllocationAccount),
    "fixed": (FixedBatchSampling, FIXED, lambda s: FixedBatchAccount(s, 100, 1e-6)),
}
every = pytest.mark.parametrize("name", ACCOUNTS)


@every
def test_a_subclass_whose_batches_may_be_others_has_no_account(name):
    kind, given, account = ACCOUNTS[name]

    Other = type("Other", (kind,), {})
    account(kind(**given))
    with pytest.raises(NotPriced, match="Other is not a batch strategy"):
        account(Other(**given))


@every
def test_a_plan_has_steps(name):
    kind, given, account = ACCOUNTS[name]
    if name == "allocation":
        given = given | {"total_participations": 0}
    with pytest.raises(ValueError, match="iterations"):
        account(kind(**given | {"iterations": 0}))
    one = account(kind(**given | {"iterations": 1}))
    assert one.draws == 1


@every
def test_how_a_run_is_divided(name):
    kind, given, account = ACCOUNTS[name]
    made = account(kind(**given))
    draws, steps, distance = made.draws, made.steps_per_draw, made.selection_distance
    if name == "Poisson":
        assert (draws, steps, distance) == (3, 4, 4 * STEP_DISTANCE)
        assert 0.0 < STEP_DISTANCE < 1e-12
    else:
        assert (draws, steps, distance) == (1, 10, 0.0)
    assert draws * steps >= given["iterations"]


def test_fixed_batches_have_their_public_number_and_a_price_for_replacement():
    account = FixedBatchAccount(FixedBatchSampling(**FIXED), 100, 1e-6)
    assert account.assumptions == ("batches are drawn from 100 records",)
    exact = fixed_batch_epsilon(100, 5, 2.0, 10, 1e-6)
    assert account.draw_event(2.0, REPLACE) == ApproxDP(exact, 1e-6)
    assert run_event(account, 2.0, REPLACE) == Repeated(ApproxDP(exact, 1e-6), 1)
    for neighbours in (ADD, ZERO):
        with pytest.raises(NotPriced, match="under REPLACE_ONE alone"):
            account.draw_event(2.0, neighbours)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        FixedBatchAccount(FixedBatchSampling(0, 10), 100, 1e-6)


def test_allocated_blocks_are_as_equal_as_can_be():
    account = AllocationAccount(RandomAllocationSampling(**ALLOCATED))
    for neighbours in (ADD, ZERO):
        assert atoms(account.draw_event(2.0, neighbours)) == {
            AllocatedGaussian(3, 2.0, neighbours): 2,
            AllocatedGaussian(4, 2.0, neighbours): 1,
        }
    with pytest.raises(NotPriced, match="no amplified price under REPLACE_ONE"):
        account.draw_event(2.0, REPLACE)
    never = AllocationAccount(RandomAllocationSampling(0, 10))
    assert never.draw_event(2.0, ADD) == Pure(0.0)
    # Long blocks cost what the shorter of them cost: one price for the run.
    for steps, sizes in ((301, {100: 3}), (299, {99: 1, 100: 2})):
        long = AllocationAccount(RandomAllocationSampling(3, steps))
        assert atoms(long.draw_event(2.0, ADD)) == {
            AllocatedGaussian(size, 2.0, ADD): count for size, count in sizes.items()
        }
    assert block_sizes(3, 9) == {3: 3} and block_sizes(3, 11) == {3: 1, 4: 2}


@pytest.mark.parametrize("name", ["allocation", "fixed"])
def test_sampling_that_is_amplified_for_independent_noise_alone(name):
    kind, given, account = ACCOUNTS[name]
    made = account(kind(**given))
    assert made.scale(BandedToeplitz([3.0], 10)) == pytest.approx(3.0, rel=1e-11)
    with pytest.raises(NotPriced, match="the strategy has 2 bands"):
        made.scale(BandedToeplitz([3.0, 4.0], 10))


def test_a_participation_account_counts_contributions():
    apart = {"partition_type": PartitionType.INDEPENDENT}
    account = ParticipationAccount(CyclicPoissonSampling(**POISSON, **apart))
    assert account.draw_event(2.0, ADD) == GaussianEvent(down(2.0))
    assert account.draw_event(2.0, ZERO) == GaussianEvent(down(2.0))
    assert account.draw_event(2.0, REPLACE) == GaussianEvent(down(1.0))
    fixed = ParticipationAccount(FixedBatchSampling(**FIXED))
    with pytest.raises(NotPriced, match="fixed batches have no price under ADD"):
        fixed.draw_event(2.0, ADD)
    assert fixed.draw_event(2.0, REPLACE) == GaussianEvent(down(1.0))
    bins = ParticipationAccount(BallsInBinsSampling(iterations=10, cycle_length=5))
    strategy = BandedToeplitz([3.0, 4.0], 10)
    # Twice in ten steps, five apart: two columns that do not overlap.
    assert bins.scale(strategy) == pytest.approx(50.0**0.5, rel=1e-9)
