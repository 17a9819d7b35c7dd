"""The base of the private classifiers: scikit-learn's conventions, and the ledger.

A fitted estimator holds what was released and nothing else: `coef_` and `intercept_`
(or `prototypes_`), `classes_`, the public shape of the input, `privacy_` and `entry_`.
Exact parameters exist inside `fit` alone. Fitting again is another release and is
charged again. A clone shares the ledger (a copy of a ledger would be a second budget);
a pickle leaves it behind and refuses to fit without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from demur.convex.heads import inputs
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import FIXED_IN_ADVANCE, head_ledger
from demur.convex.rows.sources import Rows
from demur.convex.sensitivity import radius_origin
from demur.convex.solving.streamed_objective import StreamedRows
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.errors import BudgetExceeded
from demur.core.promise import Promise, promise_at
from demur.core.rounding import printed_down
from demur.ledger import Ledger, LedgerLeftBehind, left_behind
from demur.preprocessing.checked_rows import check_norm_bound, restored_on_error
from demur.preprocessing.meta_estimators import compare_with_a_private_search
from demur.preprocessing.pipelines import Preprocessing, preprocessing_of

Array = NDArray[np.float64]
Data = inputs.Prepared | StreamedRows

_CLASSES_FROM_LABELS = "the set of classes, which was read off the labels, is public"
_RECORDS = (
    "every record is a row of finite numbers with a label{where} (a fit on any other"
    " is refused, which tells that there is one)"
)
_NO_LONG_ROWS = (
    "no row is longer than the norm bound (with clip=False a fit on a longer one is"
    " refused, which tells that there is one)"
)
_BISECTIONS = 14  # of a factor of 1000: to a relative 4e-4


@dataclass(frozen=True)
class StagedFit:
    """A fit whose noise is fixed: what it will pay for, and the rest of it.

    `finish` charges, draws, and gives the estimator what was released.
    """

    mechanism: Mechanism
    finish: Callable[[], None]


class PrivateHead(ClassifierMixin, BaseEstimator):
    """What the private classifiers share; each is one of its subclasses."""

    epsilon: float
    delta: float
    radius: float | None
    unit: Ball | ReplaceOne | None
    norm_bound: float
    ledger: Ledger | LedgerLeftBehind | None
    space: str
    classes: Sequence[Any] | None
    clip: bool
    label: str | None
    source: Source | None
    privacy_: PrivacyReport
    classes_: NDArray[Any]

    def fit(self, X: ArrayLike | Rows, y: ArrayLike | None = None) -> Self:
        """Train on (X, y) and release once; the charge comes before the noise.

        In place of both, `ParquetRows` names files that need not fit into memory. They
        are read several times; the certificate is the same.
        """
        with restored_on_error(self):
            self._staged(X, y).finish()
            return self

    def fit_declaration(
        self, X: ArrayLike | Rows, y: ArrayLike | None = None
    ) -> Declaration:
        """What a fit on these rows would declare to the ledger; nothing is spent.

        For a private search, which pays for all of its fits before the first one.
        """
        return declaration_of(clone(self)._staged(X, y).mechanism)

    def check_rows(self, X: ArrayLike | Rows, y: ArrayLike | None = None) -> None:
        """Refuse rows and labels that a fit would refuse; nothing is spent."""
        clone(self)._prepare(X, y, two_classes=False)

    def _staged(self, X: ArrayLike | Rows, y: ArrayLike | None) -> StagedFit:
        raise NotImplementedError

    def promise(self) -> Promise:
        """The promise that a fit will make; wrong parameters are refused."""
        return self._promise(classes_known=True)

    @property
    def entry_(self) -> Entry:
        """The ledger entry that paid for the release."""
        return self.privacy_.entry

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest score, for each row."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return self.classes_[(scores > 0).astype(np.intp)]
        return self.classes_[scores.argmax(axis=1)]

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores of the rows: one number for two classes, one for each otherwise."""
        raise NotImplementedError

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
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags

    def _promise(self, *, classes_known: bool = False) -> Promise:
        """The promise that was asked for; all the shared parameters checked."""
        with inputs.nothing_spent():
            check_norm_bound(self.norm_bound)
            promise = promise_at(
                self.epsilon,
                self.delta,
                unit=self.unit,
                radius=self.radius,
                space=self.space,
            )
            labels_change = not classes_known and isinstance(promise.unit, ReplaceOne)
            if self.classes is None and labels_change:
                raise ValueError(
                    f"classes must be given for unit={promise.unit}: a replacement may"
                    " change a label, so the list of classes must be public"
                )
            return promise

    def _before(self, promise: Promise) -> Preprocessing:
        """What was done to the rows before this fit, in a pipeline around it."""
        before = preprocessing_of(self, promise.unit, self.space)
        compare_with_a_private_search(promise, "demur.tuning.PrivateGridSearch")
        return before

    def _ledger(self, promise: Promise) -> Ledger:
        return head_ledger(self.ledger, promise)

    @contextmanager
    def _declining(
        self, promise: Promise, mechanism_at: Callable[[Promise], Mechanism]
    ) -> Iterator[None]:
        """A charge that is declined says which epsilon would have fitted."""
        try:
            yield
        except BudgetExceeded as declined:
            if self.ledger is None:
                raise
            # In a worker, its own opening of the ledger.
            advice = _what_fits(self._ledger(promise), promise, mechanism_at)
            raise BudgetExceeded(f"{declined} {advice}") from None

    def _assumptions(self, data: Data, before: Preprocessing) -> tuple[str, ...]:
        """What a statement about a head of these data assumes."""
        where = " among the public classes" if data.classes_public else ""
        found = [FIXED_IN_ADVANCE, _RECORDS.format(where=where)]
        if not data.classes_public:
            found.append(_CLASSES_FROM_LABELS)
        if not self.clip:
            found.append(_NO_LONG_ROWS)
        radius = self.radius
        if isinstance(self.unit, Ball):
            radius = self.unit.radius
        return (*found, *radius_origin.conditions(radius), *before.assumptions)

    def _prepare(
        self, X: ArrayLike | Rows, y: ArrayLike | None, *, two_classes: bool
    ) -> Data:
        return inputs.prepare(
            self,
            X,
            y,
            classes=self.classes,
            norm_bound=self.norm_bound,
            clip=self.clip,
            space=self.space,
            two_classes=two_classes,
        )

    def _rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return inputs.clipped(self, X, self.norm_bound)


def reported_space(promise: Promise, before: Preprocessing) -> str:
    """The space whose radii a report speaks of."""
    unit = promise.unit
    return unit.space if isinstance(unit, Ball) else before.space.name


def _what_fits(
    ledger: Ledger, promise: Promise, mechanism_at: Callable[[Promise], Mechanism]
) -> str:
    """The largest epsilon at the promise's unit that the ledger could pay for."""

    def fits(epsilon: float) -> bool:
        return ledger.would_fit(mechanism_at(replace(promise, epsilon=epsilon)))

    low, high = promise.epsilon * 1e-3, promise.epsilon
    if not fits(low):
        return f"No epsilon from {low:g} at {promise.unit} would have fitted."
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return f"With epsilon={printed_down(low)} at {promise.unit} it would have fitted."
