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
    from demur.cluster.files.centre_tables import shown_interval

    original = metadata.low is not None
    unit = "original units" if original else "unit cube"
    shown = metadata.in_original_units(centres.cube) if original else centres.cube
    interval = shown_interval(centres, metadata)
    table = Table(title=f"Centres ({unit})", title_justify="left")
    table.add_column("no.")
    table.add_column("share", justify="right")
    most = 8
    for name in metadata.columns[:most]:
        table.add_column(escape(name), justify="right")
    if len(metadata.columns) > most:
        table.caption = f"the first {most} of {len(metadata.columns)} columns"
    shares = [f"{share:.3f}" for share in centres.weights]
    cells = [[f"{x:.4g}" for x in row[:most]] for row in shown]
    if interval is not None and centres.shares_interval is not None:
        # In a narrow terminal the interval takes a line of its own.
        table.title = f"{table.title}, 95% of the posterior"
        for i, (low, high) in enumerate(centres.shares_interval):
            shares[i] += f" {low:.3f}-{high:.3f}"
            for j, (low, high) in enumerate(interval[i, :most]):
                cells[i][j] += f" ±{0.5 * (high - low):.2g}"
    for i, (share, row) in enumerate(zip(shares, cells, strict=True)):
        table.add_row(str(i), share, *row)
    return table


def sweep_table(sweep: Sweep, name: str, trials: int) -> Table:
    """Medians of every setting, and the data without noise above them.

    In a narrow terminal a cell takes several lines, and no number is cut; `--csv` and
    `--json` have the other metrics.
    """
    models = sorted({band.algorithm for band in sweep.bands()})
    shown = len(models) > 1
    best = sweep.baseline
    decoders = {one for band in sweep.bands() for one in band.decoders}
    table = Table(
        title=(
            f"{escape(name)}, {', '.join(models)}: medians of {trials} draws, SSE with"
            " a 10-90% band"
        ),
        padding=(0, 0 if shown else 1),
        title_justify="left",
        caption=(
            f"price: epsilon of {sweep.priced}. incr.: of the SSE over non-private"
            f" k-means. RE: relative error of the centres. Decoder:"
            f" {', '.join(sorted(decoders))}."
        ),
        caption_justify="left",
    )
    columns = ["epsilon", "L", "price", "SSE", "band", "incr.", "ARI", "RE"]
    for column in ["model"] * shown + columns:
        table.add_column(column, justify="right", overflow="fold")

    def cells(q: Quality) -> list[str]:
        return [f"{q.ari:.2f}", f"{q.centroid_error:.2f}"]

    row = ["", "", "", f"{best.sse:.4g}", "", "0%", *cells(best)]
    table.add_row(*["no noise"] * shown, *(row if shown else ["no noise", *row[1:]]))
    for band in sweep.bands():
        auto = " auto" if band.L == "auto" else ""
        table.add_row(
            *[band.algorithm] * shown,
            f"{band.rate:.3g}",
            f"{band.threshold:.3g}{auto}",
            f"{band.price:.3g}",
            f"{band.median.sse:.4g}",
            f"{band.low.sse:.3g} to {band.high.sse:.3g}",
            f"{band.median.increase:.0f}%",
            *cells(band.median),
        )
    return table
