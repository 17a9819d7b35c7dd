"""The sections of the page, each from the facts alone.

A number that stands in the page carries `data-number`, the place of its value in the
page's JSON, so that a reader (or a test) can compare the two.
"""

from __future__ import annotations

import math

from demur.report.facts import BudgetFacts, EntryFacts, LedgerFacts
from demur.report.noted_charts import down
from demur.report.text import attribute, day, number, safe

_RECENT = 200  # entries in the first table; the others are folded away below it
_NEARLY = 0.9
_NONE = '<span aria-hidden="true">-</span><span class="sr">not concerned</span>'


def shown(place: str, value: float | None) -> str:
    """A number and the place of its value in the JSON; rounded up."""
    return f'<span data-number="{place}">{number(value)}</span>'


def shown_down(place: str, value: float | None) -> str:
    """The same for a lower bound; rounded down."""
    return f'<span data-lower="{place}">{down(value)}</span>'


def top(facts: LedgerFacts) -> str:
    """The ledger's name, the warning if there is one, and the state at a glance."""
    parts = []
    if not facts.private:
        parts.append(
            '<p class="banner" role="alert"><strong>NOT PRIVATE</strong> Some of this'
            " ledger's noise came from a seeded source, which is for tests: whoever"
            " knows the seed can take the noise away. Nothing here protects"
            " anybody.</p>"
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
        "<p>Every release about this dataset was written into this ledger and paid for"
        " before its noise was drawn. A charge that does not fit a budget is declined."
        f' Filter: {safe(facts.filter)}.</p><ul class="chips">{listed}</ul>'
    )
    return "".join(parts)


def budgets(facts: LedgerFacts) -> str:
    """A gauge for each budget."""
    cards = "".join(_card(i, one) for i, one in enumerate(facts.budgets))
    return (
        '<h2 id="budgets">Budgets</h2><p class="quiet small">The bar is what the filter'
        " has counted, which holds whatever was chosen after seeing earlier releases. "
        " The upright mark is the tight reading of all entries at once.</p>"
        f'<div class="budgets">{cards}</div>'
    )


def _card(i: int, one: BudgetFacts) -> str:
    share = one.spent_epsilon / one.epsilon
    width = 100 * min(1.0, share)
    css = "gauge high" if share >= _NEARLY else "gauge"
    tick = ""
    if one.tight_epsilon is not None and math.isfinite(one.tight_epsilon):
        at = 100 * min(1.0, one.tight_epsilon / one.epsilon)
        tick = f'<span class="tight" style="left: calc({at:.2f}% - 1px)"></span>'
    state = f"{100 * share:.0f}% spent" if math.isfinite(share) else "used up"
    if share >= _NEARLY:
        state += ": nearly everything" if share < 1 else ": everything"
    verb = "hides" if one.erasure else "protects"
    place = f"budgets.{i}"
    now = min(one.spent_epsilon, one.epsilon)
    return (
        f'<section class="budget"><h3>{safe(one.name)}</h3>'
        f'<div><span class="spent">{shown(place + ".spent_epsilon", one.spent_epsilon)}'
        f"</span> of {shown(place + '.epsilon', one.epsilon)} epsilon</div>"
        f'<div class="{css}" role="meter" aria-valuemin="0"'
        f' aria-valuemax="{one.epsilon:.6g}" aria-valuenow="{now:.6g}"'
        f' aria-label="epsilon spent at {attribute(one.name)}">'
        f'<span class="fill" style="width: {width:.2f}%"></span>{tick}</div>'
        f'<p class="small">{state}, at delta {shown(place + ".delta", one.delta)}. Read'
        f" tightly: {shown(place + '.tight_epsilon', one.tight_epsilon)}.</p>"
        f'<p class="small quiet">It {verb} {safe(one.phrase)}.</p></section>'
    )


def entries(facts: LedgerFacts) -> str:
    """Every charge, newest first, each with its statement."""
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
        said = _NONE if own is None else shown(f"entries.{i}.epsilon.{k}", own)
        label = attribute(f"epsilon, {budget.name}")
        cells += f'<td class="n" data-label="{label}">{said}</td>'
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
    """What was forgotten, and the certificates that were noted."""
    if not facts.deletions:
        return ""
    rows = []
    for i, one in enumerate(facts.deletions):
        certificates = "".join(
            "<details><summary>certificate of "
            f"{day(c.time)}</summary><dl>"
            + "".join(
                f"<dt>{safe(k)}</dt><dd>{safe(v)}</dd>" for k, v in c.facts.items()
            )
            + "</dl></details>"
            for c in one.certificates[:100]
        )
        if len(one.certificates) > 100:
            more = len(one.certificates) - 100
            certificates += f'<p class="small">and {more:,} more, in the ledger.</p>'
        times = f", {one.count:,} draws paid for" if one.count > 1 else ""
        rows.append(
            f'<tr><td class="tag" data-label="entry">{one.sequence}</td>'
            f'<td class="tag" data-label="time (UTC)">{day(one.time)}</td>'
            f'<td class="what"><b><bdi>{safe(one.label)}</bdi></b>'
            f'<span class="mechanism">{safe(one.mechanism)}{times}</span>'
            f"{certificates}</td>"
            f'<td class="n" data-label="epsilon, at delta {one.delta:g}">'
            f"{shown(f'deletions.{i}.epsilon', one.epsilon)}</td></tr>"
        )
    return (
        '<h2 id="deletions">Deletions</h2><p>A deletion promises that the model is as'
        " hard to tell from one that never learned the record as epsilon says. It is"
        " never added to a privacy cost. A deletion under another entry costs nothing"
        " more: its promise is that entry's, and its certificate says its noise.</p>"
        '<table class="cards"><caption>Entries at the unit of erasure.</caption><thead>'
        '<tr><th scope="col">no.</th><th scope="col">time (UTC)</th>'
        '<th scope="col">what was forgotten</th>'
        '<th scope="col" class="n">epsilon</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def audit_table(facts: LedgerFacts) -> str:
    """Every audit with its verdict."""
    rows = []
    for i, one in enumerate(facts.audits):
        verdict = '<span class="good-text">not refuted</span>'
        if one.refuted:
            verdict = '<span class="bad-text">REFUTED</span>'
        claimed = _NONE if one.claimed is None else shown(
            f"audits.{i}.claimed", one.claimed
        )  # fmt: skip
        rows.append(
            f'<tr><td class="what"><b><bdi>{safe(one.subject)}</bdi></b>'
            f'<span class="mechanism">entry {one.sequence}, {safe(one.level)},'
            f" {safe(one.method)}, {one.runs:,} runs</span>"
            '<details class="statement"><summary>statement</summary>'
            f"<p>{safe(one.statement)}</p></details></td>"
            f'<td class="tag" data-label="verdict">{verdict}</td>'
            f'<td class="n" data-label="claimed epsilon">{claimed}</td>'
            '<td class="n" data-label="at least">'
            f"{shown_down(f'audits.{i}.lower_bound', one.lower_bound)}</td></tr>"
        )
    return (
        '<table class="cards"><thead><tr><th scope="col">audit</th>'
        '<th scope="col">verdict</th><th scope="col" class="n">claimed epsilon</th>'
        '<th scope="col" class="n">at least</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def chain(facts: LedgerFacts) -> str:
    """What checking the chain came to, and the tip to keep."""
    found = facts.chain
    state = '<span class="good-text">no problem found</span>'
    if not found.ok:
        state = '<span class="bad-text">DAMAGED</span>'
    rows = f"{found.rows:,} {_plural(found.rows, 'row', 'rows')} checked"
    parts = [f'<h2 id="chain">The chain</h2><p>{rows}: {state}.']
    if found.compared_with is not None:
        parts.append(
            f" Compared with the tip <code>{safe(found.compared_with)}</code>."
        )
    parts.append("</p>")
    parts += [f'<p class="bad-text">{safe(text)}</p>' for text in found.problems]
    parts += [
        f'<p class="quiet">Not known: {safe(text)}.</p>' for text in found.unknown
    ]
    parts.append(
        "<p>The tip of the chain. Keep it elsewhere: with it a cut or a rewrite is"
        f' found.</p><code class="tip">{safe(found.tip)}</code>'
    )
    return "".join(parts)


def reading_guide() -> str:
    """The four words a reader needs."""
    return (
        '<h2 id="words">Words</h2><dl><dt>epsilon</dt><dd>How much a release can help'
        " somebody to tell two worlds apart; smaller is safer. At 1, odds change by a"
        " factor of at most 2.72.</dd><dt>delta</dt><dd>A small chance with which that"
        " may fail; it belongs well below one in the number of people.</dd>"
        "<dt>unit</dt><dd>Which two worlds: with or without a record, with a record"
        " replaced, or with a record moved by at most r.</dd><dt>tight reading</dt>"
        "<dd>The price of all entries at once, exact for entries fixed in advance; the"
        " filter's count also holds for entries chosen after seeing others.</dd></dl>"
    )


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
