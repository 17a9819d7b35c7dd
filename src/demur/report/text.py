"""Text, numbers and JSON of the report: escaped, and rounded in the safe direction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import escape
from typing import Any
from unicodedata import category

from demur.core.rounding import printed_down, printed_up

_WITH_HYPHENS = re.compile(r"\b(?:\d{4}-\d\d-\d\d|\d[\d.]*e-\d+)\b", re.ASCII)


def one_line(text: str) -> str:
    """The text without line breaks and control characters."""
    return "".join(
        " " if c in "\n\t" else "\ufffd" if category(c) in ("Cc", "Cf", "Cs") else c
        for c in text
    )


def safe(text: object) -> str:
    """Text escaped for the body of the page."""
    return escape(one_line(str(text)), quote=True)


def unbroken(text: object) -> str:
    """Text escaped for the body, whose dates and powers of ten stay on one line.

    >>> unbroken("delta < 1e-05")
    'delta &lt; <span class="nb">1e-05</span>'
    """
    return _WITH_HYPHENS.sub(r'<span class="nb">\g<0></span>', safe(text))


def attribute(text: object) -> str:
    """Text escaped for a quoted attribute."""
    return safe(text)


def number_up(value: float | None) -> str:
    """A cost with four digits, rounded up."""
    if value is None:
        return "not known"
    return "unbounded" if math.isinf(value) else printed_up(value)


def number_down(value: float | None) -> str:
    """A budget, or the lower bound of an audit, with four digits, rounded down."""
    if value is None:
        return "no bound"
    return "unbounded" if math.isinf(value) else printed_down(value)


def day(time: str) -> str:
    """The date and minute of a row's time."""
    return safe(time[:16].replace("T", " "))


def json_data(value: Any) -> Any:
    """Plain data for JSON; an infinite number is the word "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(item) for item in value]
    return value
