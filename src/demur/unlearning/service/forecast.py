"""Forecast of what the noise of deletions does to a service's answers.

Mode `ogd` keeps its noise in the weights. A deletion at tick s adds variance
(z G / (lambda (s + t0)))^2 to each weight, z the multiplier of the request, and every
later tick shrinks it by at least (t + t0 - 1) / (t + t0). So at tick t all deletions of
the epoch come to a variance of at most

    V = used sigma_1(t)^2,   sigma_1(t) the deviation of a first request made now:

what `used` counts of the capacity is noise in units of first requests. It is an upper
bound: learning takes noise away faster where rows have weight, so that V is exact for
new noise and too large for old (9 times in a deviation, after half as many records
again, in two features). In a row of norm
B the score is off by a normal number of deviation sqrt(V) B (`score_noise`), whatever
the data.

`flipped` is, at that bound, the expected share of rows whose answer differs from the
one without noise. For one score and rows in all directions alike it is the angle
between the weights with and without noise, over pi. Over classes it is a sum over the
classes that might overtake the first one (at most 1 - 1/K), on random directions. The
length of the weights without noise is estimated from the published ones, so that
nothing but published numbers is used. With `rows` it is the share among them. The loss
of accuracy is at most that share.

Mode `logistic` noises each published copy alike; `ridge` takes no noise. The noise of
publications, where answers are published, is not counted here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from demur.core import validate
from demur.core.bounds import real_array
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.service_prices import DeletionPrices


@dataclass(frozen=True)
class NoiseForecast:
    """The noise in scores and the share of flipped answers: now, and after `deletions`.

    `deletions` are first requests of one record, each by another person.
    """

    deletions: int
    score_noise: float
    score_noise_after: float
    flipped: float
    flipped_after: float

    def __str__(self) -> str:
        return (
            f"noise of deletions flips at most about {self.flipped:.1%} of answers"
            f" (score noise {self.score_noise:.3g}); after {self.deletions} more"
            f" {self.flipped_after:.1%} ({self.score_noise_after:.3g})"
        )


def one_request(mode: Mode, prices: DeletionPrices) -> float:
    """The deviation of the noise of a first request of one record, made now."""
    if prices.exact:
        return 0.0
    return prices.price().multiplier * mode.shift_bound()


def score_noise(mode: Mode, prices: DeletionPrices, used: int) -> float:
    """The deviation of a score of a row at the norm bound, from public numbers alone.

    A mode that noises its output has the noise of one copy, once there is one.
    """
    one = one_request(mode, prices) * _norm_bound(mode)
    if mode.publishes == "output":
        return one if used else 0.0
    return math.sqrt(used) * one


def forecast(
    mode: Mode,
    prices: DeletionPrices,
    used: int,
    *,
    deletions: int = 100,
    rows: ArrayLike | None = None,
) -> NoiseForecast:
    """The noise so far and after further deletions; see the module's argument."""
    validate.count(deletions=deletions)
    per_request = prices.price().used
    now = score_noise(mode, prices, used)
    after = score_noise(mode, prices, used + deletions * per_request)
    bound = _norm_bound(mode)
    shown = mode.published()
    matrix = None if rows is None else _rows(mode, rows)
    flips = [
        _flipped(mode, shown, now / bound, noise / bound, matrix)
        for noise in (now, after)
    ]
    return NoiseForecast(int(deletions), now, after, *flips)


def _rows(mode: Mode, rows: ArrayLike) -> Array:
    matrix = np.atleast_2d(real_array("rows", rows, "a matrix"))
    if matrix.shape[1] != mode.dimension or not len(matrix):
        raise ValueError(
            f"rows must have shape (rows, {mode.dimension}); got {matrix.shape}"
        )
    return matrix


def _norm_bound(mode: Mode) -> float:
    # A mode that bounds each feature for itself (standardised_ridge) takes no noise.
    return float(mode.config().get("norm_bound", 1.0))


def _flipped(
    mode: Mode, shown: Array, now: float, noise: float, rows: Array | None
) -> float:
    """The share of answers that noise of deviation `noise` in each weight flips.

    `now` is the deviation that `shown` has already.
    """
    measured = float(shown @ shown)
    if noise == 0.0 or measured == 0.0:  # or nothing has been learned or published
        return 0.0
    length = math.sqrt(max(measured - now**2 * shown.size, 0.0))
    if rows is None and mode.classes is None:
        return _angle(length, noise, mode.dimension)
    if rows is None:
        few = max(min(1000, 2**22 // mode.dimension), 1)
        rows = np.random.default_rng(0).normal(size=(few, mode.dimension))
    shrunk = shown * (length / math.sqrt(measured))
    norms = np.linalg.norm(rows, axis=1)
    rows, norms = rows[norms > 0.0], norms[norms > 0.0]
    if not len(rows):
        return 0.0
    if mode.classes is None:
        return float(np.mean(ndtr(-np.abs(rows @ shrunk) / (noise * norms))))
    scores = rows @ shrunk.reshape(mode.classes, mode.dimension).T
    margins = scores.max(axis=1, keepdims=True) - scores
    overtaken = ndtr(-margins / (math.sqrt(2.0) * noise * norms[:, None])).sum(axis=1)
    # The first class itself is no rival: its margin of 0 counted one half.
    return float(np.mean(np.minimum(overtaken - 0.5, 1.0 - 1.0 / mode.classes)))


def _angle(length: float, noise: float, dimension: int) -> float:
    """The mean angle that noise turns weights of this length by, over pi."""
    if dimension == 1:
        return float(ndtr(-length / noise))
    # The mean length of the noise across the weights, of d - 1 dimensions.
    across = math.exp(math.lgamma(dimension / 2) - math.lgamma((dimension - 1) / 2))
    return math.atan2(math.sqrt(2.0) * noise * across, length) / math.pi
