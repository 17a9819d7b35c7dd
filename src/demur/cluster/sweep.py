"""Private clusterings of one public dataset over epsilon, L and many draws of noise.

A sweep compares with the raw points: its numbers are NOT PRIVATE, and choosing epsilon
or L by a sweep over private data would leak them. It is for public and test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from sklearn.cluster import KMeans

from demur.cluster.estimators import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.metrics import Labels, Quality, Values, assign, quality
from demur.core import validate
from demur.mechanisms.bpm import BPM

ALGORITHMS = ("kmeans", "gmm", "tmm")
METRICS = tuple(field.name for field in fields(Quality))


@dataclass(frozen=True)
class Trial:
    """One draw of noise, clustered and measured."""

    algorithm: str
    epsilon: float
    L: float | str  # as it was asked for: a number, or "auto"
    trial: int
    decoder: str  # the one that was really used
    quality: Quality


@dataclass(frozen=True)
class Sweep:
    """All trials, and what the same data give without noise."""

    baseline: Quality
    trials: tuple[Trial, ...]

    def bands(self) -> list[Band]:
        """The trials of each setting, as a median and a band."""
        groups: dict[tuple[str, float, float | str], list[Trial]] = {}
        for one in self.trials:
            groups.setdefault((one.algorithm, one.epsilon, one.L), []).append(one)
        return [Band.of(*setting, found) for setting, found in groups.items()]


@dataclass(frozen=True)
class Band:
    """Median, 10th and 90th percentile of every metric over the trials."""

    algorithm: str
    epsilon: float
    L: float | str
    decoders: tuple[str, ...]
    low: Quality
    median: Quality
    high: Quality

    @classmethod
    def of(
        cls, algorithm: str, epsilon: float, L: float | str, found: Sequence[Trial]
    ) -> Band:
        """The band of trials of one setting."""
        table = np.array([[getattr(t.quality, m) for m in METRICS] for t in found])
        low, median, high = (
            Quality(*(_percentile(column, p) for column in table.T))
            for p in (10.0, 50.0, 90.0)
        )
        used = tuple(sorted({t.decoder for t in found}))
        return cls(algorithm, epsilon, L, used, low, median, high)


def sweep(
    points: Values,
    labels: Labels | None = None,
    *,
    n_clusters: int,
    epsilons: Sequence[float],
    Ls: Sequence[float | str] = ("auto",),
    trials: int = 20,
    algorithms: Iterable[str] = ("kmeans",),
    decoder: str = "noise_aware",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Perturb and cluster `points` of the unit cube, `trials` times for each setting.

    ARI and NMI are against `labels`; without any, against the non-private k-means.
    `seed` seeds the clustering; the noise comes from the operating system, so that two
    sweeps agree within their bands and not in their digits.
    """
    algorithms = tuple(algorithms)
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown or not algorithms:
        raise ValueError(f"algorithms must be of {ALGORITHMS}; got {unknown[:3]}")
    validate.count(trials=trials)
    if not epsilons or not Ls:
        raise ValueError("epsilons and Ls must each name at least one value")
    for epsilon in epsilons:
        for L in Ls:
            BPM(epsilon, L, points.shape[1]).check(points)  # all of it, before the work
    exact = KMeans(n_clusters, n_init=10, random_state=seed).fit(points)
    best = np.asarray(exact.cluster_centers_, dtype=np.float64)
    assigned, best_sse = assign(points, best)
    truth = assigned if labels is None else labels

    def measure(centres: Values) -> Quality:
        return quality(points, truth, centres, best=best, best_sse=best_sse)

    baseline = measure(best)

    settings = [(a, e, L, t) for a in algorithms for e in epsilons for L in Ls
                for t in range(trials)]  # fmt: skip
    found = []
    for done, (algorithm, epsilon, L, trial) in enumerate(settings):
        if progress is not None:
            progress(done, len(settings))
        model = _model(algorithm, n_clusters, epsilon, L, seed + trial, decoder)
        model.fit(points)
        centres = model.cluster_centers_ if algorithm == "kmeans" else model.means_
        found.append(
            Trial(
                algorithm,
                float(epsilon),
                L,
                trial,
                str(model.decoder_),
                measure(np.asarray(centres)),
            )
        )
    if progress is not None:
        progress(len(settings), len(settings))
    return Sweep(baseline, tuple(found))


def _model(
    algorithm: str, k: int, epsilon: float, L: float | str, seed: int, decoder: str
) -> PrivateKMeans | PrivateGMM | PrivateTMM:
    made = {"kmeans": PrivateKMeans, "gmm": PrivateGMM, "tmm": PrivateTMM}[algorithm]
    return made(k, epsilon=epsilon, L=L, random_state=seed, decoder=decoder)


def _percentile(values: Values, percent: float) -> float:
    values = values[~np.isnan(values)]
    return float(np.percentile(values, percent)) if values.size else math.nan
