"""Row sources: rows and labels that are read chunk by chunk, in several passes.

An engine needs only sums over all rows (`Work`), so a row source may be a file that
does not fit into memory, or a table on other machines that sends partial sums back
(`totals`). The mathematics of a chunk is the same code as for rows in memory
(`solving.derivatives`, `class_sums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from demur.convex.rows.totals import (
    UNIT_ROUNDOFF,
    Chunk,
    Totals,
    Work,
    fingerprint_of,
)
from demur.core.bounds import clip_rows

Array = NDArray[np.float64]
_T = TypeVar("_T")

CHUNK = 4096
_NUMBERS_IN_A_CHUNK = 2**21  # 16 MiB of float64, where rows are wide
_CLIPPED_AT_ONCE = 256  # small enough for a core's cache: four times as fast
MOST_LABELS = 100_000


@dataclass(frozen=True, eq=False)
class Task:
    """What one pass does with each chunk: bound its rows, then sum `work` over them."""

    classes: NDArray[Any]
    norm_bound: float
    clip: bool
    work: Work

    def bounded(self, chunk: Chunk) -> Chunk:
        """The chunk with its fingerprint, its rows brought inside the bound in place.

        A row that cannot be bounded is refused.
        """
        rows, fingerprint = chunk.rows, fingerprint_of(chunk)
        for start in range(0, len(rows), _CLIPPED_AT_ONCE):
            some = rows[start : start + _CLIPPED_AT_ONCE]
            inside = clip_rows(some, self.norm_bound).data
            if not self.clip:
                refuse_long_rows(some, self.norm_bound)
            some[:] = inside
        return chunk._replace(fingerprint=fingerprint)


@runtime_checkable
class Rows(Protocol):
    """A description of rows and labels that `fit` takes in place of X and y."""

    def row_source(self) -> RowSource:
        """The source, its schema checked, ready to be read."""
        ...


def is_rows(given: object) -> TypeGuard[Rows]:
    """Whether these are `Rows`; a table with a column `row_source` is not."""
    return isinstance(given, Rows) and callable(given.row_source)


class RowSource(Protocol):
    """Rows and labels that can be read any number of times."""

    @property
    def columns(self) -> list[str]:
        """The columns of the features."""
        ...

    @property
    def width(self) -> int:
        """The number of features."""
        ...

    def label_counts(self) -> dict[Any, int]:
        """How often each label occurs; a missing one is an error."""
        ...

    def sample(self, task: Task, most: int) -> Chunk:
        """Up to `most` rows in memory, bounded, spread over the whole."""
        ...

    def totals(self, task: Task) -> Totals:
        """One pass over all rows."""
        ...


def refuse_long_rows(rows: Array, norm_bound: float) -> None:
    """Raise a ValueError where a row is longer than the bound."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if (norms > norm_bound).any():
        raise ValueError(
            f"X has rows longer than norm_bound={norm_bound:g}, and clip=False."
            " Use clip=True (rows are projected onto the ball, and radii stay valid),"
            " or a larger public bound."
        )


def additions(n: int) -> float:
    """The `additions` of `derivatives.rounding` for n rows, in any number of chunks."""
    return min(n, CHUNK) + 2.0 + 4.0 * float(n) ** 2 * UNIT_ROUNDOFF


def rows_at_once(width: int) -> int:
    """The number of rows of a chunk."""
    return max(1, min(CHUNK, _NUMBERS_IN_A_CHUNK // max(1, width)))


def rechunked(pieces: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """The same rows in chunks of `size`, so that a file's layout changes no sum."""
    waiting: list[Chunk] = []
    held = 0
    for piece in pieces:
        start = 0
        while held + len(piece.rows) - start >= size:
            stop = start + size - held
            part = Chunk(piece.rows[start:stop], piece.y[start:stop])
            yield _joined([*waiting, part])
            waiting, held, start = [], 0, stop
        if start < len(piece.rows):
            waiting.append(Chunk(piece.rows[start:], piece.y[start:]))
            held += len(piece.rows) - start
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Chunk]) -> Chunk:
    if len(parts) == 1:
        return parts[0]
    return Chunk(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.y for part in parts]),
    )


def gathered(chunks: Iterable[Chunk], most: int, width: int) -> Chunk:
    """Up to `most` rows in one piece, without holding them twice."""
    rows, y = np.empty((most, width)), np.empty(most, dtype=np.intp)
    filled = 0
    for chunk in chunks:
        take = min(len(chunk.rows), most - filled)
        rows[filled : filled + take] = chunk.rows[:take]
        y[filled : filled + take] = chunk.y[:take]
        filled += take
    return Chunk(rows[:filled], y[:filled])


def prefetched(items: Iterable[_T]) -> Iterator[_T]:
    """The items; a thread makes the next one while one is worked on."""
    iterator = iter(items)
    done = object()
    with ThreadPoolExecutor(max_workers=1) as worker:
        coming = worker.submit(next, iterator, done)
        while (item := coming.result()) is not done:
            coming = worker.submit(next, iterator, done)
            yield item  # type: ignore[misc]
