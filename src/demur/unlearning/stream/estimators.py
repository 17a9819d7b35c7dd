"""Estimators that forget, in the conventions of river and of scikit-learn.

One record at a time, over dicts: `learn_one`, `predict_one`, `unlearn_one`; over
arrays: `partial_fit`, `predict`, `unfit`. Both use one `MemoryPair` that is made with
the first record; the odometer is sized with the first deletion, when the warm-up is
over and the shift is small.

Names of features are fixed at first use; after that an unknown or a missing one is an
error. A dict and an array may be mixed if the columns of the array come in the order of
the names.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.unlearning.models import MODES
from demur.unlearning.models.base import Accounting, Array, Scope
from demur.unlearning.stream.estimator_base import Unlearnable


class UnlearnableRegressor(RegressorMixin, Unlearnable):
    """Regression that forgets: `mode` is "ogd" (Huber loss) or "ridge" (exact).

    Rows are clipped to the mode's norm_bound (`mode_config`), the constant of
    `fit_intercept` included: scale the features to it.

    >>> model = UnlearnableRegressor(mode="ridge", fit_intercept=False)
    >>> for t in range(20):
    ...     model.learn_one({"a": 0.1 * (t % 7), "b": 0.5}, 0.05 * (t % 7))
    >>> round(model.predict_one({"a": 0.4, "b": 0.5}), 1)
    0.2
    >>> model.unlearn_one({"a": 0.1, "b": 0.5}, 0.05)
    """

    _river_kind: ClassVar[str] = "Regressor"

    def __init__(
        self,
        mode: str = "ogd",
        *,
        mode_config: Mapping[str, Any] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        lam: float = 0.1,
        gamma: float = 0.5,
        events: int = 100_000,
        accounting: Accounting | None = None,
        scope: Scope = "subject",
        requests_per_subject: int | None = None,
        fit_intercept: bool = True,
        features: Sequence[Hashable] | None = None,
        ledger: Ledger | None = None,
        source: Source | None = None,
    ) -> None:
        self.mode = mode
        self.mode_config = mode_config
        self.epsilon = epsilon
        self.delta = delta
        self.lam = lam
        self.gamma = gamma
        self.events = events
        self.accounting = accounting
        self.scope = scope
        self.requests_per_subject = requests_per_subject
        self.fit_intercept = fit_intercept
        self.features = features
        self.ledger = ledger
        self.source = source

    def predict_one(self, x: Mapping[Hashable, float]) -> float:
        """The prediction for one record; 0 before anything was learned."""
        if not hasattr(self, "model_"):
            return 0.0
        return self._predicted(self._row(x))

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, *, record_ids: Sequence[str] | None = None
    ) -> Self:
        """Learn rows in order."""
        return self._fit_rows(X, y, record_ids)

    def predict(self, X: ArrayLike) -> Array:
        """One prediction for each row."""
        self._learned()
        return np.array([self._predicted(row) for row in self._rows(X)])


class UnlearnableClassifier(ClassifierMixin, Unlearnable):
    """Binary classification that forgets: `mode` is "ogd" or "logistic".

    `classes` are the two labels, the second being the positive one; partial_fit's
    first call may name them instead.

    >>> model = UnlearnableClassifier(fit_intercept=False, classes=("ham", "spam"))
    >>> for t in range(200):
    ...     model.learn_one({"a": 1.0 if t % 2 else -1.0}, "spam" if t % 2 else "ham")
    >>> model.predict_one({"a": 1.0}), model.predict_proba_one({"a": -1.0})["ham"] > 0.5
    ('spam', True)
    """

    _river_kind: ClassVar[str] = "Classifier"

    def __init__(
        self,
        mode: str = "ogd",
        *,
        mode_config: Mapping[str, Any] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        lam: float = 0.1,
        gamma: float = 0.5,
        events: int = 100_000,
        accounting: Accounting | None = None,
        scope: Scope = "subject",
        requests_per_subject: int | None = None,
        fit_intercept: bool = True,
        features: Sequence[Hashable] | None = None,
        classes: Sequence[Any] = (0, 1),
        ledger: Ledger | None = None,
        source: Source | None = None,
    ) -> None:
        self.mode = mode
        self.mode_config = mode_config
        self.epsilon = epsilon
        self.delta = delta
        self.lam = lam
        self.gamma = gamma
        self.events = events
        self.accounting = accounting
        self.scope = scope
        self.requests_per_subject = requests_per_subject
        self.fit_intercept = fit_intercept
        self.features = features
        self.classes = classes
        self.ledger = ledger
        self.source = source

    @property
    def _multiclass(self) -> bool:  # asked by river
        return False

    @property
    def classes_(self) -> NDArray[Any]:
        """The two labels, the positive one last."""
        return np.asarray(self._labels())

    def _labels(self) -> list[Any]:
        labels = list(getattr(self, "_named_classes", self.classes))
        if len(labels) != 2 or labels[0] == labels[1]:
            raise ValueError(f"classes must be two labels; got {labels!r}")
        return labels

    def _extra(self) -> dict[str, Any]:
        mode = MODES.get(self.mode)
        chooses = mode is not None and "logistic" in mode.losses[1:]
        return {"loss": "logistic"} if chooses else {}

    def _target(self, y: Any) -> float:
        negative, positive = self._labels()
        if y == positive:
            return 1.0
        if y == negative:
            return 0.0
        raise ValueError(
            f"y must be one of the classes {negative!r} and {positive!r}. Nothing has"
            " changed."
        )

    def _targets(self, y: ArrayLike) -> Array:
        labels = np.asarray(y)
        if labels.ndim != 1 or np.ma.is_masked(y):
            raise ValueError(
                f"y must be a vector of labels, none masked; got shape {labels.shape}."
                " Nothing was learned."
            )
        return np.array([self._target(label) for label in labels])

    def predict_proba_one(self, x: Mapping[Hashable, float]) -> dict[Any, float]:
        """The probability of each class; one half before anything was learned."""
        negative, positive = self._labels()
        p = 0.5
        if hasattr(self, "model_"):
            p = self._predicted(self._row(x))
        return {negative: 1.0 - p, positive: p}

    def predict_one(self, x: Mapping[Hashable, float]) -> Any:
        """The more probable class."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=lambda label: probabilities[label])

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Sequence[Any] | None = None,
        *,
        record_ids: Sequence[str] | None = None,
    ) -> Self:
        """Learn rows in order; `classes` must be what they were before."""
        if classes is not None:
            if hasattr(self, "model_") and list(classes) != self._labels():
                raise ValueError("classes cannot change; nothing was learned")
            self._named_classes = list(classes)
        return self._fit_rows(X, y, record_ids)

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probabilities of both classes for each row."""
        self._learned()
        p = np.array([self._predicted(row) for row in self._rows(X)])
        return np.column_stack([1.0 - p, p])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The more probable class of each row."""
        chosen: NDArray[Any] = self.classes_[
            (self.predict_proba(X)[:, 1] > 0.5).astype(int)
        ]
        return chosen
