r"""The decision rule for noisy prototypes: what each class's evidence is worth.

Released are p_c = mu_c + sigma_c N(0, I_d), the sigma_c are known, and a class c has
the prior weight pi_c. For a centre m and a row x let

    g_c(x) = 2 <x - m, mu_c - m> - |mu_c - m|^2 = |x - m|^2 - |x - mu_c|^2,

the evidence for class c. Only its noisy version G_c is known: 2 <x - m', p_c - m'> less
an estimate of M_c = |mu_c - m|^2, around a centre m' with noise of its own, of variance
sigma_m^2 in each coordinate. Given x and m' the noise of G_c is Gaussian. Its variance
is known and differs by class: with v_c that of p_c - m', in each coordinate,

    s_c^2 = 4 v_c |x - m'|^2 + 4 sigma_m^2 M_c

from 2 <x - m', noise of p_c - m'> and 2 <noise of m', mu_c - m>. (|x - m'| has the
noise of the centre in it: it meets that of p_c, for all rows alike.)

**The rule** takes the class with the largest

    log pi_c + G_c / (2 (omega^2 + sigma_m^2 + v_c |x - m'|^2 / M_c)),            (R)

omega^2 the variance of a class along one direction. `predict_proba` is its softmax.

**What it is optimal for.** Let x = mu_y + e with e ~ N(0, omega^2 I), and let the means
be orthogonal around m. Then the g_c are independent given y, with

    g_y ~ N(M_y, 4 omega^2 M_y),    g_c ~ N(-M_c, 4 omega^2 M_c)  for c != y,

so G_c has the same means and the variance w_c = 4 omega^2 M_c + s_c^2. The likelihood
of (G_1, ..., G_K) under y is the product over all c of N(G_c; -M_c, w_c), which is the
same for every y, times the ratio N(G_y; M_y, w_y) / N(G_y; -M_y, w_y), which is
exp(2 M_y G_y / w_y). Hence P(y | G) is proportional to pi_y exp(2 M_y G_y / w_y), and
2 M_y / w_y is the factor in (R). So (R) is the Bayes rule: no function of the noisy
evidence errs less often in this model, and the softmax of (R) is its posterior.

- Without noise (R) is log pi_c - |x - mu_c|^2 / (2 omega^2) up to a constant: linear
  discriminant analysis, and with equal weights the nearest prototype.
- A class whose noise drowns its mean has the score log pi_c, whatever was drawn. It
  can neither win at random nor be pushed away by the length of its own noise. Where
  noise drowns all of them, the largest class wins.

**Where the numbers come from**: released ones and public ones, by a rule fixed here.

- m' is the mean of the p_c with weights 1 / (t^2 + sigma_c^2), where d t^2 is the
  typical M_c: the best linear estimate of the centre of exchangeable class means.
  m' shares noise with every p_c; the covariance is known and is taken off.
- |p_c - m'|^2 less its known noise estimates M_c without bias. The estimates are shrunk
  to their common level by as much as their own variance exceeds what is seen between
  classes. The level lies between 0 and B^2, as class means lie in the ball of the norm
  bound B: its estimate is the mean of N(estimate, error^2) cut at both, so that it is
  neither 0 nor the length of noise where noise drowns everything.
- The distance of a class from the centre is a part of that of its rows, so that M_c
  counts as |x - m|^2 at most. Here and below |x - m|^2 is |x - m'|^2 less the known
  noise of the centre.
- omega^2 = (|x - m|^2 - level) / D: what is left of the row's own squared length,
  spread over D directions. D = (sum 1/j)^2 / sum 1/j^2, j up to d, is the effective
  number of dimensions of a spectrum that falls as 1/j. D is the one number that is
  assumed and not read off the release. It does not matter where classes have equal
  noise and equal weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.mechanisms.estimates import bounded_mean

Array = NDArray[np.float64]

_ROUNDS = 4  # centre and level depend on each other; three rounds settle them
_SMALLEST_SHARE = 0.1  # is left of a squared length when a known part is taken off
_SMALLEST_SQUARE = 0.01  # of the level, for the M_c of one class
_TINY = 1e-290


@dataclass(frozen=True)
class PrototypeRule:
    """The rule (R), its numbers estimated from released prototypes.

    >>> prototypes, sigma = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.1, 0.1])
    >>> rule = PrototypeRule.of(prototypes, sigma, np.array([0.5, 0.5]))
    >>> rule(np.array([[0.9, 0.2], [0.1, 0.8]])).argmax(axis=1)
    array([0, 1])
    """

    centre: Array
    directions: Array
    offsets: Array
    squares: Array
    variances: Array
    level: float
    centre_variance: float
    log_prior: Array

    @classmethod
    def of(
        cls,
        prototypes: Array,
        sigma: Array,
        prior: Array,
        norm_bound: float = math.inf,
    ) -> PrototypeRule:
        """The rule for prototypes with noise of deviation sigma_c and weights pi_c.

        The class means lie in the ball of `norm_bound` around 0.
        """
        dimension = prototypes.shape[1]
        weights, level = 1.0 / sigma**2, 0.0
        for _ in range(_ROUNDS):
            centred = _Centred.of(prototypes, sigma, weights)
            level, errors = centred.level(level, norm_bound**2)
            weights = 1.0 / (level / dimension + sigma**2)
        squares = centred.shrunk(level, errors)
        return cls(
            centred.centre,
            centred.away,
            squares - 2.0 * dimension * centred.shared,
            squares,
            centred.variance,
            level,
            centred.centre_variance,
            np.log(np.maximum(prior, _TINY)),
        )

    def __call__(self, X: Array) -> Array:
        """The scores (R) of rows; the largest is the most probable class."""
        away, dimension = X - self.centre, X.shape[1]
        evidence = 2.0 * away @ self.directions.T - self.offsets
        noisy = np.einsum("ij,ij->i", away, away)
        lengths = _less(noisy, dimension * self.centre_variance)
        spread = _less(lengths, self.level) / effective_dimension(dimension)
        squares = np.minimum(self.squares, np.maximum(lengths, _TINY)[:, None])
        noise = noisy[:, None] * self.variances / squares
        variance = spread[:, None] + self.centre_variance + noise
        scores: Array = self.log_prior + evidence / (2.0 * np.maximum(variance, _TINY))
        return scores


@dataclass(frozen=True)
class _Centred:
    """Prototypes around their weighted mean, and what noise they have there."""

    centre: Array
    away: Array
    estimates: Array  # of M_c, without bias
    variance: Array  # of the noise of p_c - m, in each coordinate
    shared: Array  # the covariance of the noises of p_c - m and m
    centre_variance: float
    leverage: Array  # E M_c over the level, for exchangeable means

    @classmethod
    def of(cls, prototypes: Array, sigma: Array, weights: Array) -> _Centred:
        shares, squares = weights / weights.sum(), sigma**2
        others = _sum_of_others(shares)
        centre = shares @ prototypes
        away = prototypes - centre
        parts = shares**2 * squares
        variance = others**2 * squares + _sum_of_others(parts)
        lengths = np.einsum("ij,ij->i", away, away)
        return cls(
            centre,
            away,
            lengths - prototypes.shape[1] * variance,
            variance,
            shares * squares - parts.sum(),
            float(parts.sum()),
            np.maximum(others**2 + _sum_of_others(shares**2), _TINY),
        )

    def level(self, guess: float, largest: float) -> tuple[float, Array]:
        """The typical M_c, and the variances of each class's estimate of it."""
        dimension, level = self.away.shape[1], guess
        for _ in range(2):
            # The variance of |a + noise|^2 is 4 v |a|^2 + 2 d v^2.
            errors = 4.0 * self.variance * level / self.leverage
            errors += 2.0 * dimension * (self.variance / self.leverage) ** 2
            weights = 1.0 / np.maximum(errors, _TINY)
            mean = float(weights @ (self.estimates / self.leverage) / weights.sum())
            level = bounded_mean(mean, weights.sum() ** -0.5, largest)
        return level, errors

    def shrunk(self, level: float, errors: Array) -> Array:
        """M_c for each class: its own estimate, drawn to the level."""
        estimates = self.estimates / self.leverage
        weights = (errors.min() / np.maximum(errors, _TINY)) ** 2
        between = float(np.average((estimates - level) ** 2 - errors, weights=weights))
        drawn = np.full_like(estimates, level)
        if between > 0.0:
            drawn += (estimates - level) * between / (between + errors)
        squares: Array = np.maximum(self.leverage * drawn, _SMALLEST_SQUARE * level)
        return squares


def effective_dimension(dimension: int) -> float:
    """(sum of eigenvalues)^2 / (sum of their squares) for eigenvalues 1/j.

    >>> round(effective_dimension(384), 2)
    25.96
    """
    inverse = 1.0 / np.arange(1, dimension + 1)
    return float(inverse.sum() ** 2 / (inverse @ inverse))


def _less(squares: Array, known: float) -> Array:
    """Squared lengths without a known part, a share of the larger one at least."""
    return np.maximum(squares - known, _SMALLEST_SHARE * np.maximum(squares, known))


def _sum_of_others(values: Array) -> Array:
    """For each entry the sum of all the others, without cancellation."""
    before = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    after = np.concatenate([np.cumsum(values[::-1])[::-1][1:], [0.0]])
    others: Array = before + after
    return others
