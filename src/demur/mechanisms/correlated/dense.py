"""Dense strategies for correlated noise: the best matrix, up to a few thousand steps.

With every column of norm 1, minimising |A C^-1|_F^2 is the convex program

    min tr(A^T A X^-1)   over X = C^T C positive definite, X_jj = 1

(and X_ij = 0 for |i - j| >= bands, where a band is asked for). X and the lower
triangular C with positive diagonal determine each other smoothly, and X has a band
exactly if C has it, so a point where the gradient in C vanishes is the minimum: there
are no others. The search runs over C with normalised columns; with B = A C^-1,

    d |B|^2 = -2 <B^T B C^-T, dC>.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from demur.core import validate
from demur.mechanisms.correlated.sensitivity import Certified, Participation, of_gram
from demur.mechanisms.correlated.strategy import checked, errors_of
from demur.mechanisms.correlated.toeplitz import (
    BandedToeplitz,
    minimize_smooth,
    square_root_coefs,
)
from demur.mechanisms.correlated.workload import Workload

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Dense:
    """Any lower triangular C with a positive diagonal."""

    values: ArrayLike

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size:
            raise ValueError(f"values must be a square matrix; got {values.shape}")
        if not np.isfinite(values).all() or np.triu(values, 1).any():
            raise ValueError("values must be finite and lower triangular")
        if not (np.diag(values) > 0).all():
            raise ValueError("values must have a positive diagonal: C is inverted")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def iterations(self) -> int:
        """How many steps the run has."""
        return len(self.matrix())

    @property
    def bands(self) -> int:
        """The distance from the diagonal at which everything is zero."""
        rows, columns = np.nonzero(self.matrix())
        return int((rows - columns).max()) + 1

    def matrix(self) -> Array:
        """C."""
        assert isinstance(self.values, np.ndarray)
        return self.values

    def sensitivity(self, participation: Participation) -> Certified:
        """How far C G moves, from C^T C."""
        matrix = self.matrix()
        return of_gram(matrix.T @ matrix, participation)

    def errors(self, workload: Workload | None = None) -> Array:
        """The variance of each row of A C^-1 Z."""
        return errors_of(self.matrix(), workload)


def optimize_dense(
    iterations: int, *, bands: int | None = None, workload: Workload | None = None
) -> Dense:
    """The C with columns of norm 1 (and a band, if asked for) of least mean error.

    >>> best = optimize_dense(16)
    >>> round(float(best.errors().mean()), 2)
    2.85
    """
    validate.count(iterations=iterations)
    bands = iterations if bands is None else bands
    validate.count(bands=bands)
    if bands > iterations:
        raise ValueError(f"bands must be at most iterations={iterations}; got {bands}")
    work = checked(workload, iterations).matrix()
    rows, columns = np.indices((iterations, iterations))
    inside = (rows >= columns) & (rows - columns < bands)

    def matrix_of(free: Array) -> tuple[Array, Array]:
        raw = np.zeros((iterations, iterations))
        raw[inside] = free
        norms = np.linalg.norm(raw, axis=0)
        return raw / norms, norms

    def objective(free: Array) -> tuple[float, Array]:
        matrix, norms = matrix_of(free)
        noise = solve_triangular(matrix.T, work.T, lower=False).T
        value = float(np.vdot(noise, noise))
        # B^T B C^-T is the transpose of C^-1 B^T B, B^T B being symmetric.
        slope = -2.0 * solve_triangular(matrix, noise.T @ noise, lower=True).T
        # Through the normalisation: only what is across the column counts.
        slope = (slope - matrix * (slope * matrix).sum(axis=0)) / norms
        return float(np.log(value)), slope[inside] / value

    start = BandedToeplitz(square_root_coefs(bands), iterations, True).matrix()
    free = minimize_smooth(objective, start[inside], what="optimize_dense")
    matrix = matrix_of(free)[0]
    return Dense(matrix * np.sign(np.diag(matrix)))
