r"""The minimiser of rows that are read in passes: few passes, the same certificate.

Each pass reads every row, so steps are bought with what is at hand already:

- the search starts at the minimiser of a sample that fits into memory, which is about
  sqrt(d / m) away for m sampled rows, instead of at zero;
- while theta has at most `MOST_NEWTON` numbers, a pass also sums the Hessian, and steps
  are Newton's: the error is squared each time, and two to four passes are enough. The
  pass that is expected to be the last does without;
- a larger theta (many classes) takes quasi-Newton steps: the Hessian of the sample
  stands for the whole, corrected by the secants of the passes so far (L-BFGS, with the
  sample's Hessian where the textbook has a multiple of the identity).

How theta was found does not matter for privacy. It is returned only once the gradient
over all rows, in float64 and with its rounding error, is at most tau (see `solver`):
every data set then yields a theta within tau / lam of its own minimiser.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from demur.convex.errors import NotConverged
from demur.convex.rows.totals import UNIT_ROUNDOFF
from demur.convex.sensitivity.form import TAU
from demur.convex.solving.objective import Objective
from demur.convex.solving.solver import (
    Minimiser,
    Point,
    Preconditioner,
    Progress,
    certified,
    check_terms,
    conjugate_gradients,
    line_search,
    minimise,
    not_reached,
    share,
)
from demur.convex.solving.streamed_objective import StreamedObjective

Array = NDArray[np.float64]
Solve = Callable[[Array], Array]

MOST_NEWTON = 2048  # numbers of theta: a Hessian of 32 MiB
SAMPLE_BYTES = 2**25
_LEAST_SAMPLE, _MOST_SAMPLE = 512, 50_000  # rows
_SECANTS = 20
_EXPECTED = 0.3  # of tau: the next pass is then expected to be the last


def minimise_streamed(
    objective: StreamedObjective,
    *,
    tau: float = TAU,
    max_iter: int = 200,
    progress: Progress | None = None,
) -> Minimiser:
    """`solver.minimise` for streamed rows; `iterations` counts steps, not passes."""
    check_terms(objective, tau, max_iter)
    # Refused before the first pass where no gradient could be certified, not even 0.
    certified(objective, 0.0, objective.rounding(0.0), tau)
    search = _Search(objective, tau)
    theta = search.start()
    here = Point(theta, *search.value_and_gradient(theta))
    first = here.norm
    for iteration in range(max_iter + 1):
        norm = here.norm
        rounding = objective.rounding(float(np.linalg.norm(here.theta)))
        if progress is not None:
            progress(iteration, share(first, norm, tau))
        if certified(objective, norm, rounding, tau):
            return Minimiser(here.theta, norm, iteration)
        if iteration == max_iter or not np.isfinite(norm):
            break
        step = search.step(here.theta, here.gradient)
        slack = 16.0 * UNIT_ROUNDOFF * abs(here.value)
        ahead = line_search(search, here, step, slack=slack)
        if ahead is None:
            break
        search.moved(ahead.theta - here.theta, ahead.gradient - here.gradient)
        here = ahead
    raise not_reached(objective, tau)


class _Search:
    """The passes of a search, and the curvature that they showed."""

    def __init__(self, objective: StreamedObjective, tau: float) -> None:
        self._objective = objective
        self._tau = tau
        self._newton = int(np.prod(objective.shape)) <= MOST_NEWTON
        self._solve: Solve | None = None
        self._current = False
        self._sample: Objective | None = None
        self._precondition: Preconditioner | None = None
        self._secants = _Secants()
        self._norms: list[float] = []

    @property
    def n(self) -> int:
        return self._objective.n

    @property
    def lam(self) -> float:
        return self._objective.lam

    def start(self) -> Array:
        """The minimiser of a sample; zero where none was certified."""
        width = self._objective.data.width
        most = max(_LEAST_SAMPLE, min(_MOST_SAMPLE, SAMPLE_BYTES // (8 * width)))
        sample = self._objective.sampled(most)
        if not self._newton:
            self._sample = sample
        try:
            return minimise(sample, tau=self._tau).theta
        except NotConverged:
            return np.zeros(self._objective.shape)

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """One pass, with the Hessian where a further step is to be expected."""
        hessian = self._newton and not self._last_is_near()
        answer = self._objective.answer(theta, hessian=hessian)
        self._norms.append(float(np.linalg.norm(answer.gradient)))
        self._current = answer.hessian is not None
        if answer.hessian is not None:
            self._solve = _solver_of(answer.hessian, self.lam, self._objective.shape)
            self._secants = _Secants()
        return answer.value, answer.gradient

    def step(self, theta: Array, gradient: Array) -> Array:
        """-H^-1 gradient, H as the passes so far estimate it."""
        solve = self._solve
        if solve is None:
            solve = self._sampled_solver(theta)
        return -self._secants.applied(gradient, solve)

    def moved(self, along: Array, change: Array) -> None:
        """Record the secant of a step, unless a Hessian was summed where it ends."""
        if not self._current:
            self._secants.add(along, change)

    def _last_is_near(self) -> bool:
        """Newton squares the error: g2 is about (g1 / g0^2) g1^2."""
        if len(self._norms) < 2:
            return False
        before, now = self._norms[-2:]
        if not 0.0 < now < before:
            return False
        return (now / before) ** 2 * now <= _EXPECTED * self._tau

    def _sampled_solver(self, theta: Array) -> Solve:
        assert self._sample is not None
        if self._precondition is None:
            self._precondition = Preconditioner(self._sample)
        curvature = self._sample.curvature(theta, single=True)
        precondition = self._precondition.at(curvature)

        def solve(vector: Array) -> Array:
            return conjugate_gradients(curvature, -vector, precondition, relative=1e-3)

        return solve


def _solver_of(hessian: Array, lam: float, shape: tuple[int, ...]) -> Solve:
    try:
        factor = cho_factor(hessian)
    except LinAlgError:
        # Rounding can hide a tiny lam, the least eigenvalue that there can be.
        values, vectors = np.linalg.eigh(hessian)
        scale = 1.0 / np.maximum(values, lam)
        return lambda vector: (
            vectors @ (scale * (vectors.T @ vector.reshape(-1)))
        ).reshape(shape)

    def solve(vector: Array) -> Array:
        solution: Array = cho_solve(factor, vector.reshape(-1)).reshape(shape)
        return solution

    return solve


class _Secants:
    """L-BFGS: its two loops around a given inverse Hessian."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Array, Array, float]] = []

    def add(self, along: Array, change: Array) -> None:
        curve = float(np.vdot(along, change))
        if curve > 0.0:
            self._pairs = [*self._pairs, (along, change, curve)][-_SECANTS:]

    def applied(self, vector: Array, solve: Solve) -> Array:
        left = vector.copy()
        shares = []
        for along, change, curve in reversed(self._pairs):
            part = float(np.vdot(along, left)) / curve
            left -= part * change
            shares.append(part)
        solution = solve(left)
        for (along, change, curve), part in zip(
            self._pairs, reversed(shares), strict=True
        ):
            off = part - float(np.vdot(change, solution)) / curve
            solution = solution + off * along
        return solution
