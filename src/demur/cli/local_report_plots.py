"""Plots of `demur reports`: BPM and a sweep, drawn without a display."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse, Rectangle

if TYPE_CHECKING:
    from demur.cluster.files.centre_tables import Centres
    from demur.cluster.inspection import Inspection
    from demur.cluster.sweep import Band, Sweep
    from demur.mechanisms.reports import Reports

_INK, _QUIET, _BLUE, _RED = "#1d2733", "#8a97a6", "#2f6f8f", "#b3412f"
_LINES = (_BLUE, _RED, "#5b8c3a", "#a06bb0", "#c98a1b", "#3b3f8f", "#7a5a44", _QUIET)
_SHOWN = 2500  # points of a scatter: more only make the file larger


def kind_of_picture(path: Path) -> str:
    """png, svg and so on, by the file's name; a ValueError for what is none."""
    kind = path.suffix.lower().removeprefix(".")
    known = Figure().canvas.get_supported_filetypes()
    if kind not in known:
        raise ValueError(f"{path.name} must be a picture, .png or .svg; got {kind!r}")
    return kind


def plot_inspection(inspection: Inspection, path: Path) -> None:
    """The radial profile of the density and, in the plane, the reports themselves."""
    flat = inspection.mechanism.dimension == 2
    figure = Figure(figsize=(9.0 if flat else 5.0, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if flat else 1, squeeze=False)[0]
    _profile(axes[0], inspection)
    if flat:
        _scatter(axes[1], inspection)
    figure.savefig(path, dpi=90)


def _profile(axes: Axes, inspection: Inspection) -> None:
    bpm = inspection.mechanism
    end = max(shell.outer for shell in inspection.shells)
    radius = np.linspace(0.0, end, 400)
    axes.plot(
        radius, inspection.expected_log_density(radius), color=_INK, label="expected"
    )
    counted = [s for s in inspection.shells if s.count]
    middle = [0.5 * (s.inner + s.outer) for s in counted]
    heights = [s.log_density for s in counted]
    axes.errorbar(
        middle,
        heights,
        xerr=[0.5 * (s.outer - s.inner) for s in counted],
        yerr=[
            [s.log_density - s.low for s in counted],
            [s.high - s.log_density for s in counted],
        ],
        fmt=".",
        color=_RED,
        label=f"{inspection.share.samples:,} reports, 99%",
    )
    if math.isfinite(bpm.L):
        axes.axvline(bpm.L, color=_QUIET, linestyle=":", label=f"L = {bpm.L:g}")
    axes.set_xlabel("distance from the point")
    axes.set_ylabel("log density")
    axes.set_title(f"exponential up to L, then constant (epsilon {bpm.epsilon:g})")
    axes.legend(frameon=False)


def _scatter(axes: Axes, inspection: Inspection) -> None:
    bpm = inspection.mechanism
    shown = inspection.reports[:_SHOWN]
    axes.plot(*shown.T, ".", markersize=2, color=_BLUE, alpha=0.5, label="reports")
    axes.plot(*inspection.point, "*", markersize=12, color=_RED, label="the point")
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, color=_INK))
    if math.isfinite(bpm.L):
        x, y = (float(c) for c in inspection.point)
        axes.add_patch(Circle((x, y), bpm.L, fill=False, color=_RED, linestyle="--"))
        side = 1 + 2 * bpm.L
        frame = Rectangle((-bpm.L, -bpm.L), side, side, fill=False, color=_QUIET)
        axes.add_patch(frame)
    axes.set_aspect("equal")
    axes.set_title("points in [0, 1]^2, reports in [-L, 1 + L]^2")
    axes.legend(frameon=True, loc="upper right")


def plot_centres(centres: Centres, reports: Reports, path: Path) -> None:
    """Centres in the unit square with their 95% ellipses, over the reports."""
    if centres.cube.shape[1] != 2:
        raise ValueError(
            f"a picture of centres needs two columns; these have"
            f" {centres.cube.shape[1]}"
        )
    figure = Figure(figsize=(5.0, 5.0), layout="constrained")
    axes = figure.subplots()
    shown = reports.values[:_SHOWN]
    axes.plot(*shown.T, ".", markersize=2, color=_QUIET, alpha=0.4, label="reports")
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, color=_INK))
    # A cross, so that an ellipse of any size is seen; its share beside it.
    for center, weight in zip(centres.cube, centres.weights, strict=True):
        axes.plot(*center, "+", color=_INK, markersize=7)
        axes.annotate(
            f"{weight:.0%}",
            (float(center[0]), float(center[1])),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize="small",
        )
    if centres.covariances is not None:
        for center, covariance in zip(centres.cube, centres.covariances, strict=True):
            values, vectors = np.linalg.eigh(covariance)
            # 95% of a Gaussian in the plane lie within sqrt(5.991) deviations.
            axis = 2.0 * np.sqrt(5.991 * np.maximum(values, 0.0))
            angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
            ellipse = Ellipse(
                (float(center[0]), float(center[1])),
                float(axis[1]),
                float(axis[0]),
                angle=angle,
                fill=False,
                color=_RED,
                linewidth=1.5,
            )
            axes.add_patch(ellipse)
    axes.set_xlim(-0.25, 1.25)
    axes.set_ylim(-0.25, 1.25)
    axes.set_aspect("equal")
    known = "" if centres.covariances is None else " with 95% of their posterior"
    axes.set_title(f"centres{known}; the unit square")
    figure.savefig(path, dpi=90)


_PANELS = (
    ("sse", "SSE on the true points"),
    ("increase", "increase over non-private, %"),
    ("silhouette", "silhouette"),
    ("ari", "ARI"),
    ("nmi", "NMI"),
    ("centroid_error", "relative centre error"),
)


def plot_sweep(sweep: Sweep, path: Path, name: str) -> None:
    """Every metric against the price: medians, with the band of 10 to 90%."""
    figure = Figure(figsize=(11.0, 6.2), layout="constrained")
    lines: dict[tuple[str, float | str], list[Band]] = {}
    for band in sweep.bands():
        lines.setdefault((band.algorithm, band.L), []).append(band)
    panels = figure.subplots(2, 3)
    for axes, (metric, title) in zip(panels.flat, _PANELS, strict=True):
        for i, ((algorithm, L), bands) in enumerate(lines.items()):
            used = sorted({float(f"{band.threshold:.3g}") for band in bands})
            chosen = "" if L != "auto" else f" ({used[0]:g} to {used[-1]:g})"
            label = f"{algorithm}, L {L}{chosen}"
            _band(axes, metric, bands, label, _LINES[i % len(_LINES)])
        axes.axhline(getattr(sweep.baseline, metric), color=_INK, linestyle=":")
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        if metric == "sse":
            axes.set_yscale("log")
        axes.set_xlabel(f"price: epsilon of {sweep.priced}")
    panels[0, 0].legend(frameon=False, fontsize="small")
    figure.suptitle(f"{name}: dotted = not private; public data")
    figure.savefig(path, dpi=80)


def _band(axes: Axes, metric: str, bands: list[Band], label: str, colour: str) -> None:
    # Against the price: one epsilon with different L is not one promise.
    bands = sorted(bands, key=lambda band: band.price)
    epsilon = [band.price for band in bands]
    low, median, high = (
        [getattr(getattr(band, part), metric) for band in bands]
        for part in ("low", "median", "high")
    )
    axes.plot(epsilon, median, "o-", color=colour, label=label)
    axes.fill_between(epsilon, low, high, color=colour, alpha=0.15)
