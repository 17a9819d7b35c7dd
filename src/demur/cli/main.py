"""The commands, each a thin shell around a function of the library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demur import __version__
from demur.cli.audit import audit
from demur.cli.head import head_app
from demur.cli.reports import reports_app
from demur.cli.shell import (
    App,
    AsJson,
    Code,
    Contents,
    Interrupted,
    console,
    errors,
    json_text,
    print_json,
    written,
)
from demur.cli.train import train
from demur.cli.unlearn import unlearn_app
from demur.core.rounding import printed_up

if TYPE_CHECKING:
    from demur.ledger import Ledger

START, ENGINES, LEDGER, TRUST = "Start here", "Engines", "The ledger", "Trust"

app = App(
    help="Learning from people's data under a privacy promise that can be checked.",
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 declined by a budget,"
    " 130 interrupted. Every command has --help and --json.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Contents,
)
ledger_app = App(
    help="Look into a ledger of privacy charges: show, verify, export.",
    no_args_is_help=True,
)
app.add_typer(head_app, name="head", rich_help_panel=ENGINES)
app.add_typer(reports_app, name="reports", rich_help_panel=ENGINES)
app.add_typer(unlearn_app, name="unlearn", rich_help_panel=ENGINES)
app.command(rich_help_panel=ENGINES)(train)
app.add_typer(ledger_app, name="ledger", rich_help_panel=LEDGER)
app.command(rich_help_panel=TRUST)(audit)

Address = Annotated[
    str,
    typer.Argument(help="A file, sqlite:///... or postgresql://...", metavar="LEDGER"),
]


@app.command(rich_help_panel=START)
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        console.print(f"demur {__version__}")


@app.command(rich_help_panel=START)
def tour(
    out: Annotated[Path, typer.Option(help="Where the ledger and report go.")] = Path(
        "out/tour"
    ),
    as_json: AsJson = False,
) -> None:
    """One dataset, one ledger: private releases, a refusal, a check and a report."""
    from demur.cli.tour import run

    try:
        run(out, errors if as_json else console)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"The tour spends from a ledger of its own, under {out}, and begins anew"
            " each time: run it again."
        ) from stop
    if as_json:
        made = ("ledger.db", "tip.txt", "report.html")
        print_json({name.split(".")[0]: str(out / name) for name in made})


@app.command(rich_help_panel=LEDGER)
def report(
    address: Address,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = (
        Path("report.html")
    ),
    charts: Annotated[
        Path | None,
        typer.Option(help="Also write the charts into this folder (PNG and SVG)."),
    ] = None,
    tip: Annotated[
        str | None,
        typer.Option(help="An exported tip, SEQUENCE:HASH, or a file that holds one."),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(help="The signer's public key, in hexadecimal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained HTML page about a ledger, charts and all."""
    from demur.ledger import Ledger
    from demur.report import write_report

    with Ledger.open(address) as ledger, errors.status("drawing the report"):
        facts = write_report(
            ledger, output, charts=charts, tip=_tip(tip), signer=signer
        )
    if as_json:
        made = [] if charts is None else sorted(str(p) for p in charts.iterdir())
        chain = {"ok": facts.chain.ok, "problems": facts.chain.problems}
        print_json({"written": str(output), "charts": made, "chain": chain})
        return
    written(output)
    if charts is not None:
        written(charts)
    if not facts.chain.ok:
        console.print("[bold red]The chain is DAMAGED:[/] see the page, or verify.")


@ledger_app.command("show")
def show(
    address: Address,
    limit: Annotated[int, typer.Option(help="How many entries, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Budgets, what is spent of them, and the newest entries."""
    from demur.ledger import Ledger
    from demur.ledger.export import export_ledger

    with Ledger.open(address) as ledger:
        if as_json:
            print_json(export_ledger(ledger))
            return
        for table in ledger_tables(ledger, limit):
            console.print(table)


@ledger_app.command("verify")
def verify(
    address: Address,
    tip: Annotated[
        str | None,
        typer.Option(help="An exported tip, SEQUENCE:HASH, or a file that holds one."),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(help="The signer's public key, in hexadecimal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every row, link, signature and total; exit code 1 if anything is wrong."""
    from demur.ledger import Ledger

    with Ledger.open(address) as ledger:
        found = ledger.verify(_tip(tip), signer=signer)
        if as_json:
            print_json(
                {
                    "ok": found.ok,
                    "rows": found.rows,
                    "tip": str(found.tip),
                    "problems": found.problems,
                    "unknown": found.unknown,
                }
            )
        else:
            console.print(str(found), highlight=False, soft_wrap=True)
        if not found.ok:
            raise typer.Exit(int(Code.ERROR))


@ledger_app.command("export")
def export(
    address: Address,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file; default: print.")
    ] = None,
    tip_only: Annotated[
        bool, typer.Option("--tip", help="Only the tip, to keep elsewhere.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Shape it for the public deployments registry.")
    ] = False,
    product: Annotated[str, typer.Option(help="For the registry.")] = "",
    organisation: Annotated[str, typer.Option(help="For the registry.")] = "",
    as_json: AsJson = False,
) -> None:
    """The ledger as JSON, its tip, or records for the public registry.

    What is exported is JSON in any case; with --json the tip is, too, and so is the
    note of the file that was written.
    """
    from demur.ledger import Ledger
    from demur.ledger.export import export_ledger, registry_records

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
        else:
            output.write_text(text + "\n")
            if as_json:
                print_json({"written": str(output)})
            else:
                written(output)


def _tip(given: str | None) -> str | None:
    """A tip as it is written, or the one that a file holds."""
    if given is not None and Path(given).is_file():
        return Path(given).read_text()
    return given


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
            f"{status.budget.epsilon:g}",
            f"{status.budget.delta:g}",
            printed_up(ledger.epsilon(unit=status.unit)),
        )
    budgets.caption = f"Filter: {ledger.terms.filter}"
    entries = Table(title="Entries", title_justify="left")
    for column in ("no.", "date", "label", "mechanism", "runs", "noise"):
        entries.add_column(column)
    everything = ledger.entries()
    if len(everything) > limit:
        entries.caption = f"the newest {limit} of {len(everything):,}"
    for entry in everything[-limit:] if limit > 0 else []:
        entries.add_row(
            str(entry.sequence),
            entry.time[:10],
            escape(entry.label),
            escape(entry.declaration.name),
            str(entry.count),
            "OS entropy" if entry.private else "[bold red]seeded: NOT PRIVATE[/]",
        )
    return [budgets, entries]
