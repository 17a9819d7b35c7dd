"""Private linear classifiers in scikit-learn's conventions: logistic, softmax, SVC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from demur.convex.heads import inputs, noisy_gd
from demur.convex.heads.base import Array
from demur.convex.heads.linear_base import STEPS, PrivateLinearHead
from demur.convex.sensitivity.form import HUBER_WIDTH, TAU
from demur.convex.solving.solver import Progress
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import Source
from demur.ledger import Ledger


def _binary_tags(tags: Any) -> Any:
    tags.classifier_tags.multi_class = False
    return tags


class BallLogisticRegression(PrivateLinearHead):
    """Binary logistic regression, released once.

    mechanism="output" minimises mean log-loss + lam/2 |theta|^2 (bias included) to a
    gradient norm of tau and adds noise for Delta(radius) = G / (lam n) + 2 tau / lam.
    mechanism="noisy_gd" takes `steps` noisy gradient steps; its noise has no lam in it.
    A fitted head has `coef_`, `intercept_`, `classes_`, `privacy_` (a `PrivacyReport`)
    and `entry_`.
    """

    def _loss(self) -> tuple[str, float]:
        return "logistic", HUBER_WIDTH

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())

    def predict_proba(self, X: ArrayLike) -> Array:
        """The noisy model's probabilities of the two classes."""
        p = expit(self.decision_function(X))
        return np.column_stack([1.0 - p, p])


class BallSoftmaxClassifier(PrivateLinearHead):
    """Multinomial logistic regression, released once; see `BallLogisticRegression`."""

    def _loss(self) -> tuple[str, float]:
        return "softmax", HUBER_WIDTH

    def predict_proba(self, X: ArrayLike) -> Array:
        """The noisy model's probabilities of the classes."""
        scores = self._rows(X) @ self.coef_.T + self.intercept_
        probabilities: Array = softmax(scores, axis=1)
        return probabilities


class BallSVC(PrivateLinearHead):
    """A linear support vector classifier, released once; see `BallLogisticRegression`.

    loss="huber" (slopes at most 1) needs 10 to 20 times less noise than
    loss="squared_hinge", whose slope grows with the margin.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float | str = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        unit: Ball | ReplaceOne | None = None,
        ledger: Ledger | None = None,
        mechanism: str = "output",
        loss: str = "huber",
        huber_width: float = HUBER_WIDTH,
        bias_scale: float = 1.0,
        space: str = "records",
        clip: bool = True,
        tau: float = TAU,
        max_iterations: int = 200,
        steps: int = STEPS,
        learning_rate: float | None = None,
        momentum: float = noisy_gd.MOMENTUM,
        theta_radius: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        weight_bound: float = 1.0,
        label: str | None = None,
        source: Source | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            radius,
            lam,
            norm_bound,
            classes,
            unit=unit,
            ledger=ledger,
            mechanism=mechanism,
            bias_scale=bias_scale,
            space=space,
            clip=clip,
            tau=tau,
            max_iterations=max_iterations,
            steps=steps,
            learning_rate=learning_rate,
            momentum=momentum,
            theta_radius=theta_radius,
            class_weight=class_weight,
            weight_bound=weight_bound,
            label=label,
            source=source,
            progress=progress,
        )
        self.loss = loss
        self.huber_width = huber_width

    def _loss(self) -> tuple[str, float]:
        with inputs.nothing_spent():
            if self.loss not in ("squared_hinge", "huber"):
                raise ValueError(
                    f"loss must be 'squared_hinge' or 'huber'; got {self.loss!r}"
                )
        return self.loss, self.huber_width

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())
