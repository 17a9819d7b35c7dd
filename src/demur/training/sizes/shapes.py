"""Shape plans: the physical batch sizes to compile, chosen before anything is sampled.

A compiled program has one batch size; a Poisson batch has any. The law of its size is
public (Binomial), so the sizes worth compiling follow from it and from the costs, and
nothing that is compiled, cached or timed beforehand depends on what is drawn.

Let program sizes be s_1 < ... < s_K. A batch of r examples is cut into as many full
minibatches of s_K as come before its last 1 to s_K examples, which go to the smallest
program that holds them. One run of program s costs

    fixed + (transfer + per example) s                     padded, every slot computed
    fixed + transfer s + ceil(real / m) (start + per example m)     microbatches of m,
                                             stopping after the last real example.

Both are a constant plus a slope times s plus a term that the choice of sizes cannot
change. For a given largest size M the expected total over T steps is therefore a sum
over intervals, and

    best(j) = min over i < j of
              best(i) + compile + T P(s_i < last part <= s_j) cost(s_j)

is exact: the best set whose largest member is s_j needs the best set below some s_i
and nothing else about it. K comes out of it. The largest size and the microbatch are
tried in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.training.batches.selection import BatchSelectionStrategy
from demur.training.sizes.step_costs import CostModel, SizeLaw, size_law

Array = NDArray[Any]
_MOST_SIZES = 512
_LARGEST_TRIED = 24
_TAILS = [c * 10.0**-e for e in range(1, 9) for c in (5.0, 2.0, 1.0)]


@dataclass(frozen=True)
class ShapePlan:
    """Batch sizes to compile, with expected time and padding.

    `waste` is the expected share of computed examples that are padding.
    """

    sizes: tuple[int, ...]
    microbatch_size: int | None
    iterations: int
    expected_seconds: float
    compile_seconds: float
    waste: float

    def layout(self, real: int) -> list[tuple[int, int]]:
        """(program size, real examples in it) for each minibatch of a batch.

        An empty batch is one run of the smallest program with nothing in it.
        """
        if real < 0:
            raise ValueError(f"real must be at least 0; got {real}")
        largest = self.sizes[-1]
        full = max(0, (real - 1) // largest)
        rest = real - full * largest
        last = next(size for size in self.sizes if size >= rest)
        return [(largest, largest)] * full + [(last, rest)]

    def computed(self, real: int) -> int:
        """How many examples are computed for a batch of `real`, padding included."""
        if self.microbatch_size is None:
            return sum(size for size, _ in self.layout(real))
        m = self.microbatch_size
        return sum(-(-inside // m) * m for _, inside in self.layout(real))

    def realised_waste(self, reals: ArrayLike) -> float:
        """The share of padding over the batches of a run. Exact: sizes are secret."""
        counts = np.asarray(reals, dtype=np.int64).ravel()
        computed = sum(self.computed(int(real)) for real in counts)
        return 1.0 - float(counts.sum()) / computed if computed else 0.0


def plan_shapes(
    strategy: BatchSelectionStrategy,
    num_examples: int,
    cost: CostModel,
    *,
    microbatch_sizes: Sequence[int | None] | None = None,
    multiple_of: int = 1,
    most_programs: int | None = None,
    accumulate: bool = True,
) -> ShapePlan:
    """The program sizes and the microbatch with the least expected total time.

    Its inputs are public: the strategy, the number of examples (or a bound on it) and
    the costs. `multiple_of` restricts sizes (to the number of devices);
    `microbatch_sizes` restricts what is tried (None: no microbatches). Without
    `accumulate` the largest program holds any batch, or as much as memory does.

    >>> from demur.training import CyclicPoissonSampling
    >>> poisson = CyclicPoissonSampling(sampling_prob=0.01, iterations=1000)
    >>> slow = CostModel(compile_s=60.0, per_example_s=1e-4, fixed_s=1e-2)
    >>> quick = CostModel(compile_s=0.02, per_example_s=1e-4, fixed_s=1e-2)
    >>> few, many = (plan_shapes(poisson, 10_000, cost) for cost in (slow, quick))
    >>> len(few.sizes), len(many.sizes) > 5, few.waste > many.waste
    (1, True, True)
    """
    validate.count(multiple_of=multiple_of)
    if most_programs is not None:
        validate.count(most_programs=most_programs)
    law = size_law(strategy, num_examples)
    plans: list[ShapePlan] = []
    for micro in _microbatches(law, cost, microbatch_sizes, multiple_of):
        step = math.lcm(multiple_of, micro or 1)
        largest_sizes = _largest_sizes(law, cost, micro, step)
        for largest in largest_sizes if accumulate else largest_sizes[-1:]:
            plans.append(
                _best(
                    law, cost, micro, step, largest, strategy.iterations, most_programs
                )
            )
    if not plans:
        raise ValueError(
            f"no size is a multiple of {multiple_of} and fits in memory"
            f" ({cost.most_at_once} examples at once)"
        )
    return min(plans, key=lambda plan: plan.expected_seconds)


def _microbatches(
    law: SizeLaw,
    cost: CostModel,
    asked: Sequence[int | None] | None,
    multiple_of: int,
) -> list[int | None]:
    top = law.smallest + len(law.probabilities) - 1
    if asked is None:
        powers = [multiple_of * 2**i for i in range(24) if multiple_of * 2**i <= top]
        asked = [None, *powers]
    fit = cost.most_at_once
    fitting: list[int | None] = []
    for micro in asked:
        if micro is not None:
            validate.count(microbatch_size=micro)
            if micro % multiple_of or (fit is not None and micro > fit):
                continue
        fitting.append(micro)
    return fitting


def _largest_sizes(
    law: SizeLaw, cost: CostModel, micro: int | None, step: int
) -> list[int]:
    top = -(-(law.smallest + len(law.probabilities) - 1) // step) * step
    top = max(step, top)
    # Microbatches bound what is computed at once; without them the program itself does.
    limit = top
    if micro is None and cost.most_at_once is not None:
        limit = min(top, cost.most_at_once // step * step)
    if limit < step:
        return []
    # Small ones, which accumulate; and those that are exceeded now and then.
    tails = np.cumsum(law.probabilities[::-1])[::-1]
    rare = [law.sizes[np.searchsorted(-tails, -tail) - 1] for tail in _TAILS]
    tried = np.concatenate([np.geomspace(step, limit, _LARGEST_TRIED), rare])
    rounded = {math.ceil(size / step) * step for size in tried} | {limit}
    return sorted(size for size in rounded if step <= size <= limit)


def _best(
    law: SizeLaw,
    cost: CostModel,
    micro: int | None,
    step: int,
    largest: int,
    iterations: int,
    most_programs: int | None,
) -> ShapePlan:
    sizes, chances = law.sizes, np.asarray(law.probabilities)
    full = np.maximum(0, (sizes - 1) // largest)
    rest = sizes - full * largest
    # Candidate sizes: every multiple of `step`, thinned out if they are too many.
    stride = step * -(-largest // step // _MOST_SIZES)
    candidates = np.arange(largest, 0, -stride)[::-1]
    slot = cost.transfer_s + (0.0 if micro else cost.per_example_s)
    one_run = cost.fixed_s + slot * candidates
    below = np.searchsorted(candidates, rest)  # the smallest candidate that holds it
    weights = np.bincount(below, weights=chances, minlength=len(candidates))
    chosen, seconds = _intervals(
        weights * iterations, one_run, cost.compile_s, most_programs
    )
    picked = tuple(int(size) for size in candidates[chosen])
    per_step = float(chances @ full) * (cost.fixed_s + slot * largest)
    plan = ShapePlan(picked, micro, iterations, 0.0, cost.compile_s * len(picked), 0.0)
    if micro:
        # Every full minibatch is a multiple of the microbatch: only the rest rounds up.
        micros = full * (largest // micro) + -(-rest // micro)
        start = cost.fixed_s if cost.microbatch_s is None else cost.microbatch_s
        per_step += float(chances @ micros) * (start + cost.per_example_s * micro)
        computed = float(chances @ micros) * micro
    else:
        held = candidates[chosen][np.searchsorted(candidates[chosen], rest)]
        computed = float(chances @ (full * largest + held))
    waste = 1.0 - law.mean / computed if computed else 0.0
    return ShapePlan(
        picked,
        micro,
        iterations,
        seconds + per_step * iterations,
        plan.compile_seconds,
        waste,
    )


def _intervals(
    weights: Array, cost: Array, compile_s: float, most: int | None
) -> tuple[list[int], float]:
    """The candidates to compile, the last among them, and the least total cost."""
    count = len(weights)
    if cost[0] == cost[-1]:  # size costs nothing: one program does
        return [count - 1], compile_s + float(weights.sum() * cost[-1])
    total = np.concatenate([[0.0], np.cumsum(weights)])
    if most is None:
        best = np.zeros(count + 1)
        back = np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            options = best[:j] + compile_s + (total[j] - total[:j]) * cost[j - 1]
            # Ties go to fewer programs: the smallest i.
            back[j] = int(np.argmin(options))
            best[j] = options[back[j]]
        return _walk([back] * (count + 1), count), float(best[count])
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    backs, rows = [], []
    for _ in range(min(most, count)):
        after = np.full(count + 1, np.inf)
        back = np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            options = best[:j] + compile_s + (total[j] - total[:j]) * cost[j - 1]
            back[j] = int(np.argmin(options))
            after[j] = options[back[j]]
        backs.append(back)
        rows.append(after[count])
        best = after
    used = int(np.argmin(rows))
    return _walk(backs[used::-1], count), float(rows[used])


def _walk(backs: Sequence[NDArray[Any]], end: int) -> list[int]:
    chosen = []
    for back in backs:
        if end == 0:
            break
        chosen.append(end - 1)
        end = int(back[end])
    return chosen[::-1]


def best_physical_sizes(sizes: ArrayLike, count: int) -> tuple[int, ...]:
    """At most `count` sizes such that padding known batches up to them wastes least.

    Each batch counts as often as it occurs.

    >>> best_physical_sizes([10] * 100 + [20, 30, 40, 50], 2)
    (10, 50)
    """
    validate.count(count=count)
    values, often = np.unique(np.asarray(sizes, dtype=np.int64), return_counts=True)
    if not len(values) or values[0] < 0:
        raise ValueError("sizes must be at least one whole number from 0")
    chosen, _ = _intervals(
        often.astype(np.float64), values.astype(np.float64), 0.0, int(count)
    )
    return tuple(int(size) for size in values[chosen])
