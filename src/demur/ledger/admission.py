"""Whether a charge fits: the ways to pay for it, and the one that is taken.

A filter may know several prices for one event. A charge is admitted if every budget
that it concerns can pay in one of them, and moves all totals or none.
"""

from __future__ import annotations

from fractions import Fraction

from demur.core.accounting.events import Repeated
from demur.core.adjacency import Erasure
from demur.core.declaration import Declaration
from demur.core.errors import BudgetExceeded, NotCovered
from demur.ledger import filters
from demur.ledger.filters import Amounts
from demur.ledger.terms import Terms

Ways = list[list[Amounts] | None]


def ways_to_pay(
    terms: Terms, declaration: Declaration, count: int, block_delta: float | None
) -> Ways:
    """For each budget the ways to pay; None where the budget is not concerned."""
    cost = declaration.cost
    deletion = cost.only_erasure()
    ways: Ways = []
    for unit, budget in terms.budgets:
        # A deletion says nothing about privacy, nor most mechanisms about deletion.
        if not cost.speaks_of_erasure() if isinstance(unit, Erasure) else deletion:
            ways.append(None)
            continue
        event = cost.at(unit, terms.maps)
        whole = Repeated(event, count) if count > 1 else event
        distance = Fraction(declaration.sampler_distance) * count
        ways.append(filters.spends(terms.filter, budget, whole, distance, block_delta))
    if all(way is None for way in ways):
        raise NotCovered(
            f"{declaration.name!r} speaks of {', '.join(cost.spoken_of())}; this"
            " ledger has budgets at"
            f" {', '.join(str(u) for u, _ in terms.budgets)}."
            " Nothing was spent."
        )
    return ways


def pay(
    terms: Terms, label: str, ways: Ways, totals: list[Amounts]
) -> list[Amounts | None]:
    """Move the totals, in place, or decline as a whole."""
    spent: list[Amounts | None] = []
    rule = terms.filter
    for position, (unit, budget) in enumerate(terms.budgets):
        options = ways[position]
        if options is None:
            spent.append(None)
            continue
        after = [filters.add(totals[position], option) for option in options]
        fitting = [
            i for i, total in enumerate(after) if filters.fits(rule, budget, total)
        ]
        if not fitting:
            reasons = " or ".join(filters.over(rule, budget, a) for a in after)
            now = filters.spent_epsilon(rule, budget, totals[position])
            raise BudgetExceeded(
                f"{label!r} would {reasons} (delta {budget.delta:g}) at {unit};"
                f" {now:.6g} is spent so far. Declined: nothing was released and"
                " nothing was spent. Use more noise, or ask whoever set the budget."
            )
        totals[position] = after[fitting[0]]
        spent.append(options[fitting[0]])
    return spent
