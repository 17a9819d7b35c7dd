"""Checks of rows and labels before a fit: every refusal comes before the charge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from demur.convex.rows.class_sums import exact_sums
from demur.convex.rows.sources import (
    MOST_LABELS,
    Rows,
    RowSource,
    is_rows,
    refuse_long_rows,
)
from demur.convex.sensitivity.form import HeadForm
from demur.convex.solving.objective import Objective, objective
from demur.convex.solving.streamed_objective import StreamedRows
from demur.core import validate
from demur.core.bounds import Bound, BoundSource, clip_rows
from demur.preprocessing.checked_rows import (
    checked_rows,
    dense_rows,
    no_records_quoted,
    refuse_masked,
    refuse_missing,
)

Array = NDArray[np.float64]


class Prepared(NamedTuple):
    """Rows inside the norm bound, class indices, and the classes.

    `classes_public`: the classes were given, not read off the labels.
    """

    X: Array
    y: NDArray[np.intp]
    classes: NDArray[Any]
    bound: Bound
    classes_public: bool

    @property
    def width(self) -> int:
        """The number of features."""
        return self.X.shape[1]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of records of each class."""
        return np.bincount(self.y, minlength=len(self.classes))

    def objective(self, form: HeadForm) -> Objective:
        """The objective of a form on these rows, with their norm bound."""
        return objective(form.with_bound(self.bound), self.X, self.y)

    def exact_sums(self) -> tuple[Array, float]:
        """Sums of the rows of each class, exact on a grid, and that grid's step."""
        return exact_sums(self.X, self.y, len(self.classes), self.bound.value)


@contextmanager
def nothing_spent() -> Iterator[None]:
    """Errors inside the block also say that nothing was charged."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = str(error)
        if "othing was" in message:
            raise
        raise type(error)(f"{message}\nNothing was charged or released.") from None


def prepare(
    estimator: Any,
    X: ArrayLike | Rows,
    y: ArrayLike | None,
    *,
    classes: Sequence[Any] | None,
    norm_bound: float,
    clip: bool,
    space: str,
    two_classes: bool,
) -> Prepared | StreamedRows:
    """The data an estimator may fit, or a clear error with nothing charged.

    Of a row source only the labels are read here; each row is checked in every pass,
    and the first pass comes before the charge.
    """
    with nothing_spent():
        if is_rows(X):
            if y is not None:
                raise TypeError(
                    f"y must be left out: {type(X).__name__} names its column of labels"
                )
            validate.positive(norm_bound=norm_bound)
            row_source = X.row_source()
            known, counts = _counted(row_source, classes, two_classes)
            # As scikit-learn does for a matrix without names.
            estimator.n_features_in_ = row_source.width
            vars(estimator).pop("feature_names_in_", None)
            bound = Bound(float(norm_bound), BoundSource.ENFORCED)
            public = classes is not None
            return StreamedRows(row_source, known, counts, bound, public, clip)
        refuse_masked(X=X, y=y)
        X = dense_rows(X)
        with no_records_quoted():
            rows, labels = validate_data(
                estimator,
                X,
                y,
                dtype=np.float64,
                ensure_min_samples=2,
                ensure_all_finite=False,
            )
            if classes is None:
                # Looks at all labels, and warns of many: only where they are public.
                check_classification_targets(labels)
        refuse_missing(rows)
        known = _classes(labels, classes, two_classes)
        index = _indices(labels, known)
        validate.positive(norm_bound=norm_bound)
        if not clip:
            refuse_long_rows(rows, norm_bound)
        bounded = clip_rows(rows, norm_bound, space=space)
    return Prepared(bounded.data, index, known, bounded.bound, classes is not None)


def clipped(estimator: Any, X: ArrayLike, norm_bound: float) -> Array:
    """Rows to predict on, treated as the rows of the fit were."""
    return clip_rows(checked_rows(estimator, X, reset=False), norm_bound).data


def _counted(
    rows: RowSource, classes: Sequence[Any] | None, two_classes: bool
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes of a row source, and how many records each has."""
    label_counts = rows.label_counts()
    if any(label is None or label != label for label in label_counts):
        raise ValueError("y has missing labels: drop those records")
    if len(label_counts) > MOST_LABELS:
        raise ValueError(
            f"y holds more than {MOST_LABELS} different labels; a label is a class"
        )
    if sum(label_counts.values()) < 2:
        raise ValueError("X has fewer records than a minimum of 2 is required")
    with no_records_quoted():
        labels = np.asarray(list(label_counts))
        if classes is None:
            # Twice: labels that occur once look like real numbers to scikit-learn.
            check_classification_targets(np.repeat(labels, 2))
    known = _classes(labels, classes, two_classes)
    counts = np.zeros(len(known), dtype=np.int64)
    counts[_indices(labels, known)] = list(label_counts.values())
    return known, counts


def _classes(
    labels: NDArray[Any], classes: Sequence[Any] | None, two_classes: bool
) -> NDArray[Any]:
    if classes is None:
        known = np.unique(labels)
        if len(known) < 2:
            raise ValueError(
                "a classifier needs at least two classes; y holds only one class"
            )
    else:
        known = np.asarray(classes)
        if known.ndim != 1 or len(np.unique(known)) != len(known) or len(known) < 2:
            raise ValueError(
                "classes must list at least two different labels; got"
                f" {known.tolist()!r:.80}"
            )
        known = np.sort(known)
    if two_classes and len(known) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is"
            f" multiclass ({len(known)} classes): use BallSoftmaxClassifier."
        )
    return known


def _indices(labels: NDArray[Any], known: NDArray[Any]) -> NDArray[np.intp]:
    """The class of each label, compared in numpy's common type of the two.

    Where the classes are words, numbers are read as words: in a list that mixes both
    one label decides whether numpy finds words, and it must not decide more.
    """
    words = [a.dtype.kind in "SUT" for a in (known, labels)]
    numbers = [a.dtype.kind in "biuf" for a in (known, labels)]
    if words[0] and numbers[1]:
        labels = labels.astype(str)
    try:
        outside = len(np.setdiff1d(labels, known)) > 0
    except TypeError:  # words and numbers have no order
        outside = True
    if outside:
        mixed = " (they are numbers, and y holds words)"
        raise ValueError(
            f"y holds labels outside classes, which are {known[:10].tolist()}"
            f"{mixed if numbers[0] and words[1] else ''}. Add them to classes, or drop"
            " those records."
        )
    common = known.astype(np.result_type(known, labels))
    if len(np.unique(common)) < len(known):
        raise ValueError(
            f"classes of the type {known.dtype} cannot all be told apart in y, whose"
            f" type is {labels.dtype}: give both in one type"
        )
    return np.searchsorted(known, labels)
