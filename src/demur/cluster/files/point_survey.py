"""The first pass over a file of points: every row checked, and what they were.

A digest of all rows binds the charge to them; one of each batch lets the second pass
see that it reads the very same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from demur.cluster.errors import InputChanged
from demur.cluster.files.point_tables import Batch, PointTable, RowIds, Values
from demur.core.digest import digest_of_rows

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Survey:
    """What the first pass found: all of it secret but the number of rows."""

    rows: int
    digest: str
    batches: tuple[str, ...]

    def __repr__(self) -> str:
        return "Survey(<secret>)"


class Digest:
    """Of rows and their names, however they are cut into batches."""

    def __init__(self, what: str, dimension: int) -> None:
        self._what, self._dimension, self.rows = what, dimension, 0
        self._values, self._ids = hashlib.sha256(), hashlib.sha256()

    def add(self, values: Values, ids: RowIds) -> None:
        """Some more rows."""
        self._values.update(np.ascontiguousarray(values, dtype="<f8").data)
        self._ids.update(np.ascontiguousarray(ids, dtype="<u8").data)
        self.rows += len(values)

    def text(self) -> str:
        """The digest of all that was added."""
        whole = hashlib.sha256(
            f"bpm file of {self._what} {self.rows} {self._dimension}\x00".encode()
        )
        whole.update(self._values.digest())
        whole.update(self._ids.digest())
        return whole.hexdigest()


def batch_digest(batch: Batch) -> str:
    """Of the rows of one batch and their names: what a key of the batch is bound to."""
    return digest_of_rows("points", batch.points, batch.row_ids)


def survey(table: PointTable, tell: Progress) -> Survey:
    """Check every row and remember what they were, in 32 bytes for each batch."""
    total = table.rows
    whole = Digest("points", table.dimension)
    batches: list[str] = []
    increasing, last = True, -1
    for batch in table.batches():
        whole.add(batch.points, batch.row_ids)
        batches.append(batch_digest(batch))
        ids = batch.row_ids
        increasing &= int(ids[0]) > last and bool((ids[1:] > ids[:-1]).all())
        last = int(ids[-1])
        tell("checking", whole.rows, total)
    if not whole.rows:
        raise ValueError(f"{table.path.name} holds no rows. Nothing was spent.")
    if not increasing:
        _must_differ(table, whole.rows, batches)
    return Survey(whole.rows, whole.text(), tuple(batches))


def _must_differ(table: PointTable, rows: int, batches: Sequence[str]) -> None:
    """Read the ids again, of the very same batches, and sort them in place."""
    found = np.empty(rows, dtype=np.uint64)
    expected, done = iter(batches), 0
    for batch in table.batches():
        if next(expected, None) != batch_digest(batch):
            raise InputChanged(
                f"{table.path.name} changed while it was read. Nothing was spent."
            )
        found[done : done + len(batch.row_ids)] = batch.row_ids
        done += len(batch.row_ids)
    found.sort()
    if done != rows or (found[1:] == found[:-1]).any():
        raise ValueError(
            f"the id column {table.id_column!r} must not hold an id twice: two rows of"
            " one id would share their noise. Nothing was spent."
        )
