"""Private heads on real data: demur against the seed's formula and other libraries.

    python benchmarks/convex.py [--draws 20] [--only search]
        [--part heads rules alternatives banking adult time]

Data: $DEMUR_DATA (default ../shared/data), Banking77 sentence embeddings and UCI Adult.
Accuracies are means and standard deviations over draws of the noise. diffprivlib needs
an older scikit-learn and runs in .peers (`make peers`); without it its rows are left
out by name. `heads` and `rules` (convex_parts/) choose nothing on the data: units,
rules, heads and imbalances, resumed where an earlier run stopped. `alternatives` are
heads that were not kept. There and in `banking` and `adult` settings (lam, steps,
learning rates, C) are chosen for every method, peers included, on a public fifth of the
training set, which no private fit sees. The row of a private search chooses among the
settings of all heads above it on the private records and pays for that. `--only` takes
the methods whose name holds a word.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid

sys.path.insert(0, str(Path(__file__).parent / "convex_parts"))
from public_split import PublicSplit, shown
from solved_once import solved_once

from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    HeadForm,
    minimise,
    objective,
)
from demur.convex.heads import linear_base
from demur.convex.sensitivity.form import TAU
from demur.convex.sensitivity.lz import (
    lz_logistic_binary_bound,
    lz_softmax_linear_bound,
)
from demur.core.adjacency import ReplaceOne
from demur.core.bounds import clip_rows, normalize_rows
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.tuning import PrivateGridSearch

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))
PEERS = Path(".peers/bin/python")
DELTA, RADIUS = 1e-6, 0.42
EPSILONS = (1.0, 2.0, 8.0)

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def banking() -> Data:
    with np.load(DATA / "banking77_minilm_f16.npz") as data:
        rows = [clip_rows(data[k].astype(np.float64), 1.0).data for k in ("Xtr", "Xte")]
        return rows[0], data["ytr"].astype(int), rows[1], data["yte"].astype(int)


def adult() -> Data:
    with np.load(DATA / "adult.npz") as data:
        rows = [normalize_rows(data[k]).data for k in ("Xtr", "Xte")]
        return rows[0], data["ytr"].astype(int), rows[1], data["yte"].astype(int)


def row(name: str, cells: list[list[float]], note: str = "") -> None:
    shown = [
        f"{np.mean(c):.3f} ± {np.std(c):.3f}" if len(c) > 1 else f"{c[0]:.3f}"
        for c in cells
    ]
    print("| " + " | ".join([name, *shown, note]) + " |", flush=True)


def header(title: str) -> None:
    print(f"\n### {title}\n")
    print(
        "| method | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " | setting |"
    )
    print("|---|" + "---|" * len(EPSILONS) + "---|")


def linear_score(theta: np.ndarray, X: np.ndarray, y: np.ndarray, s: float) -> float:
    scores = X @ theta[..., : X.shape[1]].T
    if s > 0:
        scores = scores + s * theta[..., X.shape[1]]
    found = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
    return float((found == y).mean())


def noisy(theta: np.ndarray, delta_2: float, epsilon: float) -> np.ndarray:
    """theta with noise for a sensitivity, through the library's sampler."""

    unit = ReplaceOne()
    mechanism = Gaussian.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        sensitivity={unit: delta_2},
        unit=unit,
        dimension=theta.size,
    )
    ledger = Ledger(Budget(epsilon, DELTA), unit=unit)
    return mechanism.release(theta, ledger=ledger, label="a draw").value


@dataclass(frozen=True)
class Method:
    """A row of a table: `make(epsilon=, **setting)` for a setting of the grid."""

    name: str
    make: Callable[..., Any]
    grid: tuple[dict[str, Any], ...] = ({},)


class SeedFormula:
    """Output perturbation with the noise of Lz r / (lam n), as the seed has it."""

    def __init__(self, loss: str, epsilon: float, lam: float) -> None:
        self.loss, self.epsilon, self.lam = loss, epsilon, lam
        self.bias = 1.0 if loss == "logistic" else 0.0

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """The minimiser with noise of the seed's size."""
        stated = HeadForm(
            self.loss,
            lam=self.lam,
            norm_bound=1.0,
            num_classes=int(y.max()) + 1,
            bias_scale=self.bias,
        )
        if self.loss == "logistic":
            lz = lz_logistic_binary_bound(B=1.0, lam=self.lam)
        else:
            lz = lz_softmax_linear_bound(B=1.0, lam=self.lam, include_bias=False)
        theta = linear_base.minimise(objective(stated, X, y), tau=TAU).theta
        self.theta = noisy(theta, lz * RADIUS / self.lam / len(X), self.epsilon)
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """The accuracy on (X, y)."""
        return linear_score(self.theta, X, y, self.bias)


class SeedPrototypes:
    """Class means, all with the noise of the smallest class."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Class means with noise for r / n_min."""
        means = np.stack([X[y == c].mean(axis=0) for c in range(int(y.max()) + 1)])
        self.means = noisy(means, RADIUS / np.bincount(y).min(), self.epsilon)
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """The accuracy of the nearest one on (X, y)."""
        nearest = (2 * X @ self.means.T - (self.means**2).sum(axis=1)).argmax(axis=1)
        return float((nearest == y).mean())


def grid(**values: tuple[float, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations of the values."""
    return tuple(
        dict(zip(values, one, strict=True))
        for one in itertools.product(*values.values())
    )


def searched(head: Any, others: list[dict[str, Any]], what: str) -> Method:
    """A private search over a head and other settings, for the whole epsilon."""
    settings = [{}, *others]

    def make(epsilon: float) -> PrivateGridSearch:
        return PrivateGridSearch(head.set_params(epsilon=epsilon), settings)

    count = len(ParameterGrid(settings))
    return Method(f"demur private search over {count} settings of {what}, paid", make)


def measure(
    split: PublicSplit, methods: list[Method], draws: int, only: str = ""
) -> None:
    """A row for each method; settings come from the public records."""
    X, y, Xt, yt = split.private
    for method in methods:
        if only not in method.name:
            continue
        cells, settings = [], []
        for epsilon in EPSILONS:
            setting = method.grid[0]
            if len(method.grid) > 1:
                setting = split.best(method.make, method.grid, epsilon, DELTA)
            cells.append(
                [
                    method.make(epsilon=epsilon, **setting).fit(X, y).score(Xt, yt)
                    for _ in range(draws)
                ]
            )
            settings.append(shown(setting))
            print(f"{method.name}, {epsilon:g}: {cells[-1]}", file=sys.stderr)
        row(method.name, cells, "; ".join(dict.fromkeys(filter(None, settings))))


def not_private(split: PublicSplit) -> None:
    """scikit-learn on the private records, C from the public ones."""
    X, y, Xt, yt = split.private
    A, b, As, bs = split.public
    found = {
        C: LogisticRegression(C=C / split.ratio, max_iter=2000).fit(A, b).score(As, bs)
        for C in (1.0, 10.0, 100.0)
    }
    C = max(found, key=lambda one: found[one])
    accuracy = LogisticRegression(C=C, max_iter=2000).fit(X, y).score(Xt, yt)
    row("scikit-learn LogisticRegression, not private", [[accuracy]] * 3, f"C {C:g}")


def run_banking(draws: int, only: str = "") -> None:
    split = PublicSplit.of(banking())
    X, y, Xt, yt = split.private
    header(f"Banking77, n = {len(y)}, radius {RADIUS}, delta {DELTA:g}")
    means = np.stack([X[y == c].mean(axis=0) for c in range(77)])
    plain = (2 * Xt @ means.T - (means**2).sum(axis=1)).argmax(axis=1)
    if not only:
        row("class means, not private", [[float((plain == yt).mean())]] * 3)
        not_private(split)
    ball = {"delta": DELTA, "radius": RADIUS}
    anything = {"delta": DELTA, "unit": ReplaceOne(), "classes": list(range(77))}
    softmax = partial(BallSoftmaxClassifier, bias_scale=0.0, **ball)
    descent = partial(softmax, lam=0.0, mechanism="noisy_gd")
    lams = grid(lam=(1e-2, 1e-3, 3e-4))
    measure(
        split,
        [
            Method("demur prototypes", partial(BallPrototypeClassifier, **ball)),
            Method(
                "demur prototypes, any replacement",
                partial(BallPrototypeClassifier, **anything),
            ),
            Method("demur discriminant", partial(BallDiscriminantClassifier, **ball)),
            Method("the seed's prototypes, r / n_min", SeedPrototypes),
            Method("demur softmax, output perturbation", softmax, lams),
            Method(
                "the same with the seed's Lz r / (lam n)",
                partial(SeedFormula, "softmax"),
                lams,
            ),
            Method(
                "demur softmax, noisy_gd",
                descent,
                grid(steps=(20, 40), learning_rate=(5.0, 20.0)),
            ),
            searched(
                BallPrototypeClassifier(**ball),
                [
                    {"estimator": [BallDiscriminantClassifier()]},
                    {"estimator": [softmax()], "lam": [1e-2, 1e-3, 3e-4]},
                    {
                        "estimator": [descent()],
                        "steps": [20, 40],
                        "learning_rate": [5.0, 20.0],
                    },
                ],
                "these heads, radius 0.42",
            ),
        ],
        draws,
        only,
    )
    if not only:
        peer_row("banking", split, [1.0], draws)


def run_adult(draws: int, only: str = "") -> None:
    split = PublicSplit.of(adult())
    header(f"Adult, n = {len(split.private[1])}, rows of norm 1, delta {DELTA:g}")
    if not only:
        not_private(split)
    ball = {"delta": DELTA, "radius": RADIUS}
    anything = {"delta": DELTA, "unit": ReplaceOne(), "classes": [0, 1]}
    descent = partial(BallLogisticRegression, lam=0.0, mechanism="noisy_gd")
    steps = grid(steps=(50, 100, 200), learning_rate=(1.0, 4.0))
    lams = grid(lam=(1e-2, 1e-3, 3e-4))
    logistic = BallLogisticRegression
    measure(
        split,
        [
            Method(
                "demur logistic, noisy_gd, any replacement",
                partial(descent, **anything),
                steps,
            ),
            Method(
                "demur logistic, noisy_gd, radius 0.42", partial(descent, **ball), steps
            ),
            Method(
                "demur discriminant, any replacement",
                partial(BallDiscriminantClassifier, **anything),
            ),
            Method(
                "demur discriminant, radius 0.42",
                partial(BallDiscriminantClassifier, **ball),
            ),
            Method(
                "demur logistic, output, any replacement",
                partial(logistic, **anything),
                lams,
            ),
            Method(
                "demur logistic, output, radius 0.42", partial(logistic, **ball), lams
            ),
            Method(
                "the same with the seed's Lz r / (lam n)",
                partial(SeedFormula, "logistic"),
                lams,
            ),
            Method(
                "demur SVC (Huber), output, radius 0.42", partial(BallSVC, **ball), lams
            ),
            searched(
                BallDiscriminantClassifier(**ball),
                [
                    {
                        "estimator": [descent()],
                        "steps": [50, 100, 200],
                        "learning_rate": [1.0, 4.0],
                    },
                    {
                        "estimator": [logistic(), BallSVC()],
                        "lam": [1e-2, 1e-3, 3e-4],
                    },
                ],
                "these heads, radius 0.42",
            ),
        ],
        draws,
        only,
    )
    if not only:
        peer_row("adult", split, [1.0, 0.3, 0.1, 0.03], draws)


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
data = np.load(sys.argv[1])
X, y, Xt, yt, A, b, As, bs = (data[k] for k in "X y Xt yt A b As bs".split())
def scores(epsilon, C, draws, X, y, Xt, yt):
    head = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C, max_iter=200)
    return [head.fit(X, y).score(Xt, yt) for _ in range(draws)]
for epsilon in (1.0, 2.0, 8.0):
    constants, ratio = json.loads(sys.argv[2]), len(y) / len(b)
    if len(constants) > 1:  # lam = 1 / (C n): on fewer records C is larger
        found = [np.mean(scores(epsilon * ratio, C * ratio, 3, A, b, As, bs))
                 for C in constants]
        constants = [constants[int(np.argmax(found))]]
    right = scores(epsilon, constants[0], int(sys.argv[3]), X, y, Xt, yt)
    print(json.dumps([constants[0], right]), flush=True)
"""


def peer_row(name: str, split: PublicSplit, constants: list[float], draws: int) -> None:
    """diffprivlib on the same records, C from the public ones."""
    if not PEERS.exists():
        print("| diffprivlib | not installed: run `make peers` | | | |")
        return
    place = Path("out") / f"peer_{name}.npz"
    place.parent.mkdir(exist_ok=True)
    # Its rows must obey the norm it is told, to the last bit.
    names = ("X", "y", "Xt", "yt", "A", "b", "As", "bs")
    arrays = dict(zip(names, (*split.private, *split.public), strict=True))
    inside = {k: v * (1 - 1e-9) if v.ndim == 2 else v for k, v in arrays.items()}
    np.savez(place, **inside)
    done = subprocess.run(
        [str(PEERS), "-c", PEER, str(place), json.dumps(constants), str(draws)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"| diffprivlib | failed: {done.stderr[-200:]!r} | | | |")
        return
    found = [json.loads(line) for line in done.stdout.splitlines()]
    chosen = "; ".join(dict.fromkeys(f"C {C:g}" for C, _ in found))
    row(
        "diffprivlib LogisticRegression, pure epsilon, any replacement",
        [cells for _, cells in found],
        chosen,
    )


def run_time(repeats: int) -> None:
    print("\n### Fit time against scikit-learn, the same objective and tolerance\n")
    print("| problem | demur s | scikit-learn s | ratio | gradient norms reached |")
    print("|---|---|---|---|---|")
    for name, data, loss, lam in (
        ("Banking77 softmax", banking(), "softmax", 1e-3),
        ("Banking77 softmax", banking(), "softmax", 1e-4),
        ("Adult logistic", adult(), "logistic", 1e-3),
        ("Adult logistic", adult(), "logistic", 1e-4),
    ):
        X, y = data[0], data[1]
        classes = int(y.max()) + 1
        times: dict[str, list[float]] = {"demur": [], "sklearn": []}
        form = HeadForm(
            loss, lam=lam, norm_bound=1.0, num_classes=classes, bias_scale=0.0
        )
        stated = objective(form, X, y)
        for _ in range(repeats):
            start = time.perf_counter()
            ours = minimise(stated)
            times["demur"].append(time.perf_counter() - start)
            start = time.perf_counter()
            theirs = LogisticRegression(
                C=1 / (lam * len(X)), fit_intercept=False, tol=1e-9, max_iter=100_000
            ).fit(X, y)
            times["sklearn"].append(time.perf_counter() - start)
        theta = theirs.coef_ if loss == "softmax" else theirs.coef_[0]
        reached = float(np.linalg.norm(stated.value_and_gradient(theta)[1]))
        a, b = (statistics.median(times[k]) for k in ("demur", "sklearn"))
        print(
            f"| {name}, lam {lam:g} | {a:.2f} | {b:.2f} | {a / b:.2f} |"
            f" {ours.gradient_norm:.1e} and {reached:.1e} |",
            flush=True,
        )


def run_large(n: int = 1_000_000, d: int = 384, classes: int = 77) -> None:
    """One certified solve at the size the engine promises, and its peak memory."""

    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32).astype(np.float64)
    centres = rng.normal(size=(classes, d)) * 2
    y = rng.integers(classes, size=n)
    X += centres[y]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    form = HeadForm("softmax", lam=1e-3, norm_bound=1.0, num_classes=classes)
    found = minimise(objective(form, X, y))
    taken = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"\nn = {n:,}, d = {d}, K = {classes}: gradient norm {found.gradient_norm:.1e}"
        f" after {found.iterations} Newton steps, {taken:.0f} s; peak memory"
        f" {peak:.1f} GiB (before the solve {before:.1f} GiB, of which X is"
        f" {X.nbytes / 2**30:.1f})"
    )


def run_part(name: str, draws: int) -> None:
    """A part of its own interpreter: it writes every draw, and can be resumed."""
    print(f"\n### {name.capitalize()}\n", flush=True)
    part = Path(__file__).parent / "convex_parts" / f"{name}.py"
    subprocess.run([sys.executable, str(part), "--draws", str(draws)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument(
        "--part",
        nargs="*",
        default=["heads", "rules", "alternatives", "banking", "adult", "time"],
        choices=[
            "heads",
            "rules",
            "alternatives",
            "banking",
            "adult",
            "time",
            "large",
        ],
    )
    parser.add_argument("--only", default="", help="methods whose name holds this")
    options = parser.parse_args()
    if not (DATA / "adult.npz").exists():
        print(f"no data at {DATA}: set DEMUR_DATA. Nothing was measured.")
        sys.exit(0)
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, numpy {np.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    solved_once(16)
    for name in ("heads", "rules", "alternatives"):
        if name in options.part:
            run_part(name, options.draws)
    if "banking" in options.part:
        run_banking(options.draws, options.only)
    if "adult" in options.part:
        run_adult(options.draws, options.only)
    if "time" in options.part:
        run_time(3)
    if "large" in options.part:
        run_large()


if __name__ == "__main__":
    main()
