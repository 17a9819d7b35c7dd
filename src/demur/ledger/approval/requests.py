"""Requests for approval, and decisions on them: rows of the chain that cost nothing.

A charge that the ledger's `ApprovalRule` concerns is not paid at once. What was asked
becomes a row, and the call ends in `ApprovalPending`; nothing is drawn. Somebody else
decides, with a reason, which is a row as well. Then the same call, with its idempotency
key, pays, or ends in `ApprovalDeclined`.

A request is found by its idempotency key alone: its id is a digest of the key, so that
one key has one request and one decision, for ever. Whoever was declined asks anew under
another key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from demur.core.adjacency import LipschitzMap
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.promise import Promise

# What a charge has in common with the request that was approved, by the row's names.
SAME = ("declaration", "count", "label", "input", "noise", "block_delta")


@dataclass(frozen=True)
class Decision:
    """What somebody decided on a request: when, who and why."""

    sequence: int
    approved: bool
    reason: str
    actor: str
    time: str


@dataclass(frozen=True)
class ApprovalRequest:
    """A charge that waits, or waited, for a decision.

    - `sequence`: its number, by which it is decided on;
    - `epsilon`: what it alone costs at each of `promises`, None where it has no cost;
    - `entry`: the number of the charge that it became, if it was paid.
    """

    sequence: int
    id: str
    label: str
    declaration: Declaration
    count: int
    purpose: str
    actor: str
    time: str
    epsilon: tuple[float | None, ...]
    promises: tuple[Promise, ...]
    maps: tuple[LipschitzMap, ...]
    decision: Decision | None
    entry: int | None

    @property
    def state(self) -> str:
        """In a word: "pending", "approved", "declined" or "charged"."""
        if self.entry is not None:
            return "charged"
        if self.decision is None:
            return "pending"
        return "approved" if self.decision.approved else "declined"


def request_id(idempotency_key: str) -> str:
    """The id of the one request under this key."""
    return digest_of_text(json.dumps(["request", idempotency_key]))[:32]


def decision_of(sequence: int, body: dict[str, Any]) -> Decision:
    """The decision that a row tells of."""
    return Decision(
        sequence, body["approved"], body["reason"], body["actor"], body["time"]
    )
