"""One HTML page about a book: budgets, entries, the cost at a distance, the chain."""

from __future__ import annotations

from html import escape
from pathlib import Path

from demur.ledger import Ledger
from demur.report.charts import epsilon_by_distance, gauge, spaces_of

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff;
  max-width: 56rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.quiet { color: #5d6b7a; } .bad { color: #b3412f; font-weight: 600; }
.budget { border: 1px solid #dde3ea; border-radius: 8px; padding: .8rem 1rem;
  margin: .7rem 0; } .budget b { font-size: 1.25rem; }
svg { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; vertical-align: top;
  border-bottom: 1px solid #e3e8ee; }
details { margin: .3rem 0 .8rem; } code { overflow-wrap: anywhere; }
@media print { details > * { display: block; } .budget { break-inside: avoid; } }
"""


def write_report(ledger: Ledger, path: Path) -> None:
    """Write the page about `ledger` to `path`: one file that fetches nothing."""
    Path(path).write_text(_page(ledger), encoding="utf-8")


def _page(ledger: Ledger) -> str:
    entries = ledger.entries()
    parts = [
        f"<h1>Book of {escape(ledger.terms.dataset)}</h1>",
        f'<p class="quiet">{len(entries)} entries. Filter:'
        f" {escape(str(ledger.terms.filter))}.</p>",
    ]
    if not all(entry.private for entry in entries):
        parts.append(
            '<p class="bad">NOT PRIVATE: some noise came from a seeded source.</p>'
        )
    parts += _budgets(ledger)
    parts += _distance(ledger)
    parts.append("<h2>Entries</h2>")
    for entry in entries:
        parts.append(
            f"<details><summary>{entry.sequence}. <b>{escape(entry.label)}</b>"
            f' <span class="quiet">{escape(entry.declaration.name)},'
            f" {entry.time[:10]}</span></summary>"
            f"<p>{escape(entry.statement())}</p></details>"
        )
    if not entries:
        parts.append("<p>No entry yet: nothing was released.</p>")
    parts += _chain(ledger)
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Book of {escape(ledger.terms.dataset)}</title>"
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _budgets(ledger: Ledger) -> list[str]:
    parts = ["<h2>Budgets</h2>"]
    for status in ledger.status():
        reading = ledger.reading(status.unit)
        parts.append(
            f'<div class="budget"><b>{status.spent_epsilon:.4g}</b> of'
            f" {status.budget.epsilon:g} epsilon at delta {status.budget.delta:g}"
            f"<br>protects {escape(status.unit.describe())}"
            f"{gauge(status)}"
            '<span class="quiet">Enforced by the filter. Read tightly, all entries at'
            f" once: {reading.epsilon:.4g}.</span></div>"
        )
    return parts


def _distance(ledger: Ledger) -> list[str]:
    deltas = {b.delta for _, b in ledger.terms.budgets if b.delta}
    parts: list[str] = []
    for space in spaces_of(ledger):
        chart = epsilon_by_distance(ledger, space, max(deltas, default=0.0))
        if chart is not None:
            parts += [
                "<h2>A cost is a function of the distance</h2>",
                f'<div class="wide">{chart}</div>',
            ]
    return parts


def _chain(ledger: Ledger) -> list[str]:
    found = ledger.verify()
    state = "no problem found" if found.ok else "DAMAGED"
    css = "quiet" if found.ok else "bad"
    parts = [
        "<h2>The chain</h2>",
        f'<p class="{css}">{found.rows} rows checked: {state}.</p>',
    ]
    parts += [f'<p class="bad">{escape(problem)}</p>' for problem in found.problems]
    parts += [f"<p>Not known: {escape(text)}.</p>" for text in found.unknown]
    parts.append(
        f"<p>Head, to keep elsewhere:<br><code>{escape(str(found.head))}</code></p>"
    )
    return parts
