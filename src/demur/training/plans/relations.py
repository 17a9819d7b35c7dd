"""Neighbouring relations of plans, as units, dp_accounting's relations or names."""

from __future__ import annotations

from typing import Any

from demur.core.accounting.events import Neighbours
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit, ZeroOut
from demur.core.validate import shorten

# dp_accounting's names for the relations; it calls a blanked record "special".
_BY_NAME = {
    "ADD_OR_REMOVE_ONE": Neighbours.ADD_OR_REMOVE_ONE,
    "REPLACE_ONE": Neighbours.REPLACE_ONE,
    "REPLACE_SPECIAL": Neighbours.ZERO_OUT,
    "ZERO_OUT": Neighbours.ZERO_OUT,
}
_UNITS: dict[Neighbours, Unit] = {
    Neighbours.ADD_OR_REMOVE_ONE: AddOrRemoveOne(),
    Neighbours.REPLACE_ONE: ReplaceOne(),
    Neighbours.ZERO_OUT: ZeroOut(),
}


def neighbours_of(relation: Any) -> Neighbours:
    """The relation of a unit, of one of dp_accounting's relations, or of a name.

    >>> neighbours_of(ZeroOut()).name, neighbours_of("REPLACE_SPECIAL").name
    ('ZERO_OUT', 'ZERO_OUT')
    """
    match relation:
        case Neighbours():
            return relation
        case AddOrRemoveOne():
            return Neighbours.ADD_OR_REMOVE_ONE
        case ReplaceOne() | Ball():
            return Neighbours.REPLACE_ONE
        case ZeroOut():
            return Neighbours.ZERO_OUT
    name = relation if isinstance(relation, str) else getattr(relation, "name", None)
    if isinstance(name, str) and name.upper() in _BY_NAME:
        return _BY_NAME[name.upper()]
    raise ValueError(
        "neighboring_relation must be ADD_OR_REMOVE_ONE, REPLACE_ONE or REPLACE_SPECIAL"
        f" (zero-out), or a unit with such a relation; got {shorten(relation)}"
    )


def unit_of(neighbours: Neighbours) -> Unit:
    """The unit of a relation."""
    return _UNITS[neighbours]
