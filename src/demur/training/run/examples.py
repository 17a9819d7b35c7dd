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
from demur.training.plans.plan import DPExecutionPlan


@dataclass(frozen=True, eq=False)
class RunExamples:
    """The rows of a run, and the units that batches are formed of: rows, or users."""

    rows: Data
    ids: ArrayLike | None = None
    per_user: int = 1

    @classmethod
    def of(cls, data: Any) -> RunExamples:
        """The rows of `data`, and their owners where it is grouped by user."""
        if isinstance(data, UserData):
            return cls(data.data, data.ids, data.examples)
        return cls(as_data(data))

    @property
    def count(self) -> int:
        """How many rows or users there are."""
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
            return selection.batch_iterator(len(self.rows), key, start=start)
        users = UserSelectionStrategy(selection, self.per_user)
        return users.batch_iterator(self.ids, key, start=start)
