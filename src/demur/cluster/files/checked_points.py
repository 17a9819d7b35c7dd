"""Checks and digests of a file of points: the first pass of a report job.

A digest of all rows binds the charge to them; one of each batch lets the second pass
check that it reads the same batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from demur.cluster.errors import InputChanged
from demur.cluster.files.point_tables import PointBatch, PointTable, RowIds, Values
from demur.core.digest import digest_of_rows, increasing

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, repr=False)
class CheckedPoints:
    """Rows that were checked: their number, and their digests, which are secret."""

    rows: int
    digest: str
    batches: tuple[str, ...]


class FileDigest:
    """A digest of rows and their ids, however they are cut into batches."""

    def __init__(self, what: str, dimension: int) -> None:
        self._what, self._dimension, self.rows = what, dimension, 0
        self._values, self._ids = hashlib.sha256(), hashlib.sha256()

    def add(self, values: Values, ids: RowIds) -> None:
        """Add the next rows."""
        self._values.update(np.ascontiguousarray(values, dtype="<f8").data)
        self._ids.update(np.ascontiguousarray(ids, dtype="<u8").data)
        self.rows += len(values)

    def text(self) -> str:
        """The digest of all rows added so far, in hexadecimal."""
        whole = hashlib.sha256(
            f"bpm file of {self._what} {self.rows} {self._dimension}\x00".encode()
        )
        whole.update(self._values.digest())
        whole.update(self._ids.digest())
        return whole.hexdigest()


def batch_digest(batch: PointBatch) -> str:
    """The digest of one batch of rows and ids: what a key for the batch is bound to."""
    return digest_of_rows("points", batch.points, batch.row_ids)


def check_point_table(table: PointTable, progress: Progress) -> CheckedPoints:
    """Check every row and take the digests, 32 bytes for each batch."""
    total = table.rows
    whole = FileDigest("points", table.dimension)
    batches: list[str] = []
    in_order, last = True, -1
    for batch in table.batches():
        whole.add(batch.points, batch.row_ids)
        batches.append(batch_digest(batch))
        in_order &= int(batch.row_ids[0]) > last and increasing(batch.row_ids)
        last = int(batch.row_ids[-1])
        progress("checking", whole.rows, total)
    if not whole.rows:
        raise ValueError(f"{table.path.name} holds no rows. Nothing was spent.")
    if not in_order:
        _check_ids(table, whole.rows, batches)
    return CheckedPoints(whole.rows, whole.text(), tuple(batches))


def _check_ids(table: PointTable, rows: int, batches: Sequence[str]) -> None:
    """Refuse an id that occurs twice: read the same batches again and sort the ids."""
    ids = np.empty(rows, dtype=np.uint64)
    expected, done = iter(batches), 0
    for batch in table.batches():
        if next(expected, None) != batch_digest(batch):
            raise InputChanged(
                f"{table.path.name} changed while it was read. Nothing was spent."
            )
        ids[done : done + len(batch.row_ids)] = batch.row_ids
        done += len(batch.row_ids)
    ids.sort()
    if done != rows or (ids[1:] == ids[:-1]).any():
        raise ValueError(
            f"the id column {table.id_column!r} must not hold an id twice: two rows of"
            " one id would share their noise. Nothing was spent."
        )
