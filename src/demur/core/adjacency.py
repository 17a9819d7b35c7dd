"""Units of privacy (neighbouring relations): which two datasets must look alike.

A unit names a relation between datasets. `a.covers(b)` holds when every pair of
datasets that `b` relates is also related by `a`, so that a promise at `a` is a promise
at `b`. It is strict: where the implication is not a plain inclusion, it is False.

- `ReplaceOne` relates datasets that differ in one record, label included; any pair
  at `Ball(r)` is such a pair, so it covers every `Ball`, whatever the space.
- `Ball(r, space)` relates datasets that differ in one record, same label, the two
  versions at distance at most r in the named space. Balls of different spaces do not
  cover each other: a metric says nothing about another metric. A declared
  `LipschitzMap` converts a radius.
- `AddOrRemoveOne` and `ZeroOut` cover only themselves: they relate datasets of
  different sizes, or by an empty record, as no other unit does.
- `Erasure` (learned then deleted, against never learned) covers and is covered by
  itself alone, so that a deletion is never added to a privacy cost.

`records_per_person = k` lets all k records of one person change at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from demur.core import validate
from demur.core.errors import NotCovered
from demur.core.rounding import product_up


@dataclass(frozen=True)
class _Unit:
    """What all units share: records per person, `covers`, words and a JSON form."""

    kind: ClassVar[str]
    sentence: ClassVar[str]

    def _relation_covers(self, other: _Unit) -> bool:
        return type(self) is type(other)

    @property
    def _records(self) -> int:
        return int(getattr(self, "records_per_person"))  # noqa: B009

    def covers(self, other: Unit) -> bool:
        """Whether a promise at this unit is a promise at `other`."""
        return self._records >= other._records and self._relation_covers(other)

    def to_json(self) -> dict[str, Any]:
        """The unit as plain data; `unit_from_json` reads it back."""
        return {"unit": self.kind} | asdict(self)

    def __str__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name != "records_per_person" or self._records != 1
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def describe(self, one: str = "one record") -> str:
        """The unit in words a privacy officer can read; `one` says what a record is."""
        persons = (
            one
            if self._records == 1
            else f"all of a person's records (at most {self._records})"
        )
        return self.sentence.format(persons=persons, **asdict(self))


@dataclass(frozen=True)
class AddOrRemoveOne(_Unit):
    """One record is present in one dataset and absent from the other."""

    records_per_person: int = 1
    kind: ClassVar[str] = "add_or_remove_one"
    sentence: ClassVar[str] = "the presence or absence of {persons}"

    def __post_init__(self) -> None:
        validate.count(records_per_person=self.records_per_person)


@dataclass(frozen=True)
class ReplaceOne(_Unit):
    """One record, label included, is replaced by any other; n is public."""

    records_per_person: int = 1
    kind: ClassVar[str] = "replace_one"
    sentence: ClassVar[str] = "any change to the content of {persons}"

    def __post_init__(self) -> None:
        validate.count(records_per_person=self.records_per_person)

    def _relation_covers(self, other: _Unit) -> bool:
        return isinstance(other, ReplaceOne | Ball)


@dataclass(frozen=True)
class ZeroOut(_Unit):
    """One record is replaced by an empty one that contributes nothing."""

    records_per_person: int = 1
    kind: ClassVar[str] = "zero_out"
    sentence: ClassVar[str] = "whether {persons} contributed or was blank"

    def __post_init__(self) -> None:
        validate.count(records_per_person=self.records_per_person)


@dataclass(frozen=True)
class Ball(_Unit):
    """One record moves by at most `radius` in a named space, keeping its label.

    >>> Ball(0.2, space="minilm").covers(Ball(0.1, space="minilm"))
    True
    >>> Ball(0.2, space="minilm").covers(Ball(0.1, space="cube"))
    False
    """

    radius: float
    space: str
    records_per_person: int = 1
    kind: ClassVar[str] = "ball"
    sentence: ClassVar[str] = (
        "a move of {persons} by at most {radius:g} in the space {space!r},"
        " labels unchanged"
    )

    def __post_init__(self) -> None:
        validate.positive(radius=self.radius)
        validate.name(space=self.space)
        validate.count(records_per_person=self.records_per_person)
        object.__setattr__(self, "radius", float(self.radius))

    def _relation_covers(self, other: _Unit) -> bool:
        return (
            isinstance(other, Ball)
            and self.space == other.space
            and self.radius >= other.radius
        )


@dataclass(frozen=True)
class Erasure(_Unit):
    """A record was learned and then deleted, or it was never learned."""

    records_per_person: int = 1
    kind: ClassVar[str] = "erasure"
    sentence: ClassVar[str] = (
        "whether {persons} was learned and then deleted, or never learned"
    )

    def __post_init__(self) -> None:
        validate.count(records_per_person=self.records_per_person)


Unit: TypeAlias = AddOrRemoveOne | ReplaceOne | ZeroOut | Ball | Erasure
# A mapping is invariant in its keys: {AddOrRemoveOne(): ...} is no Mapping[Unit, ...].
AnyUnit = TypeVar("AnyUnit", bound=_Unit)
_KINDS: dict[str, type[Unit]] = {
    cls.kind: cls for cls in (AddOrRemoveOne, ReplaceOne, ZeroOut, Ball, Erasure)
}


def unit_from_json(data: object) -> Unit:
    """The unit that `to_json` wrote; anything else is a ValueError."""
    kind = data.get("unit") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"not a unit of privacy: {validate.shorten(data)}")
    cls = _KINDS[kind]
    arguments = {key: value for key, value in data.items() if key != "unit"}
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ValueError(f"not a {cls.__name__}: {validate.shorten(data)}") from error


def one_record(unit: Unit) -> Unit:
    """The same unit for one record per person."""
    return replace(unit, records_per_person=1)


@dataclass(frozen=True)
class LipschitzMap:
    """A declared Lipschitz constant between two spaces.

    Two records at distance r in `source` are at most `constant` * r apart in `target`.

    >>> pixels_to_minilm = LipschitzMap("pixels", "minilm", constant=3.0)
    >>> round(pixels_to_minilm.convert(Ball(0.2, space="pixels")).radius, 9)
    0.6
    """

    source: str
    target: str
    constant: float

    def __post_init__(self) -> None:
        validate.name(source=self.source, target=self.target)
        validate.positive(constant=self.constant)

    def convert(self, ball: Ball) -> Ball:
        """The ball of the target space that holds the image of `ball`."""
        if ball.space != self.source:
            raise NotCovered(
                f"{ball} lies in the space {ball.space!r}; this map leads from"
                f" {self.source!r} to {self.target!r}. Nothing was spent."
            )
        return replace(
            ball, radius=product_up(ball.radius, self.constant), space=self.target
        )


def reachable_balls(ball: Ball, maps: Iterable[LipschitzMap]) -> list[Ball]:
    """`ball` and its images under `maps`, in every space they lead to.

    Each space has the smallest radius over all paths that visit no space twice: along
    a cycle that shrinks every distance the radius would fall to 0. A map whose image
    has no finite radius is left out.
    """
    maps = tuple(maps)
    smallest = {ball.space: ball}
    waiting = [(ball, frozenset({ball.space}))]
    while waiting:
        before, seen = waiting.pop()
        for step in maps:
            if step.source != before.space or step.target in seen:
                continue
            radius = product_up(before.radius, step.constant)
            if not 0.0 < radius < math.inf:
                continue
            image = replace(before, radius=radius, space=step.target)
            waiting.append((image, seen | {step.target}))
            known = smallest.get(step.target)
            if known is None or radius < known.radius:
                smallest[step.target] = image
    return list(smallest.values())
