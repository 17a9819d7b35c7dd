"""Every head at every unit and class balance, with settings from public numbers alone.

    python benchmarks/convex_parts/heads.py [--draws 20] [--only digits]
        [--method prototypes]

Nothing is chosen on the data: heads have their defaults, and lam is "auto". In bold is
what `recommend` names from n, d, K and the class counts (at ReplaceOne without them).
Every draw is written to out/convex_heads.jsonl as it comes, and a second run goes on
where the first stopped. scikit-learn without privacy and diffprivlib (in .peers, pure
epsilon, any replacement) stand beside them. A minimiser is found once for all draws of
its noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).parent))
import rules
from solved_once import solved_once

from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    recommend,
)
from demur.core.adjacency import Ball, ReplaceOne

OUT = Path("out") / "convex_heads.jsonl"
PEERS = Path(".peers/bin/python")
DELTA = 1e-6
EPSILONS = (0.25, 1.0, 8.0)
UNITS = {
    "radius 0.42": Ball(0.42, space="records"),
    "any replacement": ReplaceOne(),
    "radius 0.42, two records each": Ball(0.42, space="records", records_per_person=2),
}
METHODS = ("prototypes", "discriminant", "descent", "output, lam auto")

Make = Callable[[], Any]


def sets() -> Iterator[tuple[str, Callable[[], rules.Data]]]:
    """Balanced and unbalanced sets, each loaded when its turn comes."""

    def cut(load: Callable[[], rules.Data], some: int, shape: str) -> rules.Data:
        data = load()
        total = int(data[1].max()) + 1
        classes = np.sort(np.random.default_rng(11).permutation(total)[:some])
        return rules.subset(data, classes, shape)

    mixture = partial(rules.mixture, 20, 50, 0.5)
    if rules.DATA.exists():
        yield "adult", rules.adult
        yield "adult, one 14", partial(cut, rules.adult, 2, "one 14")
    yield "digits", rules.digits
    yield "digits, series 100", partial(cut, rules.digits, 10, "series 100")
    yield "mixture of 20", mixture
    yield "mixture of 20, series 100", partial(cut, mixture, 20, "series 100")
    if rules.DATA.exists():
        yield "banking, 20 classes, one 14", partial(cut, rules.banking, 20, "one 14")
        yield "banking", rules.banking
    else:
        print(f"no data at {rules.DATA}: adult and banking are left out.")


def heads(data: rules.Data, unit: Ball | ReplaceOne, epsilon: float) -> dict[str, Make]:
    """What each method of the table fits; parameters follow from public numbers."""
    y = data[1]
    classes = int(y.max()) + 1
    linear = BallLogisticRegression if classes == 2 else BallSoftmaxClassifier
    promise: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "unit": unit,
        "classes": list(range(classes)),
    }
    made = (
        partial(BallPrototypeClassifier, **promise),
        partial(BallDiscriminantClassifier, **promise),
        partial(linear, lam=0.0, mechanism="noisy_gd", **promise),
        partial(linear, lam="auto", **promise),
    )
    return dict(zip(METHODS, made, strict=True))


def recommended(data: rules.Data, unit: Ball | ReplaceOne, epsilon: float) -> str:
    """The method that `recommend` names, from public numbers."""
    X, y = data[0], data[1]
    classes = int(y.max()) + 1
    counts = np.bincount(y).tolist() if isinstance(unit, Ball) else None
    best = recommend(
        len(y), X.shape[1], classes, counts, unit=unit, epsilon=epsilon, delta=DELTA
    ).best
    return "descent" if best.mechanism == "noisy_gd" else best.head


def scores(predicted: np.ndarray, truth: np.ndarray) -> list[float]:
    """Accuracy, and its mean over the classes."""
    right = predicted == truth
    by_class = [float(right[truth == c].mean()) for c in np.unique(truth)]
    return [float(right.mean()), float(np.mean(by_class))]


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
with np.load(sys.argv[1]) as data:
    X, y, Xt, yt = (data[k] for k in ("X", "y", "Xt", "yt"))
head = LogisticRegression(epsilon=float(sys.argv[2]), data_norm=1.0, max_iter=200)
for _ in range(int(sys.argv[3])):
    right = head.fit(X, y).predict(Xt) == yt
    found = [float(right[yt == c].mean()) for c in np.unique(yt)]
    print(json.dumps([float(right.mean()), float(np.mean(found))]), flush=True)
"""


def peer(data: rules.Data, epsilon: float, draws: int) -> list[list[float]]:
    """diffprivlib's draws, in its own interpreter."""
    X, y, Xt, yt = data
    place = OUT.parent / "peer_heads.npz"
    # Its rows must obey the norm it is told, to the last bit.
    np.savez(place, X=X * (1 - 1e-9), y=y, Xt=Xt * (1 - 1e-9), yt=yt)
    done = subprocess.run(
        [str(PEERS), "-c", PEER, str(place), str(epsilon), str(draws)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


class Record:
    """The draws that were written so far, by set, unit, epsilon and method."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, dict[str, list[list[float]]]()
        path.parent.mkdir(exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else []:
            row = json.loads(line)
            self.done.setdefault(row["cell"], []).append(row["scores"])

    def complete(
        self, cell: str, draws: int, draw: Callable[[int], list[list[float]]]
    ) -> list[list[float]]:
        """The first `draws` of a cell; `draw(k)` makes some of the k that lack."""
        found = self.done.setdefault(cell, [])
        start = time.perf_counter()
        while len(found) < draws:
            more = draw(draws - len(found))
            with self.path.open("a") as file:
                for one in more:
                    file.write(json.dumps({"cell": cell, "scores": one}) + "\n")
            found.extend(more)
            spent = time.perf_counter() - start
            print(f"{cell}: {len(found)} of {draws}, {spent:.1f} s", file=sys.stderr)
        return found[:draws]


def shown(found: list[list[float]]) -> str:
    """The mean accuracy with its 95% interval, and the mean balanced accuracy."""
    values = np.array(found)
    mean, balanced = values.mean(axis=0)
    n = len(values)
    if n == 1:
        return f"{mean:.3f} / {balanced:.3f}"
    wide = student.ppf(0.975, n - 1) * values[:, 0].std(ddof=1) / np.sqrt(n)
    return f"{mean:.3f} ± {wide:.3f} / {balanced:.3f}"


def table(
    name: str, data: rules.Data, draws: int, record: Record, only: str = ""
) -> None:
    """All methods of one set, a line for each unit and method."""
    X, y, Xt, yt = data
    if only in "not private":
        plain = LogisticRegression(C=10, max_iter=2000)
        exact = record.complete(
            f"{name} | not private",
            1,
            lambda _: [scores(plain.fit(X, y).predict(Xt), yt)],
        )
        everywhere = f"| {shown(exact)} " * len(EPSILONS)
        print(f"| {name} | | scikit-learn, not private {everywhere}|", flush=True)
    for title, unit in UNITS.items():
        best = [recommended(data, unit, epsilon) for epsilon in EPSILONS]
        for method in (m for m in METHODS if only in m):
            cells = []
            for epsilon in EPSILONS:
                make = heads(data, unit, epsilon)[method]

                def draw(_: int, make: Make = make) -> list[list[float]]:
                    return [scores(make().fit(X, y).predict(Xt), yt)]

                key = f"{name} | {title} | {method} | {epsilon:g}"
                cell = shown(record.complete(key, draws, draw))
                chosen = best[EPSILONS.index(epsilon)] == method
                cells.append(f"**{cell}**" if chosen else cell)
            line = " | ".join([name, title, method, *cells])
            print(f"| {line} |", flush=True)
    if only not in "diffprivlib":
        return
    if not PEERS.exists():
        print(f"| {name} | any replacement | diffprivlib is not installed | | | |")
        return
    cells = [
        shown(
            record.complete(
                f"{name} | diffprivlib | {epsilon:g}",
                draws,
                lambda lacking, epsilon=epsilon: peer(data, epsilon, lacking),
            )
        )
        for epsilon in EPSILONS
    ]
    title = "diffprivlib, pure epsilon"
    print(f"| {name} | any replacement | {title} | {' | '.join(cells)} |", flush=True)


def run(draws: int, only: str = "", method: str = "") -> None:
    """Print the tables, going on where an earlier run stopped."""
    record = Record(OUT)
    solved_once()
    print("Accuracy ± its 95% interval / balanced accuracy; in bold: recommended\n")
    print("| set | unit | method |" + "".join(f" epsilon {e:g} |" for e in EPSILONS))
    print("|---|---|---|" + "---|" * len(EPSILONS))
    for name, load in sets():
        if only in name:
            table(name, load(), draws, record, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", default="", help="sets whose name holds this")
    parser.add_argument("--method", default="", help="methods whose name holds this")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(options.draws, options.only, options.method)


if __name__ == "__main__":
    sys.exit(main())
