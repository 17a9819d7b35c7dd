"""Clustering perturbed points: SSE over the non-private SSE, and speed.

    python benchmarks/cluster.py [--part families price steady large speed tables plot]
                                 [--draws 10] [--only NAME ...] [--write]
                                 [--jobs 16] [--seconds 1200] [--store FILE]

A figure is the SSE of the found centres on the true points, divided by that of
non-private k-means (10 starts), over draws of the noise, each from a seed of its own.
The data are public.

`families` has ten draws of every set of cluster_parts/sets.py (anisotropic, unbalanced,
fifteen clusters, uniform, many dimensions, a minority, and the sets of the first round)
at BPM's epsilon per unit of the cube and L = auto (40 draws of up to 300 points in few
dimensions; three of the other methods where there are more than 3,000 points). All
decoders see the same reports, all other mechanisms have the same price of any
replacement, epsilon min(L, sqrt d):

    demur                  noise-aware decoder (the default)
    for_unit               the same, with the L that `BPM.for_unit` takes for that price
                           of any replacement (up to 16 dimensions)
    clip, plain            k-means on the reports, clipped to the cube or as they are
    PCA + k-means          of the reports, K directions (where d > K)
    copies                 K copies of the mean of the reports
    planar Laplace         multivariate Laplace noise (BPM, L = infinity), clip
    per coord.             Laplace noise on every coordinate, clip
    grid                   randomised response over a grid, clip
    paper                  BPM with L = 0.5, k-means on the reports (Algorithm 1)
    central, diffprivlib   k-means on a trusted server that sees the points: another
                           promise; demur's, and diffprivlib's (in .peers)

A mean more than 10% above clip's or plain's is listed as a loss; so is, in 32 or more
dimensions, one above the better of plain and copies. `price` compares L at equal price
of any replacement. `steady` fits one set of reports six times, under other row ids and
with chains that are not seeded by the reports. `tables` prints what there is, and with
--write puts it into docs/benchmarks.md.
Draws are kept (cluster_parts/draws.py): a run that was stopped goes on where it was.
`--jobs` measures in several processes of one thread each (cluster_parts/jobs.py).
Figures of diffprivlib stay those of the page, marked with a star, where it is not
installed.

The reference's loop in the speed table is in benchmarks/bpm.py.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

if "--jobs" in sys.argv:  # before anything starts threads
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = "1"

import bpm as speed
import numpy as np
from cluster_parts.draws import METHODS, OTHERS, STORE, Kept, price_of
from cluster_parts.jobs import (
    AIMS,
    REPEATS,
    RIVALS,
    draws_of,
    jobs,
    prices,
    rival,
    rows,
    run,
    steady_cases,
)
from matplotlib.figure import Figure

from demur.mechanisms import BPM

PLOT = Path("docs/images/cluster_sse.png")
PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"


# -- families --------------------------------------------------------------------------


@cache
def table_of_page() -> dict[tuple[str, str], dict[str, str]]:
    """The table that the page has, by data and epsilon."""
    cells = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()
        if line.startswith("|")
    ]
    names = cells[0]
    rows = (dict(zip(names, row, strict=False)) for row in cells[2:])
    return {(row["data"], row["eps"]): row for row in rows if "eps" in row}


def earlier(name: str, epsilon: float, method: str) -> str:
    """The figure of the page, marked, of a method that is not installed here."""
    cell = table_of_page().get((name, f"{epsilon:g}"), {}).get(method, "").rstrip("*")
    return f"{cell}*" if cell else ""


def losses(d: int, means: dict[str, float]) -> list[str]:
    """Methods to which the default loses: clip or plain by 10%; others, if d is large.

    In 32 dimensions or more it is to be no worse than the better of plain and copies.
    """
    found = [name for name in ("clip", "plain") if means["demur"] > 1.1 * means[name]]
    if d >= 32:
        found += [
            name
            for name in ("plain", "copies")
            if means["demur"] > means[name] and name not in found
        ]
    return found


def family_lines(kept: Kept, draws: int, only: tuple[str, ...]) -> list[str]:
    """The table of means, the aims, and where the default loses."""
    lines = ["| data | eps | price | " + " | ".join(METHODS) + " | floor | s |"]
    lines.append("|---|---|---|" + "---|" * (len(METHODS) + 2))
    lost, better = [], []
    for _, task, epsilon in rows(only):
        here = "family", task.name, f"{epsilon:g}"
        most = draws_of(task, draws)
        columns = {name: kept.column(*here, name, below=most) for name in METHODS}
        count = len(columns["demur"])
        if not count:
            continue
        d = task.points.shape[1]
        means = {name: float(np.mean(x)) for name, x in columns.items() if x}
        error = np.std(columns["demur"], ddof=1) / math.sqrt(count) if count > 1 else 0
        cells = [f"{means[name]:.3g}" if name in means else "" for name in METHODS]
        cells[0] = f"{means['demur']:.4g}" if means["demur"] < 2 else cells[0]
        cells[0] += f" ± {error:.1g}" if error else ""
        cells[0] += "" if count == draws else f" ({count})"
        if "for_unit" in means and len(columns["for_unit"]) != count:
            cells[1] += f" ({len(columns['for_unit'])})"
        cells[-1] = cells[-1] or earlier(task.name, epsilon, "diffprivlib")
        price = price_of(BPM(epsilon, "auto", d))
        seconds = np.mean(kept.column(*here, "seconds"))
        front = f"| {task.name} | {epsilon:g} | {price:.3g} | {' | '.join(cells)}"
        lines.append(f"{front} | {task.floor(epsilon):.3g} | {seconds:.1f} |")
        if names := losses(d, means):
            lost.append(f"{task.name} at epsilon {epsilon:g} (to {', '.join(names)})")
        own = min(means["demur"], means.get("for_unit", math.inf))
        others = [name for name in OTHERS if means.get(name, math.inf) < own]
        if others:
            better.append(f"{task.name} at epsilon {epsilon:g} ({', '.join(others)})")
    lines += ["", "Means that lose (marked by the rule above): "]
    lines[-1] += ("; ".join(lost) or "none") + "."
    lines.append("Another local method is lower than both of ours, by any amount: ")
    lines[-1] += ("; ".join(better) or "none") + "."
    return [*lines, "", *aim_lines(kept)]


def aim_lines(kept: Kept) -> list[str]:
    lines = ["| aim | found (10-90%) | draws | |", "|---|---|---|---|"]
    for (name, epsilon), (statistic, aim, count) in AIMS.items():
        ratios = kept.column("family", name, f"{epsilon:g}", "demur")[:count]
        if not ratios:
            continue
        value = float(statistic(ratios))
        low, high = np.percentile(ratios, [10, 90])
        lines.append(
            f"| {name}, epsilon {epsilon:g}, {statistic.__name__}: at most {aim:g} |"
            f" {value:.3f} ({low:.3f} to {high:.3f}) | {len(ratios)} |"
            f" {'met' if value <= aim else 'not met'} |"
        )
    return lines


# -- equal price -----------------------------------------------------------------------


def price_lines(kept: Kept) -> list[str]:
    """Equal price of any replacement: means, and the number of draws."""
    lines = ["| data | price | L / epsilon of for_unit | for_unit | L = 0.5 | auto |"]
    lines.append("|---|---|---|---|---|---|")
    for place, (task, price) in enumerate(prices()):
        cells = []
        for name in RIVALS:
            ratios = kept.column("price", task.name, f"{price:g}", name)
            cells.append(f"{np.mean(ratios):.4g} ({len(ratios)})" if ratios else "")
        chosen = rival(place, price, "for_unit")
        front = f"| {task.name} | {price:g} | {chosen.L:.3g} / {chosen.epsilon:.3g}"
        lines.append(f"{front} | {' | '.join(cells)} |")
    return lines


# -- fits of one set of reports --------------------------------------------------------


def steady_lines(kept: Kept) -> list[str]:
    """Six fits of one set of reports: smallest and largest ratio, for each set."""
    lines = ["| six fits of one set of reports | other ids | other chains, too |"]
    lines.append("|---|---|---|")
    for task, epsilon in steady_cases():
        here = task.name, f"{epsilon:g}"
        cells = []
        for kind in ("steady", "unseeded"):
            found = [kept.column(kind, *here, str(i)) for i in range(REPEATS)]
            cells.append("; ".join(_span(ratios) for ratios in found if ratios))
        if any(cells):
            front = f"| {task.name}, epsilon {epsilon:g}"
            lines.append(f"{front} | {' | '.join(cells)} |")
    return lines


def _span(ratios: list[float]) -> str:
    low, high = min(ratios), max(ratios)
    apart = f"{high / low - 1:.1%}"
    return (
        f"{low:.3f} ({apart})" if low == high else f"{low:.3f} to {high:.3f} ({apart})"
    )


# -- speed -----------------------------------------------------------------------------


def run_speed() -> None:
    for d in speed.DIMENSIONS:
        for L in (0.5, "auto"):
            speed.compare(BPM(4.0, L, d), 200_000, 5)


CHILD = """
import sys, time
import numpy as np
from demur.cluster import PrivateKMeans
from demur.mechanisms import BPM
n, epsilon = int(sys.argv[1]), float(sys.argv[2])
rng = np.random.default_rng(0)
centres = np.array([[.2, .2], [.8, .2], [.5, .5], [.2, .8], [.8, .8]])
points = np.clip(centres[rng.integers(5, size=n)] + .04 * rng.normal(size=(n, 2)), 0, 1)
bpm = BPM(epsilon, "auto", 2)
reports = bpm.privatize(points).value.values
PrivateKMeans(5, epsilon=epsilon, random_state=0).fit_reports(reports[:1000], bpm)
def peak():  # not getrusage: its peak outlives exec, and would be the parent's
    with open("/proc/self/status") as file:
        return int(file.read().split("VmHWM:")[1].split()[0]) / 2**20
before, start, used = peak(), time.perf_counter(), time.process_time()
model = PrivateKMeans(5, epsilon=epsilon, random_state=0).fit_reports(reports, bpm)
taken, used = time.perf_counter() - start, time.process_time() - used
found = model.cluster_centers_
worst = np.linalg.norm(found[:, None] - centres[None], axis=2).min(axis=0).max()
print(taken, used, before, peak(), worst)
"""


def run_large(n: int = 1_000_000) -> None:
    print(f"\n### Noise-aware fit, n = {n:,}, d = 2, K = 5 (in a process of its own)\n")
    print("| epsilon | s | s of CPU | peak GiB (before the fit) | farthest centre |")
    print("|---|---|---|---|---|")
    for epsilon in (2.0, 4.0):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(n), str(epsilon)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        taken, used, before, peak, worst = map(float, done.stdout.split()[-5:])
        print(
            f"| {epsilon:g} | {taken:.1f} | {used:.1f} | {peak:.2f} ({before:.2f})"
            f" | {worst:.4f} |"
        )
        verdict = "met" if taken <= 60.0 and peak <= 2.0 else "MISSED"
        print(f"\n60 s, 2 GiB, epsilon {epsilon:g}: {verdict}\n", flush=True)


def run_plot(kept: Kept, draws: int) -> None:
    """All families in one picture: means by decoder, and a trusted server."""
    colours = {
        "demur": "#2f6f8f",
        "clip": "#5b8c3a",
        "plain": "#c98a1b",
        "copies": "#a06bb0",
        "central": "#8a97a6",
    }
    shown = rows(())[::-1]
    names = [f"{task.name}, epsilon {epsilon:g}" for _, task, epsilon in shown]
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    axes = figure.subplots()
    for method, colour in colours.items():
        for place, (_, task, epsilon) in enumerate(shown):
            here = "family", task.name, f"{epsilon:g}"
            ratios = kept.column(*here, method, below=draws_of(task, draws))
            if ratios:
                size = 55 if method == "demur" else 25
                label = method if place == 0 else None
                axes.scatter(np.mean(ratios), place, size, color=colour, label=label)
    axes.set(xscale="log", xlabel="SSE / non-private SSE", yticks=range(len(names)))
    axes.set_yticklabels(names, fontsize="small")
    axes.axvline(1.0, color="#1d2733", linewidth=0.8)
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(frameon=False, fontsize="small")
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=90)
    print(f"written: {PLOT} ({PLOT.stat().st_size // 1024} kB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["families", "price", "steady", "large", "speed", "tables", "plot"]
    parser.add_argument("--part", nargs="*", default=parts, choices=parts)
    parser.add_argument("--draws", type=int, default=10, help="of families, prices")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of sets")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after")
    parser.add_argument("--store", type=Path, default=STORE, help="file of draws")
    parser.add_argument("--write", action="store_true", help="tables into docs/")
    options = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, numpy {np.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    kept = Kept(options.store)
    only = tuple(options.only)
    todo = jobs(options.part, options.draws, only)
    if todo:
        run(kept, todo, options.jobs, options.seconds)
    if "large" in options.part:
        run_large()
    if "speed" in options.part:
        run_speed()
    if "tables" in options.part:
        tables = family_lines(kept, options.draws, only)
        tables += ["", *price_lines(kept), "", *steady_lines(kept)]
        print("\n".join(["", *tables]))
        if options.write:
            before, rest = PAGE.read_text().split(BEGIN)
            after = rest.split(END)[1]
            PAGE.write_text("\n".join([before + BEGIN, *tables, END + after]))
    if "plot" in options.part:
        run_plot(kept, options.draws)


if __name__ == "__main__":
    main()
