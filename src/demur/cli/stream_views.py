"""Tables, JSON and figures of a stream's result, for `demur unlearn`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

if TYPE_CHECKING:
    from demur.unlearning.stream.workload import Curve, StreamResult

_UNLIMITED = 2**39  # a capacity that no stream uses up


def stream_table(result: StreamResult, scope: str, epsilon: float) -> Table:
    """A table of theoretical and empirical numbers."""
    m = result.metrics
    table = Table("", "theory", "practice", title=f"mode {m.mode}, {scope}")
    unlimited = m.m_theory is not None and m.m_theory >= _UNLIMITED
    capacity = "unlimited" if unlimited else _number(m.m_theory)
    table.add_row(
        "average regret", _number(m.avg_regret_theory), _number(m.avg_regret_empirical)
    )
    table.add_row("N*, inserts", _number(m.N_star_theory), _number(m.inserts_seen))
    table.add_row("deletions", capacity, _number(result.deleted))
    table.add_row("epsilon", _number(epsilon), _number(m.eps_spent))
    table.add_row("epsilon of one deletion", _number(m.eps_step_theory), "")
    table.add_row("noise of one deletion", _number(m.sigma_step_theory), "")
    for name in ("G", "D", "c", "C"):
        table.add_row(f"{name} (estimated)", "", _number(getattr(m, f"{name}_hat")))
    return table


def stream_lines(result: StreamResult, mode: str) -> list[str]:
    """The theorem, and what became of the deletions."""
    from demur.unlearning.models import MODES

    lines = [f"Theorem: {MODES[mode].theorem.statement}"]
    if result.renewed:
        lines.append(f"{result.renewed} times the certificate was renewed.")
    if result.waited:
        lines.append(f"{result.waited} deletions waited for N*.")
    if result.refused:
        lines.append(
            f"{result.refused} deletions were refused ({result.reason}): retrain"
            " without these records."
        )
    return lines


def stream_facts(result: StreamResult, files: list[Path]) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "metrics": asdict(result.metrics),
        "deleted": result.deleted,
        "waited": result.waited,
        "renewed": result.renewed,
        "refused": result.refused,
        "reason": result.reason,
        "written": [str(path) for path in files],
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def draw_stream(curve: Curve, path: Path) -> None:
    """Average regret with its bound, and what is left of the capacity."""
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(curve.events, curve.regret, label="average regret")
    above.plot(curve.events, curve.bound, "--", label="its bound")
    above.set_ylabel("regret per round")
    above.set_yscale("symlog", linthresh=1e-2)
    above.legend(frameon=False)
    if max(curve.capacity) < _UNLIMITED:
        below.step(curve.events, curve.capacity, where="post")
    else:
        below.text(0.5, 0.5, "unlimited", ha="center", transform=below.transAxes)
        below.set_yticks([])
    below.set_ylabel("deletions left")
    below.set_xlabel("events")
    figure.savefig(path)


def save_weights(path: Path, weights: Any, features: list[str]) -> None:
    """The weights and the names of their features."""
    np.savez(path, weights=weights, features=np.array(features))
