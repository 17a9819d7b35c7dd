"""Available examples: those that a min-separated batch may draw from."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from demur.core.entropy import Stream
from demur.training.batches import subsets
from demur.training.batches.binomial import binomial_table


class AvailableExamples:
    """The examples that may be drawn, in no particular order.

    The number drawn is Binomial(available, p). A table for every number of available
    examples would cost more than the batch, so a Poisson sample is drawn of the places
    of the next power of two and those beyond the last example are dropped: a Poisson
    sample restricted to part of its places is a Poisson sample. A draw costs as much
    as the batch is large.
    """

    def __init__(self, n: int) -> None:
        self._members = subsets.identity(n)
        self._count = n
        self._places = subsets.identity(1 << max(n - 1, 0).bit_length())

    def take(self, p: Fraction, stream: Stream) -> NDArray[np.int32]:
        """Draw each available example with probability p, and block those drawn."""
        available = self._count
        if p == 1:
            count = available
        else:
            places = self._places[: 1 << max(available - 1, 0).bit_length()]
            sampled = binomial_table(len(places), p).draw(stream)
            inside = subsets.subset(places, sampled, stream) < available
            count = int(np.count_nonzero(inside))
        members = self._members[:available]
        subsets.move_subset_to_front(members, count, stream)
        taken = members[:count].copy()
        # Fill the gap with as many from the end; what lies behind them is unused.
        moved = min(count, available - count)
        members[:moved] = members[available - moved : available].copy()
        self._count = available - count
        return taken

    def put_back(self, members: NDArray[np.int32]) -> None:
        """Make examples available again."""
        self._members[self._count : self._count + len(members)] = members
        self._count += len(members)
