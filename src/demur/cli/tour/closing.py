"""The last chapters: a refusal, an audit of one release, and the ledger itself."""

from __future__ import annotations

from functools import partial

import numpy as np
from rich.panel import Panel

from demur.audit.black_box import audit
from demur.cli.main import ledger_tables
from demur.cli.tour import head, reports
from demur.cli.tour.stage import DELTA, REPLACED, Stage, Values
from demur.core.adjacency import Ball
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded
from demur.core.rounding import printed_up
from demur.mechanisms import BPM
from demur.report import write_report

_AUDIT_RUNS = 20_000


def decline(stage: Stage) -> None:
    """Ask for a head that the ledger cannot carry any more."""
    before = stage.ledger.tip()
    try:
        head.classifier(2.0, stage).fit(stage.people.embedded, stage.people.labels)
    except BudgetExceeded as error:
        stage.console.print(Panel(str(error), title="[bold red]declined[/]"))
    untouched = stage.ledger.tip() == before
    stage.console.print(
        "No noise was drawn, nothing was written: the ledger is"
        f" {'the same as before' if untouched else 'CHANGED'}."
    )


def audit_the_reports(stage: Stage) -> None:
    """Report two made-up points many times, and bound epsilon from the reports alone.

    Corner against corner is the worst pair for any replacement. The score is the
    log-likelihood ratio that the mechanism claims, the best there is.
    """
    (paid,) = (e for e in stage.ledger.entries() if e.label == reports.LABEL)
    corners = (np.zeros(2), np.ones(2))
    claimed, broken = reports.mechanism(), reports.mechanism(noise=0.5)

    def ratio(report: Values) -> float:
        near, far = (claimed.log_density(corner, report) for corner in corners)
        return float(near - far)

    def run(mechanism: BPM, corner: Values, source: Seeded, count: int) -> Values:
        points = np.tile(corner, (count, 1))
        return mechanism.privatize(points, ledger=None, source=source).value.values

    found = [
        audit(
            partial(run, mechanism),
            corners,
            paid,
            unit=REPLACED,
            score=ratio,
            many=True,
            runs=_AUDIT_RUNS,
            subject=subject,
            ledger=stage.ledger if mechanism is claimed else None,
        )
        for mechanism, subject in (
            (claimed, "the reports of chapter 2"),
            (broken, "the same with half the noise"),
        )
    ]
    stage.show(
        ("audited", "claimed epsilon", "measured, at least", "result"),
        *(
            (
                result.subject,
                f"{result.claimed:.2f}",
                f"{result.lower_bound:.2f}",
                f"[bold red]refuted[/] at n = {result.runs:,}"
                if result.refuted
                else f"not refuted at n = {result.runs:,}",
            )
            for result in found
        ),
    )
    stage.console.print(
        "An audit never proves a promise; it fails to refute it, with a power that the"
        " second row shows. A sound release is refuted at most once in"
        f" {1 / found[0].alpha:,.0f} audits."
    )


def read_the_ledger(stage: Stage) -> None:
    """Budgets, entries, chain, and the page for whoever signs."""
    ledger = stage.ledger
    for table in ledger_tables(ledger, 8):
        stage.console.print(table)
    last = ledger.tip()
    (stage.out / "tip.txt").write_text(f"{last}\n")
    found = ledger.verify(last)
    stage.console.print(f"Verified: {'whole' if found.ok else 'DAMAGED'}, tip {last}")
    readings = [0.1, 0.3, 1.0, 3.0]
    stage.show(
        ("how far one image moves (pixels, L2)", "epsilon of the whole ledger"),
        *(
            (f"{radius:g}", printed_up(ledger.epsilon(DELTA, Ball(radius, "pixels"))))
            for radius in readings
        ),
        ("to any other image", printed_up(ledger.epsilon(unit=REPLACED))),
    )
    stage.console.print(
        "Each release was paid at a quarter of delta. Read at the whole of it they"
        " are cheaper, so the statements above add up to less than what is spent."
    )
    with stage.console.status("drawing the report"):
        write_report(ledger, stage.out / "report.html", tip=last)
