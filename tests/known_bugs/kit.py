"""How a test shows that it would have caught its bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from demur import AddOrRemoveOne, Declaration
from demur.core.accounting.events import Event
from demur.core.adjacency import Unit
from demur.core.cost import Cost, Fixed

UNIT = AddOrRemoveOne()


def sound_and_twin(check: Callable[[Any], None], ours: Any, twin: Any) -> None:
    """`check` passes on ours and fails on the bug made again: it has power."""
    check(ours)
    with pytest.raises(AssertionError):
        check(twin)


def says(event: Event, unit: Unit = UNIT) -> Declaration:
    """A mechanism with one event at one unit."""
    return Declaration("a noisy count", Cost((Fixed(unit, event),)))
