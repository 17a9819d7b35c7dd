"""Mean and covariance of points, through the known noise of their reports.

About the middle c of the cube a report has the mean alpha (v - c) and, over points of
mean m and covariance C, the covariance alpha C + alpha (1 - alpha)(m - c)(m - c)' +
noise I. All but m and C is known, so both follow from the reports' moments. Reports
that lie too far out to be about a point are left out first (`PureNoise.within`).

The variance of points along the eigenvectors of that matrix is not its eigenvalues:
the largest ones are large because noise made them so. Here eigenvectors come from nine
tenths of the reports and the variance along them from the last tenth, in turn, which
leaves an unbiased estimate with an error of known size. Many are lost in their error
(d = 64, epsilon 4: 0.07 in 0.13). They share a scale: with an exponential law of the
variances, whose mean is the trace's, the posterior mean of each has a closed form (a
truncated normal's), positive, near the estimate where that is sure and near the common
mean where it is not. The mean of a direction that nobody can see is then no reason to
trust it: `Moments.visible` counts the directions whose estimate is beyond its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.isotonic import isotonic_regression

from demur.cluster.decoding.noise import Noise

Array = NDArray[np.float64]

_FOLDS = 10
_FAR = -30.0
_NODES = 2000
_SMALLEST = 1e-4  # variance: a deviation of 0.01 of the cube


@dataclass(frozen=True, eq=False)
class Moments:
    """The mean of points, and their variance along orthogonal directions."""

    mean: Array
    directions: Array  # columns, from the largest variance on
    variances: Array
    visible: int  # leading directions whose variance is beyond its error
    mean_errors: Array  # variance of the estimated mean along the directions

    def root(self) -> Array:
        """R with R R' = 1 / covariance: (v - mean) @ R has the covariance I."""
        return self.directions / np.sqrt(self.variances)


def moments(reports: Array, noise: Noise) -> Moments:
    """Mean and covariance of the points behind reports that are in random order."""
    radius, spread = noise.within()
    alpha, variance = spread.informative, spread.noise
    centred = reports - 0.5
    if math.isfinite(radius):
        near = (centred**2).sum(axis=1) <= radius**2
        if near.any():
            centred = centred[near]
    n, d = centred.shape
    off = centred.mean(axis=0) / alpha
    square = float(((centred - centred.mean(axis=0)) ** 2).mean()) / (n * alpha**2)
    off = np.clip(_shrunk(off, square), -0.5, 0.5)
    rows = centred - alpha * off
    total = rows.T @ rows
    directions = _leading(total)
    folds = min(_FOLDS, n)
    squares = np.empty_like(rows)
    for fold in range(folds):
        here = rows[fold::folds]
        vectors = _leading(total - here.T @ here) if folds > 1 else directions
        # What is known of m in this direction goes with the noise.
        known = alpha * (1.0 - alpha) * (off @ vectors) ** 2 + variance
        squares[fold::folds] = ((here @ vectors) ** 2 - known) / alpha
    estimates = squares.mean(axis=0)
    errors = squares.std(axis=0) / math.sqrt(n) + 1e-12
    estimates = np.asarray(isotonic_regression(estimates, increasing=False))
    mean = 0.5 + off
    most = float((mean * (1.0 - mean)).sum()) + d * _SMALLEST
    trace = _between(float(estimates.sum()), float(np.sqrt((errors**2).sum())), most)
    variances = _positive(estimates, errors, trace / d)
    variances = np.maximum(np.minimum.accumulate(variances), _SMALLEST)
    visible = int((estimates > errors).argmin()) if (estimates <= errors).any() else d
    # The variance of reports along a direction by the formula above: the eigenvalues
    # of few reports are too small in the last directions.
    turned = alpha * variances + alpha * (1.0 - alpha) * (off @ directions) ** 2
    mean_errors = (turned + variance) / (n * alpha**2)
    return Moments(mean, directions, variances, visible, mean_errors)


def _shrunk(means: Array, square: float) -> Array:
    """Means of a known squared error, pulled towards their average (James and Stein).

    From four coordinates on the sum of squared errors is smaller on average, whatever
    the means are: much where they are alike, as pixels of few reports, and hardly
    where they differ by more than their error.
    """
    middle = means.mean()
    gaps = means - middle
    total = float(gaps @ gaps)
    if len(means) < 4 or total == 0.0:
        return means
    return np.asarray(middle + gaps * max(0.0, 1.0 - (len(means) - 3) * square / total))


def _leading(matrix: Array) -> Array:
    """Eigenvectors, from the largest eigenvalue on."""
    return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, ::-1])


def _between(estimate: float, error: float, most: float) -> float:
    """The posterior mean of a variance up to `most` whose deviation is uniform before.

    A variance that is uniform itself would be large wherever nothing is seen.
    """
    deviations = (np.arange(_NODES) + 0.5) / _NODES * math.sqrt(most)
    logs = -0.5 * ((deviations**2 - estimate) / error) ** 2
    shares = np.exp(logs - logs.max())
    return float(shares @ deviations**2 / shares.sum())


def _positive(estimates: Array, errors: Array, scale: float) -> Array:
    """Posterior means of positive numbers that are exponential of mean `scale` before.

    The normal likelihood times the exponential law is a truncated normal.
    """
    scale = max(scale, _SMALLEST)
    shifted = estimates - errors**2 / scale
    z = shifted / errors
    near = np.maximum(z, _FAR)
    hazard = np.exp(stats.norm.logpdf(near) - stats.norm.logcdf(near))
    # Far out, z + hazard(z) is -1 / z, and its two terms would cancel.
    return np.asarray(
        np.where(z < _FAR, errors / np.maximum(-z, 1.0), errors * (z + hazard))
    )
