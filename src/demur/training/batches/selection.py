"""Batch selection: Poisson, cyclic, balls-in-bins, allocated, separated, fixed.

A strategy is a frozen value that holds public facts alone. The number of examples and
the randomness are given to `batch_iterator`, because they may be secret. What it yields
is secret too: amplification by sampling holds only against those who do not see the
batches.

Every draw is exact or nearly so (`subsets`, `binomial`): one step is at a statistical
distance of at most `STEP_DISTANCE` from its law, which the plan declares.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core import recording, validate
from demur.core.entropy import NoiseKey
from demur.training.batches import subsets
from demur.training.batches.available_examples import AvailableExamples
from demur.training.batches.binomial import LARGEST_DISTANCE, binomial_table
from demur.training.batches.padding import Indices, check_whole
from demur.training.batches.selection_key import Randomness, selection_key

# A step of min-separated sampling draws one table; its warm start draws one more.
STEP_DISTANCE = 2.0 * LARGEST_DISTANCE


class PartitionType(Enum):
    """How examples are divided into the groups of a cycle."""

    INDEPENDENT = auto()  # each example joins a uniform group of its own
    EQUAL_SPLIT = auto()  # shuffled and cut in equal parts; n mod groups sit out


class Batches(Iterator[Indices]):
    """Batches of one run, in order. Secret."""

    def __init__(self, key: NoiseKey, steps: Iterator[Indices]) -> None:
        self.private = key.private
        self._steps = steps

    def __next__(self) -> Indices:
        return next(self._steps)

    def __repr__(self) -> str:
        return "Batches(<secret>)" if self.private else "Batches(NOT PRIVATE)"


class BatchSelectionStrategy(abc.ABC):
    """A way to form batches; a subclass states its guarantees in its docstring.

    A strategy of your own overrides `batch_iterator(num_examples, rng)`, for batches of
    users or a loop of your own. A plan refuses it: the law of its batches is not known.
    """

    iterations: int

    @property
    def independent(self) -> bool:
        """Whether no record's selection depends on who else is there, or how many."""
        return False

    @abc.abstractmethod
    def batch_iterator(
        self, num_examples: int, rng: Any = None, *, start: int = 0
    ) -> Iterator[Indices]:
        """One array of indices below `num_examples` for each step from `start` on."""


class KeyedSelection(BatchSelectionStrategy):
    """A strategy of demur's own: its batches follow from a key and the step."""

    @abc.abstractmethod
    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        """The batches from step `start` on."""

    def batch_iterator(
        self, num_examples: int, rng: Randomness = None, *, start: int = 0
    ) -> Batches:
        """One array of distinct indices below `num_examples` for each step.

        `start` resumes a run: the same key gives the batches that were still to come.
        """
        check_whole(0, num_examples=num_examples, start=start)
        key = selection_key(rng)
        dtype = np.min_scalar_type(-int(num_examples))
        steps = self._steps(int(num_examples), key, int(start))
        tape = recording.active()
        if tape is not None:
            steps = tape.record_batches(
                int(num_examples), steps, independent=self.independent
            )
        return Batches(key, (batch.astype(dtype, copy=False) for batch in steps))


@dataclass(frozen=True)
class CyclicPoissonSampling(KeyedSelection):
    """Poisson sampling from the groups of a cycle, one group each step.

    - An example belongs to one group j at most and appears in no step but those with
      step % cycle_length == j. EQUAL_SPLIT leaves n % cycle_length out for good.
    - In each of these steps it is drawn with probability `sampling_prob`,
      independently of everything else.
    - With `truncated_batch_size`, a larger sample is cut to a uniform subset of it.

    `cycle_length=1` is Poisson sampling; `sampling_prob=1` takes whole groups in turn.

    >>> poisson = CyclicPoissonSampling(sampling_prob=0.25, iterations=3)
    >>> [len(batch) for batch in poisson.batch_iterator(12, rng=1)]
    [3, 4, 2]
    """

    sampling_prob: float
    iterations: int
    truncated_batch_size: int | None = None
    cycle_length: int = 1
    partition_type: PartitionType = PartitionType.EQUAL_SPLIT

    def __post_init__(self) -> None:
        validate.probability(sampling_prob=self.sampling_prob)
        check_whole(0, iterations=self.iterations)
        check_whole(1, cycle_length=self.cycle_length)
        if self.truncated_batch_size is not None:
            check_whole(1, truncated_batch_size=self.truncated_batch_size)
        if not isinstance(self.partition_type, PartitionType):
            raise TypeError(
                f"partition_type must be a PartitionType; got {self.partition_type!r}"
            )
        # A float64: the table of sizes and the event must mean the same number.
        object.__setattr__(self, "sampling_prob", float(self.sampling_prob))

    @property
    def independent(self) -> bool:
        """One group, or independent groups, and no truncation."""
        alone = self.partition_type is PartitionType.INDEPENDENT
        return self.truncated_batch_size is None and (alone or self.cycle_length == 1)

    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        groups = _partition(n, self.cycle_length, self.partition_type, key)
        probability = Fraction(self.sampling_prob)
        for step in range(start, self.iterations):
            group = groups[step % self.cycle_length]
            stream = key.stream("batch", step)
            count = binomial_table(len(group), probability).draw(stream)
            if self.truncated_batch_size is not None:
                count = min(count, self.truncated_batch_size)
            yield subsets.subset(group, count, stream)


@dataclass(frozen=True)
class BallsInBinsSampling(KeyedSelection):
    """Each example falls into one of `cycle_length` bins, and stays there.

    An example of bin j appears in every step with step % cycle_length == j and in no
    other; bins are uniform and independent.
    """

    iterations: int
    cycle_length: int

    def __post_init__(self) -> None:
        check_whole(0, iterations=self.iterations)
        check_whole(1, cycle_length=self.cycle_length)

    @property
    def independent(self) -> bool:
        """True: each example has a bin of its own."""
        return True

    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        bins = _partition(n, self.cycle_length, PartitionType.INDEPENDENT, key)
        for step in range(start, self.iterations):
            yield bins[step % self.cycle_length].copy()


@dataclass(frozen=True)
class RandomAllocationSampling(KeyedSelection):
    """Each example takes part in exactly `total_participations` of the steps.

    Every set of so many steps is equally likely, and examples are independent of each
    other. A step costs as much as the data is large, and so does each step that a
    resumed run has behind it.

    >>> twice = RandomAllocationSampling(total_participations=2, iterations=5)
    >>> drawn = np.concatenate(list(twice.batch_iterator(4)))
    >>> np.bincount(drawn).tolist()
    [2, 2, 2, 2]
    """

    total_participations: int
    iterations: int

    def __post_init__(self) -> None:
        check_whole(
            0,
            total_participations=self.total_participations,
            iterations=self.iterations,
        )
        if self.total_participations > self.iterations:
            raise ValueError(
                "total_participations must be at most iterations; got"
                f" {self.total_participations} of {self.iterations} steps"
            )

    @property
    def independent(self) -> bool:
        """True: each example has a set of steps of its own."""
        return True

    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        # With r participations still to come in the s steps that are left, this step
        # is one of them with probability r / s.
        to_come = np.full(n, self.total_participations, dtype=np.int32)
        for step in range(self.iterations):
            left = self.iterations - step
            drawn = subsets.uniform_below(left, n, key.stream("batch", step))
            batch = np.flatnonzero(drawn < to_come)
            to_come[batch] -= 1
            if step >= start:
                yield batch


@dataclass(frozen=True)
class FixedBatchSampling(KeyedSelection):
    """`batch_size` examples each step, uniform, independently of other steps.

    Without `replace` they are distinct within a step.
    """

    batch_size: int
    iterations: int
    replace: bool = False

    def __post_init__(self) -> None:
        check_whole(0, batch_size=self.batch_size, iterations=self.iterations)

    def batch_iterator(
        self, num_examples: int, rng: Randomness = None, *, start: int = 0
    ) -> Batches:
        """Batches as in every strategy; refused if the examples cannot fill one."""
        check_whole(0, num_examples=num_examples)
        least = min(self.batch_size, 1) if self.replace else self.batch_size
        if num_examples < least:
            raise ValueError(
                f"batch_size must be at most num_examples without replacement; got"
                f" {self.batch_size} of {num_examples}"
            )
        return super().batch_iterator(num_examples, rng, start=start)

    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        everyone = subsets.identity(n)
        for step in range(start, self.iterations):
            stream = key.stream("batch", step)
            if self.replace:
                yield subsets.uniform_below(max(n, 1), self.batch_size, stream)
            else:
                yield subsets.subset(everyone, self.batch_size, stream)


@dataclass(frozen=True)
class BMinSepSampling(KeyedSelection):
    """Poisson sampling of examples that were not in the last min_sep - 1 batches.

    - Between two appearances of an example lie at least min_sep - 1 steps.
    - An example that is available in a step is drawn with probability `sampling_prob`;
      examples are independent of each other.
    - `warm_start` begins in the stationary law: an example is available with
      probability 1 / (1 + (min_sep - 1) p), and each of the min_sep - 1 ways to be
      blocked has probability p / (1 + (min_sep - 1) p). The expected batch is then the
      same in all steps. Without it every example is available in step 0.
    - With `truncated_batch_size`, a larger sample is cut to a uniform subset of it;
      those cut away are blocked as if they had taken part.
    """

    sampling_prob: float
    iterations: int
    min_sep: int
    warm_start: bool = True
    truncated_batch_size: int | None = None

    def __post_init__(self) -> None:
        validate.probability(sampling_prob=self.sampling_prob)
        check_whole(0, iterations=self.iterations)
        check_whole(1, min_sep=self.min_sep)
        if self.truncated_batch_size is not None:
            check_whole(1, truncated_batch_size=self.truncated_batch_size)
        object.__setattr__(self, "sampling_prob", float(self.sampling_prob))

    @property
    def independent(self) -> bool:
        """Whether no batch is truncated: a cut would push other examples out."""
        return self.truncated_batch_size is None

    def _steps(self, n: int, key: NoiseKey, start: int) -> Iterator[Indices]:
        available = AvailableExamples(n)
        blocked: deque[Indices] = deque(self._warm(available, key))
        for step in range(self.iterations):
            stream = key.stream("batch", step)
            drawn = available.take(Fraction(self.sampling_prob), stream)
            blocked.append(drawn)
            # Blocked for min_sep - 1 steps after this one.
            if len(blocked) == self.min_sep:
                available.put_back(blocked.popleft())
            cap = self.truncated_batch_size
            if cap is not None and len(drawn) > cap:
                drawn = subsets.subset(drawn.copy(), cap, stream)
            if step >= start:
                yield drawn.copy()

    def _warm(self, available: AvailableExamples, key: NoiseKey) -> list[Indices]:
        """Who took part in the min_sep - 1 steps before the first, oldest first."""
        before = self.min_sep - 1
        if before == 0 or not self.warm_start:
            return [np.empty(0, np.int32)] * before
        p = Fraction(self.sampling_prob)
        stream = key.stream("warm start")
        out = available.take(before * p / (1 + before * p), stream)
        when = subsets.uniform_below(before, len(out), stream)
        return [out[when == step] for step in range(before)]


def _partition(
    n: int, groups: int, kind: PartitionType, key: NoiseKey
) -> list[NDArray[np.int32]]:
    everyone = subsets.identity(n)
    if groups == 1:
        return [everyone]
    stream = key.stream("partition")
    if kind is PartitionType.EQUAL_SPLIT:
        subsets.shuffle(everyone, stream)
        size = n // groups
        return [everyone[i * size : (i + 1) * size].copy() for i in range(groups)]
    if n == 0:
        return [everyone] * groups
    joined = subsets.uniform_below(groups, n, stream)
    order = np.argsort(joined, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(joined, minlength=groups))
    return [part.copy() for part in np.split(order, ends[:-1])]
