"""The `demur` command: its groups, and the commands version, tour and report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from demur import __version__
from demur.cli.audit import audit
from demur.cli.doctor import doctor
from demur.cli.head import head_app
from demur.cli.ledger.approvals import ledger_app
from demur.cli.ledger.options import (
    Address,
    PasswordFile,
    Signer,
    SigningKey,
    TipOption,
    load_key,
    open_to_read,
    read_tip,
)
from demur.cli.local_reports import reports_app
from demur.cli.serve import serve_commands, token_app
from demur.cli.shell import (
    App,
    AsJson,
    Code,
    Contents,
    Interrupted,
    console,
    errors,
    print_json,
    written,
)
from demur.cli.train import train
from demur.cli.unlearning.certificates import unlearn_app

START, ENGINES, LEDGER, TRUST = "Start here", "Engines", "The ledger", "Trust"

app = App(
    help="Learning from people's data under differential privacy that can be checked.",
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 declined by a budget,"
    " 130 interrupted. Every command has --help and --json.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Contents,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(head_app, name="head", rich_help_panel=ENGINES)
app.add_typer(reports_app, name="reports", rich_help_panel=ENGINES)
app.add_typer(unlearn_app, name="unlearn", rich_help_panel=ENGINES)
app.command(rich_help_panel=ENGINES)(train)
app.add_typer(ledger_app, name="ledger", rich_help_panel=LEDGER)
app.registered_commands += serve_commands.registered_commands
app.add_typer(token_app, name="token", rich_help_panel=LEDGER)
app.command(rich_help_panel=TRUST)(audit)
app.command(rich_help_panel=START)(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"demur {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of the command itself; its help is that of the app."""


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
    """One dataset, one ledger: private releases, a refusal, an audit and a report."""
    from demur.cli.tour import run

    try:
        run(out, errors if as_json else console)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"The tour spends from its own ledger, under {out}, which it creates each"
            " time: run it again."
        ) from stop
    if as_json:
        files = ("ledger.db", "tip.txt", "report.html")
        print_json({name.split(".")[0]: str(out / name) for name in files})


@app.command(rich_help_panel=LEDGER)
def evidence(
    ledger: Annotated[
        str,
        typer.Argument(help="A ledger; or `verify`, to check PACK.", metavar="LEDGER"),
    ],
    pack: Annotated[
        Path | None, typer.Argument(help="With `verify`: the file.", metavar="[PACK]")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The zip file.")] = (
        Path("evidence.zip")
    ),
    tip: TipOption = None,
    signer: Signer = None,
    product: Annotated[str, typer.Option(help="For the registry.")] = "",
    organisation: Annotated[str, typer.Option(help="For the registry.")] = "",
    service: Annotated[
        list[str] | None,
        typer.Option(
            help="A deletion service whose certificates to add; may be repeated.",
            metavar="ADDRESS",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--ledger", help="With `verify`: the ledger that must have the pack's tip."
        ),
    ] = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Write an evidence pack about a ledger; `demur evidence verify PACK` checks one.

    A pack has the report, statements, verification, audits with their power, deletions,
    requests, records for the public registry, and where an evaluation finds its facts.
    """
    from demur.ledger import Ledger
    from demur.report import check_evidence, write_evidence
    from demur.serve.deletion_services import certificates_of

    if ledger == "verify" and pack is not None:
        with ExitStack() as stack:
            own = None if against is None else stack.enter_context(
                open_to_read(against)
            )  # fmt: skip
            check = check_evidence(pack, signer=signer, ledger=own)
        if as_json:
            facts = {"problems": check.problems, "unknown": check.unknown}
            print_json({"ok": check.ok, "tip": check.tip, **facts})
        else:
            console.print(str(check), highlight=False, markup=False, soft_wrap=True)
        if not check.ok:
            raise typer.Exit(int(Code.ERROR))
        return
    if pack is not None:
        raise ValueError("give one LEDGER, or `verify` and a PACK")
    if against is not None:
        raise ValueError("--ledger is for `verify`: name the ledger itself")
    issued = certificates_of(service or ())
    open_to_read(ledger).close()  # One that is not there is not made.
    key = load_key(signing_key, password_file)
    signed = key is not None
    opened = Ledger.open(ledger, signing_key=key) if signed else open_to_read(ledger)
    with opened, errors.status("gathering the evidence"):
        write_evidence(
            opened,
            output,
            tip=read_tip(tip),
            signer=signer,
            product=product,
            organisation=organisation,
            certificates=issued,
        )
    if as_json:
        print_json({"written": str(output)})
    else:
        written(output)


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
    issuer: Annotated[
        str, typer.Option(help="Who hands it out, above the signature.")
    ] = "",
    actors: Annotated[
        bool, typer.Option(help="Say who asked for what was declined.")
    ] = True,
    tip: TipOption = None,
    signer: Signer = None,
    as_json: AsJson = False,
) -> None:
    """Write the report: one self-contained HTML page about a ledger, with charts."""
    from demur.report import write_report

    with open_to_read(address) as ledger, errors.status("drawing the report"):
        facts = write_report(
            ledger,
            output,
            charts=charts,
            tip=read_tip(tip),
            signer=signer,
            issuer=issuer,
            actors=actors,
        )
    if as_json:
        drawn = [] if charts is None else sorted(str(p) for p in charts.iterdir())
        chain = {"ok": facts.chain.ok, "problems": facts.chain.problems}
        print_json({"written": str(output), "charts": drawn, "chain": chain})
        return
    written(output)
    if charts is not None:
        written(charts)
    if not facts.chain.ok:
        console.print("[bold red]The chain is DAMAGED:[/] see the page, or verify.")
