r"""Class prototypes: exact sensitivity, noise for each class, and noise-aware scores.

The ridge prototypes minimise sum_i |x_i - mu_{y_i}|^2 / n + (lam/2) sum_c |mu_c|^2, so

    mu_c = 2 S_c / (2 n_c + lam n),   S_c the sum of the n_c rows of class c,

and lam = 0 gives the means. At `Ball(r)` one record moves by at most r and keeps its
label: the counts stay, one block moves, by *exactly* 2 |x - x'| / (2 n_y + lam n). With

    sigma_c = w * 2 / (2 n_c + lam n)

each pair of worlds is a single Gaussian shift of size |x - x'| / w in block y, whatever
the class: the release is exactly mu-GDP with mu = r / w, parallel over the classes.
Nothing is claimed at `ReplaceOne`: there the counts change, and sigma_c reveals them.

Rows are summed exactly, on a grid (`rows.class_sums`): snapping moves the two versions
of a record apart by at most g sqrt(d), and one division rounds; both are added to r.

**Distances.** A noisy prototype p_c is longer: E|p_c|^2 = |mu_c|^2 + d sigma_c^2, so
classes with few records look far from everything. The score of x is therefore

    2 <x - m, p_c - m> - q_c,    m = the mean of the p_c, weighted by 1 / sigma_c^2,

q_c an estimate of |mu_c - m|^2: the known noise d (sigma_c^2 - 1/sum 1/sigma^2) comes
off |p_c - m|^2, and the estimates are shrunk to their weighted mean by as much as their
own variance exceeds what is seen between classes. All of it is computed from released
numbers alone (post-processing), by a rule fixed in advance; without noise it is the
nearest prototype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.convex.rows.totals import UNIT_ROUNDOFF
from demur.convex.sensitivity.form import ball_of
from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.bounds import Bound
from demur.core.curve import PiecewiseLinear
from demur.core.promise import Promise
from demur.mechanisms import Gaussian

Array = NDArray[np.float64]

UNPROTECTED = (
    "labels, the number of records of each class (its noise reveals it) and n",
    "hyper-parameters and the norm bound, which are public",
)


@dataclass(frozen=True)
class PrototypePlan:
    """The noise for given class counts; all of it is public at `Ball`."""

    counts: NDArray[np.int64]
    denominators: Array
    sigma: Array
    mechanism: Gaussian


def plan_prototypes(
    counts: NDArray[np.int64],
    promise: Promise,
    *,
    dimension: int,
    lam: float,
    bound: Bound,
    step: float,
    assumptions: tuple[str, ...] = (),
) -> PrototypePlan:
    """The least noise for each class that meets the promise.

    `bound` is the norm bound of the rows, `step` that of the grid they are summed on.
    """
    validate.non_negative(lam=lam)
    unit, norm_bound = ball_of(promise), bound.value
    validate.positive(norm_bound=norm_bound)
    denominators = (2.0 * counts + lam * counts.sum()) / 2.0
    # In units of a row: what snapping, and the rounding of one division, can add.
    slack = math.sqrt(dimension) * step
    slack += 16.0 * UNIT_ROUNDOFF * float(counts.max()) * norm_bound
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    reserve = 1.0 + 1e-9
    width = (min(unit.radius, 2.0 * norm_bound) + slack) * reserve / mu
    for _ in range(8):
        sigma = width / denominators
        mechanism = Gaussian(
            np.repeat(sigma, dimension),
            {unit.space: _curve(width, slack, norm_bound, reserve)},
            dimension * len(counts),
            "class prototypes with Gaussian noise for each class",
            (bound,),
            UNPROTECTED,
            assumptions,
        )
        event = mechanism.event(unit)
        assert isinstance(event, GaussianEvent)
        # A margin far above rounding: the ledger compares exact squares.
        if 1.0 / event.multiplier <= mu * (1.0 - 1e-13):
            return PrototypePlan(counts, denominators, sigma, mechanism)
        # The mechanism's own grid costs a little as well.
        width *= (1.0 / event.multiplier) / mu * (1.0 + 1e-12)
    raise ValueError(f"no noise found for {promise}. Nothing was spent.")


def _curve(
    width: float, slack: float, norm_bound: float, reserve: float
) -> PiecewiseLinear:
    """mu(r) = (r + slack) / width up to the diameter 2B of the rows."""
    end = 2.0 * norm_bound

    def mu(r: float) -> float:
        return (r + slack) * reserve / width * (1.0 + 2.0**-50)

    return PiecewiseLinear(((0.0, mu(0.0)), (end, mu(end))), saturates=True)


@dataclass(frozen=True)
class Scores:
    """The noise-aware nearest-prototype rule, computed from released numbers alone."""

    centre: Array
    directions: Array
    offsets: Array

    @classmethod
    def of(cls, prototypes: Array, sigma: Array, *, debias: bool = True) -> Scores:
        """The rule for released prototypes with noise of deviation sigma_c."""
        precision = 1.0 / sigma**2
        centre = precision @ prototypes / precision.sum()
        away = prototypes - centre
        squares = np.einsum("ij,ij->i", away, away)
        if not debias:
            return cls(centre, away, squares)
        # m shares noise with each p_c: the noise of p_c - m is that much smaller.
        variance = np.maximum(sigma**2 - 1.0 / precision.sum(), 0.0)
        return cls(centre, away, _shrunk_squares(squares, variance, away.shape[1]))

    def __call__(self, X: Array) -> Array:
        """Scores of rows; the largest is the nearest prototype."""
        return 2.0 * (X - self.centre) @ self.directions.T - self.offsets


def _shrunk_squares(squares: Array, variance: Array, dimension: int) -> Array:
    """Squared lengths with the noise's part taken off, shrunk to their mean."""
    estimates = squares - dimension * variance
    # The variance of |m + noise|^2 is 4 v |m|^2 + 2 d v^2; |m|^2 by its mean.
    spread = 2.0 * dimension * variance**2
    level = max(float(np.average(estimates, weights=_weights(spread))), 0.0)
    spread += 4.0 * variance * level
    weights = _weights(spread)
    level = max(float(np.average(estimates, weights=weights)), 0.0)
    between = max(
        float(np.average((estimates - level) ** 2 - spread, weights=weights)), 0.0
    )
    if between == 0.0:
        return np.full_like(estimates, level)
    shrunk: Array = level + (estimates - level) * between / (between + spread)
    return shrunk


def _weights(spread: Array) -> Array:
    return 1.0 / np.maximum(spread, np.finfo(np.float64).tiny * 1e16)
