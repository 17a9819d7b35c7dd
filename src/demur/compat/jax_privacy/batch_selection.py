"""`jax_privacy.batch_selection`: the same strategies, drawn from secret randomness."""

from demur.training import BallsInBinsSampling as BallsInBinsSampling
from demur.training import BatchSelectionStrategy as BatchSelectionStrategy
from demur.training import BMinSepSampling as BMinSepSampling
from demur.training import CyclicPoissonSampling as CyclicPoissonSampling
from demur.training import FixedBatchSampling as FixedBatchSampling
from demur.training import PartitionType as PartitionType
from demur.training import UserSelectionStrategy as UserSelectionStrategy
from demur.training import pad_to_multiple_of as pad_to_multiple_of
from demur.training import split_and_pad_global_batch as split_and_pad_global_batch
from demur.training.batches.selection_key import Randomness as RngType

__all__ = [
    "BMinSepSampling",
    "BallsInBinsSampling",
    "BatchSelectionStrategy",
    "CyclicPoissonSampling",
    "FixedBatchSampling",
    "PartitionType",
    "RngType",
    "UserSelectionStrategy",
    "pad_to_multiple_of",
    "split_and_pad_global_batch",
]
