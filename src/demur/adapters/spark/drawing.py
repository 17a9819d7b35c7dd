"""What a Spark task does with its rows: the engine's kernel on one Arrow batch.

A report is a function of (key of the rows, row id, point). Nothing of the task enters:
not its partition, its attempt, its executor, nor what ran before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from demur.adapters.spark.survey import rows_of
from demur.mechanisms.reports import RowMechanism
from demur.mechanisms.row_streams import RowStreams

if TYPE_CHECKING:
    from demur.adapters.spark.shares import Borrowed


@dataclass(frozen=True, repr=False)
class Draw:
    """Reports of the rows (id, coordinates ...) of each batch; pickled into tasks."""

    mechanism: RowMechanism
    names: tuple[str, ...]
    borrowed: Borrowed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The reports of one partition, batch by batch."""
        streams = RowStreams(self.borrowed.key())
        for batch in batches:
            if not batch.num_rows:
                continue
            matrix, ids = rows_of(batch)
            values = self.mechanism.draw_rows(matrix, ids, streams)
            columns = [pa.array(column) for column in np.ascontiguousarray(values.T)]
            yield pa.RecordBatch.from_arrays(
                [batch.column(0), *columns], names=list(self.names)
            )
