"""Contracts of costs: they grow with radius and count, and fall with more noise.

Costs are taken from the subject's declaration, and prices are compared at one delta. A
mechanism that also has a method `event(unit)` must agree with its declaration: users
read the one and the ledger charges the other.
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
# Prices of one event computed in two ways differ in their last bits.
_ROUNDING = 1e-9


def cost_grows_with_the_radius(subject: Subject) -> None:
    """A record that moves further is harder to hide, up to a whole replacement."""
    declared = subject.entry.declaration
    for space in spaces(declared.cost):
        prices = _prices_by_radius(subject, space)
        require(prices, f"no ball of {space!r} has a cost")
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
    """A unit of k records per person has no cost, or a larger one than k = 1."""
    for unit in units(subject):
        prices = []
        for k in COUNTS:
            arguments = {**vars(unit), "records_per_person": k}
            try:
                prices.append(_price(subject, _event(subject, type(unit)(**arguments))))
            except (NotCovered, NotPriced):
                require(k > 1, f"{unit} itself has no cost")
                break
        _require_growing(prices, f"persons of {COUNTS[: len(prices)]} records")


def cost_falls_with_noise(subject: Subject) -> None:
    """More noise costs less, at every unit that the cost covers."""
    if not subject.noisier:
        return
    before = subject.entry.declaration
    ledger = subject.ledger()
    subject.run(ledger, spender=subject.make(**subject.noisier))
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
    """Every price is finite and at least 0; a sampler's distance is small."""
    declared = subject.entry.declaration
    for unit in units(subject):
        epsilon = _price(subject, _event(subject, unit))
        require(0.0 <= epsilon < math.inf, f"the price at {unit} is {epsilon}")
    require(
        0.0 <= declared.sampler_distance < subject.delta or not subject.delta,
        f"sampler_distance is {declared.sampler_distance:g}",
    )


def event_agrees_with_the_declaration(subject: Subject) -> None:
    """`event(unit)` of a subject is the event that the ledger charges."""
    ask = getattr(subject.make(), "event", None)
    if not callable(ask):
        return
    cost = subject.entry.declaration.cost
    count = subject.entry.count
    for unit in units(subject):
        event, declared = ask(unit), cost.at(unit)
        whole = Repeated(declared, count) if count > 1 else declared
        price_of_event, charged = _price(subject, event), _price(subject, whole)
        require(
            math.isclose(price_of_event, charged, rel_tol=1e-6, abs_tol=1e-12),
            f"event({unit}) is {event!r:.80}, the declaration has {whole!r:.80}",
        )


def units_outside_the_declaration_have_no_cost(subject: Subject) -> None:
    """A ball of another space has no cost, unless any replacement has one."""
    cost = subject.entry.declaration.cost
    covers_all = any(
        isinstance(term, Fixed) and isinstance(term.unit, ReplaceOne)
        for term in cost.basic_terms()
    )
    other = Ball(0.1, space="a space that nobody named")
    try:
        _event(subject, other)
    except NotCovered as error:
        require(
            "othing was spent" in str(error),
            f"the error does not say that nothing was spent: {error}",
        )
    else:
        require(covers_all, f"it has a cost at {other}")


CONTRACTS = (
    cost_grows_with_the_radius,
    cost_grows_with_the_count,
    a_person_of_several_records_costs_more,
    cost_falls_with_noise,
    prices_are_numbers,
    event_agrees_with_the_declaration,
    units_outside_the_declaration_have_no_cost,
)


def spaces(cost: Cost) -> list[str]:
    """The spaces whose balls a cost covers."""
    names: dict[str, None] = {}
    for term in cost.basic_terms():
        if not isinstance(term, Fixed):
            names[term.space] = None
        elif isinstance(term.unit, Ball):
            names[term.unit.space] = None
    return list(names)


def units(subject: Subject) -> Iterator[Unit]:
    """The units to test: those of the terms, and a ball in every space."""
    yield subject.unit
    cost = subject.entry.declaration.cost
    for term in cost.basic_terms():
        if not isinstance(term, Fixed):
            yield Ball(0.25, space=term.space)
        # A search has no cost at units that only some of its runs cover.
        elif term.unit != subject.unit and cost.covers(term.unit):
            yield term.unit


def _prices_by_radius(subject: Subject, space: str) -> list[float]:
    """Prices at RADII, up to the first radius that the cost does not cover."""
    prices: list[float] = []
    for radius in RADII:
        try:
            event = _event(subject, Ball(radius, space=space))
        except NotCovered:
            break
        prices.append(_price(subject, event))
    return prices


def _event(subject: Subject, unit: Unit) -> Event:
    """The event at a unit: from the subject's `event`, if it has one, or declared."""
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
