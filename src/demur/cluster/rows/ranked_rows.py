"""Random subsamples of rows by a keyed rank of the row id.

A decoder needs two things: sums over all reports, and a random sample of them. Neither
depends on where reports are stored, in which order, or how they are cut into batches:
sums are exact (`exact_sums`), and whether a report is in the sample depends on its row
id alone.

The sample: every row gets a 64-bit rank, the first word of ChaCha20 under (key, row id)
(`mechanisms.sampling.row_streams`), and the `count` smallest ranks are taken, in the
order of their ranks; equal ranks (one pair among 2^32 rows) in that of their ids. Under
a random key the ranks of different rows are independent and uniform, up to the
distinguishability of ChaCha20 from random: every set of `count` rows is equally likely,
in every order, whatever the ids. The smallest of all are among the smallest of each
batch, so batches can be asked one by one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from demur.cluster.rows.exact_sums import PartialSums, Summable
from demur.mechanisms.reports import ReportMechanism, RowIds
from demur.mechanisms.sampling.row_streams import KEY_BYTES, RowStreams

Array = NDArray[np.float64]
Ranks = NDArray[np.uint64]

LAST_RANK = 2**64 - 1
_BATCH = 1 << 18  # rows ranked at a time


class RankedRows(Summable, Protocol):
    """Rows with ids, in memory or elsewhere."""

    def ranked_up_to(self, key: bytes, last: int) -> tuple[RowIds, Array]:
        """Ids and values of the rows whose rank is at most `last`, in any order."""
        ...


@runtime_checkable
class RemoteReports(RankedRows, Protocol):
    """Local reports of one mechanism that are stored elsewhere, as on Spark.

    They are checked as `Reports` checks them, and their ids all differ.
    """

    @property
    def mechanism(self) -> ReportMechanism:
        """The mechanism that drew them."""
        ...


@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Rows in memory."""

    values: Array
    row_ids: RowIds

    def __post_init__(self) -> None:
        # In another layout numpy adds up a row's coordinates in another order.
        object.__setattr__(self, "values", np.ascontiguousarray(self.values))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.values), self.values.shape[1]

    def over(self, work: Callable[[Array], PartialSums]) -> PartialSums:
        """One batch: all of them."""
        return work(self.values)

    def ranked_up_to(self, key: bytes, last: int) -> tuple[RowIds, Array]:
        """Ids and values of the rows whose rank is at most `last`."""
        if last >= LAST_RANK:
            return self.row_ids, self.values
        places = [
            start + np.flatnonzero(ranks(key, ids) <= np.uint64(last))
            for start in range(0, len(self.values), _BATCH)
            if len(ids := self.row_ids[start : start + _BATCH])
        ]
        chosen = np.concatenate([np.empty(0, dtype=np.intp), *places])
        return self.row_ids[chosen], self.values[chosen]


def ranks(key: bytes, row_ids: RowIds) -> Ranks:
    """The rank of each row id."""
    return RowStreams(key).words(row_ids, 0, 1)[:, 0]


def new_key(rng: np.random.Generator) -> bytes:
    """A key for ranks, as public as the reports that it chooses."""
    return rng.bytes(KEY_BYTES)


def subsample(rows: RankedRows, key: bytes, count: int) -> RowsInMemory:
    """The `count` rows of the smallest ranks (or all, if fewer), in that order."""
    size = min(count, rows.shape[0])
    last = _enough(size, rows.shape[0])
    ids, values = rows.ranked_up_to(key, last)
    while len(ids) < size and last < LAST_RANK:
        last = min(2 * last, LAST_RANK)
        ids, values = rows.ranked_up_to(key, last)
    if len(ids) < size:
        raise RuntimeError(
            f"only {len(ids)} of {rows.shape[0]} reports are left: they changed while"
            " they were read"
        )
    order = np.lexsort((ids, ranks(key, ids)))[:size]
    return RowsInMemory(values[order], ids[order])


def in_order(rows: RankedRows) -> RowsInMemory:
    """All rows, brought into memory in the order of their ids."""
    ids, values = rows.ranked_up_to(bytes(KEY_BYTES), LAST_RANK)
    order = np.argsort(ids)
    return RowsInMemory(values[order], ids[order])


def shuffled(rows: RankedRows) -> tuple[RowsInMemory, np.random.Generator]:
    """All rows in an order that follows from their values, and a generator that does.

    Both are the same in whatever order the rows lie and whatever their ids are: rows
    are sorted by value, and a generator that is seeded by them puts them into a random
    order. All rows are brought into memory. They are reports, and as public.
    """
    values = np.ascontiguousarray(rows.ranked_up_to(bytes(KEY_BYTES), LAST_RANK)[1])
    values = values + 0.0  # -0 is 0
    values = values[np.lexsort(values.T[::-1])]
    digest = hashlib.sha256(values.tobytes()).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    return RowsInMemory(
        rng.permutation(values), np.arange(len(values), dtype=np.uint64)
    ), rng


def _enough(size: int, count: int) -> int:
    """A rank below which at least `size` of `count` rows lie, except once in a million.

    Their number is binomial; five deviations more than `size` are expected.
    """
    wanted = size + 5.0 * math.sqrt(size) + 25.0
    return LAST_RANK if wanted >= count else int(wanted / count * 2.0**64)
