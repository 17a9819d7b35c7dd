"""Renyi divergences of events at integer orders, and their conversion to epsilon.

Gaussian: order * mu^2 / 2, exactly. Pure: that of randomised response, which dominates
every epsilon-DP pair. Poisson-sampled Gaussian: the binomial sum of Mironov, Talwar and
Zhang 2019 (sec. 3.3), exact for integer orders and the larger of the two directions,
for a record that appears or vanishes. Divergences add up under composition.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from demur.core import validate
from demur.core.accounting.events import (
    Atom,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
)
from demur.core.rounding import up

ORDERS = np.unique(
    np.concatenate([np.arange(2, 65), np.geomspace(65, 2**20, 160).astype(int)])
)
_MOST_SUMMED_ORDERS = 1024  # A sampled event's divergence is a sum of order + 1 terms.


def divergence(event: Atom, order: int) -> float | None:
    """D_order of one event, rounded up; None where it is not known in closed form."""
    validate.count(order=order)
    if order < 2:
        raise ValueError(f"order must be a whole number from 2; got {order}")
    values = divergences(event, np.array([order]))
    return None if values is None else float(values[0])


@lru_cache(maxsize=4096)
def _binomial_sum(event: PoissonGaussian, order: int) -> float:
    q, z = event.probability, event.multiplier
    if z < 1e-150:  # z^2 is no number any more, and the noise is nothing
        return math.inf
    k = np.arange(order + 1)
    log_terms = (
        gammaln(order + 1)
        - gammaln(k + 1)
        - gammaln(order - k + 1)
        + (order - k) * math.log1p(-q)
        + k * math.log(q)
        + k * (k - 1) / (2.0 * z * z)
    )
    return max(0.0, float(logsumexp(log_terms)) / (order - 1))


def divergences(event: Atom, orders: NDArray[Any]) -> NDArray[np.float64] | None:
    """D of one event at many orders, rounded up; None where it is not known."""
    a = orders.astype(np.float64)
    # Relative 1e-12 and, for the log-sum-exp of gammaln's, absolute 1e-12: both far
    # above the rounding of these few operations, both invisible in any epsilon.
    match event:
        case GaussianEvent(multiplier=z):
            return _of_gaussian(a, z) * (1 + 1e-12)
        case Pure(epsilon=eps) if eps > 500:
            return np.full(len(a), eps)
        case Pure(epsilon=eps):
            # log of p^a (1-p)^(1-a) + (1-p)^a p^(1-a) at p = 1 / (1 + e^-eps), which is
            # that of cosh((a - 1/2) eps) / cosh(eps / 2): the difference of the two
            # logarithms cancels where a eps is small, so there it is a product.
            logs = np.logaddexp(a * eps, (1.0 - a) * eps) - np.logaddexp(0.0, eps)
            half = np.minimum(a * eps, 1.0) / 2.0
            gain = 2.0 * np.sinh(half) * np.sinh(half * (1.0 - 1.0 / a))
            logs = np.where(a * eps < 1.0, np.log1p(gain / math.cosh(eps / 2.0)), logs)
            capped = np.minimum(logs / (a - 1.0), eps)
            # eps^2 a / 2 is a bound as well (Bun and Steinke 2016, Prop. 3.3), and as
            # good where a eps is tiny.
            return np.asarray(
                np.where(a * eps < 1e-4, a * eps * eps / 2.0, np.maximum(capped, 0.0))
                * (1 + 1e-12)
                + (1e-12 if eps > 1e-4 else 0.0)
            )
        case PoissonGaussian(probability=0.0):
            return np.zeros(len(a))
        case PoissonGaussian(probability=1.0):
            return divergences(GaussianEvent(event.whole_multiplier), orders)
        case PoissonGaussian(neighbours=who) if who is not Neighbours.REPLACE_ONE:
            whole = _of_gaussian(a, event.multiplier)
            sums = [
                _binomial_sum(event, int(order))
                if order <= _MOST_SUMMED_ORDERS
                else math.inf
                for order in orders
            ]
            return np.asarray(np.minimum(whole, sums) * (1 + 1e-12) + 1e-12)
    return None


def _of_gaussian(orders: NDArray[np.float64], multiplier: float) -> NDArray[np.float64]:
    """order * mu^2 / 2; infinite where mu^2 is no number."""
    with np.errstate(over="ignore", divide="ignore"):
        mu = np.float64(1.0) / np.float64(multiplier)
        return np.asarray(orders / 2.0 * (mu * mu))


def to_epsilon(total: float, order: int, delta: float) -> float:
    """Epsilon at `delta` from D_order (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    epsilon = total + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1)
    return max(0.0, up(epsilon, 8))
