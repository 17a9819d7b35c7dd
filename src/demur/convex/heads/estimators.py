"""Private classifiers in scikit-learn's conventions.

What a fitted estimator holds is what was released: `coef_` and `intercept_` (or
`prototypes_`), `classes_`, the public shape of the input, and `privacy_`. Exact
parameters exist inside `fit` alone. Fitting again is another release and is charged
again; a clone shares the ledger (a copy of a ledger would be a second budget), and a
pickle leaves it behind and refuses to fit without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from demur.convex.heads import inputs, noisy_gd, prototypes
from demur.convex.release import (
    FIXED_IN_ADVANCE,
    UNPROTECTED,
    head_ledger,
    head_mechanism,
)
from demur.convex.report import PrivacyReport
from demur.convex.rows.sources import Rows
from demur.convex.sensitivity.curves import TAU, Breakdown, erm_sensitivity
from demur.convex.sensitivity.losses import HUBER_WIDTH
from demur.convex.solving.objective import Objective
from demur.convex.solving.solver import minimise
from demur.convex.solving.streamed_objective import StreamedObjective, StreamedRows
from demur.convex.solving.streamed_solver import minimise_streamed
from demur.core import validate
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Ledger, LedgerLeftBehind, left_behind

Array = NDArray[np.float64]
Progress = Callable[[int, float], None]
Data = inputs.Prepared | StreamedRows
Stated = Objective | StreamedObjective

STEPS = 100
_CLASSES_FROM_LABELS = "the set of classes, which was read off the labels, is public"
_EVERY_CLASS_PRESENT = (
    "every class holds a record in both worlds (a missing class is refused)"
)


class _PrivateHead(ClassifierMixin, BaseEstimator):
    """What the estimators share: the conventions, and how a ledger travels (not)."""

    epsilon: float
    delta: float
    radius: float | None
    norm_bound: float
    ledger: Ledger | LedgerLeftBehind | None
    space: str
    classes: Sequence[Any] | None
    clip: bool
    label: str | None
    source: Source | None
    privacy_: PrivacyReport
    classes_: NDArray[Any]

    def __sklearn_clone__(self) -> Self:
        # deepcopy would copy the ledger, and a copy of a ledger is a second budget.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        # A worker's copy (a parallel cross-validation) must not fit without its ledger.
        state["ledger"] = left_behind(self.ledger)
        return state | {name: None for name in ("source", "progress") if name in state}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def _checked(self) -> float:
        """The declared radius; all the shared parameters checked."""
        with inputs.nothing_spent():
            if self.radius is None:
                raise ValueError(
                    "radius must be declared: how far a record may move, in the space"
                    f" {self.space!r}. It comes from policy or public data, or from"
                    " private_radius(...), which pays for it."
                )
            validate.positive(epsilon=self.epsilon, radius=self.radius)
            validate.open_probability(delta=self.delta)
            validate.positive(norm_bound=self.norm_bound)
            validate.name(space=self.space)
        return float(self.radius)

    def _prepare(self, X: ArrayLike | Rows, y: ArrayLike | None, two: bool) -> Data:
        return inputs.prepare(
            self,
            X,
            y,
            classes=self.classes,
            norm_bound=self.norm_bound,
            clip=self.clip,
            space=self.space,
            two_classes=two,
        )

    def _ledger(self, radius: float) -> Ledger:
        return head_ledger(
            self.ledger,
            radius=radius,
            space=self.space,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def _report(
        self,
        release: Release[Array],
        sigma: float | tuple[float, ...],
        parts: Breakdown | None,
        mechanism: str,
    ) -> PrivacyReport:
        declared = release.entry.declaration
        assert self.radius is not None
        return PrivacyReport(
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            radius=float(self.radius),
            space=self.space,
            norm_bound=float(self.norm_bound),
            mechanism=mechanism,
            sigma=sigma,
            sensitivity=parts,
            assumptions=declared.assumptions,
            unprotected=declared.unprotected,
            entry=release.entry,
        )

    def _rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return inputs.clipped(self, X, self.norm_bound)


def _assumptions(prepared: Data) -> tuple[str, ...]:
    classes = _EVERY_CLASS_PRESENT if prepared.classes_public else _CLASSES_FROM_LABELS
    return (FIXED_IN_ADVANCE, classes)


class BallPrototypeClassifier(_PrivateHead):
    """Nearest private class prototype, with noise for each class.

    Exact mu-GDP at `Ball(radius, space)`; silent at `ReplaceOne`, where class counts
    move. `lam` = 0 releases the class means. `debias` corrects distances for the known
    noise (see `prototypes`).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(-1, 0.3, (200, 2)), rng.normal(1, 0.3, (200, 2))])
    >>> y = np.repeat([0, 1], 200)
    >>> head = BallPrototypeClassifier(epsilon=1.0, radius=0.5, norm_bound=2.0)
    >>> head.fit(X, y).score(X, y) > 0.95
    True
    >>> head.privacy_.epsilon_at(0.5) <= 1.0
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 0.0,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        ledger: Ledger | None = None,
        *,
        debias: bool = True,
        space: str = "records",
        clip: bool = True,
        label: str | None = None,
        source: Source | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.lam = lam
        self.norm_bound = norm_bound
        self.classes = classes
        self.ledger = ledger
        self.debias = debias
        self.space = space
        self.clip = clip
        self.label = label
        self.source = source

    def fit(self, X: ArrayLike | Rows, y: ArrayLike | None = None) -> Self:
        """Release the prototypes of (X, y) once; the charge comes before the noise.

        In place of both, `ParquetRows` names files that need not fit into memory.
        """
        with inputs.as_it_was(self):
            return self._fit(X, y)

    def _fit(self, X: ArrayLike | Rows, y: ArrayLike | None) -> Self:
        radius = self._checked()
        with inputs.nothing_spent():
            validate.non_negative(lam=self.lam)
        data = self._prepare(X, y, two=False)
        dimension = data.width
        with inputs.nothing_spent():
            sums, step = data.exact_sums()
        plan = prototypes.plan_prototypes(
            data.counts,
            dimension=dimension,
            lam=self.lam,
            norm_bound=self.norm_bound,
            radius=radius,
            epsilon=self.epsilon,
            delta=self.delta,
            space=self.space,
            step=step,
            bounds=(data.bound,),
            assumptions=_assumptions(data),
        )
        release = plan.mechanism.release(
            (sums / plan.denominators[:, None]).reshape(-1),
            ledger=self._ledger(radius),
            label=self.label or "class prototypes",
            source=self.source,
        )
        self.classes_ = data.classes
        self.prototypes_ = release.value.reshape(-1, dimension)
        sigma = tuple(float(s) for s in plan.sigma)
        self.privacy_ = self._report(release, sigma, None, "output")
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores, larger for a nearer prototype; for two classes their difference."""
        rows = self._rows(X)
        sigma = np.asarray(self.privacy_.sigma)
        scores = prototypes.Scores.of(self.prototypes_, sigma, debias=self.debias)(rows)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of the nearest prototype."""
        return _most_likely(self.decision_function(X), self.classes_)


class _LinearHead(_PrivateHead):
    """Linear heads: minimise and add noise, or noisy gradient descent."""

    lam: float
    mechanism: str
    bias_scale: float
    tau: float
    max_iterations: int
    steps: int
    learning_rate: float | None
    momentum: float
    progress: Progress | None
    coef_: Array
    intercept_: Array

    def _loss(self) -> tuple[str, float]:
        """The name of the loss and the half-width of its Huber corner."""
        raise NotImplementedError

    def fit(self, X: ArrayLike | Rows, y: ArrayLike | None = None) -> Self:
        """Train on (X, y) and release once; the charge comes before the noise.

        In place of both, `ParquetRows` names files that need not fit into memory. They
        are read several times; the certificate is the same (see `streamed`).
        """
        with inputs.as_it_was(self):
            return self._fit(X, y)

    def _fit(self, X: ArrayLike | Rows, y: ArrayLike | None) -> Self:
        radius = self._checked()
        loss, width = self._loss()
        with inputs.nothing_spent():
            self._check_linear(loss)
        data = self._prepare(X, y, two=loss != "softmax")
        shape: dict[str, Any] = {
            "num_classes": len(data.classes),
            "bias_scale": float(self.bias_scale),
            "huber_width": width,
        }
        stated = data.objective(loss, self.lam, **shape)
        shared: dict[str, Any] = shape | {
            "n": stated.n,
            "lam": self.lam,
            "norm_bound": self.norm_bound,
            "radius": radius,
            "space": self.space,
            "replace_one": data.classes_public,
        }
        if self.mechanism == "output":
            release, sigma, parts = self._output(loss, stated, shared, data)
        else:
            release, sigma, parts = self._noisy_gd(loss, stated, shared, data)
        theta = np.atleast_2d(release.value.reshape(stated.shape))
        features = data.width
        self.classes_ = data.classes
        self.coef_ = theta[:, :features].copy()
        self.intercept_ = (
            self.bias_scale * theta[:, features]
            if self.bias_scale > 0
            else np.zeros(len(theta))
        )
        self.privacy_ = self._report(release, sigma, parts, self.mechanism)
        return self

    def _check_linear(self, loss: str) -> None:
        if self.mechanism not in ("output", "noisy_gd"):
            raise ValueError(
                f"mechanism must be 'output' or 'noisy_gd'; got {self.mechanism!r}"
            )
        if self.mechanism == "output" or loss == "squared_hinge":
            validate.positive(lam=self.lam)
        validate.non_negative(lam=self.lam, bias_scale=self.bias_scale)

    def _output(
        self, loss: str, stated: Stated, shared: dict[str, Any], data: Data
    ) -> tuple[Release[Array], float, Breakdown]:
        # Everything that can refuse stands before the solver, which takes long.
        found = erm_sensitivity(loss, tau=self.tau, **shared)
        mechanism = head_mechanism(
            found,
            dimension=int(np.prod(stated.shape)),
            radius=shared["radius"],
            space=self.space,
            epsilon=self.epsilon,
            delta=self.delta,
            name=f"a {loss} head with Gaussian noise",
            bounds=(data.bound,),
            assumptions=_assumptions(data),
        )
        terms: dict[str, Any] = {
            "tau": self.tau,
            "max_iterations": self.max_iterations,
            "norm_bound": self.norm_bound,
            "progress": self.progress,
        }
        with inputs.nothing_spent():
            if isinstance(stated, Objective):
                exact = minimise(stated, **terms)
            else:
                exact = minimise_streamed(stated, **terms)
        release = mechanism.release(
            exact.theta.reshape(-1),
            ledger=self._ledger(shared["radius"]),
            label=self.label or f"a {loss} head",
            source=self.source,
        )
        assert isinstance(mechanism.sigma, float)
        return release, mechanism.sigma, found.parts

    def _noisy_gd(
        self, loss: str, stated: Stated, shared: dict[str, Any], data: Data
    ) -> tuple[Release[Array], float, Breakdown]:
        plan = noisy_gd.plan_descent(
            loss,
            dimension=int(np.prod(stated.shape)),
            epsilon=self.epsilon,
            delta=self.delta,
            steps=self.steps,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            rounding=lambda size: stated.rounding(self.norm_bound, size),
            bounds=(data.bound,),
            unprotected=UNPROTECTED,
            assumptions=_assumptions(data),
            **shared,
        )
        with inputs.nothing_spent():
            stated.digest()  # reads, and refuses, what a source still has to read
        release = noisy_gd.descend(
            plan,
            stated,
            self._ledger(shared["radius"]),
            label=self.label or f"noisy gradient descent, {loss}",
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

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest score."""
        return _most_likely(self.decision_function(X), self.classes_)


def _most_likely(scores: Array, classes: NDArray[Any]) -> NDArray[Any]:
    index = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
    return classes[index]


def _binary_tags(tags: Any) -> Any:
    tags.classifier_tags.multi_class = False
    return tags


class BallLogisticRegression(_LinearHead):
    """Binary logistic regression, released once.

    mechanism="output" minimises mean log-loss + lam/2 |theta|^2 (bias included) to a
    gradient norm of tau and adds noise for Delta(radius) = G / (lam n) + 2 tau / lam.
    mechanism="noisy_gd" takes `steps` noisy gradient steps; its noise has no lam in it.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        ledger: Ledger | None = None,
        mechanism: str = "output",
        *,
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
        return "logistic", HUBER_WIDTH

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())

    def predict_proba(self, X: ArrayLike) -> Array:
        """The noisy model's probabilities of the two classes."""
        p = expit(self.decision_function(X))
        return np.column_stack([1.0 - p, p])


class BallSoftmaxClassifier(_LinearHead):
    """Multinomial logistic regression, released once; see `BallLogisticRegression`."""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        lam: float = 1e-2,
        norm_bound: float = 1.0,
        classes: Sequence[Any] | None = None,
        ledger: Ledger | None = None,
        mechanism: str = "output",
        *,
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
        return "softmax", HUBER_WIDTH

    def predict_proba(self, X: ArrayLike) -> Array:
        """The noisy model's probabilities of the classes."""
        scores = self._rows(X) @ self.coef_.T + self.intercept_
        probabilities: Array = softmax(scores, axis=1)
        return probabilities


class BallSVC(_LinearHead):
    """A linear support vector classifier, released once.

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
        ledger: Ledger | None = None,
        mechanism: str = "output",
        *,
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
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.lam = lam
        self.norm_bound = norm_bound
        self.classes = classes
        self.ledger = ledger
        self.mechanism = mechanism
        self.loss = loss
        self.huber_width = huber_width
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
        with inputs.nothing_spent():
            if self.loss not in ("squared_hinge", "huber"):
                raise ValueError(
                    f"loss must be 'squared_hinge' or 'huber'; got {self.loss!r}"
                )
        return self.loss, self.huber_width

    def __sklearn_tags__(self) -> Any:
        return _binary_tags(super().__sklearn_tags__())
