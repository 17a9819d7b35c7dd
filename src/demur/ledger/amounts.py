"""Exact totals as text: what a budget row and an entry's spend look like on disk."""

from __future__ import annotations

import json
from fractions import Fraction

from demur.ledger.chain import canonical
from demur.ledger.filters import Amounts


def to_data(amounts: Amounts) -> dict[str, str | None]:
    """Accounts with exact fractions; None is a meter that is used up."""
    return {k: None if v is None else str(v) for k, v in amounts.items()}


def from_data(data: object) -> Amounts:
    """The amounts that `to_data` wrote; anything else is a ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"not amounts: {str(data)[:80]}")
    found: Amounts = {}
    for account, text in data.items():
        if text is not None and not isinstance(text, str):
            raise ValueError(f"not an amount: {str(text)[:80]}")
        amount = None if text is None else Fraction(text)
        if amount is not None and amount < 0:
            raise ValueError(f"an amount is never negative; got {str(text)[:80]}")
        found[account] = amount
    return found


def to_text(amounts: Amounts) -> str:
    """The amounts as canonical text."""
    return canonical(to_data(amounts))


def from_text(text: str) -> Amounts:
    """The amounts that `to_text` wrote."""
    return from_data(json.loads(text))
