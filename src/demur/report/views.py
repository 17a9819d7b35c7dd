"""Results in notebooks: a piece of HTML for each kind.

Kinds are known by the names of their classes, so that looking at a ledger imports no
engine. All that is shown is public: labels, costs, certificates, and of a `Release` its
shape and a few of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from demur.core.rounding import printed_up
from demur.report.text import day, number_down, number_up, safe

_MOST_ENTRIES = 8
_QUIET = "color:#6b7a89;font-size:.9em"
_CELL = "text-align:left;padding:.15em 1em .15em 0"


def html(result: Any) -> str:
    """The result as HTML that stands by itself."""
    shown: str = known(result, _PAGES)(result)
    return f'<div class="demur" style="max-width:60em">{shown}</div>'


def known(result: Any, kinds: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What is known for the class of a result, or for one that it derives from."""
    for kind in type(result).__mro__:
        if kind.__name__ in kinds and kind.__module__.startswith("demur."):
            return kinds[kind.__name__]
    raise TypeError(f"{type(result).__name__} has no view")


# -- ledgers -------------------------------------------------------------------------


def _ledger_page(ledger: Any) -> str:
    entries = ledger.entries()
    promises = entries[-1].promises if entries else ()
    rows = [
        [
            str(entry.sequence),
            day(entry.time),
            f"<bdi>{safe(entry.label)}</bdi>",
            safe(entry.declaration.name),
            *(_cost(entry.cost_alone(promise)) for promise in entry.promises[:3]),
        ]
        for entry in entries[-_MOST_ENTRIES:]
    ]
    titles = ["row", "time (UTC)", "entry", "mechanism"]
    titles += [f"epsilon, {safe(promise.unit)}" for promise in promises[:3]]
    more = len(entries) - _MOST_ENTRIES
    older = f'<p style="{_QUIET}">and {more:,} before these</p>' if more > 0 else ""
    kind = "durable" if ledger.durable else "in memory: not recorded"
    return (
        f"<p><b>Ledger of {safe(ledger.terms.dataset)}</b> ({kind}), {len(entries):,}"
        f" {'entry' if len(entries) == 1 else 'entries'}</p>"
        f"{_status_page(ledger.status())}{_table(titles, rows) if rows else ''}{older}"
    )


def _status_page(statuses: Sequence[Any]) -> str:
    rows = []
    for status in statuses:
        spent, budget = status.shown
        share = 0.0
        if not status.budget.unlimited:
            share = min(100.0, 100 * status.spent_epsilon / status.budget.epsilon)
        bar = (
            '<div style="width:10em;height:.6em;border-radius:9em;background:#8884">'
            f'<div style="width:{share:.1f}%;height:100%;border-radius:9em;'
            'background:#2f88c2"></div></div>'
        )
        left = "" if status.budget.unlimited else status.shown_left
        rows.append(
            [safe(status.unit), bar, f"epsilon {spent} of {budget}", left,
             f"delta {number_down(status.budget.delta)}"]
        )  # fmt: skip
    return _table([], rows)


# -- releases --------------------------------------------------------------------------


def _release_page(release: Any) -> str:
    entry = release.entry
    name = safe(entry.declaration.name)
    row = f", row {entry.sequence} of its ledger" if entry.durable else ""
    extra = ""
    if hasattr(release, "steps"):
        size = _parameters(release.value)
        extra = f"<p>{release.steps:,} steps, {size:,} parameters</p>"
    return (
        f"<p><b><bdi>{safe(entry.label)}</bdi></b>: {name}{row}</p>{extra}"
        f"<p>{_preview(release.value)}</p>{_promises(entry)}"
        f"<details><summary>statement</summary><p>{safe(release.statement())}</p>"
        "</details>"
    )


def _promises(entry: Any) -> str:
    rows = [
        [safe(promise.unit), _cost(entry.cost_alone(promise)),
         f"at delta {number_up(promise.delta)}"]
        for promise in entry.promises
    ]  # fmt: skip
    return _table(["protects", "epsilon", ""], rows)


def _parameters(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_parameters(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_parameters(part) for part in value)
    return int(np.size(value)) if hasattr(value, "shape") else 0


def _preview(value: Any) -> str:
    """A few numbers of what was released, which is public."""
    shape = getattr(value, "shape", None)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if shape is None or kind not in ("f", "i", "u"):
        return f"released: {safe(type(value).__name__)}"
    few = ", ".join(f"{number:.6g}" for number in np.ravel(value)[:6].tolist())
    more = ", ..." if np.size(value) > 6 else ""
    return f"released: {safe(tuple(shape))} [{few}{more}]"


# -- heads -----------------------------------------------------------------------------


def _head_page(report: Any) -> str:
    pairs = report.curve()[4::5]
    rows = [[f"{radius:.3g}", printed_up(epsilon)] for radius, epsilon in pairs]
    return (
        f"<p><b>{safe(report.mechanism)}</b>: epsilon {printed_up(report.epsilon)} at"
        f" delta {number_up(report.delta)}, {safe(report.unit.describe())}</p>"
        f"{_table(['moved by', 'epsilon'], rows)}"
        f"<details><summary>statement</summary><p>{safe(report.statement())}</p>"
        "</details>"
    )


# -- certificates ----------------------------------------------------------------------


def _certificate_page(certificate: Any) -> str:
    lines = "".join(f"<li>{safe(line)}</li>" for line in certificate.not_covered)
    rows = [
        ["theorem", safe(certificate.theorem)],
        ["epsilon of this deletion", number_up(certificate.epsilon)],
        ["of all that compose with it", number_up(certificate.epsilon_so_far)],
        ["delta", number_up(certificate.delta)],
        ["row of the journal", f"<code>{safe(certificate.tip)}</code>"],
    ]
    return (
        f"<p><b>Certificate of deletion</b>, {day(certificate.time)} UTC</p>"
        f"{_table([], rows)}<details><summary>what it says, and what it does not cover"
        f"</summary><p>{safe(certificate.statement)}</p><ul>{lines}</ul></details>"
    )


def _cost(epsilon: float | None) -> str:
    return "-" if epsilon is None else number_up(epsilon)


def _table(titles: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th style="{_CELL}">{title}</th>' for title in titles)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


_PAGES: dict[str, Callable[[Any], str]] = {
    "Ledger": _ledger_page,
    "BudgetStatus": lambda status: _status_page([status]),
    "BudgetStatuses": _status_page,
    "Release": _release_page,
    "PrivacyReport": _head_page,
    "Certificate": _certificate_page,
}
