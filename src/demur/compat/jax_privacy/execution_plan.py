"""`jax_privacy.execution_plan` of its newest sources: `BandMFConfig`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from demur import training
from demur.compat.jax_privacy.batch_selection import PartitionType
from demur.compat.jax_privacy.noise_addition import SupportedStrategies
from demur.core import validate
from demur.mechanisms.correlated import BandedToeplitz, optimize_banded_toeplitz
from demur.training import ClippedGrad
from demur.training import DPExecutionPlan as DPExecutionPlan

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PerformanceFlags:
    """How a plan's gradients are computed.

    `dtype`, `noise_seed` and `intermediate_strategy` are not used: sums and noise are
    float32 or wider, noise is fresh in every run, and `Resources(mesh=...)` of a run
    says how it is spread over devices.
    """

    dtype: Any = np.float32
    noise_seed: int | None = None
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT
    microbatch_size: int | None = None
    spmd_axis_name: str | None = None
    keep_batch_dim: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class BandMFConfig:
    """Poisson batches from the groups of a cycle, noise with as many bands.

    A record takes part `expected_participations` times on average. With `num_examples`
    their number is public: the plan is for a record that is blanked, and groups are of
    equal size. Without, it is for a record that is added or removed.

    >>> config = BandMFConfig(
    ...     iterations=100, expected_participations=1.0, strategy=[1.0],
    ...     noise_multiplier=1.0)
    >>> config.make().event().count
    100
    """

    iterations: int
    expected_participations: float
    strategy: Any
    noise_multiplier: float | None = None
    l2_clip_norm: Any = 1.0
    rescale_to_unit_norm: bool = True
    normalize_by: float = 1.0
    truncated_batch_size: int | None = None
    num_examples: int | None = None
    column_normalize: bool = False

    def __post_init__(self) -> None:
        validate.count(iterations=self.iterations)
        validate.positive(expected_participations=self.expected_participations)
        if np.ndim(self.strategy) != 1 or not np.size(self.strategy):
            raise ValueError(
                "strategy must be a list of one coefficient for each band; got shape"
                f" {np.shape(self.strategy)}"
            )
        if self.truncated_batch_size is not None and self.num_examples is None:
            raise ValueError(
                "truncated_batch_size needs num_examples: the price of truncation"
                " depends on how many records there are, so that must be public"
            )
        most = self.iterations / self.num_bands
        if self.expected_participations > most * (1 + 1e-12):
            raise ValueError(
                f"expected_participations must be at most iterations / num_bands ="
                f" {most:g}; got {self.expected_participations:g}"
            )

    @classmethod
    def default(
        cls,
        num_bands: int,
        iterations: int,
        expected_participations: float,
        strategy_optimization_steps: int | None = None,
        **options: Any,
    ) -> BandMFConfig:
        """The config with the optimised strategy, whose search runs to convergence."""
        del strategy_optimization_steps
        normalize = bool(options.get("column_normalize", False))
        best = optimize_banded_toeplitz(
            iterations, num_bands, column_normalize=normalize
        )
        return cls(
            iterations=iterations,
            expected_participations=expected_participations,
            strategy=np.asarray(best.coefs),
            **options,
        )

    @property
    def num_bands(self) -> int:
        """How many bands the strategy has."""
        return int(np.size(self.strategy))

    @property
    def rmse(self) -> float:
        """Error of the running sums, for one expected participation of a record."""
        strategy = BandedToeplitz(
            np.asarray(self.strategy, np.float64), self.iterations
        )
        errors = float(np.mean(strategy.errors()))
        return self._noise() / self.expected_participations * math.sqrt(errors)

    def calibrate(
        self,
        *,
        epsilon: float,
        delta: float,
        tol: float | None = None,
        accountant_fn: Callable[[Any], Any] | None = None,
    ) -> BandMFConfig:
        """The config with the least noise for (epsilon, delta).

        `accountant_fn(relation)` makes an accountant that must agree. `tol` is not
        used: the result costs at most epsilon, and at most 0.2% less.
        """
        del tol
        config = self._config(epsilon=epsilon, delta=delta)
        if accountant_fn is not None:
            accountant = accountant_fn(config.make().neighboring_relation)
            config = replace(config, accountant=accountant)
        return replace(self, noise_multiplier=config.calibration.noise_multiplier)

    def make(
        self, performance_flags: PerformanceFlags | None = None
    ) -> DPExecutionPlan:
        """The plan; `plan.clipped_grad(loss)` clips as configured."""
        flags = PerformanceFlags() if performance_flags is None else performance_flags
        if flags.noise_seed is not None:
            _LOG.warning("noise_seed is ignored: every run draws fresh noise")
        plan = self._config(noise_multiplier=self._noise()).make()
        assert not isinstance(plan.clipped_grad, ClippedGrad)
        gradient = partial(
            plan.clipped_grad,
            microbatch_size=flags.microbatch_size,
            spmd_axis_name=flags.spmd_axis_name,
            keep_batch_dim=flags.keep_batch_dim,
        )
        return replace(plan, clipped_grad=gradient)

    def _noise(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError(
                "noise_multiplier is not set: give it, or call calibrate(epsilon=...,"
                " delta=...)"
            )
        return self.noise_multiplier

    def _config(self, **target: Any) -> training.BandMFExecutionPlanConfig:
        public = self.num_examples is not None
        rate = self.expected_participations * self.num_bands / self.iterations
        return training.BandMFExecutionPlanConfig(
            iterations=self.iterations,
            strategy=np.asarray(self.strategy, np.float64),
            sampling_prob=min(1.0, rate),
            neighboring_relation="REPLACE_SPECIAL" if public else "ADD_OR_REMOVE_ONE",
            partition_type=PartitionType.EQUAL_SPLIT
            if public
            else PartitionType.INDEPENDENT,
            truncated_batch_size=self.truncated_batch_size,
            num_examples=self.num_examples,
            column_normalize=self.column_normalize,
            l2_clip_norm=self.l2_clip_norm,
            rescale_to_unit_norm=self.rescale_to_unit_norm,
            normalize_by=self.normalize_by,
            **target,
        )


__all__ = ["BandMFConfig", "DPExecutionPlan", "PerformanceFlags"]
