"""What travels between a ledger's clients and its service: errors, headers, receipts.

Everything is JSON. An error keeps its class and its text, so that a client raises what
the ledger itself would have raised.
"""

from __future__ import annotations

from typing import Any

from demur.core import errors
from demur.core.errors import DemurError
from demur.ledger.storage.header import Header, State

# Errors that a client may be told of, by name. Whatever else happens in a service is
# its own affair, and its text might tell of private things.
KINDS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
} | {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, DemurError)
}


def error_data(error: Exception) -> dict[str, Any]:
    """An error as plain data; one that is not of `KINDS` says little."""
    for kind in type(error).__mro__:
        if KINDS.get(kind.__name__) is kind:
            data: dict[str, Any] = {"kind": kind.__name__, "message": str(error)}
            number = getattr(error, "number", None)
            return data if number is None else data | {"number": number}
    return {"kind": "Defect", "message": "the service failed; its log says how"}


def error_of(data: object) -> Exception | None:
    """The error that `error_data` wrote; None if it is no such thing."""
    if not isinstance(data, dict) or not isinstance(data.get("message"), str):
        return None
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        return None
    if kind is errors.ApprovalPending:
        return errors.ApprovalPending(data["message"], data.get("number"))
    return kind(data["message"])


def header_data(header: Header) -> dict[str, Any]:
    """A header as plain data."""
    return {
        "ledger_id": header.ledger_id,
        "schema_version": header.schema_version,
        "terms": header.terms,
        **header.state._asdict(),
    }


def header_of(data: dict[str, Any]) -> Header:
    """The header that `header_data` wrote."""
    state = State(int(data["sequence"]), str(data["hash"]), str(data["totals"]))
    version = int(data["schema_version"])
    return Header(str(data["ledger_id"]), version, str(data["terms"]), state)
