"""Physical sizes against brute force over every set of sizes."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.experimental import compilation_utils as peer

from demur.core import accounting
from demur.core.accounting.events import Neighbours, PoissonGaussian
from demur.core.entropy import Seeded
from demur.training import (
    BallsInBinsSampling,
    BMinSepSampling,
    CostModel,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    Programs,
    Resources,
    ShapePlan,
    best_physical_sizes,
    choose_cap,
    nearly_free_cap,
    plan_shapes,
)
from demur.training.clipping.types import ClippedGrad
from demur.training.sizes import defaults, step_costs
from demur.training.sizes.defaults import shapes_for
from demur.training.sizes.operations import loss_flops
from demur.training.sizes.step_costs import size_law

from .kit import make_plan, train


def seconds(sizes, micro, law, cost, steps) -> float:
    """Expected time by definition: every batch size, minibatch by minibatch."""
    plan = ShapePlan(tuple(sizes), micro, steps, 0.0, 0.0, 0.0)
    start = cost.fixed_s if cost.microbatch_s is None else cost.microbatch_s
    total = cost.compile_s * len(sizes)
    for real, chance in zip(law.sizes, law.probabilities, strict=True):
        for size, inside in plan.layout(int(real)):
            run = cost.fixed_s + cost.transfer_s * size
            if micro is None:
                run += cost.per_example_s * size
            else:
                run += math.ceil(inside / micro) * (start + cost.per_example_s * micro)
            total += steps * chance * run
    return total


COSTS = [
    CostModel(compile_s=0.5, per_example_s=1e-3, fixed_s=2e-3),
    CostModel(compile_s=0.02, per_example_s=1e-3, fixed_s=5e-3),
    CostModel(compile_s=3.0, per_example_s=1e-3, fixed_s=0.2),
    CostModel(compile_s=0.1, per_example_s=1e-3, fixed_s=1e-2, transfer_s=5e-4),
    CostModel(0.1, 1e-3, 1e-2, memory_bytes=6.5, bytes_per_example=1.0),
]
SMALL = CyclicPoissonSampling(0.4, 100)


@pytest.mark.slow
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("accumulate", [True, False])
def test_no_set_of_sizes_is_better(cost, micro, most, accumulate):
    law = size_law(SMALL, 12)
    plan = plan_shapes(
        SMALL,
        12,
        cost,
        microbatch_sizes=[micro],
        most_programs=most,
        accumulate=accumulate,
    )
    step = micro or 1
    top = 12
    if micro is None and cost.most_at_once is not None:
        top = min(top, cost.most_at_once)
    sizes = range(step, top + 1, step)
    best = min(
        seconds(chosen, micro, law, cost, 100)
        for count in range(1, (most or len(sizes)) + 1)
        for chosen in itertools.combinations(sizes, count)
        if accumulate or chosen[-1] == sizes[-1]
    )
    mine = seconds(plan.sizes, micro, law, cost, 100)
    assert plan.expected_seconds == pytest.approx(mine, rel=1e-12)
    assert mine == pytest.approx(best, rel=1e-12)


def test_the_microbatch_is_chosen_too():
    cost = COSTS[0]
    every = [None, 1, 2, 4, 8]
    best = plan_shapes(SMALL, 12, cost, microbatch_sizes=every)
    alone = [plan_shapes(SMALL, 12, cost, microbatch_sizes=[m]) for m in every]
    assert best.expected_seconds == min(p.expected_seconds for p in alone)
    assert len({p.expected_seconds for p in alone}) > 1


def test_expected_waste_is_what_runs_waste():
    strategy = CyclicPoissonSampling(0.02, 400)
    for micro in (None, 16):
        plan = plan_shapes(strategy, 5000, COSTS[0], microbatch_sizes=[micro])
        reals = [len(b) for b in strategy.batch_iterator(5000, rng=4)]
        assert plan.realised_waste(reals) == pytest.approx(plan.waste, abs=0.01)
    wasteful = ShapePlan((1000,), None, 400, 0.0, 0.0, 0.0)
    assert wasteful.realised_waste(reals) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 1000])
@pytest.mark.parametrize("cap", [None, 7])
@pytest.mark.parametrize("kind", PartitionType)
def test_the_law_of_sizes(n, cap, kind):
    strategy = CyclicPoissonSampling(0.3, 60, cap, 4, kind)
    law = size_law(strategy, n)
    assert sum(law.probabilities) == pytest.approx(1.0, abs=1e-12)
    found = [len(b) for i in range(30) for b in strategy.batch_iterator(n, rng=i)]
    sizes = law.sizes
    spread = math.sqrt(sizes**2 @ np.array(law.probabilities) - law.mean**2)
    assert np.mean(found) == pytest.approx(law.mean, abs=5 * spread / 30 + 1e-9)
    assert cap is None or sizes[-1] <= cap


def test_a_cap_takes_all_that_lies_above_it():
    law = size_law(CyclicPoissonSampling(0.3, 1, 3), 6)
    chances = [math.comb(6, k) * 0.3**k * 0.7 ** (6 - k) for k in range(7)]
    np.testing.assert_allclose(law.probabilities, [*chances[:3], sum(chances[3:])])
    assert law.smallest == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        BallsInBinsSampling(60, 7),
        BMinSepSampling(0.2, 60, 5),
        BMinSepSampling(0.2, 60, 5, truncated_batch_size=35),
        FixedBatchSampling(40, 60),
    ],
)
def test_the_law_of_other_batches(strategy):
    law = size_law(strategy, 300)
    found = [len(b) for i in range(20) for b in strategy.batch_iterator(300, rng=i)]
    mean_square = float(law.sizes**2 @ np.array(law.probabilities))
    spread = math.sqrt(max(0.0, mean_square - law.mean**2))
    # Runs of bins repeat their sizes: 20 independent sums of 60 at the least.
    assert np.mean(found) == pytest.approx(law.mean, abs=5 * spread / math.sqrt(20))
    assert plan_shapes(strategy, 300, COSTS[0]).sizes[-1] >= 1


def test_multiples_of_the_devices():
    plan = plan_shapes(SMALL, 12, COSTS[1], multiple_of=4)
    assert all(size % 4 == 0 for size in plan.sizes)
    assert plan.microbatch_size is None or plan.microbatch_size % 4 == 0


def test_sizes_depend_on_public_numbers_alone():
    """Two plans are equal however often one draws in between."""
    first = plan_shapes(SMALL, 12, COSTS[0])
    list(SMALL.batch_iterator(12))
    assert plan_shapes(SMALL, 12, COSTS[0]) == first


def test_layouts_hold_every_batch():
    plan = ShapePlan((4, 10), None, 1, 0.0, 0.0, 0.0)
    assert plan.layout(0) == [(4, 0)]
    assert plan.layout(4) == [(4, 4)]
    assert plan.layout(5) == [(10, 5)]
    assert plan.layout(20) == [(10, 10), (10, 10)]
    assert plan.layout(23) == [(10, 10), (10, 10), (4, 3)]
    with pytest.raises(ValueError, match="real"):
        plan.layout(-1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CostModel(-1.0, 1.0), "compile_s"),
        (lambda: CostModel(1.0, math.nan), "per_example_s"),
        (lambda: CostModel(1, 1, memory_bytes=1, bytes_per_example=2), "one example"),
        (lambda: plan_shapes(SMALL, 0, COSTS[0]), "num_examples"),
        (lambda: plan_shapes(SMALL, 12, COSTS[4], multiple_of=8), "memory"),
        (lambda: size_law("poisson", 12), "one known law"),
        (lambda: size_law(BMinSepSampling(0.1, 9, 3, False), 12), "warm start"),
        (lambda: best_physical_sizes([], 2), "at least one"),
        (lambda: best_physical_sizes([3], 0), "count"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


# -- known sizes, against the peer -----------------------------------------------------


def padding(sizes, chosen) -> int:
    return sum(min(c for c in chosen if c >= size) - size for size in sizes)


def test_batches_count_as_often_as_they_occur():
    """The peer forgets how often a size occurs: 1030 slots of padding instead of 60."""
    sizes = [10] * 100 + [20, 30, 40, 50]
    assert padding(sizes, best_physical_sizes(sizes, 2)) == 60
    assert padding(sizes, peer.optimal_physical_batch_sizes(sizes, 2)) == 1030


@pytest.mark.parametrize("count", [1, 2, 3])
def test_padding_is_the_least_there_is(count):
    rng = np.random.default_rng(count)
    for _ in range(10):
        sizes = rng.integers(1, 12, size=30).tolist()
        top = max(sizes)
        best = min(
            padding(sizes, (*chosen, top))
            for k in range(count)
            for chosen in itertools.combinations(range(1, top), k)
        )
        assert padding(sizes, best_physical_sizes(sizes, count)) == best


def test_more_sizes_than_batches_are_no_error():
    assert best_physical_sizes([3, 5, 3], 9) == (3, 5)


# -- programs --------------------------------------------------------------------------


def test_the_planned_programs_and_no_others_are_compiled():
    traced = []

    def step(params, batch):
        traced.append(batch.shape[0])
        return params + batch.sum()

    plan = ShapePlan((2, 6), None, 1, 0.0, 0.0, 0.0)
    shapes = lambda size: (  # noqa: E731
        jax.ShapeDtypeStruct((), jnp.float32),
        jax.ShapeDtypeStruct((size,), jnp.float32),
    )
    with Programs(step, plan, shapes) as programs:
        assert float(programs[6](jnp.float32(1), jnp.ones(6))) == 7.0
        assert float(programs[2](jnp.float32(1), jnp.ones(2))) == 3.0
        assert programs.sizes == (2, 6)
        with pytest.raises(KeyError, match="no program of size 4"):
            programs[4]
    assert sorted(traced) == [2, 6]


def test_a_program_that_cannot_be_traced_says_so_at_once():
    plan = ShapePlan((2,), None, 1, 0.0, 0.0, 0.0)
    shapes = lambda size: (jax.ShapeDtypeStruct((size,), jnp.float32),)  # noqa: E731
    with pytest.raises(TypeError):
        Programs(lambda x: x @ jnp.ones(3), plan, shapes)


def test_costs_are_measured():
    clock = iter(np.cumsum([0, 5, 0, 1, 0, 2, 0, 5.5, 0, 3, 0, 2]).tolist())

    class Clock:
        perf_counter = staticmethod(lambda: next(clock))

    original, step_costs.time = step_costs.time, Clock
    try:
        model = CostModel.measured(lambda size: None, [10, 20], repeats=2)
    finally:
        step_costs.time = original
    # The best laps take 1 s for 10 and 2 s for 20, the first calls 4 s and 3.5 s more.
    assert model.per_example_s == pytest.approx(0.1)
    assert model.fixed_s == pytest.approx(0.0, abs=1e-9)
    assert model.compile_s == pytest.approx(3.75)


# -- caps ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_chance_of_a_full_batch_is_that_of_the_others_filling_it():
    choice = choose_cap(12, 0.3, rounds=3, noise_multiplier=1.0, delta=1e-3, extra=0.5)
    cap = choice.truncated_batch_size
    chances = [math.comb(11, k) * 0.3**k * 0.7 ** (11 - k) for k in range(12)]
    assert 1 < cap < 12
    assert choice.truncation_probability == pytest.approx(sum(chances[cap:]), rel=1e-9)


@pytest.mark.slow
def test_the_cap_is_the_smallest_that_is_nearly_free():
    choice = choose_cap(10_000, 0.01, rounds=1000, noise_multiplier=1.0, delta=1e-5)
    plain = accounting.rough_price(
        PoissonGaussian(0.01, 1.0, Neighbours.ZERO_OUT), 1000, 1e-5
    )
    assert choice.untruncated_epsilon == plain
    assert plain < choice.epsilon <= plain * 1.01
    tighter = choose_cap(
        10_000, 0.01, rounds=1000, noise_multiplier=1.0, delta=1e-5, extra=1e-4
    )
    assert tighter.truncated_batch_size > choice.truncated_batch_size
    assert nearly_free_cap(10_000, 0.01) == 150 >= choice.truncated_batch_size
    with pytest.raises(ValueError, match="neighbours"):
        choose_cap(
            100,
            0.1,
            rounds=1,
            noise_multiplier=1.0,
            delta=1e-5,
            neighbours=Neighbours.ADD_OR_REMOVE_ONE,
        )


def test_a_large_model_on_an_accelerator_is_padded_less(monkeypatch):
    """A program of 1,286 rows alone pads by 20%: microbatches stop before that.

    What they follow from is public: the law of the batch size and the operations of the
    loss. Where padding costs little, or somebody chose, there are none.
    """
    selection = CyclicPoissonSampling(1024 / 65536, 200)

    def found(flops, **given):
        return shapes_for(selection, 65536, Resources(**given), flops=lambda: flops)

    assert found(1.4e9).microbatch_size is None  # on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    small, large = found(1e6), found(1.4e9)
    assert len(small.sizes) == 1 and small.waste > 0.1
    assert small.microbatch_size is None
    assert len(large.sizes) == 1 and large.waste < 0.07
    assert large.sizes[-1] >= small.sizes[-1]  # every batch still fits
    assert large.sizes[-1] % large.microbatch_size == 0
    law = size_law(selection, 65536)
    computed = [large.computed(int(size)) for size in law.sizes]
    mean = float(np.dot(law.probabilities, computed))
    assert mean < 1.07 * 1024
    assert found(1.4e9, microbatch_size=64).microbatch_size == 64
    assert found(1.4e9, minibatch_size=512).microbatch_size is None
    # Larger than what is on the device at once: cut into parts as ever.
    huge = CyclicPoissonSampling(0.5, 200)
    assert shapes_for(huge, 65536, Resources()).microbatch_size is None


@pytest.mark.slow
def test_fit_takes_the_microbatches_that_save_padding(monkeypatch):
    plain = train(make_plan(), shapes=None, source=Seeded(1))
    monkeypatch.setattr(defaults, "_against_padding", lambda *_: 16)
    asked = []
    with_ = ClippedGrad.with_

    def noted(self, **changes):
        asked.append(changes.get("microbatch_size"))
        return with_(self, **changes)

    monkeypatch.setattr(ClippedGrad, "with_", noted)
    other = train(make_plan(), shapes=None, source=Seeded(1))
    assert 16 in asked
    for one, two in zip(
        jax.tree.leaves(plain.value), jax.tree.leaves(other.value), strict=True
    ):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), atol=1e-5)


def test_operations_are_counted_from_the_equations():
    """XLA's own count is the oracle where there is no loop: it takes one turn."""

    def loss(w, x):
        x = jax.lax.conv_general_dilated(
            x, w["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.tanh(x.reshape(len(x), -1) @ w["w"]).sum()

    def looped(w, x):
        turn = jax.checkpoint(lambda x, _: (jnp.tanh(x @ w), None))
        return jax.lax.scan(turn, x, None, length=7)[0].sum()

    w = {"k": jnp.zeros((3, 3, 4, 8)), "w": jnp.zeros((128, 50))}
    x = jnp.zeros((2, 8, 8, 4))
    counted = (jax.jit(loss).lower(w, x).cost_analysis() or {})["flops"]
    by_hand = 2 * 2 * 4 * 4 * 8 * 9 * 4 + 2 * 2 * 128 * 50
    assert by_hand < loss_flops(loss, w, x) < 1.1 * by_hand
    assert loss_flops(loss, w, x) == pytest.approx(counted, rel=0.15)
    w, x = jnp.zeros((50, 50)), jnp.zeros((2, 50))
    once = 2 * 2 * 50 * 50 + 2 * 50
    assert loss_flops(looped, w, x) == pytest.approx(7 * once, rel=0.02)
