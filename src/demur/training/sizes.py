"""Physical batch sizes of a run when its user does not name them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
from jax.sharding import Mesh

from demur.core import validate
from demur.training.batch_selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
)
from demur.training.shapes import (
    CostModel,
    ShapePlan,
    SizeLaw,
    plan_shapes,
    size_law,
)

# Round numbers of a small model on a laptop. They decide how many sizes are worth
# compiling (two to four, for a few hundred steps), and nothing about the result.
_USUAL = CostModel(compile_s=1.0, per_example_s=2e-5, fixed_s=1e-3)
_MOST_ROWS = 8192  # on the device at once, when nobody says otherwise


def shapes_for(
    selection: BatchSelectionStrategy,
    num_examples: int,
    *,
    asked: ShapePlan | CostModel | None,
    minibatch_size: int | None,
    microbatch_size: int | None,
    mesh: Mesh | None,
) -> ShapePlan:
    """The sizes to compile, from public numbers alone."""
    multiple = math.lcm(microbatch_size or 1, 1 if mesh is None else mesh.size)
    if isinstance(asked, ShapePlan):
        wrong = [size for size in asked.sizes if size % multiple]
        if wrong:
            raise ValueError(f"shapes must be multiples of {multiple}; got {wrong}")
        return asked
    if minibatch_size is not None:
        validate.count(minibatch_size=minibatch_size)
        if minibatch_size % multiple:
            raise ValueError(
                f"minibatch_size must be a multiple of {multiple} (microbatch and"
                f" devices); got {minibatch_size}"
            )
        return _one_size(minibatch_size, microbatch_size, selection.iterations)
    if isinstance(selection, FixedBatchSampling):
        size = -(-max(1, min(selection.batch_size, _MOST_ROWS)) // multiple) * multiple
        return _one_size(size, microbatch_size, selection.iterations)
    cost = asked
    if cost is None:
        cost = CostModel(**vars(_USUAL) | _rows_at_once(multiple))
    like, people = _like_poisson(selection), max(1, num_examples)
    found = plan_shapes(
        like,
        people,
        cost,
        microbatch_sizes=[microbatch_size],
        multiple_of=multiple,
        most_programs=6,
    )
    # Joining sums takes two more programs for each size. One more size that holds any
    # batch, where memory allows, is cheaper than that; and it may make others needless.
    law = size_law(like, people)
    top = -(-int(law.sizes[-1]) // multiple) * multiple
    if found.sizes[-1] < top <= (cost.most_at_once or _MOST_ROWS):
        found = _with_top(found, top, law, cost)
    return found


def _with_top(found: ShapePlan, top: int, law: SizeLaw, cost: CostModel) -> ShapePlan:
    """The best choice among the sizes found that has `top` as well."""
    slot = cost.transfer_s + (0.0 if found.microbatch_size else cost.per_example_s)
    chances = np.asarray(law.probabilities)

    def seconds(sizes: tuple[int, ...]) -> float:
        held = np.asarray(sizes)[np.searchsorted(sizes, law.sizes)]
        running = found.iterations * slot * float(chances @ held)
        return cost.compile_s * len(sizes) + running

    some = [
        (*chosen, top)
        for count in range(len(found.sizes) + 1)
        for chosen in combinations(found.sizes, count)
    ]
    return replace(found, sizes=min(some, key=seconds))


def may_need_several(
    selection: BatchSelectionStrategy, num_examples: int, shapes: ShapePlan
) -> bool:
    """Whether some batch may well exceed the largest size: then sums are joined."""
    if isinstance(selection, FixedBatchSampling):
        return selection.batch_size > shapes.sizes[-1]
    law = size_law(_like_poisson(selection), max(1, num_examples))
    return int(law.sizes[-1]) > shapes.sizes[-1]


def _one_size(size: int, micro: int | None, iterations: int) -> ShapePlan:
    return ShapePlan((size,), micro, iterations, 0.0, 0.0, 0.0)


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
