"""Noise distributions (laws) as exact distribution functions.

A `Law` is a continuous distribution and the step of the lattice its draws are rounded
to (0 for none). A draw x of a rounded law means that the continuous value fell into
(x - step/2, x + step/2), so the exact probability of a run of lattice points is a
difference of the continuous distribution function at half steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from demur.core import validate
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplaceReports
from demur.mechanisms.bpm.constants import log_gamma_p

Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """A distribution by its cdf and quantiles; `step` is the lattice's, or 0.

    `family(ratio)` is the same law with its scale off by `ratio`; without it, draws
    are multiplied by `ratio`.
    """

    name: str
    cdf: Callable[[Any], Any]
    quantile: Callable[[Any], Any]
    step: float = 0.0
    family: Callable[[float], Law] | None = None

    def __post_init__(self) -> None:
        validate.name(name=self.name)
        validate.non_negative(step=self.step)

    def edges(self, probabilities: ArrayLike) -> Values:
        """Quantiles, moved to the nearest place between two lattice points."""
        edges = np.asarray(self.quantile(np.asarray(probabilities, dtype=np.float64)))
        if self.step:
            edges = (np.floor(edges / self.step) + 0.5) * self.step
        return np.unique(edges)

    def uniform(self, draws: Values) -> Values:
        """The probability transform, at the middle of a draw's lattice cell."""
        if not self.step:
            return np.asarray(self.cdf(draws))
        half = self.step / 2.0
        return np.asarray((self.cdf(draws - half) + self.cdf(draws + half)) / 2.0)

    def off_by(self, ratio: float) -> Law:
        """The law whose scale is wrong by `ratio`."""
        validate.positive(ratio=ratio)
        if self.family is not None:
            return self.family(ratio)
        return Law(
            f"{self.name}, {ratio:.4g} times as wide",
            lambda x: self.cdf(np.asarray(x) / ratio),
            lambda p: np.asarray(self.quantile(p)) * ratio,
            self.step,
        )

    def rescaled(self, draws: Values, ratio: float, rng: np.random.Generator) -> Values:
        """Draws of the law off by `ratio`, made from draws of this one.

        Each is moved to the same quantile of the other law. Lattice points are first
        spread over their cells, or drawn again where the lattice is coarse: points
        cannot fill the gaps that stretching leaves.
        """
        other, inside = self.off_by(ratio), draws
        if self.step:
            spread = float(self.quantile(0.75) - self.quantile(0.25))
            if spread >= 64.0 * self.step:
                inside = draws + (rng.random(draws.shape) - 0.5) * self.step
            else:
                inside = np.asarray(self.quantile(rng.random(draws.shape)))
        level = np.clip(self.cdf(inside), 2.0**-60, 1.0 - 2.0**-53)
        moved = np.asarray(other.quantile(level))
        return np.rint(moved / self.step) * self.step if self.step else moved


def normal(sigma: float, step: float = 0.0) -> Law:
    """N(0, sigma^2), rounded to multiples of `step` where that is positive."""
    validate.positive(sigma=sigma)
    return Law(
        f"N(0, {sigma:.6g}^2)" + (f" on steps of {step:g}" if step else ""),
        lambda x: special.ndtr(np.asarray(x) / sigma),
        lambda p: special.ndtri(p) * sigma,
        step,
    )


def laplace(rate: float, step: float = 0.0) -> Law:
    """Density rate/2 e^(-rate |x|), rounded to multiples of `step`."""
    validate.positive(rate=rate)

    def cdf(x: Any) -> Any:
        tail = 0.5 * np.exp(-rate * np.abs(x))
        return np.where(np.asarray(x) < 0, tail, 1.0 - tail)

    def quantile(p: Any) -> Any:
        p = np.asarray(p, dtype=np.float64)
        with np.errstate(divide="ignore"):
            size = -np.log(2.0 * np.minimum(p, 1.0 - p)) / rate
        return np.where(p < 0.5, -size, size)

    return Law(f"Laplace of rate {rate:.6g}", cdf, quantile, step)


def bpm_radius(bpm: BPM) -> Law:
    """|x - v| of a report, given that it is at most L.

    Off by a ratio means another rate epsilon at the same L. The report is rounded to a
    grid of 2^-16 of its noise; what that does to the radius is far below what the
    draws of a test can see.
    """
    return _cut_gamma(bpm.dimension, bpm.epsilon, bpm.L)


def _cut_gamma(d: int, rate: float, L: float) -> Law:
    whole = math.exp(log_gamma_p(d, rate * L)) if math.isfinite(L) else 1.0
    return Law(
        f"the radius of BPM at epsilon {rate:.6g}, L {L:.6g} in {d} dimensions",
        lambda r: special.gammainc(d, rate * np.clip(r, 0.0, L)) / whole,
        lambda p: special.gammaincinv(d, np.asarray(p) * whole) / rate,
        family=lambda ratio: _cut_gamma(d, rate / ratio, L),
    )


def law_of(mechanism: object) -> Law:
    """The law of one coordinate of the noise; for BPM, of the radius.

    The noise of a local report is the report minus its point, if the point lies on the
    mechanism's grid (0 does).
    """
    match mechanism:
        case Gaussian(sigma=float(sigma), grid=float(grid)):
            return normal(sigma, grid)
        case GaussianReports():
            row = mechanism._row("cube")
            return normal(mechanism.sigma, float(row.grid))
        case LaplaceReports():
            return laplace(mechanism.rate, BPM(mechanism.rate, math.inf, 1).grid)
        case BPM():
            return bpm_radius(mechanism)
    raise TypeError(
        f"mechanism {type(mechanism).__name__} has no known law: construct a Law from"
        " its distribution function and quantiles"
    )
