"""A certified minimiser: Newton's method until the gradient norm is at most tau.

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
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.errors import NotConverged
from demur.convex.sensitivity.form import TAU
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


class Point(NamedTuple):
    """A theta, and the value and gradient of the objective there."""

    theta: Array
    value: float
    gradient: Array

    @property
    def norm(self) -> float:
        """The norm of the gradient."""
        return float(np.linalg.norm(self.gradient))


def minimise(
    objective: Objective,
    *,
    tau: float = TAU,
    max_iter: int = 200,
    progress: Progress | None = None,
) -> Minimiser:
    """The minimiser of `objective`, certified to a gradient norm of at most `tau`.

    `progress(iteration, share)` is called before each Newton step, the share going from
    0 to 1 with the logarithm of the gradient norm. Raises `NotConverged` where tau is
    not reached; nothing has been charged then. The norm bound of the objective's form
    (without one, the longest row) enters the rounding error alone.
    """
    check_terms(objective, tau, max_iter)
    zero = np.zeros(objective.shape)
    here = Point(zero, *objective.value_and_gradient(zero))
    first = here.norm
    precondition = Preconditioner(objective)
    single = True  # until a step computed in float32 does not help
    for iteration in range(max_iter + 1):
        norm = here.norm
        rounding = objective.rounding(float(np.linalg.norm(here.theta)))
        if progress is not None:
            progress(iteration, share(first, norm, tau))
        if certified(objective, norm, rounding, tau):
            return Minimiser(here.theta, norm, iteration)
        if iteration == max_iter or not np.isfinite(norm):
            break
        curvature = objective.curvature(here.theta, single=single)
        aim = max(min(0.25, norm**0.5), 0.3 * tau / norm, 1e-4 if single else 0.0)
        step = conjugate_gradients(
            curvature, here.gradient, precondition.at(curvature), relative=aim
        )
        ahead = line_search(objective, here, step)
        if ahead is None and not single:
            break
        if ahead is not None:
            here = ahead
        single = single and ahead is not None and (here.norm < norm or here.norm > 1e-3)
    raise not_reached(objective, tau)


class Stated(Protocol):
    """What the solver needs of an objective."""

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


def check_terms(objective: Stated, tau: float, max_iter: int) -> None:
    """Refuse a tau, a number of iterations or a lam that no search can work with."""
    validate.positive(tau=tau)
    validate.count(max_iter=max_iter)
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


def not_reached(objective: Stated, tau: float) -> NotConverged:
    """The refusal of a search that ended before its certificate."""
    return NotConverged(
        f"the gradient norm did not fall to tau={tau:g} (n={objective.n},"
        f" lam={objective.lam:g}). Allow more steps, or raise lam or"
        " tau, which adds 2 tau / lam to the sensitivity. Nothing was released, nothing"
        " was charged."
    )


def share(first: float, norm: float, tau: float) -> float:
    """The share of the way from the first norm to tau that is done, in logarithms."""
    if norm <= tau or first <= tau:
        return 1.0
    return min(1.0, max(0.0, math.log(first / norm) / math.log(first / tau)))


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
    objective: Stated, start: Point, step: Array, *, slack: float = 0.0
) -> Point | None:
    """A point along the step where F is lower and nearly flat, or the gradient halved.

    The full step is taken where it lowers F and the slope along it, as Newton's does
    near the end (where F changes by less than its rounding, the gradient decides). The
    hinges have kinks in their slope, over which a full step may jump to and fro:
    there the zero of the slope, which grows along the step, is bracketed. `slack` is
    the rounding error of F: how much higher than it is it may be computed.
    """
    slope = float(np.vdot(start.gradient, step))
    if not slope < 0.0:
        return None
    norm = start.norm
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(_TRIALS):
        theta = start.theta + length * step
        trial = Point(theta, *objective.value_and_gradient(theta))
        along = float(np.vdot(trial.gradient, step))
        lower = trial.value <= start.value + _ARMIJO * length * slope + slack
        if (lower and abs(along) <= _FLAT * -slope) or trial.norm <= 0.5 * norm:
            return trial
        if along < 0.0:
            low = length
        else:
            high = length
        length = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
    return None
