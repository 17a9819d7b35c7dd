"""Banded Toeplitz strategies for correlated noise, streamed with a short memory.

C has c_0, ..., c_(b-1) on its diagonal and below, so that

    noise x_t = (z_t - c_1 x_(t-1) - ... - c_(b-1) x_(t-b+1)) / c_0 :

the state is the last b - 1 outputs. With `column_normalize` the columns are divided by
their norms s_j over the horizon (the last ones are cut off at the bottom and shorter):
D = C diag(1/s), D^-1 = diag(s) C^-1. Every column of D has norm 1, *whatever* the norm
of c: the noise is scaled by the largest column norm of the matrix that is used, never
by the norm of c.

**The objective.** With A Toeplitz (a), A C^-1 is Toeplitz with b = C^-1 a, row t has
squared norm b_0^2 + ... + b_t^2, and the mean over n rows is sum_s (n - s)/n b_s^2. It
is multiplied by the squared sensitivity |c|^2. Since d(C^-1) = -C^-1 dC C^-1,

    d/dc_k sum_s w_s b_s^2 = -2 sum_s v_s b_(s-k),    v = C^-T (w b),

two banded solves and b dot products for a value and its whole gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import toeplitz
from scipy.optimize import minimize

from demur.core import validate
from demur.mechanisms.correlated.sensitivity import (
    Certified,
    Participation,
    best_pattern,
    of_gram,
    of_toeplitz,
)
from demur.mechanisms.correlated.strategy import checked
from demur.mechanisms.correlated.workload import (
    Workload,
    solve_toeplitz,
    solve_toeplitz_transposed,
)

Array = NDArray[np.float64]
# The gradient of log(loss) at which a search counts as finished: to second order the
# loss is then within a hair (measured: below 1e-9) of its minimum.
_FLAT = 1e-6
_MOST_STEPS = 5000


@dataclass(frozen=True, eq=False)
class BandedToeplitz:
    """The strategy with `coefs` on its bands, for a run of `iterations` steps.

    >>> plain = BandedToeplitz([1.0], iterations=100)   # independent noise: DP-SGD
    >>> plain.sensitivity(Participation(max_participations=1)).value
    1.0
    """

    coefs: ArrayLike
    iterations: int
    column_normalize: bool = False

    def __post_init__(self) -> None:
        validate.count(iterations=self.iterations)
        coefs = np.array(self.coefs, dtype=np.float64)
        if coefs.ndim != 1 or not 1 <= len(coefs) <= self.iterations:
            raise ValueError(
                f"coefs must be 1 to {self.iterations} numbers (no more bands than"
                f" steps); got shape {coefs.shape}"
            )
        if not np.isfinite(coefs).all() or coefs[0] <= 0:
            raise ValueError("coefs must be finite, the first of them positive")
        coefs.flags.writeable = False
        object.__setattr__(self, "coefs", coefs)
        object.__setattr__(self, "iterations", int(self.iterations))

    @property
    def bands(self) -> int:
        """How many coefficients there are."""
        return len(self._coefs)

    @property
    def _coefs(self) -> Array:
        assert isinstance(self.coefs, np.ndarray)
        return self.coefs

    def column_norms(self) -> Array:
        """The norms of the columns of C before any normalisation."""
        squares = np.zeros(self.iterations)
        squares[: self.bands] = self._coefs**2
        return np.sqrt(np.cumsum(squares)[::-1])

    def output_scales(self) -> Array:
        """s_t by which output t of the recursion is multiplied: 1 unless normalised."""
        ones = np.ones(self.iterations)
        return self.column_norms() if self.column_normalize else ones

    def matrix(self) -> Array:
        """The matrix that is used, normalised if so asked."""
        column = np.zeros(self.iterations)
        column[: self.bands] = self._coefs
        return np.asarray(
            toeplitz(column, np.zeros(self.iterations)) / self.output_scales()
        )

    def sensitivity(self, participation: Participation) -> Certified:
        """How far C G moves; exact when separation covers the bands."""
        if not self.column_normalize:
            return of_toeplitz(self._coefs, self.iterations, participation)
        most = participation.most(self.iterations)
        if most == 1 or participation.min_separation >= self.bands:
            ones = np.ones(self.iterations)
            total = best_pattern(ones, participation.min_separation, most)
            return Certified(float(np.sqrt(total)) * (1 + 1e-12), True)
        matrix = self.matrix()
        return of_gram(matrix.T @ matrix, participation)

    def errors(self, workload: Workload | None = None) -> Array:
        """The variance of each row of A C^-1 Z."""
        work = checked(workload, self.iterations)
        if work.coefs is not None and not self.column_normalize:
            return np.cumsum(solve_toeplitz(self._coefs, work.coefs) ** 2)
        # Rows of A C^-1 solve B C = A; D^-1 = diag(s) C^-1 scales the columns of A.
        scaled = work.matrix() * self.output_scales()
        noise = solve_toeplitz_transposed(self._coefs, scaled)
        return np.asarray((noise**2).sum(axis=1))


def square_root_coefs(count: int) -> Array:
    """The first coefficients of (1 - x)^(-1/2), the square root of prefix sums."""
    k = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def optimize_banded_toeplitz(
    iterations: int,
    bands: int,
    *,
    workload: Workload | None = None,
    reduction: str = "mean",
    column_normalize: bool = False,
) -> BandedToeplitz:
    """The coefficients, of norm 1, with the least sensitivity^2 times error.

    The error is the mean over all steps, or the largest (`reduction="max"`: the last
    step for a Toeplitz workload). The search ends when the gradient vanishes; if it
    does not within 5000 steps, it raises an ArithmeticError. The sensitivity is that of
    one participation, which is also the one of amplified accounting and, up to a factor
    that no coefficient moves, that of a separation of at least `bands`.

    >>> best = optimize_banded_toeplitz(iterations=1000, bands=4)
    >>> np.round(best.coefs, 2).tolist()
    [0.59, 0.5, 0.47, 0.43]
    """
    validate.count(iterations=iterations, bands=bands)
    if bands > iterations:
        raise ValueError(f"bands must be at most iterations={iterations}; got {bands}")
    work = checked(workload, iterations)
    if bands == 1:
        return BandedToeplitz([1.0], iterations, column_normalize)
    error = _error(work, reduction)

    def objective(free: Array) -> tuple[float, Array]:
        # The loss does not change with the scale of c, so c_0 is held at 1.
        coefs = np.concatenate([[1.0], free])
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = error(coefs)
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            return _FAR, np.zeros(bands - 1)  # poles outside the disc: step back
        squared = coefs @ coefs
        slope = gradient / value + 2.0 * coefs / squared
        return float(np.log(value) + np.log(squared)), slope[1:]

    free = minimize_smooth(
        objective, square_root_coefs(bands)[1:], what="optimize_banded_toeplitz"
    )
    coefs = np.concatenate([[1.0], free])
    return BandedToeplitz(coefs / np.linalg.norm(coefs), iterations, column_normalize)


_FAR = 1e6  # log(loss) of a point where the recursion overflows


def _error(work: Workload, reduction: str) -> Callable[[Array], tuple[float, Array]]:
    """c -> the reduced error of C and its gradient."""
    size = work.iterations
    if work.coefs is not None:
        column = work.coefs
        if reduction == "mean":
            weights = (size - np.arange(size)) / size
        elif reduction == "max":
            weights = np.ones(size)
        else:
            raise ValueError(f"reduction must be 'mean' or 'max'; got {reduction!r}")

        def toeplitz_error(coefs: Array) -> tuple[float, Array]:
            noise = solve_toeplitz(coefs, column)
            weighted = weights * noise
            adjoint = solve_toeplitz_transposed(coefs, weighted)
            gradient = np.array(
                [-2.0 * adjoint[k:] @ noise[: size - k] for k in range(len(coefs))]
            )
            return float(noise @ weighted), gradient

        return toeplitz_error
    if reduction != "mean":
        raise ValueError(
            "reduction must be 'mean' for a workload with learning rates: its largest"
            f" error is not smooth; got {reduction!r}"
        )
    # Row r of B = A C^-1, read backwards, is the recursion of c on row r of A read
    # backwards; the mean over rows of its squared norm has the same gradient as above.
    rows = np.ascontiguousarray(work.matrix()[:, ::-1])

    def dense_error(coefs: Array) -> tuple[float, Array]:
        noise = solve_toeplitz(coefs, rows)
        adjoint = solve_toeplitz_transposed(coefs, noise)
        gradient = np.array(
            [
                -2.0 * np.vdot(adjoint[:, k:], noise[:, : size - k]) / size
                for k in range(len(coefs))
            ]
        )
        return float(np.vdot(noise, noise)) / size, gradient

    return dense_error


def minimize_smooth(
    objective: Callable[[Array], tuple[float, Array]], start: Array, *, what: str
) -> Array:
    """The minimiser by L-BFGS, once its gradient is flat; otherwise an error."""
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxcor": 40,
            "maxiter": _MOST_STEPS,
            "maxfun": 4 * _MOST_STEPS,
            "ftol": 0.0,
            "gtol": _FLAT,
        },
    )
    slope = float(np.abs(result.jac).max())
    if not slope <= 100 * _FLAT or not result.fun < _FAR:
        raise ArithmeticError(
            f"{what} did not converge: the gradient of log(loss) is still"
            f" {slope:.2g} after {result.nit} steps ({result.message})"
        )
    return np.asarray(result.x)
