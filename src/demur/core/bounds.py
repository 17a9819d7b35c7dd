"""Bounds on data, where each comes from, and the functions that enforce them.

A bound is *enforced* (the code made it true), *declared* (a public fact the caller
answers for) or *estimated* from private data. An estimated bound makes the statement
of a release conditional, and the statement says so.

Each function here enforces a bound and names the space of its result. A radius
measured before a map is valid after it only if the map is Lipschitz: clipping a row to
a ball is a projection onto a convex set, so it never increases a distance (constant
1); scaling to the unit cube multiplies distances by at most 1 / the narrowest side;
dividing a row by its norm has no constant at all (two tiny vectors may end up at
opposite poles). `Space.from_source` holds the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.adjacency import Ball, LipschitzMap
from demur.core.errors import NotCovered
from demur.core.rounding import down, quotient_up


class BoundSource(StrEnum):
    """Where a bound comes from, from the strongest to the weakest."""

    ENFORCED = "enforced"
    DECLARED = "declared"
    ESTIMATED = "estimated"


@dataclass(frozen=True)
class Bound:
    """A number that limits the data, what it limits, and where it comes from."""

    value: float
    source: BoundSource
    what: str = "row norm"

    def __post_init__(self) -> None:
        validate.non_negative(value=self.value)
        validate.name(what=self.what)
        source = validate.choice(BoundSource, source=self.source)
        object.__setattr__(self, "source", source)

    def to_json(self) -> dict[str, Any]:
        """The bound as plain data."""
        return {"value": self.value, "source": str(self.source), "what": self.what}

    @classmethod
    def from_json(cls, data: object) -> Bound:
        """The bound that `to_json` wrote; anything else is a ValueError."""
        if not isinstance(data, dict) or set(data) != {"value", "source", "what"}:
            raise ValueError(f"not a bound: {validate.shorten(data)}")
        try:
            return cls(data["value"], data["source"], data["what"])
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True)
class Space:
    """A named record metric, and the Lipschitz map that led into it, if one did."""

    name: str
    from_source: LipschitzMap | None = None

    def __post_init__(self) -> None:
        validate.name(space=self.name)

    def ball(self, before: Ball) -> Ball:
        """The ball of this space that holds the image of a ball measured before."""
        if before.space == self.name:
            return before
        if self.from_source is None:
            raise NotCovered(
                f"no Lipschitz constant leads from {before.space!r} to {self.name!r}"
                " (dividing by the norm has none): measure the radius in"
                f" {self.name!r}, or clip instead. Nothing was spent."
            )
        return self.from_source.convert(before)


class Bounded(NamedTuple):
    """Data, the bound that now holds for it, and the space it lies in."""

    data: NDArray[np.float64]
    bound: Bound
    space: Space


def real_array(
    name: str, values: ArrayLike, what: str = "an array"
) -> NDArray[np.float64]:
    """`values` as a new float64 array, or a ValueError that quotes none of them."""
    try:
        # A mask would be dropped silently, and the values under it used.
        if np.ma.is_masked(values):
            raise TypeError("masked entries")
        given = np.asarray(values)
        if given.dtype.kind in "cmM":
            raise TypeError("complex numbers or dates")
        # Rows in one piece: sums along them are then pairwise, and nearly exact.
        return np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        # numpy's message quotes the cell that it cannot read; ours must not.
        raise ValueError(
            f"{name} must be {what} of real numbers (no words, dates or complex"
            " numbers, nothing masked), all rows of one length"
        ) from None


def finite_matrix(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """`values` as a new float64 matrix, at least one row and column, all finite."""
    matrix = real_array(name, values, "a matrix")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"{name} must be a matrix with at least one row and one column;"
            f" got shape {matrix.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{name} must be finite: {bad.size} rows hold NaN or infinity."
            " Drop or impute them by a rule that does not look at other rows."
        )
    return matrix


def _shrink(matrix: NDArray[np.float64], norm_bound: float) -> NDArray[np.float64]:
    """Rows projected onto a ball just inside the bound, in place.

    The margin of 2^-40 is far above the rounding error of the scaling and of a norm
    whose d squares are summed pairwise, about (log2 d + 128) 2^-53, so the true norm of
    every row is at most `norm_bound`. Being a projection onto a fixed ball, the map is
    1-Lipschitz up to the rounding of its result. Rows are scaled by their largest
    entry first: no square overflows or vanishes.
    """
    target = norm_bound * (1.0 - 2.0**-40)
    largest = np.abs(matrix).max(axis=1)
    scale = np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(matrix / scale[:, None], axis=1)
    with np.errstate(over="ignore"):
        over = np.flatnonzero(norms > target / scale)
    unit = matrix[over] / scale[over, None] / norms[over, None]
    matrix[over] = unit * target
    return matrix


def clip_rows(X: ArrayLike, norm_bound: float, *, space: str = "records") -> Bounded:
    """Rows projected onto the ball of radius `norm_bound`: the bound is enforced.

    A projection is 1-Lipschitz, so the space keeps its name and every radius in it.

    >>> data, bound, space = clip_rows([[3.0, 4.0], [0.3, 0.4]], norm_bound=1.0)
    >>> float(round(np.linalg.norm(data[0]), 9)), bound.value, str(bound.source)
    (1.0, 1.0, 'enforced')
    """
    validate.positive(norm_bound=norm_bound)
    matrix = _shrink(finite_matrix("X", X), float(norm_bound))
    same_radius = LipschitzMap(space, space, 1.0)
    return Bounded(
        matrix, Bound(norm_bound, BoundSource.ENFORCED), Space(space, same_radius)
    )


def normalize_rows(X: ArrayLike, *, space: str = "records") -> Bounded:
    """Rows divided by their norm (rows of zeros stay): norm at most 1, enforced.

    This is not Lipschitz: a radius measured before is not valid after, so the result
    lies in a space of its own, with no map from the old one.
    """
    matrix = finite_matrix("X", X)
    largest = np.abs(matrix).max(axis=1)
    matrix /= np.where(largest > 0, largest, 1.0)[:, None]
    norms = np.linalg.norm(matrix, axis=1)
    matrix /= np.where(norms > 0, norms, 1.0)[:, None]
    matrix = _shrink(matrix, 1.0)
    return Bounded(
        matrix, Bound(1.0, BoundSource.ENFORCED), Space(f"normalized {space}")
    )


def to_unit_cube(
    X: ArrayLike, low: ArrayLike, high: ArrayLike, *, space: str = "records"
) -> Bounded:
    """Columns scaled from the public box [low, high] to [0, 1], and clipped to it.

    `low` and `high` must be public: the smallest and largest value of private data
    are somebody's records. Distances grow at most by 1 / the narrowest side.
    """
    matrix = finite_matrix("X", X)
    sides = []
    for name, side in (("low", low), ("high", high)):
        try:
            values = np.asarray(side, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be numbers; {error}") from error
        if values.ndim > 1 or values.size not in (1, matrix.shape[1]):
            raise ValueError(
                f"{name} must be one number or one per column ({matrix.shape[1]});"
                f" got shape {values.shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite; got {values}")
        sides.append(np.broadcast_to(values.reshape(-1), matrix.shape[1]))
    lows, highs = sides
    with np.errstate(over="ignore"):
        widths = highs - lows
    # Below 1e-300 the constant 1 / width is no number any more.
    if not (np.isfinite(widths).all() and (widths > 1e-300).all()):
        raise ValueError(
            "high must exceed low in every column, by a finite width;"
            f" got widths {widths}"
        )
    cube = np.clip((np.clip(matrix, lows, highs) - lows) / widths, 0.0, 1.0)
    target = f"cube of {space}"
    return Bounded(
        cube,
        Bound(1.0, BoundSource.ENFORCED, what="coordinate in [0, 1]"),
        Space(
            target,
            LipschitzMap(space, target, quotient_up(1.0, down(float(widths.min())))),
        ),
    )
