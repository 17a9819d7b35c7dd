"""Logistic regression: its objectives, gradients with their rounding, and the minimum.

Rows are summed in blocks of b = 4096. With u = 2^-53 a gradient over n rows of norm at
most B is off by at most 2 u (b + n/b + d + 32) (n B (1 + |w| B) + Lambda |w|). The
Hessian is off by u (b + n/b + 16) trace H for its sums and u n (d + 16)(1 + |w| B) B^2
for its curvatures. Over K classes a gradient has terms of norm sqrt(2) B and 2 K more
of rounding, and the curvatures are off by u n (d + 6 K + 48)(1 + |w| B) B^2.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax

from demur.core.rounding import up
from demur.unlearning.models.base import Array
from demur.unlearning.models.classes import SOFTMAX_SLOPE

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
class LogLossObjective(abc.ABC):
    """F(w) = sum of log-losses over the rows + (Lambda/2) |w|^2."""

    X: Array
    Y: Array
    Lambda: float
    bound: float  # on the norms of the rows

    @abc.abstractmethod
    def gradient(self, w: Array) -> Gradient:
        """The gradient at w."""

    @abc.abstractmethod
    def hessian(self, w: Array) -> Array:
        """The Hessian at w."""

    @abc.abstractmethod
    def _curvature_terms(self) -> float:
        """How many roundings there are in the curvature of one row."""

    def _blocks(self) -> Iterator[tuple[Array, Array]]:
        for at in range(0, len(self.X), _BLOCK):
            yield self.X[at : at + _BLOCK], self.Y[at : at + _BLOCK]

    def _bounded(self, total: Array, w: Array, slope: float, more: float) -> Gradient:
        """`total` with its rounding; rows have gradients of norm at most slope B."""
        n, B, weight = len(self.X), self.bound, float(np.linalg.norm(w))
        terms = min(n, _BLOCK) + n / _BLOCK + self.X.shape[1] + 32.0 + more
        size = slope * n * B * (1.0 + weight * B) + self.Lambda * weight
        error = 2.0 * _U * terms * size
        norm = float(np.linalg.norm(total)) * (1.0 + 1e-12)
        return Gradient(total, up(norm + error), error)

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
        drift += n * self._curvature_terms() * (1.0 + weight * B) * B * B
        gram = self.X.T @ self.X
        return Minimum(w, here.bound, H, self._inverse(H), gram, _U * drift)


@dataclass(frozen=True, eq=False)
class LogisticObjective(LogLossObjective):
    """Two classes, targets 0 or 1."""

    def gradient(self, w: Array) -> Gradient:
        """The gradient at w."""
        total = self.Lambda * w
        for X, Y in self._blocks():
            total = total + X.T @ (expit(X @ w) - Y)
        return self._bounded(total, w, 1.0, 0.0)

    def hessian(self, w: Array) -> Array:
        """The Hessian at w."""
        H = self.Lambda * np.eye(w.size)
        for X, _ in self._blocks():
            p = expit(X @ w)
            H += X.T @ (X * (p * (1.0 - p))[:, None])
        return H

    def _curvature_terms(self) -> float:
        return self.X.shape[1] + 16.0


@dataclass(frozen=True, eq=False)
class SoftmaxObjective(LogLossObjective):
    """Any number of classes, targets their numbers; w holds a row for each class."""

    classes: int

    def _probabilities(self, X: Array, w: Array) -> Array:
        p: Array = softmax(X @ w.reshape(self.classes, -1).T, axis=1)
        return p

    def gradient(self, w: Array) -> Gradient:
        """The gradient at w."""
        total = self.Lambda * w
        for X, Y in self._blocks():
            p = self._probabilities(X, w)
            p[np.arange(len(X)), Y.astype(np.intp)] -= 1.0
            total = total + (p.T @ X).ravel()
        return self._bounded(total, w, SOFTMAX_SLOPE, 2.0 * self.classes)

    def hessian(self, w: Array) -> Array:
        """The Hessian at w: a block for each pair of classes."""
        H = self.Lambda * np.eye(w.size)
        K, d = self.classes, self.X.shape[1]
        blocks = H.reshape(K, d, K, d)  # a view
        for X, _ in self._blocks():
            p = self._probabilities(X, w)
            for a in range(K):
                for b in range(K):
                    curvature = p[:, a] * (float(a == b) - p[:, b])
                    blocks[a, :, b] += X.T @ (X * curvature[:, None])
        return H

    def _curvature_terms(self) -> float:
        return self.X.shape[1] + 6.0 * self.classes + 48.0
