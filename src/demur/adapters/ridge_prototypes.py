"""Ridge prototypes in closed form, exact and not private; NumPy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.bounds import finite_matrix


def ridge_prototypes(
    X: ArrayLike, y: ArrayLike, *, num_classes: int, lam: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Prototypes 2 S_c / (2 n_c + lam n) and class counts n_c; exact, not private.

    The minimiser of mean |x - mu_y|^2 + lam/2 sum |mu_c|^2.
    """
    validate.count(num_classes=num_classes)
    validate.non_negative(lam=lam)
    rows = finite_matrix("X", X)
    labels = class_labels(y, num_classes, rows.shape[0])
    counts = np.bincount(labels, minlength=num_classes).astype(np.int64)
    sums = np.stack([rows[labels == c].sum(axis=0) for c in range(num_classes)])
    weights = 2.0 * counts + float(lam) * rows.shape[0]
    # A class without records and without a penalty has no minimiser: zero is used.
    return 2.0 * sums / np.where(weights > 0, weights, 1.0)[:, None], counts


def class_labels(y: ArrayLike, num_classes: int, rows: int) -> NDArray[np.int64]:
    """Labels as whole numbers in 0 .. num_classes - 1, one for each row."""
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise ValueError(
            f"y must hold one label for each of {rows} rows; got shape {labels.shape}"
        )
    whole = labels.astype(np.int64)
    if not np.array_equal(whole, labels):
        raise ValueError("y must hold whole numbers")
    if not (0 <= whole.min() and whole.max() < num_classes):
        raise ValueError(
            f"y must hold labels from 0 to {num_classes - 1}; got {whole.min()} to"
            f" {whole.max()}"
        )
    return whole
