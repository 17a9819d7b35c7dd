"""Sweeps: private clusterings of public data over epsilon, L and many draws of noise.

A sweep compares with the raw points: its numbers are NOT PRIVATE, and choosing epsilon
or L by a sweep over private data would leak them. It is for public and test data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product

import numpy as np
from sklearn.cluster import KMeans

from demur.cluster.errors import UnsupportedClusters
from demur.cluster.estimators import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.metrics import Labels, Quality, Values, assign, quality
from demur.core import validate
from demur.core.accounting.events import Pure
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.rounding import quotient_down
from demur.mechanisms.bpm import BPM

_MODELS = {"kmeans": PrivateKMeans, "gmm": PrivateGMM, "tmm": PrivateTMM}
METRICS = tuple(field.name for field in fields(Quality))


@dataclass(frozen=True)
class SweepSettings:
    """What a sweep tries: each algorithm, epsilon and L together, `trials` times.

    With a `unit`, `epsilons` are prices at that unit: a number L gets the rate of that
    price, and L = "auto" is `BPM.for_unit`'s, so that all settings of one price make
    the same promise.
    """

    epsilons: Sequence[float]
    Ls: Sequence[float | str] = ("auto",)
    algorithms: Sequence[str] = ("kmeans",)
    trials: int = 20
    decoder: str = "noise_aware"
    unit: Unit | None = None

    def mechanism(self, asked: float, L: float | str, dimension: int, n: int) -> BPM:
        """BPM of one setting: of an epsilon, or of a price at the unit."""
        if self.unit is None:
            return BPM(asked, L, dimension)
        if L == "auto":
            return BPM.for_unit(self.unit, price=asked, dimension=dimension, n=n)
        one = BPM(1.0, L, dimension).event(self.unit)
        assert isinstance(one, Pure)
        if one.epsilon == 0.0:
            raise ValueError(
                "L must be above 0 where prices are compared: at L = 0 reports cost"
                " nothing and say nothing"
            )
        return BPM(quotient_down(asked, one.epsilon), L, dimension)

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
    epsilon: float  # as it was asked for: a rate, or a price where there is a unit
    L: float | str  # as it was asked for: a number, or "auto"
    trial: int
    decoder: str  # the one that was really used
    quality: Quality
    mechanism: BPM
    unit: Unit = ReplaceOne()  # what prices are for

    @property
    def price(self) -> float:
        """The epsilon at the unit: of any replacement where none was asked for."""
        return price_of(self.mechanism, self.unit)


@dataclass(frozen=True)
class Sweep:
    """All trials, and the quality of non-private k-means on the same data."""

    baseline: Quality
    trials: tuple[Trial, ...]

    @property
    def priced(self) -> str:
        """What prices are for, in words."""
        unit = self.trials[0].unit
        if isinstance(unit, Ball):
            return f"a move by at most {unit.radius:g}"
        return "any replacement"

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
    rate: float  # epsilon of the mechanism, and its L
    threshold: float
    price: float  # at the unit of the sweep, any replacement by default

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
        bpm = trials[0].mechanism
        numbers = bpm.epsilon, bpm.L, trials[0].price
        return cls(algorithm, epsilon, L, used, low, median, high, *numbers)


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
    count, d = points.shape
    mechanisms = {
        (asked, L): settings.mechanism(asked, L, d, count)
        for asked, L in product(settings.epsilons, settings.Ls)
    }
    for mechanism in mechanisms.values():
        mechanism.check(points)  # all of it, before the work
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
        mechanism = mechanisms[epsilon, L]
        model = _MODELS[algorithm](
            n_clusters,
            epsilon=mechanism.epsilon,
            mechanism=mechanism,
            random_state=random_state + trial,
            decoder=settings.decoder,
        )
        with warnings.catch_warnings():
            # A sweep goes to where reports show nothing; its numbers say so.
            warnings.simplefilter("ignore", UnsupportedClusters)
            model.fit(points)
        centres = model.cluster_centers_ if algorithm == "kmeans" else model.means_
        fitted = measure(np.asarray(centres))
        decoder = str(model.decoder_)
        setting = algorithm, float(epsilon), L, trial, decoder
        unit = ReplaceOne() if settings.unit is None else settings.unit
        trials.append(Trial(*setting, fitted, mechanism, unit))
    if progress is not None:
        progress(len(runs), len(runs))
    return Sweep(measure(best), tuple(trials))


def price_of(mechanism: BPM, unit: Unit) -> float:
    """The epsilon of a report at the unit."""
    event = mechanism.event(unit)
    assert isinstance(event, Pure)
    return event.epsilon


def _percentile(values: Values, percent: float) -> float:
    values = values[~np.isnan(values)]
    return float(np.percentile(values, percent)) if values.size else math.nan
