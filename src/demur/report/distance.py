"""The cost of a ledger as a function of distance, and at units without a distance.

For every space that an entry or a budget covers: the tight epsilon of the whole ledger,
and of its costliest entries alone, at balls of growing radius. Besides them the units
that have no distance: replacement, presence, and (separate, never added) erasure.
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
from demur.ledger import Group, Ledger, Readings

_POINTS = 16
_ALONE = 5  # entries drawn besides the total; more lines could not be read
_FAR = 1e6  # a knot at such a distance means "any", and is not drawn


@dataclass(frozen=True)
class UnitCost:
    """The ledger at a unit without a distance; None where it cannot be read."""

    name: str
    unit: str
    delta: float
    epsilon: float | None
    budget: float | None


@dataclass(frozen=True)
class GroupCost:
    """Equal entries of the ledger, read without the others."""

    label: str
    entries: int
    epsilon: tuple[float | None, ...]


@dataclass(frozen=True)
class BallBudget:
    """A budget at a ball of the space."""

    radius: float
    epsilon: float
    delta: float
    tight_epsilon: float | None


@dataclass(frozen=True)
class SpaceCost:
    """Epsilon over the radii of the balls of one space."""

    space: str
    delta: float
    radii: tuple[float, ...]
    epsilon: tuple[float | None, ...]
    costliest: tuple[GroupCost, ...]
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


def unit_costs(
    ledger: Ledger, readings: Readings, entries: Sequence[Entry]
) -> tuple[UnitCost, ...]:
    """The ledger at each unit without a distance that an entry or budget covers."""
    covered = _covered(ledger, entries)
    units: list[Unit] = []
    for unit in _WITHOUT_DISTANCE:
        same = [u for u, _ in ledger.terms.budgets if type(u) is type(unit)]
        if not same and type(unit) in {type(u) for u in covered}:
            same = [unit]
        units += same
    costs = []
    for unit in units:
        budget = dict(ledger.terms.budgets).get(unit)
        delta = budget.delta if budget else _delta(ledger, isinstance(unit, Erasure))
        costs.append(
            UnitCost(
                unit_name(unit),
                str(unit),
                delta,
                readings.epsilon(unit, delta),
                None if budget is None else budget.epsilon,
            )
        )
    return tuple(costs)


def space_costs(
    ledger: Ledger, readings: Readings, entries: Sequence[Entry]
) -> tuple[SpaceCost, ...]:
    """The cost over distance in each space, those with a budget first."""
    spaces = {u.space for u in _covered(ledger, entries) if isinstance(u, Ball)}
    budgeted = {u.space for u, _ in ledger.terms.budgets if isinstance(u, Ball)}
    order = sorted(spaces, key=lambda space: (space not in budgeted, space))
    return tuple(_space_cost(ledger, readings, entries, space) for space in order)


def _covered(ledger: Ledger, entries: Sequence[Entry]) -> list[Unit]:
    """Units of budgets and of declarations; a curve counts as a ball."""
    units: list[Unit] = [unit for unit, _ in ledger.terms.budgets]
    for declaration in {entry.declaration for entry in entries}:
        for term in declaration.cost.basic_terms():
            if isinstance(term, Fixed):
                units.append(term.unit)
            else:
                units.append(Ball(1.0, space=term.space))
    return units


def _delta(ledger: Ledger, erasure: bool = False) -> float:
    """The largest delta of the ledger's budgets for this kind of unit."""
    budgets = ledger.terms.budgets
    same = [b.delta for u, b in budgets if isinstance(u, Erasure) == erasure]
    return max(same or [b.delta for _, b in budgets])


def _space_cost(
    ledger: Ledger, readings: Readings, entries: Sequence[Entry], space: str
) -> SpaceCost:
    budgets = [
        (u.radius, b)
        for u, b in ledger.terms.budgets
        if isinstance(u, Ball) and u.space == space
    ]
    delta = max((b.delta for _, b in budgets), default=_delta(ledger))
    knots = _knots(entries, space)
    for map_ in ledger.terms.maps:
        # Corners of a space that this one maps into, at their distance in this one.
        if map_.source == space:
            knots += [r / map_.constant for r in _knots(entries, map_.target)]
    radii = _radii([r for r, _ in budgets] + knots)
    balls = [Ball(r, space=space) for r in radii]
    priced = [g for g in readings.groups if not g.declaration.cost.only_erasure()]
    costliest = [
        GroupCost(
            g.example,
            g.entries,
            tuple(readings.epsilon(ball, delta, [g]) for ball in balls),
        )
        for g in _costliest(readings, priced, balls[-1], delta)
    ]
    return SpaceCost(
        space=space,
        delta=delta,
        radii=tuple(radii),
        epsilon=tuple(readings.epsilon(ball, delta) for ball in balls),
        costliest=tuple(costliest) if len(priced) > 1 else (),
        groups=len(priced),
        budgets=tuple(
            BallBudget(
                r,
                b.epsilon,
                b.delta,
                readings.epsilon(Ball(r, space=space), b.delta),
            )
            for r, b in budgets
        ),
    )


def _knots(entries: Sequence[Entry], space: str) -> list[float]:
    """Radii where the curve of an entry has a corner, or that it declares."""
    knots = []
    for declaration in {entry.declaration for entry in entries}:
        for term in declaration.cost.basic_terms():
            if isinstance(term, Fixed):
                if isinstance(term.unit, Ball) and term.unit.space == space:
                    knots.append(term.unit.radius)
                continue
            if term.space != space:
                continue
            curve = (
                term.sensitivity
                if isinstance(term, GaussianOverBalls)
                else term.distance
            )
            knots += [r for r, _ in curve.knots if 0.0 < r < _FAR]
    return knots


def _radii(marked: list[float]) -> list[float]:
    """Evenly spaced radii up to a little beyond the largest mark, with the marks."""
    far = 1.15 * max(marked, default=1.0)
    marks = sorted(set(marked))
    if len(marks) > 12:  # a finely sampled curve: not every corner is needed
        marks = marks[:: len(marks) // 12]
    even = np.linspace(far / _POINTS, far, _POINTS).tolist()
    return sorted({far / 1000, *even, *marks})


def _costliest(
    readings: Readings, groups: list[Group], ball: Ball, delta: float
) -> list[Group]:
    """The groups that cost most at `ball`; those without a cost there come last."""
    if len(groups) <= _ALONE:
        return groups
    # Reading every group would take long: the largest ones are candidates.
    some = sorted(groups, key=lambda g: -g.count)[: 4 * _ALONE]
    costs = [readings.epsilon(ball, delta, [g]) for g in some]
    ranked = sorted(
        zip(some, costs, strict=True),
        key=lambda pair: -1.0 if pair[1] is None else -pair[1],
    )
    return [group for group, _ in ranked[:_ALONE]]
