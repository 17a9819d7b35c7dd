"""The examples that are free to be drawn, when some sit out for a while."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from demur.core.entropy import Stream
from demur.training.batches import subsets
from demur.training.batches.binomial import binomial_table


class Pool:
    """The examples that are free, in no particular order; taking costs what it takes.

    The number taken is Binomial(free, p). A table for every number of free examples
    would cost more than the batch, so a Poisson sample is drawn of the places of the
    next power of two and those beyond the pool are dropped: what is left of a Poisson
    sample on part of its ground is a Poisson sample.
    """

    def __init__(self, n: int) -> None:
        self._members = subsets.identity(n)
        self._free = n
        self._places = subsets.identity(1 << max(n - 1, 0).bit_length())

    def take(self, p: Fraction, stream: Stream) -> NDArray[np.int32]:
        """Draw each free example with probability p; those drawn are free no more."""
        free = self._free
        if p == 1:
            count = free
        else:
            places = self._places[: 1 << max(free - 1, 0).bit_length()]
            sampled = binomial_table(len(places), p).draw(stream)
            inside = subsets.subset(places, sampled, stream) < free
            count = int(np.count_nonzero(inside))
        members = self._members[:free]
        subsets.move_subset_to_front(members, count, stream)
        taken = members[:count].copy()
        # Fill the gap with as many from the end; the tail of the pool is unused.
        moved = min(count, free - count)
        members[:moved] = members[free - moved : free].copy()
        self._free = free - count
        return taken

    def put_back(self, members: NDArray[np.int32]) -> None:
        """Make examples free again."""
        self._members[self._free : self._free + len(members)] = members
        self._free += len(members)
