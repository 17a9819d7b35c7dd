"""Piecewise-linear upper bounds of a non-decreasing function of the radius.

An entry of the ledger stores "the result moves by at most Delta(r) when a record moves
by at most r" in this form: as knots, which any later version can read without code.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

from demur.core import validate
from demur.core.errors import NotCovered
from demur.core.rounding import float_up, product_up, quotient_down

_MOST_KNOTS = 10_000


@dataclass(frozen=True)
class PiecewiseLinear:
    """Knots (radius, bound), joined by straight lines.

    Past the last knot the bound stays constant when `saturates` (the last value is a
    cap that holds for every radius); otherwise no bound is stated there.

    >>> PiecewiseLinear.linear(slope=2.0, cap=3.0)(1.0)
    2.0
    >>> PiecewiseLinear.linear(slope=2.0, cap=3.0)(100.0)
    3.0
    """

    knots: tuple[tuple[float, float], ...]
    saturates: bool

    def __post_init__(self) -> None:
        if not 1 <= len(self.knots) <= _MOST_KNOTS:
            raise ValueError(
                f"knots must be 1 to {_MOST_KNOTS} points; got {len(self.knots)}"
            )
        for radius, bound in self.knots:
            validate.non_negative(radius=radius, bound=bound)
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(self.knots)):
            raise ValueError(
                "knots must have increasing radii and non-decreasing bounds;"
                f" got {self.knots[:4]}..."
            )
        if self.knots[0][0] != 0.0:
            raise ValueError(
                f"the first knot must be at radius 0; got {self.knots[0][0]}"
            )

    @classmethod
    def linear(cls, slope: float, cap: float | None = None) -> PiecewiseLinear:
        """The bound slope * r, or min(slope * r, cap)."""
        validate.positive(slope=slope)
        if cap is None:
            # Far beyond any radius in use, and slope * far is still a number.
            far = min(1.0, 1.0 / slope) * 1e150
            return cls(((0.0, 0.0), (far, product_up(slope, far))), saturates=False)
        validate.positive(cap=cap)
        # Rounded down, so that the line to the corner lies on or above slope * r.
        corner = quotient_down(cap, slope)
        if not 0.0 < corner < math.inf:
            return cls(((0.0, float(cap)),), saturates=True)
        return cls(((0.0, 0.0), (corner, float(cap))), saturates=True)

    @classmethod
    def dominating(
        cls,
        function: Callable[[float], float],
        radii: Sequence[float],
        *,
        saturates: bool = False,
    ) -> PiecewiseLinear:
        """An upper bound of any non-decreasing function, from its values at `radii`.

        At each radius the knot carries the function's value at the *next* one. On
        [r_i, r_i+1] the chord is then at least its left end f(r_i+1), which bounds f
        on the whole interval because f does not decrease. No convexity is needed.
        """
        grid = [0.0, *sorted(float(r) for r in radii if r > 0)]
        if len(grid) < 2:
            raise ValueError(f"radii must hold a positive number; got {radii!r:.80}")
        values = [float(function(r)) for r in grid[1:]]
        if any(not a <= b * (1.0 + 1e-9) for a, b in pairwise(values)):
            raise ValueError("the function must be non-decreasing, and a number")
        # The running maximum: rounding may make f fall by an ulp, and a larger bound
        # is still a bound.
        values = list(accumulate(values, max))
        return cls(
            tuple(zip(grid, [*values, values[-1]], strict=True)), saturates=saturates
        )

    def __call__(self, radius: float) -> float:
        """The bound at `radius`, rounded up."""
        validate.non_negative(radius=radius)
        last_radius, last_bound = self.knots[-1]
        if radius >= last_radius:
            if radius > last_radius and not self.saturates:
                raise NotCovered(
                    f"the bound is stated up to radius {last_radius:g} only;"
                    f" got {radius:g}. Nothing was spent."
                )
            return last_bound
        right = bisect_left(self.knots, radius, key=lambda knot: knot[0])
        if self.knots[right][0] == radius:
            return self.knots[right][1]
        (r0, b0), (r1, b1) = (
            (Fraction(r), Fraction(b)) for r, b in self.knots[right - 1 : right + 1]
        )
        return float_up(b0 + (b1 - b0) * (Fraction(radius) - r0) / (r1 - r0))

    def to_json(self) -> dict[str, Any]:
        """The curve as plain data."""
        return {"knots": [list(k) for k in self.knots], "saturates": self.saturates}

    @classmethod
    def from_json(cls, data: object) -> PiecewiseLinear:
        """The curve that `to_json` wrote; anything else is a ValueError."""
        if not isinstance(data, dict) or set(data) != {"knots", "saturates"}:
            raise ValueError(f"not a curve: {validate.shorten(data)}")
        knots, saturates = data["knots"], data["saturates"]
        if not isinstance(knots, list) or not isinstance(saturates, bool):
            raise ValueError(f"not a curve: {validate.shorten(data)}")
        if any(not isinstance(k, list) or len(k) != 2 for k in knots):
            raise ValueError(f"not a curve: {validate.shorten(data)}")
        try:
            return cls(tuple((k[0], k[1]) for k in knots), saturates)
        except TypeError as error:
            raise ValueError(str(error)) from error
