"""Private linear classifiers in scikit-learn's conventions: logistic, softmax, SVC.

Two mechanisms: "output" minimises the objective exactly and adds noise to the result;
"noisy_gd" takes noisy gradient steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from demur.convex.heads import inputs, noisy_gd
from demur.convex.heads.base import Array, Data, PrivateHead, reported_space
from demur.convex.heads.recommendation import auto_lam, is_auto
from demur.convex.heads.row_weights import PUBLIC_AT_A_BALL, RowWeights, row_weights
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import HeadPlan, plan_head
from demur.convex.rows.sources import Rows
from demur.convex.sensitivity.curves import Breakdown
from demur.convex.sensitivity.form import HUBER_WIDTH, TAU, Fit, HeadForm, unit_of
from demur.convex.solving.objective import Objective
from demur.convex.solving.solver import Progress, minimise
from demur.convex.solving.streamed_objective import StreamedObjective, StreamedRows
from demur.convex.solving.streamed_solver import minimise_streamed
from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Ledger
from demur.preprocessing.pipelines import Preprocessing

STEPS = 100
_SOLVER_CONVERGES = (
    "the solver reaches tau on these data and on every neighbouring dataset (where it"
    " does not, nothing is released)"
)


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
        lam: float | str = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        *,
        unit: Ball | ReplaceOne | None = None,
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
        theta_radius: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        weight_bound: float = 1.0,
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
        self.unit = unit
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
        self.theta_radius = theta_radius
        self.class_weight = class_weight
        self.weight_bound = weight_bound
        self.label = label
        self.source = source
        self.progress = progress

    def _loss(self) -> tuple[str, float]:
        """The name of the loss and the half-width of its Huber corner."""
        raise NotImplementedError

    def fit(
        self,
        X: ArrayLike | Rows,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train on (X, y) and release once; the charge comes before the noise.

        In place of both, `ParquetRows` names files that need not fit into memory. They
        are read several times; the certificate is the same. `sample_weight` multiplies
        the loss of each row; weights are cut at `weight_bound`, a public number.
        """
        with inputs.restored_on_error(self):
            return self._fit(X, y, sample_weight)

    def _fit(
        self,
        X: ArrayLike | Rows,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        promise = self._promise()
        loss, huber_width = self._loss()
        with inputs.nothing_spent():
            self._check_linear(loss)
        before = self._before(promise)
        data = self._prepare(X, y, two_classes=loss != "softmax")
        with inputs.nothing_spent():
            weights = self._weights(data, promise, sample_weight)
            form = HeadForm(
                loss,
                lam=self._lam(loss, data, promise, before, weights),
                num_classes=len(data.classes),
                bias_scale=self.bias_scale,
                huber_width=huber_width,
            )
            stated = data.objective(form)
            if weights is not None:
                assert isinstance(stated, Objective)
                stated = replace(stated, shares=weights.shares)
                if isinstance(promise.unit, Ball):
                    said = (*before.assumptions, PUBLIC_AT_A_BALL)
                    before = replace(before, assumptions=said)
        run = self._output if self.mechanism == "output" else self._noisy_gd
        release, sigma, parts = run(stated, promise, data, before)
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
            reported_space(promise, before),
        )
        return self

    def _lam(
        self,
        loss: str,
        data: Data,
        promise: Promise,
        before: Preprocessing,
        weights: RowWeights | None,
    ) -> float:
        """lam over the largest weight; "auto" takes it from public numbers alone."""
        if is_auto(self.lam):
            unit = unit_of(promise)
            if isinstance(unit, Ball):  # as far as the rows themselves can move
                far = before.space.from_space(unit.space).radius(unit.radius)
                unit = replace(unit, radius=far)
            form = HeadForm(
                loss,
                lam=1.0,
                norm_bound=self.norm_bound,
                num_classes=len(data.classes),
                bias_scale=self.bias_scale,
            )
            n = int(data.counts.sum())
            return auto_lam(form, unit, n, epsilon=self.epsilon, delta=self.delta)
        lam = float(self.lam)
        return lam if weights is None else lam / weights.largest

    def _weights(
        self, data: Data, promise: Promise, sample_weight: ArrayLike | None
    ) -> RowWeights | None:
        if isinstance(data, StreamedRows):
            if sample_weight is not None or self.class_weight is not None:
                raise ValueError(
                    "weights are for rows in memory: sample_weight and class_weight"
                    " cannot be used with rows that are read in passes"
                )
            return None
        return row_weights(
            sample_weight,
            self.class_weight,
            self.weight_bound,
            classes=data.classes,
            y=data.y,
            unit=promise.unit,
        )

    def _check_linear(self, loss: str) -> None:
        if self.mechanism not in ("output", "noisy_gd"):
            raise ValueError(
                f"mechanism must be 'output' or 'noisy_gd'; got {self.mechanism!r}"
            )
        if self.mechanism == "output":
            validate.count(max_iterations=self.max_iterations)
        validate.non_negative(bias_scale=self.bias_scale)
        if not is_auto(self.lam):
            validate.non_negative(lam=self.lam)
            if self.mechanism == "output" or loss == "squared_hinge":
                validate.positive(lam=self.lam)
        elif self.mechanism == "noisy_gd":
            raise ValueError(
                "lam must be a number for mechanism='noisy_gd': its noise does not"
                " depend on lam, and 0 is allowed"
            )
        if self.theta_radius is not None:
            validate.positive(theta_radius=self.theta_radius)
            if self.mechanism == "output":
                raise ValueError(
                    "theta_radius is for mechanism='noisy_gd': output perturbation"
                    " releases the minimiser, which lam bounds"
                )

    def _output(
        self,
        stated: Objective | StreamedObjective,
        promise: Promise,
        data: Data,
        before: Preprocessing,
    ) -> tuple[Release[Array], float, Breakdown]:
        form = stated.form
        fit = Fit(stated.n, tau=self.tau, classes_public=data.classes_public)

        def plan_at(promise: Promise) -> HeadPlan:
            return plan_head(
                form,
                promise,
                fit,
                dimension=int(np.prod(stated.shape)),
                space=before.space,
                assumptions=(*self._assumptions(data, before), _SOLVER_CONVERGES),
            )

        # Everything that can refuse stands before the solver, which takes long.
        plan = plan_at(promise)
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
        with self._declining(promise, lambda less: plan_at(less).mechanism):
            release = plan.release(
                exact.theta.reshape(-1),
                ledger=self.ledger,
                label=self.label or f"a {form.loss} head",
                source=self.source,
            )
        assert isinstance(plan.mechanism.sigma, float)
        return release, plan.mechanism.sigma, plan.sensitivity.parts

    def _noisy_gd(
        self,
        stated: Objective | StreamedObjective,
        promise: Promise,
        data: Data,
        before: Preprocessing,
    ) -> tuple[Release[Array], float, Breakdown]:
        form = stated.form
        with inputs.nothing_spent():
            schedule = noisy_gd.Schedule(
                self.steps, self.learning_rate, self.momentum, self.theta_radius
            )

        def plan_at(promise: Promise) -> noisy_gd.Descent:
            return noisy_gd.plan_descent(
                form,
                promise,
                schedule,
                n=stated.n,
                dimension=int(np.prod(stated.shape)),
                rounding=stated.rounding,
                classes_public=data.classes_public,
                space=before.space,
                assumptions=self._assumptions(data, before),
            )

        with inputs.nothing_spent():
            plan = plan_at(promise)
            stated.digest()  # the first pass over streamed rows: it may refuse
        with self._declining(promise, plan_at):
            release = noisy_gd.descend(
                plan,
                stated,
                ledger=self._ledger(promise),
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
