"""Minimise, and certify: Newton's method until the gradient norm is at most tau.

|theta - minimiser| <= |grad F(theta)| / lam, because F is lam-strongly convex. If every
run, on any data, returns only once that norm is at most a tau fixed in advance, two
results are at most 2 tau / lam farther apart than two minimisers, and that is what the
sensitivity adds. (The norm that happened to be reached must not be used instead: it
depends on the data, and the neighbour's is not known.) The computed norm has to be
below tau by more than its rounding error.

Each Newton system is solved by conjugate gradients with the preconditioner
w_k S + lam I for class k, S the second moments of a few rows and w_k the class's mean
weight in the Hessian: two products with d x d matrices, and the number of steps falls
from hundreds to a few dozen on embeddings, whose spectrum decays fast. Steps are
computed in float32 as long as that helps; gradients and the certificate in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.errors import NotConverged
from demur.convex.sensitivity.curves import TAU
from demur.convex.solving.objective import Curvature, Objective
from demur.core import validate

Array = NDArray[np.float64]
Progress = Callable[[int, float], None]

_ARMIJO = 1e-4
_FLAT = 0.5  # of the slope that a step starts with
_TRIALS = 60
_MOST_CG = 2000


@dataclass(frozen=True)
class Minimiser:
    """Where the search ended. Exact, so private: it must not leave the engine."""

    theta: Array
    gradient_norm: float
    iterations: int


def minimise(
    objective: Objective,
    *,
    tau: float = TAU,
    max_iterations: int = 200,
    norm_bound: float | None = None,
    progress: Progress | None = None,
) -> Minimiser:
    """The minimiser of `objective`, certified to a gradient norm of at most `tau`.

    `progress(iteration, share)` is called before each Newton step, the share going from
    0 to 1 with the logarithm of the gradient norm. Raises `NotConverged` where tau is
    not reached; nothing has been charged then. `norm_bound` bounds the rows (default:
    their largest norm) and serves the rounding error alone.
    """
    check_terms(objective, tau, max_iterations)
    bound = _largest_row(objective.X) if norm_bound is None else float(norm_bound)
    theta = np.zeros(objective.shape)
    value, gradient = objective.value_and_gradient(theta)
    norm = float(np.linalg.norm(gradient))
    first = norm
    precondition = Preconditioner(objective)
    single = True  # until a step computed in float32 does not help
    for iteration in range(max_iterations + 1):
        rounding = objective.rounding(bound, float(np.linalg.norm(theta)))
        if progress is not None:
            progress(iteration, share(first, norm, tau))
        if certified(objective, norm, rounding, tau):
            return Minimiser(theta, norm, iteration)
        if iteration == max_iterations or not np.isfinite(norm):
            break
        curvature = objective.curvature(theta, single=single)
        aim = max(min(0.25, norm**0.5), 0.3 * tau / norm, 1e-4 if single else 0.0)
        step = conjugate_gradients(
            curvature, gradient, precondition.at(curvature), relative=aim
        )
        found = line_search(objective, theta, value, gradient, norm, step)
        if found is None and not single:
            break
        before = norm
        if found is not None:
            theta, value, gradient = found
            norm = float(np.linalg.norm(gradient))
        single = single and found is not None and (norm < before or norm > 1e-3)
    raise not_reached(objective, tau, iteration)


class Stated(Protocol):
    """What the certificate needs to know of an objective."""

    @property
    def n(self) -> int:
        """The number of records."""
        ...

    @property
    def lam(self) -> float:
        """The weight of the regulariser."""
        ...

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """F(theta) and its gradient."""
        ...


def check_terms(objective: Stated, tau: float, max_iterations: int) -> None:
    """What a minimiser must be given."""
    validate.positive(tau=tau)
    validate.count(max_iterations=max_iterations)
    if objective.lam <= 0:
        raise ValueError(
            f"lam must be positive for output perturbation; got {objective.lam}:"
            " without strong convexity nothing bounds how far the minimiser moves."
            " Nothing was spent."
        )


def certified(objective: Stated, norm: float, rounding: float, tau: float) -> bool:
    """Whether the gradient is at most tau, rounding included.

    An error where it never can be: the norm is far below tau, the rounding is not.
    """
    if norm + rounding <= tau:
        return True
    if norm <= tau / 8.0:
        raise NotConverged(
            f"tau={tau:g} is below what float64 can certify here, with"
            f" {objective.n} records. Raise tau, which adds 2 tau / lam to the"
            " sensitivity. Nothing was released, nothing was charged."
        )
    return False


def not_reached(objective: Stated, tau: float, steps: int) -> NotConverged:
    """The refusal of a search that ended before its certificate."""
    return NotConverged(
        f"the gradient norm did not fall to tau={tau:g} in {steps} Newton steps"
        f" (n={objective.n}, lam={objective.lam:g}). Nothing was released, nothing was"
        " charged. Raise max_iterations, lam or tau; a larger tau adds 2 tau / lam to"
        " the sensitivity."
    )


def share(first: float, norm: float, tau: float) -> float:
    """How much of the way from the first norm to tau is done, in logarithms."""
    if norm <= tau or first <= tau:
        return 1.0
    return min(1.0, max(0.0, math.log(first / norm) / math.log(first / tau)))


def _largest_row(X: Array) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", X, X).max())) or 1e-300


class Preconditioner:
    """(w_k S + lam I)^-1 for each class k, through one eigendecomposition of S."""

    def __init__(self, objective: Objective) -> None:
        values, self._vectors = np.linalg.eigh(objective.sample_moments())
        self._values = np.maximum(values, 0.0)
        self._lam = objective.lam
        self._matrix = len(objective.shape) == 2

    def at(self, curvature: Curvature) -> Callable[[Array], Array]:
        """The preconditioner for the Hessian of one theta."""
        scale = 1.0 / (np.outer(curvature.weights, self._values) + self._lam)
        if not self._matrix:
            scale = scale[0]

        def apply(residual: Array) -> Array:
            inner: Array = (residual @ self._vectors * scale) @ self._vectors.T
            return inner

        return apply


def conjugate_gradients(
    curvature: Curvature,
    gradient: Array,
    precondition: Callable[[Array], Array],
    *,
    relative: float,
) -> Array:
    """An approximate Newton step: H step = -gradient, to a relative residual."""
    step = np.zeros_like(gradient)
    residual = -gradient
    target = relative * float(np.linalg.norm(gradient))
    direction = precondition(residual)
    along = float(np.vdot(residual, direction))
    for _ in range(_MOST_CG):
        bent = curvature.product(direction)
        curve = float(np.vdot(direction, bent))
        if not curve > 0.0:
            break
        length = along / curve
        step += length * direction
        residual -= length * bent
        if float(np.linalg.norm(residual)) <= target:
            break
        solved = precondition(residual)
        after = float(np.vdot(residual, solved))
        direction = solved + (after / along) * direction
        along = after
    return step


def line_search(
    objective: Stated,
    theta: Array,
    value: float,
    gradient: Array,
    norm: float,
    step: Array,
    *,
    slack: float = 0.0,
) -> tuple[Array, float, Array] | None:
    """A point along the step where F is lower and nearly flat, or the gradient halved.

    The full step is taken where it lowers F and the slope along it, as Newton's does
    near the end (where F changes by less than its rounding, the gradient decides). The
    hinges have kinks in their slope, over which a full step may jump to and fro:
    there the zero of the slope, which grows along the step, is bracketed. `slack` is
    how much higher than it is F may be computed.
    """
    slope = float(np.vdot(gradient, step))
    if not slope < 0.0:
        return None
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(_TRIALS):
        moved = theta + length * step
        found = objective.value_and_gradient(moved)
        here = float(np.vdot(found[1], step))
        lower = found[0] <= value + _ARMIJO * length * slope + slack
        if (lower and abs(here) <= _FLAT * -slope) or (
            float(np.linalg.norm(found[1])) <= 0.5 * norm
        ):
            return moved, *found
        if here < 0.0:
            low = length
        else:
            high = length
        length = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
    return None
