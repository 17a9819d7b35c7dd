"""Configs of execution plans: public choices, checked against each other.

`BandMFExecutionPlanConfig` is the amplified plan (Poisson batches, banded noise; one
band is DP-SGD, `dp_sgd`). `ExecutionPlanConfig` takes any batch strategy that has an
account, with any noise strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from demur.core import validate
from demur.core.accounting.events import Neighbours
from demur.core.accounting.gaussian import ideal_delta
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import (
    BandedToeplitz,
    Strategy,
    optimize_banded_toeplitz,
)
from demur.training.accounting.accounts import (
    Account,
    AllocationAccount,
    FixedBatchAccount,
    ParticipationAccount,
    PoissonAccount,
)
from demur.training.accounting.monte_carlo import MonteCarlo
from demur.training.batches.selection import (
    BatchSelectionStrategy,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
)
from demur.training.batches.user_selection import UserSelectionStrategy, base_of
from demur.training.plans.base_config import BasePlanConfig


@dataclass(frozen=True, eq=False, kw_only=True)
class BandMFExecutionPlanConfig(BasePlanConfig):
    """Poisson batches from the groups of a cycle, noise with as many bands.

    `sampling_prob` is the chance of a record in the steps of its own group: the
    expected batch is sampling_prob * n / num_bands. `num_bands=1` is DP-SGD.
    `strategy` gives the coefficients instead of having them optimised.
    `partition_type` is INDEPENDENT by default under add-or-remove, else EQUAL_SPLIT.

    >>> config = BandMFExecutionPlanConfig(
    ...     iterations=1000, num_bands=1, sampling_prob=0.01, noise_multiplier=1.0,
    ...     neighboring_relation="ADD_OR_REMOVE_ONE", l2_clip_norm=1.0)
    >>> config.make().event()  # doctest: +NORMALIZE_WHITESPACE
    Repeated(event=PoissonGaussian(probability=0.01, multiplier=1.0,
      neighbours=<Neighbours.ADD_OR_REMOVE_ONE: 'add_or_remove_one'>), count=1000)
    """

    iterations: int
    num_bands: int | None = None
    strategy: Any = None
    sampling_prob: float = 1.0
    partition_type: PartitionType | None = None
    truncated_batch_size: int | None = None
    column_normalize: bool = False

    def __post_init__(self) -> None:
        validate.count(iterations=self.iterations)
        super().__post_init__()
        if self.num_bands is None and self.strategy is None:
            raise TypeError("num_bands must be given (1 for DP-SGD), or a strategy")
        if self.num_bands is not None:
            validate.count(num_bands=self.num_bands)
            if self.num_bands > self.iterations:
                raise ValueError(
                    f"num_bands must be at most iterations={self.iterations}; got"
                    f" {self.num_bands}"
                )
        if self.strategy is not None:
            bands = self._strategy.bands
            if self.num_bands not in (None, bands):
                raise ValueError(
                    f"strategy has {bands} bands and num_bands is {self.num_bands}"
                )
        if self._relation(required=False) is not None:
            self._account.draw_event(1.0, self.neighbours)

    @classmethod
    def default(
        cls, num_bands: int, iterations: int, **options: Any
    ) -> BandMFExecutionPlanConfig:
        """The config with the optimised strategy of `num_bands` bands."""
        normalize = bool(options.get("column_normalize", False))
        best = optimize_banded_toeplitz(
            iterations, num_bands, column_normalize=normalize
        )
        return cls(iterations=iterations, strategy=best, **options)

    @cached_property
    def _strategy(self) -> Strategy:
        if self.strategy is None:
            assert self.num_bands is not None
            return optimize_banded_toeplitz(
                self.iterations, self.num_bands, column_normalize=self.column_normalize
            )
        if isinstance(self.strategy, Strategy):
            return self.strategy
        return BandedToeplitz(
            np.asarray(self.strategy, dtype=np.float64),
            self.iterations,
            self.column_normalize,
        )

    @property
    def _bands(self) -> int:
        return self.num_bands if self.num_bands is not None else self._strategy.bands

    @property
    def _selection(self) -> CyclicPoissonSampling:
        kind = self.partition_type
        if kind is None:
            alone = self._relation(required=False) is Neighbours.ADD_OR_REMOVE_ONE
            kind = PartitionType.INDEPENDENT if alone else PartitionType.EQUAL_SPLIT
        return CyclicPoissonSampling(
            sampling_prob=self.sampling_prob,
            iterations=self.iterations,
            truncated_batch_size=self.truncated_batch_size,
            cycle_length=self._bands,
            partition_type=kind,
        )

    @property
    def _account(self) -> PoissonAccount:
        return PoissonAccount(self._selection, self._bands, self.num_examples)


def dp_sgd(
    *, iterations: int, sampling_prob: float, **options: Any
) -> BandMFExecutionPlanConfig:
    """DP-SGD: Poisson batches and independent noise (one band).

    >>> dp_sgd(iterations=10, sampling_prob=0.1, noise_multiplier=1.0, l2_clip_norm=1.0,
    ...        neighboring_relation="ADD_OR_REMOVE_ONE").make().draws
    10
    """
    return BandMFExecutionPlanConfig(
        iterations=iterations, num_bands=1, sampling_prob=sampling_prob, **options
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class ExecutionPlanConfig(BasePlanConfig):
    """Any batch strategy that has an account, with any noise strategy.

    `account` is "participation" (no amplification; holds against those who see the
    batches), "amplified" (Poisson batches with enough of a cycle, random allocation
    with independent noise, or fixed batches under REPLACE_ONE), or a `MonteCarlo`
    verification for balls-in-bins and min-separated batches. Without `strategy` the
    noise is independent.

    With a `UserSelectionStrategy` the account is that of its base strategy, and the
    plan protects a person with all of their examples; `fit` takes it with `UserData`.
    """

    batch_selection_strategy: BatchSelectionStrategy | UserSelectionStrategy
    strategy: Strategy | None = None
    account: str | MonteCarlo = "participation"

    def __post_init__(self) -> None:
        super().__post_init__()
        # What needs a target or a verification is checked when the plan is made.
        later = isinstance(self.account, MonteCarlo) or (
            self.account == "amplified" and self.delta is None
        )
        if not later:
            self._account.scale(self._strategy)

    @property
    def _selection(self) -> BatchSelectionStrategy | UserSelectionStrategy:
        return self.batch_selection_strategy

    @cached_property
    def _strategy(self) -> Strategy:
        if self.strategy is None:
            return BandedToeplitz([1.0], self.batch_selection_strategy.iterations)
        return self.strategy

    @cached_property
    def _account(self) -> Account:
        selection = base_of(self.batch_selection_strategy)
        if isinstance(self.account, MonteCarlo):
            if self.noise_multiplier is None:
                raise TypeError("a Monte Carlo account needs a noise_multiplier")
            return self.account.verify(
                selection, self._strategy, self.noise_multiplier, self.neighbours
            )
        if self.account == "participation":
            return ParticipationAccount(selection)
        if self.account != "amplified":
            raise ValueError(
                "account must be 'participation', 'amplified' or a MonteCarlo; got"
                f" {self.account!r}"
            )
        if isinstance(selection, CyclicPoissonSampling):
            return PoissonAccount(selection, self._strategy.bands, self.num_examples)
        if isinstance(selection, RandomAllocationSampling):
            return AllocationAccount(selection)
        if isinstance(selection, FixedBatchSampling):
            if self.num_examples is None or self.delta is None:
                raise TypeError(
                    "fixed batches are priced from num_examples at one delta: give both"
                )
            return FixedBatchAccount(
                selection, self.num_examples, ideal_delta(self.delta)
            )
        raise NotPriced(
            f"{type(selection).__name__} has no amplified account in closed form: use"
            " account='participation' or a MonteCarlo verification"
        )
