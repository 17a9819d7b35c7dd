"""Gaussian noise on each point: a baseline, with a delta, for local reports.

A row moves by r when its record does, and by sqrt(d) at most inside the cube: the
report of one record is a Gaussian mechanism of sensitivity min(r, sqrt d), and that
whole curve is what is declared. sigma is the least at which any replacement costs
(epsilon sqrt(d), delta), the price of multivariate Laplace at the same epsilon. A move
by r < sqrt(d) then costs less than epsilon r at that delta, because the epsilon of a
Gaussian grows faster than its mu: the comparison is fair at a replacement and leaves
the baseline some privacy unspent below it.

**One row, one Gaussian.** Rows are rounded to the grid and get noise independently.
In neighbouring datasets, which differ in one record, all other reports have the same
law, whatever the sampler's error, so both the grid's cost (grid sqrt(d)) and the
statistical distance of the sampler count the d coordinates of one row, not all n of
them. That distance is multiplied by e^epsilon in delta: from an epsilon of about 200
for any replacement on (25 for each unit of distance in 64 dimensions) no delta is
large enough for it, and ledgers decline.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.adjacency import ReplaceOne
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.rounding import down
from demur.ledger import Budget, Ledger, ledger_or_in_memory
from demur.mechanisms.bpm.mechanism import root_up
from demur.mechanisms.gaussian import Gaussian
from demur.mechanisms.reports import (
    ASSUMPTIONS,
    BOUNDS,
    UNPROTECTED,
    OneByOne,
    RowIds,
    Values,
    coordinates,
)
from demur.mechanisms.sampling.rounded_gaussian import FURTHER_WORDS, rounded_gaussian
from demur.mechanisms.sampling.row_streams import RowStreams

DELTA = 1e-6
_ROWS_AT_ONCE = 1 << 16  # the words of more would take more memory than the rows


@dataclass(frozen=True)
class GaussianReports(OneByOne):
    """Reports v + N(0, sigma^2 I), (epsilon sqrt(d), delta)-private for a replacement.

    >>> round(GaussianReports(epsilon=4.0, dimension=2).sigma, 3)
    1.244
    """

    stream: ClassVar[str] = "gaussian rows"

    epsilon: float
    dimension: int
    delta: float = DELTA
    sigma: float = field(init=False)

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.count(dimension=self.dimension)
        validate.open_probability(delta=self.delta)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "dimension", int(self.dimension))
        object.__setattr__(self, "delta", float(self.delta))
        sigma = self._row("cube").sigma
        assert isinstance(sigma, float)
        object.__setattr__(self, "sigma", sigma)

    @property
    def total(self) -> float:
        """The epsilon of any replacement."""
        return down(self.epsilon * math.sqrt(self.dimension))

    @property
    def reach(self) -> float:
        """How far outside [0, 1] a coordinate of a report can lie.

        No noise exceeds 37 sigma and two steps of the grid (`rounded_gaussian`); a
        point moves by half a step to the grid, and a step is at most sigma.
        """
        return 40.0 * self.sigma

    def _row(self, space: str) -> Gaussian:
        """The mechanism of one row."""
        diameter = root_up(self.dimension)
        return Gaussian.calibrated(
            epsilon=self.total,
            delta=self.delta,
            sensitivity={
                ReplaceOne(): diameter,
                space: PiecewiseLinear.linear(1.0, cap=diameter),
            },
            unit=ReplaceOne(),
            dimension=self.dimension,
            name=(
                f"Gaussian noise on each of {self.dimension} coordinates, one report"
                f" for each record ({self.total:.4g}, {self.delta:g} for any"
                " replacement)"
            ),
            bounds=BOUNDS,
            unprotected=UNPROTECTED,
            assumptions=ASSUMPTIONS,
        )

    def log_density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """log density of the report x of v."""
        at = coordinates("v", v, self.dimension)
        to = coordinates("x", x, self.dimension)
        square = ((to - at) ** 2).sum(axis=-1) / self.sigma**2
        constant = self.dimension * math.log(2 * math.pi * self.sigma**2)
        return np.asarray(-0.5 * (square + constant))

    def declaration(self, space: str = "cube") -> Declaration:
        """Cost, sampler distance and fine print of one row."""
        validate.name(space=space)
        return replace(self._row(space).declaration(), fingerprint=self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        kind = f"gaussian rows {type(self).__qualname__}"
        return fingerprint_of(kind, self.sigma, self.dimension)

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        row = self._row("cube")
        assert isinstance(row.grid, float)
        grid, scale = row.grid, self.sigma / row.grid
        reports = np.empty_like(matrix)
        for start in range(0, len(matrix), _ROWS_AT_ONCE):
            here = slice(start, start + _ROWS_AT_ONCE)
            words = streams.words(ids[here], 0, self.dimension)
            noise = rounded_gaussian(
                words.size,
                scale,
                io.BytesIO(words.astype("<u8").tobytes()),
                _further(streams, ids[here], self.dimension),
            )
            index = np.rint(matrix[here] / grid).astype(np.int64)
            index += noise.reshape(index.shape)
            reports[here] = index.astype(np.float64) * grid
        return reports

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills."""
        validate.name(space=space)
        self._row("cube").check(np.ones(self.dimension))
        return ledger_or_in_memory(
            ledger, Budget(self.total, self.delta), unit=ReplaceOne()
        )


def _further(
    streams: RowStreams, ids: RowIds, dimension: int
) -> Callable[[int], io.BytesIO]:
    """The stream of further bits for coordinate i of the words laid end to end."""

    def refine(i: int) -> io.BytesIO:
        row, word = divmod(i, dimension)
        bits = [
            streams.further_bits(int(ids[row]), word, level)
            for level in range(1, FURTHER_WORDS + 1)
        ]
        return io.BytesIO(b"".join(b.to_bytes(8, "little") for b in bits))

    return refine
