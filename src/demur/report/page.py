"""The HTML page of the report, which fetches nothing and runs nothing."""

from __future__ import annotations

import os
from pathlib import Path

from demur.ledger import Ledger, Tip
from demur.report import sections
from demur.report.attack_table import attack_section
from demur.report.distance import SpaceCost
from demur.report.distance_chart import distance_chart, units_chart
from demur.report.document import document, write_document
from demur.report.facts import LedgerFacts, gather
from demur.report.figure import Chart, inline, save
from demur.report.note_charts import audit_chart, utility_chart
from demur.report.text import number_up, safe
from demur.report.time_chart import MOST_PANELS, time_chart

_UNFOLD = 60  # entries up to which a printed page shows all statements


def write_report(
    ledger: Ledger,
    path: str | os.PathLike[str],
    *,
    charts: str | os.PathLike[str] | None = None,
    tip: Tip | str | None = None,
    signer: str | None = None,
    issuer: str = "",
    actors: bool = True,
) -> LedgerFacts:
    """Write the report of `ledger` to `path`, and its charts as files into `charts`.

    `tip` and `signer` go to the check of the chain; `issuer` stands at the top and in
    the signature block. Without `actors` the page does not say who asked for what was
    declined. The page is moved into place when it is complete, so that no partial page
    is ever at `path`.
    """
    facts = gather(ledger, tip=tip, signer=signer, issuer=issuer, actors=actors)
    write_document(render(facts), path)
    if charts is not None:
        write_charts(facts, charts)
    return facts


def write_charts(facts: LedgerFacts, folder: str | os.PathLike[str]) -> list[Path]:
    """Write every chart of the page as NAME.svg and NAME.png into `folder`."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    return [path for chart in all_charts(facts) for path in save(chart, place)]


def all_charts(facts: LedgerFacts) -> list[Chart]:
    """The charts of the page, in order."""
    charts = _distance_charts(facts)
    if facts.moments:
        charts.append(time_chart(facts))
    if facts.utilities:
        charts.append(utility_chart(facts.utilities))
    audits = audit_chart(facts.audits)
    return charts if audits is None else [*charts, audits]


def render(facts: LedgerFacts) -> str:
    """The page as HTML text."""
    parts = {
        "budgets": sections.budgets(facts),
        "attacks": attack_section(facts),
        "distance": _distance(facts),
        "time": _time(facts),
        "utility": _utility(facts),
        "deletions": sections.deletions(facts),
        "audits": audit_section(facts),
        "entries": sections.entries(facts),
        "declined": sections.declined(facts),
        "chain": sections.chain(facts),
        "words": sections.reading_guide(),
        "signature": sections.signature(facts),
    }
    links = "".join(
        f'<li><a href="#{name}">{name}</a></li>' for name, part in parts.items() if part
    )
    unread = ""
    if facts.unread_notes:
        unread = (
            '<p class="quiet small">Notes left out, because they are not in the form'
            f" of an audit or a utility: {facts.unread_notes}.</p>"
        )
    body = (
        f"<header>{sections.top(facts)}"
        f'<nav aria-label="sections"><ul>{links}</ul></nav></header>\n<main>\n'
        + "\n".join(part for part in parts.values() if part)
        + f"\n{unread}</main>\n<footer class='small quiet'>This page is one file. Its"
        " numbers are inside it as JSON, in the element <code>ledger</code>.</footer>"
    )
    return document(
        f"Ledger of {facts.dataset}",
        body,
        data_name="ledger",
        data=facts.to_json(),
        css_class="unfold" if len(facts.entries) <= _UNFOLD else "",
    )


def _figure(chart: Chart, caption: str, numbers: str = "") -> str:
    return (
        f"<figure>{inline(chart)}<figcaption>{caption}</figcaption>{numbers}</figure>"
    )


def _distance_charts(facts: LedgerFacts) -> list[Chart]:
    several = len(facts.spaces) > 1
    charts = [
        distance_chart(
            space_cost, facts.units, f"distance-{i + 1}" if several else "distance"
        )
        for i, space_cost in enumerate(facts.spaces)
    ]
    if not charts and facts.units and facts.entries:
        charts.append(units_chart(facts.units))
    return charts


def _distance(facts: LedgerFacts) -> str:
    drawn = _distance_charts(facts)
    if not drawn:
        return ""
    figures = []
    for i, chart in enumerate(drawn):
        caption, numbers = "No entry of this ledger has a cost by distance.", ""
        if facts.spaces:
            caption = _caption(facts.spaces[i], facts)
            numbers = _radius_table(i, facts.spaces[i])
        figures.append(_figure(chart, caption, numbers))
    return (
        '<h2 id="distance">Cost by distance</h2><p>The same noise protects a small'
        " change of a record better than a large one. The ledger stores the cost of"
        " every entry at each distance by which a record may change, and can be read at"
        f" any of them.</p>{_selected(figures, [s.space for s in facts.spaces])}"
    )


def _selected(figures: list[str], names: list[str]) -> str:
    """One figure at a time, chosen by its name: radio buttons, without a script."""
    if len(figures) < 2:
        return "".join(figures)
    buttons = "".join(
        f'<input type="radio" name="space" id="space-{i}" class="s{i}"'
        f'{" checked" if i == 0 else ""}><label for="space-{i}"><bdi>{safe(name)}'
        "</bdi></label>"
        for i, name in enumerate(names)
    )
    panels = "".join(
        f'<div class="panel p{i}">{figure}</div>' for i, figure in enumerate(figures)
    )
    rules = "".join(
        f".choice:has(.s{i}:checked) .p{i}{{display:block}}" for i in range(len(names))
    )
    return (
        f"<style>.choice .panel{{display:none}}{rules}</style>"
        '<div class="choice"><fieldset><legend>Distance measured in the space'
        f"</legend>{buttons}</fieldset>{panels}</div>"
    )


def _caption(space_cost: SpaceCost, facts: LedgerFacts) -> str:
    text = (
        f"Tight epsilon of the whole ledger when one record moves by r in the space"
        f" {safe(repr(space_cost.space))}, at delta {number_up(space_cost.delta)}."
    )
    if space_cost.costliest:
        drawn = len(space_cost.costliest)
        text += f" Thin lines: {drawn} of {space_cost.groups} kinds of entries, alone."
    if space_cost.budgets:
        text += " A diamond is a budget; the grey area is what it allows."
    if any(e is None for e in space_cost.epsilon):
        text += " Where the line ends, an entry has no cost at larger balls."
    if any(u.name.startswith("erasure") for u in facts.units):
        text += " Erasure is separate: it is never added to a privacy cost."
    return text


def _radius_table(i: int, space_cost: SpaceCost) -> str:
    step = max(1, len(space_cost.radii) // 12)
    rows = "".join(
        f'<tr><th scope="row" class="n">{space_cost.radii[k]:.4g}</th><td class="n">'
        f"{sections.shown(f'spaces.{i}.epsilon.{k}', space_cost.epsilon[k])}</td></tr>"
        for k in range(0, len(space_cost.radii), step)
    )
    return (
        '<details class="numbers"><summary>the numbers</summary><table><thead><tr>'
        '<th scope="col" class="n">distance r</th><th scope="col" class="n">epsilon'
        f"</th></tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _time(facts: LedgerFacts) -> str:
    if not facts.moments:
        return ""
    caption = "Epsilon counted as spent after each entry. Grey: what is left."
    more = len(facts.budgets) - MOST_PANELS
    if more > 0:
        caption += f" {more} more budgets are not drawn."
    return '<h2 id="time">Epsilon over time</h2>' + _figure(time_chart(facts), caption)


def _utility(facts: LedgerFacts) -> str:
    if not facts.utilities:
        return ""
    rows = "".join(
        f'<tr><td>{safe(u.name)}</td><td><bdi>{safe(u.label)}</bdi></td><td class="n">'
        f"{sections.shown(f'utilities.{i}.epsilon', u.epsilon)}</td>"
        f'<td class="n">{u.value:.4g}</td><td class="n">'
        f"{'' if u.non_private is None else f'{u.non_private:.4g}'}</td></tr>"
        for i, u in enumerate(facts.utilities[:200])
    )
    numbers = (
        '<details class="numbers"><summary>the numbers</summary><table><thead><tr>'
        '<th scope="col">measured</th><th scope="col">run</th>'
        '<th scope="col" class="n">epsilon</th><th scope="col" class="n">value</th>'
        '<th scope="col" class="n">not private</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details>"
    )
    caption = (
        "The utility of each run, as noted in the ledger by whoever ran it, against the"
        " epsilon of that run alone: one point for each run, which may be of different"
        " models. Bars are intervals as noted; dashed: without noise."
    )
    chart = _figure(utility_chart(facts.utilities), caption, numbers)
    return f'<h2 id="utility">Utility against epsilon</h2>{chart}'


def audit_section(facts: LedgerFacts) -> str:
    """Every audit, drawn and in a table; nothing where there is none."""
    if not facts.audits:
        return ""
    chart = audit_chart(facts.audits)
    caption = (
        "An audit cannot prove a claim. A lower bound above the claim refutes it; one"
        " below it means that this test, with this many runs, did not refute it."
    )
    drawn = f"<p>{caption}</p>" if chart is None else _figure(chart, caption)
    return f'<h2 id="audits">Audits</h2>{drawn}{sections.audit_table(facts)}'
