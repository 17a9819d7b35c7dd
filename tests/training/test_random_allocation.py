"""Batches in which each example takes part exactly k times, and their account."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from demur import AddOrRemoveOne, Budget, Ledger, ReplaceOne
from demur.core.accounting.events import (
    AllocatedGaussian,
    GaussianEvent,
    Neighbours,
    Pure,
    atoms,
)
from demur.core.entropy import Seeded
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import BandedToeplitz
from demur.training import (
    ExecutionPlanConfig,
    MonteCarlo,
    RandomAllocationSampling,
    plan_shapes,
)
from demur.training.accounting.accounts import AllocationAccount, participation_of
from demur.training.sizes.step_costs import CostModel, size_law
from tests.training import kit

ADD, ZERO, REPLACE = (
    Neighbours.ADD_OR_REMOVE_ONE,
    Neighbours.ZERO_OUT,
    Neighbours.REPLACE_ONE,
)


def patterns(strategy, n, seed):
    """The set of steps of each example, as one number with a bit for each step."""
    bits = np.zeros(n, dtype=np.int64)
    for step, batch in enumerate(strategy.batch_iterator(n, Seeded(seed))):
        assert len(set(batch.tolist())) == len(batch)
        bits[batch] += 1 << step
    return bits


def goodness(bits, k, steps):
    sets = [sum(1 << t for t in c) for c in itertools.combinations(range(steps), k)]
    counts = np.array([(bits == pattern).sum() for pattern in sets])
    assert counts.sum() == len(bits)  # exactly k steps each
    return chisquare(counts).pvalue


@pytest.mark.parametrize(("k", "steps"), [(1, 4), (2, 5), (4, 5)])
def test_every_set_of_steps_is_equally_likely(k, steps):
    bits = patterns(RandomAllocationSampling(k, steps), 6000, seed=k)
    assert goodness(bits, k, steps) > 1e-4


def test_the_comparison_finds_one_step_that_is_preferred():
    bits = patterns(RandomAllocationSampling(2, 5), 6000, seed=3)
    bits[:400] = 0b00011
    assert goodness(bits, 2, 5) < 1e-9


def test_examples_are_independent_of_each_other():
    together = 0
    for seed in range(400):
        bits = patterns(RandomAllocationSampling(1, 4), 2, seed)
        together += int(bits[0] == bits[1])
    assert abs(together - 100) < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_none_and_all_of_the_steps():
    assert not any(len(b) for b in RandomAllocationSampling(0, 3).batch_iterator(9))
    assert all(len(b) == 9 for b in RandomAllocationSampling(3, 3).batch_iterator(9))
    with pytest.raises(ValueError, match="total_participations"):
        RandomAllocationSampling(4, 3)


def test_a_run_is_priced_block_by_block():
    account = AllocationAccount(RandomAllocationSampling(3, 11))
    event = account.draw_event(2.0, ZERO)
    assert atoms(event) == {
        AllocatedGaussian(3, 2.0, ZERO): 1,
        AllocatedGaussian(4, 2.0, ZERO): 2,
    }
    # Long blocks have one size, the shorter one.
    long = AllocationAccount(RandomAllocationSampling(3, 1001)).draw_event(2.0, ADD)
    assert atoms(long) == {AllocatedGaussian(333, 2.0, ADD): 3}
    none = AllocationAccount(RandomAllocationSampling(0, 11)).draw_event(2.0, ADD)
    assert none == Pure(0.0)
    assert (account.draws, account.steps_per_draw) == (1, 11)
    assert account.selection_distance == 0.0


def test_what_has_no_proof_is_refused_with_a_way_that_works():
    strategy = RandomAllocationSampling(2, 8)
    banded = BandedToeplitz([1.0, 0.5], 8)
    options = {"noise_multiplier": 2.0, "l2_clip_norm": 1.0}

    def config(**more):
        return ExecutionPlanConfig(batch_selection_strategy=strategy, **options | more)

    with pytest.raises(NotPriced, match="account='participation'"):
        config(account="amplified", neighboring_relation="REPLACE_ONE").make()
    with pytest.raises(NotPriced, match="account='participation'"):
        config(
            account="amplified", strategy=banded, neighboring_relation=AddOrRemoveOne()
        ).make()
    # The way that was named works, for both.
    plain = config(neighboring_relation="REPLACE_ONE").make()
    (event,) = atoms(plain.event())
    assert isinstance(event, GaussianEvent)
    assert event.multiplier == pytest.approx(1.0)  # for two contributions
    assert plain.noise_addition_transform.spec.stddev == pytest.approx(2 * 2**0.5)
    assert config(strategy=banded, neighboring_relation="REPLACE_ONE").make()
    with pytest.raises(NotPriced, match="REPLACE_ONE"):
        config(account="amplified", neighboring_relation="ZERO_OUT").make().event(
            ReplaceOne()
        )

    class Other(RandomAllocationSampling):
        """Other batches under the same name."""

    with pytest.raises(NotPriced, match="law is not known"):
        AllocationAccount(Other(2, 8))


def test_patterns_and_sizes():
    strategy = RandomAllocationSampling(3, 12)
    assert participation_of(strategy).most(12) == 3
    assert participation_of(strategy).min_separation == 1
    assert size_law(strategy, 400).mean == pytest.approx(100.0)
    cost = CostModel(compile_s=1.0, per_example_s=1e-4, fixed_s=1e-3)
    assert plan_shapes(strategy, 400, cost).sizes[-1] >= 100


@pytest.mark.slow
def test_one_step_is_verified_by_samples_as_well():
    strategy = RandomAllocationSampling(1, 10)
    plan = ExecutionPlanConfig(
        batch_selection_strategy=strategy,
        account="amplified",
        noise_multiplier=1.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
    ).make()
    delta = 0.01
    epsilon = plan.price(delta)
    noise = BandedToeplitz([1.0], 10)
    sampled = MonteCarlo(1.1 * epsilon, delta, 60_000, failure=1e-6)
    assert sampled.verify(strategy, noise, 1.0, ADD, 1).selection_distance == 0.0
    with pytest.raises(NotPriced, match="put delta at"):
        MonteCarlo(0.9 * epsilon, delta, 60_000, failure=1e-6).verify(
            strategy, noise, 1.0, ADD, 1
        )


@pytest.mark.deep
@pytest.mark.parametrize(("k", "steps"), [(20, 9380), (30, 50)], ids=["one", "two"])
def test_noise_is_calibrated_for_blocks_of_one_size_and_of_two(k, steps):
    plan = ExecutionPlanConfig(
        batch_selection_strategy=RandomAllocationSampling(k, steps),
        account="amplified",
        epsilon=2.0,
        delta=1e-6,
        neighboring_relation="ZERO_OUT",
        l2_clip_norm=1.0,
    ).make()
    assert 1.99 < plan.price() <= 2.0


@pytest.mark.slow
def test_a_run_is_charged_and_trained():
    plan = ExecutionPlanConfig(
        batch_selection_strategy=RandomAllocationSampling(2, 12),
        account="amplified",
        noise_multiplier=3.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        normalize_by=30.0,
    ).make()
    ledger = Ledger(Budget(3.0, 1e-5), unit=AddOrRemoveOne(), filter="pure")
    trained = kit.train(plan, ledger=ledger, delta=None)
    assert trained.steps == 12
    assert 0.9 * plan.price(1e-5) < ledger.epsilon() < 1.1 * plan.price(1e-5)
    assert "one record" in trained.entry.statement()
