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

_FAR_SHARE = 1e-4  # of reports that `within` leaves out beside those of the floor
_LITTLE = 0.02  # of the floor
_INVISIBLE = 1e-12  # weight of a uniform floor: below one report of many billions


@dataclass(frozen=True)
class Spread:
    """Moments of reports given their points v, about the middle c of the cube.

    E[x - c] = informative (v - c), and a coordinate of a report has the variance
    `noise` beyond that of informative points.
    """

    informative: float
    noise: float


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

    @property
    def spread(self) -> Spread:
        """A share of alpha has the variance of the ball's part, the rest the cube's."""
        law = self._law
        variance = law.alpha * law.excess_square / self.block
        if math.isfinite(self.threshold):
            variance += law.uniform_weight * (1.0 + 2.0 * self.threshold) ** 2 / 12.0
        return Spread(law.alpha, variance)

    def within(self) -> tuple[float, Spread]:
        """A radius about the middle of the cube, and the spread of reports within.

        Reports on the floor lie all over a wide cube. In many dimensions they are told
        from the others by their distance alone, and one in a hundred of them would be
        most of the reports' variance. A report of the other part is farther from its
        point than q once in 10,000, and its point sqrt(d) / 2 from the middle at most.
        Within T = q + sqrt(d) / 2 nearly all of that part is kept, whatever the point,
        and of the floor the share V_d T^d / (1 + 2L)^d, uniform in a ball. A ball that
        is not inside the cube of reports has less; where even the whole of it would
        have little of the floor that is as good. Otherwise all reports are kept.
        """
        law, d = self._law, self.block
        q = float(special.gammaincinv(d + 1.0, 1.0 - _FAR_SHARE)) / self.rate
        radius = q + 0.5 * math.sqrt(d)
        if d != self.dimension or math.isinf(self.threshold):
            return math.inf, self.spread
        log_share = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1.0)
        log_share += d * math.log(radius / (1.0 + 2.0 * self.threshold))
        inside = radius < 0.5 + self.threshold
        if not inside and log_share > math.log(_LITTLE):
            return math.inf, self.spread
        floor = law.uniform_weight * math.exp(log_share)
        informative = law.alpha / (law.alpha + floor)
        variance = informative * law.excess_square / d
        variance += (1.0 - informative) * radius**2 / (d + 2.0)
        return radius, Spread(informative, variance)

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

    @property
    def spread(self) -> Spread:
        """All of a report is about its point."""
        return Spread(1.0, self.sigma**2)

    def within(self) -> tuple[float, Spread]:
        """All reports: there is no floor."""
        return math.inf, self.spread

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
        " decoder; use decoder='clip' or 'plain'. Nothing was spent."
    )
