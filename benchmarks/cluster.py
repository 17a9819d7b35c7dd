"""Clustering perturbed points: SSE over the non-private SSE, and speed.

    python benchmarks/cluster.py [--part families price steady large speed tables plot]
                                 [--draws 10] [--only NAME ...] [--write]

A figure is the SSE of the found centres on the true points, divided by that of
non-private k-means (10 starts), over fresh draws of the noise. The data are public.

`families` has ten draws of every set of cluster_parts/sets.py (anisotropic, unbalanced,
fifteen clusters, uniform, many dimensions, a minority, and the sets of the first round)
at BPM's epsilon per unit of the cube and L = auto (three draws of the other methods
where there are more than 3,000 points). All decoders see the same reports,
all other mechanisms have the same price of any replacement, epsilon min(L, sqrt d):

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
of any replacement. `steady` fits one set of reports six times. `tables` prints what
there is, and with --write puts it into docs/benchmarks.md.
Draws are kept (cluster_parts/draws.py): a run that was stopped goes on where it was.

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

import bpm as speed
import numpy as np
from cluster_parts import sets
from cluster_parts.draws import (
    METHODS,
    OTHERS,
    Kept,
    decoded,
    diffprivlib,
    one_draw,
    price_of,
    ratio,
)
from cluster_parts.sets import FAMILIES, Task
from matplotlib.figure import Figure

from demur import ReplaceOne
from demur.mechanisms import BPM

PLOT = Path("docs/images/cluster_sse.png")
PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"
# What must be reached: statistic, figure, and how many draws it is taken over.
AIMS = {
    ("blobs, n = 300", 4.0): (np.median, 2.8, 40),
    ("blobs, n = 30,000", 4.0): (np.median, 1.05, 10),
    ("china.jpg, 30,000 pixels", 4.0): (np.median, 1.5, 10),
    ("minority of 1 in 120", 8.0): (np.mean, 1.1, 10),
    ("digits, d = 64", 4.0): (np.mean, 1.9, 10),
}


# -- families --------------------------------------------------------------------------


def wanted(task: Task, only: tuple[str, ...]) -> bool:
    return not only or any(name in task.name for name in only)


@cache
def rows(only: tuple[str, ...]) -> list[tuple[Task, float]]:
    found = []
    for make, epsilons in FAMILIES:
        if make is sets.adult and not (sets.DATA / "adult.npz").exists():
            print(f"no data at {sets.DATA}: set DEMUR_DATA. Adult was not measured.")
            continue
        task = make()
        if wanted(task, only):
            found += [(task, each) for each in epsilons]
    return found


def run_families(kept: Kept, draws: int, only: tuple[str, ...]) -> None:
    """The first draw of every row, then the second, ...: all are there early."""
    most = max(draws, *(count for _, _, count in AIMS.values()))
    for draw in range(most):
        for task, epsilon in rows(only):
            count = max(draws, AIMS.get((task.name, epsilon), (0, 0, 0))[2])
            here = f"{task.name}|{epsilon:g}"
            if draw >= count or f"family|{here}|demur|{draw}" in kept:
                continue
            mechanism = BPM(epsilon, "auto", task.points.shape[1])
            # Of many points the other methods differ by little from draw to draw.
            others = draws if len(task.points) <= 3000 else min(draws, 3)
            results = one_draw(task, mechanism, draw, alone=draw >= others)
            for name, value in reversed(results.items()):  # demur's last
                kept.add(f"family|{here}|{name}|{draw}", [value])
            print(f"{here}, draw {draw}: {results['demur']:.4g}", flush=True)
    for draw in range(draws):
        for task, epsilon in rows(only):
            n, d = task.points.shape
            key = f"family|{task.name}|{epsilon:g}|for_unit|{draw}"
            if d <= 16 and key not in kept and (draw < 3 or n <= 3000):
                price = price_of(BPM(epsilon, "auto", d))
                bpm = BPM.for_unit(ReplaceOne(), price=price, dimension=d, n=n)
                reports = bpm.privatize(task.points).value
                centers = decoded(reports, task.k, draw, "noise_aware")
                kept.add(key, [ratio(task, centers)])
                print(key, kept.results[key], flush=True)
    for task, epsilon in rows(only):
        key = f"family|{task.name}|{epsilon:g}|diffprivlib|all"
        if key not in kept:
            price = price_of(BPM(epsilon, "auto", task.points.shape[1]))
            if ratios := diffprivlib(task, price, draws):
                kept.add(key, ratios)


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
    for task, epsilon in rows(only):
        here = "family", task.name, f"{epsilon:g}"
        columns = {name: kept.column(*here, name, below=draws) for name in METHODS}
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
        if "for_unit" in means and len(columns["for_unit"]) < draws:
            cells[1] += f" ({len(columns['for_unit'])})"
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


def rivals(task: Task, price: float) -> dict[str, BPM]:
    """Mechanisms of one price of any replacement."""
    n, d = task.points.shape
    return {
        "for_unit": BPM.for_unit(ReplaceOne(), price=price, dimension=d, n=n),
        "L = 0.5": BPM(price / 0.5, 0.5, d),
        "alpha 0.99": BPM(price / math.sqrt(d), "auto", d),
    }


@cache
def prices() -> list[tuple[Task, float]]:
    blobs = sets.blobs(10_000)
    return [
        (blobs, 2.0),
        (blobs, 4.0),
        (sets.china(10_000), 4.0),
        (sets.four_in_eight(), 8.0),
    ]


def run_price(kept: Kept, draws: int, only: tuple[str, ...]) -> None:
    for draw in range(draws):
        for task, price in prices():
            for name, mechanism in rivals(task, price).items():
                key = f"price|{task.name}|{price:g}|{name}|{draw}"
                if key in kept or not wanted(task, only):
                    continue
                reports = mechanism.privatize(task.points).value
                centers = decoded(reports, task.k, draw, "noise_aware")
                kept.add(key, [ratio(task, centers)])


def price_lines(kept: Kept) -> list[str]:
    """Equal price of any replacement: means, and the number of draws."""
    lines = ["| data | price | L / epsilon of for_unit | for_unit | L = 0.5 | auto |"]
    lines.append("|---|---|---|---|---|---|")
    for task, price in prices():
        cells = []
        for name in rivals(task, price):
            ratios = kept.column("price", task.name, f"{price:g}", name)
            cells.append(f"{np.mean(ratios):.4g} ({len(ratios)})" if ratios else "")
        chosen = rivals(task, price)["for_unit"]
        front = f"| {task.name} | {price:g} | {chosen.L:.3g} / {chosen.epsilon:.3g}"
        lines.append(f"{front} | {' | '.join(cells)} |")
    return lines


# -- fits of one set of reports --------------------------------------------------------


@cache
def steady_cases() -> list[tuple[Task, float]]:
    return [
        (sets.blobs(300), 4.0),
        (sets.blobs(300), 2.0),
        (sets.anisotropic(300), 2.0),
        (sets.unbalanced(300), 2.0),
        (sets.iris(), 4.0),
        (sets.separated(64, 400), 8.0),
    ]


def run_steady(kept: Kept, only: tuple[str, ...], repeats: int = 3) -> None:
    """Fits of one set of reports that differ in their random_state alone."""
    for repeat in range(repeats):
        for task, epsilon in steady_cases():
            key = f"steady|{task.name}|{epsilon:g}|{repeat}|"
            if key in kept or not wanted(task, only):
                continue
            bpm = BPM(epsilon, "auto", task.points.shape[1])
            reports = bpm.privatize(task.points).value
            kept.add(
                key,
                [
                    ratio(task, decoded(reports, task.k, seed, "noise_aware"))
                    for seed in range(6)
                ],
            )


def steady_lines(kept: Kept) -> list[str]:
    """Six fits of one set of reports: smallest and largest ratio, for each set."""
    lines = ["| six fits of one set of reports | smallest to largest ratio |"]
    lines.append("|---|---|")
    for task, epsilon in steady_cases():
        found = []
        for repeat in range(9):
            ratios = kept.column("steady", task.name, f"{epsilon:g}", str(repeat))
            if ratios:
                low, high = min(ratios), max(ratios)
                found.append(f"{low:.3f} to {high:.3f} ({high / low - 1:.1%})")
        if found:
            lines.append(f"| {task.name}, epsilon {epsilon:g} | {'; '.join(found)} |")
    return lines


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
    names = [f"{task.name}, epsilon {epsilon:g}" for task, epsilon in shown]
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    axes = figure.subplots()
    for method, colour in colours.items():
        for place, (task, epsilon) in enumerate(shown):
            ratios = kept.column(
                "family", task.name, f"{epsilon:g}", method, below=draws
            )
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
    parser.add_argument("--write", action="store_true", help="tables into docs/")
    options = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, numpy {np.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    kept = Kept()
    if "families" in options.part:
        run_families(kept, options.draws, tuple(options.only))
    if "price" in options.part:
        run_price(kept, options.draws, tuple(options.only))
    if "steady" in options.part:
        run_steady(kept, tuple(options.only))
    if "large" in options.part:
        run_large()
    if "speed" in options.part:
        run_speed()
    if "tables" in options.part:
        tables = family_lines(kept, options.draws, tuple(options.only))
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
