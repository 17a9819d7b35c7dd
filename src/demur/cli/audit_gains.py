"""What an attacker can gain from the entries of a ledger, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from demur.cli.shell import console, print_json
from demur.core.rounding import printed_up

if TYPE_CHECKING:
    from demur.audit.attacks import AttackGains


def tell_gains(path: Path, as_json: bool, prior: float | None = None) -> None:
    """Every entry and the whole ledger, at each unit that has a budget."""
    from demur.audit.attacks import attack_gains
    from demur.core.errors import NotCovered, NotPriced
    from demur.ledger import Ledger

    found: list[tuple[str, str, AttackGains]] = []
    ledger = Ledger.open(path, read_only=True)
    try:
        for unit, _ in ledger.terms.budgets:
            for entry in ledger.entries():
                try:
                    gains = attack_gains(entry, unit)
                except (NotCovered, NotPriced):
                    continue
                found.append((entry.label, str(unit), gains))
            found.append(("all of the ledger", str(unit), attack_gains(ledger, unit)))
    finally:
        ledger.close()
    if as_json:
        told: list[dict[str, Any]] = [
            {"what": what, "unit": at, **gains.to_json()} for what, at, gains in found
        ]
        if prior is not None:
            for row, (_, _, gains) in zip(told, found, strict=True):
                row["prior"] = prior
                row["reconstruction"] = gains.identification(blind=prior)
        print_json({"gains": told})
        return
    table = Table(title="What an attacker gains, at most", title_justify="left")
    for column in ("release", "unit"):
        table.add_column(column)
    for column in ("advantage", "found at 0.1% / 1% false", "1 of 10", "1 of 1,000"):
        table.add_column(column, justify="right")
    if prior is not None:
        table.add_column(f"prior {prior:g}", justify="right")
    for what, at, gains in found:
        tests = (printed_up(gains.true_positives(x), 3) for x in (0.001, 0.01))
        named = (printed_up(gains.identification(candidates=m), 3) for m in (10, 1000))
        table.add_row(
            escape(what),
            escape(at),
            printed_up(gains.membership_advantage, 3),
            " / ".join(tests),
            *named,
            *(
                []
                if prior is None
                else [printed_up(gains.identification(blind=prior), 3)]
            ),
        )
    console.print(table)
    console.print(
        "Upper bounds for every attack on what was released. Advantage: true less false"
        " positives of a membership test. 1 of 10: naming the record among ten equally"
        " likely candidates (0.1 by guessing)."
    )
