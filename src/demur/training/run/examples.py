"""The rows of a run, and the batches that a plan draws of them or of their users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core.entropy import NoiseKey
from demur.training.batches.user_selection import UserSelectionStrategy
from demur.training.data import Data, UserData, as_data
from demur.training.devices.placement import Placement
from demur.training.devices.process_rows import ProcessRows
from demur.training.devices.processes import Processes
from demur.training.plans.plan import DPExecutionPlan


@dataclass(frozen=True, eq=False)
class RunExamples:
    """The rows of a run, and the units that batches are formed of: rows, or users."""

    rows: Data
    ids: ArrayLike | None = None
    per_user: int = 1
    own: ProcessRows | None = None  # where `rows` are those of this process alone

    @classmethod
    def of(cls, data: Any) -> RunExamples:
        """The rows of `data`, and their owners where it is grouped by user."""
        if isinstance(data, UserData):
            return cls(data.data, data.ids, data.examples)
        if isinstance(data, ProcessRows):
            own = data.opened()
            return cls(own.data, own=own)
        return cls(as_data(data))

    @property
    def count(self) -> int:
        """How many rows or users there are, with all processes."""
        if self.own is not None:
            return self.own.count
        return len(self.rows) if self.ids is None else len(np.unique(self.ids))

    def structs(self, size: int, sharding: Any = None) -> Any:
        """Shapes and dtypes of a batch of `size` rows or users."""
        width = () if self.ids is None else (self.per_user,)
        return self.rows.structs((size, *width), sharding)

    def batches(
        self, plan: DPExecutionPlan, key: NoiseKey, start: int
    ) -> Iterator[NDArray[Any]]:
        """The plan's batches from step `start` on."""
        selection = plan.batch_selection_strategy
        if isinstance(selection, UserSelectionStrategy):
            assert self.ids is not None
            return selection.batch_iterator(self.ids, key, start=start)
        if self.ids is None:
            return selection.batch_iterator(self.count, key, start=start)
        users = UserSelectionStrategy(selection, self.per_user)
        return users.batch_iterator(self.ids, key, start=start)

    def checked_own(
        self, group: Processes, placement: Placement, plan: DPExecutionPlan
    ) -> ProcessRows | None:
        """This process's rows, where each has its own; refused where that fails."""
        own, rows = self.own, placement.row_sharding
        if own is None:
            return None
        if len(own.counts) != group.count:
            raise ValueError(
                f"counts must say how many rows each of {group.count} processes has;"
                f" got {len(own.counts)} counts. Nothing was spent."
            )
        if plan.noise_addition_transform.spec.hardened:
            raise ValueError(
                "noise='lattice' pays for the rounding of as many rows as a batch has,"
                " and ProcessRows add padding in each process: take noise='threefry',"
                " or pass all rows to every process. Nothing was spent."
            )
        if rows is not None:
            own.check_contiguous(rows)
        return own
