"""A cost grows with the radius and with the count, and falls with noise.

All of it is read off what the subject declares. Prices are compared at one delta; where
a mechanism also answers `event(unit)` by itself, it must say what its declaration says,
because users read the one and the ledger charges the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from demur.core.accounting import price
from demur.core.accounting.events import Event, Repeated
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.cost import Cost, Fixed
from demur.core.entry import epsilon_with_slack
from demur.core.errors import NotCovered, NotPriced
from demur.testing.result import require
from demur.testing.subject import Subject

RADII = (1e-6, 1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 1e3)
COUNTS = (1, 2, 3, 10)
# Prices of one event by two roads differ in their last bits.
_ROUNDING = 1e-9


def cost_grows_with_the_radius(subject: Subject) -> None:
    """A record that moves further is harder to hide, up to a whole replacement."""
    declared = subject.entry.declaration
    for space in spaces(declared.cost):
        prices = _prices_by_radius(subject, space)
        require(prices, f"nothing is said about any ball of {space!r}")
        for (r, less), (further, more) in pairwise(zip(RADII, prices, strict=False)):
            require(
                less <= more * (1 + _ROUNDING),
                f"a move by {r:g} in {space!r} costs {less:g}, and one by {further:g}"
                f" only {more:g}",
            )
        try:
            whole = _price(subject, _event(subject, ReplaceOne()))
        except NotCovered:
            continue
        require(
            prices[-1] <= whole * (1 + _ROUNDING),
            f"a move costs up to {prices[-1]:g}, a whole replacement only {whole:g}",
        )


def cost_grows_with_the_count(subject: Subject) -> None:
    """Twice is more than once, and k records of a person more than one."""
    for unit in units(subject):
        once = _event(subject, unit)
        prices = [_price(subject, Repeated(once, k) if k > 1 else once) for k in COUNTS]
        _require_growing(prices, f"{COUNTS} runs at {unit}")


def a_person_of_several_records_costs_more(subject: Subject) -> None:
    """The unit of a person with k records is refused, or dearer than that of one."""
    for unit in units(subject):
        prices = []
        for k in COUNTS:
            arguments = {**vars(unit), "records_per_person": k}
            try:
                prices.append(_price(subject, _event(subject, type(unit)(**arguments))))
            except (NotCovered, NotPriced):
                require(k > 1, f"nothing is said about {unit} itself")
                break
        _require_growing(prices, f"persons of {COUNTS[: len(prices)]} records")


def cost_falls_with_noise(subject: Subject) -> None:
    """More noise is cheaper, at every unit that the cost speaks of."""
    if not subject.noisier:
        return
    before = subject.entry.declaration
    ledger = subject.ledger()
    subject.run(ledger, made=subject.make(**subject.noisier))
    after = ledger.written[-1].declaration
    for unit in units(subject):
        less = _price(subject, after.cost.at(unit))
        more = _price(subject, before.cost.at(unit))
        require(
            less < more or more == 0.0,
            f"with more noise ({dict(subject.noisier)}) it costs {less:g} at {unit},"
            f" without {more:g}",
        )


def prices_are_numbers(subject: Subject) -> None:
    """Every price is finite and from 0; a sampler's distance is small."""
    declared = subject.entry.declaration
    for unit in units(subject):
        found = _price(subject, _event(subject, unit))
        require(0.0 <= found < math.inf, f"the price at {unit} is {found}")
    require(
        0.0 <= declared.sampler_distance < subject.delta or not subject.delta,
        f"sampler_distance is {declared.sampler_distance:g}",
    )


def event_agrees_with_the_declaration(subject: Subject) -> None:
    """What a subject says at a unit by itself is what the ledger is told."""
    ask = getattr(subject.make(), "event", None)
    if not callable(ask):
        return
    cost = subject.entry.declaration.cost
    count = subject.entry.count
    for unit in units(subject):
        said = ask(unit)
        recorded = cost.at(unit)
        whole = Repeated(recorded, count) if count > 1 else recorded
        mine, its = _price(subject, said), _price(subject, whole)
        require(
            math.isclose(mine, its, rel_tol=1e-6, abs_tol=1e-12),
            f"event({unit}) is {said!r:.80}, the declaration says {whole!r:.80}",
        )


def silent_about_what_it_does_not_know(subject: Subject) -> None:
    """A ball of another space is not covered, unless any replacement is."""
    cost = subject.entry.declaration.cost
    speaks_of_all = any(
        isinstance(term, Fixed) and isinstance(term.unit, ReplaceOne)
        for term in cost.terms
    )
    other = Ball(0.1, space="a space that nobody named")
    try:
        _event(subject, other)
    except NotCovered as error:
        require("othing was spent" in str(error), f"it does not say so: {error}")
    else:
        require(speaks_of_all, f"it claims to know the price of {other}")


CONTRACTS = (
    cost_grows_with_the_radius,
    cost_grows_with_the_count,
    a_person_of_several_records_costs_more,
    cost_falls_with_noise,
    prices_are_numbers,
    event_agrees_with_the_declaration,
    silent_about_what_it_does_not_know,
)


def spaces(cost: Cost) -> list[str]:
    """The spaces in which a cost speaks of balls."""
    found: dict[str, None] = {}
    for term in cost.terms:
        if not isinstance(term, Fixed):
            found[term.space] = None
        elif isinstance(term.unit, Ball):
            found[term.unit.space] = None
    return list(found)


def units(subject: Subject) -> Iterator[Unit]:
    """Units to ask at: those of the terms, and a ball in every space."""
    yield subject.unit
    for term in subject.entry.declaration.cost.terms:
        if isinstance(term, Fixed):
            if term.unit != subject.unit:
                yield term.unit
        else:
            yield Ball(0.25, space=term.space)


def _prices_by_radius(subject: Subject, space: str) -> list[float]:
    """Prices at RADII, up to the first that is too far for the cost."""
    found: list[float] = []
    for radius in RADII:
        try:
            event = _event(subject, Ball(radius, space=space))
        except NotCovered:
            break
        found.append(_price(subject, event))
    return found


def _event(subject: Subject, unit: Unit) -> Event:
    """The event at a unit: from the subject itself, where it answers, or declared."""
    ask: Any = getattr(subject.make(), "event", None)
    entry = subject.entry
    if callable(ask) and entry.count == 1:
        event: Event = ask(unit)
        return event
    return entry.declaration.cost.at(unit)


def _price(subject: Subject, event: Event) -> float:
    distance = subject.entry.declaration.sampler_distance
    if not subject.delta:
        return price(event, 0.0)
    return epsilon_with_slack(event, subject.delta, distance)


def _require_growing(prices: list[float], over: str) -> None:
    for less, more in pairwise(prices):
        require(
            less < more or more == 0.0,
            f"the price does not grow over {over}: {[f'{p:g}' for p in prices]}",
        )
