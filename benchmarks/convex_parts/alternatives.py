"""Heads that were tried and not kept, on the data of the others.

    python benchmarks/convex_parts/alternatives.py [--draws 20] [--only digits]

- Objective perturbation in its best case: the gradients' sum gets noise once, and
  nothing is paid for the change of variables, the solver or rounding. A proper release
  does no better, so that this is a bound on what the method could reach.
- Prototypes and discriminant analysis over 200 random Fourier features, which read
  nothing off the data (the averages of an approximate RBF kernel).

Settings (lam, gamma) come from a public fifth of the training set, as in convex.py;
every draw is written to out/convex_alternatives.jsonl, and a second run goes on where
the first stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline

sys.path.insert(0, str(Path(__file__).parent))
import rules
from public_split import PublicSplit, shown

from demur.convex import (
    BallDiscriminantClassifier,
    BallPrototypeClassifier,
    HeadForm,
    objective,
)
from demur.convex.sensitivity.gradient_bounds import (
    full_replacement_bound,
    grad_diff_bound,
)
from demur.core.accounting.gaussian import gaussian_mu
from demur.core.adjacency import Ball, ReplaceOne

OUT = Path("out") / "convex_alternatives.jsonl"
DELTA = 1e-6
EPSILONS = (0.25, 1.0, 8.0)
UNITS = {"any replacement": ReplaceOne(), "radius 0.42": Ball(0.42, space="records")}
LAMS = tuple({"lam": lam} for lam in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
GAMMAS = tuple({"gamma": gamma} for gamma in (1.0, 3.0, 10.0))


@dataclass
class ObjectivePerturbation:
    """argmin F(theta) + <b, theta> / n, with b ~ N(0, (G / mu)^2): no release."""

    epsilon: float
    lam: float
    unit: Ball | ReplaceOne
    classes: int

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """One draw of b, and the minimiser that belongs to it."""
        form = HeadForm(
            "logistic" if self.classes == 2 else "softmax",
            lam=self.lam,
            norm_bound=1.0,
            num_classes=self.classes,
        )
        # Gradients at every theta count here, and not those of minimisers alone.
        free = HeadForm(form.loss, lam=0.0, norm_bound=1.0, num_classes=self.classes)
        moved = full_replacement_bound(free)
        if isinstance(self.unit, Ball):
            moved = grad_diff_bound(free, self.unit.radius)
        stated = objective(form, X, y)
        width = moved / gaussian_mu(self.epsilon, DELTA) / len(y)
        noise = width * np.random.default_rng().normal(size=stated.shape)

        def tilted(flat: np.ndarray) -> tuple[float, np.ndarray]:
            theta = flat.reshape(stated.shape)
            value, gradient = stated.value_and_gradient(theta)
            both = value + float(np.vdot(noise, theta)), gradient + noise
            return both[0], both[1].reshape(-1)

        start = np.zeros(noise.size)
        found = minimize(tilted, start, jac=True, method="L-BFGS-B", tol=1e-9)
        self.theta = found.x.reshape(stated.shape)
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """The accuracy on (X, y)."""
        rows = np.column_stack([X, np.ones(len(X))])
        scores = rows @ self.theta.T
        chosen = scores.argmax(axis=1) if scores.ndim == 2 else scores > 0
        return float((chosen == y).mean())


def over_features(
    kind: Any, unit: Ball | ReplaceOne, classes: int, epsilon: float, gamma: float
) -> Any:
    """A head over random Fourier features, whose rows have norm at most sqrt 2."""
    head = kind(
        epsilon=epsilon,
        delta=DELTA,
        unit=unit,
        classes=list(range(classes)),
        norm_bound=2.0**0.5,
    )
    return make_pipeline(RBFSampler(gamma=gamma, n_components=200), head)


Make = Callable[..., Any]


def methods(
    unit: Ball | ReplaceOne, classes: int
) -> Iterator[tuple[str, Make, tuple[dict[str, float], ...]]]:
    """Names, what makes one from (epsilon, setting), and the settings."""
    promise = {"delta": DELTA, "unit": unit, "classes": list(range(classes))}
    # Heads that are there, on the same records.
    yield "prototypes", partial(BallPrototypeClassifier, **promise), ({},)
    yield "discriminant", partial(BallDiscriminantClassifier, **promise), ({},)
    perturbed = partial(ObjectivePerturbation, unit=unit, classes=classes)
    yield "objective perturbation, at best", perturbed, LAMS
    if isinstance(unit, ReplaceOne):  # the features have no tight constant at a ball
        for name, kind in (
            ("prototypes over features", BallPrototypeClassifier),
            ("discriminant over features", BallDiscriminantClassifier),
        ):
            yield name, partial(over_features, kind, unit, classes), GAMMAS


def line(
    split: PublicSplit,
    name: str,
    make: Make,
    settings: tuple[dict[str, float], ...],
    draws: int,
    done: dict[str, Any],
) -> str:
    """One row of the table; cells that were measured before are read."""
    X, y, Xt, yt = split.private
    cells, chosen = [], []
    for epsilon in EPSILONS:
        key = f"{name} | {epsilon:g}"
        if len(done.get(key, {}).get("scores", ())) < draws:
            best = settings[0]
            if len(settings) > 1:
                best = split.best(make, settings, epsilon, DELTA)
            scores = [
                float(make(epsilon=epsilon, **best).fit(X, y).score(Xt, yt))
                for _ in range(draws)
            ]
            done[key] = {"cell": key, "setting": best, "scores": scores}
            with OUT.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
        scores = done[key]["scores"][:draws]
        cells.append(f"{np.mean(scores):.3f} ± {np.std(scores):.3f}")
        chosen.append(shown(done[key]["setting"]))
    settled = "; ".join(dict.fromkeys(filter(None, chosen)))
    return f"| {name} | {' | '.join(cells)} | {settled} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    options = parser.parse_args()
    OUT.parent.mkdir(exist_ok=True)
    lines = OUT.read_text().splitlines() if OUT.exists() else []
    done = {row["cell"]: row for row in map(json.loads, lines)}
    print("| method |" + "".join(f" epsilon {e:g} |" for e in EPSILONS) + " setting |")
    print("|---|" + "---|" * (len(EPSILONS) + 1))
    sets = {"digits": rules.digits}
    if rules.DATA.exists():
        sets["adult"] = rules.adult
    for title, load in sets.items():
        split = PublicSplit.of(load())
        classes = int(split.private[1].max()) + 1
        for where, unit in UNITS.items():
            for method, make, settings in methods(unit, classes):
                name = f"{title}, {where}: {method}"
                if options.only in name:
                    row = line(split, name, make, settings, options.draws, done)
                    print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
