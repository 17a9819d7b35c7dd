"""Fields of the journal's rows: what each kind has, what it may have, and its text.

A field that no rule looks at could say anything. A text with a name twice, or written
in another way than `canonical` writes it, could say one thing to this reader and
another to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from demur.durable.chain import canonical
from demur.unlearning.records.journal import PUBLICATION, Body, Row

_ALL = frozenset({"op", "epoch", "tick", "run"})
_PAID = frozenset({"operation", "entry", "ledger", "time"})
_STATE = frozenset({"state", "seal"})
_LEARNED = frozenset({"record", "generation", "subject"})
_COUNTS = frozenset({"records", "requests", "used", "used_by"})
# By kind: what a row has besides `_ALL`; and what it may have.
_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "insert": (_LEARNED, _STATE | {"time"}),
    "intent": (
        _COUNTS | {"operation", "deadline", "time"},
        frozenset({"kind", "limits"}),
    ),
    "delete": (frozenset({"operation", "certificate"}), _STATE),
    "abandon": (_PAID, frozenset()),
    "publish": (_PAID | _STATE, frozenset()),
    "block": (frozenset({"record", "time"}), frozenset()),
    "retrain": (_PAID | {"records", "new", "drops", "before"}, _STATE),
    "restore": (_PAID | {"to", "drops"}, _STATE),
    "renew": (_STATE | {"time"}, frozenset()),
    "drop": (frozenset({"certificate"}), _STATE),
}
_TEXTS = ("run", "operation", "limits", "ledger", "entry")
_NUMBERS = ("epoch", "tick", "generation", "seal")
_DIGESTS = ("record", "subject", "state")
_DIGEST = re.compile("[0-9a-f]{64}")


def field_problems(row: Row, body: Body) -> list[str]:
    """What is wrong with a row by itself."""
    if row.op not in _FIELDS or body.get("op") != row.op:
        return ["its kind does not repeat its text"]
    problems = []
    if canonical(body) != row.body:
        problems.append("its text is not as a service writes it")
    has, may = _FIELDS[row.op]
    names = body.keys() - _ALL
    if lacking := (has | _ALL) - body.keys():
        problems.append(f"it lacks {min(lacking)}")
    if more := names - has - may:
        problems.append(
            f"it has a field that a row of its kind does not have: {min(more):.40}"
        )
    if len(names & _STATE) == 1:
        problems.append("it names a state without its seal, or a seal alone")
    for name in _of_wrong_kind(row.op, body):
        problems.append(f"its {name} is none that a service writes")
    return problems


def _of_wrong_kind(op: str, body: Body) -> Iterator[str]:
    """Fields whose values no service writes: true for 1, or a word for a time."""
    for name, value in body.items():
        if name in _TEXTS:
            valid = isinstance(value, str) or (
                value is None and (op, name) == ("abandon", "entry")  # It was not paid.
            )
        elif name == "kind":
            valid = value == PUBLICATION
        elif name in _NUMBERS:
            valid = type(value) is int
        elif name in _DIGESTS:
            valid = isinstance(value, str) and _DIGEST.fullmatch(value) is not None
        elif name == "time" or (name == "deadline" and value != ""):
            valid = is_time(value)
        else:  # counts and certificates have their own rules
            continue
        if not valid:
            yield name


def is_time(text: object) -> bool:
    """Whether a text is a time with its zone, as a clock writes it."""
    try:
        return isinstance(text, str) and bool(datetime.fromisoformat(text).tzinfo)
    except ValueError:
        return False
