"""Admission of a charge: its prices, checked against the budgets of the ledger.

A filter may have several prices for one event. A charge is admitted if every budget
that it concerns can pay one of them; it changes all totals or none.
"""

from __future__ import annotations

from fractions import Fraction

from demur.core.accounting.events import Repeated
from demur.core.adjacency import Erasure
from demur.core.declaration import Declaration
from demur.core.errors import BudgetExceeded, NotCovered
from demur.core.rounding import printed_up
from demur.ledger.rules import filters
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms

PaymentOptions = list[list[Amounts] | None]

# Another version of the accountant may differ in its last digits.
_SAME = 1 - Fraction(1, 10**9)


def ways_to_pay(
    terms: Terms, declaration: Declaration, count: int, block_delta: float | None
) -> PaymentOptions:
    """For each budget the ways to pay; None where the budget is not concerned."""
    cost = declaration.cost
    deletion = cost.only_erasure()
    ways: PaymentOptions = []
    for unit, budget in terms.budgets:
        # A deletion has no privacy cost, and most mechanisms have none for deletion.
        if not cost.covers_erasure() if isinstance(unit, Erasure) else deletion:
            ways.append(None)
            continue
        event = cost.at(unit, terms.maps)
        whole = Repeated(event, count) if count > 1 else event
        distance = Fraction(declaration.sampler_distance) * count
        ways.append(
            filters.payment_options(terms.filter, budget, whole, distance, block_delta)
        )
    if all(way is None for way in ways):
        raise NotCovered(
            f"{declaration.name!r} states its cost at {', '.join(cost.stated_units())},"
            " and this ledger has budgets at"
            f" {', '.join(str(u) for u, _ in terms.budgets)}. Nothing was spent."
        )
    return ways


def pay(
    terms: Terms, label: str, ways: PaymentOptions, totals: list[Amounts]
) -> list[Amounts | None]:
    """Add the charge to the totals, in place, or decline it as a whole."""
    spent: list[Amounts | None] = []
    rule = terms.filter
    for position, (_, budget) in enumerate(terms.budgets):
        options = ways[position]
        if options is None:
            spent.append(None)
            continue
        after = [filters.add(totals[position], option) for option in options]
        fitting = [
            i for i, total in enumerate(after) if filters.fits(rule, budget, total)
        ]
        if not fitting:
            raise _declined(terms, label, position, totals[position], after)
        totals[position] = after[fitting[0]]
        spent.append(options[fitting[0]])
    return spent


def is_paid(ways: PaymentOptions, spent: list[Amounts | None]) -> bool:
    """Whether one way to pay was paid for each budget that is concerned."""
    if len(ways) != len(spent):
        return False
    return all(
        (options is None) == (paid is None)
        and (
            options is None
            or paid is None
            or any(_covers(paid, option) for option in options)
        )
        for options, paid in zip(ways, spent, strict=True)
    )


def _covers(paid: Amounts, option: Amounts) -> bool:
    """Whether each account of one way to pay got what it asks for, or was used up."""
    for account, amount in option.items():
        given = paid.get(account, Fraction(0))
        if given is not None and (amount is None or given < amount * _SAME):
            return False
    return True


def _declined(
    terms: Terms, label: str, position: int, before: Amounts, after: list[Amounts]
) -> BudgetExceeded:
    """The error for a charge that would take a budget to any of the totals `after`."""
    rule, (unit, budget) = terms.filter, terms.budgets[position]
    for totals in after:
        no_delta = filters.too_little_for_samplers(rule, budget, totals)
        if no_delta is None:
            continue
        return BudgetExceeded(
            f"{label!r} does not fit the budget at {unit}: {no_delta}. Declined:"
            " nothing was released and nothing was spent."
        )
    reasons = " or ".join(
        filters.overdraft_words(rule, budget, totals) for totals in after
    )
    spent = printed_up(filters.spent_epsilon(rule, budget, before))
    return BudgetExceeded(
        f"{label!r} would {reasons} (delta {budget.delta:g}) at {unit}; {spent} is"
        " spent so far. Use more noise, or ask whoever set the budget. Declined:"
        " nothing was released and nothing was spent."
    )
