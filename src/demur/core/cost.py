"""Privacy cost of a mechanism as a function of the unit, as plain data.

A `Cost` is a list of terms. A `Fixed` term states an event at one unit and so at every
unit that it covers. `GaussianOverBalls` and `PureOverBalls` state a whole curve over
the balls of one space: the result moves by at most Delta(r) when a record moves by r,
and the noise turns that movement into a cost.

`cost.at(unit)` returns the cheapest of the terms that are stated at `unit`; all of them
hold at once, so the choice is free. If there is none, it raises `NotCovered`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from demur.core import validate
from demur.core.accounting import events
from demur.core.accounting.events import (
    Event,
    GaussianEvent,
    Neighbours,
    Pure,
    Sampled,
    for_group,
)
from demur.core.adjacency import (
    AddOrRemoveOne,
    Ball,
    Erasure,
    LipschitzMap,
    ReplaceOne,
    Unit,
    ZeroOut,
    one_record,
    reachable_balls,
    unit_from_json,
)
from demur.core.curve import PiecewiseLinear
from demur.core.errors import NotCovered, NotPriced
from demur.core.rounding import product_up, quotient_down

_AT: dict[Neighbours, tuple[type[Unit], ...]] = {
    Neighbours.ADD_OR_REMOVE_ONE: (AddOrRemoveOne,),
    Neighbours.REPLACE_ONE: (ReplaceOne, Ball),
    Neighbours.ZERO_OUT: (ZeroOut,),
}


@dataclass(frozen=True)
class Fixed:
    """An event at one unit, and so at every unit that it covers."""

    unit: Unit
    event: Event

    def __post_init__(self) -> None:
        # The dominating pair of a subsampled event belongs to one relation: at another
        # unit it would be the price of something else.
        for atom in events.atoms(self.event):
            if (
                isinstance(atom, Sampled)
                and type(self.unit) not in _AT[atom.neighbours]
            ):
                raise ValueError(
                    f"event is for neighbours {atom.neighbours} and cannot be stated at"
                    f" {self.unit}: use the event of that unit's neighbours"
                )

    def at(self, unit: Unit) -> Event | None:
        """The event at `unit`, or None where this term does not apply."""
        if self.unit.covers(unit):
            return self.event
        single = one_record(unit)
        if self.unit.records_per_person == 1 and self.unit.covers(single):
            return for_group(self.event, unit.records_per_person)
        return None

    def to_json(self) -> dict[str, Any]:
        """The term as plain data."""
        return {
            "term": "fixed",
            "at": self.unit.to_json(),
            "is": events.to_json(self.event),
        }


@dataclass(frozen=True)
class GaussianOverBalls:
    """Noise of deviation `sigma` on a value that moves by at most sensitivity(r)."""

    space: str
    sensitivity: PiecewiseLinear
    sigma: float

    def __post_init__(self) -> None:
        validate.name(space=self.space)
        validate.positive(sigma=self.sigma)

    def at(self, unit: Unit) -> Event | None:
        """Gaussian(sigma / sensitivity(r)), or Pure(0) where nothing moves."""
        if not isinstance(unit, Ball) or unit.space != self.space:
            return None
        moved = self.sensitivity(unit.radius)
        if moved == 0.0:
            return Pure(0.0)
        multiplier = quotient_down(self.sigma, moved)
        if multiplier == 0.0:
            raise NotPriced(
                f"sigma {self.sigma:g} is too small for a sensitivity of {moved:g} at"
                f" {unit}: their quotient rounds to 0. Nothing was spent."
            )
        return for_group(GaussianEvent(multiplier), unit.records_per_person)

    def to_json(self) -> dict[str, Any]:
        """The term as plain data."""
        return {
            "term": "gaussian_over_balls",
            "space": self.space,
            "sensitivity": self.sensitivity.to_json(),
            "sigma": self.sigma,
        }


@dataclass(frozen=True)
class PureOverBalls:
    """A log-likelihood ratio of at most rate * distance(r), as in metric privacy."""

    space: str
    distance: PiecewiseLinear
    rate: float

    def __post_init__(self) -> None:
        validate.name(space=self.space)
        validate.positive(rate=self.rate)

    def at(self, unit: Unit) -> Event | None:
        """Pure(rate * distance(r))."""
        if not isinstance(unit, Ball) or unit.space != self.space:
            return None
        moved = self.distance(unit.radius)
        return for_group(Pure(product_up(self.rate, moved)), unit.records_per_person)

    def to_json(self) -> dict[str, Any]:
        """The term as plain data."""
        return {
            "term": "pure_over_balls",
            "space": self.space,
            "distance": self.distance.to_json(),
            "rate": self.rate,
        }


Term: TypeAlias = Fixed | GaussianOverBalls | PureOverBalls


@dataclass(frozen=True)
class Cost:
    """The cost of a mechanism at every unit that it is stated for."""

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        if not self.terms:
            raise ValueError("terms must not be empty: a cost needs at least one unit")

    def at(self, unit: Unit, maps: Iterable[LipschitzMap] = ()) -> Event:
        """The event at `unit`; a ball is also looked up through the declared `maps`."""
        units: list[Unit] = [unit]
        if isinstance(unit, Ball):
            units = list(reachable_balls(unit, maps))
        stated: list[Event] = []
        reasons: list[str] = []
        for at in units:
            for term in self.terms:
                try:
                    event = term.at(at)
                except (NotCovered, NotPriced) as error:
                    reasons.append(str(error))
                    continue
                if event is not None:
                    stated.append(event)
        if not stated:
            why = f" ({'; '.join(reasons)})" if reasons else ""
            raise NotCovered(
                f"no cost is stated at unit {unit}: it was declared for"
                f" {', '.join(self.stated_units())} only{why}. Nothing was spent."
            )
        return _cheapest(stated)

    def only_erasure(self) -> bool:
        """Whether this is the cost of a deletion, left out of every privacy reading."""
        return all(
            isinstance(term, Fixed) and isinstance(term.unit, Erasure)
            for term in self.terms
        )

    def covers_erasure(self) -> bool:
        """Whether some term is stated at `Erasure`."""
        return any(
            isinstance(term, Fixed) and isinstance(term.unit, Erasure)
            for term in self.terms
        )

    def stated_units(self) -> list[str]:
        """The units that this cost is stated at, for messages and reports."""
        return [
            str(term.unit)
            if isinstance(term, Fixed)
            else f"Ball(..., space={term.space!r})"
            for term in self.terms
        ]

    def to_json(self) -> dict[str, Any]:
        """The cost as plain data."""
        return {"terms": [term.to_json() for term in self.terms]}

    @classmethod
    def from_json(cls, data: object) -> Cost:
        """The cost that `to_json` wrote; anything else is a ValueError."""
        if not isinstance(data, dict) or not isinstance(data.get("terms"), list):
            raise ValueError(f"not a cost: {validate.shorten(data)}")
        try:
            return cls(tuple(_term(item) for item in data["terms"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a cost: {error!r:.200}") from error


def _term(data: Any) -> Term:
    match data:
        case {"term": "fixed", "at": unit, "is": event}:
            return Fixed(unit_from_json(unit), events.from_json(event))
        case {
            "term": "gaussian_over_balls",
            "space": space,
            "sensitivity": curve,
            "sigma": sigma,
        }:
            return GaussianOverBalls(space, PiecewiseLinear.from_json(curve), sigma)
        case {
            "term": "pure_over_balls",
            "space": space,
            "distance": curve,
            "rate": rate,
        }:
            return PureOverBalls(space, PiecewiseLinear.from_json(curve), rate)
    raise ValueError(f"not a term of a cost: {validate.shorten(data)}")


def _cheapest(stated: list[Event]) -> Event:
    """The cheapest of several true statements, where they compare; else the first."""
    best = stated[0]
    for event in stated[1:]:
        for size in (_squared_mu, _summed_epsilon):
            mine, other = size(best), size(event)
            if mine is not None and other is not None and other < mine:
                best = event
                break
        else:
            if _summed_epsilon(event) == 0:
                best = event
    return best


def _squared_mu(event: Event) -> Fraction | None:
    """The sum of 1 / multiplier^2, if the event is made of Gaussians alone."""
    total = Fraction(0)
    for atom, count in events.atoms(event).items():
        if not isinstance(atom, GaussianEvent):
            return None
        total += count / Fraction(atom.multiplier) ** 2
    return total


def _summed_epsilon(event: Event) -> Fraction | None:
    """The sum of epsilons, if the event is made of pure ones alone."""
    total = Fraction(0)
    for atom, count in events.atoms(event).items():
        if not isinstance(atom, Pure):
            return None
        total += count * Fraction(atom.epsilon)
    return total
