"""The base of the private classifiers: scikit-learn's conventions, and the ledger.

A fitted estimator holds what was released and nothing else: `coef_` and `intercept_`
(or `prototypes_`), `classes_`, the public shape of the input, `privacy_` and `entry_`.
Exact parameters exist inside `fit` alone. Fitting again is another release and is
charged again. A clone shares the ledger (a copy of a ledger would be a second budget);
a pickle leaves it behind and refuses to fit without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from demur.convex.heads import inputs
from demur.convex.privacy_report import PrivacyReport
from demur.convex.release import FIXED_IN_ADVANCE
from demur.convex.rows.sources import Rows
from demur.convex.solving.streamed_objective import StreamedRows
from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.ledger import Ledger, LedgerLeftBehind, left_behind

Array = NDArray[np.float64]
Data = inputs.Prepared | StreamedRows

_CLASSES_FROM_LABELS = "the set of classes, which was read off the labels, is public"
_EVERY_CLASS_PRESENT = (
    "every class has a record in both neighbouring datasets (a missing one is refused)"
)


class PrivateHead(ClassifierMixin, BaseEstimator):
    """What the private classifiers share; each is one of its subclasses."""

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

    def fit(self, X: ArrayLike | Rows, y: ArrayLike | None = None) -> Self:
        """Train on (X, y) and release once; the charge comes before the noise.

        In place of both, `ParquetRows` names files that need not fit into memory. They
        are read several times; the certificate is the same.
        """
        with inputs.restored_on_error(self):
            return self._fit(X, y)

    def _fit(self, X: ArrayLike | Rows, y: ArrayLike | None) -> Self:
        raise NotImplementedError

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
        tags.non_deterministic = True
        return tags

    def _promise(self) -> Promise:
        """The promise that was asked for; all the shared parameters checked."""
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
            unit = Ball(float(self.radius), space=self.space)
            return Promise(unit, float(self.epsilon), float(self.delta))

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


def assumptions_of(data: Data) -> tuple[str, ...]:
    """What a statement about a head of these data assumes."""
    classes = _EVERY_CLASS_PRESENT if data.classes_public else _CLASSES_FROM_LABELS
    return (FIXED_IN_ADVANCE, classes)
