"""Text from a ledger, made safe for a page: nothing in it is markup or turns a line."""

from __future__ import annotations

import math
from html import escape
from unicodedata import category

from demur.core.rounding import printed_up


def one_line(text: str) -> str:
    """The text without characters that control how other text is shown."""
    return "".join(
        " " if c in "\n\t" else "\ufffd" if category(c) in ("Cc", "Cf", "Cs") else c
        for c in text
    )


def safe(text: object) -> str:
    """For the body of the page."""
    return escape(one_line(str(text)), quote=True)


def attribute(text: object) -> str:
    """For a quoted attribute."""
    return safe(text)


def number(value: float | None) -> str:
    """Four digits, never less than the value: what is read is what may be signed."""
    if value is None:
        return "not known"
    if math.isinf(value):
        return "unbounded"
    return "0" if value == 0 else printed_up(value)


def day(time: str) -> str:
    """The date and minute of a row's time."""
    return safe(time[:16].replace("T", " "))
