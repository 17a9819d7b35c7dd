"""Charts of a book as SVG text; no network, no script."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demur.core.adjacency import Ball
from demur.core.cost import GaussianOverBalls, PureOverBalls
from demur.core.errors import DemurError
from demur.ledger import BudgetStatus, Ledger

_INK, _QUIET, _SPENT, _OVER = "#1d2733", "#8a97a6", "#2f6f8f", "#b3412f"


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def gauge(status: BudgetStatus) -> str:
    """A bar of what is spent of one budget."""
    share = min(1.0, status.spent_epsilon / status.budget.epsilon)
    figure = Figure(figsize=(4.2, 0.5))
    axes = figure.add_axes((0.01, 0.1, 0.98, 0.8))
    axes.barh([0], [1.0], color="#e3e8ee")
    axes.barh([0], [share], color=_SPENT if share < 0.9 else _OVER)
    axes.set_xlim(0, 1)
    axes.axis("off")
    return _svg(figure)


def spaces_of(ledger: Ledger) -> list[str]:
    """The spaces in which some entry or budget speaks of balls."""
    found = [u.space for u, _ in ledger.terms.budgets if isinstance(u, Ball)]
    for entry in ledger.entries():
        found += [
            term.space
            for term in entry.declaration.cost.terms
            if isinstance(term, GaussianOverBalls | PureOverBalls)
        ]
    return sorted(set(found))


def _largest_radius(ledger: Ledger, space: str) -> float:
    ends = [u.radius for u, _ in ledger.terms.budgets if isinstance(u, Ball)]
    for entry in ledger.entries():
        for term in entry.declaration.cost.terms:
            if isinstance(term, GaussianOverBalls) and term.space == space:
                ends += [r for r, _ in term.sensitivity.knots if r < 1e6]
    return 1.3 * max(ends)


def epsilon_by_distance(ledger: Ledger, space: str, delta: float) -> str | None:
    """Epsilon of the whole book against the radius of a ball: the one idea, drawn."""
    largest = _largest_radius(ledger, space)
    radii, values = np.linspace(largest / 60, largest, 60), []
    try:
        values = [ledger.epsilon(delta, Ball(float(r), space=space)) for r in radii]
    except DemurError:
        return None
    figure = Figure(figsize=(6.4, 3.4))
    axes = figure.add_subplot()
    axes.plot(radii, values, color=_SPENT, linewidth=2)
    axes.fill_between(radii, values, color=_SPENT, alpha=0.12)
    for unit, budget in ledger.terms.budgets:
        if isinstance(unit, Ball) and unit.space == space:
            axes.plot([unit.radius], [budget.epsilon], "o", color=_OVER)
            axes.annotate(
                f"budget {budget.epsilon:g}",
                (unit.radius, budget.epsilon),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                color=_OVER,
                fontsize=9,
            )
    _style(axes, f"distance a record may move, in {space!r}", "epsilon")
    axes.set_title(
        f"What the whole book costs at a distance (delta {delta:g})",
        loc="left",
        fontsize=10,
        color=_INK,
    )
    figure.tight_layout()
    return _svg(figure)


def _style(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=_INK, fontsize=9)
    axes.set_ylabel(y, color=_INK, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.tick_params(colors=_QUIET, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e3e8ee", linewidth=0.8)
