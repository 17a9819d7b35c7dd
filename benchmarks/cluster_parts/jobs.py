"""What benchmarks/cluster.py measures, as jobs of their own, in one process or in many.

A job is one draw of one row of a table: everything that is measured on one set of
reports. Jobs are functions of names and numbers, so that any process can do any of
them; the parent alone writes what they found. Every process has one thread.

First come the rows with an aim, the prices and the fits of one set of reports, then all
rows, draw by draw: whenever a run is stopped, all rows have about as many draws.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import numpy as np
from cluster_parts import sets
from cluster_parts.draws import (
    PEERS,
    Kept,
    decoded,
    diffprivlib,
    noise_of,
    one_draw,
    price_of,
    ratio,
)
from cluster_parts.sets import FAMILIES, Task

from demur import ReplaceOne
from demur.cluster.decoding import search
from demur.cluster.rows.ranked_rows import RankedRows, RowsInMemory, in_order
from demur.mechanisms import BPM, Reports

# What must be reached: statistic, figure, and how many draws it is taken over.
AIMS = {
    ("blobs, n = 300", 4.0): (np.median, 2.8, 40),
    ("blobs, n = 30,000", 4.0): (np.median, 1.05, 10),
    ("china.jpg, 30,000 pixels", 4.0): (np.median, 1.5, 10),
    ("minority of 1 in 120", 8.0): (np.mean, 1.1, 100),  # it was lost in 1 of 10
    ("digits, d = 64", 4.0): (np.mean, 1.9, 10),
}
# Of few points the ratio varies much from draw to draw (28 +- 5 over ten of them), so
# that ten do not tell a loss of a tenth from chance.
FEW_POINTS, DRAWS_OF_FEW = 300, 40
# Of many points the other methods differ by little from draw to draw.
MANY_POINTS, DRAWS_OF_MANY = 3000, 3
RIVALS = ("for_unit", "L = 0.5", "alpha 0.99")
REPEATS = 3


@dataclass(frozen=True)
class Job:
    """One draw: its kind, the set of points by its place, and which draw."""

    kind: str
    place: int
    epsilon: float  # or the price
    draw: int
    name: str = ""  # of a mechanism, for prices
    others: bool = True  # whether the other methods are measured as well

    def key(self, method: str) -> str:
        """What the result of a method is kept under."""
        task = task_of(self.kind, self.place)
        front = f"{self.kind}|{task.name}|{self.epsilon:g}"
        draw = "all" if method == "diffprivlib" else self.draw
        return f"{front}|{method}|{draw}"

    @property
    def last(self) -> str:
        """The key that is there when the job is done."""
        if self.kind in ("steady", "unseeded"):
            task = task_of(self.kind, self.place)
            return f"{self.kind}|{task.name}|{self.epsilon:g}|{self.draw}|"
        return self.key(self.name or "demur")


@cache
def prices() -> list[tuple[Task, float]]:
    """Sets and prices at which L is compared."""
    blobs = sets.blobs(10_000)
    return [
        (blobs, 2.0),
        (blobs, 4.0),
        (sets.china(10_000), 4.0),
        (sets.four_in_eight(), 8.0),
    ]


@cache
def steady_cases() -> list[tuple[Task, float]]:
    """Sets and epsilons at which one set of reports is fitted six times."""
    return [
        (sets.blobs(300), 4.0),
        (sets.blobs(300), 2.0),
        (sets.anisotropic(300), 2.0),
        (sets.unbalanced(300), 2.0),
        (sets.iris(), 4.0),
        (sets.separated(64, 400), 8.0),
    ]


@cache
def family(place: int) -> Task:
    """A set of points of `FAMILIES`."""
    return FAMILIES[place][0]()


def task_of(kind: str, place: int) -> Task:
    """The set of points of a job."""
    if kind == "family":
        return family(place)
    return (prices() if kind == "price" else steady_cases())[place][0]


@cache
def rival(place: int, price: float, name: str) -> BPM:
    """A mechanism of that price of any replacement."""
    n, d = prices()[place][0].points.shape
    if name == "for_unit":
        return BPM.for_unit(ReplaceOne(), price=price, dimension=d, n=n)
    if name == "L = 0.5":
        return BPM(price / 0.5, 0.5, d)
    return BPM(price / np.sqrt(d), "auto", d)


def wanted(task: Task, only: tuple[str, ...]) -> bool:
    """Whether the set was asked for."""
    return not only or any(name in task.name for name in only)


@cache
def rows(only: tuple[str, ...]) -> list[tuple[int, Task, float]]:
    """Rows of the table of families: the place of the set, the set, and epsilon."""
    found = []
    for place, (make, epsilons) in enumerate(FAMILIES):
        if make is sets.adult and not (sets.DATA / "adult.npz").exists():
            print(f"no data at {sets.DATA}: set DEMUR_DATA. Adult was not measured.")
            continue
        task = family(place)
        if wanted(task, only):
            found += [(place, task, each) for each in epsilons]
    return found


def draws_of(task: Task, draws: int) -> int:
    """How many draws a row of the table has."""
    few = len(task.points) <= FEW_POINTS and task.points.shape[1] <= 4
    return max(draws, DRAWS_OF_FEW) if few and draws >= 10 else draws


def jobs(parts: list[str], draws: int, only: tuple[str, ...]) -> list[Job]:
    """All jobs, those that matter most first."""
    found: list[tuple[tuple[int, int], Job]] = []
    if "families" in parts:
        for place, task, epsilon in rows(only):
            n, d = task.points.shape
            count = draws_of(task, draws)
            aim = AIMS.get((task.name, epsilon))
            first = 0 if aim else 1
            for draw in range(max(count, aim[2] if aim else 0)):
                # Draws beyond those of the other rows come last.
                when = (first if draw < draws else 2, draw)
                others = draw < (count if n <= MANY_POINTS else DRAWS_OF_MANY)
                job = Job("family", place, epsilon, draw, others=others)
                found.append((when, job))
                if d <= 16 and draw < count and others:
                    unit = Job("family", place, epsilon, draw, "for_unit")
                    found.append((when, unit))
            if PEERS.exists():
                job = Job("family", place, epsilon, draws, "diffprivlib")
                found.append(((1, draws), job))
    if "price" in parts:
        for place, (task, price) in enumerate(prices()):
            for draw in range(draws if wanted(task, only) else 0):
                for name in RIVALS:
                    found.append(((0, draw), Job("price", place, price, draw, name)))
    if "steady" in parts:
        for place, (task, epsilon) in enumerate(steady_cases()):
            for repeat in range(REPEATS if wanted(task, only) else 0):
                for kind in ("steady", "unseeded"):
                    found.append(((0, repeat), Job(kind, place, epsilon, repeat)))
    found.sort(key=lambda pair: pair[0])
    return [job for _, job in found]


def _seeded_by(seed: int) -> AbstractContextManager[object]:
    """Fits whose order of the reports and whose chains do not follow from those."""

    def shuffled(rows: RankedRows) -> tuple[RowsInMemory, np.random.Generator]:
        rng, held = np.random.default_rng(seed), in_order(rows)
        return RowsInMemory(rng.permutation(held.values), held.row_ids), rng

    return patch.object(search, "shuffled", shuffled)


def measured(job: Job) -> list[tuple[str, list[float]]]:
    """The results of a job by their keys, the one that ends it last."""
    task, draw = task_of(job.kind, job.place), job.draw
    n, d = task.points.shape
    if job.kind in ("steady", "unseeded"):
        mechanism = BPM(job.epsilon, "auto", d)
        source = noise_of(task, draw, f"steady {job.epsilon:g}")
        reports = mechanism.privatize(task.points, source=source).value
        found = []
        for seed in range(6):
            # Other ids and another random_state; unseeded: other chains, too.
            ids = reports.row_ids + np.uint64(seed)
            one = Reports(reports.values, ids, mechanism)
            with _seeded_by(seed) if job.kind == "unseeded" else nullcontext():
                centers = decoded(one, task.k, seed, "noise_aware")
            found.append(ratio(task, centers))
        return [(job.last, found)]
    if job.kind == "family" and not job.name:
        mechanism = BPM(job.epsilon, "auto", d)
        results = one_draw(task, mechanism, draw, alone=not job.others)
        return [(job.key(name), [x]) for name, x in reversed(results.items())]
    if job.name == "diffprivlib":
        price = price_of(BPM(job.epsilon, "auto", d))
        return [(job.last, diffprivlib(task, price, draw))]
    if job.kind == "price":
        mechanism = rival(job.place, job.epsilon, job.name)
    else:
        price = price_of(BPM(job.epsilon, "auto", d))
        mechanism = BPM.for_unit(ReplaceOne(), price=price, dimension=d, n=n)
    source = noise_of(task, draw, f"{job.kind} {job.name} {job.epsilon:g}")
    reports = mechanism.privatize(task.points, source=source).value
    return [(job.last, [ratio(task, decoded(reports, task.k, draw, "noise_aware"))])]


def run(kept: Kept, todo: list[Job], processes: int, seconds: float) -> None:
    """The jobs that are not done yet, until the time is over."""
    left = [job for job in todo if job.last not in kept]
    end = time.monotonic() + seconds
    print(f"{len(todo) - len(left)} of {len(todo)} jobs are done", flush=True)
    for done, results in enumerate(_results(left, processes, end)):
        for key, values in results:
            kept.add(key, values)
        key, values = results[-1]
        print(f"{done + 1} of {len(left)}: {key} {np.round(values, 4)}", flush=True)


def _results(
    left: list[Job], processes: int, end: float
) -> Iterator[list[tuple[str, list[float]]]]:
    if processes == 1:
        for job in left:
            if time.monotonic() > end:
                return
            yield measured(job)
        return
    if not left:
        return
    yield measured(left[0])  # compiled kernels are kept on the disk for all processes
    left = left[1:]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        results = pool.imap_unordered(measured, left)
        for _ in left:
            try:
                yield results.next(min(max(0.0, end - time.monotonic()), 1e6))
            except multiprocessing.TimeoutError:
                print("the time is over", flush=True)
                return
