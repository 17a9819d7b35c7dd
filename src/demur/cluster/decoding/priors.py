"""Priors of round clusters that set their own strength.

**Weights.** A Dirichlet law of concentration a adds a points to every cluster. With a
fixed, a large a loses small clusters (30 points of prior outweigh the evidence of 250
reports) and a small one lets clusters die where reports are few. Here a is unknown, log
a uniform between 0 and log 100: exchangeable, without a scale of n or K in it. Given
the concentration the density depends on the weights by S = sum_j log w_j alone, so

    log p(w) = log sum_a p(a) exp(lgamma(K a) - K lgamma(a) + a S)

is a function of one number, a sum over a grid of a (in the logits of w; the Jacobian of
the softmax is e^S). Its slope in S is E[a | w]: near equal weights about 40 points a
cluster, at a weight of 1 in 120 one or two.

**Centres.** A centre is a mean of points, so centres are no farther from the mean of
all points than the points are. With the mean m and the covariance C of the points
estimated through the noise (`moments`), a centre is a Student-t around m with the scale
C: where reports say little it is pulled towards m, in the directions in which points
hardly vary most of all; the t's tails let a small cluster lie far from the others. m
and C have errors of their own, though: of 300 reports at epsilon 2 the variance of
points in the plane is 0.1 with an error of 0.06. Up to 12 dimensions half of the law of
a centre is therefore uniform in the cube (`CentrePrior.in_cube`): beyond where the t
is denser than 1, centres are not pulled by what was estimated badly. (In more
dimensions the cube is so wide that its density is nothing beside the t's.)

**Widths.** log s_j is normal around their mean, of the deviation 0.5: clusters of one
width unless reports say otherwise. It is uniform up to s_0 = sigma K^(-1/d), with
sigma^2 the mean variance of the points' coordinates, and normal of the deviation 0.25
beyond. K centres leave at most sigma^2 K^(-2/d) of the variance of a Gaussian (its rate
is the largest of all laws of that variance), so that no cell of the best k-means is
wider, whether there are clusters or not. Without this bound few reports cannot tell
three separate clusters from three wide ones on top of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

_LARGEST_CONCENTRATION = 100.0
_GRID = 41
_TAILS = 4.0  # degrees of freedom of the centres' law
_WIDTHS_APART = 0.5  # deviation of log width between clusters
_BEYOND = 0.25  # and of log width beyond the widest cell of a k-means


@lru_cache(maxsize=64)
def _concentrations(clusters: int) -> tuple[Array, Array]:
    grid = np.exp(np.linspace(0.0, np.log(_LARGEST_CONCENTRATION), _GRID))
    logs = special.gammaln(clusters * grid) - clusters * special.gammaln(grid)
    logs[[0, -1]] -= np.log(2.0)  # the trapezoidal rule in log a
    return grid, logs - np.log(_GRID - 1.0)


def weight_prior(log_weights: Array) -> tuple[Array, Array]:
    """log p of the weights, in their logits, and the points it adds to each cluster.

    >>> import numpy as np
    >>> [round(weight_prior(np.log(w))[1]) for w in ([0.5, 0.5], [0.99, 0.01])]
    [37, 1]
    """
    log_weights = np.asarray(log_weights)
    grid, logs = _concentrations(log_weights.shape[-1])
    terms = logs + grid * log_weights.sum(axis=-1, keepdims=True)
    top = terms.max(axis=-1)
    shares = np.exp(terms - top[..., None])
    total = shares.sum(axis=-1)
    return top + np.log(total), (shares @ grid) / total


@dataclass(frozen=True, eq=False)
class CentrePrior:
    """A Student-t of the centres: its middle, and a square root of 1 / covariance."""

    middle: Array
    root: Array  # rows: (mu - middle) @ root has covariance I
    anywhere: float = -np.inf  # log density of a uniform part, over the t's at `middle`

    @classmethod
    def in_cube(cls, middle: Array, root: Array) -> CentrePrior:
        """Half of it the Student-t, and half uniform in the unit cube."""
        d = len(middle)
        peak = special.gammaln(0.5 * (_TAILS + d)) - special.gammaln(0.5 * _TAILS)
        peak -= 0.5 * d * np.log(_TAILS * np.pi)
        return cls(middle, root, float(-peak - np.linalg.slogdet(root)[1]))

    def __call__(self, centers: Array) -> tuple[Array, Array]:
        """log p of one or many sets of centres up to a constant, and its gradient."""
        turned = (centers - self.middle) @ self.root
        squares = (turned**2).sum(axis=-1)
        power = 0.5 * (_TAILS + self.root.shape[1])
        logs = -power * np.log1p(squares / _TAILS)
        both = np.logaddexp(logs, self.anywhere)
        pull = -2.0 * power / (_TAILS + squares) * np.exp(logs - both)
        return both.sum(axis=-1), (pull[..., None] * turned) @ self.root.T

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Centres drawn from it."""
        z = rng.normal(size=(count, self.root.shape[1]))
        z *= np.sqrt(_TAILS / rng.chisquare(_TAILS, size=count))[:, None]
        return self.middle + z @ np.linalg.pinv(self.root)


def width_prior(log_widths: Array, widest: float) -> tuple[Array, Array]:
    """log p of widths around their mean and up to log s_0, and its gradient."""
    gaps = (log_widths - log_widths.mean(axis=-1, keepdims=True)) / _WIDTHS_APART
    beyond = np.maximum(log_widths - widest, 0.0) / _BEYOND
    value = -0.5 * (gaps**2 + beyond**2).sum(axis=-1)
    return value, -gaps / _WIDTHS_APART - beyond / _BEYOND
