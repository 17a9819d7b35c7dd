"""The base of the linear heads: their parameters, weights of rows, and two mechanisms.

"output" minimises the objective exactly and adds noise to the result; "noisy_gd" takes
noisy gradient steps.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from demur.convex.heads import inputs, noisy_gd
from demur.convex.heads.base import (
    Array,
    Data,
    PrivateHead,
    StagedFit,
    reported_space,
)
from demur.convex.heads.recommendation import auto_lam, is_auto
from demur.convex.heads.row_weights import (
    FINITE_WEIGHTS,
    PUBLIC_AT_A_BALL,
    RowWeights,
    row_weights,
)
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import HeadPlan, plan_head
from demur.convex.rows.sources import Rows
from demur.convex.sensitivity.curves import Breakdown
from demur.convex.sensitivity.form import TAU, Fit, HeadForm, unit_of
from demur.convex.solving.objective import Objective
from demur.convex.solving.solver import Progress, minimise
from demur.convex.solving.streamed_objective import StreamedObjective, StreamedRows
from demur.convex.solving.streamed_solver import minimise_streamed
from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.declaration import Mechanism
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Ledger
from demur.preprocessing.checked_rows import restored_on_error
from demur.preprocessing.pipelines import Preprocessing

STEPS = 100
Run = Callable[[], tuple[Release[Array], float, Breakdown]]
_SOLVER_CONVERGES = (
    "the solver reaches tau on these data and on every neighbouring dataset (where it"
    " does not, nothing is released)"
)


class PrivateLinearHead(PrivateHead, abc.ABC):
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

    @abc.abstractmethod
    def _loss(self) -> tuple[str, float]:
        """The name of the loss and the half-width of its Huber corner."""

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
        with restored_on_error(self):
            self._staged(X, y, sample_weight).finish()
            return self

    def _staged(
        self,
        X: ArrayLike | Rows,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None = None,
    ) -> StagedFit:
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
                lam=0.0,
                num_classes=len(data.classes),
                bias_scale=self.bias_scale,
                huber_width=huber_width,
            ).with_bound(data.bound)
            lam = self._lam(form, data, promise, before, weights)
            stated = data.objective(replace(form, lam=lam))
            if weights is not None:
                assert isinstance(stated, Objective)
                stated = replace(stated, shares=weights.shares)
                conditions = before.assumptions
                if isinstance(promise.unit, Ball):
                    conditions = (*conditions, PUBLIC_AT_A_BALL)
                if sample_weight is not None:
                    conditions = (*conditions, FINITE_WEIGHTS)
                before = replace(before, assumptions=conditions)
        stage = self._output if self.mechanism == "output" else self._noisy_gd
        mechanism, run = stage(stated, promise, data, before)

        def finish() -> None:
            release, sigma, parts = run()
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

        return StagedFit(mechanism, finish)

    def _lam(
        self,
        form: HeadForm,
        data: Data,
        promise: Promise,
        before: Preprocessing,
        weights: RowWeights | None,
    ) -> float:
        """lam over the largest weight; "auto" takes it from public numbers alone."""
        if is_auto(self.lam):
            unit = unit_of(promise)
            if isinstance(unit, Ball):  # as far as the rows themselves can move
                unit = replace(unit, radius=before.space.radius_of(unit))
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
    ) -> tuple[Mechanism, Run]:
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

        def run() -> tuple[Release[Array], float, Breakdown]:
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

        return plan.mechanism, run

    def _noisy_gd(
        self,
        stated: Objective | StreamedObjective,
        promise: Promise,
        data: Data,
        before: Preprocessing,
    ) -> tuple[Mechanism, Run]:
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

        def run() -> tuple[Release[Array], float, Breakdown]:
            with inputs.nothing_spent():
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

        return plan, run

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores <w, x> + b: one number for two classes, one for each otherwise."""
        rows = self._rows(X)
        scores: Array = rows @ self.coef_.T + self.intercept_
        if scores.shape[1] == 1:
            return scores[:, 0]
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores
