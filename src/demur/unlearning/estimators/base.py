"""The base of the estimators: feature names, the model behind them, its entry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import NotFittedError

from demur.core.bounds import real_array
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.ledger import Ledger, LedgerLeftBehind, checked_ledger, left_behind
from demur.unlearning.estimators.arrays import feature, matrix, vector_of
from demur.unlearning.estimators.dict_events import (
    Features,
    SlowWay,
    dict_events,
    in_fixed_order,
)
from demur.unlearning.estimators.river_habits import RiverHabits
from demur.unlearning.estimators.standardisation import mode_that_standardises
from demur.unlearning.models.base import Accounting, Array, Scope
from demur.unlearning.models.inputs import check_size
from demur.unlearning.stream.memory_pair import MemoryPair
from demur.unlearning.stream.odometer import PrivacyOdometer

# Enforced constants need no calibration: predictions count from the first record on.
_AT_ONCE = 1.0
# What the first record fixes.
_LEARNED = (
    "model_",
    "features_",
    "n_features_in_",
    "feature_names_in_",
    "_named_by_dicts",
    "_predict_dict",
    "_learn_dict",
    "_predict_score",
    "_named_classes",
    "_label_numbers",
    "_label_list",
)
# Checks of scikit-learn's check_estimator that cannot hold, each with its reason. The
# table in docs/unlearning.md says the same in full sentences.
SKLEARN_EXCEPTIONS: Mapping[str, str] = {
    "check_estimators_pickle": "a learned model is not copied: a second budget",
    "check_dtype_object": "a cell that is no number is a ValueError",
}


class Unlearnable(RiverHabits):
    """An estimator over one `MemoryPair`, for dicts and arrays."""

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
    standardise: bool
    model_: MemoryPair
    _named_by_dicts: bool = False  # and in an order of ours, not declared
    # Set with the model: events over dicts, without ids.
    _predict_dict: Callable[[Features], float] | None = None
    _learn_dict: Callable[[Features, Any], None] | None = None
    # The same where the model has one score, or the probability of a second class.
    _predict_score: Callable[[Features], float] | None = None

    # -- one record at a time, over dicts ---------------------------------------

    def learn_one(
        self,
        x: Mapping[Hashable, float],
        y: Any,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> None:
        """Learn one record."""
        learn = self._learn_dict
        if learn is not None and record_id is None and subject_id is None:
            learn(x, y)
        else:
            self._learn(x, y, record_id, subject_id)

    def _learn(
        self,
        x: Mapping[Hashable, float],
        y: Any,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> None:
        """The general way, from the first record on."""
        with self._beginning():
            row, target = self._row(x, begin=True), self._target(y)
            model = self._model(len(row))
            model.insert(row, target, record_id, subject_id)
            self._adopt(model)

    def _predict(self, x: Mapping[Hashable, float]) -> float:
        return self._predicted(self._row(x))

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
        """A new row from a dict, or an error that says what is wrong with it."""
        if type(x) is not dict and not isinstance(x, Mapping):
            raise TypeError(f"x must be a dict of features; got {type(x).__name__}")
        if not hasattr(self, "features_"):
            if not begin:
                raise NotFittedError("nothing was learned yet")
            # The order of a record's names must not outlive it.
            self._fix(in_fixed_order(x) if self.features is None else self.features)
            self._named_by_dicts = self.features is None
        names = self.features_
        missing = [at for at, name in enumerate(names) if name not in x]
        unknown = len(x) - len(names) + len(missing)
        if missing or unknown:  # names may be data, so they are not quoted
            where = f" (first at position {missing[0]} of features_)" if missing else ""
            raise ValueError(
                "the features of x must be those of the first record, but"
                f" {unknown} are unknown and {len(missing)} missing{where}. Nothing has"
                " changed."
            )
        values = [x[name] for name in names] + [1.0] * self._constant
        return np.array([feature(value) for value in values])

    @property
    def _constant(self) -> bool:
        """Whether rows get a constant; a mode that standardises has its own."""
        return self.fit_intercept and self._mode_name() != "standardised_ridge"

    def _mode_name(self) -> str:
        mode = mode_that_standardises(self.mode) if self.standardise else self.mode
        if mode == "standardised_ridge" and not self.fit_intercept:
            raise ValueError(
                "fit_intercept=False does not go with standardised features: their"
                " means are taken off, which takes an intercept. Leave one of the two"
                " options out. Nothing was learned."
            )
        return mode

    def _fix(self, names: Iterable[Hashable]) -> None:
        fixed = list(names)
        if not fixed:
            raise ValueError("x must have a feature; nothing was learned")
        if len(set(fixed)) != len(fixed):
            raise ValueError(
                f"the names of the features must differ: {len(fixed)} have"
                f" {len(set(fixed))} names. Nothing was learned."
            )
        self.features_ = fixed
        self.n_features_in_ = len(fixed)

    # -- arrays ------------------------------------------------------------------

    def _fit_rows(
        self, X: ArrayLike, y: ArrayLike, record_ids: Sequence[str] | None
    ) -> Self:
        with self._beginning():
            if y is None:
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y"
                    " is None. Nothing was learned."
                )
            rows, targets = self._rows(X, begin=True), self._targets(y)
            if targets.shape != (len(rows),):
                raise ValueError(
                    f"y must hold one target for each of {len(rows)} rows; got shape"
                    f" {targets.shape}. Nothing was learned."
                )
            model = self._model(rows.shape[1])
            model.insert_many(rows, targets, record_ids)
            self._adopt(model)
        return self

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Around the first record: one thread at a time; refused, it fixes nothing."""
        if hasattr(self, "model_"):
            yield
            return
        with self._begin_lock():
            first = not hasattr(self, "model_")
            try:
                yield
            except BaseException:
                if first:
                    for name in _LEARNED:
                        self.__dict__.pop(name, None)
                raise

    def _begin_lock(self) -> threading.RLock:
        # Not made by the constructor, which scikit-learn wants to set parameters alone.
        lock: threading.RLock = self.__dict__.setdefault("_lock", threading.RLock())
        return lock

    @contextmanager
    def _from_nothing(self) -> Iterator[None]:
        """Around `fit`: what was learned is dropped, and back if the rows are refused.

        The reservation of dropped deletions stays spent in the ledger.
        """
        with self._begin_lock():
            before = {n: self.__dict__.pop(n) for n in _LEARNED if n in self.__dict__}
            try:
                yield
            except BaseException:
                self.__dict__.update(before)
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
        model.delete_rows(rows, targets)
        return self

    def _rows(self, X: ArrayLike, *, begin: bool = False) -> Array:
        names = getattr(X, "columns", None)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if begin and len(shape) == 2:  # refused before anything is read or copied
            check_size(shape[1], shape[1])
        rows = matrix("X", X)
        if not hasattr(self, "features_"):
            if not begin:
                raise NotFittedError("nothing was learned yet")
            given = range(rows.shape[1]) if names is None else names
            self._fix(given if self.features is None else self.features)
            if names is not None and all(isinstance(n, str) for n in names):
                self.feature_names_in_ = np.array(list(names), dtype=object)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is"
                f" expecting {self.n_features_in_} features as input, those of the"
                " first record. Nothing has changed."
            )
        if names is not None and list(names) != self.features_:
            raise ValueError("the columns of X are not the features that were learned")
        in_order = self.features_ == list(range(rows.shape[1])) or rows.shape[1] == 1
        if names is None and self._named_by_dicts and not in_order:
            raise ValueError(
                "the columns of X have no names, and dicts named the features: say in"
                " which order the columns come by features=, and learn again. Nothing"
                " has changed."
            )
        if not self._constant:
            return rows
        return np.hstack([rows, np.ones((len(rows), 1))])

    # -- the model behind ----------------------------------------------------------

    def _target(self, y: Any) -> float:
        try:
            return float(y)
        except (TypeError, ValueError, OverflowError):
            # Python's message quotes the value that it cannot read; ours must not.
            raise ValueError("y must be a finite number") from None

    def _number(self) -> Callable[[Any], float]:
        """A quick `_target`, which may fail in other words."""
        return float

    def _targets(self, y: ArrayLike) -> Array:
        return real_array("y", vector_of("y", y))

    def _extra(self) -> dict[str, Any]:
        return {}

    def _model(self, dimension: int) -> MemoryPair:
        """The model, or a new one for the first record."""
        if hasattr(self, "model_"):
            return self.model_
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
        model = MemoryPair(dimension, odometer, mode=self._mode_name(), **options)
        model.finalize_calibration(_AT_ONCE)
        return model

    def _adopt(self, model: MemoryPair) -> None:
        """Show other threads a new model once it has learned: it stays from then on."""
        if hasattr(self, "model_"):
            return
        self.model_ = model
        self._predict_dict, self._learn_dict = dict_events(
            model,
            self.features_,
            SlowWay(self._predict, self._learn, self._number()),
            constant=self._constant,
        )
        if model.mode.classes is None:
            self._predict_score = self._predict_dict

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
        with model._lock:  # of two first deletions at once, one sizes the odometer
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
        if hasattr(self, "model_"):
            self.model_.__reduce__()  # refuses
        # A worker's copy (a parallel cross-validation) must not fit without its ledger.
        state = dict(super().__getstate__())
        state.pop("_lock", None)
        return state | {"ledger": left_behind(self.ledger), "source": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags
