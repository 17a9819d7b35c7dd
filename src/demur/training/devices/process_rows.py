"""Rows that lie with the processes of a run: each reads its own, none is moved.

The rows of a run are those of process 0, then those of process 1, and so on; `counts`
are public. Batches are drawn over all of them, by every process alike, from key and
step. In a physical batch each process has as many slots as any other: they hold the
rows that are drawn of its own, in the order they were drawn, and padding after. So how
many of a batch's rows are whose is known to the processes, as the batch is, and to
nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from demur.core import validate
from demur.training.data import Data, UserData, as_data
from demur.training.devices.processes import Processes


@dataclass(frozen=True, eq=False, repr=False)
class ProcessRows:
    """The rows of this process; process p has `counts[p]` of them, no two the same.

    `data` is anything that `as_data` takes: files on this machine's disk, say. The
    counts are public and the same in every process. Each record has to be with one
    process: equal rows in equal order are refused, but a shuffled copy, or files that
    overlap in part, are not seen, and their records would be drawn more often than the
    price says.

    >>> rows = ProcessRows({"x": np.eye(3)}, counts=[3])
    >>> rows.count, rows.first
    (3, 0)
    """

    data: Any
    counts: Sequence[int]

    def __post_init__(self) -> None:
        if isinstance(self.data, UserData):
            raise TypeError(
                "ProcessRows takes records, not users: rows of one person may lie with"
                " several processes. Pass UserData with all rows to every process."
                " Nothing was spent."
            )
        counts = tuple(self.counts)
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int | np.integer):
                shown = validate.shorten(count)
                raise TypeError(f"counts must be whole numbers; got {shown}")
        object.__setattr__(self, "counts", tuple(int(count) for count in counts))

    def __repr__(self) -> str:
        return f"ProcessRows(counts={self.counts})"

    @property
    def process(self) -> int:
        """The number of this process among those that have rows."""
        return jax.process_index() if len(self.counts) > 1 else 0

    def opened(self) -> ProcessRows:
        """With the rows at hand; `fit` asks for it, so that a failure is told to all.

        Refuses another number of rows than was said.
        """
        rows = as_data(self.data)
        if len(self.counts) not in (1, jax.process_count()):
            raise ValueError(
                f"counts must say how many rows each of {jax.process_count()} processes"
                f" has; got {len(self.counts)} counts. Nothing was spent."
            )
        said = self.counts[self.process]
        if len(rows) != said:
            raise ValueError(
                f"counts[{self.process}] must be the number of rows of that process,"
                f" {len(rows)}; got {said}. Nothing was spent."
            )
        return ProcessRows(rows, self.counts)

    @property
    def count(self) -> int:
        """How many rows all processes have."""
        return sum(self.counts)

    @property
    def first(self) -> int:
        """The number of this process's first row."""
        return sum(self.counts[: self.process])

    def take(self, indices: NDArray[Any]) -> Any:
        """Rows of this process by their numbers, zeros where a number is -1."""
        rows: Data = self.data
        own = indices[indices >= 0]
        if own.size and not (
            self.first <= own.min() and own.max() < self.first + len(rows)
        ):
            raise IndexError("a row of another process was asked for")
        return rows.take(np.where(indices < 0, -1, indices - self.first))

    def by_process(self, indices: NDArray[Any]) -> list[NDArray[Any]]:
        """A batch, cut by whose rows they are, each part in the order it was drawn."""
        ends = np.cumsum(self.counts)
        owner = np.searchsorted(ends, indices, side="right")
        return [indices[owner == process] for process in range(len(self.counts))]

    def check_contiguous(self, sharding: NamedSharding) -> None:
        """Refuse a mesh that does not give each process one run of a batch's rows."""
        size = sharding.mesh.size
        share = size // len(self.counts)
        where: dict[Any, Any] = dict(sharding.devices_indices_map((size,)))
        for device, (index,) in where.items():
            start, stop, _ = index.indices(size)
            if {start // share, (stop - 1) // share} != {device.process_index}:
                raise ValueError(
                    "with ProcessRows each process must have one run of a batch's rows,"
                    " in the order of the processes: take a mesh whose first axis goes"
                    " through the processes in order, and cut batches along it"
                    " (batch_axes). Nothing was spent."
                )

    def joint_digest(self, group: Processes, digest: str) -> str:
        """A digest of all processes' rows, of that of each; the same rows are refused.

        A record that is with two processes would enter a step twice.
        """
        own = np.frombuffer(bytes.fromhex(digest), np.uint8)
        seen: dict[bytes, int] = {}
        every = group.every(own)
        for process, found in enumerate(every):
            other = seen.setdefault(found.tobytes(), process)
            if other != process and self.counts[process]:
                raise ValueError(
                    f"processes {other} and {process} hold the same rows, and each"
                    " record must be with one process: give each its own files."
                    " Nothing was spent."
                )
        return every.tobytes().hex()
