"""Sweeps: private clusterings of public data over epsilon, L and many draws of noise.

A sweep compares with the raw points: its numbers are NOT PRIVATE, and choosing epsilon
or L by a sweep over private data would leak them. It is for public and test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product

import numpy as np
from sklearn.cluster import KMeans

from demur.cluster.estimators import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.metrics import Labels, Quality, Values, assign, quality
from demur.core import validate
from demur.mechanisms.bpm import BPM

_MODELS = {"kmeans": PrivateKMeans, "gmm": PrivateGMM, "tmm": PrivateTMM}
METRICS = tuple(field.name for field in fields(Quality))


@dataclass(frozen=True)
class SweepSettings:
    """What a sweep tries: each algorithm, epsilon and L together, `trials` times."""

    epsilons: Sequence[float]
    Ls: Sequence[float | str] = ("auto",)
    algorithms: Sequence[str] = ("kmeans",)
    trials: int = 20
    decoder: str = "noise_aware"

    def __post_init__(self) -> None:
        unknown = [name for name in self.algorithms if name not in _MODELS]
        if unknown or not self.algorithms:
            raise ValueError(
                f"algorithms must be of {tuple(_MODELS)}; got {unknown[:3]}"
            )
        validate.count(trials=self.trials)
        if not self.epsilons or not self.Ls:
            raise ValueError("epsilons and Ls must each hold at least one value")


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
    """All trials, and the quality of non-private k-means on the same data."""

    baseline: Quality
    trials: tuple[Trial, ...]

    def bands(self) -> list[Band]:
        """The trials of each setting, as a median and a band."""
        groups: dict[tuple[str, float, float | str], list[Trial]] = {}
        for trial in self.trials:
            setting = trial.algorithm, trial.epsilon, trial.L
            groups.setdefault(setting, []).append(trial)
        return [Band.of(*setting, trials) for setting, trials in groups.items()]


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
        cls, algorithm: str, epsilon: float, L: float | str, trials: Sequence[Trial]
    ) -> Band:
        """The band of trials of one setting."""
        table = np.array([[getattr(t.quality, m) for m in METRICS] for t in trials])
        low, median, high = (
            Quality(*(_percentile(column, p) for column in table.T))
            for p in (10.0, 50.0, 90.0)
        )
        used = tuple(sorted({t.decoder for t in trials}))
        return cls(algorithm, epsilon, L, used, low, median, high)


def sweep(
    points: Values,
    labels: Labels | None = None,
    *,
    n_clusters: int,
    settings: SweepSettings,
    random_state: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Perturb and cluster `points` of the unit cube, for each setting and trial.

    ARI and NMI are against `labels`; without any, against the non-private k-means.
    `random_state` seeds the clustering; the noise comes from the operating system, so
    that two sweeps agree within their bands and not in their digits.
    """
    for epsilon, L in product(settings.epsilons, settings.Ls):
        BPM(epsilon, L, points.shape[1]).check(points)  # all of it, before the work
    exact = KMeans(n_clusters, n_init=10, random_state=random_state).fit(points)
    best = np.asarray(exact.cluster_centers_, dtype=np.float64)
    assigned, best_sse = assign(points, best)
    truth = assigned if labels is None else labels

    def measure(centres: Values) -> Quality:
        return quality(points, truth, centres, best=best, best_sse=best_sse)

    runs = list(
        product(
            settings.algorithms,
            settings.epsilons,
            settings.Ls,
            range(settings.trials),
        )
    )
    trials = []
    for done, (algorithm, epsilon, L, trial) in enumerate(runs):
        if progress is not None:
            progress(done, len(runs))
        model = _MODELS[algorithm](
            n_clusters,
            epsilon=epsilon,
            L=L,
            random_state=random_state + trial,
            decoder=settings.decoder,
        )
        model.fit(points)
        centres = model.cluster_centers_ if algorithm == "kmeans" else model.means_
        fitted = measure(np.asarray(centres))
        decoder = str(model.decoder_)
        trials.append(Trial(algorithm, float(epsilon), L, trial, decoder, fitted))
    if progress is not None:
        progress(len(runs), len(runs))
    return Sweep(measure(best), tuple(trials))


def _percentile(values: Values, percent: float) -> float:
    values = values[~np.isnan(values)]
    return float(np.percentile(values, percent)) if values.size else math.nan
