"""Randomised response over the cells of a grid: a pure local baseline without a metric.

The cube is cut into m = 2^(b d) equal cells. A report is the middle of a cell: the
point's own with probability s + (1 - s) / m, any other with (1 - s) / m (k-ary
randomised response; Kairouz, Bonawitz, Ramage 2016). The likelihood ratio of two points
is at most

    1 + m s / (1 - s)  <=  e^epsilon    for  s <= (e^epsilon - 1) / (e^epsilon - 1 + m),

whatever their distance: pure epsilon for any replacement, and a move by r costs the
same, unless it stays in its cell. It says how much of BPM's utility comes from the
shape of its noise.

**Finite precision.** s = T / 2^64 with T rounded down from a lower bound of e^epsilon,
in integers: the own cell is kept where a 64-bit word is below T, and otherwise the
cell is b d further bits, uniform because m is a power of two. So the law that is drawn
is exactly the one above, and a ledger with delta = 0 takes it. Which cell a point is in
is decided by floor(2^b x), exact in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.accounting.events import Pure
from demur.core.adjacency import ReplaceOne
from demur.core.cost import Fixed
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.rounding import down
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.reports import (
    OneByOne,
    RowIds,
    Values,
    coordinates,
    declared,
)
from demur.mechanisms.sampling.row_streams import RowStreams

_WORD = 64
_LARGEST_EPSILON = 40.0  # from here on a word cannot tell s from 1


@dataclass(frozen=True)
class GridResponse(OneByOne):
    """The point's cell of a grid of 2^bits cells a side, or a random one.

    `epsilon` is the price of any replacement.

    >>> round(GridResponse(epsilon=4.0, dimension=2, bits=3).kept, 3)
    0.456
    """

    stream: ClassVar[str] = "grid response rows"

    epsilon: float
    dimension: int
    bits: int = 3

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.count(dimension=self.dimension, bits=self.bits)
        if self.epsilon > _LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must be at most {_LARGEST_EPSILON:g} for randomised"
                f" response; got {self.epsilon:g}. Nothing was spent."
            )
        if self.bits * self.dimension > _WORD:
            raise ValueError(
                f"bits * dimension must be at most {_WORD}; got {self.bits} bits in"
                f" {self.dimension} dimensions. Choose fewer bits. Nothing was spent."
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "dimension", int(self.dimension))
        object.__setattr__(self, "bits", int(self.bits))

    @property
    def cells(self) -> int:
        """m, the number of cells."""
        return 1 << (self.bits * self.dimension)

    @cached_property
    def threshold(self) -> int:
        """T: the own cell is kept where a 64-bit word is below it."""
        # exp is off by less than an ulp; four make this a lower bound.
        gain = Fraction(down(math.exp(self.epsilon), 4)) - 1
        share = max(gain, Fraction(0)) / (max(gain, Fraction(0)) + self.cells)
        return math.floor(share * 2**_WORD)

    @property
    def kept(self) -> float:
        """s, the probability that the own cell is kept on purpose."""
        return self.threshold / 2.0**_WORD

    @property
    def reach(self) -> float:
        """Reports lie in the cube."""
        return 0.0

    def _cell_of(self, points: Values) -> Values:
        """The middle of the cell of each point."""
        side = 1 << self.bits
        index = np.minimum(np.floor(points * side), side - 1)
        return np.asarray((index + 0.5) / side)

    def log_density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """log of the probability of the report x, over the volume of a cell."""
        at = self._cell_of(coordinates("v", v, self.dimension))
        to = self._cell_of(coordinates("x", x, self.dimension))
        rest = (1.0 - self.kept) / self.cells
        own = np.where((at == to).all(axis=-1), self.kept, 0.0)
        return np.asarray(np.log(own + rest) + math.log(self.cells))

    def declaration(self, space: str = "cube") -> Declaration:
        """Cost and fine print: epsilon for any replacement, and for any move."""
        validate.name(space=space)
        name = (
            f"randomised response over {self.cells} cells in {self.dimension}"
            " dimensions, one report for each record (pure epsilon"
            f" {self.epsilon:g} for any replacement)"
        )
        return declared(
            name, (Fixed(ReplaceOne(), Pure(self.epsilon)),), self.fingerprint
        )

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        kind = f"grid response {type(self).__qualname__}"
        return fingerprint_of(kind, self.epsilon, self.dimension, self.bits)

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        return self.respond(matrix, streams.words(ids, 0, 2))

    def respond(self, matrix: Values, words: RowIds) -> Values:
        """Reports from two words for each row: whether to keep, and which cell else."""
        keep = words[:, 0] < np.uint64(self.threshold)
        shifts = np.arange(self.dimension, dtype=np.uint64) * np.uint64(self.bits)
        mask = np.uint64((1 << self.bits) - 1)
        other = (words[:, 1:2] >> shifts) & mask
        anywhere = (other.astype(np.float64) + 0.5) / (1 << self.bits)
        return np.where(keep[:, None], self._cell_of(matrix), anywhere)

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills."""
        return ledger_for(ledger, self.declaration(space), unit=ReplaceOne())
