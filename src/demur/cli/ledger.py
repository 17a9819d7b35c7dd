"""`demur ledger`: show, verify and export a ledger; its tables for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.shell import (
    App,
    AsJson,
    Code,
    console,
    json_text,
    print_json,
    written,
)
from demur.core.rounding import printed_down, printed_up

if TYPE_CHECKING:
    from demur.ledger import Ledger

ledger_app = App(
    help="Look into a ledger of privacy charges: show, verify, export.",
    no_args_is_help=True,
)

Address = Annotated[
    str,
    typer.Argument(help="A file, sqlite:///... or postgresql://...", metavar="LEDGER"),
]
TipOption = Annotated[
    str | None,
    typer.Option(help="An exported tip, SEQUENCE:HASH, or a file that holds one."),
]
Signer = Annotated[
    str | None, typer.Option(help="The signer's public key, in hexadecimal.")
]


@ledger_app.command("show")
def show(
    address: Address,
    limit: Annotated[int, typer.Option(help="How many entries, newest last.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Print the budgets, what is spent of them, and the newest entries."""
    from demur.ledger import Ledger, export_ledger

    with Ledger.open(address) as ledger:
        if as_json:
            print_json(export_ledger(ledger))
            return
        for table in ledger_tables(ledger, limit):
            console.print(table)


@ledger_app.command("verify")
def verify(
    address: Address,
    tip: TipOption = None,
    signer: Signer = None,
    as_json: AsJson = False,
) -> None:
    """Check every row, link, signature and total; exit code 1 if anything is wrong."""
    from demur.ledger import Ledger

    with Ledger.open(address) as ledger:
        check = ledger.verify(read_tip(tip), signer=signer)
        if as_json:
            print_json(
                {
                    "ok": check.ok,
                    "rows": check.rows,
                    "tip": str(check.tip),
                    "problems": check.problems,
                    "unknown": check.unknown,
                }
            )
        else:
            console.print(str(check), highlight=False, soft_wrap=True)
        if not check.ok:
            raise typer.Exit(int(Code.ERROR))


@ledger_app.command("export")
def export(
    address: Address,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file; default: print.")
    ] = None,
    tip_only: Annotated[
        bool, typer.Option("--tip", help="Only the tip, to store elsewhere.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Records for the public deployments registry.")
    ] = False,
    product: Annotated[str, typer.Option(help="For the registry.")] = "",
    organisation: Annotated[str, typer.Option(help="For the registry.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print the ledger as JSON, its tip, or records for the public registry.

    The ledger and the records are always JSON; --json also applies to the tip and to
    the name of the file that was written.
    """
    from demur.ledger import Ledger, export_ledger, registry_records

    with Ledger.open(address) as ledger:
        if tip_only:
            text = str(ledger.tip())
            if as_json:
                text = json_text({"tip": text})
        elif registry:
            records = registry_records(
                ledger,
                product=product or ledger.terms.dataset,
                organisation=organisation,
            )
            text = json_text(records)
        else:
            text = json_text(export_ledger(ledger))
    if output is None:
        print(text)
        return
    output.write_text(text + "\n")
    if as_json:
        print_json({"written": str(output)})
    else:
        written(output)


def read_tip(tip: str | None) -> str | None:
    """A tip as text; `tip` may also be the name of a file that holds one."""
    if tip is not None and Path(tip).is_file():
        return Path(tip).read_text()
    return tip


def ledger_tables(ledger: Ledger, limit: int = 50) -> list[Table]:
    """Tables of a ledger's budgets and newest entries, for the terminal."""
    budgets = Table(
        title=f"Ledger of {escape(repr(ledger.terms.dataset))}", title_justify="left"
    )
    for column in ("unit", "spent", "of", "delta", "tight reading"):
        budgets.add_column(column, justify="left" if column == "unit" else "right")
    for status in ledger.status():
        budgets.add_row(
            escape(str(status.unit)),
            printed_up(status.spent_epsilon),
            printed_down(status.budget.epsilon),
            printed_down(status.budget.delta),
            printed_up(ledger.epsilon(unit=status.unit)),
        )
    budgets.caption = f"Filter: {ledger.terms.filter}"
    table = Table(title="Entries", title_justify="left")
    for column in ("no.", "date", "label", "mechanism", "runs", "noise"):
        table.add_column(column)
    entries = ledger.entries()
    if len(entries) > limit:
        table.caption = f"the newest {limit} of {len(entries):,}"
    for entry in entries[-limit:] if limit > 0 else []:
        table.add_row(
            str(entry.sequence),
            entry.time[:10],
            escape(entry.label),
            escape(entry.declaration.name),
            str(entry.count),
            "OS entropy" if entry.private else "[bold red]seeded: NOT PRIVATE[/]",
        )
    return [budgets, table]
