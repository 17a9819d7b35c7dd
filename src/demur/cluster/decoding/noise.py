"""The law of a mechanism's noise, as decoders need it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from scipy import special

from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import ReportMechanism

_INVISIBLE = 1e-12  # weight of a uniform floor: below one report of many billions


@dataclass(frozen=True)
class PureNoise:
    """Density exp(log_peak - rate min(distance, threshold)) in `block` coordinates.

    A report has `dimension` coordinates: one block of all of them (BPM), or as many
    blocks as coordinates, independent of each other (per-dimension Laplace).
    """

    rate: float
    threshold: float
    block: int
    dimension: int

    @property
    def _law(self) -> BPM:
        return BPM(self.rate, self.threshold, self.block)

    @property
    def log_peak(self) -> float:
        """log density at distance 0."""
        return self._law.log_lambda_L

    @property
    def information(self) -> float:
        """The Fisher information of a report about each coordinate: k^2 p_L / d.

        The score has norm k inside the ball of radius L, and 0 outside.
        """
        return self.rate**2 * self._law.p_L / self.block

    @property
    def deviation(self) -> float:
        """The deviation of one coordinate of the unbounded noise."""
        return math.sqrt(self.block + 1.0) / self.rate

    def furthest(self, widest: float) -> float:
        """The distance beyond which log density is a straight line."""
        if math.isfinite(self.threshold):
            return self.threshold + 8.0 * widest
        radius = float(special.gammaincinv(self.block, 1.0 - 1e-9)) / self.rate
        return radius + math.sqrt(self.block) + 8.0 * widest


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, sigma^2) on every coordinate."""

    sigma: float
    dimension: int

    @property
    def information(self) -> float:
        """The Fisher information of a report about each coordinate."""
        return self.sigma**-2

    @property
    def block(self) -> int:
        """All coordinates together: the density depends on the distance alone."""
        return self.dimension

    @property
    def deviation(self) -> float:
        """sigma."""
        return self.sigma

    def furthest(self, widest: float) -> float:
        """The distance beyond which there are practically no reports."""
        root = math.sqrt(self.dimension)
        return root + (root + 8.0) * math.hypot(self.sigma, widest)


Noise: TypeAlias = PureNoise | GaussianNoise


def noise_of(mechanism: ReportMechanism) -> Noise:
    """The noise of a mechanism of this library; another is a TypeError."""
    match mechanism:
        case BPM():
            d = mechanism.dimension
            # With a floor that no report falls on it is multivariate Laplace, whose
            # density costs nothing to compute at any epsilon.
            invisible = mechanism.uniform_weight < _INVISIBLE
            L = math.inf if invisible else mechanism.L
            return PureNoise(mechanism.epsilon, L, d, d)
        case LaplaceReports():
            return PureNoise(mechanism.rate, math.inf, 1, mechanism.dimension)
        case GaussianReports():
            return GaussianNoise(mechanism.sigma, mechanism.dimension)
    raise TypeError(
        f"the noise of {type(mechanism).__name__} is not known to the noise-aware"
        " decoder; use decoder='clip' or 'plain'"
    )
