"""Losses of the modes: values, slopes, and the best parameters in hindsight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from demur.unlearning.models.base import Array, LossName, Mode
from demur.unlearning.models.ogd import OGD


@dataclass(frozen=True)
class Loss:
    """Squared, Huber or logistic; a prediction is a score, or a probability."""

    kind: LossName
    kappa: float = 1.0
    lam: float = 0.0  # of the regulariser that is part of each round's loss

    def of_score(self, score: float) -> float:
        """The prediction that goes with a score w.x."""
        return float(expit(score)) if self.kind == "logistic" else score

    def value(self, prediction: float, y: float) -> float:
        """The loss of one prediction."""
        if self.kind == "logistic":
            p = prediction if y == 1.0 else 1.0 - prediction
            return -math.log(max(p, 1e-300))
        gap = abs(prediction - y)
        if self.kind == "squared" or gap <= self.kappa:
            return gap * gap / 2.0
        return self.kappa * (gap - self.kappa / 2.0)

    def penalty(self, w: Array) -> float:
        """The regulariser's part, lambda / 2 |w|^2."""
        return self.lam / 2.0 * float(w @ w)

    def slope(self, prediction: float, y: float) -> float:
        """The derivative by the score: the gradient of the data is slope times x."""
        gap = prediction - y
        if self.kind == "huber":
            return min(max(gap, -self.kappa), self.kappa)
        return gap

    def gradient(self, prediction: float, x: Array, y: float) -> Array:
        """The gradient of the data at the parameters that predicted."""
        gradient: Array = self.slope(prediction, y) * np.asarray(x)
        return gradient


def loss_of(mode: Mode) -> Loss:
    """The loss that a mode's steps descend."""
    if isinstance(mode, OGD):
        return Loss(mode.loss, mode.kappa, mode.lam)
    return Loss(mode.loss)


def best_in_hindsight(loss: Loss, X: Array, Y: Array, ridge: float = 1e-9) -> Array:
    """The u that minimises the mean loss over all rounds, given all of them.

    `ridge` keeps the answer finite where the loss alone does not.
    """
    weight = max(loss.lam, ridge)

    def mean(u: Array) -> tuple[float, Array]:
        score = X @ u
        if loss.kind == "logistic":
            value = np.logaddexp(0.0, score) - Y * score
            slope = expit(score) - Y
        else:
            gap = score - Y
            far = np.abs(gap) > loss.kappa if loss.kind == "huber" else gap != gap
            outside = loss.kappa * (np.abs(gap) - loss.kappa / 2.0)
            value = np.where(far, outside, gap * gap / 2.0)
            slope = np.where(far, loss.kappa * np.sign(gap), gap)
        total = float(value.mean()) + weight / 2.0 * float(u @ u)
        return total, X.T @ slope / len(X) + weight * u

    minimum = minimize(mean, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(minimum.x)
