"""Rows and labels on their way in: every refusal before anything is charged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from demur.core import validate
from demur.core.bounds import Bound, clip_rows

Array = NDArray[np.float64]

_QUOTED_ARRAY = re.compile(r"\n?array=.*?\.\n(?=Reshape)", re.DOTALL)
_QUOTED_REST = re.compile(
    r"(Complex data not supported|could not convert string to float).*", re.DOTALL
)
_NAMED = re.compile(r"\b[Xy]\b")


class Prepared(NamedTuple):
    """Rows inside the norm bound, class indices, the classes, and who fixed them."""

    X: Array
    y: NDArray[np.intp]
    classes: NDArray[Any]
    bound: Bound
    classes_public: bool


@contextmanager
def nothing_spent() -> Iterator[None]:
    """Errors of the checks below also say that nothing was charged."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = str(error)
        if "othing was" in message:
            raise
        raise type(error)(f"{message}\nNothing was charged or released.") from None


@contextmanager
def as_it_was(estimator: Any) -> Iterator[None]:
    """A fit that is refused or declined leaves the estimator as it was before.

    scikit-learn notes the number of features when it looks at X. Kept after a refusal,
    it would make an unfitted head look fitted, and a fitted one refuse its own rows.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


@contextmanager
def no_records_quoted() -> Iterator[None]:
    """scikit-learn's and numpy's errors show what they cannot take: records, that is.

    Those parts are cut, and the error names its argument.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        message = _QUOTED_ARRAY.sub(" ", str(error))
        message = _QUOTED_REST.sub(r"\1", message)
        if not _NAMED.search(message):
            message = f"X and y: {message}"
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message) from None


def prepare(
    estimator: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    classes: Sequence[Any] | None,
    norm_bound: float,
    clip: bool,
    space: str,
    two_classes: bool,
) -> Prepared:
    """The data an estimator may fit, or a clear error with nothing charged."""
    with nothing_spent():
        _refuse_masked(X=X, y=y)
        with no_records_quoted():
            rows, labels = validate_data(
                estimator, X, y, dtype=np.float64, ensure_min_samples=2
            )
            check_classification_targets(labels)
        known = _classes(labels, classes)
        if two_classes and len(known) > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is"
                f" multiclass ({len(known)} classes): use BallSoftmaxClassifier."
            )
        index = _indices(labels, known)
        validate.positive(norm_bound=norm_bound)
        if not clip:
            _refuse_long_rows(rows, norm_bound)
        bounded = clip_rows(rows, norm_bound, space=space)
    return Prepared(bounded.data, index, known, bounded.bound, classes is not None)


def clipped(estimator: Any, X: ArrayLike, norm_bound: float) -> Array:
    """Rows to predict on, treated as the rows of the fit were."""
    _refuse_masked(X=X)
    with no_records_quoted():
        rows = validate_data(estimator, X, dtype=np.float64, reset=False)
    return clip_rows(rows, norm_bound).data


def _refuse_masked(**given: object) -> None:
    for name, values in given.items():
        if np.ma.is_masked(values):
            raise ValueError(
                f"{name} holds masked entries, and what a mask hides would be used:"
                " drop or fill them by a rule that does not look at other rows"
            )
        kind = getattr(getattr(values, "dtype", None), "kind", None)
        if name == "X" and kind in ("m", "M"):
            raise TypeError("X must be numbers; got dates")


def _classes(labels: NDArray[Any], classes: Sequence[Any] | None) -> NDArray[Any]:
    if classes is None:
        known = np.unique(labels)
        if len(known) < 2:
            raise ValueError(
                "a classifier needs at least two classes; y holds only one class:"
                f" {known[:1].tolist()}"
            )
        return known
    known = np.asarray(classes)
    if known.ndim != 1 or len(np.unique(known)) != len(known) or len(known) < 2:
        raise ValueError(
            "classes must list at least two different labels; got"
            f" {known.tolist()!r:.80}"
        )
    return np.sort(known)


def _indices(labels: NDArray[Any], known: NDArray[Any]) -> NDArray[np.intp]:
    outside = np.setdiff1d(labels, known)
    if len(outside):
        raise ValueError(
            f"y holds labels outside classes: {outside[:5].tolist()}; classes are"
            f" {known[:10].tolist()}. Add them to classes, or drop those records."
        )
    index = np.searchsorted(known, labels)
    counts = np.bincount(index, minlength=len(known))
    if not counts.all():
        missing = known[counts == 0][:5].tolist()
        raise ValueError(
            f"y holds no record of the classes {missing}: a head cannot learn them."
            " Leave them out of classes."
        )
    return index


def _refuse_long_rows(rows: Array, norm_bound: float) -> None:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if (norms > norm_bound).any():
        raise ValueError(
            f"X has rows longer than norm_bound={norm_bound:g}, and clip=False."
            " Use clip=True (rows are projected onto the ball, radii stay valid) or a"
            " larger public bound."
        )
