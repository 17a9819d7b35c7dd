"""Chart of epsilon over time: what each filter counted after each entry."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demur.ledger import Moment
from demur.report.facts import BudgetFacts, LedgerFacts
from demur.report.figure import (
    INK,
    QUIET,
    SERIES,
    Chart,
    Frame,
    ceiling,
    figure_of_panels,
    label_line,
    short,
)
from demur.report.text import number_down, number_up

MOST_PANELS = 6
_MARGIN = 0.2 / 86_400  # days: space beside a ledger with a single moment


def time_chart(facts: LedgerFacts) -> Chart:
    """One panel for each budget, with its own scale."""
    shown = facts.budgets[:MOST_PANELS]
    first, last = facts.moments[0].time, facts.moments[-1].time
    alt = f"Epsilon spent from {first[:16]} to {last[:16]} UTC."
    alt += "".join(
        f" {b.name}: {number_up(b.spent_epsilon)} of {number_down(b.epsilon)}."
        for b in shown
    )

    def draw(frame: Frame) -> Figure:
        columns = 1 if frame.narrow or len(shown) == 1 else 2
        rows = -(-len(shown) // columns)
        figure = figure_of_panels(frame, 0.2 + 2.25 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for i, axes in enumerate(panels):
            if i < len(shown):
                _panel(axes, facts.moments, i, shown[i], frame)
            else:
                axes.set_axis_off()
        return figure

    return Chart("over-time", "Epsilon over time", alt, draw)


def _panel(
    axes: Axes,
    moments: tuple[Moment, ...],
    position: int,
    budget: BudgetFacts,
    frame: Frame,
) -> None:
    colour = SERIES[1] if budget.erasure else SERIES[0]
    times = [_days(m.time) for m in moments]
    spent = [m.spent_epsilon[position] for m in moments]
    margin = max((times[-1] - times[0]) * 0.04, _MARGIN)
    x = [times[0] - margin, *times, times[-1] + margin]
    y = [0.0, *spent, spent[-1]]
    level = [budget.epsilon] * len(x)
    axes.fill_between(x, y, level, step="post", color=QUIET, alpha=0.10, linewidth=0)
    axes.step(x, y, where="post", color=colour, linewidth=2.0)
    if len(times) <= 60:
        axes.plot(times, spent, "o", color=colour, markersize=3.5)
    axes.axhline(budget.epsilon, color=INK, linewidth=1.1, linestyle=(0, (5, 3)))
    label_line(axes, budget.epsilon, f"budget {number_down(budget.epsilon)}")
    axes.set_ylim(0.0, ceiling([budget.epsilon, *spent]))
    axes.set_xlim(x[0], x[-1])
    kinds: Any = dates  # it has no types
    locator = kinds.AutoDateLocator(minticks=2, maxticks=4 if frame.narrow else 5)
    axes.xaxis.set_major_locator(locator)
    pattern, words = _scale(x[-1] - x[0])
    axes.xaxis.set_major_formatter(kinds.DateFormatter(pattern))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    first, last = (moments[i].time[:10] for i in (0, -1))
    when = first if first == last else f"{first} to {last}"
    axes.set_xlabel(f"{words}, {when} (UTC)", loc="left")
    axes.set_ylabel("epsilon")
    axes.set_title(short(budget.name, 44), loc="left")


def _scale(days: float) -> tuple[str, str]:
    """The form of the ticks of a span of time, and its name with its units."""
    if days < 5 / 1440:
        return "%H:%M:%S", "time (h:min:s)"
    if days < 2:
        return "%H:%M", "time (h:min)"
    return ("%b %d", "day") if days < 90 else ("%Y-%m", "month")


def _days(time: str) -> float:
    """The time of a row in days, as on the axis."""
    return datetime.fromisoformat(time).timestamp() / 86_400
