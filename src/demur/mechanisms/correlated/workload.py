"""Workloads of correlated noise: A times the gradients, A lower triangular.

Plain SGD reads prefix sums: the parameters after step t are the sum of the first t
gradients. With learning rates eta_u and momentum beta the velocity is
v_u = beta v_{u-1} + g_u and the parameters move by eta_u v_u, so that

    A[t, s] = sum over u from s to t of eta_u beta^(u - s).

With one rate for all steps A is Toeplitz, and one column says it all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from demur.core import validate

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Workload:
    """A lower triangular matrix; `coefs` is its first column where it is Toeplitz.

    >>> Workload.prefix_sums(3).matrix().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """

    iterations: int
    coefs: Array | None
    dense: Array | None = None

    @classmethod
    def prefix_sums(cls, iterations: int) -> Workload:
        """Sums of all gradients so far: SGD with a constant rate."""
        validate.count(iterations=iterations)
        return cls(int(iterations), np.ones(iterations))

    @classmethod
    def momentum(
        cls,
        iterations: int,
        momentum: float = 0.0,
        learning_rates: ArrayLike | None = None,
    ) -> Workload:
        """SGD with momentum and a rate for each step (default: 1 for all)."""
        validate.count(iterations=iterations)
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1); got {momentum}")
        powers = momentum ** np.arange(iterations)
        if learning_rates is None:
            return cls(int(iterations), np.cumsum(powers))
        rates = np.asarray(learning_rates, dtype=np.float64)
        if rates.shape != (iterations,) or not np.isfinite(rates).all():
            raise ValueError(
                f"learning_rates must be {iterations} finite numbers, one for each"
                f" step; got shape {rates.shape}"
            )
        # Entry (u, s) is eta_u beta^(u - s); running sums down the columns give A.
        moves = rates[:, None] * toeplitz(powers, np.zeros(iterations))
        return cls(int(iterations), None, np.cumsum(moves, axis=0))

    @classmethod
    def of(cls, matrix: ArrayLike) -> Workload:
        """Any lower triangular matrix."""
        dense = np.array(matrix, dtype=np.float64)
        if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or not dense.size:
            raise ValueError(f"matrix must be square; got shape {dense.shape}")
        if not np.isfinite(dense).all() or np.triu(dense, 1).any():
            raise ValueError("matrix must be finite and lower triangular")
        return cls(dense.shape[0], None, dense)

    def matrix(self) -> Array:
        """A as a matrix."""
        if self.dense is not None:
            return self.dense
        assert self.coefs is not None
        return np.asarray(toeplitz(self.coefs, np.zeros(self.iterations)))


def solve_toeplitz(coefs: Array, right: Array) -> Array:
    """C^-1 `right` along the last axis, C lower triangular Toeplitz with `coefs`."""
    return np.asarray(lfilter([1.0], coefs, right, axis=-1))


def solve_toeplitz_transposed(coefs: Array, right: Array) -> Array:
    """C^-T `right` along the last axis: the same recursion, run backwards."""
    return solve_toeplitz(coefs, right[..., ::-1])[..., ::-1]
