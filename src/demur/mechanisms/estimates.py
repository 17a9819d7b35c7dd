"""Estimates from released numbers whose noise is known: post-processing, and free."""

from __future__ import annotations

import math

from scipy.special import log_ndtr

_TINY = 1e-290


def positive_mean(estimate: float, error: float) -> float:
    """The mean of N(estimate, error^2) cut at 0: positive, and `estimate` far above.

    >>> positive_mean(3.0, 1e-3), round(positive_mean(0.0, 1.0), 4)
    (3.0, 0.7979)
    """
    z = estimate / error if error > 0.0 else math.inf
    if z > 30.0:
        return estimate
    if z < -1e4:  # the series of Mills' ratio, where the sum below cancels
        return error / -z
    hazard = math.exp(-0.5 * z * z - 0.5 * math.log(2.0 * math.pi) - log_ndtr(z))
    return max(error * (z + hazard), _TINY)
