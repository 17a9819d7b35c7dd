"""The sections of the page: budgets, entries, deletions, audits and chain.

Each number in the page has the attribute `data-number` (rounded up) or `data-lower`
(rounded down), the path of its value in the page's JSON, so that both can be compared.
"""

from __future__ import annotations

import math

from demur.report.facts import BudgetFacts, EntryFacts, LedgerFacts
from demur.report.text import attribute, day, number_down, number_up, safe

_RECENT = 200  # entries in the first table; older ones are folded below it
_NEARLY = 0.9
_NONE = '<span aria-hidden="true">-</span><span class="sr">no cost</span>'


def shown(place: str, value: float | None) -> str:
    """A cost, rounded up, with the path of its value in the JSON."""
    return f'<span data-number="{place}">{number_up(value)}</span>'


def shown_down(place: str, value: float | None) -> str:
    """A budget or a lower bound, rounded down, with its path in the JSON."""
    return f'<span data-lower="{place}">{number_down(value)}</span>'


def top(facts: LedgerFacts) -> str:
    """The ledger's name, a warning if it is not private, and its state."""
    parts = []
    if not facts.private:
        parts.append(
            '<p class="banner" role="alert"><strong>NOT PRIVATE</strong> Some of this'
            " ledger's noise came from a seeded source, which is for tests: whoever"
            " knows the seed can subtract the noise. These releases protect"
            " nobody.</p>"
        )
    elif facts.testing:
        parts.append(
            '<p class="banner" role="alert"><strong>NOT PRIVATE: a ledger for'
            " testing</strong> It may be charged with seeded noise. Do not use it for"
            " people's data.</p>"
        )
    count = len(facts.entries)
    chain = ("good", "chain: no problem found")
    if not facts.chain.ok:
        chain = ("bad", "chain: DAMAGED")
    noise = ("good", "noise: operating system's entropy")
    if not facts.private:
        noise = ("bad", "noise: seeded, NOT PRIVATE")
    elif not count:
        noise = ("", "noise: none drawn yet")
    chips = [("", f"{count:,} {_plural(count, 'entry', 'entries')}"), noise, chain]
    if not facts.durable:
        chips.append(("bad", "in memory only: not recorded"))
    listed = "".join(f'<li class="{css}">{text}</li>' for css, text in chips)
    parts.append(
        f"<h1>Ledger of {safe(facts.dataset)}</h1>"
        "<p>Every release about this dataset was charged to this ledger before its"
        " noise was drawn. A charge that exceeds a budget is declined."
        f' Filter: {safe(facts.filter)}.</p><ul class="chips">{listed}</ul>'
    )
    return "".join(parts)


def budgets(facts: LedgerFacts) -> str:
    """A gauge for each budget."""
    return (
        '<h2 id="budgets">Budgets</h2><p class="quiet small">The bar is what the filter'
        " counts as spent, which holds also for entries chosen after seeing earlier"
        " releases. The upright mark is the tight reading of all entries at once.</p>"
        f"{cards(facts.budgets)}"
    )


def cards(budgets: tuple[BudgetFacts, ...]) -> str:
    """The gauges alone."""
    drawn = "".join(_card(i, budget) for i, budget in enumerate(budgets))
    return f'<div class="budgets">{drawn}</div>'


def _card(i: int, budget: BudgetFacts) -> str:
    share = budget.spent_epsilon / budget.epsilon
    width = 100 * min(1.0, share)
    css = "gauge high" if share >= _NEARLY else "gauge"
    tick = ""
    if budget.tight_epsilon is not None and math.isfinite(budget.tight_epsilon):
        at = 100 * min(1.0, budget.tight_epsilon / budget.epsilon)
        tick = f'<span class="tight" style="left: calc({at:.2f}% - 1px)"></span>'
    state = f"{100 * share:.0f}% spent" if math.isfinite(share) else "used up"
    if share >= _NEARLY:
        state += ", nearly all" if share < 1 else ", all"
    place = f"budgets.{i}"
    spent = shown(f"{place}.spent_epsilon", budget.spent_epsilon)
    delta = shown_down(f"{place}.delta", budget.delta)
    protects = "After a deletion nobody can tell" if budget.erasure else "It protects"
    now = min(budget.spent_epsilon, budget.epsilon)
    return (
        f'<section class="budget"><h3>{safe(budget.name)}</h3>'
        f'<div><span class="spent">{spent}</span>'
        f" of {shown_down(place + '.epsilon', budget.epsilon)} epsilon</div>"
        f'<div class="{css}" role="meter" aria-valuemin="0"'
        f' aria-valuemax="{budget.epsilon:.6g}" aria-valuenow="{now:.6g}"'
        f' aria-label="epsilon spent at {attribute(budget.name)}">'
        f'<span class="fill" style="width: {width:.2f}%"></span>{tick}</div>'
        f'<p class="small">{state}, at delta {delta}. Tight reading:'
        f" {shown(place + '.tight_epsilon', budget.tight_epsilon)}.</p>"
        f'<p class="small quiet">{protects} {safe(budget.phrase)}.</p></section>'
    )


def entries(facts: LedgerFacts) -> str:
    """Every entry, newest first, each with its statement."""
    head = '<h2 id="entries">Entries</h2>'
    if not facts.entries:
        return head + "<p>No entry yet: nothing was released and nothing is spent.</p>"
    rows = list(enumerate(facts.entries))[::-1]
    parts = [head, _entry_table(facts, rows[:_RECENT], "Newest first.")]
    if len(rows) > _RECENT:
        older = rows[_RECENT:]
        parts.append(
            f"<details><summary>{len(older):,} older entries</summary>"
            f"{_entry_table(facts, older, 'Older entries.')}</details>"
        )
    return "".join(parts)


def _entry_table(
    facts: LedgerFacts, rows: list[tuple[int, EntryFacts]], caption: str
) -> str:
    columns = "".join(
        f'<th scope="col" class="n">{safe(b.name)}</th>' for b in facts.budgets
    )
    body = "".join(_entry_row(facts, i, entry) for i, entry in rows)
    return (
        f'<table class="cards"><caption>{caption}'
        " Numbers: the entry's own epsilon at each budget."
        '</caption><thead><tr><th scope="col">no.</th><th scope="col">time (UTC)</th>'
        f'<th scope="col">what was released</th>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _entry_row(facts: LedgerFacts, i: int, entry: EntryFacts) -> str:
    cells = ""
    for k, (own, budget) in enumerate(zip(entry.epsilon, facts.budgets, strict=True)):
        cell = _NONE if own is None else shown(f"entries.{i}.epsilon.{k}", own)
        label = attribute(f"epsilon, {budget.name}")
        cells += f'<td class="n" data-label="{label}">{cell}</td>'
    times = f", {entry.count:,} times" if entry.count > 1 else ""
    seeded = "" if entry.private else ' <span class="bad-text">NOT PRIVATE</span>'
    return (
        f'<tr><td class="tag" data-label="entry">{entry.sequence}</td>'
        f'<td class="tag" data-label="time (UTC)">{day(entry.time)}</td>'
        f'<td class="what"><b><bdi>{safe(entry.label)}</bdi></b>{seeded}'
        f'<span class="mechanism">{safe(entry.mechanism)}{times}</span>'
        '<details class="statement"><summary>statement</summary>'
        f"<p>{safe(entry.statement)}</p></details></td>{cells}</tr>"
    )


def deletions(facts: LedgerFacts) -> str:
    """Deletions and their certificates."""
    if not facts.deletions:
        return ""
    rows = []
    for i, deletion in enumerate(facts.deletions):
        certificates = "".join(
            "<details><summary>certificate of "
            f"{day(c.time)}</summary><dl>"
            + "".join(
                f"<dt>{safe(k)}</dt><dd>{safe(v)}</dd>" for k, v in c.facts.items()
            )
            + "</dl></details>"
            for c in deletion.certificates[:100]
        )
        if len(deletion.certificates) > 100:
            more = len(deletion.certificates) - 100
            certificates += f'<p class="small">and {more:,} more, in the ledger.</p>'
        times = f", {deletion.count:,} draws paid for" if deletion.count > 1 else ""
        rows.append(
            f'<tr><td class="tag" data-label="entry">{deletion.sequence}</td>'
            f'<td class="tag" data-label="time (UTC)">{day(deletion.time)}</td>'
            f'<td class="what"><b><bdi>{safe(deletion.label)}</bdi></b>'
            f'<span class="mechanism">{safe(deletion.mechanism)}{times}</span>'
            f"{certificates}</td>"
            f'<td class="n" data-label="epsilon, at delta {number_up(deletion.delta)}">'
            f"{shown(f'deletions.{i}.epsilon', deletion.epsilon)}</td></tr>"
        )
    return (
        '<h2 id="deletions">Deletions</h2><p>After a deletion the model cannot be told'
        " apart from one that never saw the record, up to the epsilon and delta shown."
        " This is never added to a privacy cost. A deletion under another entry costs"
        " nothing more: that entry covers it, and its certificate states its noise.</p>"
        '<table class="cards"><caption>Entries at the unit of erasure.</caption><thead>'
        '<tr><th scope="col">no.</th><th scope="col">time (UTC)</th>'
        '<th scope="col">what was deleted</th>'
        '<th scope="col" class="n">epsilon</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def audit_table(facts: LedgerFacts) -> str:
    """Every audit with its verdict."""
    rows = []
    for i, audit in enumerate(facts.audits):
        verdict = '<span class="good-text">not refuted</span>'
        if audit.refuted:
            verdict = '<span class="bad-text">REFUTED</span>'
        claimed = _NONE if audit.claimed is None else shown(
            f"audits.{i}.claimed", audit.claimed
        )  # fmt: skip
        rows.append(
            f'<tr><td class="what"><b><bdi>{safe(audit.subject)}</bdi></b>'
            f'<span class="mechanism">entry {audit.sequence}, {safe(audit.level)},'
            f" {safe(audit.method)}, {audit.runs:,} runs</span>"
            '<details class="statement"><summary>statement</summary>'
            f"<p>{safe(audit.statement)}</p></details></td>"
            f'<td class="tag" data-label="verdict">{verdict}</td>'
            f'<td class="n" data-label="claimed epsilon">{claimed}</td>'
            '<td class="n" data-label="at least">'
            f"{shown_down(f'audits.{i}.lower_bound', audit.lower_bound)}</td></tr>"
        )
    return (
        '<table class="cards"><thead><tr><th scope="col">audit</th>'
        '<th scope="col">verdict</th><th scope="col" class="n">claimed epsilon</th>'
        '<th scope="col" class="n">at least</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def chain(facts: LedgerFacts) -> str:
    """The result of verifying the chain, and its tip."""
    check = facts.chain
    state = '<span class="good-text">no problem check</span>'
    if not check.ok:
        state = '<span class="bad-text">DAMAGED</span>'
    rows = f"{check.rows:,} {_plural(check.rows, 'row', 'rows')} checked"
    parts = [f'<h2 id="chain">The chain</h2><p>{rows}: {state}.']
    if check.compared_with is not None:
        parts.append(
            f" Compared with the tip <code>{safe(check.compared_with)}</code>."
        )
    parts.append("</p>")
    parts += [f'<p class="bad-text">{safe(text)}</p>' for text in check.problems]
    parts += [
        f'<p class="quiet">Not known: {safe(text)}.</p>' for text in check.unknown
    ]
    parts.append(
        "<p>The tip of the chain. Store it elsewhere: with it, deleted or rewritten"
        f' rows are detected.</p><code class="tip">{safe(check.tip)}</code>'
    )
    return "".join(parts)


def reading_guide() -> str:
    """Definitions of four terms."""
    return (
        '<h2 id="words">Terms</h2><dl><dt>epsilon</dt><dd>How much a release can help'
        " somebody to tell two neighbouring datasets apart; smaller is safer. At 1,"
        " odds change by a factor of at most 2.72.</dd><dt>delta</dt><dd>A small"
        " probability with which that may fail; it should be well below one over the"
        " number of people.</dd><dt>unit</dt><dd>The neighbouring relation: with or"
        " without a record, with a record replaced, or with a record moved by at most"
        " r.</dd><dt>tight reading</dt><dd>The epsilon of all entries at once, exact"
        " for entries fixed in advance; the filter's count also holds for entries"
        " chosen after seeing others.</dd></dl>"
    )


def _plural(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural
