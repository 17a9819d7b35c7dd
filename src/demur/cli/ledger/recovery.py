"""`demur ledger recover`: enter again what a ledger has lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demur.cli.ledger.keeping import ledger_app as ledger_app
from demur.cli.ledger.options import (
    Address,
    KeysFolder,
    PasswordFile,
    SigningKey,
    load_key,
    open_to_read,
    read_tip,
)
from demur.cli.shell import AsJson, console, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from demur.core.adjacency import Unit
    from demur.ledger import Budget


@ledger_app.command("recover")
def recover(
    address: Address,
    tip: Annotated[
        str,
        typer.Option(
            help="The last tip that anybody knows, SEQUENCE:HASH, or a file that holds"
            " it."
        ),
    ],
    receipts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Receipts of a client, receipts.jsonl in its folder of keys; may be"
            " repeated."
        ),
    ] = None,
    write_down: Annotated[
        list[str] | None,
        typer.Option(
            help="What rows without a receipt spent at most: 'all' that is left, a"
            " budget for each unit, or 'covered' by an earlier write-down.",
            metavar="all|covered|UNIT:EPSILON[:DELTA]",
        ),
    ] = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Enter again the rows that a ledger has lost, after a failover or a restore.

    Charges among the receipts are spent as before, whether they fit the budget or not.
    Rows that nobody has a receipt of are written down: their cost is unknown.
    """
    from demur.ledger import Ledger, parse_receipts

    known = read_tip(tip)
    assert known is not None
    given = [
        receipt
        for path in receipts or []
        for receipt in parse_receipts(path.read_bytes())
    ]
    most = _write_down(write_down)
    signer = load_key(signing_key, password_file)
    open_to_read(address).close()  # one that is not there is reported in our words
    with Ledger.open(address, keys=keys, signing_key=signer) as ledger:
        recovery = ledger.recover(known, receipts=given, write_down=most)
        now = ledger.tip()
    if as_json:
        print_json(
            {
                "row": recovery.sequence,
                "entered": recovery.entered,
                "written_down": recovery.written_down,
                "complete": recovery.complete,
                "tip": str(now),
            }
        )
        return
    lines = [f"{recovery.entered} lost charges entered again."]
    if not recovery.complete:
        lines.append(
            "Some lost rows have no receipt: the budget was written down for them, and"
            " no run of an open reservation is handed out any more."
        )
    lines.append(f"tip: {now}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _write_down(texts: list[str] | None) -> Mapping[Unit, Budget] | str | None:
    from demur.cli.ledger.terms import parse_budgets

    if not texts:
        return None
    return texts[0] if texts in (["all"], ["covered"]) else parse_budgets(texts)
