"""Laplace noise on each coordinate: a baseline for local reports of whole vectors.

Each coordinate gets Laplace noise of rate epsilon / sqrt(d), so that

    log ratio <= epsilon / sqrt(d) * |v - v'|_1 <= epsilon |v - v'|_2

by Cauchy-Schwarz: the same epsilon-d_E guarantee as BPM and multivariate Laplace at the
same epsilon, and pure epsilon sqrt(d) for any replacement, as |v - v'|_1 <= d. The BPM
paper compares with rate epsilon / d instead. That is epsilon-local privacy of the whole
vector, which does not shrink with the distance. It is another guarantee, available here
as `LaplaceReports(epsilon / sqrt(d), d)`.

A coordinate's noise is BPM with L = infinity in one dimension, whose sampler is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.accounting.events import Pure
from demur.core.adjacency import ReplaceOne
from demur.core.cost import Fixed, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.rounding import product_up, quotient_down
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.bpm.mechanism import BPM, root_up
from demur.mechanisms.bpm.table import make_table
from demur.mechanisms.reports import (
    OneByOne,
    RowIds,
    Values,
    coordinates,
    declared,
)
from demur.mechanisms.sampling.row_streams import RowStreams


@dataclass(frozen=True)
class LaplaceReports(OneByOne):
    """Independent Laplace noise of rate epsilon / sqrt(d) on each of d coordinates.

    >>> LaplaceReports(epsilon=4.0, dimension=4).rate
    2.0
    """

    stream: ClassVar[str] = "laplace rows"

    epsilon: float
    dimension: int

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.count(dimension=self.dimension)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "dimension", int(self.dimension))

    @property
    def rate(self) -> float:
        """epsilon / sqrt(d), rounded down, so that the guarantee is exact."""
        return quotient_down(self.epsilon, root_up(self.dimension))

    @property
    def reach(self) -> float:
        """How far outside [0, 1] a coordinate of a report can lie."""
        return self._of_coordinate.reach

    @property
    def _of_coordinate(self) -> BPM:
        return BPM(self.rate, math.inf, 1)

    def log_density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """log density of the report x of v: a sum over coordinates."""
        at = coordinates("v", v, self.dimension)
        to = coordinates("x", x, self.dimension)
        total = self.rate * np.abs(to - at).sum(axis=-1)
        return np.asarray(self.dimension * math.log(self.rate / 2.0) - total)

    def declaration(self, space: str = "cube") -> Declaration:
        """Cost and fine print: over balls of `space`, and for any replacement."""
        validate.name(space=space)
        total = product_up(self.epsilon, root_up(self.dimension))
        if not math.isfinite(total):
            raise ValueError(
                f"epsilon must be smaller: {self.epsilon:g} times sqrt(d) is infinite,"
                " and no guarantee. Nothing was spent."
            )
        name = (
            f"Laplace noise of rate {self.rate:g} on each of {self.dimension}"
            " coordinates, one report for each record (pure epsilon"
            f" {self.epsilon:g} * r for a move by r, and {total:.4g} for any"
            " replacement)"
        )
        terms = (
            PureOverBalls(space, PiecewiseLinear.linear(1.0), self.epsilon),
            Fixed(ReplaceOne(), Pure(total)),
        )
        return declared(name, terms, self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        kind = f"laplace rows {type(self).__qualname__}"
        return fingerprint_of(kind, self.epsilon, self.dimension)

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        bpm, columns = self._of_coordinate, []
        for i in range(self.dimension):
            # A key for each coordinate: its rows keep their own addresses.
            column = matrix[:, i : i + 1].copy()
            columns.append(bpm.draw_rows(column, ids, streams.child(i)))
        return np.ascontiguousarray(np.hstack(columns))

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills."""
        make_table(self.rate, math.inf, 1)
        return ledger_for(ledger, self.declaration(space), unit=ReplaceOne())
