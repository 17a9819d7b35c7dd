"""Speed of learning and deleting: demur's modes, river, and an L-BFGS reference.

    python benchmarks/unlearning.py [--part speed dicts deletion streams] [--repeats 5]

Data: $DEMUR_DATA (default ../shared/data) for elec2, river's bundled streams for the
rest. Times are processor time, the best of `--repeats`, the contestants taking turns;
set OMP_NUM_THREADS=1. `speed` hands arrays to demur and dicts to river; `dicts` hands
the same dicts to both. Step sizes and regularisers in `streams` were chosen on the very
streams, non-privately, for every method alike: read that table as what can be reached.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from river import datasets, linear_model, optim, preprocessing
from sklearn.metrics import roc_auc_score

from demur.core.accounting.gaussian import gaussian_mu
from demur.unlearning import (
    MemoryPair,
    PrivacyOdometer,
    RangeScaler,
    UnlearnableClassifier,
    UnlearnableRegressor,
)
from demur.unlearning.models import OGD, Logistic, Mode, Ridge, StandardisedRidge

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))
MU = gaussian_mu(1.0, 1e-5)


def rows(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows within the unit ball, noisy linear targets, labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    w = 2.0 * rng.normal(size=d)
    labels = (rng.random(n) < 1 / (1 + np.exp(-X @ w))).astype(float)
    return X, np.clip(X @ w + 0.1 * rng.normal(size=n), -3, 3), labels


class TwoLoop:
    """Online L-BFGS as the seed describes it: numpy, ten pairs, half steps."""

    def __init__(self, dim: int, pairs: int = 10) -> None:
        self.w = np.zeros(dim)
        self.pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=pairs)

    def direction(self, g: np.ndarray) -> np.ndarray:
        q, alphas = g.copy(), []
        for s, y, rho in reversed(self.pairs):
            a = rho * (s @ q)
            alphas.append(a)
            q -= a * y
        if self.pairs:
            s, y, _ = self.pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y, rho), a in zip(self.pairs, reversed(alphas), strict=True):
            q += (a - rho * (y @ q)) * s
        return -q

    def insert(self, x: np.ndarray, y: float) -> float:
        predicted = float(self.w @ x)
        g = (predicted - y) * x
        new = self.w + 0.5 * self.direction(g)
        s, change = new - self.w, (float(new @ x) - y) * x - g
        self.w = new
        if (curvature := float(s @ change)) > 1e-10:
            self.pairs.append((s, change, 1.0 / curvature))
        return predicted


def pair(d: int, X: np.ndarray, Y: np.ndarray, loss: str) -> MemoryPair:
    """A MemoryPair past its calibration and its N*."""
    odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1, gamma=1e6)
    model = MemoryPair(d, odometer, mode="ogd", loss=loss)
    for x, y in zip(X[:20], Y[:20], strict=True):
        model.calibrate_step(x, float(y))
    stats = model.finalize_calibration(gamma_learn=1e6)
    odometer.finalize_with(stats, T_estimate=10**6)
    for x, y in zip(X[:20], Y[:20], strict=True):
        model.insert(x, float(y))
    return model


def one_by_one(
    insert: Callable[[np.ndarray, float], object], X: np.ndarray, Y: np.ndarray
) -> Callable[[], None]:
    events = [(x, float(y)) for x, y in zip(X, Y, strict=True)]

    def run() -> None:
        for x, y in events:
            insert(x, y)

    return run


def river_run(model: object, X: np.ndarray, Y: np.ndarray) -> Callable[[], None]:
    names = [str(j) for j in range(X.shape[1])]  # the same objects, as readers do
    events = [
        (dict(zip(names, x, strict=True)), y)
        for x, y in zip(X.tolist(), Y.tolist(), strict=True)
    ]

    def run() -> None:
        for x, y in events:
            model.predict_one(x)  # type: ignore[attr-defined]
            model.learn_one(x, y)  # type: ignore[attr-defined]

    return run


def in_blocks(mode: Mode, X: np.ndarray, Y: np.ndarray) -> Callable[[], object]:
    return lambda: mode.insert_many(X, Y)


def best_of(
    runs: dict[str, tuple[Callable[[], object], int]], repeats: int
) -> dict[str, float]:
    """Microseconds for an event, best of `repeats` turns after a first one."""
    best = dict.fromkeys(runs, math.inf)
    for turn in range(repeats + 1):
        for name, (run, events) in runs.items():
            begin = time.process_time()
            run()
            took = (time.process_time() - begin) / events * 1e6
            if turn:
                best[name] = min(best[name], took)
    return best


def part_speed(repeats: int) -> None:
    for d, many, few in ((20, 20_000, 2_000), (100, 4_000, 600), (1000, 400, 60)):
        X, Y, L = rows(many, d)
        Xf, Yf, Lf = X[:few], Y[:few], L[:few]
        ogd, logistic_ogd = OGD(d), OGD(d, loss="logistic")
        runs: dict[str, tuple[Callable[[], object], int]] = {
            "L-BFGS two-loop, numpy": (one_by_one(TwoLoop(d).insert, Xf, Yf), few),
            "river LinearRegression": (
                river_run(linear_model.LinearRegression(), Xf, Yf),
                few,
            ),
            "river LogisticRegression": (
                river_run(linear_model.LogisticRegression(), Xf, Lf),
                few,
            ),
            "MemoryPair ogd, Huber": (
                one_by_one(pair(d, X, Y, "huber").insert, X, Y),
                many,
            ),
            "MemoryPair ogd, logistic": (
                one_by_one(pair(d, X, L, "logistic").insert, X, L),
                many,
            ),
            "ogd.insert": (one_by_one(ogd.insert, X, Y), many),
            "ridge.insert": (one_by_one(Ridge(d, y_bound=3.0).insert, Xf, Yf), few),
            "logistic.insert": (one_by_one(Logistic(d).insert, Xf, Lf), few),
            "ogd.insert_many, Huber": (in_blocks(OGD(d), X, Y), many),
            "ogd.insert_many, logistic": (in_blocks(logistic_ogd, X, L), many),
            "ridge.insert_many": (in_blocks(Ridge(d, y_bound=3.0), X, Y), many),
            "logistic.insert_many": (in_blocks(Logistic(d), Xf, Lf), few),
        }
        best = best_of(runs, repeats)
        reference = best["L-BFGS two-loop, numpy"]
        linear = best["river LinearRegression"]
        classes = best["river LogisticRegression"]
        print(f"\n### d = {d}\n")
        print("| model | us for an event | events/s | times river | times L-BFGS |")
        print("|---|---|---|---|---|")
        for name, us in best.items():
            peer = classes if "ogistic" in name else linear
            print(
                f"| {name} | {us:.3g} | {1e6 / us:,.0f} | {peer / us:.1f} |"
                f" {reference / us:.1f} |",
                flush=True,
            )


def part_dicts(repeats: int) -> None:
    """The same dicts for everybody: predict_one, then learn_one.

    The exact modes solve for their weights before each prediction: at d = 20 alone.
    """
    print("\n### Dicts\n")
    print("| us for an event (times river) | d = 20 | d = 100 | d = 1000 |")
    print("|---|---|---|---|")
    lines: dict[str, list[str]] = {}
    for d, events in ((20, 2_000), (100, 600), (1000, 60)):
        X, Y, L = rows(events, d)
        contestants: dict[str, tuple[object, np.ndarray]] = {
            "river LinearRegression": (linear_model.LinearRegression(), Y),
            "UnlearnableRegressor, ogd": (UnlearnableRegressor(), Y),
            "river LogisticRegression": (linear_model.LogisticRegression(), L),
            "UnlearnableClassifier, ogd": (UnlearnableClassifier(), L),
        }
        if d == 20:
            exact = UnlearnableRegressor(mode="ridge", mode_config={"y_bound": 3.0})
            contestants["UnlearnableRegressor, ridge"] = exact, Y
            scaling = UnlearnableRegressor(mode="ridge", standardise=True)
            contestants["UnlearnableRegressor, ridge, standardise"] = scaling, Y
        best = best_of(
            {n: (river_run(m, X, T), events) for n, (m, T) in contestants.items()},
            repeats,
        )
        for name, us in best.items():
            peer = "Logistic" if "Classifier" in name else "Linear"
            ratio = best[f"river {peer}Regression"] / us
            shown = f"{us:.3g}" + ("" if "river" in name else f" ({ratio:.2g})")
            lines.setdefault(name, []).append(shown)
    for name, cells in lines.items():
        print(f"| {name} | " + " | ".join(cells + [""] * (3 - len(cells))) + " |")


def part_deletion(repeats: int) -> None:
    print("\n### Deletions\n")
    X, Y, L = rows(50_000, 20)
    gone, still = 500, np.zeros(20)
    mode = Logistic(20, Lambda=500.0, tolerance=1.1e-3)
    mode.fit(X, L)
    untouched, start = mode.published(), mode.state()
    begin = time.process_time()
    for i in range(gone):
        mode.delete(X[i], L[i], still)
    first = (time.process_time() - begin) / gone
    times = [first]
    for _ in range(repeats):
        again = mode.fresh()
        again.restore(start)
        begin = time.process_time()
        for i in range(gone):
            again.delete(X[i], L[i], still)
        times.append((time.process_time() - begin) / gone)
    refits = []
    for _ in range(max(repeats, 1)):
        fresh = mode.fresh()
        begin = time.process_time()
        fresh.fit(X[gone:], L[gone:])
        refits.append(time.process_time() - begin)
    refit = fresh.published()
    deletion, refitting = min(times), min(refits)
    certificate = mode.certificate()
    measured = mode.measure(X[gone:], L[gone:])
    print("logistic, 50,000 records, d = 20, Lambda = 500, 500 deletions:")
    print(f"- certificate a priori {certificate:.3g}, measured {measured:.3g};", end="")
    print(f" true distance {np.linalg.norm(mode.published() - refit):.3g};", end="")
    print(f" an untouched model {np.linalg.norm(untouched - refit):.3g}")
    print(
        f"- one deletion {deletion * 1e6:.1f} us, a refit {refitting * 1e3:.0f} ms:"
        f" {refitting / deletion:,.0f} times"
    )

    rng = np.random.default_rng(1)
    ridge, n = Ridge(20, y_bound=3.0), 20_000
    order = rng.permutation(n)
    ridge.insert_many(X[order], Y[order])
    doomed = rng.permutation(n)[:10_000]
    begin = time.process_time()
    for i in doomed:
        ridge.delete(X[i], Y[i])
    took = (time.process_time() - begin) / len(doomed)
    kept = np.setdiff1d(np.arange(n), doomed)
    fresh_ridge = ridge.fresh()
    fresh_ridge.insert_many(X[kept], Y[kept])
    print(
        f"\nridge, 20,000 inserts, 10,000 deletes: digests equal:"
        f" {ridge.digest() == fresh_ridge.digest()}; one deletion {took * 1e6:.1f} us"
    )

    worst, target = X.copy(), Y.copy()
    worst[:, -1] = 0.0
    worst[2_500], target[2_500] = np.eye(20)[-1], 1e6
    whole, replay = OGD(20), OGD(20)
    whole.insert_many(worst, target)
    replay.insert_many(worst[:2_500], target[:2_500])
    replay.skip()
    replay.insert_many(worst[2_501:], target[2_501:])
    shift = np.linalg.norm(whole.published() - replay.published())
    bound = whole.shift_bound()
    begin = time.process_time()
    for _ in range(1000):
        whole.delete(noise=still)
    took = (time.process_time() - begin) / 1000
    print(
        f"\nogd, 50,000 records, a worst-case one: shift {shift:.6g}, bound {bound:.6g}"
        f" ({shift / bound:.4f}); one deletion {took * 1e6:.1f} us"
    )


# --- real streams ------------------------------------------------------------------

# Declared, not measured: features that are shares or flags, sensors of a few hundred
# units, days of 2017 to 2019, approval in per cent.
RANGES: dict[str, tuple[float, float]] = {
    "Phishing": (0.0, 1.0),
    "Shuttle": (-150.0, 150.0),
    "TrumpApproval": (30.0, 50.0),
    "elec2": (0.0, 1.0),
}
DAYS = (736_330.0, 737_425.0)


@dataclass(frozen=True)
class Stream:
    """One stream, its rows scaled in three ways, a constant last (none if raw)."""

    name: str
    running: np.ndarray  # by river's scaler, which keeps every record
    public: np.ndarray  # by declared ranges
    raw: np.ndarray
    y: np.ndarray
    classes: bool


def real_streams() -> Iterator[Stream]:
    for name, kind in (("Phishing", True), ("Shuttle", True), ("TrumpApproval", False)):
        pairs = list(getattr(datasets, name)())
        y = [float(y) for _, y in pairs]
        yield stream(name, [x for x, _ in pairs], y, kind)
    path = DATA / "elec2.npz"
    if not path.exists():
        print(f"elec2: {path} is not there; left out")
        return
    with np.load(path) as data:
        X, labels = data["X"].astype(float), data["y"].astype(float)
    names = [str(j) for j in range(X.shape[1])]
    dicts = [dict(zip(names, row, strict=True)) for row in X.tolist()]
    yield stream("elec2", dicts, list(labels), True)


def stream(
    name: str, dicts: list[dict[str, float]], y: list[float], classes: bool
) -> Stream:
    """river's running scaler sees the current row before it scales it."""
    scaler = preprocessing.StandardScaler()
    ranges = {f: DAYS if f == "ordinal_date" else RANGES[name] for f in dicts[0]}
    fixed = RangeScaler(ranges)
    running, public = [], []
    for x in dicts:
        scaler.learn_one(x)
        running.append([*scaler.transform_one(x).values(), 1.0])
        public.append([*fixed.transform_one(x).values(), 1.0])
    raw = np.array([[float(v) for v in x.values()] for x in dicts])
    return Stream(name, np.array(running), np.array(public), raw, np.array(y), classes)


def score(truth: np.ndarray, found: np.ndarray, classes: bool) -> tuple[float, str]:
    """What to maximise, and how it is shown."""
    if classes:
        accuracy = float(np.mean((found > 0.5) == (truth > 0.5)))
        area = float(roc_auc_score(truth > 0.5, found))
        return area, f"{accuracy:.4f} / {area:.4f}"
    error = float(np.mean(np.abs(found - truth)))
    return -error, f"{error:.3f}"


def river_progressive(
    X: np.ndarray, Y: np.ndarray, classes: bool, lr: float
) -> np.ndarray:
    kind = linear_model.LogisticRegression if classes else linear_model.LinearRegression
    model = kind(optimizer=optim.SGD(lr), intercept_lr=0.0)
    out = []
    for row, y in zip(X.tolist(), Y.tolist(), strict=True):
        x = dict(enumerate(row))
        out.append(
            model.predict_proba_one(x)[True] if classes else model.predict_one(x)
        )
        model.learn_one(x, bool(y) if classes else y)
    return np.array(out)


def progressive(
    mode: Mode, X: np.ndarray, Y: np.ndarray, every: int | None = None
) -> np.ndarray:
    """Predictions before learning; with `every`, a random live record is deleted
    after every so many inserts, each at (1, 1e-5) for its subject.
    """
    if every is None:
        return mode.insert_many(X, Y)
    rng = np.random.default_rng(0)
    live: list[int] = []
    out = []
    for at in range(0, len(X), every):
        block = slice(at, at + every)
        out.append(mode.insert_many(X[block], Y[block]))
        live += range(at, min(at + every, len(X)))
        i = live.pop(int(rng.integers(len(live))))
        sigma = mode.shift_bound() / MU
        noise = None if mode.exact else rng.normal(size=mode.size) * sigma
        mode.delete(X[i], Y[i], noise)
    return np.concatenate(out)


def stream_row(stream: Stream) -> str:
    Y, classes, d = stream.y, stream.classes, stream.running.shape[1]
    # Public bounds: rows of twice the expected norm, approval between 30 and 50.
    B = 2.0 * math.sqrt(d)
    middle, spread = (0.5, 0.5) if classes else (40.0, 10.0)
    Z = (Y - middle) / spread

    def of_ogd(X: np.ndarray, lam: float, every: int | None) -> tuple[float, str]:
        # Declared ranges keep every feature within 1; B is never reached.
        bound = B if X is stream.running else math.sqrt(d)
        if classes:
            mode = OGD(d, loss="logistic", norm_bound=bound, lam=lam)
            return score(Y, progressive(mode, X, Y, every), True)
        mode = OGD(d, norm_bound=bound, lam=lam)
        found = progressive(mode, X, Z, every) * spread + middle
        return score(Y, found, False)

    def of_ridge(every: int | None) -> str:
        mode = StandardisedRidge(d - 1)
        found = progressive(mode, stream.raw, Z, every) * spread + middle
        return score(Y, found, classes)[1]

    def best_ogd(X: np.ndarray, every: int | None) -> str:
        return max(of_ogd(X, lam, every) for lam in (1e-4, 1e-3, 1e-2, 1e-1, 1.0))[1]

    def of_logistic() -> str:
        if not classes:
            return ""
        online = Logistic(d, norm_bound=math.sqrt(d), Lambda=1.0)
        return score(Y, online.insert_many(stream.public, Y), True)[1]

    cells = [
        max(
            score(Y, river_progressive(stream.running, Y, classes, lr), classes)
            for lr in (0.003, 0.01, 0.03, 0.1, 0.3)
        )[1],
        best_ogd(stream.running, None),
        best_ogd(stream.public, None),
        of_logistic(),
        of_ridge(None),
        best_ogd(stream.public, 10),
        of_ridge(10),
    ]
    return f"| {stream.name} ({len(Y):,} x {d - 1}) | " + " | ".join(cells) + " |"


def part_streams(repeats: int) -> None:
    del repeats
    print("\n### Real streams\n")
    print("Accuracy / ROC area, or mean absolute error, predicting before learning.")
    print("Behind a running scaler (the first two) no deletion is covered.\n")
    print(
        "| stream | river SGD, running scaler | ogd, running scaler | ogd, ranges |"
        " logistic, ranges | ridge, standardise | ogd, ranges, 10:1 |"
        " ridge, standardise, 10:1 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for stream in real_streams():
        print(stream_row(stream), flush=True)


def main() -> None:
    parts = {
        "speed": part_speed,
        "dicts": part_dicts,
        "deletion": part_deletion,
        "streams": part_streams,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.part:
        parts[name](options.repeats)


if __name__ == "__main__":
    main()
