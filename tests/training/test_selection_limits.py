"""The least that a way to form batches may be, and what it may not be."""

import dataclasses

import pytest

from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import NotPriced
from demur.training.accounting import accounts
from demur.training.batches import selection
from demur.training.clipping import clip_factors


def test_no_strategy_without_its_steps():
    with pytest.raises(TypeError, match="abstract"):
        selection.BatchSelectionStrategy()  # type: ignore[abstract]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: selection.BMinSepSampling(0.5, n, 2),
        lambda n: selection.CyclicPoissonSampling(sampling_prob=0.5, iterations=n),
        lambda n: selection.FixedBatchSampling(batch_size=2, iterations=n),
        lambda n: selection.BallsInBinsSampling(iterations=n, cycle_length=2),
    ],
    ids=["b-min-sep", "poisson", "fixed", "balls in bins"],
)
def test_no_step_at_all_is_a_plan_and_less_is_none(make):
    assert list(make(0).batch_iterator(10, rng=0)) == []
    assert make(1).iterations == 1
    for bad in (-1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="iterations"):
            make(bad)


@pytest.mark.parametrize("min_sep", [0, -1, 1.5])
def test_a_separation_is_at_least_one(min_sep):
    assert selection.BMinSepSampling(0.5, 3, 1).min_sep == 1
    with pytest.raises((TypeError, ValueError), match="min_sep"):
        selection.BMinSepSampling(0.5, 3, min_sep)


class Other(selection.FixedBatchSampling):
    """A subclass, which may draw other batches."""


@pytest.mark.parametrize(
    "bad",
    [
        selection.FixedBatchSampling(batch_size=2, iterations=3, replace=True),
        Other(batch_size=2, iterations=3),
    ],
)
def test_batches_whose_law_has_no_bound_have_no_account(bad):
    with pytest.raises(NotPriced):
        accounts.FixedBatchAccount(bad, 10, 1e-6)
    good = selection.FixedBatchSampling(batch_size=2, iterations=3)
    assert accounts.FixedBatchAccount(good, 10, 1e-6).steps_per_draw == 3


@pytest.mark.parametrize("size", [{"batch_size": 0}, {"iterations": 0}])
def test_a_plan_of_nothing_has_no_account(size):
    empty = selection.FixedBatchSampling(**({"batch_size": 2, "iterations": 3} | size))
    with pytest.raises(ValueError, match="at least 1"):
        accounts.FixedBatchAccount(empty, 10, 1e-6)


def test_what_a_plan_is_made_of_is_frozen():
    kinds = [
        kind
        for module in (selection, accounts, clip_factors)
        for kind in vars(module).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    ]
    assert len(kinds) >= 8
    assert all(kind.__dataclass_params__.frozen for kind in kinds)


def partition(n, kind, seed=0):
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    parts = selection._partition(n, 4, kind, key)
    return [part.tolist() for part in parts]


def test_an_equal_split_is_drawn_and_not_the_order_of_the_data():
    split = selection.PartitionType.EQUAL_SPLIT
    drawn = [partition(42, split, seed) for seed in range(20)]
    for parts in drawn:
        assert [len(part) for part in parts] == [10] * 4
        assert len({i for part in parts for i in part}) == 40
    # Unshuffled, record 0 would be in group 0 every time; by chance, 4^-19.
    assert len({next((g for g in range(4) if 0 in p[g]), None) for p in drawn}) > 1
    # The two left out are not the last two every time.
    assert len({frozenset(range(42)) - {i for g in p for i in g} for p in drawn}) > 1


@pytest.mark.parametrize("kind", list(selection.PartitionType))
def test_nobody_is_split_into_empty_groups(kind):
    assert partition(0, kind) == [[], [], [], []]
