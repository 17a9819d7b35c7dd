"""Ridge prototypes: one regularised mean for each class, in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.ridge_prototypes import ridge_prototypes
from demur.core import validate
from demur.core.bounds import finite_matrix


def fit_ridge_prototypes(
    Z: ArrayLike, y: ArrayLike, *, num_classes: int, lam: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Prototypes 2 S_c / (2 n_c + lam n) and class counts n_c.

    The minimiser of mean |x - mu_y|^2 + lam/2 sum |mu_c|^2. Both are exact: nothing
    here is private before `dp_release_ridge_prototypes_gaussian`. Float64 (the original
    rounds to float32, which moves a prototype by more than its sensitivity allows).

    >>> fit_ridge_prototypes([[1.0], [3.0]], [0, 0], num_classes=1, lam=0.0)
    (array([[2.]]), array([2]))
    """
    return ridge_prototypes(Z, y, num_classes=num_classes, lam=lam)


def predict_nearest_prototype(Z: ArrayLike, mus: ArrayLike) -> NDArray[np.int64]:
    """The class of the nearest prototype, for each row."""
    rows = finite_matrix("Z", Z)
    means = finite_matrix("mus", mus)
    if rows.shape[1] != means.shape[1]:
        raise ValueError(
            f"Z and mus must have as many columns; got {rows.shape} and {means.shape}"
        )
    # |z - m|^2 without |z|^2, which is the same for every class.
    scores = rows @ means.T - 0.5 * np.sum(means**2, axis=1)
    nearest: NDArray[np.int64] = np.argmax(scores, axis=1).astype(np.int64)
    return nearest


def prototypes_sensitivity_l2(
    *, r: float, n_min: int, n_total: int, lam: float
) -> float:
    """2 r / (2 n_min + lam n): how far all prototypes together can move.

    Exact between datasets of the same labels, so that the class counts are the same.
    A class of its own size n_c moves by 2 r / (2 n_c + lam n) only, and
    `demur.convex` gives each class the noise of its own.

    >>> prototypes_sensitivity_l2(r=0.5, n_min=10, n_total=100, lam=0.0)
    0.05
    """
    validate.non_negative(r=r, lam=lam, n_min=n_min)
    validate.count(n_total=n_total)
    weight = 2.0 * float(n_min) + float(lam) * float(n_total)
    if not weight > 0.0:
        raise ValueError(
            "n_min and lam are both 0: a prototype of an empty class without a penalty"
            " is not defined. Leave the class out, or set lam > 0."
        )
    return 2.0 * float(r) / weight
