"""Labels of classes: any hashable values, each with a number from 0 on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from demur.unlearning.estimators.arrays import vector_of

_PLAIN = (np.str_, np.number, np.bool_)


def numbered(classes: Iterable[Any]) -> dict[Any, float]:
    """The labels with their numbers, in the order given; or a clear error."""
    # numpy's scalars equal and hash as Python's, which read better in answers.
    labels = [c.item() if isinstance(c, _PLAIN) else c for c in classes]
    try:
        numbers = {label: float(at) for at, label in enumerate(labels)}
    except TypeError:
        raise TypeError("classes must be hashable labels, as strings are") from None
    if len(labels) < 2 or len(numbers) != len(labels):
        raise ValueError(
            f"classes must be at least two labels, all different; got {labels!r}"
        )
    if any(label != label for label in labels):
        raise ValueError("classes must not hold NaN, which equals no label")
    return numbers


def label_array(labels: list[Any]) -> NDArray[Any]:
    """The labels as an array that gives each back as it is."""
    if len({type(label) for label in labels}) == 1 and np.isscalar(labels[0]):
        return np.asarray(labels)
    # numpy would make strings of a mixture, and a matrix of tuples.
    array = np.empty(len(labels), dtype=object)
    for at, label in enumerate(labels):
        array[at] = label
    return array


def as_labels(y: Any) -> list[Any]:
    """A vector of labels as a list; or a clear error."""
    if isinstance(y, (list, tuple)):
        return list(y)
    labels = np.asarray(vector_of("y", y))
    if labels.ndim != 1 or np.ma.is_masked(y):
        raise ValueError(
            f"y must be a vector of labels, none masked; got shape {labels.shape}."
            " Nothing was learned."
        )
    return list(labels)


def classes_in(y: Any) -> list[Any]:
    """The different labels of a vector, sorted where they can be."""
    check_classification_targets(y)
    labels = list(dict.fromkeys(as_labels(y)))
    if len(labels) < 2:
        raise ValueError(
            "y holds one class, and a classifier needs two: declare all that will ever"
            " come with classes=. Nothing was learned."
        )
    try:
        return sorted(labels)
    except TypeError:
        return labels
