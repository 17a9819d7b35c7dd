"""Student-t mixtures of one round scale, by expectation maximisation (EM).

A t with nu degrees of freedom is N(mu, alpha / u I) with u ~ Gamma(nu/2, rate nu/2).
Given a point at squared distance D from mu, E[u] = (nu + d) / (nu + D / alpha), small
for an outlier. The M-step *multiplies* by it,

    mu_j = sum_i t_ij u_ij x_i / sum_i t_ij u_ij,
    alpha = sum t u D / (d sum t),

so that outliers count less (a step that divides, as some programs do, lets them count
more, and does not increase the likelihood). nu solves

    log(nu/2) - psi(nu/2) + 1 + mean(E[log u] - E[u]) = 0,
    E[log u] = psi((nu + d)/2) - log((nu + D / alpha)/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]

LARGEST_NU = 1000.0  # a Gaussian for all purposes
SMALLEST_NU = 0.1
_SMALLEST_SCALE = 1e-8


@dataclass(frozen=True, eq=False)
class StudentClusters:
    """t clusters of one round scale alpha (a variance times (nu - 2) / nu)."""

    weights: Array
    means: Array
    alpha: float
    nu: float

    def log_densities(self, rows: Array) -> Array:
        """log weight + log density, a column for each cluster."""
        d = rows.shape[1]
        squares = squared_distances(rows, self.means)
        constant = special.gammaln((self.nu + d) / 2) - special.gammaln(self.nu / 2)
        constant -= 0.5 * d * np.log(self.nu * np.pi * self.alpha)
        tail = np.log1p(squares / (self.nu * self.alpha))
        return np.log(self.weights) + constant - 0.5 * (self.nu + d) * tail


@dataclass(frozen=True, eq=False)
class StudentFit:
    """Clusters, and the total log-likelihood before each step."""

    clusters: StudentClusters
    log_likelihoods: tuple[float, ...]


def fit_students(
    rows: Array,
    start: StudentClusters,
    *,
    max_iter: int,
    tol: float,
    fixed_nu: bool = False,
) -> StudentFit:
    """Steps from `start` until the log-likelihood gains less than `tol`."""
    now, history = start, []
    for _ in range(max_iter):
        logs = now.log_densities(rows)
        history.append(float(special.logsumexp(logs, axis=1).sum()))
        if len(history) > 1 and history[-1] - history[-2] < tol:
            break
        now = student_step(rows, now, logs, fixed_nu=fixed_nu)
    return StudentFit(now, tuple(history))


def student_step(
    rows: Array, now: StudentClusters, logs: Array, *, fixed_nu: bool
) -> StudentClusters:
    """One E-step and one M-step."""
    n, d = rows.shape
    shares = special.softmax(logs, axis=1)
    squares = squared_distances(rows, now.means)
    pull = (now.nu + d) / (now.nu + squares / now.alpha)
    heavy = shares * pull
    means = heavy.T @ rows / heavy.sum(axis=0)[:, None]
    squares = squared_distances(rows, means)
    alpha = max(float((heavy * squares).sum()) / (n * d), _SMALLEST_SCALE)
    nu = now.nu
    if not fixed_nu:
        # E[u] and E[log u] at the parameters of the E-step.
        log_u = special.psi((now.nu + d) / 2) - np.log((now.nu + d) / 2) + np.log(pull)
        nu = degrees_of_freedom(float((shares * (log_u - pull)).sum()) / n)
    weights = np.maximum(shares.mean(axis=0), 1e-12)
    return StudentClusters(weights / weights.sum(), means, alpha, nu)


def degrees_of_freedom(moment: float) -> float:
    """The root nu of log(nu/2) - psi(nu/2) + 1 + moment, `moment` = E[log u - u].

    >>> from scipy.special import psi
    >>> import math
    >>> round(degrees_of_freedom(psi(3.5) - math.log(3.5) - 1.0), 6)
    7.0
    """

    def gap(nu: float) -> float:
        return float(np.log(nu / 2) - special.psi(nu / 2)) + 1.0 + moment

    # gap falls from infinity to 1 + moment <= 0 (as log u - u <= -1).
    if gap(LARGEST_NU) > 0.0:
        return LARGEST_NU
    if gap(SMALLEST_NU) < 0.0:
        return SMALLEST_NU
    return float(optimize.brentq(gap, SMALLEST_NU, LARGEST_NU))


def squared_distances(rows: Array, means: Array) -> Array:
    """|x_i - mu_j|^2, a column for each mean."""
    squares = np.empty((len(rows), len(means)))
    for j, mean in enumerate(means):
        squares[:, j] = ((rows - mean) ** 2).sum(axis=1)
    return squares
