"""The base of the estimators: feature names, the model behind them, its entry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from demur.core import validate
from demur.core.bounds import real_array
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.ledger import Ledger, LedgerLeftBehind, checked_ledger, left_behind
from demur.unlearning.models.base import Accounting, Array, Scope
from demur.unlearning.models.inputs import check_size
from demur.unlearning.stream.memory_pair import MemoryPair
from demur.unlearning.stream.odometer import PrivacyOdometer

# Enforced constants need no calibration: predictions count from the first record on.
_AT_ONCE = 1.0


class Unlearnable(BaseEstimator):
    """An estimator over one `MemoryPair`, for dicts and arrays."""

    _river_kind: ClassVar[str]
    mode: str
    mode_config: Mapping[str, Any] | None
    epsilon: float
    delta: float
    lam: float
    gamma: float
    events: int
    accounting: Accounting | None
    scope: Scope
    requests_per_subject: int | None
    fit_intercept: bool
    features: Sequence[Hashable] | None
    ledger: Ledger | LedgerLeftBehind | None
    source: Source | None
    model_: MemoryPair
    _pick: Callable[[Mapping[Hashable, float]], tuple[float, ...]]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Where river is loaded, register: it tests isinstance(model, Regressor)."""
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
        if type(x) is not dict and not isinstance(x, Mapping):
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
        except (TypeError, ValueError, OverflowError):
            # numpy's message quotes the value that it cannot read; ours must not.
            raise ValueError("the features of x must be numbers") from None

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
            if targets.shape != (len(rows),):
                raise ValueError(
                    f"y must hold one target for each of {len(rows)} rows; got shape"
                    f" {targets.shape}. Nothing was learned."
                )
            self._model(rows.shape[1]).insert_many(rows, targets, record_ids)
        return self

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Around the first record: if it is refused, nothing is fixed."""
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
                    "_label_numbers",
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
        """Forget rows, each a deletion of its own; none if not all of them fit."""
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
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if begin and len(shape) == 2:  # refused before anything is read or copied
            check_size(shape[1], shape[1])
        rows = real_array("X", X, "a matrix")
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                "X must have two dimensions, a row and a column at least; got shape"
                f" {rows.shape}"
            )
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
        return real_array("y", y)

    def _extra(self) -> dict[str, Any]:
        return {}

    def _model(self, dimension: int) -> MemoryPair:
        if not hasattr(self, "model_"):
            odometer = PrivacyOdometer(
                self.epsilon,
                self.delta,
                self.lam,
                T=self.events,
                gamma=self.gamma,
                accounting=self.accounting,
                scope=self.scope,
                requests_per_subject=self.requests_per_subject,
                ledger=checked_ledger(self.ledger),
                source=self.source,
            )
            options = self._extra() | dict(self.mode_config or {})
            model = MemoryPair(dimension, odometer, mode=self.mode, **options)
            model.finalize_calibration(_AT_ONCE)
            self.model_ = model
        return self.model_

    def _predicted(self, row: Array) -> float:
        """A prediction from the published parameters; N* is 1, so it is never early."""
        prediction = self.model_.predict(row)
        assert prediction is not None
        return prediction

    @property
    def entry_(self) -> Entry | None:
        """The entry that pays for the deletions; None before the first of them."""
        return self._learned().entry

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
        # deepcopy would copy the ledger, and a copy of a ledger is a second budget.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        # A worker's copy (a parallel cross-validation) must not fit without its ledger.
        state = dict(super().__getstate__())
        return state | {"ledger": left_behind(self.ledger), "source": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags
