"""Laplace noise on every coordinate by itself: a baseline for whole-vector reports.

Each coordinate gets Laplace noise of rate epsilon / sqrt(d), so that

    log ratio <= epsilon / sqrt(d) * |v - v'|_1 <= epsilon |v - v'|_2

by Cauchy-Schwarz: the same epsilon-d_E promise as BPM and multivariate Laplace at the
same epsilon, and pure epsilon sqrt(d) for any replacement, as |v - v'|_1 <= d. The BPM
paper compares with rate epsilon / d instead. That is epsilon-local privacy of the whole
vector, a promise that does not shrink with the distance: a different thing, available
here as `LaplacePerDimension(epsilon / sqrt(d), d)`.

A coordinate's noise is BPM with L = infinity in one dimension, whose sampler is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.accounting.events import Pure
from demur.core.adjacency import ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.cost import Cost, Fixed, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.entropy import NoiseKey, Source
from demur.core.release import Release
from demur.core.rounding import product_up, quotient_down
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.bpm.mechanism import BPM, root_up
from demur.mechanisms.bpm.table import make_table
from demur.mechanisms.reports import (
    Reports,
    RowIds,
    Values,
    coordinates,
    points_in_cube,
    release_rows,
    rows_digest,
)
from demur.mechanisms.sampling.row_streams import RowStreams


@dataclass(frozen=True)
class LaplacePerDimension:
    """Independent Laplace noise of rate epsilon / sqrt(d) on each of d coordinates.

    >>> LaplacePerDimension(epsilon=4.0, dimension=4).rate
    2.0
    """

    epsilon: float
    dimension: int

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.count(dimension=self.dimension)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "dimension", int(self.dimension))

    @property
    def rate(self) -> float:
        """epsilon / sqrt(d), rounded down: the promise is kept to the last bit."""
        return quotient_down(self.epsilon, root_up(self.dimension))

    @property
    def reach(self) -> float:
        """How far outside [0, 1] a coordinate of a report can lie."""
        return self._one.reach

    @property
    def _one(self) -> BPM:
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
                "epsilon is too large to be a promise: epsilon times sqrt(d) is"
                " infinite. Nothing was spent."
            )
        return Declaration(
            name=(
                f"Laplace noise of rate {self.rate:g} on each of {self.dimension}"
                " coordinates, one report for each record (pure epsilon"
                f" {self.epsilon:g} * r for a move by r, and {total:.4g} for any"
                " replacement)"
            ),
            cost=Cost(
                (
                    PureOverBalls(space, PiecewiseLinear.linear(1.0), self.epsilon),
                    Fixed(ReplaceOne(), Pure(total)),
                )
            ),
            bounds=(Bound(1.0, BoundSource.ENFORCED, "coordinate in [0, 1]"),),
            unprotected=("the number of records", "row ids"),
            assumptions=(
                "each record is one row (records_per_person says how many a person"
                " may own)",
            ),
            fingerprint=self.fingerprint,
        )

    def check(self, points: ArrayLike) -> Values:
        """The points as a float64 matrix in the unit cube, or a clear error."""
        return points_in_cube(points, self.dimension)

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        return fingerprint_of("laplace rows", self.epsilon, self.dimension)

    def digest(self, points: ArrayLike, row_ids: ArrayLike | None = None) -> str:
        """What an entry that pays for these rows is bound to."""
        return rows_digest(self, points, row_ids)

    def row_key(self, entropy: NoiseKey) -> bytes:
        """The key of the rows' streams: what a worker gets in place of the entry's."""
        return entropy.subkey("laplace rows")

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        one, columns = self._one, []
        for i in range(self.dimension):
            # A key for each coordinate: its rows keep their own addresses.
            column = matrix[:, i : i + 1].copy()
            columns.append(one.draw_rows(column, ids, streams.child(i)))
        return np.ascontiguousarray(np.hstack(columns))

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills."""
        make_table(self.rate, math.inf, 1)
        return ledger_for(ledger, self.declaration(space), unit=ReplaceOne())

    def privatize(
        self,
        points: ArrayLike,
        *,
        ledger: Ledger | None = None,
        row_ids: ArrayLike | None = None,
        label: str = "per-dimension Laplace reports",
        space: str = "cube",
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> Release[Reports]:
        """Check, charge, draw, commit: as `BPM.privatize`."""
        return release_rows(
            self,
            points,
            ledger=ledger,
            row_ids=row_ids,
            label=label,
            space=space,
            idempotency_key=idempotency_key,
            source=source,
        )
