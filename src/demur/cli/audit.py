"""`demur audit`: run the audit suite on the installed package."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.audit_gains import tell_gains
from demur.cli.shell import AsJson, Code, console, print_json, progress_console, written
from demur.core.rounding import printed_down, printed_up

if TYPE_CHECKING:
    from demur.audit import AuditResult
    from demur.testing.audit_suite import Outcome, Size


class Engine(StrEnum):
    """What can be audited separately: engines, prices, and all default paths."""

    LEDGER = "ledger"
    ACCOUNTING = "accounting"
    CONVEX = "convex"
    CLUSTER = "cluster"
    UNLEARNING = "unlearning"
    TRAINING = "training"
    TUNING = "tuning"
    DEFAULTS = "defaults"


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
    twins: Annotated[bool, typer.Option(help="Audit broken twins, too.")] = True,
    seed: Annotated[
        int, typer.Option(min=0, help="Another seed is another sample.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write audits.svg and audits.png here.")
    ] = None,
    gains: Annotated[
        Path | None,
        typer.Option(
            help="Audit nothing: what an attacker can gain from this ledger's entries."
        ),
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="With --gains: how often the best guess names the record without the"
            " release; 1/N for N equally likely candidates, (error / radius)^d for a"
            " point of a ball in d dimensions.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try to refute the guarantees of every engine, and of broken twins.

    Exit code 1 if a guarantee is refuted, or if a broken twin is not.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from demur.testing.audit_suite import (
        ENGINES,
        Size,
        all_cases,
        lacking,
        left_out,
        run_suite,
    )

    if quick and deep:
        raise typer.BadParameter("choose one of --quick and --deep")
    if prior is not None and gains is None:
        raise typer.BadParameter("--prior goes with --gains")
    if gains is not None:
        tell_gains(gains, as_json, prior)
        return
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)  # before hours of runs
    size = Size.QUICK if quick else Size.DEEP if deep else Size.STANDARD
    engines = [str(e) for e in engine or ENGINES if engine or not lacking(e)]
    lacks = left_out([str(e) for e in engine or ENGINES], size)
    outcomes: list[Outcome] = []
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed}/{task.total} {task.description}"),
        TimeElapsedColumn(),
        console=progress_console(),
        transient=True,
    ) as bar:
        cases = all_cases(engines, size=size, twins=twins)
        task = bar.add_task("auditing", total=len(cases))
        for outcome in run_suite(
            size,
            engines=engines,
            twins=twins,
            random_state=seed,
            started=lambda case: bar.update(task, description=str(case)[:70]),
        ):
            outcomes.append(outcome)
            bar.advance(task)
    good = all(outcome.as_expected for outcome in outcomes)
    if plot is not None:
        _draw(outcomes, plot)
    if as_json:
        print_json(
            {
                "ok": good,
                "size": str(size),
                "left_out": lacks,
                "outcomes": [outcome.to_json() for outcome in outcomes],
            }
        )
    else:
        _tell(outcomes, size)
        for each in lacks:
            console.print(f"Left out: {escape(each)}.")
        if plot is not None:
            written(plot / "audits.svg")
    if not good:
        raise typer.Exit(Code.ERROR)


def _tell(outcomes: list[Outcome], size: Size) -> None:
    for broken, title in (
        (False, f"Guarantees ({size} samples)"),
        (True, "Broken twins: each must be refuted"),
    ):
        rows = [
            outcome
            for outcome in outcomes
            if (outcome.case.broken is not None) is broken
        ]
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("what is broken" if broken else "what is audited")
        table.add_column("level", no_wrap=True)
        table.add_column("epsilon shown", justify="right")
        # Of a guarantee the size of an error that it would show, of a twin the runs.
        table.add_column("n" if broken else "would refute", justify="right")
        table.add_column("result", no_wrap=True)
        engine = ""
        for outcome in rows:
            result = outcome.result
            if outcome.case.engine != engine:
                engine = outcome.case.engine
                table.add_section()
                table.add_row(f"[bold]{engine}[/]")
            table.add_row(
                f"  {outcome.case.broken or outcome.case.name}",
                str(result.level),
                _shown(result),
                f"{result.runs:,}" if broken else _power(result),
                _verdict(outcome),
            )
        console.print(table)
    wrong = [outcome for outcome in outcomes if not outcome.as_expected]
    for outcome in wrong:
        console.print(f"[bold red]{outcome.case}:[/] {outcome.result.statement()}")
    rates = sum(
        outcome.result.alpha for outcome in outcomes if outcome.case.broken is None
    )
    console.print(
        f"{len(outcomes) - len(wrong)} of {len(outcomes)} as expected. A correct"
        f" package is refuted by chance with probability {printed_up(rates, 1)} at"
        ' most. An audit cannot prove a guarantee; "would refute" is the smallest'
        " factor on noise, sensitivity or price that it would have noticed."
    )


def _verdict(outcome: Outcome) -> str:
    verdict = "refuted" if outcome.result.refuted else "not refuted"
    return verdict if outcome.as_expected else f"[bold red]{verdict.upper()}[/]"


def _power(result: AuditResult) -> str:
    """The smallest factor that would have been refuted, rounded up."""
    power = result.power
    if power is None:
        return ""
    return "no power" if math.isinf(power) else f"x {printed_up(power, 3)}"


def _shown(result: AuditResult) -> str:
    """The lower bound on epsilon, and what is claimed."""
    if result.lower_bound is None or result.claimed is None:
        return ""
    claimed = printed_up(result.claimed, 3)
    return f"{printed_down(result.lower_bound, 3)} of {claimed}"


def _draw(outcomes: list[Outcome], folder: Path) -> None:
    from demur.report.figure import save
    from demur.report.note_charts import audit_chart

    shown = tuple(
        replace(
            outcome.result,
            subject=f"{outcome.case.engine}: twin with {outcome.case.broken}"
            if outcome.case.broken
            else f"{outcome.case.engine}: {outcome.case.name}",
        )
        for outcome in outcomes
    )
    chart = audit_chart(shown)
    if chart is not None:
        save(chart, folder)
