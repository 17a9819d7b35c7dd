"""The Spark task that draws local reports of its rows.

A report is a function of (key of the rows, row id, point). It does not depend on the
task: not on its partition, its attempt, its executor, nor on what ran before.

An executor may have another version of demur, or a processor whose `exp` ends in other
bits. Attempts there and elsewhere would be two reports of one row. So each task draws a
few fixed rows under a public key first, and must get what the driver got. It also
compares its mechanism with the one that was paid for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demur.adapters.spark.checked_rows import points_and_ids
from demur.core.errors import DemurError, NotPaidFor
from demur.mechanisms.reports import RowMechanism
from demur.mechanisms.sampling.row_streams import KEY_BYTES, RowStreams

if TYPE_CHECKING:
    from demur.adapters.spark.shares import TaskKey

_PROBES = 64


def probe(mechanism: RowMechanism) -> str:
    """A digest of what this machine draws for fixed points under a public key."""
    shape = _PROBES, mechanism.dimension
    points = np.linspace(0.0, 1.0, shape[0] * shape[1]).reshape(shape)
    ids = np.arange(_PROBES, dtype=np.uint64)
    drawn = mechanism.draw_rows(points, ids, RowStreams(bytes(KEY_BYTES)))
    return hashlib.sha256(drawn.tobytes()).hexdigest()


@dataclass(frozen=True, repr=False)
class ReportTask:
    """Draws reports of the rows (id, coordinates ...) of each batch; it is pickled."""

    mechanism: RowMechanism
    names: tuple[str, ...]
    key: TaskKey
    expected: str  # the driver's probe
    paid_for: str  # the fingerprint of the entry's declaration
    drawn: Any = None  # Spark's counter of rows that tasks have drawn

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The reports of one partition, batch by batch."""
        if self.mechanism.fingerprint != self.paid_for:
            raise NotPaidFor(
                "these reports were paid for with another mechanism or other"
                " parameters. Nothing was drawn here."
            )
        streams = RowStreams(self.key.combined())
        if probe(self.mechanism) != self.expected:
            raise DemurError(
                "this executor draws other reports than the driver: it has another"
                " version of demur or its libraries, or another kind of processor, and"
                " a task that runs twice could give two reports of one row. Use the"
                " same everywhere. Nothing was drawn here."
            )
        for batch in batches:
            if not batch.num_rows:
                continue
            matrix, ids = points_and_ids(batch)
            values = self.mechanism.draw_rows(matrix, ids, streams)
            if self.drawn is not None:
                self.drawn.add(batch.num_rows)
            columns = [pa.array(column) for column in np.ascontiguousarray(values.T)]
            yield pa.RecordBatch.from_arrays(
                [batch.column(0), *columns], names=list(self.names)
            )
