"""How far from the formula of docs/scale.md the centres of overlapping clusters are.

    python benchmarks/scale_parts/overlapping.py --rows 1e6 --spread 0.2

Twelve Gaussian clusters of one spread (in parts of the cube) around uniform centres in
ten dimensions, BPM at epsilon 10. The error is that of the centres against the means of
the raw points of each cluster, a root mean square over coordinates; the formula is the
error of a centre whose reports are known.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from demur.cluster import PrivateKMeans
from demur.mechanisms import BPM

CLUSTERS, DIMENSION, EPSILON = 12, 10, 10.0


def run(rows: int, spread: float, seed: int = 1) -> str:
    """One line: the error, the formula, and their ratio."""
    rng = np.random.default_rng(seed)
    mechanism = BPM(epsilon=EPSILON, L="auto", dimension=DIMENSION)
    centres = rng.uniform(0.2, 0.8, (CLUSTERS, DIMENSION))
    labels = rng.integers(CLUSTERS, size=rows)
    noise = spread * rng.normal(size=(rows, DIMENSION))
    points = np.clip(centres[labels] + noise, 0.0, 1.0)
    means = np.array([points[labels == k].mean(axis=0) for k in range(CLUSTERS)])
    reports = mechanism.privatize(points, ledger=None).value
    began = time.perf_counter()
    model = PrivateKMeans(n_clusters=CLUSTERS, epsilon=EPSILON, random_state=0)
    model.fit_reports(reports)
    took = time.perf_counter() - began
    distances = ((model.cluster_centers_[:, None] - means) ** 2).sum(axis=-1)
    matched = distances[linear_sum_assignment(distances)]
    error = float(np.sqrt(matched.mean() / DIMENSION))
    information = mechanism.epsilon**2 * mechanism.p_L / DIMENSION
    formula = float(np.sqrt(CLUSTERS / (rows * information)))
    return (
        f"{rows:,} reports, spread {spread:g}: error {error:.5f}, formula"
        f" {formula:.5f}, ratio {error / formula:.1f} ({took:.0f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=50_000)
    parser.add_argument("--spread", type=float, nargs="+", default=[0.02, 0.2])
    chosen = parser.parse_args()
    for spread in chosen.spread:
        print(run(chosen.rows, spread), flush=True)


if __name__ == "__main__":
    main()
