"""Tables of `demur reports` for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from demur.cluster.files.centre_tables import Centres
    from demur.cluster.files.report_metadata import ReportMetadata
    from demur.cluster.inspection import Inspection
    from demur.cluster.metrics import Quality
    from demur.cluster.sweep import Sweep
    from demur.mechanisms import BPM


def constants(bpm: BPM) -> dict[str, float]:
    """The constants of BPM, by name."""
    return {
        "epsilon": bpm.epsilon,
        "L": bpm.L,
        "dimension": bpm.dimension,
        "lambda_L": bpm.lambda_L,
        "log_lambda_L": bpm.log_lambda_L,
        "mu_L": bpm.mu_L,
        "p_L": bpm.p_L,
        "log_p_L": bpm.log_p_L,
        "alpha": bpm.alpha,
        "log_alpha": bpm.log_alpha,
        "mse": float(bpm.mse([0.5] * bpm.dimension)),
        "grid": bpm.grid,
    }


def counted(inspection: Inspection, plot: Path | None) -> dict[str, Any]:
    """The counts of an inspection, for JSON."""
    share = inspection.share
    return {
        "samples": share.samples,
        "inside": share.inside,
        "observed": share.observed,
        "interval": list(share.interval),
        "expected": share.expected,
        "agrees": bool(share.agrees),
        "written": None if plot is None else str(plot),
    }


def constants_table(bpm: BPM) -> Table:
    """The constants of BPM and what they mean."""
    table = Table(
        title=f"BPM, epsilon {bpm.epsilon:g}, L {bpm.L:.6g}, d {bpm.dimension}",
        title_justify="left",
    )
    table.add_column("constant")
    table.add_column("value", justify="right")
    table.add_column("what it is")
    values = constants(bpm)
    for name, what in (
        ("lambda_L", f"density at the point (log {bpm.log_lambda_L:.6g})"),
        ("mu_L", "1 / lambda_L"),
        ("p_L", f"probability of a report within L (log {bpm.log_p_L:.6g})"),
        ("alpha", f"share of a report about its point (log {bpm.log_alpha:.6g})"),
        ("mse", "E|x - v|^2 for a point in the middle"),
        ("grid", "reports are multiples of it"),
    ):
        table.add_row(name, f"{values[name]:.6g}", what)
    return table


def centre_table(centres: Centres, metadata: ReportMetadata) -> Table:
    """Centres in the units of the points, where their box is known."""
    original = metadata.low is not None
    unit = "original units" if original else "unit cube"
    shown = metadata.in_original_units(centres.cube) if original else centres.cube
    table = Table(title=f"Centres ({unit})", title_justify="left")
    table.add_column("no.")
    table.add_column("share", justify="right")
    most = 8
    for name in metadata.columns[:most]:
        table.add_column(escape(name), justify="right")
    if len(metadata.columns) > most:
        table.caption = f"the first {most} of {len(metadata.columns)} columns"
    for i, (share, row) in enumerate(zip(centres.weights, shown, strict=True)):
        table.add_row(str(i), f"{share:.3f}", *(f"{x:.4g}" for x in row[:most]))
    return table


def sweep_table(sweep: Sweep, name: str, trials: int) -> Table:
    """Medians of every setting, and the data without noise above them."""
    best = sweep.baseline
    table = Table(
        title=f"{escape(name)}: medians of {trials} draws, SSE with a 10-90% band",
        title_justify="left",
        caption="increase: of the SSE over non-private k-means",
    )
    for column in ("model", "epsilon", "L", "SSE", "band", "increase", "silhouette"):
        table.add_column(column, justify="right")
    for column in ("ARI", "NMI", "centre error", "decoder"):
        table.add_column(column, justify="right")

    def cells(q: Quality) -> list[str]:
        return [f"{q.silhouette:.3f}", f"{q.ari:.3f}", f"{q.nmi:.3f}",
                f"{q.centroid_error:.3f}"]  # fmt: skip

    row = ["not private", "", "", f"{best.sse:.4g}", "", "0%", *cells(best), ""]
    table.add_row(*row)
    for band in sweep.bands():
        table.add_row(
            band.algorithm,
            f"{band.epsilon:g}",
            f"{band.L:g}" if isinstance(band.L, float) else str(band.L),
            f"{band.median.sse:.4g}",
            f"{band.low.sse:.3g}-{band.high.sse:.3g}",
            f"{band.median.increase:.0f}%",
            *cells(band.median),
            ", ".join(band.decoders),
        )
    return table
