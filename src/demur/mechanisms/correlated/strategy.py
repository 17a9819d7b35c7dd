"""The protocol of strategies for correlated noise, and their error."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from demur.mechanisms.correlated.sensitivity import Certified, Participation
from demur.mechanisms.correlated.workload import Workload

Array = NDArray[np.float64]


@runtime_checkable
class Strategy(Protocol):
    """A strategy: an invertible lower triangular C for a run of `iterations` steps."""

    @property
    def iterations(self) -> int:
        """How many steps the run has; there is no row beyond them."""
        ...

    @property
    def bands(self) -> int:
        """How many steps one step's gradient reaches: C[t, s] = 0 if t - s >= bands."""
        ...

    def matrix(self) -> Array:
        """C itself."""
        ...

    def sensitivity(self, participation: Participation) -> Certified:
        """How far C G moves, contributions having norm at most 1."""
        ...

    def errors(self, workload: Workload | None = None) -> Array:
        """The variance of each row of A C^-1 Z (default A: prefix sums)."""
        ...


def errors_of(matrix: Array, workload: Workload | None) -> Array:
    """Row norms of A C^-1, squared, by one triangular solve."""
    size = len(matrix)
    work = checked(workload, size)
    noise = np.linalg.solve(matrix.T, work.matrix().T)
    return np.asarray((noise**2).sum(axis=0))


def checked(workload: Workload | None, iterations: int) -> Workload:
    """The workload, prefix sums if none is given, of the right length."""
    if workload is None:
        return Workload.prefix_sums(iterations)
    if workload.iterations != iterations:
        raise ValueError(
            f"workload must have {iterations} steps, as the strategy has; got"
            f" {workload.iterations}"
        )
    return workload


def loss(
    strategy: Strategy,
    workload: Workload | None = None,
    *,
    participation: Participation | None = None,
    reduction: str = "mean",
) -> float:
    """Squared sensitivity times mean (or max) error: what optimisers minimise."""
    errors = strategy.errors(workload)
    chosen = participation or Participation(max_participations=1)
    squared = strategy.sensitivity(chosen).value ** 2
    return squared * float(reduce(errors, reduction))


def reduce(errors: Array, reduction: str) -> float:
    """The mean or the largest of the errors."""
    if reduction == "mean":
        return float(errors.mean())
    if reduction == "max":
        return float(errors.max())
    raise ValueError(f"reduction must be 'mean' or 'max'; got {reduction!r}")
