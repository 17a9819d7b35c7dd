"""The commands, each a thin shell around a function of the library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demur import __version__
from demur.cli.head import head_app
from demur.cli.reports import reports_app
from demur.cli.train import train
from demur.cli.unlearn import unlearn_app
from demur.core.errors import DemurError

if TYPE_CHECKING:
    from demur.ledger import Ledger

app = typer.Typer(
    help="Learning from people's data under a privacy promise that can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
ledger_app = typer.Typer(
    help="Look at a book of privacy charges.", no_args_is_help=True
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(head_app, name="head")
app.add_typer(unlearn_app, name="unlearn")
app.add_typer(reports_app, name="reports")
app.command()(train)

console = Console(soft_wrap=False)
errors = Console(stderr=True)

Book = Annotated[
    str,
    typer.Argument(help="A file, sqlite:///... or postgresql://...", metavar="BOOK"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """An error of ours is a line on stderr and exit code 1, not a traceback."""
    try:
        yield
    except (DemurError, ValueError, TypeError, OSError) as error:
        errors.print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1) from error


@app.command()
def version() -> None:
    """Print the version."""
    console.print(f"demur {__version__}")


@app.command()
def tour(
    out: Annotated[Path, typer.Option(help="Where the book and report go.")] = Path(
        "out/tour"
    ),
) -> None:
    """One dataset, one book: private releases, a refusal, a check and a report."""
    from demur.cli.tour import run

    with _plain_errors():
        run(out, console)


@app.command()
def report(
    book: Book,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = (
        Path("report.html")
    ),
) -> None:
    """Write one self-contained HTML page about a book."""
    from demur.ledger import Ledger
    from demur.report import write_report

    with _plain_errors(), Ledger.open(book) as ledger:
        write_report(ledger, output)
        console.print(f"written: {output}")


@ledger_app.command("show")
def show(
    book: Book,
    limit: Annotated[int, typer.Option(help="How many entries, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Budgets, what is spent of them, and the newest entries."""
    from demur.ledger import Ledger
    from demur.ledger.export import export_book

    with _plain_errors(), Ledger.open(book) as ledger:
        if as_json:
            print(json.dumps(export_book(ledger), indent=2))
            return
        for table in book_tables(ledger, limit):
            console.print(table)


@ledger_app.command("verify")
def verify(
    book: Book,
    head: Annotated[
        str | None,
        typer.Option(help="An exported head, SEQUENCE:HASH, or a file that holds one."),
    ] = None,
    signer: Annotated[
        str | None, typer.Option(help="The signer's public key, in hexadecimal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every row, link, signature and total; exit code 1 if anything is wrong."""
    from demur.ledger import Ledger

    with _plain_errors(), Ledger.open(book) as ledger:
        if head is not None and Path(head).is_file():
            head = Path(head).read_text()
        found = ledger.verify(head, signer=signer)
        if as_json:
            print(
                json.dumps(
                    {
                        "ok": found.ok,
                        "rows": found.rows,
                        "head": str(found.head),
                        "problems": found.problems,
                        "unknown": found.unknown,
                    },
                    indent=2,
                )
            )
        else:
            console.print(str(found), highlight=False, soft_wrap=True)
        if not found.ok:
            raise typer.Exit(1)


@ledger_app.command("export")
def export(
    book: Book,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file; default: print.")
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head", help="Only the head, to keep elsewhere.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Shape it for the public deployments registry.")
    ] = False,
    product: Annotated[str, typer.Option(help="For the registry.")] = "",
    organisation: Annotated[str, typer.Option(help="For the registry.")] = "",
) -> None:
    """The book as JSON, its head, or records for the public registry."""
    from demur.ledger import Ledger
    from demur.ledger.export import export_book, registry_records

    with _plain_errors(), Ledger.open(book) as ledger:
        if head_only:
            text = str(ledger.head())
        elif registry:
            records = registry_records(
                ledger,
                product=product or ledger.terms.dataset,
                organisation=organisation,
            )
            text = json.dumps(records, indent=2)
        else:
            text = json.dumps(export_book(ledger), indent=2)
        if output is None:
            print(text)
        else:
            output.write_text(text + "\n")
            console.print(f"written: {output}")


def book_tables(ledger: Ledger, limit: int = 50) -> list[Table]:
    """Tables of a book's budgets and newest entries, for the terminal."""
    budgets = Table(title=f"Book of {ledger.terms.dataset!r}", title_justify="left")
    for column in ("unit", "spent", "of", "delta", "tight reading"):
        budgets.add_column(column, justify="left" if column == "unit" else "right")
    for status in ledger.status():
        budgets.add_row(
            str(status.unit),
            f"{status.spent_epsilon:.4g}",
            f"{status.budget.epsilon:g}",
            f"{status.budget.delta:g}",
            f"{ledger.epsilon(unit=status.unit):.4g}",
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
            entry.label,
            entry.declaration.name,
            str(entry.count),
            "OS entropy" if entry.private else "[bold red]seeded: NOT PRIVATE[/]",
        )
    return [budgets, entries]
