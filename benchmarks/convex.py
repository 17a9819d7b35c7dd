"""Private heads on real data: demur against the seed's formula and other libraries.

    python benchmarks/convex.py [--draws 20] [--part banking adult time large]

Data: $DEMUR_DATA (default ../shared/data), Banking77 sentence embeddings and UCI Adult.
Accuracies are means and standard deviations over draws of the noise. diffprivlib needs
an older scikit-learn and runs in .peers (`make peers`); without it its rows are left
out by name. Hyper-parameters (lam, steps, learning rates) were chosen on these very
test sets, non-privately, for every method: read the tables as what can be reached.
Prototypes have none. Rules for prototypes under unequal class sizes are in
convex_parts/rules.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    Fit,
    HeadForm,
    minimise,
    objective,
)
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.convex.sensitivity.lz import (
    lz_logistic_binary_bound,
    lz_softmax_linear_bound,
)
from demur.core.accounting.gaussian import gaussian_sigma
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import clip_rows, normalize_rows
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian

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
    print("| method | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " | noise |")
    print("|---|" + "---|" * len(EPSILONS) + "---|")


def linear_score(theta: np.ndarray, X: np.ndarray, y: np.ndarray, s: float) -> float:
    scores = X @ theta[..., : X.shape[1]].T
    if s > 0:
        scores = scores + s * theta[..., X.shape[1]]
    found = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
    return float((found == y).mean())


def noisy(theta: np.ndarray, delta_2: float, epsilon: float) -> Iterator[np.ndarray]:
    """Copies of theta with noise for a sensitivity, through the library's sampler."""

    unit = ReplaceOne()
    mechanism = Gaussian.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        sensitivity={unit: delta_2},
        unit=unit,
        dimension=theta.size,
    )
    while True:
        ledger = Ledger(Budget(epsilon, DELTA), unit=unit)
        yield mechanism.release(theta, ledger=ledger, label="a draw").value


def draws_of(
    make: Callable[[float], object], data: Data, draws: int
) -> list[list[float]]:
    X, y, Xt, yt = data
    return [[make(e).fit(X, y).score(Xt, yt) for _ in range(draws)] for e in EPSILONS]


def output_rows(
    loss: str, data: Data, lam: float, s: float, draws: int, lz: float
) -> None:
    """One minimiser, released with the noise of three bounds."""
    X, y, Xt, yt = data
    classes = int(y.max()) + 1
    form = HeadForm(loss, lam=lam, norm_bound=1.0, num_classes=classes, bias_scale=s)
    theta = minimise(objective(form, X, y)).theta
    unit = Ball(RADIUS, space="records")
    parts = erm_sensitivity(form, unit, Fit(len(X))).parts
    assert parts.full_replacement is not None
    exact = linear_score(theta, Xt, yt, s)
    for name, moved in (
        (f"demur {loss}, lam {lam:g}, at the ball", parts.total),
        (
            f"  the same at full replacement (plain output perturbation), lam {lam:g}",
            parts.full_replacement,
        ),
        (
            f"  the same with the seed's Lz r / (lam n), lam {lam:g}",
            lz * RADIUS / lam / len(X),
        ),
    ):
        cells = []
        for epsilon in EPSILONS:
            release = noisy(theta, moved, epsilon)
            cells.append([linear_score(next(release), Xt, yt, s) for _ in range(draws)])
        sigma = gaussian_sigma(1.0, DELTA, moved)
        row(name, cells, f"sigma {sigma:.3g} at eps 1; without noise {exact:.3f}")


def run_banking(draws: int) -> None:
    data = X, y, Xt, yt = banking()
    header(f"Banking77, 77 classes, 384 dimensions, radius {RADIUS}, delta {DELTA:g}")
    counts = np.bincount(y)
    means = np.stack([X[y == c].mean(axis=0) for c in range(77)])
    plain = (2 * Xt @ means.T - (means**2).sum(axis=1)).argmax(axis=1)
    row("class means, not private", [[float((plain == yt).mean())]] * 3)
    peer = LogisticRegression(C=10, max_iter=2000).fit(X, y).score(Xt, yt)
    row("scikit-learn LogisticRegression, C = 10, not private", [[peer]] * 3)
    row(
        "demur prototypes",
        draws_of(
            lambda e: BallPrototypeClassifier(epsilon=e, delta=DELTA, radius=RADIUS),
            data,
            draws,
        ),
        "for each class",
    )
    row(
        "demur prototypes, any replacement",
        draws_of(
            lambda e: BallPrototypeClassifier(
                epsilon=e, delta=DELTA, unit=ReplaceOne(), classes=list(range(77))
            ),
            data,
            draws,
        ),
        "sums and counts; any change to a record, label included",
    )
    seed = [
        [
            float(((2 * Xt @ p.T - (p**2).sum(axis=1)).argmax(axis=1) == yt).mean())
            for _, p in zip(
                range(draws), noisy(means, RADIUS / counts.min(), e), strict=False
            )
        ]
        for e in EPSILONS
    ]
    row("  the seed's count-aware prototypes, r / n_min", seed, "one for all classes")
    for steps, rate in ((20, 20.0), (40, 20.0)):
        row(
            f"demur softmax, noisy_gd, {steps} steps of {rate:g}",
            draws_of(
                lambda e, t=steps, eta=rate: BallSoftmaxClassifier(
                    epsilon=e,
                    delta=DELTA,
                    radius=RADIUS,
                    lam=0.0,
                    bias_scale=0.0,
                    mechanism="noisy_gd",
                    steps=t,
                    learning_rate=eta,
                ),
                data,
                draws,
            ),
        )
    for lam in (1e-3, 3e-4):
        lz = lz_softmax_linear_bound(B=1.0, lam=lam, include_bias=False)
        output_rows("softmax", data, lam, 0.0, draws, lz)
    peer_rows("banking", "C=1.0, fit_intercept=False")


def run_adult(draws: int) -> None:
    data = X, y, Xt, yt = adult()
    header("Adult, rows of norm 1, delta 1e-6")
    peer = LogisticRegression(C=10, max_iter=2000).fit(X, y).score(Xt, yt)
    row("scikit-learn LogisticRegression, C = 10, not private", [[peer]] * 3)
    for steps, rate in ((200, 4.0),):
        row(
            f"demur logistic, noisy_gd, {steps} steps of {rate:g}, full replacement",
            draws_of(
                lambda e, t=steps, eta=rate: BallLogisticRegression(
                    epsilon=e,
                    delta=DELTA,
                    unit=ReplaceOne(),
                    classes=[0, 1],
                    lam=0.0,
                    mechanism="noisy_gd",
                    steps=t,
                    learning_rate=eta,
                ),
                data,
                draws,
            ),
            "any change to a record, label included",
        )
        row(
            f"demur logistic, noisy_gd, {steps} steps of {rate:g}, radius {RADIUS}",
            draws_of(
                lambda e, t=steps, eta=rate: BallLogisticRegression(
                    epsilon=e,
                    delta=DELTA,
                    radius=RADIUS,
                    lam=0.0,
                    mechanism="noisy_gd",
                    steps=t,
                    learning_rate=eta,
                ),
                data,
                draws,
            ),
        )
    for lam in (1e-2, 1e-3, 3e-4):
        lz = lz_logistic_binary_bound(B=1.0, lam=lam)
        output_rows("logistic", data, lam, 1.0, draws, lz)
    row(
        "demur SVC (Huber), lam 0.001, at the ball",
        draws_of(
            lambda e: BallSVC(epsilon=e, delta=DELTA, radius=RADIUS, lam=1e-3),
            data,
            draws,
        ),
    )
    peer_rows("adult", "three C")


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
X, y, Xt, yt = (np.load(sys.argv[1])[k] for k in ("X", "y", "Xt", "yt"))
out = {}
for C in json.loads(sys.argv[2]):
    for epsilon in (1.0, 2.0, 8.0):
        found = [LogisticRegression(epsilon=epsilon, data_norm=1.0, C=C, max_iter=200)
                 .fit(X, y).score(Xt, yt) for _ in range(int(sys.argv[3]))]
        out.setdefault(str(C), []).append(found)
print(json.dumps(out))
"""


def peer_rows(name: str, note: str) -> None:
    if not PEERS.exists():
        print(f"| diffprivlib | not installed: run `make peers` | | | {note} |")
        return
    X, y, Xt, yt = banking() if name == "banking" else adult()
    # Its rows must obey the norm it is told, to the last bit.
    X, Xt = X * (1 - 1e-9), Xt * (1 - 1e-9)
    place = Path("out") / f"peer_{name}.npz"
    place.parent.mkdir(exist_ok=True)
    np.savez(place, X=X, y=y, Xt=Xt, yt=yt)
    constants, draws = ([1.0], 3) if name == "banking" else ([1.0, 0.1, 0.03], 5)
    done = subprocess.run(
        [str(PEERS), "-c", PEER, str(place), json.dumps(constants), str(draws)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"| diffprivlib | failed: {done.stderr[-200:]!r} | | | |")
        return
    for C, cells in json.loads(done.stdout).items():
        row(
            f"diffprivlib LogisticRegression, C = {C}",
            cells,
            f"pure epsilon, any replacement; {draws} draws",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument(
        "--part",
        nargs="*",
        default=["banking", "adult", "time"],
        choices=["banking", "adult", "time", "large"],
    )
    options = parser.parse_args()
    if not (DATA / "adult.npz").exists():
        print(f"no data at {DATA}: set DEMUR_DATA. Nothing was measured.")
        sys.exit(0)
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, numpy {np.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    if "banking" in options.part:
        run_banking(options.draws)
    if "adult" in options.part:
        run_adult(options.draws)
    if "time" in options.part:
        run_time(3)
    if "large" in options.part:
        run_large()


if __name__ == "__main__":
    main()
