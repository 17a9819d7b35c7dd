"""Sensitivity of a head, Delta(r): how far it moves, as a function of the unit.

    Delta(r) = G(r) / (lam n) + 2 tau / lam     at Ball(r), constant from r = 2B on
    Delta    = (full replacement) / (lam n) + 2 tau / lam     at ReplaceOne

G and its proof are in `losses`, the term in tau is argued in `solver`. The curve is a
table of knots that lies on or above Delta: each knot has the value at the next one
(`PiecewiseLinear.dominating`), and at the declared radius the next knot is a relative
2^-30 away, so that nothing is lost where the noise is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from demur.convex.sensitivity.form import DeclaredForm, Fit, HeadForm
from demur.convex.sensitivity.gradient_bounds import (
    full_replacement_bound,
    grad_diff_bound,
    minimiser_radius,
)
from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.curve import PiecewiseLinear
from demur.core.errors import NotCovered
from demur.core.sensitivity import Sensitivity
from demur.preprocessing.spaces import RowSpace

# Clipping is a projection up to rounding, and so are the other steps on a row: a
# relative 1e-9 of the record's part is far more than they can add.
_RESERVE = 1.0 + 1e-9
_KNOT_RATIO = 1.04
_SMALLEST = 1e-4  # of the largest radius; below it the bound is flat
_NEXT = 1.0 + 2.0**-30


@dataclass(frozen=True)
class Breakdown:
    """What Delta at the declared radius is made of; all of it public."""

    loss: str
    n: int
    lam: float
    norm_bound: float
    minimiser_radius: float | None
    gradient_difference: float
    from_record: float
    from_solver: float
    total: float
    same_label: float
    full_replacement: float | None

    def to_json(self) -> dict[str, Any]:
        """The breakdown as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class HeadSensitivity:
    """A head's sensitivity, for a Gaussian, and its breakdown, for a reader."""

    table: Sensitivity
    parts: Breakdown


def dominating_curve(
    bound: Callable[[float], float], *, largest: float, exact_at: float
) -> PiecewiseLinear:
    """Knots above a non-decreasing `bound` that is constant from `largest` on."""
    count = math.ceil(math.log(1.0 / _SMALLEST) / math.log(_KNOT_RATIO))
    radii = {largest * _KNOT_RATIO ** (k - count) for k in range(count)} | {largest}
    if exact_at < largest:
        radii |= {exact_at, min(exact_at * _NEXT, largest)}
    return PiecewiseLinear.dominating(bound, sorted(radii), saturates=True)


def unit_table(
    unit: Ball | ReplaceOne,
    moved: Callable[[float], float],
    gradient: Callable[[float], float],
    full: float | None,
    *,
    norm_bound: float,
    space: RowSpace | None = None,
) -> tuple[Sensitivity, float]:
    """How far a value moves, at every ball and beyond, and how far at `unit`.

    `gradient(r)` and `full` are how far one record's gradient moves, `moved(g)` is how
    far the value moves when gradients move by g in all: k records of a person move them
    by k times as much as one, while what is added for the solver is added once. The
    curve is tight at `unit`. Without `full` nothing is said about ReplaceOne. `space`
    is that of the rows, by default the ball's own; a bound is stated in every space
    that leads into it.
    """
    largest, records = 2.0 * norm_bound, unit.records_per_person
    rows = row_space(unit, space)
    exact_at = largest
    if isinstance(unit, Ball):
        exact_at = rows.radius_of(unit)
    curve = dominating_curve(
        lambda r: moved(gradient(r)), largest=largest, exact_at=exact_at
    )
    table: dict[Unit | str, float | PiecewiseLinear] = {}
    table.update(rows.curves(curve))
    if full is not None:
        table[ReplaceOne()] = moved(full)
    elif isinstance(unit, ReplaceOne):
        raise NotCovered(
            "a replacement may change a label, and the classes were read off the"
            " labels: give classes=, the public list of classes. Nothing was spent."
        )
    if records > 1:
        one = at_unit(unit, gradient, full, rows)
        table[unit] = moved(records * one * (1.0 + 2.0**-50))
    found = Sensitivity.of(table)
    return found, found.at(unit)


def erm_sensitivity(
    form: HeadForm,
    unit: Ball | ReplaceOne,
    fit: Fit,
    *,
    space: RowSpace | None = None,
) -> HeadSensitivity:
    """How far the minimiser of the stated objective moves, at every ball and beyond.

    The curve is tight at `unit`. `space` is the space of the rows, by default the
    ball's own.

    >>> unit = Ball(0.5, space="records")
    >>> form = HeadForm("logistic", lam=0.01, norm_bound=1.0)
    >>> round(erm_sensitivity(form, unit, Fit(n=1000)).table.at(unit), 5)
    0.09779
    """
    validate.positive(lam=form.lam, norm_bound=form.norm_bound)
    return _assemble(
        form,
        unit,
        fit,
        lambda r: grad_diff_bound(form, r),
        full_replacement_bound(form) if fit.classes_public else None,
        space,
    )


def declared_sensitivity(
    form: DeclaredForm,
    unit: Ball | ReplaceOne,
    fit: Fit,
    *,
    space: RowSpace | None = None,
) -> HeadSensitivity:
    """The same for a convex loss of the caller's own, from its declared constants."""
    steepest = form.gradient_bound if fit.classes_public else None
    cap = math.inf if steepest is None else 2.0 * steepest
    largest = 2.0 * form.norm_bound
    return _assemble(
        form,
        unit,
        fit,
        lambda r: min(form.lz * min(r, largest) * (1.0 + 2.0**-50), cap),
        None if steepest is None else cap,
        space,
    )


def _assemble(
    form: HeadForm | DeclaredForm,
    unit: Ball | ReplaceOne,
    fit: Fit,
    gradient: Callable[[float], float],
    full: float | None,
    space: RowSpace | None,
) -> HeadSensitivity:
    """Delta from how far one record's gradient moves at a radius and at ReplaceOne."""
    lam, largest = form.lam, 2.0 * form.norm_bound
    solver = 2.0 * fit.tau / lam * _RESERVE

    def moved(difference: float) -> float:
        return difference / (lam * fit.n) * _RESERVE + solver

    table, total = unit_table(
        unit, moved, gradient, full, norm_bound=form.norm_bound, space=space
    )
    parts = Breakdown(
        loss=form.loss,
        n=fit.n,
        lam=lam,
        norm_bound=form.norm_bound,
        minimiser_radius=(
            minimiser_radius(form) if isinstance(form, HeadForm) else None
        ),
        gradient_difference=at_unit(unit, gradient, full, row_space(unit, space)),
        from_record=total - solver,
        from_solver=solver,
        total=total,
        same_label=moved(gradient(largest)),
        full_replacement=None if full is None else moved(full),
    )
    return HeadSensitivity(table, parts)


def row_space(unit: Ball | ReplaceOne, space: RowSpace | None) -> RowSpace:
    """The space of the rows: the one given, the ball's own, or "records"."""
    if space is not None:
        return space
    return RowSpace(unit.space if isinstance(unit, Ball) else "records")


def at_unit(
    unit: Ball | ReplaceOne,
    gradient: Callable[[float], float],
    full: float | None,
    rows: RowSpace,
) -> float:
    """How far one record's gradient moves at `unit`."""
    if isinstance(unit, Ball):
        return gradient(rows.radius_of(unit))
    assert full is not None
    return full
