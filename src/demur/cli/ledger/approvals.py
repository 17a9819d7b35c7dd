"""`demur ledger`: requests for approval, and decisions on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.ledger.options import (
    Address,
    PasswordFile,
    SigningKey,
    load_key,
    open_to_read,
)
from demur.cli.ledger.recovery import ledger_app as ledger_app
from demur.cli.shell import AsJson, console, print_json
from demur.core.rounding import printed_up

if TYPE_CHECKING:
    from demur.ledger import ApprovalRequest, Decision

Number = Annotated[
    int,
    typer.Argument(help="The request's number, as `requests` prints it.", metavar="N"),
]
Reason = Annotated[str, typer.Option(help="Why, as the ledger will record it.")]
Actor = Annotated[
    str | None, typer.Option(help="Who decides (default: user@host).", metavar="NAME")
]


@ledger_app.command("requests")
def requests(
    address: Address,
    pending: Annotated[
        bool, typer.Option("--pending", help="Only those without a decision.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the charges that wait or waited for approval, and what was decided."""
    with open_to_read(address) as ledger:
        asked = [r for r in ledger.requests() if not pending or r.decision is None]
        rule = ledger.terms.approval
    if as_json:
        print_json({"rule": rule and rule.to_json(), "requests": _facts(asked)})
        return
    table = Table(title="Requests for approval", title_justify="left")
    for column in ("no.", "date", "label", "mechanism", "epsilon", "who", "state"):
        table.add_column(column)
    for request in asked:
        costs = [printed_up(e) for e in request.epsilon if e is not None]
        decision = request.decision
        by = "" if decision is None else f" by {decision.actor}: {decision.reason}"
        table.add_row(
            str(request.sequence),
            request.time[:10],
            escape(request.label),
            escape(request.declaration.name),
            ", ".join(costs) or "-",
            escape(request.actor),
            escape(f"{request.state}{by}"),
        )
    table.caption = escape("No charge needs approval." if rule is None else str(rule))
    console.print(table)


@ledger_app.command("approve")
def approve(
    address: Address,
    number: Number,
    reason: Reason,
    actor: Actor = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Approve a request: whoever made it can then repeat the call, and is charged."""
    _decide(address, number, True, reason, actor, signing_key, password_file, as_json)


@ledger_app.command("decline")
def decline(
    address: Address,
    number: Number,
    reason: Reason,
    actor: Actor = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Decline a request; nobody can charge it from then on."""
    _decide(address, number, False, reason, actor, signing_key, password_file, as_json)


def _decide(
    address: str,
    number: int,
    approved: bool,
    reason: str,
    actor: str | None,
    signing_key: Path | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    from demur.ledger import Ledger

    open_to_read(address).close()  # One that is not there is not made.
    key = load_key(signing_key, password_file)
    with Ledger.open(address, signing_key=key, actor=actor) as ledger:
        verdict = ledger.approve if approved else ledger.decline
        decision: Decision = verdict(number, reason=reason)
    if as_json:
        print_json(asdict(decision) | {"request": number})
        return
    word = "approved" if decision.approved else "declined"
    line = f"request {number}: {word} by {decision.actor} (row {decision.sequence})"
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _facts(requests: list[ApprovalRequest]) -> list[dict[str, Any]]:
    return [
        {
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
        for request in requests
    ]
