"""Approvals: how a charge that has to wait is asked for, decided on and found again.

All of it runs under the ledger's lock, inside the transaction of its caller:

- a charge is paid under an approval only if the request that was approved is the same
  to the last parameter (`requests.SAME`), so that nothing else can be slipped in after
  an officer has looked at it;
- one request has one decision: of two at once, the second one sees the first;
- nobody approves what they asked for. The ledger knows people by the names it is told;
  the service (`demur.serve`) takes them from tokens;
- one approval pays for one charge: the charge has the idempotency key of the request,
  and a key is unique in the table.
"""

from __future__ import annotations

from demur.core.declaration import Declaration
from demur.core.errors import (
    AlreadyDecided,
    ApprovalDeclined,
    ApprovalPending,
    DemurError,
    IdempotencyConflict,
)
from demur.durable import clock
from demur.ledger.approval.requests import SAME, Decision, decision_of, request_id
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows
from demur.ledger.storage.writing import Writing

# Of so many rows at the end, so many may be requests: a flood of them is refused.
_RECENT, _MOST_REQUESTS = 1000, 200


class Approvals:
    """The approval rule of one ledger, as its charges meet it."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def needed(self, body: rows.Body, declaration: Declaration) -> bool:
        """Whether a charge has to wait; one without a name to come back by is refused.

        It takes prices, so it comes before the lock.
        """
        if not self._terms.needs_approval(declaration, body["count"]):
            return False
        if body["idempotency_key"] is None:
            raise ValueError(
                f"idempotency_key must be given: {body['label']!r} needs approval in"
                " this ledger, and is found again by its key. Nothing was spent."
            )
        return True

    def look_up(
        self, writing: Writing, body: rows.Body, text: str, purpose: str
    ) -> str | DemurError:
        """The id of the approved request, or why the charge cannot be paid now.

        A request that is not there yet is entered.
        """
        connection, name = writing.connection, request_id(body["idempotency_key"])
        asked = rows.row_of(connection, name, "request")
        if asked is None:
            return self._ask(writing, name, body, text, purpose)
        sequence, before = asked
        for field in SAME:
            if before[field] != body[field]:
                word = "mechanism" if field == "declaration" else field
                return IdempotencyConflict(
                    f"request {sequence} ({before['label']!r}) was made under"
                    f" idempotency_key {body['idempotency_key']!r} with another {word}:"
                    " what was asked for is what can be charged. Use a new key for"
                    " another charge. Nothing was spent."
                )
        decided = rows.row_of(connection, name, "decision")
        if decided is None:
            return _pending(sequence, before["label"])
        if not decided[1]["approved"]:
            return ApprovalDeclined(
                f"request {sequence} ({before['label']!r}) was declined by"
                f" {decided[1]['actor']}: {decided[1]['reason']}. Nothing was released"
                " and nothing was spent."
            )
        return name

    def _ask(
        self, writing: Writing, name: str, body: rows.Body, text: str, purpose: str
    ) -> DemurError:
        connection, recent = writing.connection, writing.state.sequence - _RECENT
        if rows.many_since(connection, recent, "request") >= _MOST_REQUESTS:
            return DemurError(
                f"{_MOST_REQUESTS} of the last {_RECENT} rows of this ledger are"
                " requests for approval: let somebody decide on them first. This one"
                " was not entered, and nothing was spent."
            )
        row = {"kind": "request", "id": name} | {field: body[field] for field in SAME}
        row |= {
            "charge_key": body["idempotency_key"],
            "purpose": purpose,
            "actor": body["actor"],
            "time": clock.now(),
        }
        rows.store_shared(connection, text, {})
        return _pending(writing.append(row, text=text), body["label"])

    def decide(
        self, writing: Writing, number: int, approved: bool, reason: str, actor: str
    ) -> Decision:
        """Enter a decision; the same one, made twice by the same person, is one."""
        connection = writing.connection
        asked = rows.body_at(connection, number, "request")
        if asked is None:
            raise DemurError(
                f"row {number} of this ledger is no request for approval. Nothing was"
                " decided."
            )
        decided = rows.row_of(connection, asked["id"], "decision")
        if decided is not None:
            before = decision_of(*decided)
            if (before.approved, before.actor) == (approved, actor):
                writing.found(before.sequence)
                return before
            verdict = "approved" if before.approved else "declined"
            raise AlreadyDecided(
                f"request {number} ({asked['label']!r}) was {verdict} by {before.actor}"
                f" on {before.time[:16]}: {before.reason}. One request has one"
                " decision, and yours was not entered."
            )
        if approved and actor == asked["actor"]:
            raise DemurError(
                f"request {number} ({asked['label']!r}) is {actor}'s own: somebody else"
                " has to approve it. Nothing was decided."
            )
        body = {
            "kind": "decision",
            "id": asked["id"],
            "approved": approved,
            "reason": reason,
            "actor": actor,
            "time": clock.now(),
        }
        return decision_of(writing.append(body), body)


def _pending(number: int, label: str) -> ApprovalPending:
    return ApprovalPending(
        f"{label!r} waits for approval as request {number} of this ledger. Repeat the"
        " same call with the same idempotency_key once it is approved. Nothing was"
        " released and nothing was spent.",
        number,
    )
