"""Models that forget, in the conventions of river and of scikit-learn.

One record at a time, over dicts: `learn_one`, `predict_one`, `unlearn_one`; over
arrays: `partial_fit`, `predict`, `unfit`. Both speak to one `MemoryPair` that is made
with the first record; the odometer is sized with the first deletion, when the warm-up
is over and the shift is small.

Names of features are fixed at first use; after that an unknown or a missing one is an
error. A dict and an array may be mixed if the columns of the array come in the order of
the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError

from demur.core import validate
from demur.core.entropy import Source
from demur.ledger import Ledger
from demur.unlearning.memory_pair import MemoryPair
from demur.unlearning.modes.base import Accounting, Array, Scope
from demur.unlearning.odometer import PrivacyOdometer

# Enforced constants need no calibration: predictions count from the first record on.
_AT_ONCE = 1.0


class _Unlearnable(BaseEstimator):
    """What both share: names, the model behind them, and how a book travels (not)."""

    _river_kind: ClassVar[str]
    mode: str
    mode_config: Mapping[str, Any] | None
    epsilon: float
    delta: float
    lambda_: float
    gamma: float
    events: int
    accounting: Accounting | None
    scope: Scope
    requests_per_subject: int
    fit_intercept: bool
    features: Sequence[Hashable] | None
    ledger: Ledger | None
    source: Source | None
    model_: MemoryPair
    _pick: Callable[[Mapping[Hashable, float]], tuple[float, ...]]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # river asks isinstance(model, base.Regressor). Where it is loaded, it is told;
        # where it is not, nobody asks.
        river = sys.modules.get("river.base")
        if river is not None:
            getattr(river, cls._river_kind).register(cls)
        return super().__new__(cls)

    # -- one record at a time, over dicts ---------------------------------------

    @property
    def _supervised(self) -> bool:  # asked by river
        return True

    def learn_one(
        self,
        x: Mapping[Hashable, float],
        y: Any,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> None:
        """Learn one record."""
        if hasattr(self, "model_"):
            row, target = self._row(x), self._target(y)
            self.model_.insert(row, target, record_id, subject_id)
            return
        with self._beginning():
            row, target = self._row(x, begin=True), self._target(y)
            self._model(len(row)).insert(row, target, record_id, subject_id)

    def unlearn_one(
        self,
        x: Mapping[Hashable, float] | None = None,
        y: Any = None,
        *,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> None:
        """Forget one record, named by its content or by its id."""
        row = None if x is None else self._row(x)
        target = None if y is None else self._target(y)
        model = self._ready()
        model.delete(row, target, record_id=record_id, subject_id=subject_id)

    def _row(self, x: Mapping[Hashable, float], *, begin: bool = False) -> Array:
        if not isinstance(x, Mapping):
            raise TypeError(f"x must be a dict of features; got {type(x).__name__}")
        if not hasattr(self, "features_"):
            names = list(x) if self.features is None else list(self.features)
            if not begin:
                raise NotFittedError("nothing was learned yet")
            self._fix(names)
        try:
            values = self._pick(x)
        except KeyError:
            values = ()
        if not values or len(x) != self.n_features_in_:
            unknown = [n for n in x if n not in self.features_]
            missing = [n for n in self.features_ if n not in x]
            raise ValueError(
                "the features of x must be those of the first record:"
                f" unknown {validate.shorten(unknown)}, missing"
                f" {validate.shorten(missing)}. Nothing has changed."
            )
        if self.fit_intercept:
            values = (*values, 1.0)
        try:
            return np.array(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the features of x must be numbers; {error}") from None

    def _fix(self, names: list[Hashable]) -> None:
        if not names:
            raise ValueError("x must have a feature; nothing was learned")
        self.features_ = names
        self.n_features_in_ = len(names)
        only = names[0]
        self._pick = itemgetter(*names) if len(names) > 1 else lambda x: (x[only],)

    # -- arrays ------------------------------------------------------------------

    def _fit_rows(
        self, X: ArrayLike, y: ArrayLike, record_ids: Sequence[str] | None
    ) -> Self:
        with self._beginning():
            rows, targets = self._rows(X, begin=True), self._targets(y)
            self._model(rows.shape[1]).insert_many(rows, targets, record_ids)
        return self

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """A first record that is refused fixes neither names nor model."""
        first = not hasattr(self, "model_")
        try:
            yield
        except BaseException:
            if first:
                for name in (
                    "model_",
                    "features_",
                    "n_features_in_",
                    "_pick",
                    "_named_classes",
                ):
                    self.__dict__.pop(name, None)
            raise

    def unfit(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        record_ids: Sequence[str] | None = None,
    ) -> Self:
        """Forget rows, each a deletion of its own; all or none for want of capacity."""
        rows = None if X is None else self._rows(X)
        targets = None if y is None else self._targets(y)
        model = self._ready()
        if record_ids is not None:
            model.delete_many(record_ids, rows, targets)
            return self
        if rows is None or targets is None or len(rows) != len(targets):
            raise ValueError("unfit needs X and y of equal length, or record_ids")
        model.odometer.require_ready(len(rows))
        for row, target in zip(rows, targets, strict=True):
            model.delete(row, target)
        return self

    def _rows(self, X: ArrayLike, *, begin: bool = False) -> Array:
        names = getattr(X, "columns", None)
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2:
            raise ValueError(f"X must have two dimensions; got shape {rows.shape}")
        if not hasattr(self, "features_"):
            if not begin:
                raise NotFittedError("nothing was learned yet")
            given = range(rows.shape[1]) if names is None else names
            self._fix(list(given if self.features is None else self.features))
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {self.n_features_in_} were"
                " learned. Nothing has changed."
            )
        if names is not None and list(names) != list(self.features_):
            raise ValueError("the columns of X are not the features that were learned")
        if not self.fit_intercept:
            return rows
        return np.hstack([rows, np.ones((len(rows), 1))])

    # -- the model behind ----------------------------------------------------------

    def _target(self, y: Any) -> float:
        return float(y)

    def _targets(self, y: ArrayLike) -> Array:
        return np.asarray(y, dtype=np.float64)

    def _extra(self) -> dict[str, Any]:
        return {}

    def _model(self, dim: int) -> MemoryPair:
        if not hasattr(self, "model_"):
            odometer = PrivacyOdometer(
                self.epsilon,
                self.delta,
                self.lambda_,
                T=self.events,
                gamma=self.gamma,
                accounting=self.accounting,
                scope=self.scope,
                requests_per_subject=self.requests_per_subject,
                ledger=self.ledger,
                source=self.source,
            )
            options = self._extra() | dict(self.mode_config or {})
            model = MemoryPair(dim, odometer, mode=self.mode, **options)
            model.finalize_calibration(_AT_ONCE)
            self.model_ = model
        return self.model_

    def _learned(self) -> MemoryPair:
        if not hasattr(self, "model_"):
            raise NotFittedError("nothing was learned yet")
        return self.model_

    def _ready(self) -> MemoryPair:
        model = self._learned()
        if not model.odometer.finalised:
            assert model.stats is not None
            model.odometer.finalize_with(model.stats, T_estimate=self.events)
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_clone__(self) -> Self:
        # deepcopy would copy the book, and a copy of a book is a second budget.
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class UnlearnableRegressor(RegressorMixin, _Unlearnable):
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
        lambda_: float = 0.1,
        gamma: float = 0.5,
        events: int = 100_000,
        accounting: Accounting | None = None,
        scope: Scope = "subject",
        requests_per_subject: int = 1,
        fit_intercept: bool = True,
        features: Sequence[Hashable] | None = None,
        ledger: Ledger | None = None,
        source: Source | None = None,
    ) -> None:
        self.mode = mode
        self.mode_config = mode_config
        self.epsilon = epsilon
        self.delta = delta
        self.lambda_ = lambda_
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
        return self.model_.mode.predict(self._row(x))

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, *, record_ids: Sequence[str] | None = None
    ) -> Self:
        """Learn rows in order."""
        return self._fit_rows(X, y, record_ids)

    def predict(self, X: ArrayLike) -> Array:
        """One prediction for each row."""
        mode = self._learned().mode
        return np.array([mode.predict(row) for row in self._rows(X)])


class UnlearnableClassifier(ClassifierMixin, _Unlearnable):
    """Two classes, and it forgets: `mode` is "ogd" (logistic loss) or "logistic".

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
        lambda_: float = 0.1,
        gamma: float = 0.5,
        events: int = 100_000,
        accounting: Accounting | None = None,
        scope: Scope = "subject",
        requests_per_subject: int = 1,
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
        self.lambda_ = lambda_
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
        return {"loss": "logistic"} if self.mode == "ogd" else {}

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
        return np.array([self._target(label) for label in np.asarray(y)])

    def predict_proba_one(self, x: Mapping[Hashable, float]) -> dict[Any, float]:
        """The probability of each class; one half before anything was learned."""
        negative, positive = self._labels()
        p = 0.5
        if hasattr(self, "model_"):
            p = self.model_.mode.predict(self._row(x))
        return {negative: 1.0 - p, positive: p}

    def predict_one(self, x: Mapping[Hashable, float]) -> Any:
        """The more probable class."""
        made = self.predict_proba_one(x)
        return max(made, key=lambda label: made[label])

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
        mode = self._learned().mode
        p = np.array([mode.predict(row) for row in self._rows(X)])
        return np.column_stack([1.0 - p, p])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The more probable class of each row."""
        chosen: NDArray[Any] = self.classes_[
            (self.predict_proba(X)[:, 1] > 0.5).astype(int)
        ]
        return chosen
