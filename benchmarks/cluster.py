"""Clustering perturbed points: SSE over the non-private SSE, and speed.

    python benchmarks/cluster.py [--part small middle big china real families price
                                  steady speed large plot]

Every figure is the SSE of the found centres on the true points, divided by that of
non-private k-means (10 starts), a median over fresh draws of the noise. The data are
public, and epsilon is per unit of the cube: the promise is epsilon * distance. Rows:

    demur                  BPM, L = auto, noise-aware decoder (the default)
    clip, plain            BPM, L auto, clipped to the cube or as they are, k-means
    paper                  BPM with the L named, k-means on the reports (Algorithm 1)
    seed                   the seed's sampler, from its description: NOT PRIVATE, its
                           ball lacks a factor and no epsilon-d_E promise holds
    baselines              other mechanisms of demur.cluster at the same epsilon
    diffprivlib            central DP (a trusted server sees the raw points), epsilon
                           for any replacement: another promise, in .peers
    floor                  1 + K d^2 / (epsilon^2 SSE): what an efficient estimator
                           reaches when it knows which report belongs where

`families` has ten paired draws (all methods see the same reports) of sets beside the
usual ones, at equal price: anisotropic, unbalanced, fifteen clusters, uniform, many
dimensions, a minority; with PCA + k-means, copies of the mean, randomised response over
a grid, and k-means on a trusted server (demur's and diffprivlib's). `price` compares L
at equal price of any replacement. `steady` fits one set of reports six times. A mean
that is more than 10% above clip's or plain's is marked LOSS.

The reference's loop in the speed table is in benchmarks/bpm.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bpm as speed
import numpy as np
from matplotlib.figure import Figure
from scipy import special
from sklearn.cluster import KMeans
from sklearn.datasets import (
    load_digits,
    load_iris,
    load_sample_image,
    load_wine,
    make_blobs,
)
from sklearn.decomposition import PCA

from demur import ReplaceOne
from demur.cluster import CentralKMeans, PrivateKMeans, UnsupportedClusters
from demur.cluster.metrics import assign
from demur.core.errors import DemurError
from demur.mechanisms import BPM, GridResponse, LaplaceReports, Reports

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))
PEERS = Path(".peers/bin/python")
OUT = Path("out")
PLOT = Path("docs/images/cluster_sse.png")

Centres = Callable[[np.ndarray, int, float, int], np.ndarray]


@dataclass(frozen=True)
class Task:
    """Points of the unit cube, and what k-means makes of them without noise."""

    name: str
    points: np.ndarray
    k: int

    @property
    def best(self) -> float:
        found = KMeans(self.k, n_init=10, random_state=0).fit(self.points)
        return float(found.inertia_)

    def floor(self, epsilon: float, best: float) -> float:
        return 1 + self.k * self.points.shape[1] ** 2 / (epsilon**2 * best)


def blobs(n: int) -> Task:
    X, _ = make_blobs(n, 2, centers=3, cluster_std=0.5, random_state=42)
    low, high = X.min(axis=0), X.max(axis=0)
    return Task(f"the seed's blobs, n = {n:,}", (X - low) / (high - low), 3)


def china(n: int = 30_000) -> Task:
    pixels = load_sample_image("china.jpg").reshape(-1, 3) / 255.0
    chosen = np.random.default_rng(0).choice(len(pixels), n, replace=False)
    return Task(f"china.jpg, {n:,} pixels", pixels[chosen], 8)


def real(name: str) -> Task:
    if name == "adult":
        with np.load(DATA / "adult.npz") as data:
            # Six numeric columns, scaled by public ranges.
            points = np.clip(data["Xtr"][:, :6].astype(np.float64), 0.0, 1.0)
        return Task("Adult, 6 numeric columns", points, 5)
    loader, k = {
        "iris": (load_iris, 3),
        "wine": (load_wine, 3),
        "digits": (load_digits, 10),
    }[name]
    X = loader().data
    low, high = X.min(axis=0), X.max(axis=0)
    high = np.where(high > low, high, low + 1.0)
    return Task(name, (X - low) / (high - low), k)


# -- contestants ---------------------------------------------------------------------


def private(decoder: str, L: float | str = "auto", mechanism: str = "bpm") -> Centres:
    def run(points: np.ndarray, k: int, epsilon: float, trial: int) -> np.ndarray:
        model = PrivateKMeans(
            k, epsilon=epsilon, L=L, random_state=trial, decoder=decoder,
            mechanism=mechanism,
        )  # fmt: skip
        return model.fit(points).cluster_centers_

    return run


def seed_sampler(L: float) -> Centres:
    """The seed's two-stage sampler with its own p_L, and k-means on its reports."""

    def run(points: np.ndarray, k: int, epsilon: float, trial: int) -> np.ndarray:
        n, d = points.shape
        volume = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
        mass = math.factorial(d) * volume / epsilon**d
        mass *= float(special.gammainc(d, epsilon * L)) * math.exp(epsilon * L)
        rest = math.exp(-epsilon * L) * ((1 + 2 * L) ** d - volume * L**d)
        rng = np.random.default_rng()
        u = rng.random(n) * special.gammainc(d, epsilon * L)
        z = rng.normal(size=(n, d))
        z *= (special.gammaincinv(d, u) / epsilon / np.linalg.norm(z, axis=1))[:, None]
        reports = points + z
        left = np.flatnonzero(rng.random(n) >= mass / (mass + rest))
        while left.size:
            reports[left] = rng.random((left.size, d)) * (1 + 2 * L) - L
            near = np.linalg.norm(reports[left] - points[left], axis=1) <= L
            left = left[near]
        return KMeans(k, n_init=10, random_state=trial).fit(reports).cluster_centers_

    return run


MAIN: dict[str, Centres] = {
    "**demur** (BPM, L auto, noise-aware)": private("noise_aware"),
    "BPM, L auto, clip": private("clip"),
    "BPM, L auto, plain": private("plain"),
    "BPM, L = 0.5, noise-aware": private("noise_aware", 0.5),
    "paper: BPM, L = 0.5, plain": private("plain", 0.5),
    "paper: BPM, L = 0.3, plain": private("plain", 0.3),
    "seed's sampler, L = 0.5, plain (NOT PRIVATE)": seed_sampler(0.5),
    "seed's sampler, L = 0.3, plain (NOT PRIVATE)": seed_sampler(0.3),
    "multivariate Laplace, noise-aware": private("noise_aware", mechanism="laplace"),
    "Laplace per dimension, noise-aware": private(
        "noise_aware", mechanism="laplace_per_dimension"
    ),
    "Gaussian, noise-aware": private("noise_aware", mechanism="gaussian"),
    "Laplace per dimension, clip": private("clip", mechanism="laplace_per_dimension"),
    "Gaussian, clip": private("clip", mechanism="gaussian"),
}
OURS = next(iter(MAIN))
SHORT = [*list(MAIN)[:5], "seed's sampler, L = 0.5, plain (NOT PRIVATE)"]
# Where one noise-aware fit takes ten seconds: ours, and everything that is quick.
QUICK = [n for n in MAIN if n == OURS or ("aware" not in n and "0.3" not in n)]


# -- families, ten paired draws ------------------------------------------------------


def mixed(
    name: str, centers: np.ndarray, weights: list[float], width: float, n: int
) -> Task:
    """Round clusters of one width at given centres, clipped to the cube."""
    rng = np.random.default_rng(len(name))
    shares = np.array(weights) / np.sum(weights)
    which = rng.choice(len(centers), n, p=shares)
    drawn = centers[which] + width * rng.normal(size=(n, centers.shape[1]))
    return Task(name, np.clip(drawn, 0.0, 1.0), len(centers))


def scaled(name: str, X: np.ndarray, k: int) -> Task:
    low, high = X.min(axis=0), X.max(axis=0)
    return Task(name, (X - low) / np.where(high > low, high - low, 1.0), k)


def minority(n: int = 30_120) -> Task:
    centers = np.array([[0.25, 0.25], [0.7, 0.3], [0.3, 0.75], [0.85, 0.85]])
    rest = (1 - 1 / 120) / 3
    return mixed("minority of 1 in 120", centers, [rest] * 3 + [1 / 120], 0.05, n)


def unbalanced(n: int) -> Task:
    centers = np.array([[0.2, 0.3], [0.75, 0.7], [0.8, 0.15]])
    return mixed(f"unbalanced 100:10:1, n = {n:,}", centers, [100, 10, 1], 0.06, n)


def anisotropic(n: int) -> Task:
    X, _ = make_blobs(n, 2, centers=4, cluster_std=0.6, random_state=4)
    turned = X @ np.array([[0.6, -0.6], [-0.4, 0.8]])
    return scaled(f"anisotropic, n = {n:,}", turned, 4)


def fifteen(n: int = 15_000) -> Task:
    grid = np.array([[i / 4, j / 2] for i in range(5) for j in range(3)]) * 0.8 + 0.1
    return mixed("fifteen clusters", grid, [1.0] * 15, 0.03, n)


def uniform(n: int = 3000) -> Task:
    return Task("uniform", np.random.default_rng(6).random((n, 2)), 5)


def many_dimensions(d: int, n: int = 3000) -> Task:
    rng = np.random.default_rng(d)
    centers = np.clip(0.5 + 0.12 * rng.normal(size=(6, d)), 0.1, 0.9)
    return mixed(f"six clusters, d = {d}, n = {n:,}", centers, [1.0] * 6, 0.1, n)


def separated(d: int, n: int) -> Task:
    centers = 0.1 + 0.8 * np.random.default_rng(d).random((4, d))
    return mixed(f"four far clusters, d = {d}, n = {n}", centers, [1.0] * 4, 0.1, n)


def patches(n: int = 3000) -> Task:
    image = load_sample_image("china.jpg") / 255.0
    rng = np.random.default_rng(1)
    rows = rng.integers(0, image.shape[0] - 4, n)
    columns = rng.integers(0, image.shape[1] - 4, n)
    cut = [
        image[y : y + 4, x : x + 4].ravel() for y, x in zip(rows, columns, strict=True)
    ]
    return Task("4 x 4 colour patches", np.stack(cut), 8)


FAMILIES: list[tuple[Callable[[], Task], list[float]]] = [
    (lambda: unbalanced(300), [1.0, 2.0]),
    (lambda: unbalanced(3000), [4.0]),
    (lambda: anisotropic(300), [2.0]),
    (lambda: anisotropic(3000), [4.0]),
    (uniform, [4.0]),
    (lambda: blobs(300), [1.0, 2.0, 4.0]),
    (lambda: real("digits"), [4.0, 8.0]),
    (patches, [4.0, 8.0]),
    (lambda: many_dimensions(32), [8.0]),
    (lambda: many_dimensions(64, 400), [4.0, 8.0]),
    (lambda: separated(64, 400), [4.0, 8.0]),
    (minority, [8.0]),
    (fifteen, [8.0]),
]


def paired(task: Task, mechanism: BPM, draws: int) -> dict[str, list[float]]:
    """SSE ratios of all decoders on the same reports, draw for draw."""
    best, k = task.best, task.k
    found: dict[str, list[float]] = {}
    d = task.points.shape[1]
    event = mechanism.event(ReplaceOne())
    price = float(getattr(event, "epsilon", math.nan))

    def add(name: str, centers: np.ndarray) -> None:
        found.setdefault(name, []).append(assign(task.points, centers)[1] / best)

    def decoded(reports: Reports, decoder: str, draw: int) -> np.ndarray:
        model = PrivateKMeans(k, random_state=draw, decoder=decoder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsupportedClusters)
            return model.fit_reports(reports).cluster_centers_

    planar = BPM(mechanism.epsilon, math.inf, d)
    by_coordinate = LaplaceReports(mechanism.epsilon, d)
    for draw in range(draws):
        reports = mechanism.privatize(task.points).value
        start = time.process_time()
        add("demur", decoded(reports, "noise_aware", draw))
        found.setdefault("seconds", []).append(time.process_time() - start)
        add("clip", decoded(reports, "clip", draw))
        add("plain", decoded(reports, "plain", draw))
        rows = reports.values
        if d > k:
            pca = PCA(k, random_state=draw).fit(rows)
            kmeans = KMeans(k, n_init=10, random_state=draw).fit(pca.transform(rows))
            add("PCA + k-means", pca.inverse_transform(kmeans.cluster_centers_))
        add("copies", np.clip(mechanism.unbiased(rows).mean(axis=0), 0, 1)[None])
        for name, other in (("planar Laplace", planar), ("per coord.", by_coordinate)):
            add(f"{name}, clip", decoded(other.privatize(task.points).value, "clip", 0))
        if price <= 40.0 and d <= 64:
            grid = GridResponse(price, d, max(1, min(3, 64 // d)))
            add("grid, clip", decoded(grid.privatize(task.points).value, "clip", 0))
        central = CentralKMeans(k, epsilon=price, random_state=draw)
        add("central", central.fit(task.points).cluster_centers_)
    for cells in diffprivlib(task, [price], draws).values():
        found["diffprivlib"] = [cell / best for cell in cells[0]]
    return found


def run_families(draws: int, only: str = "") -> dict[str, object]:
    """Means of ten paired draws, one line as soon as it is there."""
    print(
        f"\n### Families: means of {draws} paired draws; epsilon per unit of the cube\n"
    )
    names = ["demur", "clip", "plain", "PCA + k-means", "copies"]
    names += ["planar Laplace, clip", "per coord., clip", "grid, clip"]
    names += ["central", "diffprivlib"]
    print("| data | eps | " + " | ".join(names) + " | s |  |")
    print("|---|---|" + "---|" * (len(names) + 2))
    kept: dict[str, object] = {}
    for make, epsilons in FAMILIES:
        task = make()
        if only not in task.name:
            continue
        for epsilon in epsilons:
            bpm = BPM(epsilon, "auto", task.points.shape[1])
            found = paired(task, bpm, draws)
            means = {name: float(np.mean(cells)) for name, cells in found.items()}
            cells = [f"{means[n]:.3g}" if n in means else "" for n in names]
            rival = min(means["clip"], means["plain"])
            verdict = "LOSS" if means["demur"] > 1.1 * rival else ""
            line = " | ".join([task.name, f"{epsilon:g}", *cells])
            print(f"| {line} | {means['seconds']:.1f} | {verdict} |", flush=True)
            kept[f"{task.name}, eps {epsilon:g}"] = found
            (OUT / "cluster_families.json").write_text(json.dumps(kept, indent=1))
    return kept


def run_price(draws: int) -> dict[str, object]:
    """L at equal price of any replacement: what `for_unit` takes, and others."""
    print(f"\n### Equal price of any replacement: means of {draws} draws\n")
    print("| data | price | for_unit: L | ratio | L = 0.5 | alpha 0.99 |")
    print("|---|---|---|---|---|---|")
    kept: dict[str, object] = {}
    tasks = [(blobs(10_000), [2.0, 4.0]), (china(10_000), [4.0])]
    tasks += [(mixed8(), [8.0])]
    for task, prices in tasks:
        n, d = task.points.shape
        for price in prices:
            chosen = BPM.for_unit(ReplaceOne(), price=price, dimension=d, n=n)
            whole = BPM(price / math.sqrt(d), "auto", d)
            rivals = [chosen, BPM(price / 0.5, 0.5, d), whole]
            means = []
            for mechanism in rivals:
                ratios = []
                for draw in range(draws):
                    model = PrivateKMeans(
                        task.k, random_state=draw, mechanism=mechanism
                    )
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UnsupportedClusters)
                        centers = model.fit(task.points).cluster_centers_
                    ratios.append(assign(task.points, centers)[1] / task.best)
                means.append(float(np.mean(ratios)))
            cells = " | ".join(f"{mean:.3g}" for mean in means)
            print(f"| {task.name} | {price:g} | {chosen.L:.3g} | {cells} |", flush=True)
            kept[f"{task.name}, price {price:g}"] = means
    return kept


def mixed8() -> Task:
    rng = np.random.default_rng(8)
    centers = 0.15 + 0.7 * rng.random((4, 8))
    return mixed("four clusters, d = 8", centers, [1.0] * 4, 0.06, 10_000)


def run_steady(sets: int = 3, fits: int = 6) -> None:
    """Fits of one set of reports that differ in their random_state alone."""
    print(f"\n### {fits} fits of one set of reports: smallest and largest ratio\n")
    cases = [(blobs(300), 4.0), (blobs(300), 2.0), (anisotropic(300), 2.0)]
    cases += [(unbalanced(300), 2.0), (real("iris"), 4.0), (separated(64, 400), 8.0)]
    for task, epsilon in cases:
        best = task.best
        for _ in range(sets):
            bpm = BPM(epsilon, "auto", task.points.shape[1])
            reports = bpm.privatize(task.points).value
            ratios = []
            for seed in range(fits):
                model = PrivateKMeans(task.k, random_state=seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UnsupportedClusters)
                    centers = model.fit_reports(reports).cluster_centers_
                ratios.append(assign(task.points, centers)[1] / best)
            low, high = min(ratios), max(ratios)
            print(
                f"{task.name}, epsilon {epsilon:g}: {low:.3f} to {high:.3f},"
                f" {high / low - 1:.1%} apart",
                flush=True,
            )


def median_ratio(
    method: Centres, task: Task, best: float, epsilon: float, runs: int
) -> list[float]:
    return [
        assign(task.points, method(task.points, task.k, epsilon, trial))[1] / best
        for trial in range(runs)
    ]


def table(
    task: Task, epsilons: list[float], runs: int, names: list[str] | None = None
) -> dict[str, list[float]]:
    """Medians by method and epsilon; a method that cannot run says why in its row."""
    best = task.best
    slow = runs if task.points.size * task.k < 10_000 else max(3, runs // 5)
    print(
        f"\n### {task.name}: d = {task.points.shape[1]}, K = {task.k}, non-private SSE"
        f" {best:.4g}; medians of {runs}, noise-aware of {slow}\n"
    )
    print("| method | " + " | ".join(f"eps {e:g}" for e in epsilons) + " | s per fit |")
    print("|---|" + "---|" * (len(epsilons) + 1))
    rows: dict[str, list[float]] = {}
    for name in names or list(MAIN):
        count = slow if "noise-aware" in name else runs
        start = time.perf_counter()
        try:
            found = [median_ratio(MAIN[name], task, best, e, count) for e in epsilons]
        except (ValueError, OverflowError, DemurError) as error:
            print(f"| {name} | fails: {str(error)[:60]} |", flush=True)
            continue
        each = (time.perf_counter() - start) / count / len(epsilons)
        rows[name] = [float(np.median(cell)) for cell in found]
        shown = " | ".join(f"{x:.3g}" for x in rows[name])
        print(f"| {name} | {shown} | {each:.2f} |", flush=True)
    for name, cells in diffprivlib(task, epsilons, min(runs, 20)).items():
        rows[name] = [float(np.median(c)) / best for c in cells]
        print(f"| {name} | {' | '.join(f'{x:.3g}' for x in rows[name])} | |")
    floors = [task.floor(e, best) for e in epsilons]
    print(f"| floor | {' | '.join(f'{x:.3g}' for x in floors)} | |", flush=True)
    rows["floor"] = floors
    return rows


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import KMeans
warnings.simplefilter("ignore")
X = np.load(sys.argv[1])
k, runs = int(sys.argv[2]), int(sys.argv[4])
box = (np.zeros(X.shape[1]), np.ones(X.shape[1]))
print(json.dumps([
    [KMeans(k, epsilon=e, bounds=box).fit(X).cluster_centers_.tolist()
     for _ in range(runs)]
    for e in json.loads(sys.argv[3])
]))
"""


def diffprivlib(
    task: Task, epsilons: list[float], runs: int
) -> dict[str, list[list[float]]]:
    name = "diffprivlib KMeans (central)"
    if not PEERS.exists():
        print(f"| {name}: not installed, run `make peers` |")
        return {}
    OUT.mkdir(exist_ok=True)
    np.save(OUT / "peer_points.npy", task.points)
    asked = [str(OUT / "peer_points.npy"), str(task.k), json.dumps(epsilons), str(runs)]
    done = subprocess.run(
        [str(PEERS), "-c", PEER, *asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"| {name}: failed, {done.stderr[-200:]!r} |")
        return {}
    cells = json.loads(done.stdout)
    return {
        name: [[assign(task.points, np.array(c))[1] for c in cell] for cell in cells]
    }


# -- parts ---------------------------------------------------------------------------


def verdict(what: str, found: float, target: float) -> None:
    word = "met" if found <= target else "MISSED"
    print(
        f"\ntarget, {what}: at most {target:g}, found {found:.3f}: {word}", flush=True
    )


def headline(
    task: Task, epsilon: float, runs: int, target: float = math.inf
) -> list[float]:
    """The figure that may have a target, on more runs than the tables have."""
    found = median_ratio(MAIN[OURS], task, task.best, epsilon, runs)
    low, middle, high = (float(x) for x in np.percentile(found, [10, 50, 90]))
    print(
        f"\n{task.name}, epsilon {epsilon:g}, {runs} runs: median {middle:.3f}, 10-90%"
        f" {low:.3f} to {high:.3f}"
    )
    if math.isfinite(target):
        verdict(f"{task.name}, epsilon {epsilon:g}", middle, target)
    return [low, middle, high]


def run_blobs(n: int, few: int, names: list[str] | None = None) -> dict[str, object]:
    return {f"n = {n}": table(blobs(n), [1.0, 2.0, 4.0, 8.0], few, names)}


def run_small(runs: int, few: int) -> dict[str, object]:
    kept: dict[str, object] = {"small, eps 4": headline(blobs(300), 4.0, runs, 2.8)}
    return kept | run_blobs(300, 3 * few)


def run_middle(few: int) -> dict[str, object]:
    kept: dict[str, object] = {"middle, eps 4": headline(blobs(3000), 4.0, 20)}
    return kept | run_blobs(3000, few, SHORT)


def run_big(few: int) -> dict[str, object]:
    kept: dict[str, object] = {"big, eps 4": headline(blobs(30_000), 4.0, 20, 1.05)}
    return kept | run_blobs(30_000, few, SHORT)


def run_china(few: int) -> dict[str, object]:
    kept: dict[str, object] = {"china, eps 4": headline(china(), 4.0, 5, 1.5)}
    return kept | {"china": table(china(), [2.0, 4.0, 8.0, 16.0], few, QUICK)}


def run_real(sets: list[str], few: int) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name in sets:
        if name == "adult" and not (DATA / "adult.npz").exists():
            print(f"\nno data at {DATA}: set DEMUR_DATA. Adult was not measured.")
            continue
        epsilons = [4.0, 8.0, 16.0, 32.0] if name == "digits" else [2.0, 4.0, 8.0, 16.0]
        small = name in ("iris", "wine")
        names = [n for n in MAIN if "0.3" not in n] if small else QUICK
        kept[name] = table(real(name), epsilons, few, names)
    return kept


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
before, start = peak(), time.perf_counter()
model = PrivateKMeans(5, epsilon=epsilon, random_state=0).fit_reports(reports, bpm)
taken = time.perf_counter() - start
found = model.cluster_centers_
worst = np.linalg.norm(found[:, None] - centres[None], axis=2).min(axis=0).max()
print(taken, before, peak(), worst)
"""


def run_large(n: int = 1_000_000) -> None:
    print(f"\n### Noise-aware fit, n = {n:,}, d = 2, K = 5 (in a process of its own)\n")
    print(
        "| epsilon | s | peak GiB (before the fit) | farthest centre from the truth |"
    )
    print("|---|---|---|---|")
    for epsilon in (2.0, 4.0):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(n), str(epsilon)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        taken, before, peak, worst = map(float, done.stdout.split()[-4:])
        print(
            f"| {epsilon:g} | {taken:.1f} | {peak:.2f} ({before:.2f}) | {worst:.4f} |"
        )
        verdict(f"seconds at epsilon {epsilon:g}", taken, 60.0)
        verdict(f"GiB at epsilon {epsilon:g}", peak, 2.0)


def run_plot() -> None:
    """Pictures from the figures of the last run, in out/cluster.json."""
    with (OUT / "cluster.json").open() as file:
        kept = json.load(file)
    names = {
        "demur: noise-aware": OURS,
        "clip": "BPM, L auto, clip",
        "plain": "BPM, L auto, plain",
        "paper: L 0.5, plain": "paper: BPM, L = 0.5, plain",
        "seed (not private)": "seed's sampler, L = 0.5, plain (NOT PRIVATE)",
        "floor": "floor",
    }
    colours = ("#2f6f8f", "#5b8c3a", "#c98a1b", "#a06bb0", "#b3412f", "#8a97a6")
    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    sizes, epsilons = [300, 3000, 30_000], [1.0, 2.0, 4.0, 8.0]
    for (short, name), colour in zip(names.items(), colours, strict=True):
        style = {"color": colour, "label": short}
        style["linestyle"] = ":" if short == "floor" else "-"
        by_size = [kept[f"n = {n}"][name][2] for n in sizes]
        if name == OURS:  # on more runs
            by_size = [kept[f"{w}, eps 4"][1] for w in ("small", "middle", "big")]
        axes[0].plot(sizes, by_size, marker="o", **style)
        axes[1].plot(epsilons, kept["n = 30000"][name], marker="o", **style)
        if "china" in kept and name in kept["china"]:
            axes[2].plot([2, 4, 8, 16], kept["china"][name], marker="o", **style)
    axes[0].set(title="blobs, epsilon 4", xlabel="n", xscale="log")
    axes[1].set(title="blobs, n = 30,000", xlabel="epsilon")
    axes[2].set(title="china.jpg, 30,000 pixels, K = 8", xlabel="epsilon")
    for one in axes:
        one.set_yscale("log")
        one.axhline(1.0, color="#1d2733", linewidth=0.8)
    for one in axes[1:]:
        one.set_xscale("log", base=2)
    axes[0].set_ylabel("SSE / non-private SSE")
    axes[1].legend(frameon=False, fontsize="small")
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=90)
    print(f"written: {PLOT} ({PLOT.stat().st_size // 1024} kB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["small", "middle", "big", "china", "real", "families", "price", "steady"]
    parts += ["speed", "large", "plot"]
    parser.add_argument("--part", nargs="*", default=parts, choices=parts)
    sets = ["iris", "wine", "digits", "adult"]
    parser.add_argument("--sets", nargs="*", default=sets, choices=sets)
    parser.add_argument("--draws", type=int, default=10, help="of families, prices")
    parser.add_argument("--only", default="", help="families with this in their name")
    parser.add_argument("--runs", type=int, default=200, help="of the first figure")
    parser.add_argument("--few", type=int, default=15, help="of each cell elsewhere")
    options = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, numpy {np.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    OUT.mkdir(exist_ok=True)
    store = OUT / "cluster.json"
    kept = json.loads(store.read_text()) if store.exists() else {}
    for part, run in (
        ("small", lambda: run_small(options.runs, options.few)),
        ("middle", lambda: run_middle(options.few)),
        ("big", lambda: run_big(options.few)),
        ("china", lambda: run_china(options.few)),
        ("real", lambda: run_real(options.sets, options.few)),
    ):
        if part in options.part:
            kept |= run()
            store.write_text(json.dumps(kept, indent=1))
    if "families" in options.part:
        run_families(options.draws, options.only)
    if "price" in options.part:
        run_price(options.draws)
    if "steady" in options.part:
        run_steady()
    if "speed" in options.part:
        run_speed()
    if "large" in options.part:
        run_large()
    if "plot" in options.part:
        run_plot()


if __name__ == "__main__":
    main()
