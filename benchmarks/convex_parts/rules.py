"""Prototype rules under unequal class sizes: the Bayes rule against two simpler ones.

    python benchmarks/convex_parts/rules.py [--draws 20] [--only banking] [--any]

All rules see the same released prototypes: the differences are paired. The rule has no
settings; docs/convex.md says on what it was developed. Every cell is written to
out/convex_rules.jsonl as it comes, and a second run goes on where the first stopped.
Sets "of a tenth" have a tenth of the training rows (one of a class at least), so that
noise drowns most classes. `--any` takes any replacement in place of a radius of 0.42.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import t as student
from sklearn.datasets import load_digits

from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import clip_rows, normalize_rows

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))
OUT = Path("out") / "convex_rules.jsonl"
BALL, DELTA = Ball(0.42, space="records"), 1e-6
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
RULES = ("rule", "as drawn", "one length")

Array = np.ndarray
Data = tuple[Array, Array, Array, Array]


def banking() -> Data:
    with np.load(DATA / "banking77_minilm_f16.npz") as data:
        rows = [clip_rows(data[k].astype(np.float64), 1.0).data for k in ("Xtr", "Xte")]
        return rows[0], data["ytr"].astype(int), rows[1], data["yte"].astype(int)


def adult() -> Data:
    with np.load(DATA / "adult.npz") as data:
        rows = [normalize_rows(data[k]).data for k in ("Xtr", "Xte")]
        return rows[0], data["ytr"].astype(int), rows[1], data["yte"].astype(int)


def digits() -> Data:
    X, y = load_digits(return_X_y=True)
    X = normalize_rows(X).data
    train = np.random.default_rng(0).random(len(y)) < 0.7
    return X[train], y[train], X[~train], y[~train]


def mixture(classes: int, d: int, separation: float) -> Data:
    """Gaussian classes whose spectrum falls as 1/j, half of the rows for the test."""
    rng = np.random.default_rng(classes)
    means = rng.normal(size=(classes, d))
    means *= separation / np.linalg.norm(means, axis=1, keepdims=True)
    spectrum = 1.0 / np.arange(1, d + 1)
    y = np.arange(8000) % classes
    noise = rng.normal(size=(8000, d)) * 0.6 * np.sqrt(spectrum / spectrum.sum())
    X = clip_rows(means[y] + noise, 1.0).data
    return X[:4000], y[:4000], X[4000:], y[4000:]


def ordered(classes: int, d: int) -> Data:
    """The same with means on a line: ordered classes, which the rule does not model."""
    rng = np.random.default_rng(100 + classes)
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    steps = np.linspace(-0.6, 0.6, classes)
    spectrum = 1.0 / np.arange(1, d + 1)
    y = np.arange(8000) % classes
    noise = rng.normal(size=(8000, d)) * 0.4 * np.sqrt(spectrum / spectrum.sum())
    X = clip_rows(steps[y][:, None] * direction + noise, 1.0).data
    return X[:4000], y[:4000], X[4000:], y[4000:]


def shares(classes: int, shape: str) -> Array:
    """How much of each class is kept: all, one class less, or a geometric series."""
    kind, ratio = (shape.split() + ["1"])[:2]
    if kind == "one":
        return np.array([1.0 / float(ratio)] + [1.0] * (classes - 1))
    if kind == "series":
        return float(ratio) ** -(np.arange(classes) / (classes - 1))
    return np.ones(classes)


def subset(data: Data, classes: Array, shape: str) -> Data:
    """Some classes of a set, equal in size and then cut as `shape` says."""
    rng, parts = np.random.default_rng(7), []
    for X, y in (data[:2], data[2:]):
        size = min(int((y == c).sum()) for c in classes)
        keep, labels = [], []
        for k, (c, share) in enumerate(
            zip(classes, shares(len(classes), shape), strict=True)
        ):
            index = rng.permutation(np.flatnonzero(y == c))
            index = index[: max(1, round(size * share))]
            keep.append(index)
            labels.append(np.full(len(index), k))
        parts += [X[np.concatenate(keep)], np.concatenate(labels)]
    return parts[0], parts[1], parts[2], parts[3]


def tenth(data: Data) -> Data:
    """A tenth of the training rows of each class, and all test rows."""
    X, y, Xt, yt = data
    rng = np.random.default_rng(3)
    keep = []
    for c in np.unique(y):
        index = rng.permutation(np.flatnonzero(y == c))
        keep.append(index[: max(1, len(index) // 10)])
    few = np.concatenate(keep)
    return X[few], y[few], Xt, yt


def cells() -> Iterator[tuple[str, Data]]:
    sets = {"banking": banking, "digits": digits, "adult": adult}
    for name, load in sets.items():
        if name != "digits" and not DATA.exists():
            print(f"no data at {DATA}: {name} is left out. Set DEMUR_DATA.")
            continue
        data = load()
        yield f"{name}, as it is", data
        total = int(data[1].max()) + 1
        rng = np.random.default_rng(11)
        for some in {"banking": (6, 20), "digits": (10,), "adult": (2,)}[name]:
            classes = np.sort(rng.permutation(total)[:some])
            for shape in ("equal", "one 14", "one 100", "series 100"):
                if some > 2 or shape != "series 100":
                    cut = subset(data, classes, shape)
                    yield f"{name}, {some} classes, {shape}", cut
                    yield f"{name}, {some} classes, {shape}, of a tenth", tenth(cut)
    for some, d, separation in ((5, 100, 0.3), (20, 50, 0.5)):
        data = mixture(some, d, separation)
        for shape in ("equal", "one 14", "one 100", "series 100"):
            name = f"mixture of {some} in {d} dimensions, {shape}"
            cut = subset(data, np.arange(some), shape)
            yield name, cut
            yield f"{name}, of a tenth", tenth(cut)
    for some in (4, 8):
        for shape in ("equal", "series 100"):
            name = f"{some} ordered classes in 30 dimensions, {shape}"
            yield name, subset(ordered(some, 30), np.arange(some), shape)


def as_drawn(prototypes: Array, sigma: Array, X: Array) -> Array:
    """The nearest prototype as it was released."""
    return (2.0 * X @ prototypes.T - (prototypes**2).sum(axis=1)).argmax(axis=1)


def one_length(prototypes: Array, sigma: Array, X: Array) -> Array:
    """Known noise taken off the lengths, which are shrunk; directions as released."""
    precision = 1.0 / sigma**2
    centre = precision @ prototypes / precision.sum()
    away = prototypes - centre
    variance = np.maximum(sigma**2 - 1.0 / precision.sum(), 0.0)
    d = away.shape[1]
    estimates = (away**2).sum(axis=1) - d * variance
    spread = 2.0 * d * variance**2
    level = max(np.average(estimates, weights=1.0 / np.maximum(spread, 1e-290)), 0.0)
    spread = spread + 4.0 * variance * level
    weights = 1.0 / np.maximum(spread, 1e-290)
    level = max(np.average(estimates, weights=weights), 0.0)
    between = np.average((estimates - level) ** 2 - spread, weights=weights)
    if between > 0.0:
        level = level + (estimates - level) * between / (between + spread)
    return (2.0 * (X - centre) @ away.T - level).argmax(axis=1)


def measure(
    data: Data, epsilon: float, draws: int, unit: Ball | ReplaceOne = BALL
) -> dict[str, list[list[float]]]:
    """Accuracy and balanced accuracy of each rule, draw by draw."""
    X, y, Xt, yt = data
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    classes = list(range(int(y.max()) + 1))
    for _ in range(draws):
        head = BallPrototypeClassifier(
            epsilon=epsilon, delta=DELTA, unit=unit, classes=classes
        ).fit(X, y)
        released = head.prototypes_, np.asarray(head.privacy_.sigma), Xt
        for rule, predicted in zip(
            RULES,
            (head.predict(Xt), as_drawn(*released), one_length(*released)),
            strict=True,
        ):
            right = predicted == yt
            by_class = [float(right[yt == c].mean()) for c in np.unique(yt)]
            found[rule].append([float(right.mean()), float(np.mean(by_class))])
    return found


def row(cell: str, epsilon: float, found: dict[str, list[list[float]]]) -> str:
    """One line of the table: means, and the paired difference with its interval."""
    values = np.array([found[rule] for rule in RULES])
    accuracy, balanced = values[:, :, 0], values[:, :, 1].mean(axis=1)
    means = accuracy.mean(axis=1)
    better = 1 + int(means[2] > means[1])
    difference = accuracy[0] - accuracy[better]
    n = len(difference)
    wide = student.ppf(0.975, n - 1) * difference.std(ddof=1) / np.sqrt(n)
    columns = [
        cell,
        f"{epsilon:g}",
        *(f"{m:.3f}" for m in means),
        f"{difference.mean():+.3f} ± {wide:.3f}",
        " / ".join(f"{b:.3f}" for b in balanced),
    ]
    return "| " + " | ".join(columns) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--any", action="store_true", help="any replacement")
    options = parser.parse_args()
    unit: Ball | ReplaceOne = ReplaceOne() if options.any else BALL
    OUT.parent.mkdir(exist_ok=True)
    done = {}
    if OUT.exists():
        lines = [json.loads(line) for line in OUT.read_text().splitlines()]
        done = {
            (d["cell"], d["epsilon"]): d["found"]
            for d in lines
            if d["draws"] == options.draws and d["unit"] == str(unit)
        }
    print(
        "| set | epsilon | rule | as drawn | one length | rule less the better of both"
        " | balanced accuracy of the three |\n|---|---|---|---|---|---|---|"
    )
    for cell, data in cells():
        if options.only not in cell:
            continue
        for epsilon in EPSILONS:
            found = done.get((cell, epsilon))
            if found is None:
                found = measure(data, epsilon, options.draws, unit)
                line = {"cell": cell, "epsilon": epsilon, "draws": options.draws}
                line |= {"unit": str(unit)}
                with OUT.open("a") as file:
                    file.write(json.dumps(line | {"found": found}) + "\n")
            print(row(cell, epsilon, found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
