"""Privacy cost of a mechanism as a function of the unit, as plain data.

A `Cost` is a list of terms. A `Fixed` term states an event at one unit and so at every
unit that it covers. `GaussianOverBalls` and `PureOverBalls` state a whole curve over
the balls of one space: the result moves by at most Delta(r) when a record moves by r,
and the noise turns that movement into a cost. `Searched` is the cost of the best of a
secret number of runs, from the costs of what a run may be.

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
    BestOf,
    Event,
    GaussianEvent,
    Neighbours,
    Pure,
    Repeated,
    Sampled,
    for_group,
)
from demur.core.accounting.repetitions import (
    Repetitions,
    law_from_json,
    law_to_json,
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
        for atom in events.single_atoms(self.event):
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


BasicTerm: TypeAlias = Fixed | GaussianOverBalls | PureOverBalls

_SMALL = 1e-9  # a radius that every curve covers


@dataclass(frozen=True)
class Searched:
    """The best of a secret number of runs, each of which costs one of `runs`.

    A run is a cost and how often it is paid: `(cost, 1)` for a head, `(cost, 900)` for
    a plan of 900 draws. At a unit it is stated if every run is.
    """

    runs: tuple[tuple[Cost, int], ...]
    repetitions: Repetitions

    def __post_init__(self) -> None:
        runs = tuple(dict.fromkeys((cost, int(count)) for cost, count in self.runs))
        object.__setattr__(self, "runs", runs)
        if not runs:
            raise ValueError("runs must not be empty: a search runs something")
        for cost, count in runs:
            validate.count(count=count)
            if cost.covers_erasure() or any(
                isinstance(t, Searched) for t in cost.terms
            ):
                raise ValueError("a search of deletions or of searches has no cost")

    def at(self, unit: Unit) -> Event | None:
        """The best of the runs' events at `unit`; NotCovered if one has none."""
        alternatives = []
        for cost, count in self.runs:
            event = cost.at(unit)
            alternatives.append(Repeated(event, count) if count > 1 else event)
        return BestOf(tuple(alternatives), self.repetitions)

    def to_json(self) -> dict[str, Any]:
        """The term as plain data."""
        return {
            "term": "searched",
            "runs": [[cost.to_json(), count] for cost, count in self.runs],
            "repetitions": law_to_json(self.repetitions),
        }


Term: TypeAlias = BasicTerm | Searched


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
        stated, reasons = self._stated(unit, maps)
        if not stated:
            why = f" ({'; '.join(reasons)})" if reasons else ""
            raise NotCovered(
                f"no cost is stated at unit {unit}: it was declared for"
                f" {', '.join(self.stated_units())} only{why}. Nothing was spent."
            )
        return _cheapest(stated)

    def covers(self, unit: Unit) -> bool:
        """Whether a cost is stated at `unit`."""
        return bool(self._stated(unit)[0])

    def _stated(
        self, unit: Unit, maps: Iterable[LipschitzMap] = ()
    ) -> tuple[list[Event], list[str]]:
        """The events of all terms at `unit`, and why terms that failed did."""
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
        return stated, reasons

    def basic_terms(self) -> tuple[BasicTerm, ...]:
        """All terms, with those of the runs of a search in its place."""
        found: list[BasicTerm] = []
        for term in self.terms:
            if isinstance(term, Searched):
                for cost, _ in term.runs:
                    found += cost.basic_terms()
            else:
                found.append(term)
        return tuple(dict.fromkeys(found))

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
        """The units that this cost is stated at, for messages and reports.

        A search is stated where all of its runs are, so not at every unit of a run.
        """
        names: dict[str, None] = {}
        for term in self.basic_terms():
            if not isinstance(term, Fixed):
                if self.covers(Ball(_SMALL, space=term.space)):
                    names[f"Ball(..., space={term.space!r})"] = None
            elif self.covers(term.unit):
                names[str(term.unit)] = None
        return list(names)

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
        case {"term": "searched", "runs": list(runs), "repetitions": law}:
            costs = tuple((Cost.from_json(cost), count) for cost, count in runs)
            return Searched(costs, law_from_json(law))
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
