"""Pictures of results for notebooks, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

from demur.core.promise import NO_LIMIT
from demur.ledger import over_time
from demur.report.figure import GRID, INK, SERIES, WIDE, drawing, short
from demur.report.text import number_up
from demur.report.views import known


def plot(result: Any, axes: Any = None) -> Any:
    """Draw the result on `axes`, or on those of a new figure; the axes."""
    draw = known(result, _PICTURES)
    with drawing(WIDE):
        if axes is None:
            # pyplot's, so that a notebook shows it and `pyplot.show` finds it.
            _, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
        draw(result, axes)
    return axes


def _ledger_picture(ledger: Any, axes: Any) -> None:
    """The share of each budget that is spent, entry by entry."""
    moments = over_time(ledger)
    for i, status in enumerate(ledger.status()):
        if status.budget.unlimited:
            continue
        spent = [moment.spent_epsilon[i] for moment in moments]
        shares = [0.0, *(100 * value / status.budget.epsilon for value in spent)]
        colour = SERIES[i % len(SERIES)]
        places = list(range(len(shares)))
        axes.plot(places[1:], shares[1:], "o", color=colour, markersize=4)
        # a little further, so that the last step is seen
        axes.step(
            [*places, places[-1] + 0.6],
            [*shares, shares[-1]],
            where="post",
            color=colour,
            label=str(status.unit),
        )
    axes.axhline(100, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, 112)
    axes.set_xlim(0, len(moments) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("entries, in their order")
    axes.set_ylabel("spent (% of the budget)")
    axes.set_title(f"Ledger of {ledger.terms.dataset}", loc="left")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.2))


def _status_picture(statuses: Sequence[Any], axes: Any) -> None:
    rows = [(str(s.unit), s.spent_epsilon, s.budget.epsilon) for s in statuses]
    _bars(axes, rows, "spent", "budget")


def _entry_picture(entry: Any, axes: Any) -> None:
    """The cost of one entry beside the budgets of its ledger."""
    rows = [
        (str(promise.unit), entry.cost_alone(promise) or 0.0, promise.epsilon)
        for promise in entry.promises
    ]
    _bars(axes, rows, "this entry alone", "budget of the ledger")
    axes.set_title(short(entry.label, 60), loc="left")


def _bars(
    axes: Any, rows: list[tuple[str, float, float]], spent: str, budget: str
) -> None:
    """A bar for each unit, before its budget if there is one."""
    places = range(len(rows))
    limits = [0.0 if limit >= NO_LIMIT else limit for _, _, limit in rows]
    axes.barh(places, limits, height=0.5, color=GRID, label=budget)
    costs = [cost if math.isfinite(cost) else 0.0 for _, cost, _ in rows]
    axes.barh(places, costs, height=0.26, color=SERIES[0], label=spent)
    axes.set_yticks(places, [short(name, 34) for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.grid(False)
    axes.set_xlabel("epsilon")
    axes.legend(frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0.0, -0.2))


def _head_picture(report: Any, axes: Any) -> None:
    pairs = report.curve()
    axes.plot(*zip((0.0, 0.0), *pairs, strict=True), color=SERIES[0])
    if report.radius is not None:
        asked = f"asked for: {report.epsilon:g} at {report.radius:g}"
        axes.plot([report.radius], [report.epsilon], "D", color=INK, label=asked)
        axes.legend(frameon=False)
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(f"distance that a record may move, in {report.space!r}")
    axes.set_ylabel(f"epsilon (delta {number_up(report.delta)})")


def _cluster_picture(clusters: Any, axes: Any) -> None:
    """Centres in their first two coordinates, with what is known of their place."""
    centres = getattr(clusters, "cluster_centers_", None)
    centres = getattr(clusters, "means_", None) if centres is None else centres
    if centres is None:
        raise ValueError("fit the clusters before they are drawn")
    centres = np.asarray(centres)
    second = centres[:, 1] if centres.shape[1] > 1 else np.zeros(len(centres))
    weights = np.asarray(getattr(clusters, "weights_", np.full(len(centres), 0.2)))
    intervals = getattr(clusters, "centers_interval_", None)
    if intervals is not None and centres.shape[1] > 1:
        for (x, y), interval in zip(centres[:, :2], np.asarray(intervals), strict=True):
            axes.plot(interval[0], [y, y], color=INK, linewidth=1.2, zorder=3)
            axes.plot([x, x], interval[1], color=INK, linewidth=1.2, zorder=3)
    axes.scatter(
        centres[:, 0], second, s=40 + 600 * weights, alpha=0.75, color=SERIES[0]
    )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("first coordinate of the cube")
    axes.set_ylabel("second coordinate of the cube")
    axes.set_title(f"{len(centres)} centres; size: share of the points", loc="left")


def _certificate_picture(certificate: Any, axes: Any) -> None:
    costs = {
        "this deletion": certificate.epsilon,
        "all that compose with it": certificate.epsilon_so_far,
        "all that leaves the service": certificate.epsilon_in_all,
    }
    shown = {
        name: value
        for name, value in costs.items()
        if value is not None and math.isfinite(value)
    }
    axes.barh(list(shown), list(shown.values()), color=SERIES[0])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel(f"epsilon (delta {number_up(certificate.delta)})")
    axes.set_title("Certificate of deletion", loc="left")


_PICTURES: dict[str, Callable[[Any, Any], None]] = {
    "Ledger": _ledger_picture,
    "BudgetStatus": lambda status, axes: _status_picture([status], axes),
    "BudgetStatuses": _status_picture,
    "Release": lambda release, axes: _entry_picture(release.entry, axes),
    "PrivacyReport": _head_picture,
    "ChargedClusterer": _cluster_picture,
    "Certificate": _certificate_picture,
}
