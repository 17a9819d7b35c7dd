"""Charts of notes: utility against epsilon, and audits against claims."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from demur.audit import AuditResult
from demur.report.figure import (
    BAD,
    GRID,
    INK,
    PAPER,
    QUIET,
    SERIES,
    Chart,
    Frame,
    ceiling,
    figure_of_panels,
    label_line,
    plain_ticks,
    short,
)
from demur.report.notes import AuditFacts, UtilityFacts
from demur.report.text import number_down, number_up

MOST_PANELS = 8
MOST_AUDITS = 40
_WIDE_SPAN = 12.0  # epsilons further apart than this go on a logarithmic axis


def utility_chart(utilities: tuple[UtilityFacts, ...]) -> Chart:
    """A panel for each measured quantity, a point for each run."""
    kinds: dict[tuple[str, str], list[UtilityFacts]] = {}
    for utility in utilities:
        kinds.setdefault((utility.name, utility.unit), []).append(utility)
    panels = list(kinds.values())[:MOST_PANELS]
    alt = "Utility against epsilon."
    for runs in panels:
        points = ", ".join(f"{u.value:.4g} at {number_up(u.epsilon)}" for u in runs[:6])
        alt += f" {runs[0].name}: {points}."

    def draw(frame: Frame) -> Figure:
        columns = 1 if frame.narrow or len(panels) == 1 else 2
        rows = -(-len(panels) // columns)
        figure = figure_of_panels(frame, 0.2 + 2.45 * rows)
        places = figure.subplots(rows, columns, squeeze=False).flatten()
        for i, axes in enumerate(places):
            if i < len(panels):
                _utility(axes, panels[i], SERIES[i % len(SERIES)])
            else:
                axes.set_axis_off()
        return figure

    return Chart("utility", "Utility against epsilon", alt, draw)


def _utility(axes: Axes, runs: list[UtilityFacts], colour: str) -> None:
    runs = sorted(runs, key=lambda u: u.epsilon)
    epsilon = [u.epsilon for u in runs]
    values = [u.value for u in runs]
    plain = [u.non_private for u in runs if u.non_private is not None]
    banded = [u for u in runs if u.low is not None and u.high is not None]
    axes.plot(epsilon, values, "o", color=colour, markersize=5.5)
    for u in banded:
        ends = [u.low or 0.0, u.high or 0.0]
        axes.plot([u.epsilon] * 2, ends, "_-", color=colour, linewidth=1.3)
    for level in sorted(set(plain))[:3]:
        axes.axhline(level, color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
    if plain:
        label_line(axes, max(plain), "not private")
    shown = [*values, *plain, *(e for u in banded for e in (u.low or 0, u.high or 0))]
    span = max(shown) - min(shown) or abs(shown[0]) or 1.0
    bottom = min(shown) - 0.15 * span
    if 0.0 <= min(shown) and bottom < 0.25 * max(shown):
        bottom = 0.0
    axes.set_ylim(bottom, max(shown) + 0.22 * span)
    if epsilon[0] > 0 and epsilon[-1] / epsilon[0] > _WIDE_SPAN:
        axes.set_xscale("log")
        axes.minorticks_off()
    else:
        axes.set_xlim(0.0, ceiling(epsilon))
    plain_ticks(axes)
    axes.set_xlabel(f"epsilon of the run at {short(runs[0].unit, 34)}")
    axes.set_title(short(runs[0].name, 44), loc="left")


def audit_chart(audits: tuple[AuditFacts | AuditResult, ...]) -> Chart | None:
    """Claim and lower bound of each audit that bounds epsilon, one row for each."""
    rows = [a for a in audits if a.claimed is not None and a.lower_bound is not None]
    rows = rows[-MOST_AUDITS:]
    if not rows:
        return None
    alt = "Audits: the claimed epsilon and the lower bound that was shown."
    for a in rows:
        verdict = "refuted" if a.refuted else "not refuted"
        alt += (
            f" {a.subject}: claimed {number_up(a.claimed)}, at least"
            f" {number_down(a.lower_bound)}, {verdict}."
        )

    def draw(frame: Frame) -> Figure:
        figure = Figure(
            figsize=(frame.width, 1.15 + 0.42 * len(rows)), layout="constrained"
        )
        _audits(figure.add_subplot(), rows, frame)
        return figure

    return Chart("audits", "Claims and lower bounds of audits", alt, draw)


def _audits(axes: Axes, rows: list[AuditFacts | AuditResult], frame: Frame) -> None:
    finite = [
        v
        for a in rows
        for v in (a.claimed, a.lower_bound)
        if v is not None and math.isfinite(v)
    ]
    end = ceiling(finite)
    axes.set_xlim(0.0, end)
    axes.set_ylim(len(rows) - 0.5, -0.8)
    axes.grid(False)
    for row, a in enumerate(rows):
        assert a.claimed is not None and a.lower_bound is not None
        claimed, shown = min(a.claimed, end), min(a.lower_bound, end)
        colour = BAD if a.refuted else SERIES[2]
        axes.plot([0, end], [row, row], color=GRID, linewidth=0.7, zorder=0)
        axes.plot([0, shown], [row, row], color=colour, linewidth=3.0)
        axes.plot(
            [shown], [row], marker="X" if a.refuted else "o", markersize=7,
            color=colour, linestyle="none", clip_on=False, zorder=4,
        )  # fmt: skip
        axes.plot(
            [claimed], [row], marker="o", markersize=8, color=INK,
            markerfacecolor="none", markeredgewidth=1.4, linestyle="none",
            clip_on=False, zorder=5,
        )  # fmt: skip
        label = short(f"{a.subject} ({a.level})", 44 if frame.narrow else 90)
        label = f"REFUTED: {label}" if a.refuted else label
        axes.text(0.0, row - 0.2, label, va="bottom", color=INK)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("epsilon")
    marks = [
        Line2D([], [], marker="o", color=INK, markerfacecolor="none", linestyle="none"),
        Line2D([], [], marker="o", color=SERIES[2], linewidth=3.0),
        Line2D([], [], marker="X", color=BAD, linewidth=3.0),
    ]
    names = ["claimed", "lower bound", "above the claim"]
    if not any(a.refuted for a in rows):
        marks, names = marks[:2], names[:2]
    legend = axes.legend(
        marks, names, ncols=len(names), frameon=False, loc="lower left",
        bbox_to_anchor=(-0.01, 1.0), columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    legend.get_frame().set(facecolor=PAPER, edgecolor=QUIET)
