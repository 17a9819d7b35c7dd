"""Error bar and line plots, written to files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from demur.compat.ball_dp.utils.io import ensure_dir


def save_errorbar_plot(
    x: Sequence[float],
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    out_path: str | os.PathLike[str],
    xscale_log: bool = True,
) -> None:
    """One curve of (means, deviations) for each name."""
    figure, axes = _page(title, xlabel, ylabel)
    for name, (means, deviations) in curves.items():
        axes.errorbar(x, means, yerr=deviations, marker=".", capsize=2, label=name)
    if xscale_log:
        axes.set_xscale("log")
    if curves:
        axes.legend()
    _save(figure, out_path)


def save_line_plot(
    x: ArrayLike,
    y: ArrayLike,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    out_path: str | os.PathLike[str],
) -> None:
    """One line."""
    figure, axes = _page(title, xlabel, ylabel)
    axes.plot(x, y)
    _save(figure, out_path)


def _page(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _save(figure: Figure, out_path: str | os.PathLike[str]) -> None:
    ensure_dir(Path(out_path).parent)
    figure.savefig(out_path, dpi=200)
