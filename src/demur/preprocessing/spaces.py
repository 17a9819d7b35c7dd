"""The space that rows lie in, and how far a move before preprocessing carries there.

A record that moves by r in an earlier space moves by at most L r + e after maps with
the Lipschitz constant L that round by up to e / 2 each way. So a bound Delta(R) over
balls of the rows' own space is the bound Delta(L r + e) over balls of the earlier one,
and one release states its cost in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.curve import PiecewiseLinear
from demur.core.errors import NotCovered
from demur.core.rounding import float_down, product_up, sum_up


@dataclass(frozen=True)
class Stretch:
    """How far apart records of an earlier space can be here: factor * r + rounding."""

    space: str
    factor: float
    rounding: float = 0.0

    def radius(self, before: float) -> float:
        """The radius here of a ball with the radius `before` there."""
        return sum_up(product_up(before, self.factor), self.rounding)

    def then(self, factor: float, rounding: float) -> Stretch:
        """The same through one more map."""
        carried = sum_up(product_up(self.rounding, factor), rounding)
        return Stretch(self.space, product_up(self.factor, factor), carried)

    def curve(self, here: PiecewiseLinear) -> PiecewiseLinear:
        """The bound r -> here(factor * r + rounding).

        A knot at R moves to (R - rounding) / factor, rounded down: a non-decreasing
        function whose knots move to the left only grows.
        """
        knots = {0.0: here(self.rounding)}
        for radius, bound in here.knots:
            beyond = Fraction(radius) - Fraction(self.rounding)
            if beyond > 0:
                knots[float_down(beyond / Fraction(self.factor))] = bound
        return PiecewiseLinear(tuple(sorted(knots.items())), here.saturates)


@dataclass(frozen=True)
class RowSpace:
    """The name of the rows' space, and what leads into it from earlier ones.

    >>> cube = RowSpace("records").then("cube of records", 0.5)
    >>> cube.name, cube.from_space("records").radius(0.2)
    ('cube of records', 0.1)
    """

    name: str
    earlier: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        validate.name(space=self.name)

    def then(
        self, name: str, factor: float | None, *, rounding: float = 0.0
    ) -> RowSpace:
        """The space after a map into `name`; no factor for one that has none."""
        if factor is None:
            return RowSpace(name)
        carried = [stretch.then(factor, rounding) for stretch in self.earlier]
        return RowSpace(name, (*carried, Stretch(self.name, float(factor), rounding)))

    def __contains__(self, space: str) -> bool:
        return space == self.name or any(e.space == space for e in self.earlier)

    def from_space(self, space: str) -> Stretch:
        """How distances in `space` carry to the rows' own."""
        if space == self.name:
            return Stretch(space, 1.0)
        for stretch in self.earlier:
            if stretch.space == space:
                return stretch
        known = ", ".join(
            repr(s) for s in (self.name, *(e.space for e in self.earlier))
        )
        raise NotCovered(
            f"no Lipschitz constant leads from the space {space!r} to that of the rows:"
            f" they lie in {known}. Measure the radius there, or use maps that have a"
            " constant. Nothing was spent."
        )

    def radius_of(self, ball: Ball) -> float:
        """How far apart two versions of a record in `ball` can be here."""
        return self.from_space(ball.space).radius(ball.radius)

    def curves(self, curve: PiecewiseLinear) -> dict[str, PiecewiseLinear]:
        """A bound over balls of the rows' space, and of every earlier one."""
        earlier = {stretch.space: stretch.curve(curve) for stretch in self.earlier}
        return {self.name: curve} | earlier
