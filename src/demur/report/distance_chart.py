"""The picture of the one idea: epsilon over the distance of two worlds."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demur.report.distance import UnitCost, World
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
from demur.report.text import number

_TOTAL = SERIES[0]
_ALONE = (SERIES[1], SERIES[2], SERIES[3], SERIES[4], SERIES[5])
_LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 2.8, "reverse": True}
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), "-")


def distance_chart(world: World, units: tuple[UnitCost, ...], name: str) -> Chart:
    """Epsilon over the radii of one space, and beside it the units without distance."""
    known = [
        (r, e)
        for r, e in zip(world.radii, world.epsilon, strict=True)
        if e is not None and math.isfinite(e)
    ]
    alt = f"Epsilon of the whole ledger over the distance in the space {world.space}."
    if known:
        (first, low), (last, high) = known[0], known[-1]
        alt += (
            f" It rises from {number(low)} at distance {first:.3g} to {number(high)} at"
            f" distance {last:.3g}, delta {world.delta:g}."
        )
    alt += "".join(f" At {u.name}: {number(u.epsilon)}." for u in units)
    return Chart(
        name=name,
        title=f"Epsilon over distance in {short(world.space, 40)}",
        alt=alt,
        draw=lambda frame: _draw(world, units, frame),
    )


def _draw(world: World, units: tuple[UnitCost, ...], frame: Frame) -> Figure:
    columns = 1 if frame.narrow else 2
    rows = 0.2 * -(-(1 + len(world.alone)) // columns) if world.alone else 0.0
    bars = 0.75 + 0.36 * len(units) if frame.narrow and units else 0.0
    figure = Figure(figsize=(frame.width, 3.2 + rows + bars), layout="constrained")
    if not units:
        left, right = figure.add_subplot(), None
    elif frame.narrow:
        left, right = figure.subplots(2, 1, gridspec_kw={"height_ratios": [3.2, bars]})
    else:
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [2.5, 1]})
    _curves(left, world)
    if right is not None:
        unit_bars(right, units, rows=len(units) if frame.narrow else 3)
    if world.alone and frame.narrow:
        left.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), **_LEGEND)
    elif world.alone:
        lines = left.get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower left", ncols=columns, **_LEGEND)
    return figure


def _curves(axes: Axes, world: World) -> None:
    total = [math.nan if e is None else e for e in world.epsilon]
    heights = [e for e in total if math.isfinite(e)]
    axes.set_xlim(0.0, world.radii[-1])
    # Room for the words above a budget's mark.
    axes.set_ylim(0.0, ceiling([*heights, *(1.2 * b.epsilon for b in world.budgets)]))
    for budget in world.budgets:
        inside = (0.0, budget.radius, budget.radius, 0.0)
        edge = (0.0, 0.0, budget.epsilon, budget.epsilon)
        axes.fill(inside, edge, color=QUIET, alpha=0.10, linewidth=0)
    for one, colour, dash in zip(world.alone, _ALONE, _DASHES, strict=False):
        more = f" (and {one.entries - 1} like it)" if one.entries > 1 else ""
        axes.plot(
            world.radii,
            [math.nan if e is None else e for e in one.epsilon],
            color=colour,
            linestyle=dash,
            linewidth=1.2,
            label=short(one.label, 30) + more,
        )
    axes.plot(world.radii, total, color=_TOTAL, linewidth=2.4, label="the whole ledger")
    axes.fill_between(world.radii, total, color=_TOTAL, alpha=0.10, linewidth=0)
    for budget in world.budgets:
        _mark_budget(axes, budget.radius, budget.epsilon, world.radii[-1])
    if not heights:
        axes.text(
            0.5, 0.5, "an entry says nothing about balls here", ha="center",
            transform=axes.transAxes, color=QUIET,
        )  # fmt: skip
    axes.set_xlabel(f"distance r between two worlds, in {short(world.space, 24)!r}")
    axes.set_ylabel("epsilon")
    axes.set_title(f"cost at distance r (delta {world.delta:g})", loc="left")
    plain_ticks(axes)


def _mark_budget(axes: Axes, radius: float, epsilon: float, far: float) -> None:
    axes.plot(
        [radius], [epsilon], marker="D", markersize=6, color=INK,
        markerfacecolor=PAPER, linestyle="none", zorder=5,
    )  # fmt: skip
    right = radius > 0.6 * far
    axes.annotate(
        f"budget {number(epsilon)}\nup to r = {radius:g}",
        (radius, epsilon),
        xytext=(-8 if right else 8, 7),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        color=INK,
        linespacing=1.25,
        bbox={"facecolor": PAPER, "alpha": 0.85, "edgecolor": "none", "pad": 1.0},
        zorder=4,
    )


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
        said = number(shown) if shown is not None else "an entry says nothing here"
        if unit.budget is not None:
            axes.plot(
                [unit.budget], [row], marker="D", markersize=6, color=INK,
                markerfacecolor=PAPER, linestyle="none", zorder=5,
            )  # fmt: skip
            said += f" of {number(unit.budget)}"
        axes.text(0.0, row - 0.27, f"{unit.name}: {said}", va="bottom", color=INK)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("epsilon")
    axes.set_title("cost at any distance", loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def units_chart(units: tuple[UnitCost, ...]) -> Chart:
    """The units alone, for a ledger in which no entry speaks of a distance."""

    def draw(frame: Frame) -> Figure:
        height = 0.9 + 0.42 * len(units)
        figure = Figure(figsize=(frame.width, height), layout="constrained")
        unit_bars(figure.add_subplot(), units, len(units))
        return figure

    alt = "Epsilon of the whole ledger at each unit:"
    alt += "".join(f" {u.name}: {number(u.epsilon)}." for u in units)
    return Chart("units", "Epsilon at each unit", alt, draw)
