"""The pictures of docs/architecture.md: the packages, and the way of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from tools import house

INK, SOFT, FILL, ACCENT = "#1f2933", "#52606d", "#eef2f7", "#2f6f9f"

WORDS = {
    "cli": "the demur command",
    "compat": "the names of the original programs",
    "serve": "a service: pages, an API, roles",
    "report": "the HTML report",
    "adapters": "PyTorch, Equinox, Spark",
    "testing": "contracts and broken twins",
    "tuning": "searches that are paid for once",
    "convex": "private heads",
    "cluster": "local reports",
    "unlearning": "deletions",
    "training": "DP-SGD, BandMF",
    "audit": "lower bounds",
    "preprocessing": "row maps that keep a promise",
    "mechanisms": "noise with a declared cost: Gaussian, BPM, correlated",
    "ledger": "budgets, filters, entries; every release is paid here",
    "durable": "transactions, hash chain, keys, whole files",
    "core": "units, bounds, costs, accounting, entropy, entries",
}
STEPS = (
    ("data", "bounds are enforced", "core.bounds"),
    ("value", "an engine computes\nthe exact value", "convex, ..."),
    ("declaration", "cost as a function\nof the unit", "core.declaration"),
    ("charge", "written durably,\nor declined", "ledger.paid"),
    ("key", "bound to mechanism\nand input", "core.entropy"),
    ("noise", "drawn from\nthe key", "mechanisms"),
    ("commit", "the key is wiped", "ledger.payment"),
    ("release", "value and entry", "core.release"),
)


def draw(folder: Path) -> list[Path]:
    """Both pictures as SVG, repeatable to the byte."""
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "house",
        "font.family": "sans-serif",
    }
    written = []
    with mpl.rc_context(settings):
        for name, figure in (("house", packages()), ("release", release())):
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            written.append(path)
    return written


def packages() -> Figure:
    """Layers from top to bottom: each imports only what lies below it."""
    layers, height, gap = house.layers(), 6.0, 2.0
    tall = 1.0 + len(layers) * (height + gap)
    figure, axes = _canvas(9.0, 0.089 * tall, 100.0, tall)
    for row, layer in enumerate(layers):
        top = tall - 1.0 - row * (height + gap)
        width = (92.0 - 2.0 * (len(layer) - 1)) / len(layer)
        for column, name in enumerate(layer):
            left = 2.0 + column * (width + 2.0)
            _box(axes, left, top - height, width, height, accent=name == "ledger")
            lone = len(layer) <= 2
            text = f"{name}" if not lone else f"{name}:  {WORDS[name]}"
            middle = (left + width / 2, top - height / 2)
            if lone:
                axes.text(
                    *middle, text, ha="center", va="center", color=INK, fontsize=9.5
                )
            else:
                axes.text(
                    middle[0],
                    middle[1] + 1.2,
                    name,
                    ha="center",
                    va="center",
                    color=INK,
                    fontsize=9.5,
                )
                axes.text(
                    middle[0],
                    middle[1] - 1.5,
                    WORDS[name],
                    ha="center",
                    va="center",
                    color=SOFT,
                    fontsize=7.5,
                )
    _arrow(axes, (97.5, tall - 4.0), (97.5, 1.0))
    axes.text(
        96.2,
        tall / 2,
        "imports go down only",
        rotation=90,
        ha="center",
        va="center",
        color=SOFT,
        fontsize=8.5,
    )
    return figure


def release() -> Figure:
    """From data to a release, with the module that each step lives in."""
    figure, axes = _canvas(9.0, 2.9, 100.0, 32.0)
    for place, (name, what, where) in enumerate(STEPS):
        row, column = divmod(place, 4)
        left, bottom = 2.0 + column * 24.6, 18.0 - row * 16.0
        _box(axes, left, bottom, 21.0, 12.0, accent=name == "charge")
        middle = left + 10.5
        axes.text(
            middle,
            bottom + 9.4,
            name,
            ha="center",
            va="center",
            color=INK,
            fontsize=10,
            fontweight="bold",
        )
        axes.text(
            middle, bottom + 5.6, what, ha="center", va="center", color=INK, fontsize=8
        )
        axes.text(
            middle,
            bottom + 1.7,
            where,
            ha="center",
            va="center",
            color=SOFT,
            fontsize=7.5,
            family="monospace",
        )
        if column < 3:
            _arrow(axes, (left + 21.0, bottom + 6.0), (left + 24.6, bottom + 6.0))
        elif row == 0:
            axes.plot(
                [middle, middle, 12.5, 12.5],
                [18.0, 16.0, 16.0, 14.9],
                color=ACCENT,
                linewidth=1.2,
            )
            _arrow(axes, (12.5, 15.2), (12.5, 14.0))
    return figure


def _canvas(width: float, height: float, x: float, y: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, x)
    axes.set_ylim(0.0, y)
    axes.axis("off")
    return figure, axes


def _box(
    axes: Axes, left: float, bottom: float, width: float, height: float, *, accent: bool
) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.8",
            facecolor="#dceaf5" if accent else FILL,
            edgecolor=ACCENT if accent else "#9aa5b1",
            linewidth=1.4 if accent else 0.9,
        )
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            color=ACCENT,
            linewidth=1.2,
            shrinkA=0,
            shrinkB=0,
        )
    )
