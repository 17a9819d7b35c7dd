"""The cost of a ledger as a function of the distance between two records.

For every space that some entry or budget speaks of: the tight epsilon of the whole
ledger, and of its costliest entries alone, at balls of growing radius. Beside it the
units that have no distance: replacement, presence, and (alone, never added) erasure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demur.core.adjacency import (
    AddOrRemoveOne,
    Ball,
    Erasure,
    ReplaceOne,
    Unit,
    ZeroOut,
)
from demur.core.cost import Fixed, GaussianOverBalls
from demur.core.entry import Entry
from demur.ledger import Ledger
from demur.ledger.reading import Group
from demur.ledger.series import groups_of, over_units

_POINTS = 16
_ALONE = 5  # entries drawn beside the total; more cannot be told apart
_FAR = 1e6  # a knot out there says "any distance", and is no place to draw


@dataclass(frozen=True)
class UnitCost:
    """The ledger at a unit without a distance; None: it cannot be read there."""

    name: str
    unit: str
    delta: float
    epsilon: float | None
    budget: float | None


@dataclass(frozen=True)
class Alone:
    """Equal entries of the ledger, read without the others."""

    label: str
    entries: int
    epsilon: tuple[float | None, ...]


@dataclass(frozen=True)
class BallBudget:
    """Where a budget stands on the picture."""

    radius: float
    epsilon: float
    delta: float
    tight_epsilon: float | None


@dataclass(frozen=True)
class World:
    """A space, and epsilon over the radii of its balls."""

    space: str
    delta: float
    radii: tuple[float, ...]
    epsilon: tuple[float | None, ...]
    alone: tuple[Alone, ...]
    groups: int
    budgets: tuple[BallBudget, ...]


_WITHOUT_DISTANCE: tuple[Unit, ...] = (
    ReplaceOne(),
    AddOrRemoveOne(),
    ZeroOut(),
    Erasure(),
)


def unit_name(unit: Unit) -> str:
    """A unit in a few words, for headings and axes.

    >>> unit_name(Ball(0.25, space="pixels"))
    "ball of 0.25 in 'pixels'"
    """
    name = unit.kind.replace("_", " ")
    if isinstance(unit, Ball):
        name = f"ball of {unit.radius:g} in {unit.space!r}"
    many = unit.records_per_person
    return name if many == 1 else f"{name}, {many} records a person"


def unit_costs(ledger: Ledger, entries: Sequence[Entry]) -> tuple[UnitCost, ...]:
    """Units without a distance that some entry or budget speaks of."""
    spoken = _spoken(ledger, entries)
    asked: list[Unit] = []
    for unit in _WITHOUT_DISTANCE:
        same = [u for u, _ in ledger.terms.budgets if type(u) is type(unit)]
        if not same and type(unit) in {type(u) for u in spoken}:
            same = [unit]
        asked += same
    found = []
    for unit in asked:
        budget = dict(ledger.terms.budgets).get(unit)
        delta = budget.delta if budget else _delta(ledger, isinstance(unit, Erasure))
        (epsilon,) = over_units(ledger, [unit], delta)
        found.append(
            UnitCost(
                unit_name(unit),
                str(unit),
                delta,
                epsilon,
                None if budget is None else budget.epsilon,
            )
        )
    return tuple(found)


def worlds(ledger: Ledger, entries: Sequence[Entry]) -> tuple[World, ...]:
    """A curve for each space that is spoken of, those with a budget first."""
    spaces = {u.space for u in _spoken(ledger, entries) if isinstance(u, Ball)}
    held = {u.space for u, _ in ledger.terms.budgets if isinstance(u, Ball)}
    groups = groups_of(ledger) if spaces else []
    order = sorted(spaces, key=lambda space: (space not in held, space))
    return tuple(_world(ledger, entries, groups, space) for space in order)


def _spoken(ledger: Ledger, entries: Sequence[Entry]) -> list[Unit]:
    """Units of budgets and of what entries declare; a curve counts as a ball."""
    found: list[Unit] = [unit for unit, _ in ledger.terms.budgets]
    for declaration in {entry.declaration for entry in entries}:
        for term in declaration.cost.terms:
            if isinstance(term, Fixed):
                found.append(term.unit)
            else:
                found.append(Ball(1.0, space=term.space))
    return found


def _delta(ledger: Ledger, erasure: bool = False) -> float:
    """The loosest delta that the ledger promises for the kind of unit."""
    budgets = ledger.terms.budgets
    same = [b.delta for u, b in budgets if isinstance(u, Erasure) == erasure]
    return max(same or [b.delta for _, b in budgets])


def _world(
    ledger: Ledger, entries: Sequence[Entry], groups: list[Group], space: str
) -> World:
    held = [
        (u.radius, b)
        for u, b in ledger.terms.budgets
        if isinstance(u, Ball) and u.space == space
    ]
    delta = max((b.delta for _, b in held), default=_delta(ledger))
    knots = _knots(entries, space)
    for known in ledger.terms.maps:
        # A corner of a space that this one maps into, as far away as it is from here.
        if known.source == space:
            knots += [r / known.constant for r in _knots(entries, known.target)]
    radii = _radii([r for r, _ in held] + knots)
    balls = [Ball(r, space=space) for r in radii]
    priced = [g for g in groups if not g.declaration.cost.only_erasure()]
    total = over_units(ledger, balls, delta)
    alone = [
        Alone(g.example, g.entries, tuple(over_units(ledger, balls, delta, [g])))
        for g in _costliest(ledger, priced, balls[-1], delta)
    ]
    return World(
        space=space,
        delta=delta,
        radii=tuple(radii),
        epsilon=tuple(total),
        alone=tuple(alone) if len(priced) > 1 else (),
        groups=len(priced),
        budgets=tuple(
            BallBudget(
                r,
                b.epsilon,
                b.delta,
                over_units(ledger, [Ball(r, space=space)], b.delta)[0],
            )
            for r, b in held
        ),
    )


def _knots(entries: Sequence[Entry], space: str) -> list[float]:
    """Radii where some entry's curve has a corner, or stands fixed."""
    found = []
    for declaration in {entry.declaration for entry in entries}:
        for term in declaration.cost.terms:
            if isinstance(term, Fixed):
                if isinstance(term.unit, Ball) and term.unit.space == space:
                    found.append(term.unit.radius)
                continue
            if term.space != space:
                continue
            curve = (
                term.sensitivity
                if isinstance(term, GaussianOverBalls)
                else term.distance
            )
            found += [r for r, _ in curve.knots if 0.0 < r < _FAR]
    return found


def _radii(marked: list[float]) -> list[float]:
    """Evenly up to a little beyond the last mark, with the marks themselves."""
    far = 1.15 * max(marked, default=1.0)
    kept = sorted(set(marked))
    if len(kept) > 12:  # a finely sampled curve needs no corner of its own
        kept = kept[:: len(kept) // 12]
    even = np.linspace(far / _POINTS, far, _POINTS).tolist()
    return sorted({far / 1000, *even, *kept})


def _costliest(
    ledger: Ledger, groups: list[Group], ball: Ball, delta: float
) -> list[Group]:
    """The groups that cost most at `ball`, or (not known there) come first."""
    if len(groups) <= _ALONE:
        return groups
    # One by one a long ledger would take long; a group's size is what it has most of.
    some = sorted(groups, key=lambda g: -g.count)[: 4 * _ALONE]
    costs = [over_units(ledger, [ball], delta, [g])[0] for g in some]
    ranked = sorted(
        zip(some, costs, strict=True),
        key=lambda pair: -1.0 if pair[1] is None else -pair[1],
    )
    return [group for group, _ in ranked[:_ALONE]]
