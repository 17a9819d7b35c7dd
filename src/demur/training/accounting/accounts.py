"""Accounts: the privacy cost of a run, from its batch strategy.

A plan adds noise stddev C^-1 Z to the sums G of a run, which is post-processing of
C G + stddev Z. How far one record moves C G depends on the steps it takes part in.
There are four accounts; the event is always derived from the strategy object.

**Poisson** (`PoissonAccount`, Choquette-Choo et al. 2023, Theorems 4 and 5). C has at
most `cycle_length` bands, and a record takes part in steps of one residue class only.
The columns of C that belong to those steps have no row in common, so the rows of C G
fall into ceil(T / cycle_length) blocks, and in each block the record enters through one
column and one independent coin of probability q. Every block is a Gaussian mechanism on
a Poisson sample, with a contribution of at most (largest column norm) * (clip norm);
blocks compose adaptively. A record's group must not depend on who else is there: it is
drawn independently (INDEPENDENT), or n is public (EQUAL_SPLIT), which rules out
add-or-remove. Truncation is analysed for a public group size (Ganesh 2025), which rules
out add-or-remove and independent groups.

**Participation** (`ParticipationAccount`). No amplification: whichever steps the record
takes part in, C G moves by at most the sensitivity of C over the patterns that the
strategy allows, times the clip norm (twice that for a replaced record): one Gaussian.
It does not need batches to be secret. Records must be independent of each other, so
truncated strategies are refused.

**Allocation** (`AllocationAccount`). A record takes part in exactly k of T steps, and
noise is independent. The run is dominated by one allocated Gaussian for each of k
blocks of steps (`core.accounting.random_allocation` has the proof), in both directions,
for a record that is added, removed or blanked. Blocks lie interleaved in time, so the
whole run is one draw.

**Fixed batches** (`FixedBatchAccount`). Uniform batches without replacement have a
Renyi bound for a replaced record and independent noise; nothing is known for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from demur.core import accounting
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    Event,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
    compose,
)
from demur.core.errors import NotPriced
from demur.core.rounding import down
from demur.mechanisms.correlated import Participation, Strategy
from demur.training.batches.selection import (
    STEP_DISTANCE,
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
)

Selection: TypeAlias = BatchSelectionStrategy
ONE_COLUMN = Participation(max_participations=1)
_KNOWN = (
    CyclicPoissonSampling,
    BallsInBinsSampling,
    BMinSepSampling,
    FixedBatchSampling,
    RandomAllocationSampling,
)
_LONG_BLOCK = 100  # Steps of a block from which one step more or less is no matter.
_CONTRIBUTIONS = {
    Neighbours.ADD_OR_REMOVE_ONE: 1,
    Neighbours.ZERO_OUT: 1,
    Neighbours.REPLACE_ONE: 2,
}


class Account(Protocol):
    """A run as `draws` equal events, each paying for some steps."""

    @property
    def draws(self) -> int:
        """How many equal events make up the run."""
        ...

    @property
    def steps_per_draw(self) -> int:
        """How many steps one of them pays for."""
        ...

    @property
    def selection_distance(self) -> float:
        """Statistical distance of one draw's batches to the law the event is about."""
        ...

    def scale(self, strategy: Strategy) -> float:
        """Noise per multiplier and clip norm: stddev = multiplier * clip * scale."""
        ...

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """One draw's event under a relation; refused where it has none."""
        ...


class OneDraw:
    """What accounts have in common whose one event pays for the whole run."""

    selection: Selection

    @property
    def draws(self) -> int:
        """One, for the whole run."""
        return 1

    @property
    def steps_per_draw(self) -> int:
        """All steps of the run."""
        return self.selection.iterations


def run_event(account: Account, multiplier: float, neighbours: Neighbours) -> Event:
    """The event of a whole run."""
    return Repeated(account.draw_event(multiplier, neighbours), account.draws)


def check_known(strategy: Selection) -> None:
    """Refuse batches whose law is not written here: a subclass may draw others."""
    if type(strategy) not in _KNOWN:
        raise NotPriced(
            f"{type(strategy).__name__} is not a batch strategy of demur.training: its"
            " law is not known, so it has no account. Nothing was spent."
        )


def participation_of(strategy: Selection) -> Participation:
    """The patterns of steps that one record can take part in.

    >>> participation_of(BallsInBinsSampling(iterations=95, cycle_length=10))
    Participation(min_separation=10, max_participations=10)
    """
    check_known(strategy)
    apart = 1
    match strategy:
        case CyclicPoissonSampling() | BallsInBinsSampling():
            apart = strategy.cycle_length
        case BMinSepSampling():
            apart = strategy.min_sep
        case FixedBatchSampling() if strategy.replace:
            raise NotPriced(
                "a batch drawn with replacement may hold a record many times: its"
                " contribution has no bound but the batch size. Use replace=False."
            )
        case RandomAllocationSampling():
            return Participation(1, max(1, strategy.total_participations))
    most = -(-strategy.iterations // apart)
    return Participation(apart, max(1, most))


@dataclass(frozen=True)
class PoissonAccount:
    """Amplified by sampling: one sampled Gaussian for each turn of the cycle.

    `num_examples` is the public number of records, which truncation needs.
    """

    selection: CyclicPoissonSampling
    bands: int
    num_examples: int | None = None

    def __post_init__(self) -> None:
        selection = self.selection
        check_known(selection)
        if selection.iterations < 1:
            raise ValueError("iterations must be at least 1 for a plan")
        if self.bands > selection.cycle_length:
            raise NotPriced(
                f"a strategy with {self.bands} bands needs a cycle of as many steps;"
                f" cycle_length is {selection.cycle_length}: a record's columns would"
                " overlap, and no amplification is known for that."
            )
        if selection.truncated_batch_size is None:
            return
        if self.num_examples is None:
            raise ValueError(
                "truncated_batch_size needs num_examples: the price of truncation"
                " depends on how many records there are, so that must be public"
            )
        if selection.partition_type is PartitionType.INDEPENDENT:
            raise NotPriced(
                "truncated_batch_size needs partition_type=EQUAL_SPLIT: independent"
                " groups have secret sizes, and truncation is priced by the size"
            )
        if self.num_examples < selection.cycle_length:
            raise ValueError(
                f"num_examples must be at least cycle_length; got {self.num_examples}"
                f" for {selection.cycle_length} groups"
            )

    @property
    def draws(self) -> int:
        """ceil(T / cycle_length)."""
        return -(-self.selection.iterations // self.selection.cycle_length)

    @property
    def steps_per_draw(self) -> int:
        """One turn of the cycle."""
        return self.selection.cycle_length

    @property
    def selection_distance(self) -> float:
        """Each step of the turn draws one number from a table."""
        return STEP_DISTANCE * self.selection.cycle_length

    def scale(self, strategy: Strategy) -> float:
        """The largest column norm of the matrix that is used."""
        if strategy.bands > self.bands:
            raise NotPriced(
                f"the account is for {self.bands} bands; the strategy has"
                f" {strategy.bands}"
            )
        return strategy.sensitivity(ONE_COLUMN).value

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """A Gaussian on a Poisson sample, truncated or not."""
        selection = self.selection
        q = selection.sampling_prob
        if neighbours is Neighbours.ADD_OR_REMOVE_ONE:
            if selection.truncated_batch_size is not None:
                raise NotPriced(
                    "truncated_batch_size has no price under ADD_OR_REMOVE_ONE: the"
                    " number of records would have to be public, and there it is the"
                    " secret. Use zero-out (REPLACE_SPECIAL) or REPLACE_ONE."
                )
            if selection.partition_type is not PartitionType.INDEPENDENT:
                raise NotPriced(
                    "partition_type must be INDEPENDENT under ADD_OR_REMOVE_ONE: an"
                    " equal split depends on the number of records, so one record"
                    " moves others to another group"
                )
        if selection.truncated_batch_size is None:
            return PoissonGaussian(q, multiplier, neighbours)
        assert self.num_examples is not None
        group = self.num_examples // selection.cycle_length
        return TruncatedPoissonGaussian(
            group, q, selection.truncated_batch_size, multiplier, neighbours
        )


@dataclass(frozen=True)
class ParticipationAccount(OneDraw):
    """Not amplified: one Gaussian for the run, whatever steps the record is in."""

    selection: Selection

    def __post_init__(self) -> None:
        participation_of(self.selection)
        if self.selection.iterations < 1:
            raise ValueError("iterations must be at least 1 for a plan")
        if getattr(self.selection, "truncated_batch_size", None) is not None:
            raise NotPriced(
                "truncated_batch_size has no participation account: a record in a full"
                " batch pushes another one out, in steps that depend on both. Nothing"
                " was spent."
            )

    @property
    def selection_distance(self) -> float:
        """0: the bound holds for every possible batch."""
        return 0.0

    def scale(self, strategy: Strategy) -> float:
        """The sensitivity of C over the patterns of the strategy."""
        return strategy.sensitivity(participation_of(self.selection)).value

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """One Gaussian; a replaced record moves the sums by two contributions."""
        if isinstance(self.selection, FixedBatchSampling):
            if neighbours is Neighbours.ADD_OR_REMOVE_ONE:
                raise NotPriced(
                    "fixed batches have no price under ADD_OR_REMOVE_ONE: a record"
                    " that comes takes the place of another. Use REPLACE_ONE."
                )
        elif (
            isinstance(self.selection, CyclicPoissonSampling)
            and neighbours is Neighbours.ADD_OR_REMOVE_ONE
            and self.selection.partition_type is not PartitionType.INDEPENDENT
        ):
            raise NotPriced(
                "partition_type must be INDEPENDENT under ADD_OR_REMOVE_ONE: an equal"
                " split depends on the number of records"
            )
        return GaussianEvent(down(multiplier / _CONTRIBUTIONS[neighbours]))


@dataclass(frozen=True)
class AllocationAccount(OneDraw):
    """Amplified by random allocation: one allocated Gaussian for each block of steps.

    Where blocks have 100 steps or more, the longer ones are priced as the shorter:
    an allocation to fewer steps dominates one to more (the mean of more terms is
    smaller in convex order), and one price serves the whole run.
    """

    selection: RandomAllocationSampling

    def __post_init__(self) -> None:
        check_known(self.selection)
        if self.selection.iterations < 1:
            raise ValueError("iterations must be at least 1 for a plan")

    @property
    def selection_distance(self) -> float:
        """0: uniform numbers are drawn exactly."""
        return 0.0

    def scale(self, strategy: Strategy) -> float:
        """1: only independent noise is covered."""
        return _independent_scale(strategy, "random allocation is")

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """The blocks of the run."""
        if neighbours is Neighbours.REPLACE_ONE:
            raise NotPriced(
                "random allocation has no amplified price under REPLACE_ONE: the pair"
                " is known for a record that is added, removed or blanked. Use one of"
                " these relations, or account='participation'."
            )
        times, steps = self.selection.total_participations, self.selection.iterations
        if times == 0:
            return Pure(0.0)
        sizes = block_sizes(times, steps)
        if min(sizes) >= _LONG_BLOCK:
            sizes = {min(sizes): times}
        return compose(
            Repeated(AllocatedGaussian(size, multiplier, neighbours), count)
            for size, count in sizes.items()
        )


def _independent_scale(strategy: Strategy, what: str) -> float:
    if strategy.bands != 1:
        raise NotPriced(
            f"{what} amplified for independent noise alone; the strategy has"
            f" {strategy.bands} bands. Use account='participation', or one band."
        )
    return strategy.sensitivity(ONE_COLUMN).value


def block_sizes(participations: int, steps: int) -> dict[int, int]:
    """How many blocks of each size the steps are divided into, as equal as can be.

    >>> block_sizes(3, 10)
    {3: 2, 4: 1}
    """
    size, longer = divmod(steps, participations)
    counts = {size: participations - longer, size + 1: longer}
    return {size: count for size, count in counts.items() if count}


@dataclass(frozen=True)
class FixedBatchAccount(OneDraw):
    """Uniform batches without replacement, priced at one delta by Renyi divergences."""

    selection: FixedBatchSampling
    num_examples: int
    delta: float

    def __post_init__(self) -> None:
        participation_of(self.selection)
        if self.selection.iterations < 1 or self.selection.batch_size < 1:
            raise ValueError("iterations and batch_size must be at least 1 for a plan")

    @property
    def selection_distance(self) -> float:
        """0: uniform subsets are drawn exactly."""
        return 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the price assumes and does not show."""
        return (f"batches are drawn from {self.num_examples} records",)

    def scale(self, strategy: Strategy) -> float:
        """1: only independent noise is covered."""
        return _independent_scale(strategy, "fixed batches are")

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """The run as one (epsilon, delta)."""
        if neighbours is not Neighbours.REPLACE_ONE:
            raise NotPriced(
                "fixed batches without replacement have a price under REPLACE_ONE"
                f" alone; got {neighbours.name}. Use Poisson batches."
            )
        epsilon = accounting.fixed_batch_epsilon(
            self.num_examples,
            self.selection.batch_size,
            multiplier,
            self.selection.iterations,
            self.delta,
        )
        return ApproxDP(epsilon, self.delta)

    def dp_event(self, multiplier: float) -> Any:
        """The run as a `dp_accounting.DpEvent`, at no particular delta."""
        selection = self.selection
        return accounting.fixed_batch_dp_event(
            self.num_examples, selection.batch_size, multiplier, selection.iterations
        )
