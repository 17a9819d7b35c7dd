"""Privacy events: what was done to the data, as small frozen values.

An event describes the pair of output distributions of a mechanism at *one* unit; it
has no relation of its own beyond what its name says. `GaussianEvent(z)` is the pair
N(0, z^2) against N(1, z^2): the sensitivity is already the one of the unit at hand, so
no accountant may rescale it (dp_accounting's PLD does under REPLACE_ONE, its RDP does
not). Subsampled events are the exception, because their dominating pair differs by
relation: they name it.

The JSON form is versioned and has an allow-list of types. It is parsed by plain
look-up: nothing named in the data is ever imported or called. Events are never removed
and their meaning never changes; a new meaning is a new type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from demur.core import validate
from demur.core.accounting.repetitions import Repetitions, law_from_json, law_to_json
from demur.core.errors import NotPriced
from demur.core.rounding import product_up, quotient_down

SCHEMA_VERSION = 1
_DEEPEST = 16
_MOST_EVENTS = 100_000
_LARGEST_COUNT = 2**62


class Neighbours(StrEnum):
    """The relation a subsampled event is stated for."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise; `multiplier` = sigma / sensitivity at the unit. mu = 1 / it."""

    multiplier: float

    def __post_init__(self) -> None:
        validate.positive(multiplier=self.multiplier)
        object.__setattr__(self, "multiplier", float(self.multiplier))


@dataclass(frozen=True)
class Pure:
    """Any mechanism whose log-likelihood ratio never exceeds `epsilon`."""

    epsilon: float

    def __post_init__(self) -> None:
        validate.non_negative(epsilon=self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True)
class ApproxDP:
    """Any mechanism that is (epsilon, delta)-indistinguishable at the unit."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        validate.non_negative(epsilon=self.epsilon)
        validate.probability(delta=self.delta)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True)
class PoissonGaussian:
    """Gaussian noise on the sum over a Poisson sample of the records.

    `multiplier` = sigma / the largest norm C of one record's contribution, whatever
    the relation: under replacement the sum moves by up to 2C, and the accountant
    knows.
    """

    probability: float
    multiplier: float
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        validate.probability(probability=self.probability)
        validate.positive(multiplier=self.multiplier)
        object.__setattr__(self, "probability", float(self.probability))
        object.__setattr__(self, "multiplier", float(self.multiplier))
        relation = validate.choice(Neighbours, neighbours=self.neighbours)
        object.__setattr__(self, "neighbours", relation)

    @property
    def whole_multiplier(self) -> float:
        """sigma / sensitivity when every record takes part."""
        twice = self.neighbours is Neighbours.REPLACE_ONE
        return self.multiplier / 2 if twice else self.multiplier


@dataclass(frozen=True)
class TruncatedPoissonGaussian:
    """A Poisson sample cut at random to at most `batch_size` of `dataset_size`."""

    dataset_size: int
    probability: float
    batch_size: int
    multiplier: float
    neighbours: Neighbours = Neighbours.ZERO_OUT

    def __post_init__(self) -> None:
        validate.count(dataset_size=self.dataset_size, batch_size=self.batch_size)
        object.__setattr__(self, "dataset_size", int(self.dataset_size))
        object.__setattr__(self, "batch_size", int(self.batch_size))
        validate.probability(probability=self.probability)
        validate.positive(multiplier=self.multiplier)
        object.__setattr__(self, "probability", float(self.probability))
        object.__setattr__(self, "multiplier", float(self.multiplier))
        relation = validate.choice(Neighbours, neighbours=self.neighbours)
        object.__setattr__(self, "neighbours", relation)
        if self.neighbours is Neighbours.ADD_OR_REMOVE_ONE:
            raise ValueError(
                "neighbours must be zero_out or replace_one for a truncated sample:"
                " its dataset_size is public; got add_or_remove_one"
            )


@dataclass(frozen=True)
class AllocatedGaussian:
    """Gaussian noise on `steps` sums; a record is in one of them, uniformly.

    `multiplier` = sigma / the largest norm of one record's contribution. A record that
    is replaced has no known dominating pair, so that relation is refused.
    """

    steps: int
    multiplier: float
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        object.__setattr__(self, "steps", int(self.steps))
        validate.positive(multiplier=self.multiplier)
        object.__setattr__(self, "multiplier", float(self.multiplier))
        relation = validate.choice(Neighbours, neighbours=self.neighbours)
        object.__setattr__(self, "neighbours", relation)
        if self.neighbours is Neighbours.REPLACE_ONE:
            raise ValueError(
                "neighbours must be add_or_remove_one or zero_out for a random"
                " allocation: for a replaced record no dominating pair is known; got"
                " replace_one"
            )

    @property
    def probability(self) -> float:
        """The chance to be in a given one of the sums."""
        return 1.0 / self.steps


@dataclass(frozen=True)
class Repeated:
    """The same event `count` times, each chosen without looking at the others."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _check_event(self.event)
        validate.count(count=self.count)
        object.__setattr__(self, "count", int(self.count))
        if self.count > _LARGEST_COUNT:
            raise ValueError(f"count must be at most 2^62; got {self.count}")


@dataclass(frozen=True)
class Composed:
    """Several events about the same data."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        # A tuple of our own: a caller's list could change under a frozen event.
        object.__setattr__(self, "events", tuple(self.events))
        for event in self.events:
            _check_event(event)


@dataclass(frozen=True)
class BestOf:
    """The best of a secret number of runs; each run is one of the `events`.

    The alternatives are what one run may be at the unit: the settings that a search
    tries, and its score on other persons. `accounting.selection` has the theorem.
    """

    events: tuple[Event, ...]
    repetitions: Repetitions

    def __post_init__(self) -> None:
        alternatives = tuple(dict.fromkeys(self.events))
        object.__setattr__(self, "events", alternatives)
        if not alternatives:
            raise ValueError("events must not be empty: a search runs something")
        for event in alternatives:
            _check_event(event)
            if any(isinstance(atom, BestOf) for atom in atoms(event)):
                raise ValueError("a search inside of a search has no price here")
        if not isinstance(self.repetitions, Repetitions):
            raise TypeError(
                "repetitions must be a law of repetitions; got"
                f" {validate.shorten(self.repetitions)}"
            )


def _no_event(event: object) -> TypeError:
    return TypeError(
        f"not an event: {validate.shorten(event)}. Give Pure(epsilon),"
        " GaussianEvent(multiplier) or another of demur.core.accounting.events."
    )


def _check_event(event: object) -> None:
    if not isinstance(event, Event):
        raise _no_event(event)


Sampled: TypeAlias = PoissonGaussian | TruncatedPoissonGaussian | AllocatedGaussian
Atom: TypeAlias = GaussianEvent | Pure | ApproxDP | Sampled | BestOf
Event: TypeAlias = Atom | Repeated | Composed

_TYPES: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "pure": Pure,
    "approx_dp": ApproxDP,
    "poisson_gaussian": PoissonGaussian,
    "truncated_poisson_gaussian": TruncatedPoissonGaussian,
    "allocated_gaussian": AllocatedGaussian,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}


def atoms(event: Event, count: int = 1) -> dict[Atom, int]:
    """The event as a multiset: each different atom with how often it happens."""
    counts: dict[Atom, int] = {}
    waiting: list[tuple[Event, int]] = [(event, count)]
    while waiting:
        current, times = waiting.pop()
        match current:
            case Repeated(event=inner, count=more):
                waiting.append((inner, times * more))
            case Composed(events=inners):
                waiting += [(inner, times) for inner in inners]
            case ApproxDP(epsilon=epsilon, delta=0.0):
                waiting.append((Pure(epsilon), times))
            case _:
                if type(current) not in _NAMES and not isinstance(current, BestOf):
                    raise _no_event(current)
                counts[current] = counts.get(current, 0) + times
    return counts


def single_atoms(event: Event) -> Iterator[Atom]:
    """Every different atom, and those of a search's alternatives in its place."""
    for atom in atoms(event):
        if isinstance(atom, BestOf):
            for alternative in atom.events:
                yield from single_atoms(alternative)
        else:
            yield atom


def from_atoms(counts: dict[Atom, int]) -> Event:
    """One event for a multiset of atoms; many equal ones become one with a count."""
    parts: list[Event] = [
        atom if count == 1 else Repeated(atom, count) for atom, count in counts.items()
    ]
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))


def compose(events: Iterable[Event]) -> Event:
    """All `events` as one, equal atoms merged."""
    return from_atoms(atoms(Composed(tuple(events))))


def for_group(event: Event, records: int) -> Event:
    """The event for a person who owns `records` records, from that for one record.

    The datasets are `records` steps apart: a Gaussian shift adds up to `records`
    sensitivities (exactly `records` * mu); the log-likelihood ratios of a pure
    mechanism add up to `records` * epsilon. Other events have no closed form and are
    refused.
    """
    validate.count(records=records)
    if records == 1:
        return event
    scaled: dict[Atom, int] = {}
    for atom, count in atoms(event).items():
        match atom:
            case GaussianEvent(multiplier=z):
                grouped: Atom = GaussianEvent(quotient_down(z, records))
            case Pure(epsilon=eps):
                grouped = Pure(product_up(eps, records))
            case BestOf(events=alternatives, repetitions=law):
                # The theorem holds at any distance, with the runs' events there.
                grouped = BestOf(
                    tuple(for_group(each, records) for each in alternatives), law
                )
            case _:
                raise NotPriced(
                    f"{type(atom).__name__} has no closed form for a person with"
                    f" {records} records: state the mechanism's own event at that"
                    " unit. Nothing was spent."
                )
        scaled[grouped] = scaled.get(grouped, 0) + count
    return from_atoms(scaled)


def _to_json(event: Event) -> dict[str, Any]:
    match event:
        case Repeated():
            return {
                "type": "repeated",
                "event": _to_json(event.event),
                "count": event.count,
            }
        case Composed():
            return {"type": "composed", "events": [_to_json(e) for e in event.events]}
        case BestOf():
            return {
                "type": "best_of",
                "events": [_to_json(e) for e in event.events],
                "repetitions": law_to_json(event.repetitions),
            }
        case _:
            values = {
                key: str(value) if isinstance(value, Neighbours) else value
                for key, value in vars(event).items()
            }
            return {"type": _NAMES[type(event)]} | values


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data, with the version of the schema."""
    return {"schema": SCHEMA_VERSION, "event": _to_json(event)}


def from_json(data: object) -> Event:
    """The event that `to_json` wrote; anything else is a ValueError.

    Depth and width are limited, so that hostile data costs nothing but the error.

    >>> from_json(to_json(Repeated(GaussianEvent(2.0), 3)))
    Repeated(event=GaussianEvent(multiplier=2.0), count=3)
    """
    if not isinstance(data, dict) or set(data) != {"schema", "event"}:
        raise ValueError(f"not an event record: {validate.shorten(data)}")
    if data["schema"] != SCHEMA_VERSION or isinstance(data["schema"], bool):
        raise ValueError(
            f"event schema {validate.shorten(data['schema'])} is not known; this"
            f" version reads {SCHEMA_VERSION}. A newer demur may have written it."
        )
    budget = [_MOST_EVENTS]
    try:
        return _parse(data["event"], _DEEPEST, budget)
    except TypeError as error:
        raise ValueError(f"not an event: {str(error)[:200]}") from error


def _parse(data: object, depth: int, budget: list[int]) -> Event:
    budget[0] -= 1
    if depth == 0 or budget[0] < 0:
        raise ValueError(
            f"an event record is at most {_DEEPEST} deep and {_MOST_EVENTS} wide"
        )
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ValueError(f"not an event: {validate.shorten(data)}")
    arguments = {key: value for key, value in data.items() if key != "type"}
    if data["type"] == "repeated":
        if set(arguments) != {"event", "count"}:
            raise ValueError(f"repeated takes event and count; got {set(arguments)}")
        return Repeated(
            _parse(arguments["event"], depth - 1, budget), arguments["count"]
        )
    if data["type"] == "composed":
        if set(arguments) != {"events"} or not isinstance(arguments["events"], list):
            raise ValueError("composed takes a list of events")
        return Composed(
            tuple(_parse(item, depth - 1, budget) for item in arguments["events"])
        )
    if data["type"] == "best_of":
        known = set(arguments) == {"events", "repetitions"}
        if not known or not isinstance(arguments["events"], list):
            raise ValueError("best_of takes a list of events, and repetitions")
        runs = tuple(_parse(item, depth - 1, budget) for item in arguments["events"])
        return BestOf(runs, law_from_json(arguments["repetitions"]))
    if data["type"] not in _TYPES:
        raise ValueError(
            f"event type {data['type'][:40]!r} is not known; known are"
            f" {sorted([*_TYPES, 'best_of', 'repeated', 'composed'])}"
        )
    atom: Atom = _TYPES[data["type"]](**arguments)
    return atom
