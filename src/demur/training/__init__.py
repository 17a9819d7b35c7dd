"""Private training in JAX: batches, clipping, noise and their price in one plan.

Names are loaded when they are first used: batch selection and accounting need no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.training.batch_selection import (
        BallsInBinsSampling as BallsInBinsSampling,
    )
    from demur.training.batch_selection import (
        BatchSelectionStrategy as BatchSelectionStrategy,
    )
    from demur.training.batch_selection import BMinSepSampling as BMinSepSampling
    from demur.training.batch_selection import (
        CyclicPoissonSampling as CyclicPoissonSampling,
    )
    from demur.training.batch_selection import FixedBatchSampling as FixedBatchSampling
    from demur.training.batch_selection import PartitionType as PartitionType
    from demur.training.batch_selection import (
        UserSelectionStrategy as UserSelectionStrategy,
    )
    from demur.training.batch_selection import pad_to_multiple_of as pad_to_multiple_of
    from demur.training.batch_selection import (
        split_and_pad_global_batch as split_and_pad_global_batch,
    )
    from demur.training.calibration import Calibration as Calibration
    from demur.training.calibration import calibrate_noise as calibrate_noise
    from demur.training.checkpoint import Checkpoint as Checkpoint
    from demur.training.clipping import clipped_grad as clipped_grad
    from demur.training.config import (
        BandMFExecutionPlanConfig as BandMFExecutionPlanConfig,
    )
    from demur.training.config import ExecutionPlanConfig as ExecutionPlanConfig
    from demur.training.config import dp_sgd as dp_sgd
    from demur.training.data import as_data as as_data
    from demur.training.metrics import StepReport as StepReport
    from demur.training.monte_carlo import MonteCarlo as MonteCarlo
    from demur.training.noise import gaussian_privatizer as gaussian_privatizer
    from demur.training.noise import noise_stddev as noise_stddev
    from demur.training.noise import privatizer as privatizer
    from demur.training.plan import DPExecutionPlan as DPExecutionPlan
    from demur.training.precompile import Programs as Programs
    from demur.training.shapes import CostModel as CostModel
    from demur.training.shapes import ShapePlan as ShapePlan
    from demur.training.shapes import plan_shapes as plan_shapes
    from demur.training.trainer import Trained as Trained
    from demur.training.trainer import Users as Users
    from demur.training.trainer import fit as fit
    from demur.training.truncation import choose_cap as choose_cap
    from demur.training.truncation import nearly_free_cap as nearly_free_cap
    from demur.training.types import Aux as Aux
    from demur.training.types import ClippedGrad as ClippedGrad
    from demur.training.types import ClippedSum as ClippedSum

_HOME = {
    "noise_stddev": "noise",
    "Users": "trainer",
    "Trained": "trainer",
    "StepReport": "metrics",
    "as_data": "data",
    "Checkpoint": "checkpoint",
    "BallsInBinsSampling": "batch_selection",
    "BatchSelectionStrategy": "batch_selection",
    "BMinSepSampling": "batch_selection",
    "CyclicPoissonSampling": "batch_selection",
    "FixedBatchSampling": "batch_selection",
    "PartitionType": "batch_selection",
    "UserSelectionStrategy": "batch_selection",
    "pad_to_multiple_of": "batch_selection",
    "split_and_pad_global_batch": "batch_selection",
    "Calibration": "calibration",
    "calibrate_noise": "calibration",
    "clipped_grad": "clipping",
    "BandMFExecutionPlanConfig": "config",
    "ExecutionPlanConfig": "config",
    "dp_sgd": "config",
    "MonteCarlo": "monte_carlo",
    "gaussian_privatizer": "noise",
    "privatizer": "noise",
    "DPExecutionPlan": "plan",
    "Programs": "precompile",
    "CostModel": "shapes",
    "ShapePlan": "shapes",
    "plan_shapes": "shapes",
    "fit": "trainer",
    "choose_cap": "truncation",
    "nearly_free_cap": "truncation",
    "Aux": "types",
    "ClippedGrad": "types",
    "ClippedSum": "types",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demur.training' has no attribute {name!r}")
    value = getattr(import_module(f"demur.training.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
