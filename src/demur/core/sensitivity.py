"""Sensitivity: how far a value can move between neighbouring datasets, by unit.

A sensitivity is a table. A unit has one number, the largest L2 distance between the
values at two datasets that the unit relates; the name of a space has a curve over the
radius of its balls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.adjacency import Ball, Unit
from demur.core.cost import Cost, Fixed, GaussianOverBalls, Term
from demur.core.curve import PiecewiseLinear
from demur.core.errors import NotCovered
from demur.core.rounding import quotient_down, sum_up

Table: TypeAlias = Mapping[Unit | str, float | PiecewiseLinear]


@dataclass(frozen=True)
class Sensitivity:
    """A frozen table of sensitivities by unit and by space.

    >>> from demur.core.adjacency import AddOrRemoveOne, ReplaceOne
    >>> mean = Sensitivity.of({ReplaceOne(): 0.02, "records":
    ...     PiecewiseLinear.linear(slope=0.01, cap=0.02)})
    >>> mean.at(ReplaceOne()), mean.at(Ball(0.5, space="records")) <= 0.005 + 1e-17
    (0.02, True)
    """

    units: tuple[tuple[Unit, float], ...]
    spaces: tuple[tuple[str, PiecewiseLinear], ...]

    @classmethod
    def of(cls, table: Table) -> Sensitivity:
        """The table, checked."""
        if not isinstance(table, Mapping) or not table:
            raise TypeError(
                "sensitivity must map units to numbers (or names of spaces to curves),"
                f" as in {{AddOrRemoveOne(): 1.0}}; got {table!r:.80}"
            )
        units: list[tuple[Unit, float]] = []
        spaces: list[tuple[str, PiecewiseLinear]] = []
        for at, moved in table.items():
            if isinstance(at, str) and isinstance(moved, PiecewiseLinear):
                spaces.append((at, moved))
            elif isinstance(at, Unit) and not isinstance(moved, PiecewiseLinear):
                validate.positive(**{f"sensitivity at {at}": moved})
                units.append((at, float(moved)))
            else:
                raise TypeError(
                    "sensitivity must give a number at a unit and a curve at a space;"
                    f" got {moved!r:.80} at {at!r:.80}"
                )
        return cls(tuple(units), tuple(spaces))

    def at(self, unit: Unit) -> float:
        """The sensitivity at `unit`, the smallest that the table implies."""
        bounds = [moved for at, moved in self.units if at.covers(unit)]
        if isinstance(unit, Ball) and unit.records_per_person == 1:
            bounds += [
                curve(unit.radius)
                for space, curve in self.spaces
                if space == unit.space
            ]
        if not bounds:
            stated = [str(at) for at, _ in self.units] + [s for s, _ in self.spaces]
            raise NotCovered(
                f"no sensitivity is stated at {unit}: the table has"
                f" {', '.join(stated)}. Nothing was spent."
            )
        return min(bounds)

    def smallest(self) -> float:
        """The smallest number of the table; a curve counts with its cap, or at 1."""
        ends = [
            curve.knots[-1][1]
            if curve.saturates
            else curve(min(1.0, curve.knots[-1][0]))
            for _, curve in self.spaces
        ]
        return min([moved for _, moved in self.units] + ends)

    def plus(self, more: float) -> Sensitivity:
        """The table when everything may move by `more` on top, rounded up."""
        return Sensitivity(
            tuple((at, sum_up(moved, more)) for at, moved in self.units),
            tuple(
                (
                    space,
                    PiecewiseLinear(
                        tuple((r, sum_up(b, more)) for r, b in curve.knots),
                        curve.saturates,
                    ),
                )
                for space, curve in self.spaces
            ),
        )

    def cost(self, sigma: float) -> Cost:
        """What Gaussian noise of deviation `sigma` costs at every unit of the table."""
        terms: list[Term] = [
            Fixed(at, GaussianEvent(quotient_down(sigma, moved)))
            for at, moved in self.units
        ]
        terms += [GaussianOverBalls(s, curve, sigma) for s, curve in self.spaces]
        return Cost(tuple(terms))
