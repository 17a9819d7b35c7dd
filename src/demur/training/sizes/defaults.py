"""Default physical batch sizes of a run, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np

from demur.core import validate
from demur.training.batches.selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
)
from demur.training.sizes.resources import Resources
from demur.training.sizes.shapes import ShapePlan, plan_shapes
from demur.training.sizes.step_costs import CostModel, size_law

# Round numbers. They decide how many sizes are worth compiling (one to three, for a few
# hundred steps), and nothing about the result.
_USUAL = CostModel(compile_s=2.0, per_example_s=5e-5, fixed_s=1e-3)
_FLOPS = 2e10  # a second, of a small model on a CPU; small matrices are slow
_ACCELERATED_FLOPS = 1e14  # of a large model on an accelerator
_ACCELERATED_EXAMPLE_S = 5e-6  # at least: a small model waits for its launches
_MOST_ROWS = 8192  # on the device at once, by default
_PARTS = 4  # microbatches of an ordinary batch, where they save padding
_FEWEST_ROWS = 64  # of a microbatch: fewer keep no accelerator busy
_START_S = 5e-4  # of a microbatch on an accelerator


def shapes_for(
    selection: BatchSelectionStrategy,
    num_examples: int,
    resources: Resources,
    *,
    flops: Callable[[], float | None] | None = None,
) -> ShapePlan:
    """The sizes to compile: those of `resources`, or the best ones for a machine.

    `flops()` is what the loss of one example takes, if it is known.
    """
    given, mesh = resources.shapes, resources.mesh
    minibatch_size = resources.minibatch_size
    microbatch_size = resources.microbatch_size
    multiple = math.lcm(microbatch_size or 1, 1 if mesh is None else mesh.size)
    if isinstance(given, ShapePlan):
        wrong = [size for size in given.sizes if size % multiple]
        if wrong:
            raise ValueError(
                f"shapes must be multiples of {multiple} (microbatch and devices); got"
                f" {wrong}. Nothing was spent."
            )
        return given
    if minibatch_size is not None:
        validate.count(minibatch_size=minibatch_size)
        if minibatch_size % multiple:
            raise ValueError(
                f"minibatch_size must be a multiple of {multiple} (microbatch and"
                f" devices); got {minibatch_size}. Nothing was spent."
            )
        return _one_size(minibatch_size, microbatch_size, selection.iterations)
    if isinstance(selection, FixedBatchSampling):
        size = -(-max(1, min(selection.batch_size, _MOST_ROWS)) // multiple) * multiple
        return _one_size(size, microbatch_size, selection.iterations)
    cost = given
    if cost is None:
        known = None if flops is None else flops()
        cost = CostModel(**vars(_USUAL) | _rows_at_once(multiple) | _per_example(known))
    like, examples = _like_poisson(selection), max(1, num_examples)
    if given is None and microbatch_size is None and mesh is None:
        microbatch_size = _against_padding(like, examples, cost)
        multiple = microbatch_size or 1
    top = -(-int(size_law(like, examples).sizes[-1]) // multiple) * multiple
    return plan_shapes(
        like,
        examples,
        cost,
        microbatch_sizes=[microbatch_size],
        multiple_of=multiple,
        most_programs=6,
        # Joining sums takes two more programs for each size: where a size that holds
        # any batch fits in memory, nothing is joined.
        accumulate=top > (cost.most_at_once or _MOST_ROWS),
    )


def _against_padding(
    selection: CyclicPoissonSampling, num_examples: int, cost: CostModel
) -> int | None:
    """Microbatches of which four hold nearly every batch, where padding costs more.

    One program that holds any batch has a tenth to a quarter of padding, and a second
    program takes half a minute to compile on an accelerator. A loop over microbatches
    stops behind the last real example, so the room for rare batches costs nothing: four
    of them have two standard deviations above the mean, and one batch in forty needs a
    fifth.
    """
    if jax.default_backend() == "cpu":
        return None
    law = size_law(selection, num_examples)
    if law.sizes[-1] > (cost.most_at_once or _MOST_ROWS):
        return None  # such batches are cut into parts anyway
    chances = np.asarray(law.probabilities)
    deviation = math.sqrt(float(chances @ (law.sizes - law.mean) ** 2))
    rows = math.ceil((law.mean + 2 * deviation) / _PARTS / 8) * 8
    taken = float(chances @ (-(-law.sizes // rows) * rows))
    saved = (int(law.sizes[-1]) - taken) * cost.per_example_s
    return rows if rows >= _FEWEST_ROWS and saved > _PARTS * _START_S else None


def may_need_several(
    selection: BatchSelectionStrategy, num_examples: int, shapes: ShapePlan
) -> bool:
    """Whether some batch may well exceed the largest size: then sums are joined."""
    return _largest_batch(selection, num_examples) > shapes.sizes[-1]


def rows_of_largest_step(
    selection: BatchSelectionStrategy,
    num_examples: int,
    shapes: ShapePlan,
    processes: int = 1,
) -> int:
    """The rows of the largest step, padding included, but for a chance of 1e-15 each.

    With `processes`, each has rows of its own, and all get as many slots as one needs.
    """
    largest = _largest_batch(selection, num_examples)
    # More examples never take fewer rows.
    return sum(size for size, _ in shapes.layout(processes * largest))


def _largest_batch(selection: BatchSelectionStrategy, num_examples: int) -> int:
    if isinstance(selection, FixedBatchSampling):
        return selection.batch_size
    return int(size_law(_like_poisson(selection), max(1, num_examples)).sizes[-1])


def _one_size(size: int, micro: int | None, iterations: int) -> ShapePlan:
    return ShapePlan((size,), micro, iterations, 0.0, 0.0, 0.0)


def _per_example(flops: float | None) -> dict[str, float]:
    counted = 3.0 * max(flops or 0.0, 0.0)  # forward, and twice that backward
    if jax.default_backend() != "cpu":
        each = max(_ACCELERATED_EXAMPLE_S, counted / _ACCELERATED_FLOPS)
        return {"per_example_s": each}
    return {"per_example_s": counted / _FLOPS} if counted else {}


def _rows_at_once(multiple: int) -> dict[str, float]:
    return {
        "memory_bytes": float(max(_MOST_ROWS, multiple)),
        "bytes_per_example": 1.0,
    }


def _like_poisson(selection: BatchSelectionStrategy) -> CyclicPoissonSampling:
    """A Poisson strategy whose batch sizes have the same law, or nearly so."""
    match selection:
        case CyclicPoissonSampling():
            return selection
        case BallsInBinsSampling(iterations=steps, cycle_length=bins):
            return CyclicPoissonSampling(
                1.0, steps, cycle_length=bins, partition_type=PartitionType.INDEPENDENT
            )
        case RandomAllocationSampling(total_participations=k, iterations=steps):
            return CyclicPoissonSampling(k / max(1, steps), steps)
        case BMinSepSampling():
            p = selection.sampling_prob
            rate = p / (1.0 + (selection.min_sep - 1) * p) if p else 0.0
            # The first step without warm start is the largest.
            return CyclicPoissonSampling(
                rate if selection.warm_start else p,
                selection.iterations,
                selection.truncated_batch_size,
            )
    return CyclicPoissonSampling(1.0, selection.iterations)
