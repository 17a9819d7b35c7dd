"""The last chapters: a declined request, an audit of a release, and the ledger."""

from __future__ import annotations

from functools import partial

import numpy as np
from rich.panel import Panel

from demur.audit import Claim, audit
from demur.cli.ledger.views import ledger_tables
from demur.cli.tour import head, local_reports
from demur.cli.tour.session import DELTA, REPLACED, Session, Values
from demur.core.adjacency import Ball
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded
from demur.core.rounding import printed_down, printed_up
from demur.mechanisms import BPM
from demur.report import write_report

_AUDIT_RUNS = 10_000


def decline(session: Session) -> None:
    """Ask for a head that the ledger cannot pay for any more."""
    before = session.ledger.status()
    try:
        head.classifier(2.0, session).fit(
            session.people.embedded, session.people.labels
        )
    except BudgetExceeded as error:
        session.console.print(Panel(str(error), title="[bold red]declined[/]"))
    unchanged = session.ledger.status() == before
    session.console.print(
        "No noise was drawn; the request is in the ledger as declined, and what is"
        f" spent is {'unchanged' if unchanged else 'CHANGED'}."
    )


def audit_the_reports(session: Session) -> None:
    """Report two synthetic points many times, and bound epsilon from the reports.

    Opposite corners are the worst pair for any replacement. The score is the claimed
    log-likelihood ratio, which no other score beats.
    """
    (paid,) = (e for e in session.ledger.entries() if e.label == local_reports.LABEL)
    corners = (np.zeros(2), np.ones(2))
    claimed, twin = local_reports.mechanism(), local_reports.mechanism(noise=0.5)

    def ratio(report: Values) -> float:
        near, far = (claimed.log_density(corner, report) for corner in corners)
        return float(near - far)

    def run(mechanism: BPM, corner: Values, source: Seeded, count: int) -> Values:
        points = np.tile(corner, (count, 1))
        return mechanism.privatize(points, ledger=None, source=source).value.values

    claim = Claim.of(paid, unit=REPLACED, score=ratio)
    results = [
        audit(
            partial(run, mechanism),
            corners,
            claim,
            many=True,
            runs=_AUDIT_RUNS,
            subject=subject,
            ledger=session.ledger if mechanism is claimed else None,
        )
        for mechanism, subject in (
            (claimed, "the reports of chapter 2"),
            (twin, "the same with half the noise"),
        )
    ]
    session.show(
        ("audited", "claimed epsilon", "measured, at least", "result"),
        *(
            (
                result.subject,
                printed_up(result.claimed or 0.0),
                printed_down(result.lower_bound or 0.0),
                f"[bold red]refuted[/] at n = {result.runs:,}"
                if result.refuted
                else f"not refuted at n = {result.runs:,}",
            )
            for result in results
        ),
    )
    session.console.print(
        "An audit cannot prove a guarantee: it refutes it or fails to. The second row"
        " shows an error that it catches. A correct release is refuted at most once in"
        f" {1 / results[0].alpha:,.0f} audits."
    )


def read_the_ledger(session: Session) -> None:
    """Print budgets and entries, verify the chain, and write the report."""
    ledger = session.ledger
    for table in ledger_tables(ledger, 8):
        session.console.print(table)
    last = ledger.tip()
    (session.out / "tip.txt").write_text(f"{last}\n")
    check = ledger.verify(last)
    session.console.print(f"Verified: {'whole' if check.ok else 'DAMAGED'}, tip {last}")
    readings = [0.1, 0.3, 1.0, 3.0]
    session.show(
        ("how far one image moves (pixels, L2)", "epsilon of the whole ledger"),
        *(
            (f"{radius:g}", printed_up(ledger.epsilon(DELTA, Ball(radius, "pixels"))))
            for radius in readings
        ),
        ("to any other image", printed_up(ledger.epsilon(unit=REPLACED))),
    )
    session.console.print(
        "Each release was calibrated at a quarter of delta. At the whole of it epsilon"
        " is smaller, so the statements above add up to less than what is spent."
    )
    with session.console.status("drawing the report"):
        write_report(ledger, session.out / "report.html", tip=last)
