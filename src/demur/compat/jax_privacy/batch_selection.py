"""`jax_privacy.batch_selection`: the same strategies, drawn from secret randomness."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from demur import training
from demur.training import BallsInBinsSampling as BallsInBinsSampling
from demur.training import BatchSelectionStrategy as BatchSelectionStrategy
from demur.training import BMinSepSampling as BMinSepSampling
from demur.training import CyclicPoissonSampling as CyclicPoissonSampling
from demur.training import FixedBatchSampling as FixedBatchSampling
from demur.training import PartitionType as PartitionType
from demur.training import RandomAllocationSampling as RandomAllocationSampling
from demur.training import UserSelectionStrategy as UserSelectionStrategy
from demur.training import split_and_pad_global_batch as split_and_pad_global_batch
from demur.training.batches.padding import Indices, check_whole
from demur.training.batches.selection_key import Randomness as RngType


def pad_to_multiple_of(
    indices: ArrayLike, multiple: int, microbatch_size: int | None = None
) -> Indices:
    """The indices, filled up with -1 to a multiple of both numbers.

    Real examples come first: microbatches here are runs of neighbours, so the last ones
    hold the padding. No indices fill one multiple.

    >>> pad_to_multiple_of([0, 1, 2, 3, 4], 4, microbatch_size=3)
    array([ 0,  1,  2,  3,  4, -1, -1, -1, -1, -1, -1, -1])
    """
    check_whole(1, multiple=multiple)
    if microbatch_size is not None:
        check_whole(1, microbatch_size=microbatch_size)
        multiple = math.lcm(int(multiple), int(microbatch_size))
    return training.pad_to_multiple_of(indices, multiple)


__all__ = [
    "BMinSepSampling",
    "BallsInBinsSampling",
    "BatchSelectionStrategy",
    "CyclicPoissonSampling",
    "FixedBatchSampling",
    "PartitionType",
    "RandomAllocationSampling",
    "RngType",
    "UserSelectionStrategy",
    "pad_to_multiple_of",
    "split_and_pad_global_batch",
]
