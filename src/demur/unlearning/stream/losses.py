"""Losses of the modes: values, slopes, and the best parameters in hindsight.

Over classes a prediction is the probability p of the record's own class (the score, for
squared loss), as `Mode.insert` returns it. Then -log p is the softmax loss, and
sqrt(2) (1 - p) |x| a bound on the norm of its gradient (`models.classes`), reached
where one other class has the rest. Of the squared loss it is the own class's part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, softmax

from demur.unlearning.models.base import Array, LossName, Mode
from demur.unlearning.models.classes import SOFTMAX_SLOPE
from demur.unlearning.models.ogd import OGD


@dataclass(frozen=True)
class Loss:
    """Squared, Huber or logistic; a prediction is a score, or a probability."""

    kind: LossName
    kappa: float = 1.0
    lam: float = 0.0  # of the regulariser that is part of each round's loss
    classes: int | None = None
    intercept: bool = False  # the parameters have one behind the weights of a row

    def row(self, x: Array) -> Array:
        """What the parameters are multiplied with: x, and a 1 for the intercept."""
        return np.append(x, 1.0) if self.intercept else x

    def of_score(self, score: float) -> float:
        """The prediction that goes with a score w.x."""
        return float(expit(score)) if self.kind == "logistic" else score

    def of_parameters(self, w: Array | None, x: Array, y: float) -> float:
        """The prediction of parameters for a record; None stands for zeros."""
        x = self.row(x)
        if self.classes is None:
            return self.of_score(0.0 if w is None else float(w @ x))
        scores = np.zeros(self.classes)
        if w is not None:
            scores = w.reshape(self.classes, -1) @ x
        if self.kind == "logistic":
            scores = softmax(scores)
        return float(scores[int(y)])

    def value(self, prediction: float, y: float) -> float:
        """The loss of one prediction."""
        if self.kind == "logistic":
            own = y == 1.0 or self.classes is not None
            p = prediction if own else 1.0 - prediction
            return -math.log(max(p, 1e-300))
        gap = abs(prediction - self._target(y))
        if self.kind == "squared" or gap <= self.kappa:
            return gap * gap / 2.0
        return self.kappa * (gap - self.kappa / 2.0)

    def penalty(self, w: Array) -> float:
        """The regulariser's part, lambda / 2 |w|^2."""
        return self.lam / 2.0 * float(w @ w)

    def slope(self, prediction: float, y: float) -> float:
        """The derivative by the score: the gradient of the data is slope times x.

        Over classes, a number whose size bounds the norm of the gradient by the scores.
        """
        gap = prediction - self._target(y)
        if self.kind == "huber":
            return min(max(gap, -self.kappa), self.kappa)
        if self.kind == "logistic" and self.classes is not None:
            return SOFTMAX_SLOPE * gap
        return gap

    def _target(self, y: float) -> float:
        return y if self.classes is None else 1.0  # one-hot, at the own class

    def gradient(self, prediction: float, x: Array, y: float) -> Array:
        """The gradient of the data at the parameters that predicted.

        Over classes, a vector that is at least as long.
        """
        gradient: Array = self.slope(prediction, y) * self.row(np.asarray(x))
        return gradient


def loss_of(mode: Mode) -> Loss:
    """The loss that a mode's steps descend."""
    if isinstance(mode, OGD):
        return Loss(mode.loss, mode.kappa, mode.lam, mode.classes)
    rows = mode.size // (mode.classes or 1)
    return Loss(mode.loss, classes=mode.classes, intercept=rows > mode.dimension)


def best_in_hindsight(loss: Loss, X: Array, Y: Array, ridge: float = 1e-9) -> Array:
    """The u that minimises the mean loss over all rounds, given all of them.

    `ridge` keeps the answer finite where the loss alone does not. With an intercept the
    features may have any units: u is found for standardised ones.
    """
    if loss.classes is not None:
        raise ValueError("best_in_hindsight is for modes without classes")
    if loss.intercept:
        means, deviations = X.mean(axis=0), X.std(axis=0)
        level, unit = float(Y.mean()), float(Y.std()) or 1.0
        deviations[deviations == 0.0] = np.inf  # a constant feature has no weight
        Z = np.column_stack([(X - means) / deviations, np.ones(len(X))])
        v = best_in_hindsight(replace(loss, intercept=False), Z, (Y - level) / unit)
        w = v[:-1] * unit / deviations
        return np.append(w, v[-1] * unit + level - float(w @ means))
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
