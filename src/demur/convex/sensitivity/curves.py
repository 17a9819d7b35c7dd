"""Delta(r): how far a released head moves, as a function of the unit.

    Delta(r) = G(r) / (lam n) + 2 tau / lam     at Ball(r), constant from r = 2B on
    Delta    = (full replacement) / (lam n) + 2 tau / lam     at ReplaceOne

G and its proof are in `losses`, the term in tau is argued in `solver`. The curve is a
table of knots that lies on or above Delta: each knot carries the value at the next one
(`PiecewiseLinear.dominating`), and at the declared radius the next knot is a relative
2^-30 away, so that nothing is lost where the noise is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from demur.convex.sensitivity.losses import (
    HUBER_WIDTH,
    full_replacement_bound,
    grad_diff_bound,
    minimiser_radius,
)
from demur.core import validate
from demur.core.adjacency import ReplaceOne
from demur.core.curve import PiecewiseLinear
from demur.core.sensitivity import Sensitivity, Table

# The largest gradient norm at which a head counts as the minimiser (`solver`).
TAU = 1e-9

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


def erm_sensitivity(
    loss: str,
    *,
    n: int,
    lam: float,
    norm_bound: float,
    radius: float,
    space: str = "records",
    tau: float = TAU,
    num_classes: int = 2,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
    replace_one: bool = True,
) -> HeadSensitivity:
    """How far the minimiser of the stated objective moves, at every ball and beyond.

    `replace_one=False` leaves the number at `ReplaceOne` out, for a head whose classes
    were read off the labels.

    >>> from demur.core.adjacency import Ball
    >>> found = erm_sensitivity(
    ...     "logistic", n=1000, lam=0.01, norm_bound=1.0, radius=0.5)
    >>> round(found.table.at(Ball(0.5, space="records")), 5)
    0.09779
    """
    validate.count(n=n)
    validate.positive(lam=lam, radius=radius, norm_bound=norm_bound)
    validate.non_negative(tau=tau)
    shape = {
        "norm_bound": norm_bound,
        "lam": lam,
        "num_classes": num_classes,
        "bias_scale": bias_scale,
        "huber_width": huber_width,
    }
    return _assemble(
        lambda r: grad_diff_bound(loss, r, **shape),  # type: ignore[arg-type]
        full_replacement_bound(loss, **shape) if replace_one else None,  # type: ignore[arg-type]
        loss=loss,
        n=n,
        lam=lam,
        norm_bound=norm_bound,
        radius=radius,
        space=space,
        tau=tau,
        theta_radius=minimiser_radius(loss, **shape),  # type: ignore[arg-type]
    )


def declared_sensitivity(
    lz: float,
    *,
    n: int,
    lam: float,
    norm_bound: float,
    radius: float,
    space: str = "records",
    tau: float = TAU,
    gradient_bound: float | None = None,
) -> HeadSensitivity:
    """The same for a convex loss of the caller's own, with a declared constant.

    `lz` bounds |grad l(theta; x, y) - grad l(theta; x', y)| / |x - x'| over every theta
    that can be a minimiser. `gradient_bound` bounds |grad l| and adds the caps; without
    it nothing is said about `ReplaceOne`.
    """
    validate.count(n=n)
    validate.positive(lz=lz, lam=lam, radius=radius, norm_bound=norm_bound)
    validate.non_negative(tau=tau)
    cap = math.inf
    if gradient_bound is not None:
        validate.positive(gradient_bound=gradient_bound)
        cap = 2.0 * gradient_bound
    return _assemble(
        lambda r: min(lz * min(r, 2.0 * norm_bound) * (1.0 + 2.0**-50), cap),
        cap if gradient_bound is not None else None,
        loss="declared",
        n=n,
        lam=lam,
        norm_bound=norm_bound,
        radius=radius,
        space=space,
        tau=tau,
        theta_radius=None,
    )


def _assemble(
    gradient: Callable[[float], float],
    full: float | None,
    *,
    loss: str,
    n: int,
    lam: float,
    norm_bound: float,
    radius: float,
    space: str,
    tau: float,
    theta_radius: float | None,
) -> HeadSensitivity:
    solver = 2.0 * tau / lam * _RESERVE

    def moved(difference: float) -> float:
        return difference / (lam * n) * _RESERVE + solver

    largest = 2.0 * norm_bound
    curve = dominating_curve(
        lambda r: moved(gradient(r)), largest=largest, exact_at=radius
    )
    table: Table = {space: curve}
    if full is not None:
        table = {space: curve, ReplaceOne(): moved(full)}
    parts = Breakdown(
        loss=loss,
        n=n,
        lam=lam,
        norm_bound=norm_bound,
        minimiser_radius=theta_radius,
        gradient_difference=gradient(radius),
        from_record=moved(gradient(radius)) - solver,
        from_solver=solver,
        total=curve(radius),
        same_label=curve(largest),
        full_replacement=None if full is None else moved(full),
    )
    return HeadSensitivity(Sensitivity.of(table), parts)
