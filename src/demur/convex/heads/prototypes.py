r"""Class prototypes: exact sensitivity, and the noise of each class.

The ridge prototypes minimise sum_i |x_i - mu_{y_i}|^2 / n + (lam/2) sum_c |mu_c|^2, so

    mu_c = S_c / (n_c + lam n / 2),   S_c the sum of the n_c rows of class c,

and lam = 0 gives the means. Sums are released with Gaussian noise of deviation w in
each coordinate: a record that moves by r in its class shifts one sum by r, so that the
release is exactly mu-GDP with mu = r / w, whatever the class, in parallel over classes.

**At a ball** labels stay, the counts are the same in both worlds and may be known. The
release is S_c / (n_c + lam n / 2), and its noise has deviation w / (n_c + lam n / 2).
Nothing is claimed at `ReplaceOne`: there the counts change, and the noise shows them.

**At ReplaceOne** the counts must not be known: they are released too, with noise of
deviation w / B. A replacement inside a class shifts one sum by at most 2 B and no
count. One that changes the label takes a row of norm at most B out of one sum and puts
another into a second one, and moves two counts by 1: the squared shift is at most
2 B^2 / w^2 + 2 / (w / B)^2 = 4 B^2 / w^2. Both are at most mu = 2 B / w, so counts cost
nothing on top. Prototypes are quotients of released numbers (`PrototypePlan.read`).

A person with k records moves k times as far (the shifts add up, most in one class).

A class without records has a sum of 0 and a small divisor: it is released like any
other, and the rule finds that its noise drowns it. Refusing it would tell a label.

Rows are summed exactly, on a grid (`rows.class_sums`): snapping moves the two versions
of a record apart by at most g sqrt(d), and one division rounds; both are added to r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.convex.rows.totals import UNIT_ROUNDOFF
from demur.convex.sensitivity.curves import row_space
from demur.convex.sensitivity.form import unit_of
from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.bounds import Bound
from demur.core.curve import PiecewiseLinear
from demur.core.promise import Promise
from demur.core.sensitivity import Table
from demur.mechanisms import Gaussian
from demur.mechanisms.estimates import positive_mean
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

UNPROTECTED = (
    "labels, the number of records of each class (its noise reveals it) and n",
    "hyper-parameters and the norm bound, which are public",
)
UNPROTECTED_COUNTED = (
    "the number of records",
    "hyper-parameters and the norm bound, which are public",
)
MEANS = "class prototypes with Gaussian noise for each class"
SUMS = "class sums and class counts with Gaussian noise"
_RESERVE = 1.0 + 1e-9
_EMPTY = 2.0**-20  # divides the sum 0 of a class without records, and its noise


@dataclass(frozen=True)
class Released:
    """What a reader of the release knows of each class: all of it is public."""

    prototypes: Array
    sigma: Array
    counts: Array  # of records: exact at a ball, noisy and positive otherwise


@dataclass(frozen=True)
class PrototypePlan:
    """The noise of the prototypes: of each class's mean, or of sums and counts.

    `denominators` are what sums are divided by before the release, or None where the
    counts are released as well and sums are divided after it.
    """

    width: float
    ridge: float
    norm_bound: float
    shape: tuple[int, int]
    denominators: Array | None
    counts: Array | None
    mechanism: Gaussian

    def value(self, sums: Array, counts: NDArray[np.int64]) -> Array:
        """The exact vector that noise is added to."""
        if self.denominators is not None:
            return np.asarray(sums / self.denominators[:, None]).reshape(-1)
        return np.concatenate([sums.reshape(-1), counts.astype(np.float64)])

    def read(self, value: Array) -> Released:
        """The prototypes, and their noise, in a released vector."""
        sums = value[: math.prod(self.shape)].reshape(self.shape)
        if self.denominators is not None:
            assert self.counts is not None
            return Released(sums, self.width / self.denominators, self.counts)
        error = self.width / self.norm_bound
        noisy = value[math.prod(self.shape) :]
        counts = np.array([positive_mean(float(count), error) for count in noisy])
        divisors = np.maximum(counts + self.ridge, 1.0)
        return Released(sums / divisors[:, None], self.width / divisors, counts)


def plan_prototypes(
    counts: NDArray[np.int64],
    promise: Promise,
    *,
    dimension: int,
    lam: float,
    bound: Bound,
    step: float,
    space: RowSpace | None = None,
    assumptions: tuple[str, ...] = (),
) -> PrototypePlan:
    """The least noise that meets the promise.

    `bound` is the norm bound of the rows, `step` that of the grid they are summed on.
    At ReplaceOne only the number of classes and of records is read off `counts`.
    """
    validate.non_negative(lam=lam)
    unit, norm_bound = unit_of(promise), bound.value
    validate.positive(norm_bound=norm_bound)
    n, ridge = int(counts.sum()), lam * float(counts.sum()) / 2.0
    # In units of a row: what snapping, and the rounding of one division, can add.
    slack = math.sqrt(dimension) * step + 16.0 * UNIT_ROUNDOFF * n * norm_bound
    largest = 2.0 * norm_bound
    rows = row_space(unit, space)
    moved = _moved(unit, rows, largest)
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    width = (moved + slack) * unit.records_per_person * _RESERVE / mu
    shape = (len(counts), dimension)
    ball = isinstance(unit, Ball)
    denominators = np.maximum(counts + ridge, _EMPTY) if ball else None
    for _ in range(8):
        sigma = _sigma(width, norm_bound, shape, denominators)
        mechanism = Gaussian(
            sigma,
            _table(unit, width, slack, norm_bound, rows),
            len(sigma),
            MEANS if ball else SUMS,
            (bound,),
            UNPROTECTED if ball else UNPROTECTED_COUNTED,
            assumptions,
        )
        event = mechanism.event(unit)
        assert isinstance(event, GaussianEvent)
        # A margin far above rounding: the ledger compares exact squares.
        if 1.0 / event.multiplier <= mu * (1.0 - 1e-13):
            break
        # The mechanism's own grid costs a little as well.
        width *= (1.0 / event.multiplier) / mu * (1.0 + 1e-12)
    else:
        raise ValueError(f"no noise found for {promise}. Nothing was spent.")
    # No value is refused for its size: that would tell something about it.
    sums = np.full(math.prod(shape), norm_bound if ball else n * largest)
    mechanism.check_bound(sums if ball else np.append(sums, np.full(shape[0], n)))
    known = counts.astype(np.float64) if ball else None
    return PrototypePlan(
        width, ridge, norm_bound, shape, denominators, known, mechanism
    )


def _sigma(
    width: float, norm_bound: float, shape: tuple[int, int], divisors: Array | None
) -> Array:
    """The deviation of each released number: means, or sums and then counts."""
    if divisors is not None:
        return np.repeat(width / divisors, shape[1])
    counted = np.full(shape[0], width / norm_bound)
    return np.concatenate([np.full(math.prod(shape), width), counted])


def _moved(unit: Ball | ReplaceOne, rows: RowSpace, largest: float) -> float:
    """How far one record moves at `unit`, in the space of the rows."""
    if isinstance(unit, ReplaceOne):
        return largest
    return min(rows.radius_of(unit), largest)


def _table(
    unit: Ball | ReplaceOne,
    width: float,
    slack: float,
    norm_bound: float,
    rows: RowSpace,
) -> Table:
    """How far the release moves, measured in deviations of its noise."""

    def mu(r: float) -> float:
        return (r + slack) * _RESERVE / width * (1.0 + 2.0**-50)

    end, records = 2.0 * norm_bound, unit.records_per_person
    curve = PiecewiseLinear(((0.0, mu(0.0)), (end, mu(end))), saturates=True)
    table: dict[Unit | str, float | PiecewiseLinear] = {}
    table.update(rows.curves(curve))
    if isinstance(unit, ReplaceOne):
        table[ReplaceOne()] = mu(end)
    if records > 1:
        at = mu(_moved(unit, rows, end))
        table[unit] = records * at * (1.0 + 2.0**-50)
    return table
