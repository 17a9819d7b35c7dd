"""Writing a budget down: a charge for entries that nobody can name any more.

Rows that a server lost, and for which there is no receipt, may have spent all that was
left, or as much as somebody can vouch for. Either is a budget: the lost entries fitted
into it under the ledger's filter. So each account of the filter is charged with what
that budget allows, exactly, and the declaration states the events that allow it:

- an account that adds up blocks by one (epsilon, delta) pair;
- meters by one Gaussian release, which every meter can price: its noise is such that no
  meter has more room than it takes.

Rounding in samplers has an account as well. Where all is written down nothing can be
spent afterwards, and it does not matter. Where somebody vouches for less, they vouch
for this, too: of the room for samplers that full use of the ledger's budget leaves, the
lost entries took no larger share than of epsilon. (demur's samplers take far less.)

What is declared is rounded down by 1e-12, so that its price is at most the amount that
is charged, as for any other entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from demur.core.accounting.events import ApproxDP, Event, GaussianEvent, Pure
from demur.core.adjacency import Unit
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.rounding import float_down
from demur.ledger.rules import filters
from demur.ledger.rules.admission import PaymentOptions, ways_to_pay
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import (
    BLOCK_DELTA,
    BLOCK_EPSILON,
    SAMPLERS,
    Amounts,
    Filter,
)
from demur.ledger.rules.meters import GaussianMeter, Meter
from demur.ledger.rules.terms import Terms

_ROUNDED = 1 - 1e-12


def lost_charges(
    terms: Terms, most: Mapping[Unit, Budget] | None, totals: list[Amounts], name: str
) -> list[tuple[Declaration, list[Amounts | None]]]:
    """What is charged for lost entries: declarations, and the amounts for each budget.

    They fitted into `most`, a budget for each unit, or into what `totals` leave of the
    ledger's own.
    """
    rooms: list[Amounts] = []
    for position, (unit, budget) in enumerate(terms.budgets):
        if most is None:
            rooms.append(_room(terms.filter, budget, totals[position]))
            continue
        part = most[unit]
        full = _room(terms.filter, budget, {})
        share = min(Fraction(part.epsilon) / Fraction(budget.epsilon), Fraction(1))
        samplers = filters.room_for_samplers(terms.filter, budget.delta, full) * share
        rooms.append(_room(terms.filter, part, {}) | {SAMPLERS: samplers})
    charges: list[tuple[Declaration, list[Amounts | None]]] = []
    for way, events in (
        (0, [_by_meters(terms.filter, room) for room in rooms]),
        (-1, [_by_blocks(room) for room in rooms]),  # the last way is a block
    ):
        if all(event is None for event in events):
            continue
        fixed = tuple(
            Fixed(unit, Pure(0.0) if event is None else event)
            for (unit, _), event in zip(terms.budgets, events, strict=True)
        )
        declaration = Declaration(name, Cost(fixed))
        ways = ways_to_pay(terms, declaration, 1, None)
        amounts = _amounts(ways, way, rooms, samplers=not charges)  # once
        charges.append((declaration, amounts))
    return charges


def _room(rule: Filter, budget: Budget, totals: Amounts) -> Amounts:
    """What a budget leaves in each account of the filter, exactly."""
    room: Amounts = {}
    for account, capacity in filters.capacities(rule, budget).items():
        used = totals.get(account, Fraction(0))
        room[account] = (
            Fraction(0) if used is None else max(Fraction(0), capacity - used)
        )
    return room


def _by_blocks(room: Amounts) -> Event | None:
    epsilon, delta = (
        float_down(room[account] or Fraction(0)) * _ROUNDED
        for account in (BLOCK_EPSILON, BLOCK_DELTA)
    )
    if epsilon == delta == 0.0:
        return None
    return ApproxDP(epsilon, delta) if delta else Pure(epsilon)


def _by_meters(rule: Filter, room: Amounts) -> Event | None:
    noises = [
        _noise(meter, room[meter.account] or Fraction(0)) for meter in rule.meters
    ]
    smallest = min(noises, default=math.inf)
    return None if math.isinf(smallest) else GaussianEvent(smallest / _ROUNDED)


def _noise(meter: Meter, amount: Fraction) -> float:
    """The noise multiplier of a Gaussian release that takes this amount of a meter."""
    if not amount:
        return math.inf
    scale = Fraction(2 if isinstance(meter, GaussianMeter) else meter.order, 2)
    square = scale / amount
    # So little that no event takes it: nothing is lost in it either.
    return math.inf if square > 10**300 else math.sqrt(square)


def _amounts(
    ways: PaymentOptions, way: int, rooms: list[Amounts], *, samplers: bool
) -> list[Amounts | None]:
    """One way to pay for each budget, with no account below its room."""
    chosen: list[Amounts | None] = []
    for options, room in zip(ways, rooms, strict=True):
        if options is None:
            chosen.append(None)
            continue
        amounts: Amounts = {
            account: amount and max(amount, room.get(account) or Fraction(0))
            for account, amount in options[way].items()
        }
        if samplers and room.get(SAMPLERS):
            amounts[SAMPLERS] = room[SAMPLERS]
        chosen.append(amounts)
    return chosen
