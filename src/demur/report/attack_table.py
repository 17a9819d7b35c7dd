"""The section of the report on attacks: what any attacker can gain, at most."""

from __future__ import annotations

from demur.report.facts import LedgerFacts
from demur.report.sections import shown
from demur.report.text import safe

_COLUMNS = (
    ("advantage", "membership advantage"),
    ("found_at_1_in_1000", "true positives at 0.1% false ones"),
    ("found_at_1_in_100", "at 1% false ones"),
    ("named_of_10", "record named among 10"),
    ("named_of_1000", "among 1,000"),
)


def attack_section(facts: LedgerFacts) -> str:
    """A row for each budget with a reading; nothing where nothing was released."""
    rows = "".join(
        f'<tr><th scope="row">{safe(budget.name)}</th>'
        + "".join(
            f'<td class="n" data-label="{title}">'
            f"{shown(f'budgets.{i}.gains.{name}', getattr(budget.gains, name))}</td>"
            for name, title in _COLUMNS
        )
        + "</tr>"
        for i, budget in enumerate(facts.budgets)
        if budget.gains is not None
    )
    if not rows:
        return ""
    heads = "".join(f'<th scope="col" class="n">{title}</th>' for _, title in _COLUMNS)
    return (
        '<h2 id="attacks">What an attacker gains</h2><p class="quiet small">Upper'
        " bounds for every attack on all entries at once, from their privacy profile."
        " Like the tight reading they hold for entries that were fixed in advance."
        " Advantage: true less false positives of a test whether the unit's change was"
        " made. Named: guessing the record among equally likely candidates, each within"
        " the unit (0.1 and 0.001 without the release). The last column is also the"
        " bound for guessing a point, uniform in a ball of three dimensions, to a tenth"
        " of the ball's radius.</p>"
        '<table class="cards"><thead><tr><th scope="col">unit</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )
