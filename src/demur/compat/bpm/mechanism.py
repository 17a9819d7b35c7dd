"""The constants of BPM under the original's names, in any dimension.

The original leaves the factor e^(-kL) out of the ball's mass, takes the surface of the
0-sphere to be 2 pi, and loses all digits to cancellation from about d = 17 on. Here
every number comes from the mixture identity of `demur.mechanisms.bpm.constants`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.mechanisms.bpm import mechanism as exact
from demur.mechanisms.bpm.constants import exp, log_ball_volume, log_gamma_p


def compute_ball_volume(d: int, R: float) -> float:
    """The volume of the d-dimensional ball of radius R.

    >>> round(compute_ball_volume(1, 0.5), 12), round(compute_ball_volume(3, 1.0), 4)
    (1.0, 4.1888)
    """
    validate.count(d=d)
    validate.non_negative(R=R)
    return exp(log_ball_volume(d) + d * math.log(R)) if R else 0.0


def compute_S3_integral(j: int) -> float:
    """The integral of sin^j from 0 to pi: sqrt(pi) Gamma((j + 1)/2) / Gamma(j/2 + 1).

    >>> [round(compute_S3_integral(j), 4) for j in (0, 1, 2, 3)]
    [3.1416, 2.0, 1.5708, 1.3333]
    """
    validate.non_negative(j=j)
    log = math.lgamma(0.5 * (j + 1)) - math.lgamma(0.5 * j + 1.0)
    return math.sqrt(math.pi) * math.exp(log)


def compute_B_L_integral(d: int, L: float, k: float) -> float:
    """The integral of e^(-k|x|) over the ball of radius L, its factor e^(-kL) included.

    d! V_d k^-d P(d, kL), with P the regularised lower incomplete gamma function.
    """
    bpm = exact.BPM(k, L, d)
    return exp(bpm.log_p_L + bpm.log_mu_L)


def compute_mu_L(d: int, L: float, k: float) -> float:
    """The integral of e^(-k min(|x - v|, L)) over the report space."""
    return exact.BPM(k, L, d).mu_L


def compute_lambda_L(d: int, L: float, k: float) -> float:
    """1 / mu_L, the density at the point itself."""
    return exact.BPM(k, L, d).lambda_L


def compute_p_L(d: int, L: float, k: float) -> float:
    """The probability that a report lies within L of its point.

    >>> round(compute_p_L(2, 0.3, 2.0), 4)
    0.1329
    """
    return exact.BPM(k, L, d).p_L


def compute_lambda_2r(d: int, L: float, k: float) -> float:
    """The constant of the radius law: k^d / (Gamma(d) P(d, kL)).

    With it, lambda_2r r^(d-1) e^(-kr) integrates to 1 over [0, L]. Infinity where it
    has no float64.
    """
    exact.BPM(k, L, d)
    if L == 0.0:
        return math.inf
    log_x = math.log(k) + math.log(L)
    return exp(d * math.log(k) - math.lgamma(d) - log_gamma_p(d, k * L, log_x))


class BPM:
    """The mechanism's constants and density.

    To draw the report of one point, `bpm_sampling`; for more of them, and for a ledger
    that is charged, `demur.mechanisms.BPM(...).privatize(points, ledger=...)`.

    >>> bpm = BPM(epsilon=2.0, L=0.3, dimension=2)
    >>> bpm, round(bpm.lambda_L, 4), round(bpm.p_L, 4)
    (BPM(ε=2.0, L=0.3, d=2), 0.6938, 0.1329)
    """

    def __init__(self, epsilon: float, L: float | str, dimension: int) -> None:
        self._exact = exact.BPM(epsilon, L, dimension)
        self.epsilon = epsilon
        self.L = self._exact.L
        self.d = dimension
        self.k = epsilon
        self.lambda_L = self._exact.lambda_L
        self.p_L = self._exact.p_L
        self.lambda_2r = compute_lambda_2r(dimension, self.L, epsilon)

    def density(self, v: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """lambda_L e^(-k min(|x - v|, L)) in [-L, 1 + L]^d, and 0 outside of it."""
        return self._exact.density(v, x)

    def __repr__(self) -> str:
        return f"BPM(ε={self.epsilon}, L={self.L}, d={self.d})"
