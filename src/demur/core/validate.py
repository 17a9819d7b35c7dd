"""Argument checks whose errors name the argument.

Each check takes keyword arguments alone and raises before anything is spent:
`validate.positive(epsilon=epsilon)` -> "epsilon must be positive and finite; got nan".
"""

from __future__ import annotations

import difflib
import math
import numbers
import reprlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

_LONGEST_NAME = 200
_LONGEST_TEXT = 4000
_Choice = TypeVar("_Choice", bound=Enum)


def shorten(value: object) -> str:
    """A short repr of anything, however deep or long, for an error message."""
    return reprlib.repr(value)[:_LONGEST_NAME]


def _each(values: dict[str, object], test: Callable[[float], bool], want: str) -> None:
    for name, value in values.items():
        # bool is a number to Python, and never what a caller meant here. Whether
        # something is a Real takes long to find out, and most numbers are floats.
        if type(value) is not float and (
            isinstance(value, bool) or not isinstance(value, numbers.Real)
        ):
            shown = repr(value)[:80]
            raise TypeError(f"{name} must be a number, {want}; got {shown}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not test(number):
            raise ValueError(f"{name} must be {want}; got {repr(value)[:80]}")


def finite(**values: object) -> None:
    """Refuse anything but finite real numbers."""
    _each(values, math.isfinite, "finite")


def positive(**values: object) -> None:
    """Refuse anything but positive finite numbers."""
    _each(values, lambda x: 0 < x < math.inf, "positive and finite")


def non_negative(**values: object) -> None:
    """Refuse anything but finite numbers from 0."""
    _each(values, lambda x: 0 <= x < math.inf, "at least 0 and finite")


def open_probability(**values: object) -> None:
    """Refuse anything but numbers strictly between 0 and 1."""
    _each(values, lambda x: 0 < x < 1, "strictly between 0 and 1")


def probability(**values: object) -> None:
    """Refuse anything but numbers from 0 to 1."""
    _each(values, lambda x: 0 <= x <= 1, "between 0 and 1")


def count(**values: object) -> None:
    """Refuse anything but whole numbers from 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be a whole number; got {repr(value)[:80]}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {repr(value)[:80]}")


def _string(key: str, value: object, longest: int) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{key} must be a string; got {repr(value)[:80]}")
    if not value or len(value) > longest or not value.isprintable():
        raise ValueError(
            f"{key} must be 1 to {longest} printable characters; got {value[:40]!r}"
        )


def name(**values: object) -> None:
    """Refuse anything but short, printable, non-empty strings."""
    for key, value in values.items():
        _string(key, value, _LONGEST_NAME)


def text(**values: object) -> None:
    """Refuse anything but printable, non-empty strings of at most a page."""
    for key, value in values.items():
        _string(key, value, _LONGEST_TEXT)


def choice(kind: type[_Choice], **values: object) -> _Choice:
    """The member of `kind` that the one given value names; anything else is refused."""
    ((key, value),) = values.items()
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise ValueError(
            f"{key} must be one of {known}; got {shorten(value)}"
        ) from None


def nearest(name: object, names: Iterable[str], most: int = 12) -> list[str]:
    """The names that exist, those most like `name` first: for errors about columns.

    >>> nearest("incme", ["age", "income", "zip"])
    ['income', 'age', 'zip']
    """
    known = [str(each) for each in names]
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    return [*close, *(each for each in known if each not in close)][:most]
