"""The snippet of the page runs with its import lines changed, and trains."""

from __future__ import annotations

import logging

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_privacy.experimental import execution_plan as peer

from demur.compat.jax_privacy import batch_selection, clipping
from demur.compat.jax_privacy.experimental import compilation_utils, execution_plan

SNIPPET = """
import jax.numpy as jnp
import dp_accounting
from jax_privacy import batch_selection
from jax_privacy import clipping
from jax_privacy.experimental import execution_plan

# A simple per-example loss. The clipped_grad helper aggregates per-example
# gradients into a clipped sum (or mean, if normalize_by is set).
loss_fn = lambda params, batch: jnp.mean((batch - params) ** 2)
clipped_grad = clipping.clipped_grad(
    loss_fn, l2_clip_norm=1.0, normalize_by=128
)

config = execution_plan.BandMFExecutionPlanConfig(
    iterations=1000,
    num_bands=1,
    sampling_prob=128 / 60000,
    epsilon=2.0,
    delta=1e-6,
    partition_type=batch_selection.PartitionType.INDEPENDENT,
    neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    accountant=dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
)

plan = config.make(clipped_grad)
"""


@pytest.fixture(scope="module")
def space():
    changed = [
        line.replace("from jax_privacy", "from demur.compat.jax_privacy")
        if line.startswith("from jax_privacy")
        else line
        for line in SNIPPET.splitlines()
    ]
    found: dict = {}
    exec(compile("\n".join(changed), "<snippet>", "exec"), found)
    return found


@pytest.mark.slow
def test_the_plan_costs_what_was_asked_for(space):
    plan = space["plan"]
    assert isinstance(plan.dp_event, dp_accounting.DpEvent)
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(plan.dp_event)
    assert 1.99 < accountant.get_epsilon(1e-6) <= 2.0
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    assert plan.neighboring_relation is relation
    assert isinstance(plan.noise_addition_transform, optax.GradientTransformation)
    assert plan.clipped_grad is space["clipped_grad"]


@pytest.mark.slow
def test_the_loop_of_the_page_learns(space):
    """The components used as the page says: a mean is found within its noise."""
    plan = space["plan"]
    rng = np.random.default_rng(0)
    data = rng.normal(loc=0.7, scale=0.1, size=(60_000, 2)).astype(np.float32)
    params = jnp.zeros(2)
    noise_state = plan.noise_addition_transform.init(params)
    batches = plan.batch_selection_strategy.batch_iterator(len(data))

    @jax.jit
    def update(params, state, batch, num_real):
        clipped = plan.clipped_grad(params, batch, num_real=num_real)
        noisy, state = plan.noise_addition_transform.update(clipped, state)
        return params - 0.05 * noisy, state

    for _ in range(150):
        indices = next(batches)
        padded = batch_selection.pad_to_multiple_of(indices, 256)
        batch = np.where(padded[:, None] >= 0, data[padded], 0.0)
        params, noise_state = update(params, noise_state, batch, len(indices))
    np.testing.assert_allclose(params, 0.7, atol=0.1)


# -- release 2.0.0 ---------------------------------------------------------------------

OLD = {
    "iterations": 40,
    "epsilon": None,
    "delta": None,
    "noise_multiplier": 1.5,
    "sampling_prob": 0.1,
    "l2_clip_norm": 3.0,
    "normalize_by": 20.0,
}


def loss(params, batch):
    return jnp.mean((batch - params) ** 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")
def test_a_config_of_the_release_gives_the_same_plan():
    strategy = np.array([0.8, 0.5, 0.3])
    ours = execution_plan.BandMFExecutionPlanConfig(strategy=strategy, **OLD).plan
    theirs = peer.BandMFExecutionPlanConfig(strategy=strategy, **OLD).plan
    assert ours.dp_event == theirs.dp_event
    mine, other = ours.clipped_grad(loss), theirs.clipped_grad(loss)
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    assert mine.sensitivity(relation) == pytest.approx(other.sensitivity(relation))
    batch = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    np.testing.assert_allclose(
        mine(jnp.zeros(4), batch).value, other(jnp.zeros(4), batch), atol=1e-6
    )


def test_default_optimises_the_strategy():
    config = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=4, strategy_optimization_steps=3, **OLD
    )
    assert isinstance(config, execution_plan.BandMFExecutionPlanConfig)
    assert config.plan.batch_selection_strategy.cycle_length == 4


def test_the_seed_of_a_plan_is_ignored_and_said_to_be(caplog):
    with caplog.at_level(logging.WARNING):
        execution_plan.BandMFExecutionPlanConfig(strategy=[1.0], noise_seed=3, **OLD)
    assert "noise_seed is ignored" in caplog.text


def test_the_rest_of_the_names():
    sizes = [10] * 100 + [20, 30, 40, 50]
    assert compilation_utils.optimal_physical_batch_sizes(sizes, 2) == {10, 50}
    assert clipping.clipped_grad(loss, l2_clip_norm=1.0).l2_norm_bound == 1.0
