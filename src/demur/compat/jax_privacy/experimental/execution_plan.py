"""`jax_privacy.experimental.execution_plan`, both of its generations.

`config.make(clipped_grad)` is the interface of its page, `config.plan` that of release
2.0.0, where the plan brings the transformation from a loss to its clipped gradient.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from demur import training
from demur.training import ClippedGrad
from demur.training import DPExecutionPlan as DPExecutionPlan

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, kw_only=True)
class BandMFExecutionPlanConfig(training.BandMFExecutionPlanConfig):
    """The config with the defaults of 2.0.0: zero-out, gradients of unit norm.

    `noise_seed` is not used: noise that a seed repeats hides nothing. Noise and sums
    are float32 or wider, whatever `dtype` says.
    """

    rescale_to_unit_norm: bool = True
    noise_seed: int | None = None
    dtype: Any = None

    def __post_init__(self) -> None:
        if self.neighboring_relation is None and self.accountant is None:
            object.__setattr__(self, "neighboring_relation", "REPLACE_SPECIAL")
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("give epsilon and delta, or noise_multiplier")
        if self.noise_seed is not None:
            _LOG.warning("noise_seed is ignored: every run draws fresh noise")
        super().__post_init__()

    @classmethod
    def default(
        cls,
        num_bands: int,
        iterations: int,
        strategy_optimization_steps: int | None = None,
        **options: Any,
    ) -> BandMFExecutionPlanConfig:
        """The config with the optimised strategy, whose search runs to convergence."""
        del strategy_optimization_steps
        config = super().default(num_bands, iterations, **options)
        assert isinstance(config, BandMFExecutionPlanConfig)
        return config

    @cached_property
    def plan(self) -> DPExecutionPlan:
        """The plan as in 2.0.0: `plan.clipped_grad(loss)` clips as configured."""
        if self.l2_clip_norm is None:
            return replace(self, l2_clip_norm=1.0).make()
        return self.make()

    def make(self, clipped_grad: ClippedGrad | None = None) -> DPExecutionPlan:
        """The plan around a clipped gradient, as on the page."""
        return super().make(clipped_grad)


__all__ = ["BandMFExecutionPlanConfig", "DPExecutionPlan"]
