"""Costs of a step on a machine, and the law of its batch size: both public."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import binom

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

_TAIL = 1e-15  # Batches rarer than that do not count among the costs.


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes of one training step, public numbers of a machine.

    - `compile_s`: for each program;
    - `fixed_s`: for each run of a program; `per_example_s`: for each example computed;
    - `microbatch_s`: to start one microbatch (None: as much as `fixed_s`);
      `transfer_s`: for each slot of a program, computed or not;
    - `memory_bytes`: what is there; `bytes_per_example`: what one computed at once
      takes.
    """

    compile_s: float
    per_example_s: float
    fixed_s: float = 0.0
    microbatch_s: float | None = None
    transfer_s: float = 0.0
    memory_bytes: float | None = None
    bytes_per_example: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                validate.non_negative(**{name: value})
        if self.memory_bytes is not None and self.memory_bytes < self.bytes_per_example:
            raise ValueError(
                "memory_bytes must hold at least one example; got"
                f" {self.memory_bytes:g} for {self.bytes_per_example:g}"
            )

    @property
    def most_at_once(self) -> int | None:
        """The largest number of examples that memory can compute together."""
        if self.memory_bytes is None or self.bytes_per_example == 0.0:
            return None
        return int(self.memory_bytes // self.bytes_per_example)

    @classmethod
    def measured(
        cls,
        run: Callable[[int], Any],
        sizes: Sequence[int] = (16, 64, 256),
        *,
        repeats: int = 3,
        **known: Any,
    ) -> CostModel:
        """Fit the model to a machine: `run(size)` does one step on public zeros.

        The first call for a size compiles; the best of the following ones counts.
        """
        first, times = [], []
        for size in sizes:
            start = time.perf_counter()
            run(size)
            first.append(time.perf_counter() - start)
            laps = []
            for _ in range(repeats):
                start = time.perf_counter()
                run(size)
                laps.append(time.perf_counter() - start)
            times.append(min(laps))
        design = np.stack([np.ones(len(sizes)), np.asarray(sizes, float)], axis=1)
        (fixed, slope), _ = nnls(design, np.asarray(times))
        compiling = max(0.0, float(np.median(np.subtract(first, times))))
        fitted = {
            "compile_s": compiling,
            "fixed_s": float(fixed),
            "per_example_s": float(slope),
        }
        return cls(**(fitted | known))


@dataclass(frozen=True)
class SizeLaw:
    """The law of a batch size: probabilities from `smallest` upwards. Public."""

    smallest: int
    probabilities: tuple[float, ...]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The sizes, in order."""
        return self.smallest + np.arange(len(self.probabilities))

    @property
    def mean(self) -> float:
        """The expected size."""
        return float(self.sizes @ np.asarray(self.probabilities))


def size_law(strategy: BatchSelectionStrategy, num_examples: int) -> SizeLaw:
    """The law of a batch's size, drawn from `num_examples` (or a bound on them).

    >>> law = size_law(CyclicPoissonSampling(0.01, 100), 10_000)
    >>> round(law.mean, 6)
    100.0
    """
    validate.count(num_examples=num_examples)
    trials = num_examples
    match strategy:
        case FixedBatchSampling():
            return SizeLaw(strategy.batch_size, (1.0,))
        case CyclicPoissonSampling(partition_type=PartitionType.EQUAL_SPLIT):
            trials, rate = num_examples // strategy.cycle_length, strategy.sampling_prob
        case CyclicPoissonSampling():
            rate = strategy.sampling_prob / strategy.cycle_length
        case BallsInBinsSampling():
            rate = 1.0 / strategy.cycle_length
        case RandomAllocationSampling():
            rate = strategy.total_participations / max(1, strategy.iterations)
        case BMinSepSampling(warm_start=True):
            p = strategy.sampling_prob
            rate = p / (1.0 + (strategy.min_sep - 1) * p)
        case _:
            raise TypeError(
                "sizes need one known law for all steps (without a warm start the"
                f" first batches differ); got {strategy!r:.200}"
            )
    low = int(max(0, binom.ppf(_TAIL, trials, rate)))
    high = int(binom.isf(_TAIL, trials, rate))
    sizes = np.arange(low, high + 1)
    chances = binom.pmf(sizes, trials, rate)
    cap = getattr(strategy, "truncated_batch_size", None)
    if cap is not None and cap < high:
        above = float(binom.sf(cap - 1, trials, rate))
        keep = max(0, cap - low)
        low = min(low, cap)
        chances = np.append(chances[:keep], above)
    chances = chances / chances.sum()
    return SizeLaw(low, tuple(float(c) for c in chances))
