"""Gaussian noise: its calibration, and an array with noise added."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.compat.ball_dp.releases import Rng, SigmaMethod, source_of
from demur.core import validate
from demur.core.accounting import gaussian
from demur.core.adjacency import Ball
from demur.core.errors import NotPrivate
from demur.core.sensitivity import Sensitivity, Table
from demur.ledger import Budget, Ledger
from demur.mechanisms.gaussian import Gaussian

_ITSELF = "the array itself"


def gaussian_sigma(
    delta_l2: float,
    eps: float,
    delta: float,
    *,
    method: SigmaMethod = "classic",
    tol: float = 1e-12,
) -> float:
    """The noise for (eps, delta) at sensitivity `delta_l2`; 0 where nothing moves.

    "classic" is refused above eps = 1, where its theorem ends; "analytic" is exact
    everywhere, and `tol` is not needed.

    >>> round(gaussian_sigma(1.0, 2.0, 1e-6, method="analytic"), 4)
    2.2306
    """
    validate.positive(tol=tol)
    return gaussian.gaussian_sigma(eps, delta, delta_l2, method=method)


def add_gaussian_noise(
    x: ArrayLike,
    sigma: float,
    *,
    rng: Rng = None,
    sensitivity: Sensitivity | Table | None = None,
    ledger: Ledger | None = None,
    label: str = "an array with Gaussian noise",
) -> NDArray[np.floating[Any]]:
    """`x` plus Gaussian noise of deviation `sigma`, in the dtype of `x`.

    The noise goes through demur's mechanism: OS entropy, integers on a grid. `rng` is
    accepted and ignored, unless it is `demur.Seeded`, whose noise is NOT PRIVATE.

    Noise alone is no promise. With a `ledger`, say in `sensitivity` how far `x` moves
    at which unit. Without one the release is recorded in memory as Gaussian noise over
    the distance between two arrays.
    """
    if sigma == 0:
        raise NotPrivate(
            "sigma=0 adds nothing: the array itself would be released. For a baseline"
            " without noise use x as it is, and keep it. Nothing was spent."
        )
    validate.positive(sigma=sigma)
    array = np.asarray(x)
    dtype = array.dtype if np.issubdtype(array.dtype, np.floating) else np.float64
    if (sensitivity is None) != (ledger is None):
        raise TypeError(
            "give sensitivity and ledger together: a charge needs to know how far x"
            " moves at the units of the ledger. Nothing was spent."
        )
    if ledger is None:
        # Arrays one sigma apart: mu = 1, and a little more for the grid.
        unit = Ball(sigma, space=_ITSELF)
        sensitivity = {unit: float(sigma)}
        ledger = Ledger(Budget(5.0, 1e-6), unit=unit)
    assert sensitivity is not None
    mechanism = Gaussian(
        sigma, sensitivity, dimension=array.size, name="added Gaussian noise"
    )
    release = mechanism.release(
        array, ledger=ledger, label=label, source=source_of(rng)
    )
    return release.value.astype(dtype)
