"""demur audit: the installed package before its own adversary."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from demur.cli.shell import AsJson, Code, console, print_json, progress_console, written
from demur.core.rounding import printed_up

if TYPE_CHECKING:
    from demur.testing.suite import Found, Size


class Engine(StrEnum):
    """What can be audited by itself."""

    LEDGER = "ledger"
    CONVEX = "convex"
    CLUSTER = "cluster"
    UNLEARNING = "unlearning"
    TRAINING = "training"


def audit(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="The smallest samples that refute the twins."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Fifty times the samples of --quick; long.")
    ] = False,
    engine: Annotated[
        list[Engine] | None, typer.Option(help="Only this engine; may be repeated.")
    ] = None,
    twins: Annotated[
        bool, typer.Option(help="Audit builds that are broken on purpose, too.")
    ] = True,
    seed: Annotated[
        int, typer.Option(min=0, help="Another seed is another sample.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write audits.svg and audits.png here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try to refute what every engine promises; broken twins show that it would work.

    Exit code 1 if a promise is refuted, or if a broken twin is not.
    """
    from demur.testing.suite import ENGINES, Size, all_cases, lacking, run_suite

    if quick and deep:
        raise typer.BadParameter("choose one of --quick and --deep")
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)  # before the long part, not after it
    size = Size.QUICK if quick else Size.DEEP if deep else Size.STANDARD
    engines = [str(one) for one in engine or ENGINES if engine or not lacking(one)]
    left_out = [lacks for one in ENGINES if not engine and (lacks := lacking(one))]
    found: list[Found] = []
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
        console=progress_console(),
        transient=True,
    ) as bar:
        cases = all_cases(engines, twins=twins)
        task = bar.add_task("auditing", total=len(cases))
        for one in run_suite(
            size,
            engines=engines,
            twins=twins,
            seed=seed,
            started=lambda case: bar.update(task, description=str(case)[:70]),
        ):
            found.append(one)
            bar.advance(task)
    good = all(one.as_it_should for one in found)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        print_json(
            {
                "ok": good,
                "size": str(size),
                "left_out": left_out,
                "found": [one.to_json() for one in found],
            }
        )
    else:
        _tell(found, size)
        for lacks in left_out:
            console.print(f"Left out: {escape(lacks)}.")
        if plot is not None:
            written(plot / "audits.svg")
    if not good:
        raise typer.Exit(Code.ERROR)


def _tell(found: list[Found], size: Size) -> None:
    for broken, title in (
        (False, f"Promises ({size} samples)"),
        (True, "Twins, broken on purpose: each must be refuted"),
    ):
        rows = [one for one in found if (one.case.broken is not None) is broken]
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("what is broken" if broken else "what is audited")
        table.add_column("level")
        table.add_column("claims", justify="right")
        table.add_column("shown", justify="right")
        table.add_column("n", justify="right")
        table.add_column("result")
        engine = ""
        for one in rows:
            result = one.result
            if one.case.engine != engine:
                engine = one.case.engine
                table.add_section()
                table.add_row(f"[bold]{engine}[/]")
            table.add_row(
                f"  {one.case.broken or one.case.name}",
                str(result.level),
                "" if result.claimed is None else f"{result.claimed:.3g}",
                "" if result.lower_bound is None else f"{result.lower_bound:.3g}",
                f"{result.runs:,}",
                _verdict(one),
            )
        console.print(table)
    wrong = [one for one in found if not one.as_it_should]
    for one in wrong:
        console.print(f"[bold red]{one.case}:[/] {one.result.statement()}")
    rates = sum(one.result.alpha for one in found if one.case.broken is None)
    console.print(
        f"{len(found) - len(wrong)} of {len(found)} as they should be. A sound package"
        f" is refuted by chance with probability at most {printed_up(rates, 1)}. Not"
        " refuted is not proved: it says that this adversary failed at this n."
    )


def _verdict(one: Found) -> str:
    said = "refuted" if one.result.refuted else "not refuted"
    return said if one.as_it_should else f"[bold red]{said.upper()}[/]"


def _draw(found: list[Found], folder: Path) -> None:
    from demur.report.figure import save
    from demur.report.noted_charts import audit_chart

    shown = tuple(
        replace(
            one.result,
            subject=f"{one.case.engine}: twin with {one.case.broken}"
            if one.case.broken
            else f"{one.case.engine}: {one.case.name}",
        )
        for one in found
    )
    chart = audit_chart(shown)
    if chart is not None:
        save(chart, folder)
