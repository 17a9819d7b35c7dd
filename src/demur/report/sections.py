"""The sections of the page: budgets, entries, deletions, audits and chain.

Each number in the page has the attribute `data-number` (rounded up) or `data-lower`
(rounded down), the path of its value in the page's JSON, so that both can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from demur.core.entry import WEAK
from demur.core.rounding import printed_pair
from demur.report.facts import BudgetFacts, EntryFacts, LedgerFacts
from demur.report.notes import CertificateFacts
from demur.report.text import (
    attribute,
    day,
    number_down,
    number_up,
    safe,
    unbroken,
)

_RARELY = 1e-3  # below it a share of wrong guesses says more than one of right ones
_MOST_CERTIFICATES = 100
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
    by = f" by <bdi>{safe(facts.issuer)}</bdi>" if facts.issuer else ""
    parts.append(
        f"<h1>Privacy report: {safe(facts.dataset)}</h1>"
        f'<p class="issued">Issued {day(facts.issued)} UTC{by}, with demur'
        f" {safe(facts.version)}. Ledger <code>{safe(facts.ledger[:12])}</code>, row"
        f" {safe(facts.chain.tip.partition(':')[0])}.</p>"
        "<p>This page lists what was charged to this ledger. Each charge was written"
        " down before its noise was drawn, and one that would exceed a budget was"
        " declined. Releases that were made without the ledger are not on this page:"
        f' no ledger can know of them.</p><ul class="chips">{listed}</ul>'
    )
    return "".join(parts)


def budgets(facts: LedgerFacts) -> str:
    """A gauge for each budget, and what an attacker could do with what is spent."""
    return (
        '<h2 id="budgets">Budgets</h2><p class="quiet small">The bar is what counts as'
        " spent. It holds also where a release was chosen after seeing earlier ones."
        " The upright mark is the tight reading: the epsilon of all entries at once,"
        f" if they were fixed in advance. Rule: {safe(facts.filter)}.</p>"
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
    spent, limit = spent_of(budget)
    delta = shown_down(f"{place}.delta", budget.delta)
    protects = "After a deletion nobody can tell" if budget.erasure else "It protects"
    now = min(budget.spent_epsilon, budget.epsilon)
    return (
        f'<section class="budget"><h3>{safe(budget.name)}</h3>'
        f'<div><span class="spent"><span data-number="{place}.spent_epsilon">{spent}'
        f'</span></span> of <span data-lower="{place}.epsilon">{limit}</span>'
        " epsilon</div>"
        f'<div class="{css}" role="meter" aria-valuemin="0"'
        f' aria-valuemax="{budget.epsilon:.6g}" aria-valuenow="{now:.6g}"'
        f' aria-label="epsilon spent at {attribute(budget.name)}">'
        f'<span class="fill" style="width: {width:.2f}%"></span>{tick}</div>'
        f'<p class="small">{state}, at delta {delta}. Tight reading:'
        f" {shown(place + '.tight_epsilon', budget.tight_epsilon)}.</p>"
        f"{_attacker(budget)}"
        f'<p class="small quiet">{protects} {safe(budget.phrase)}.</p></section>'
    )


def spent_of(budget: BudgetFacts) -> tuple[str, str]:
    """What is spent and the budget, as printed side by side."""
    if not math.isfinite(budget.spent_epsilon):
        return number_up(budget.spent_epsilon), number_down(budget.epsilon)
    return printed_pair(budget.spent_epsilon, budget.epsilon)


def attacker_success(epsilon: float, delta: float) -> float:
    """How often somebody who had even odds guesses right, at most.

    For (epsilon, delta) the best test between two neighbours with equal priors is right
    with probability at most (e^epsilon + delta) / (1 + e^epsilon): its two error rates
    a and b satisfy a + e^epsilon b >= 1 - delta and the reverse, so that
    a + b >= 2 (1 - delta) / (1 + e^epsilon).

    >>> attacker_success(0.0, 0.0), round(attacker_success(1.0, 0.0), 4)
    (0.5, 0.7311)
    """
    less = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * less) / (1.0 + less))


def _attacker(budget: BudgetFacts) -> str:
    """The odds at what is spent, and a plain word above epsilon 8."""
    spent = budget.spent_epsilon
    if spent <= 0.0:
        return ""
    wrong = 1.0 - attacker_success(spent, budget.delta)
    often = f"right in at most {math.ceil(10_000 * (1.0 - wrong)) / 100:g}% of cases"
    if wrong < _RARELY:
        fewest = f"one of {math.floor(1 / wrong):,}" if wrong > 0.0 else "none"
        often = f"wrong in as few as {fewest} cases"
    text = (
        f"Somebody who knows all but one record and had even odds now guesses {often}."
    )
    if spent > WEAK:
        text = f"<strong>This is a weak guarantee.</strong> {text}"
    elif budget.epsilon > WEAK:
        text += f" The budget allows more than epsilon {WEAK:g}, which is weak."
    return f'<p class="small">{text}</p>'


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
    numbers = [entry.sequence for entry in facts.entries]
    skipped = ""
    if numbers != list(range(1, len(numbers) + 1)):
        skipped = (
            " Numbers are rows of the ledger: declined requests, commits and notes are"
            " rows, too."
        )
    adds = ""
    if len(numbers) > 1 and any(budget.delta for budget in facts.budgets):
        adds = (
            " Each is read alone at the whole delta of its budget, which all of them"
            " share: so they do not add up to what is spent."
        )
    return (
        f'<table class="cards"><caption>{caption}'
        f" Each entry has its own epsilon at each budget.{adds}{skipped}"
        '</caption><thead><tr><th scope="col">no.</th><th scope="col">time (UTC)</th>'
        f'<th scope="col">what was released</th>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _entry_row(facts: LedgerFacts, i: int, entry: EntryFacts) -> str:
    cells = ""
    for k, (own, budget) in enumerate(zip(entry.epsilon, facts.budgets, strict=True)):
        cell = _NONE if own is None else shown(f"entries.{i}.epsilon.{k}", own)
        label = attribute(f"epsilon, {budget.name}")
        css = "n none" if own is None else "n"
        cells += f'<td class="{css}" data-label="{label}">{cell}</td>'
    times = f", {entry.count:,} draws of noise" if entry.count > 1 else ""
    seeded = "" if entry.private else ' <span class="bad-text">NOT PRIVATE</span>'
    return (
        f'<tr><td class="tag" data-label="entry">{entry.sequence}</td>'
        f'<td class="tag" data-label="time (UTC)">{day(entry.time)}</td>'
        f'<td class="what"><b><bdi>{safe(entry.label)}</bdi></b>{seeded}'
        f'<span class="mechanism">{safe(entry.mechanism)}{times}</span>'
        '<details class="statement"><summary>statement</summary>'
        f"<p>{unbroken(entry.statement)}</p>{_attacks(entry)}</details></td>"
        f"{cells}</tr>"
    )


def _attacks(entry: EntryFacts) -> str:
    """On the screen alone: a printed page would grow by a third."""
    return f'<p class="screen">{safe(entry.attacks)}</p>' if entry.attacks else ""


def deletions(facts: LedgerFacts) -> str:
    """Deletions and their certificates."""
    if not facts.deletions:
        return ""
    rows = []
    for i, deletion in enumerate(facts.deletions):
        certificates = _certificates(deletion.certificates)
        times = f", {deletion.count:,} draws paid for" if deletion.count > 1 else ""
        payer = ""
        if deletion.paid_by is not None:
            payer = f'<span class="mechanism">paid by entry {deletion.paid_by}</span>'
        rows.append(
            f'<tr><td class="tag" data-label="entry">{deletion.sequence}</td>'
            f'<td class="tag" data-label="time (UTC)">{day(deletion.time)}</td>'
            f'<td class="what"><b><bdi>{safe(deletion.label)}</bdi></b>'
            f'<span class="mechanism">{safe(deletion.mechanism)}{times}</span>'
            f"{certificates}</td>"
            f'<td class="n" data-label="epsilon, at delta {number_up(deletion.delta)}">'
            f"{shown(f'deletions.{i}.epsilon', deletion.epsilon)}{payer}</td></tr>"
        )
    deltas = " and ".join(sorted({number_up(d.delta) for d in facts.deletions}))
    return (
        '<h2 id="deletions">Deletions</h2><p>After a deletion the model cannot be told'
        " apart from one that never saw the record, up to the epsilon and delta shown."
        " This is never added to a privacy cost. A deletion that another entry paid for"
        " costs nothing more, and has the epsilon of that entry.</p>"
        '<table class="cards"><caption>Entries at the unit of erasure, read at delta'
        f" {deltas}. Certificates state epsilon at their own delta.</caption><thead>"
        '<tr><th scope="col">no.</th><th scope="col">time (UTC)</th>'
        '<th scope="col">what was deleted</th>'
        '<th scope="col" class="n">epsilon</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _certificates(certificates: tuple[CertificateFacts, ...]) -> str:
    """The certificates of one entry: what they have in common once, then the rest."""
    if not certificates:
        return ""
    first, many = certificates[0].facts, len(certificates)
    common = {
        name: text
        for name, text in first.items()
        if many > 1 and all(c.facts.get(name) == text for c in certificates)
    }
    single = "".join(
        f"<li>{day(c.time)}: {_pairs(c.facts, common)}</li>"
        for c in certificates[:_MOST_CERTIFICATES]
    )
    more = many - _MOST_CERTIFICATES
    if more > 0:
        single += f"<li>and {more:,} more, in the ledger</li>"
    name = f"{many:,} certificates" if many > 1 else "certificate"
    shared = f"<p>In all of them: {_pairs(common, {})}</p>" if common else ""
    return (
        f'<details class="statement"><summary>{name} of {day(certificates[0].time)}'
        f'</summary><p class="printed">{name}</p>{shared}<ul class="facts">{single}'
        "</ul></details>"
    )


def _pairs(facts: Mapping[str, str], without: Mapping[str, str]) -> str:
    return "; ".join(
        f'<span class="name">{safe(name)}</span> {safe(text)}'
        for name, text in facts.items()
        if name not in without
    )


def declined(facts: LedgerFacts) -> str:
    """Requests that did not fit, and who asked."""
    if not facts.declined:
        return ""
    named = any(asked.actor for asked in facts.declined)
    who = '<th scope="col">who asked</th>' if named else ""
    cell = '<td class="tag" data-label="who asked"><bdi>{}</bdi></td>'
    rows = "".join(
        f'<tr><td class="tag" data-label="row">{asked.sequence}</td>'
        f'<td class="tag" data-label="time (UTC)">{day(asked.time)}</td>'
        f'<td class="what"><b><bdi>{safe(asked.label)}</bdi></b>'
        f'<span class="mechanism">{safe(asked.mechanism)}</span>'
        f'<span class="small">{unbroken(asked.why)}</span></td>'
        f"{cell.format(safe(asked.actor)) if named else ''}</tr>"
        for asked in facts.declined[-_RECENT:][::-1]
    )
    more = len(facts.declined) - _RECENT
    older = f" {more:,} older ones are in the ledger." if more > 0 else ""
    return (
        '<h2 id="declined">Declined requests</h2><p>These did not fit a budget. Nothing'
        " was drawn, nothing was released and nothing was spent.</p>"
        f'<table class="cards whole"><caption>Newest first.{older}</caption><thead><tr>'
        '<th scope="col">row</th><th scope="col">time (UTC)</th>'
        f'<th scope="col">what was asked for</th>{who}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def signature(facts: LedgerFacts) -> str:
    """Lines for the person who signs, with what they sign for."""
    key = (
        f"Rows are signed by the key <code>{safe(facts.signer)}</code>."
        if facts.signer
        else "The rows of this ledger are not signed."
    )
    spent = "; ".join(
        f"{safe(b.name)}, epsilon {spent} of {limit} at delta"
        f" {unbroken(number_down(b.delta))}"
        for b in facts.budgets
        for spent, limit in [spent_of(b)]
    )
    lines = "".join(
        f'<div><span class="rule">{value}</span><span>{what}</span></div>'
        for what, value in (
            ("name and office", safe(facts.issuer)),
            ("place and date", ""),
            ("signature", ""),
        )
    )
    return (
        '<section class="signature"><h2 id="signature">Signature</h2>'
        f"<p>This report is about the ledger of {safe(facts.dataset)} up to the row"
        f" <code>{safe(facts.chain.tip)}</code>, as of {day(facts.issued)} UTC."
        f" Spent so far: {spent}. {key}</p>"
        "<p>I have read the statements of its entries, including what they do not"
        " protect and what they assume, and I know of no release about these data that"
        f' is not in it.</p><div class="lines">{lines}</div></section>'
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
        '<table class="cards"><caption>Each audit with the epsilon that it'
        ' shows.</caption><thead><tr><th scope="col">audit</th>'
        '<th scope="col">verdict</th><th scope="col" class="n">claimed epsilon</th>'
        '<th scope="col" class="n">at least</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def chain(facts: LedgerFacts) -> str:
    """The result of verifying the chain, and its tip."""
    check = facts.chain
    state = '<span class="good-text">no problem found</span>'
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
    """Definitions of five terms."""
    return (
        '<h2 id="words">Terms</h2><dl><dt>differential privacy</dt><dd>Results are'
        " nearly as likely with any one record as without it, because random noise is"
        " added before they are published.</dd><dt>epsilon</dt><dd>How near: odds"
        " between two datasets that differ by one record change by a factor of at most"
        " e^epsilon, 2.72 at epsilon 1; smaller is safer.</dd><dt>delta</dt><dd>A small"
        " probability with which that may fail; it should be well below one over the"
        " number of people.</dd><dt>unit</dt><dd>The neighbouring relation: with or"
        " without a record, with a record replaced, or with a record moved by at most"
        " r.</dd><dt>tight reading</dt><dd>The epsilon of all entries at once, exact"
        " for entries fixed in advance; the filter's count also holds for entries"
        " chosen after seeing others.</dd></dl>"
    )


def _plural(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural
