"""The ledger of a release that was given none: in memory, and filled to the brim."""

from __future__ import annotations

from demur.core.adjacency import Unit
from demur.ledger.budget import Budget
from demur.ledger.filters import Filter
from demur.ledger.ledger import Ledger


def ledger_or_in_memory(
    ledger: object,
    budget: Budget,
    *,
    unit: Unit,
    filter: Filter | str | None = None,
) -> Ledger:
    """The ledger given, or one in memory for this release alone ("not recorded")."""
    if ledger is None:
        return Ledger(budget, unit=unit, dataset="not named", filter=filter)
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger must be a Ledger or None; got {type(ledger).__name__}."
            " Nothing was spent."
        )
    return ledger
