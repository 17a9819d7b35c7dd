"""What the accounts of batch selection refuse, and what they charge, case by case."""

import pytest

from demur.core.accounting.events import (
    Neighbours,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import BandedToeplitz
from demur.training import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
)
from demur.training.accounting.accounts import (
    FixedBatchAccount,
    ParticipationAccount,
    PoissonAccount,
    participation_of,
    run_event,
)

ADD, ZERO, REPLACE = (
    Neighbours.ADD_OR_REMOVE_ONE,
    Neighbours.ZERO_OUT,
    Neighbours.REPLACE_ONE,
)


def poisson(**more):
    given = {"sampling_prob": 0.1, "iterations": 10, "cycle_length": 4}
    return CyclicPoissonSampling(**(given | more))


class Other(CyclicPoissonSampling):
    """A subclass, which may draw other batches."""


def test_as_many_bands_as_the_cycle_has_steps_and_no_more():
    assert PoissonAccount(poisson(), 4).draws == 3
    assert PoissonAccount(poisson(iterations=8), 4).draws == 2
    assert PoissonAccount(poisson(), 4).steps_per_draw == 4
    with pytest.raises(NotPriced, match="5 bands needs a cycle"):
        PoissonAccount(poisson(), 5)


def test_a_strategy_with_more_bands_than_the_account_is_refused():
    account = PoissonAccount(poisson(), 2)
    two, three = BandedToeplitz([3.0, 4.0], 10), BandedToeplitz([1.0, 0.5, 0.25], 10)
    assert account.scale(two) == pytest.approx(5.0, rel=1e-11)
    assert account.scale(two) >= 5.0
    with pytest.raises(NotPriced, match="2 bands"):
        account.scale(three)


def test_a_plan_without_steps_and_an_unknown_law_have_no_account():
    with pytest.raises(ValueError, match="iterations"):
        PoissonAccount(poisson(iterations=0), 1)
    for account in (PoissonAccount, lambda s, _: ParticipationAccount(s)):
        with pytest.raises(NotPriced, match="Other"):
            account(Other(sampling_prob=0.1, iterations=3), 1)


def test_truncation_is_priced_by_a_public_group_size_alone():
    split = {"truncated_batch_size": 3, "partition_type": PartitionType.EQUAL_SPLIT}
    account = PoissonAccount(poisson(**split), 1, 43)
    for neighbours in (ZERO, REPLACE):
        found = account.draw_event(2.0, neighbours)
        assert found == TruncatedPoissonGaussian(10, 0.1, 3, 2.0, neighbours)
    with pytest.raises(NotPriced, match="ADD_OR_REMOVE_ONE"):
        account.draw_event(2.0, ADD)
    with pytest.raises(ValueError, match="num_examples"):
        PoissonAccount(poisson(**split), 1)
    with pytest.raises(ValueError, match="at least cycle_length"):
        PoissonAccount(poisson(**split), 1, 3)
    assert PoissonAccount(poisson(**split), 1, 4).num_examples == 4
    secret = split | {"partition_type": PartitionType.INDEPENDENT}
    with pytest.raises(NotPriced, match="EQUAL_SPLIT"):
        PoissonAccount(poisson(**secret), 1, 43)


def test_an_equal_split_says_nothing_about_a_record_that_appears():
    split = PoissonAccount(poisson(partition_type=PartitionType.EQUAL_SPLIT), 1)
    with pytest.raises(NotPriced, match="INDEPENDENT"):
        split.draw_event(2.0, ADD)
    assert split.draw_event(2.0, ZERO) == PoissonGaussian(0.1, 2.0, ZERO)
    free = PoissonAccount(poisson(partition_type=PartitionType.INDEPENDENT), 1)
    assert free.draw_event(2.0, ADD) == PoissonGaussian(0.1, 2.0, ADD)
    assert run_event(free, 2.0, ADD).count == 3


@pytest.mark.parametrize(
    ("strategy", "apart", "most"),
    [
        (poisson(), 4, 3),
        (poisson(iterations=8), 4, 2),
        (poisson(iterations=0), 4, 1),
        (BallsInBinsSampling(iterations=10, cycle_length=5), 5, 2),
        (BMinSepSampling(0.1, 10, 3), 3, 4),
    ],
)
def test_who_may_take_part_how_often(strategy, apart, most):
    found = participation_of(strategy)
    assert (found.min_separation, found.max_participations) == (apart, most)


@pytest.mark.parametrize(("neighbours", "moves"), [(ADD, 1), (ZERO, 1), (REPLACE, 2)])
def test_without_amplification_a_run_is_one_gaussian(neighbours, moves):
    account = ParticipationAccount(BMinSepSampling(0.1, 10, 3))
    assert (account.draws, account.steps_per_draw) == (1, 10)
    found = account.draw_event(3.0, neighbours).multiplier
    assert found <= 3.0 / moves == pytest.approx(found, rel=1e-15)


def test_truncation_and_equal_splits_have_no_account_without_amplification():
    with pytest.raises(NotPriced, match="truncated_batch_size"):
        ParticipationAccount(BMinSepSampling(0.1, 10, 3, truncated_batch_size=2))
    split = ParticipationAccount(poisson(partition_type=PartitionType.EQUAL_SPLIT))
    with pytest.raises(NotPriced, match="INDEPENDENT"):
        split.draw_event(3.0, ADD)
    assert split.draw_event(3.0, ZERO).multiplier == pytest.approx(3.0)
    with pytest.raises(ValueError, match="iterations"):
        ParticipationAccount(BMinSepSampling(0.1, 0, 3))


def test_fixed_batches_are_priced_for_independent_noise_alone():
    chosen = FixedBatchSampling(batch_size=2, iterations=3)
    account = FixedBatchAccount(chosen, 10, 1e-6)
    assert account.scale(BandedToeplitz([1.0], 3)) == pytest.approx(1.0, rel=1e-11)
    with pytest.raises(NotPriced):
        account.scale(BandedToeplitz([1.0, 0.5], 3))


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_truncated_batch_holds_at_least_one(size):
    with pytest.raises((TypeError, ValueError), match="truncated_batch_size"):
        BMinSepSampling(0.1, 10, 3, truncated_batch_size=size)
