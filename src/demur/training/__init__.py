"""Differentially private training in JAX: plans, clipping, noise, accounting and runs.

Names are loaded when they are first used: batch selection and accounting need no JAX.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.training.accounting.calibration import Calibration as Calibration
    from demur.training.accounting.calibration import calibrate_noise as calibrate_noise
    from demur.training.accounting.monte_carlo import MonteCarlo as MonteCarlo
    from demur.training.accounting.truncation import CapChoice as CapChoice
    from demur.training.accounting.truncation import choose_cap as choose_cap
    from demur.training.accounting.truncation import nearly_free_cap as nearly_free_cap
    from demur.training.batches.padding import pad_to_multiple_of as pad_to_multiple_of
    from demur.training.batches.padding import (
        split_and_pad_global_batch as split_and_pad_global_batch,
    )
    from demur.training.batches.selection import (
        BallsInBinsSampling as BallsInBinsSampling,
    )
    from demur.training.batches.selection import (
        BatchSelectionStrategy as BatchSelectionStrategy,
    )
    from demur.training.batches.selection import BMinSepSampling as BMinSepSampling
    from demur.training.batches.selection import (
        CyclicPoissonSampling as CyclicPoissonSampling,
    )
    from demur.training.batches.selection import (
        FixedBatchSampling as FixedBatchSampling,
    )
    from demur.training.batches.selection import PartitionType as PartitionType
    from demur.training.batches.selection import (
        RandomAllocationSampling as RandomAllocationSampling,
    )
    from demur.training.batches.user_selection import (
        UserSelectionStrategy as UserSelectionStrategy,
    )
    from demur.training.canaries import gradient_run as gradient_run
    from demur.training.canaries import step_weights as step_weights
    from demur.training.clipping.clipped_grad import clipped_grad as clipped_grad
    from demur.training.clipping.types import Aux as Aux
    from demur.training.clipping.types import ClippedGrad as ClippedGrad
    from demur.training.clipping.types import ClippedSum as ClippedSum
    from demur.training.data import Data as Data
    from demur.training.data import UserData as UserData
    from demur.training.data import as_data as as_data
    from demur.training.datasets import from_batches as from_batches
    from demur.training.devices.process_rows import ProcessRows as ProcessRows
    from demur.training.errors import CheckpointRefused as CheckpointRefused
    from demur.training.errors import LossNotSeparable as LossNotSeparable
    from demur.training.errors import ProcessesDisagree as ProcessesDisagree
    from demur.training.errors import ProcessFailed as ProcessFailed
    from demur.training.errors import ProcessLost as ProcessLost
    from demur.training.errors import StartRefused as StartRefused
    from demur.training.noise.privatizer import Privatizer as Privatizer
    from demur.training.noise.privatizer import (
        gaussian_privatizer as gaussian_privatizer,
    )
    from demur.training.noise.privatizer import noise_stddev as noise_stddev
    from demur.training.noise.privatizer import privatizer as privatizer
    from demur.training.noise.threefry import step_keys as step_keys
    from demur.training.optimizers import named_optimizer as named_optimizer
    from demur.training.plans.config import (
        BandMFExecutionPlanConfig as BandMFExecutionPlanConfig,
    )
    from demur.training.plans.config import ExecutionPlanConfig as ExecutionPlanConfig
    from demur.training.plans.config import dp_sgd as dp_sgd
    from demur.training.plans.plan import DPExecutionPlan as DPExecutionPlan
    from demur.training.run.checkpoints.checkpoint import Checkpoint as Checkpoint
    from demur.training.run.checkpoints.checkpoint import load_model as load_model
    from demur.training.run.loggers import Logger as Logger
    from demur.training.run.loggers import log_to as log_to
    from demur.training.run.part_files import load_part as load_part
    from demur.training.run.part_files import save_part as save_part
    from demur.training.run.programs import Programs as Programs
    from demur.training.run.step_reports import Exact as Exact
    from demur.training.run.step_reports import Reporting as Reporting
    from demur.training.run.step_reports import StepReport as StepReport
    from demur.training.run.trainer import Trained as Trained
    from demur.training.run.trainer import fit as fit
    from demur.training.sizes.resources import Resources as Resources
    from demur.training.sizes.shapes import ShapePlan as ShapePlan
    from demur.training.sizes.shapes import best_physical_sizes as best_physical_sizes
    from demur.training.sizes.shapes import plan_shapes as plan_shapes
    from demur.training.sizes.step_costs import CostModel as CostModel

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
