"""Logistic regression: its objective, gradients with their rounding, and the minimum.

Rows are summed in blocks of b = 4096. With u = 2^-53 a gradient over n rows of norm at
most B is off by at most 2 u (b + n/b + d + 32) (n B (1 + |w| B) + Lambda |w|). The
Hessian is off by u (b + n/b + 16) trace H for its sums and u n (d + 16)(1 + |w| B) B^2
for its curvatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from demur.core.rounding import up
from demur.unlearning.models.base import Array

_U = 2.0**-53
_BLOCK = 4096
_STEPS = 60


class Gradient(NamedTuple):
    """A gradient, an upper bound on its true norm, and the rounding in that bound."""

    value: Array
    bound: float
    rounding: float


class Minimum(NamedTuple):
    """A point, the bound on its gradient, and the Hessian there with its error."""

    w: Array
    residual: float
    H: Array
    P: Array
    gram: Array
    drift: float


@dataclass(frozen=True, eq=False)
class LogisticObjective:
    """F(w) = sum of log-losses over the rows (targets 0 or 1) + (Lambda/2) |w|^2."""

    X: Array
    Y: Array
    Lambda: float
    bound: float  # on the norms of the rows

    def gradient(self, w: Array) -> Gradient:
        """The gradient at w."""
        total = self.Lambda * w
        for at in range(0, len(self.X), _BLOCK):
            part = self.X[at : at + _BLOCK]
            total = total + part.T @ (expit(part @ w) - self.Y[at : at + _BLOCK])
        n, B, weight = len(self.X), self.bound, float(np.linalg.norm(w))
        terms = min(n, _BLOCK) + n / _BLOCK + w.size + 32.0
        error = 2.0 * _U * terms * (n * B * (1.0 + weight * B) + self.Lambda * weight)
        norm = float(np.linalg.norm(total)) * (1.0 + 1e-12)
        return Gradient(total, up(norm + error), error)

    def hessian(self, w: Array) -> Array:
        """The Hessian at w."""
        H = self.Lambda * np.eye(w.size)
        for at in range(0, len(self.X), _BLOCK):
            part = self.X[at : at + _BLOCK]
            p = expit(part @ w)
            H += part.T @ (part * (p * (1.0 - p))[:, None])
        return H

    def _inverse(self, H: Array) -> Array:
        """H^-1; eigenvalues below Lambda are rounding errors."""
        values, vectors = np.linalg.eigh(H)
        inverse: Array = (vectors / np.maximum(values, self.Lambda)) @ vectors.T
        return inverse

    def minimum(self, start: Array) -> Minimum:
        """Newton steps from `start` until the gradient is at rounding level."""
        w = start.copy()
        here = self.gradient(w)
        for _ in range(_STEPS):
            if here.bound <= 1.5 * here.rounding:
                break
            step = -self._inverse(self.hessian(w)) @ here.value
            # Far from the minimum a full step may overshoot; half of it then.
            for halvings in range(30):
                trial = w + step * 0.5**halvings
                there = self.gradient(trial)
                if there.bound < here.bound:
                    break
            else:
                break
            w, here = trial, there
        H = self.hessian(w)
        n, B, weight = len(self.X), self.bound, float(np.linalg.norm(w))
        drift = (_BLOCK + n / _BLOCK + 16.0) * float(np.trace(H))
        drift += n * (w.size + 16.0) * (1.0 + weight * B) * B * B
        gram = self.X.T @ self.X
        return Minimum(w, here.bound, H, self._inverse(H), gram, _U * drift)
