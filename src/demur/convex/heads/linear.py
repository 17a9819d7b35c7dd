"""Private linear classifiers in scikit-learn's conventions: logistic, softmax, SVC.

Two mechanisms: "output" minimises the objective exactly and adds noise to the result;
"noisy_gd" takes noisy gradient steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from demur.convex.heads import inputs, noisy_gd
from demur.convex.heads.base import Array, Data, PrivateHead, assumptions_of
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import head_ledger, plan_head
from demur.convex.rows.sources import Rows
from demur.convex.sensitivity.curves import Breakdown
from demur.convex.sensitivity.form import HUBER_WIDTH, TAU, Fit, HeadForm
from demur.convex.solving.objective import Objective
from demur.convex.solving.solver import Progress, minimise
from demur.convex.solving.streamed_objective import StreamedObjective
from demur.convex.solving.streamed_solver import minimise_streamed
from demur.core import validate
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Ledger

STEPS = 100


class _LinearHead(PrivateHead):
    """What the linear heads share: their parameters and the two mechanisms.

    `max_iterations` is not called max_iter: for that scikit-learn asks for `n_iter_`,
    and the number of steps is a function of the private data.
    """

    coef_: Array
    intercept_: Array

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        ledger: Ledger | None = None,
        mechanism: str = "output",
        bias_scale: float = 1.0,
        space: str = "records",
        clip: bool = True,
        tau: float = TAU,
        max_iterations: int = 200,
        steps: int = STEPS,
        learning_rate: float | None = None,
        momentum: float = noisy_gd.MOMENTUM,
        label: str | None = None,
        source: Source | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.lam = lam
        self.norm_bound = norm_bound
        self.classes = classes
        self.ledger = ledger
        self.mechanism = mechanism
        self.bias_scale = bias_scale
        self.space = space
        self.clip = clip
        self.tau = tau
        self.max_iterations = max_iterations
        self.steps = steps
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.label = label
        self.source = source
        self.progress = progress

    def _loss(self) -> tuple[str, float]:
        """The name of the loss and the half-width of its Huber corner."""
        raise NotImplementedError

    def _fit(self, X: ArrayLike | Rows, y: ArrayLike | None) -> Self:
        promise = self._promise()
        loss, huber_width = self._loss()
        with inputs.nothing_spent():
            self._check_linear(loss)
        data = self._prepare(X, y, two_classes=loss != "softmax")
        with inputs.nothing_spent():
            stated = data.objective(
                HeadForm(
                    loss,
                    lam=self.lam,
                    num_classes=len(data.classes),
                    bias_scale=self.bias_scale,
                    huber_width=huber_width,
                )
            )
        run = self._output if self.mechanism == "output" else self._noisy_gd
        release, sigma, parts = run(stated, promise, data)
        theta = np.atleast_2d(release.value.reshape(stated.shape))
        features = data.width
        self.classes_ = data.classes
        self.coef_ = theta[:, :features].copy()
        self.intercept_ = (
            self.bias_scale * theta[:, features]
            if self.bias_scale > 0
            else np.zeros(len(theta))
        )
        self.privacy_ = PrivacyReport(
            promise,
            float(self.norm_bound),
            self.mechanism,
            sigma,
            parts,
            release.entry,
        )
        return self

    def _check_linear(self, loss: str) -> None:
        if self.mechanism not in ("output", "noisy_gd"):
            raise ValueError(
                f"mechanism must be 'output' or 'noisy_gd'; got {self.mechanism!r}"
            )
        if self.mechanism == "output":
            validate.count(max_iterations=self.max_iterations)
        if self.mechanism == "output" or loss == "squared_hinge":
            validate.positive(lam=self.lam)
        validate.non_negative(lam=self.lam, bias_scale=self.bias_scale)

    def _output(
        self, stated: Objective | StreamedObjective, promise: Promise, data: Data
    ) -> tuple[Release[Array], float, Breakdown]:
        # Everything that can refuse stands before the solver, which takes long.
        form = stated.form
        fit = Fit(stated.n, tau=self.tau, classes_public=data.classes_public)
        plan = plan_head(
            form,
            promise,
            fit,
            dimension=int(np.prod(stated.shape)),
            assumptions=assumptions_of(data),
        )
        limits: dict[str, Any] = {
            "tau": self.tau,
            "max_iter": self.max_iterations,
            "progress": self.progress,
        }
        with inputs.nothing_spent():
            if isinstance(stated, Objective):
                exact = minimise(stated, **limits)
            else:
                exact = minimise_streamed(stated, **limits)
        release = plan.release(
            exact.theta.reshape(-1),
            ledger=self.ledger,
            label=self.label or f"a {form.loss} head",
            source=self.source,
        )
        assert isinstance(plan.mechanism.sigma, float)
        return release, plan.mechanism.sigma, plan.sensitivity.parts

    def _noisy_gd(
        self, stated: Objective | StreamedObjective, promise: Promise, data: Data
    ) -> tuple[Release[Array], float, Breakdown]:
        form = stated.form
        plan = noisy_gd.plan_descent(
            form,
            promise,
            n=stated.n,
            dimension=int(np.prod(stated.shape)),
            steps=self.steps,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            rounding=stated.rounding,
            classes_public=data.classes_public,
            assumptions=assumptions_of(data),
        )
        with inputs.nothing_spent():
            stated.digest()  # the first pass over streamed rows: it may refuse
        release = noisy_gd.descend(
            plan,
            stated,
            ledger=head_ledger(self.ledger, promise),
            label=self.label or f"noisy gradient descent, {form.loss}",
            source=self.source,
            progress=self.progress,
        )
        assert isinstance(plan.step.sigma, float)
        return release, plan.step.sigma, plan.parts

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores <w, x> + b: one number for two classes, one for each otherwise."""
        rows = self._rows(X)
        scores: Array = rows @ self.coef_.T + self.intercept_
        if scores.shape[1] == 1:
            return scores[:, 0]
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def _binary_tags(tags: Any) -> Any:
    tags.classifier_tags.multi_class = False
    return tags


class BallLogisticRegression(_LinearHead):
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


class BallSoftmaxClassifier(_LinearHead):
    """Multinomial logistic regression, released once; see `BallLogisticRegression`."""

    def _loss(self) -> tuple[str, float]:
        return "softmax", HUBER_WIDTH

    def predict_proba(self, X: ArrayLike) -> Array:
        """The noisy model's probabilities of the classes."""
        scores = self._rows(X) @ self.coef_.T + self.intercept_
        probabilities: Array = softmax(scores, axis=1)
        return probabilities


class BallSVC(_LinearHead):
    """A linear support vector classifier, released once; see `BallLogisticRegression`.

    loss="huber" (slopes at most 1) needs 10 to 20 times less noise than
    loss="squared_hinge", whose slope grows with the margin.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
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
