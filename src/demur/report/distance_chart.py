"""Chart of cost by distance: epsilon over the radii of one space."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demur.report.distance import SpaceCost, UnitCost
from demur.report.figure import (
    GRID,
    INK,
    PAPER,
    QUIET,
    SERIES,
    Chart,
    Frame,
    ceiling,
    plain_ticks,
    short,
)
from demur.report.text import number_down, number_up

_TOTAL = SERIES[0]
_ALONE = (SERIES[1], SERIES[2], SERIES[3], SERIES[4], SERIES[5])
_LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 2.8, "reverse": True}
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), "-")


def distance_chart(
    space_cost: SpaceCost,
    units: tuple[UnitCost, ...],
    name: str,
    at: float | None = None,
) -> Chart:
    """Epsilon over the radii of one space, next to the units without a distance.

    `at` is a radius to be marked; a script may move the mark.
    """
    known = [
        (r, e)
        for r, e in zip(space_cost.radii, space_cost.epsilon, strict=True)
        if e is not None and math.isfinite(e)
    ]
    alt = f"Epsilon of the whole ledger over distance in the space {space_cost.space}."
    if known:
        (first, low), (last, high) = known[0], known[-1]
        alt += (
            f" It rises from {number_up(low)} at distance {first:.3g} to"
            f" {number_up(high)} at distance {last:.3g}, delta"
            f" {number_up(space_cost.delta)}."
        )
    alt += "".join(f" At {u.name}: {number_up(u.epsilon)}." for u in units)
    return Chart(
        name=name,
        title=f"Epsilon over distance in {short(space_cost.space, 40)}",
        alt=alt,
        draw=lambda frame: _draw(space_cost, units, frame, at),
    )


def _draw(
    space_cost: SpaceCost, units: tuple[UnitCost, ...], frame: Frame, at: float | None
) -> Figure:
    beside = not frame.narrow and len(space_cost.costliest) > 0
    named = 1 + len(space_cost.costliest) if space_cost.costliest else 0
    named = (0 if beside else named) + len(space_cost.budgets)
    rows = 0.21 * (named if frame.narrow else -(-named // 2))
    bars = 0.75 + 0.36 * len(units) if frame.narrow and units else 0.0
    figure = Figure(figsize=(frame.width, 3.2 + rows + bars), layout="constrained")
    if not units:
        left, right = figure.add_subplot(), None
    elif frame.narrow:
        left, right = figure.subplots(2, 1, gridspec_kw={"height_ratios": [3.2, bars]})
    else:
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [2.5, 1]})
    _curves(left, space_cost, named=beside)
    if at is not None:
        left.patch.set_gid("plot")
        mark = left.axvline(at, color=INK, linewidth=1.4, linestyle=(0, (3, 2)))
        mark.set_gid("radius")
    if right is not None:
        unit_bars(right, units, rows=len(units) if frame.narrow else 3)
    handles, labels = left.get_legend_handles_labels()
    if frame.narrow and labels:
        left.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), **_LEGEND)
    elif labels:
        figure.legend(handles, labels, loc="outside lower left", ncols=2, **_LEGEND)
    return figure


def _curves(axes: Axes, space_cost: SpaceCost, *, named: bool) -> None:
    """The lines; `named` ones have their names at their right ends."""
    total = [math.nan if e is None else e for e in space_cost.epsilon]
    heights = [e for e in total if math.isfinite(e)]
    axes.set_xlim(0.0, space_cost.radii[-1])
    axes.set_ylim(0.0, ceiling([*heights, *(b.epsilon for b in space_cost.budgets)]))
    for budget in space_cost.budgets:
        inside = (0.0, budget.radius, budget.radius, 0.0)
        edge = (0.0, 0.0, budget.epsilon, budget.epsilon)
        axes.fill(inside, edge, color=QUIET, alpha=0.10, linewidth=0)
    ends: list[tuple[float, str, str]] = []
    for group, colour, dash in zip(space_cost.costliest, _ALONE, _DASHES, strict=False):
        more = f" (and {group.entries - 1} like it)" if group.entries > 1 else ""
        alone = [math.nan if e is None else e for e in group.epsilon]
        ends.append((_end(alone), short(group.label, 24) + more, colour))
        axes.plot(
            space_cost.radii,
            alone,
            color=colour,
            linestyle=dash,
            linewidth=1.2,
            label=f"{'_' if named else ''}{short(group.label, 30)}{more}",
        )
    ends.append((_end(total), "the whole ledger", _TOTAL))
    if named:
        _name_ends(axes, ends)
    whole = "the whole ledger" if space_cost.costliest and not named else "_whole"
    axes.plot(
        space_cost.radii, total, color=_TOTAL, linewidth=2.4, label=whole, gid="whole"
    )
    axes.fill_between(space_cost.radii, total, color=_TOTAL, alpha=0.10, linewidth=0)
    for budget in space_cost.budgets:
        _mark_budget(axes, budget.radius, budget.epsilon)
    if not heights:
        axes.text(
            0.5, 0.5, "an entry has no cost at these balls", ha="center",
            transform=axes.transAxes, color=QUIET,
        )  # fmt: skip
    axes.set_xlabel(f"distance r of one record, in {short(space_cost.space, 24)!r}")
    axes.set_ylabel("epsilon")
    axes.set_title(
        f"cost at distance r (delta {number_up(space_cost.delta)})", loc="left"
    )
    plain_ticks(axes)


def _end(values: list[float]) -> float:
    """The last value that is known; 0 if none is."""
    return next((v for v in reversed(values) if math.isfinite(v)), 0.0)


def _name_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Names right of the axes, at the heights of their lines or a little apart."""
    low, top = axes.get_ylim()
    step = (top - low) / 16
    at = low - step
    for height, name, colour in sorted(ends):
        at = max(height, at + step)
        axes.annotate(
            name,
            (1.0, at),
            xycoords=axes.get_yaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            annotation_clip=False,
        )


def _mark_budget(axes: Axes, radius: float, epsilon: float) -> None:
    """A diamond; the legend has its figures, so that no text lies on a curve."""
    axes.plot(
        [radius], [epsilon], marker="D", markersize=6, color=INK,
        markerfacecolor=PAPER, linestyle="none", zorder=5,
        label=f"budget {number_down(epsilon)} up to r = {radius:g}",
    )  # fmt: skip


def unit_bars(axes: Axes, units: tuple[UnitCost, ...], rows: int) -> None:
    """A bar for each unit without a distance, with its budget as a hollow mark."""
    values = [u.epsilon for u in units if u.epsilon is not None]
    budgets = [u.budget for u in units if u.budget is not None]
    top = ceiling([*values, *budgets])
    axes.set_xlim(0.0, 1.18 * top)
    axes.set_ylim(max(rows, len(units)) - 0.45, -0.75)
    axes.grid(False)
    for row, unit in enumerate(units):
        erasure = unit.name.startswith("erasure")
        colour = SERIES[1] if erasure else _TOTAL
        shown = unit.epsilon
        axes.plot([0, 1.18 * top], [row, row], color=GRID, linewidth=0.7, zorder=0)
        if shown is not None and math.isfinite(shown):
            axes.barh([row], [shown], height=0.34, color=colour)
        text = number_up(shown) if shown is not None else "an entry has no cost here"
        if unit.budget is not None:
            axes.plot(
                [unit.budget], [row], marker="D", markersize=6, color=INK,
                markerfacecolor=PAPER, linestyle="none", zorder=5,
            )  # fmt: skip
            text += f" of {number_down(unit.budget)}"
        axes.text(0.0, row - 0.27, f"{unit.name}: {text}", va="bottom", color=INK)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("epsilon")
    axes.set_title("cost at any distance", loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def units_chart(units: tuple[UnitCost, ...]) -> Chart:
    """The units alone, for a ledger in which no entry has a cost by distance."""

    def draw(frame: Frame) -> Figure:
        height = 0.9 + 0.42 * len(units)
        figure = Figure(figsize=(frame.width, height), layout="constrained")
        unit_bars(figure.add_subplot(), units, len(units))
        return figure

    alt = "Epsilon of the whole ledger at each unit:"
    alt += "".join(f" {u.name}: {number_up(u.epsilon)}." for u in units)
    return Chart("units", "Epsilon at each unit", alt, draw)
