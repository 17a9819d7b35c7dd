"""The tour: one dataset, one ledger, four engines, a refusal, an audit and a report."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from demur.cli.tour import closing, forgetting, head, network, reports
from demur.cli.tour.stage import Stage

_CHAPTERS = (
    ("A private head on embeddings", head.play),
    ("Reports from their owners, clustered", reports.play),
    ("A live model that forgets on request", forgetting.play),
    ("A small network, trained by a plan", network.play),
    ("One request too many", closing.decline),
    ("An audit: does the noise keep its promise?", closing.audit_the_reports),
    ("The ledger, read and checked", closing.read_the_ledger),
)


# What a tour leaves behind, so that the next one may clear it away.
_OURS = ("ledger.db", "live.db", "tip.txt", "certificate.json", "report.html")


def run(out: Path, console: Console) -> None:
    """Take the tour; leaves ledger.db, tip.txt and report.html under `out`."""
    _make_room(out)
    console.print(
        Panel.fit(
            "[bold]demur[/]: learning from people's data under a promise that can be"
            " checked.\nOne dataset, one ledger, four engines; every release is paid"
            " for before its noise is drawn."
        )
    )
    with Stage.open(out, console) as stage:
        for number, (title, play) in enumerate(_CHAPTERS, 1):
            console.print()
            console.rule(f"[bold]{number}. {title}[/]", align="left")
            play(stage)
    console.print(
        f"\nReport: [bold]{out / 'report.html'}[/]   Ledger: {out / 'ledger.db'}\n"
        "Next, with .venv/bin/ before it where demur is not on your path:\n"
        f"  demur ledger show {out / 'ledger.db'}\n"
        f"  demur report {out / 'ledger.db'} -o report.html\n"
        "  demur audit --quick",
        soft_wrap=True,
    )


def _make_room(out: Path) -> None:
    """An empty folder; whatever is not from an earlier tour is left alone."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder. Nothing was changed.")
    found = sorted(out.iterdir()) if out.exists() else []
    strange = [path.name for path in found if not path.name.startswith(_OURS)]
    if strange:
        raise ValueError(
            f"{out} holds {strange[0]!r}, which no tour made: choose an empty folder"
            " with --out. Nothing was changed."
        )
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    out.mkdir(parents=True, exist_ok=True)
