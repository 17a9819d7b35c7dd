"""Exact amounts as text, as they are stored with a budget and with an entry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fractions import Fraction

from demur.core import validate
from demur.durable.chain import canonical
from demur.ledger.rules.filters import Amounts

# A whole number or a quotient of two, as `Fraction` writes them: no sign, no exponent
# (1e999999999 would take for ever), no division by zero.
_AMOUNT = re.compile(r"[0-9]{1,4300}(/[1-9][0-9]{0,4299})?", re.ASCII)


def to_data(amounts: Amounts) -> dict[str, str | None]:
    """Accounts with exact fractions; None is a meter that is used up."""
    return {k: None if v is None else str(v) for k, v in amounts.items()}


def from_data(data: object) -> Amounts:
    """The amounts that `to_data` wrote; anything else is a ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"not amounts: {validate.shorten(data)}")
    amounts: Amounts = {}
    for account, text in data.items():
        if text is not None and not (isinstance(text, str) and _AMOUNT.fullmatch(text)):
            raise ValueError(f"not an amount: {validate.shorten(text)}")
        amounts[account] = None if text is None else Fraction(text)
    return amounts


def to_text(totals: Iterable[Amounts]) -> str:
    """The totals of all budgets, in their order, as canonical text."""
    return canonical([to_data(amounts) for amounts in totals])


def from_text(text: str) -> list[Amounts]:
    """The totals that `to_text` wrote."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("not amounts: nested too deeply") from error
    if not isinstance(data, list):
        raise ValueError(f"not the totals of budgets: {validate.shorten(data)}")
    return [from_data(amounts) for amounts in data]
