"""Calls of the API: JSON in, JSON out, the same as `demur.ledger.LedgerCalls` has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from demur.core import validate
from demur.core.adjacency import unit_from_json
from demur.ledger import ApprovalRequest
from demur.report.text import json_data
from demur.serve.openapi import document
from demur.serve.visit import Reply, Visit, json_reply


def _is(value: Any) -> Reply:
    return json_reply({"is": json_data(value)})


def health(visit: Visit) -> Reply:
    """Whether the ledgers can be read."""
    for name in visit.house.ledgers.names():
        visit.house.ledgers.calls(name).ledger.tip()
    return json_reply({"healthy": True})


def openapi(visit: Visit) -> Reply:
    """This API, as a document for programs."""
    return json_reply(document())


def charge(visit: Visit) -> Reply:
    """Charge a declaration; it is priced here, and durable when this returns."""
    return _is(visit.calls.charge(visit.who.name, dict(visit.data)))


def commit(visit: Visit) -> Reply:
    """Bind an entry to the digest of what was released."""
    return _is(visit.calls.commit(visit.who.name, dict(visit.data)))


def draw(visit: Visit) -> Reply:
    """Hand out runs of a reservation; the number of the first one."""
    return _is(visit.calls.draw(visit.who.name, dict(visit.data)))


def note(visit: Visit) -> Reply:
    """Add public facts about an entry."""
    return _is(visit.calls.note(visit.who.name, dict(visit.data)))


def decide(visit: Visit) -> Reply:
    """Approve or decline a request, with a reason."""
    return _is(visit.calls.decide(visit.who.name, dict(visit.data)))


def header(visit: Visit) -> Reply:
    """The ledger's terms and state, and whose token this is."""
    return _is(visit.calls.header(visit.who.name, dict(visit.data)))


def contains(visit: Visit) -> Reply:
    """Whether an exported tip is in the ledger."""
    return _is(visit.calls.contains(visit.who.name, dict(visit.data)))


def rows(visit: Visit) -> Reply:
    """Rows of the chain, as they are stored."""
    return _is(visit.calls.rows(visit.who.name, dict(visit.data)))


def profile(visit: Visit) -> Reply:
    """The stored privacy profile of an event."""
    return _is(visit.calls.profile(visit.who.name, dict(visit.data)))


def find(visit: Visit) -> Reply:
    """The charge under an idempotency key, or null."""
    return _is(visit.calls.find(visit.who.name, dict(visit.data)))


def charged(visit: Visit) -> Reply:
    """The row of a charge, and whether it is committed."""
    return _is(visit.calls.charged(visit.who.name, dict(visit.data)))


def declaration(visit: Visit) -> Reply:
    """A declaration by its digest."""
    return _is(visit.calls.stored_declaration(visit.who.name, dict(visit.data)))


def drawn(visit: Visit) -> Reply:
    """How many runs of a reservation were handed out."""
    return _is(visit.calls.drawn(visit.who.name, dict(visit.data)))


def status(visit: Visit) -> Reply:
    """Each budget and what is spent of it."""
    return _is(
        [
            {
                "unit": each.unit.to_json(),
                "epsilon": each.budget.epsilon,
                "delta": each.budget.delta,
                "spent_epsilon": each.spent_epsilon,
            }
            for each in visit.ledger.status()
        ]
    )


def reading(visit: Visit) -> Reply:
    """The tight cost of the whole ledger at a unit."""
    unit = visit.data.get("unit")
    told = visit.ledger.reading(
        None if unit is None else unit_from_json(unit), delta=visit.data.get("delta")
    )
    return _is(
        {
            "epsilon": told.epsilon,
            "delta": told.delta,
            "entries": told.entries,
            "protects": told.protects,
            "enforced_epsilon": told.enforced_epsilon,
        }
    )


def requests(visit: Visit) -> Reply:
    """Charges that wait or waited for approval."""
    return _is([request_data(each) for each in visit.ledger.requests()])


def request_data(request: ApprovalRequest) -> dict[str, Any]:
    """A request for approval as plain data."""
    return {
        "number": request.sequence,
        "label": request.label,
        "declaration": request.declaration.to_json(),
        "count": request.count,
        "epsilon": list(request.epsilon),
        "purpose": request.purpose,
        "actor": request.actor,
        "time": request.time,
        "state": request.state,
        "decision": request.decision and asdict(request.decision),
        "entry": request.entry,
    }


def verify(visit: Visit) -> Reply:
    """Check every row; compare with an exported tip if one is given."""
    tip, signer = visit.data.get("tip"), visit.data.get("signer")
    if tip is not None:
        validate.name(tip=tip)
    check = visit.ledger.verify(tip, signer=signer)
    return _is(
        {
            "ok": check.ok,
            "rows": check.rows,
            "tip": str(check.tip),
            "problems": list(check.problems),
            "unknown": list(check.unknown),
        }
    )
