"""Estimates from released numbers whose noise is known: post-processing, and free."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

_TINY = 1e-290
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def positive_mean(estimate: float, error: float) -> float:
    """The mean of N(estimate, error^2) cut at 0: positive, and `estimate` far above.

    >>> positive_mean(3.0, 1e-3), round(positive_mean(0.0, 1.0), 4)
    (3.0, 0.7979)
    """
    z = estimate / error if error > 0.0 else math.inf
    if z > 30.0:
        return estimate
    if z < -100.0:  # the series of Mills' ratio, where the sum below cancels
        return error / -z * (1.0 - 2.0 / z**2)
    hazard = math.exp(-0.5 * z * z - 0.5 * math.log(2.0 * math.pi) - log_ndtr(z))
    return max(error * (z + hazard), _TINY)


def bounded_mean(estimate: float, error: float, largest: float) -> float:
    """The mean of N(estimate, error^2) cut at 0 and at `largest`.

    >>> bounded_mean(3.0, 1e-3, 4.0), round(bounded_mean(0.0, 1e6, 4.0), 6)
    (3.0, 2.0)
    """
    # What an end cuts off does not matter where it has less than e^-10 of the weight.
    near = largest / 10.0
    below = positive_mean(estimate, error)
    if 0.0 <= estimate < largest - 8.0 * error or (estimate < 0.0 and below < near):
        return below
    above = positive_mean(largest - estimate, error)
    if 8.0 * error < estimate <= largest or (estimate > largest and above < near):
        return largest - above
    points = largest * (_NODES + 1.0) / 2.0
    logarithms = -0.5 * ((points - estimate) / error) ** 2
    weights = _WEIGHTS * np.exp(logarithms - logarithms.max())
    return float(weights @ points / weights.sum())
