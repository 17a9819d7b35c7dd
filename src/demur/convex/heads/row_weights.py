r"""Weights of rows and of classes, with what they do to the sensitivity.

A weighted head minimises (1/n) sum_i w_i l_i(theta) + (lam/2) |theta|^2. Let W, a
public number, bound the weights. Divided by W the objective has the same minimiser:

    (1/n) sum_i (w_i / W) l_i(theta) + (lam / W) / 2 |theta|^2,

with shares w_i / W from 0 to 1. Every bound of `gradient_bounds` holds for it with
lam / W in place of lam: the shares multiply <theta, grad l_i>, gradients and their
differences by at most 1. (A replacement is bounded by twice the largest gradient, which
holds for two shares that differ: it may change a weight.)

W is the largest class weight times `weight_bound`, onto which sample weights are cut.
At a ball weights are public like labels, and class weights may follow the class counts
("balanced"). At ReplaceOne a record's weight is a part of the record, and class weights
must not depend on the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.adjacency import Ball, Unit
from demur.core.bounds import real_array

Array = NDArray[np.float64]

PUBLIC_AT_A_BALL = "the weights of the records, like their labels, are public"
FINITE_WEIGHTS = (
    "every record has a finite weight from 0 (a fit with any other is refused, which"
    " tells that there is one)"
)


@dataclass(frozen=True)
class RowWeights:
    """Shares of the rows, from 0 to 1, and the bound W that they are shares of."""

    shares: Array
    largest: float


def row_weights(
    sample_weight: ArrayLike | None,
    class_weight: Mapping[Any, float] | str | None,
    weight_bound: float,
    *,
    classes: NDArray[Any],
    y: NDArray[np.intp],
    unit: Unit,
) -> RowWeights | None:
    """The weights of rows with class indices y; None where there are none."""
    validate.positive(weight_bound=weight_bound)
    if sample_weight is None and class_weight is None:
        return None
    shares = np.ones(len(y))
    largest = 1.0
    if class_weight is not None:
        counts = np.bincount(y, minlength=len(classes))
        by_class = _by_class(class_weight, classes, counts, unit)
        largest = float(by_class.max())
        validate.positive(largest_class_weight=largest)
        shares = (by_class / largest)[y]
    if sample_weight is not None:
        given = real_array("sample_weight", sample_weight)
        if given.shape != (len(y),):
            raise ValueError(
                f"sample_weight must be one number for each of {len(y)} rows; got shape"
                f" {given.shape}"
            )
        if not np.isfinite(given).all() or (given < 0.0).any():
            raise ValueError("sample_weight must be finite numbers from 0")
        shares = shares * (np.minimum(given, weight_bound) / weight_bound)
        largest *= float(weight_bound)
    return RowWeights(np.minimum(shares, 1.0), largest)


def _by_class(
    class_weight: Mapping[Any, float] | str,
    classes: NDArray[Any],
    counts: NDArray[np.int64],
    unit: Unit,
) -> Array:
    if isinstance(class_weight, Mapping):
        for label, weight in class_weight.items():
            validate.non_negative(**{f"class_weight of {label!r}": weight})
        unknown = [label for label in class_weight if label not in classes.tolist()]
        if unknown:
            raise ValueError(
                f"class_weight names {unknown[0]!r:.40}, which is no class; classes are"
                f" {classes[:10].tolist()}"
            )
        return np.array([float(class_weight.get(c, 1.0)) for c in classes.tolist()])
    if class_weight != "balanced":
        raise ValueError(
            "class_weight must be None, 'balanced' or a dict of a weight for each"
            f" class; got {class_weight!r:.40}"
        )
    if not isinstance(unit, Ball):
        raise ValueError(
            f"class_weight='balanced' shows the class counts, which are not public at"
            f" {unit}: give a dict of public weights"
        )
    return counts.sum() / (len(counts) * np.maximum(counts, 1.0))
