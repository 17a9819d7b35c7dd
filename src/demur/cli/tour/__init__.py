"""`demur tour`: four engines on one ledger, a refusal, an audit and a report."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from demur.cli.tour import closing, deletions, head, local_reports, network
from demur.cli.tour.session import Session

_CHAPTERS = (
    ("A private head on embeddings", head.run),
    ("Local reports, clustered", local_reports.run),
    ("A live model with deletions on request", deletions.run),
    ("A small network, trained with DP-SGD", network.run),
    ("A request that is declined", closing.decline),
    ("An audit of the local reports", closing.audit_the_reports),
    ("The ledger, read and checked", closing.read_the_ledger),
)


# Files of an earlier tour, which the next one may delete.
_TOUR_FILES = ("ledger.db", "live.db", "tip.txt", "certificate.json", "report.html")


def run(out: Path, console: Console) -> None:
    """Run every chapter; writes ledger.db, tip.txt and report.html under `out`."""
    _empty_folder(out)
    console.print(
        Panel.fit(
            "[bold]demur[/]: learning from people's data under differential privacy"
            " that can be checked.\nOne dataset, one ledger, four engines; every"
            " release is paid for before its noise is drawn."
        )
    )
    session = Session.open(out, console)
    with session.ledger:
        for number, (title, chapter) in enumerate(_CHAPTERS, 1):
            console.print()
            console.rule(f"[bold]{number}. {title}[/]", align="left")
            chapter(session)
    console.print(
        f"\nReport: [bold]{out / 'report.html'}[/]   Ledger: {out / 'ledger.db'}\n"
        "Next (with .venv/bin/ in front if demur is not on your path):\n"
        f"  demur ledger show {out / 'ledger.db'}\n"
        f"  demur report {out / 'ledger.db'} -o report.html\n"
        "  demur audit --quick",
        soft_wrap=True,
    )


def _empty_folder(out: Path) -> None:
    """Make `out` an empty folder; refuse if it holds anything but an earlier tour."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder. Nothing was changed.")
    present = sorted(out.iterdir()) if out.exists() else []
    others = [path.name for path in present if not path.name.startswith(_TOUR_FILES)]
    if others:
        raise ValueError(
            f"{out} holds {others[0]!r}, which is not from a tour: choose an empty"
            " folder with --out. Nothing was changed."
        )
    for path in present:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    out.mkdir(parents=True, exist_ok=True)
