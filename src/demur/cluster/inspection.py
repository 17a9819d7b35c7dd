"""Inspection of BPM: reports of a public point, counted and compared with the density.

Nothing here touches data: reports of one public point are drawn and counted, in the
ball of radius L and in shells around the point. Within L a shell lies wholly in the
cube and its volume is exact; beyond, the part of the shell in the cube is measured with
uniform points of a fixed seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from demur.core import validate
from demur.core.entropy import Source
from demur.mechanisms.bpm import BPM
from demur.mechanisms.bpm.constants import log_ball_volume

Values = NDArray[np.float64]

CONFIDENCE = 0.99
_SHELLS_INSIDE, _SHELLS_OUTSIDE = 12, 6
_UNIFORM_NUMBERS = 2_000_000


@dataclass(frozen=True)
class Share:
    """The share of reports in the ball: counted, expected, and an exact interval."""

    inside: int
    samples: int
    expected: float

    @property
    def observed(self) -> float:
        """The share that was counted."""
        return self.inside / self.samples

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's interval at 99%."""
        interval = stats.binomtest(self.inside, self.samples).proportion_ci(CONFIDENCE)
        return float(interval.low), float(interval.high)

    @property
    def agrees(self) -> bool:
        """Whether the expected share lies in the interval."""
        low, high = self.interval
        return low <= self.expected <= high


@dataclass(frozen=True)
class Shell:
    """Reports between two radii: the logarithm of their density, with an interval."""

    inner: float
    outer: float
    count: int
    log_density: float  # -infinity where nothing was counted
    low: float
    high: float


@dataclass(frozen=True)
class Inspection:
    """Local reports of one public point, and how many fell where."""

    mechanism: BPM
    point: Values
    reports: Values
    share: Share
    shells: tuple[Shell, ...]

    def expected_log_density(self, radius: Values) -> Values:
        """log density at a radius: slope -epsilon up to L, constant from there on."""
        cut = np.minimum(radius, self.mechanism.L)
        return self.mechanism.log_lambda_L - self.mechanism.epsilon * cut


def inspect(
    mechanism: BPM,
    samples: int,
    *,
    point: Values | None = None,
    source: Source | None = None,
) -> Inspection:
    """Draw `samples` reports of a public point (default: the middle) and count them.

    A `Seeded` source repeats the reports, for a picture; they are not private.
    """
    validate.count(samples=samples)
    d = mechanism.dimension
    at = np.full(d, 0.5) if point is None else np.asarray(point, dtype=np.float64)
    points = mechanism.check(np.tile(at, (samples, 1)))
    reports = mechanism.privatize(points, source=source).value.values
    distances = np.linalg.norm(reports - at, axis=1)
    share = Share(int((distances <= mechanism.L).sum()), samples, mechanism.p_L)
    return Inspection(mechanism, at, reports, share, _shells(mechanism, at, distances))


def _shells(bpm: BPM, at: Values, distances: Values) -> tuple[Shell, ...]:
    d = bpm.dimension
    edges: list[tuple[float, float]] = []
    volumes: list[float] = []
    # Up to a radius that holds most of the mass, so that shells are not all empty.
    reach = min(bpm.L, special.gammaincinv(d, 0.999) / bpm.epsilon)
    if reach > 0.0:
        inside = np.linspace(0.0, reach, _SHELLS_INSIDE + 1)
        edges += list(zip(inside, inside[1:], strict=False))
        shares = np.log1p(-((inside[:-1] / inside[1:]) ** d))
        volumes += list(log_ball_volume(d) + d * np.log(inside[1:]) + shares)
    if math.isfinite(bpm.L):
        # Shells of equal volume in the cube beyond L, from uniform points.
        rng = np.random.default_rng(0)
        drawn = rng.random((max(1000, _UNIFORM_NUMBERS // d), d))
        far = np.linalg.norm(drawn * (1 + 2 * bpm.L) - bpm.L - at, axis=1)
        beyond = far[far > bpm.L]
        cuts = np.quantile(beyond, np.linspace(0, 1, _SHELLS_OUTSIDE + 1))
        cuts[0], cuts[-1] = bpm.L, math.inf
        each = len(beyond) / len(far) / _SHELLS_OUTSIDE
        edges += list(zip(cuts, cuts[1:], strict=False))
        whole = d * math.log1p(2 * bpm.L)
        volumes += [math.log(each) + whole] * _SHELLS_OUTSIDE
        edges[-1] = (edges[-1][0], float(max(far.max(), distances.max())))
    return tuple(
        _shell(float(a), float(b), distances, float(v))
        for (a, b), v in zip(edges, volumes, strict=True)
        if b > a
    )


def _shell(inner: float, outer: float, distances: Values, log_volume: float) -> Shell:
    n = len(distances)
    count = int(((distances > inner) & (distances <= outer)).sum())
    interval = stats.binomtest(count, n).proportion_ci(CONFIDENCE)
    return Shell(
        inner, outer, count, *(_log(p) - log_volume for p in (count / n, *interval))
    )


def _log(p: float) -> float:
    return math.log(p) if p > 0.0 else -math.inf
