"""Linear estimators that forget: a regressor and a classifier.

One record at a time, over dicts: `learn_one`, `predict_one`, `unlearn_one`; over
arrays: `fit`, `partial_fit`, `predict`, `unfit`. Both use one `MemoryPair` that is made
with the first record; the odometer is sized with the first deletion, when the warm-up
is over and the shift is small.

Names of features are fixed at first use; after that an unknown or a missing one is an
error. They are kept for ever, so they must be public. Dicts give them in sorted order,
whatever the order in the first record was. Dicts and arrays may be mixed if `features=`
declares the names, in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from demur.core import validate
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.unlearning.estimators.base import Unlearnable
from demur.unlearning.estimators.labels import (
    as_labels,
    classes_in,
    label_array,
    numbered,
)
from demur.unlearning.models import MODES
from demur.unlearning.models.base import Accounting, Array, Scope


class UnlearnableRegressor(RegressorMixin, Unlearnable):
    """Regression that forgets: `mode` is "ogd" (Huber loss) or "ridge" (exact).

    Rows are clipped to the mode's norm_bound (`mode_config`), the constant of
    `fit_intercept` included: scale the features to it by public numbers
    (`RangeScaler`). With `standardise=True`, "ridge" does it by the means and
    deviations of its live records, and forgets those too; a record with a feature
    beyond `feature_bound` or a target beyond `y_bound` (1.7e7 each, `mode_config`) is
    refused then.

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
        standardise: bool = False,
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
        self.standardise = standardise
        self.ledger = ledger
        self.source = source

    def predict_one(self, x: Mapping[Hashable, float]) -> float:
        """The prediction for one record; 0 before anything was learned."""
        predict = self._predict_dict
        return 0.0 if predict is None else predict(x)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, record_ids: Sequence[str] | None = None
    ) -> Self:
        """Learn rows in order, from nothing: what was learned before is dropped."""
        with self._from_nothing():
            return self._fit_rows(X, y, record_ids)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, *, record_ids: Sequence[str] | None = None
    ) -> Self:
        """Learn rows in order."""
        return self._fit_rows(X, y, record_ids)

    def predict(self, X: ArrayLike) -> Array:
        """One prediction for each row."""
        self._learned()
        return np.array([self._predicted(row) for row in self._rows(X)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # The bounds of "ogd" want public scales: raw targets are beyond its loss.
        tags.regressor_tags.poor_score = self.mode == "ogd"
        return tags


class UnlearnableClassifier(ClassifierMixin, Unlearnable):
    """Classification that forgets: `mode` is "ogd", "logistic" or "ridge" (exact).

    `classes` are all labels that will ever come, two or more, of any hashable kind (0
    and 1 if not given); partial_fit's first call may name them instead, and `fit` takes
    those of its y. Any other label is refused. More
    than two classes have a row of weights each, and a softmax loss; the probabilities
    of "ridge" are the distribution that is nearest to its scores.

    >>> model = UnlearnableClassifier(fit_intercept=False, classes=("ham", "spam"))
    >>> for t in range(200):
    ...     model.learn_one({"a": 1.0 if t % 2 else -1.0}, "spam" if t % 2 else "ham")
    >>> model.predict_one({"a": 1.0}), model.predict_proba_one({"a": -1.0})["ham"] > 0.5
    ('spam', True)
    >>> model = UnlearnableClassifier(mode="ridge", classes=("red", "green", "blue"))
    >>> for t in range(30):
    ...     model.learn_one({"a": t % 3 - 1.0}, ("red", "green", "blue")[t % 3])
    >>> model.unlearn_one({"a": 1.0}, "blue")
    >>> model.predict_one({"a": 1.0}), sorted(model.predict_proba_one({"a": 1.0}))
    ('blue', ['blue', 'green', 'red'])
    """

    _river_kind: ClassVar[str] = "Classifier"
    _label_numbers: dict[Any, float]
    _label_list: list[Any]

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
        standardise: bool = False,
        classes: Sequence[Any] | None = None,
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
        self.standardise = standardise
        self.classes = classes
        self.ledger = ledger
        self.source = source

    @property
    def _multiclass(self) -> bool:  # asked by river
        return len(self._declared()) > 2

    def _declared(self) -> Sequence[Any]:
        classes = (0, 1) if self.classes is None else self.classes
        return getattr(self, "_named_classes", classes)

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order of the columns of `predict_proba`."""
        return label_array(self._labels())

    def _labels(self) -> list[Any]:
        return list(self._numbers())

    def _numbers(self) -> dict[Any, float]:
        """The number of each label; fixed with the first record."""
        if hasattr(self, "model_"):
            fixed: dict[Any, float] = self._label_numbers
            return fixed
        return numbered(self._declared())

    def _extra(self) -> dict[str, Any]:
        if "classes" in (self.mode_config or {}):
            raise ValueError(
                "classes is an argument of the estimator, not of mode_config; nothing"
                " was learned"
            )
        self._label_numbers = self._numbers()
        self._label_list = list(self._label_numbers)
        mode = MODES.get(self._mode_name())
        if mode is None:
            return {}
        chooses = "logistic" in mode.losses[1:]
        options: dict[str, Any] = {"loss": "logistic"} if chooses else {}
        classes = len(self._label_numbers)
        if classes > 2 and not mode.multiclass:
            raise ValueError(
                f"mode {self.mode!r} takes two classes; got {classes}. Nothing was"
                " learned."
            )
        # Two classes need one row of weights, where the mode has a loss for them.
        if classes > 2 or (mode.multiclass and "logistic" not in mode.losses):
            options["classes"] = classes
        return options

    def _target(self, y: Any) -> float:
        fixed = hasattr(self, "model_")
        numbers = self._label_numbers if fixed else self._numbers()
        try:
            return numbers[y]
        except (KeyError, TypeError):
            raise ValueError(
                f"y must be one of the classes {validate.shorten(list(numbers))}."
                " Nothing has changed."
            ) from None

    def _number(self) -> Callable[[Any], float]:
        return self._label_numbers.__getitem__

    def _targets(self, y: ArrayLike) -> Array:
        labels = as_labels(y)
        return np.array([self._target(label) for label in labels], dtype=np.float64)

    def _probabilities(self, row: Array) -> Array:
        if self.model_.mode.classes is not None:
            return self.model_.probabilities(row)
        p = self._predicted(row)
        return np.array([1.0 - p, p])

    def predict_proba_one(self, x: Mapping[Hashable, float]) -> dict[Any, float]:
        """The probability of each class; equal ones before anything was learned."""
        if not hasattr(self, "model_"):
            labels = self._labels()
            return dict.fromkeys(labels, 1.0 / len(labels))
        labels, predict = self._label_list, self._predict_score
        if predict is not None:  # without an array, for speed
            p = predict(x)
            return {labels[0]: 1.0 - p, labels[1]: p}
        p_of = self._probabilities(self._row(x)).tolist()
        return dict(zip(labels, p_of, strict=True))

    def predict_one(self, x: Mapping[Hashable, float]) -> Any:
        """The most probable class; of equal ones the first."""
        predict = self._predict_score
        if predict is not None:
            p = predict(x)
            return self._label_list[p > 1.0 - p]
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=lambda label: probabilities[label])

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, record_ids: Sequence[str] | None = None
    ) -> Self:
        """Learn rows in order, from nothing: what was learned before is dropped.

        Without `classes` they are the labels in y, sorted. That list is then public: it
        stays when the only record of a class is deleted.
        """
        with self._from_nothing():
            if self.classes is None and y is not None:
                self._named_classes = classes_in(y)
            return self._fit_rows(X, y, record_ids)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: Sequence[Any] | None = None,
        *,
        record_ids: Sequence[str] | None = None,
    ) -> Self:
        """Learn rows in order; `classes` must be what they were before."""
        with self._beginning():
            if classes is not None:
                fixed = hasattr(self, "model_") or self.classes is not None
                if fixed and list(classes) != self._labels():
                    raise ValueError(
                        "classes cannot change: they are declared already, and their"
                        " order counts. Nothing was learned."
                    )
                self._named_classes = list(classes)
            return self._fit_rows(X, y, record_ids)

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probabilities of the classes for each row."""
        self._learned()
        return np.array([self._probabilities(row) for row in self._rows(X)])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row; of equal ones the first."""
        chosen: NDArray[Any] = self.classes_[np.argmax(self.predict_proba(X), axis=1)]
        return chosen
