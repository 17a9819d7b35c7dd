"""Buffered linear Toeplitz strategies (BLT) for correlated noise.

The coefficients are t_0 = 1 and t_k = sum_i w_i d_i^(k-1), so that one buffer for each
decay d_i replaces the whole history:

    noise x_t = z_t - sum_i w_i s_i,     s_i <- d_i s_i + x_t.

With 0 < d_i < 1, w_i > 0 and sum w_i <= 1 the coefficients are positive and do not
increase, and the sensitivity is exact for every separation (`sensitivity`). The search
keeps inside that set: d = 1 / (1 + e^-a), w = e^v / (1 + sum e^v).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import toeplitz
from scipy.signal import fftconvolve

from demur.core import validate
from demur.mechanisms.correlated.sensitivity import (
    ONCE,
    Certified,
    Participation,
    of_toeplitz,
    stacked,
)
from demur.mechanisms.correlated.strategy import checked, errors_of
from demur.mechanisms.correlated.toeplitz import minimize_smooth
from demur.mechanisms.correlated.workload import Workload

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Buffered:
    """The strategy with `decays` d and `scales` w, for `iterations` steps."""

    decays: ArrayLike
    scales: ArrayLike
    iterations: int

    def __post_init__(self) -> None:
        validate.count(iterations=self.iterations)
        decays = np.array(self.decays, dtype=np.float64)
        scales = np.array(self.scales, dtype=np.float64)
        if decays.ndim != 1 or decays.shape != scales.shape or not decays.size:
            raise ValueError(
                "decays and scales must be equally many numbers, at least one; got"
                f" shapes {decays.shape} and {scales.shape}"
            )
        if not ((decays > 0) & (decays < 1)).all():
            raise ValueError("decays must lie strictly between 0 and 1")
        if not (scales > 0).all() or not scales.sum() <= 1:
            raise ValueError("scales must be positive, with a sum of at most 1")
        for name, value in (("decays", decays), ("scales", scales)):
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "iterations", int(self.iterations))

    @property
    def bands(self) -> int:
        """All of them: the coefficients never end."""
        return self.iterations

    def coefs(self) -> Array:
        """t_0, ..., t_(n-1)."""
        powers = np.asarray(self.decays) ** np.arange(self.iterations - 1)[:, None]
        return np.concatenate([[1.0], powers @ np.asarray(self.scales)])

    def matrix(self) -> Array:
        """C."""
        return np.asarray(toeplitz(self.coefs(), np.zeros(self.iterations)))

    def sensitivity(self, participation: Participation) -> Certified:
        """How far C G moves; exact, the coefficients being positive and falling."""
        return of_toeplitz(self.coefs(), self.iterations, participation)

    def errors(self, workload: Workload | None = None) -> Array:
        """The variance of each row of A C^-1 Z."""
        work = checked(workload, self.iterations)
        if work.coefs is None:
            return errors_of(self.matrix(), work)
        decays, scales = np.asarray(self.decays), np.asarray(self.scales)
        return np.cumsum(_solve(decays, scales, work.coefs) ** 2)


@numba.njit(cache=True)
def _solve(decays: Array, scales: Array, right: Array) -> Array:  # pragma: no cover
    """C^-1 `right` by the recursion of the module's head."""
    buffers = np.zeros(len(decays))
    out = np.empty(len(right))
    for t in range(len(right)):
        value = right[t]
        for i in range(len(decays)):
            value -= scales[i] * buffers[i]
        out[t] = value
        for i in range(len(decays)):
            buffers[i] = decays[i] * buffers[i] + value
    return out


def optimize_buffered(
    iterations: int,
    *,
    buffers: int | None = None,
    participation: Participation = ONCE,
    reduction: str = "max",
    workload: Workload | None = None,
) -> Buffered:
    """The least sensitivity^2 times error over strategies with `buffers` buffers.

    Without a number, buffers are added while each lowers the loss by 0.1% or more, up
    to 6. The workload must be Toeplitz.
    """
    validate.count(iterations=iterations)
    if iterations < 2:
        raise ValueError("iterations must be at least 2 for a strategy with memory")
    work = checked(workload, iterations)
    if work.coefs is None:
        raise ValueError("workload must be Toeplitz (one learning rate) for buffers")
    if reduction not in ("mean", "max"):
        raise ValueError(f"reduction must be 'mean' or 'max'; got {reduction!r}")
    if buffers is not None:
        validate.count(buffers=buffers)
    last: tuple[float, Array] | None = None
    for count in range(1, (buffers or 6) + 1):
        value, free = _search(work, participation, reduction, count, last)
        if buffers is None and last is not None and value > last[0] + np.log(0.999):
            break
        last = (value, free)
    assert last is not None
    decays, scales = _unpack(last[1])
    return Buffered(decays, scales, iterations)


def _unpack(free: Array) -> tuple[Array, Array]:
    half = len(free) // 2
    raised = np.exp(free[half:] - max(free[half:].max(), 0.0))
    rest = np.exp(-max(free[half:].max(), 0.0))
    return 1.0 / (1.0 + np.exp(-free[:half])), raised / (rest + raised.sum())


def _search(
    work: Workload,
    participation: Participation,
    reduction: str,
    count: int,
    before: tuple[float, Array] | None,
) -> tuple[float, Array]:
    """The best of a few starts, as (log loss, parameters)."""
    size = work.iterations
    column = work.coefs
    assert column is not None
    steps = np.arange(size)
    weights = np.ones(size) if reduction == "max" else (size - steps) / size
    apart, most = participation.min_separation, participation.most(size)
    powers_of = np.arange(size - 1)[:, None]

    def objective(free: Array) -> tuple[float, Array]:
        decays, scales = _unpack(free)
        powers = decays**powers_of
        coefs = np.concatenate([[1.0], powers @ scales])
        noise = _solve(decays, scales, column)
        weighted = weights * noise
        adjoint = _solve(decays, scales, weighted[::-1].copy())[::-1]
        error = float(noise @ weighted)
        # Both terms as gradients in the coefficients, then through d and w.
        to_coefs = fftconvolve(adjoint, noise[::-1])[size - 1 :] * (-2.0 / error)
        stack = stacked(coefs, apart, most)
        squared = float(stack @ stack)
        for start in range(0, min(most * apart, size), apart):
            to_coefs[: size - start] += 2.0 * stack[start:] / squared
        slopes = powers.T @ to_coefs[1:]
        to_scales = slopes
        shifted = np.zeros_like(powers)
        shifted[1:] = powers_of[1:] * powers[:-1]
        to_decays = scales * (shifted.T @ to_coefs[1:])
        to_logits = scales * (to_scales - scales @ to_scales)
        gradient = np.concatenate([to_decays * decays * (1 - decays), to_logits])
        return float(np.log(error) + np.log(squared)), gradient

    starts = [_start(size, count, reach) for reach in (1.0, 0.5)]
    if before is not None:
        # The last answer with one more, slow and small, buffer.
        half = len(before[1]) // 2
        slow, small = before[1][:half].max() + 2.0, before[1][half:].min() - 2.0
        starts.append(
            np.concatenate([before[1][:half], [slow], before[1][half:], [small]])
        )
    ends = []
    for start in starts:
        try:
            free = minimize_smooth(objective, start, what="optimize_buffered")
        except ArithmeticError as error:
            problem = error
            continue
        ends.append((objective(free)[0], free))
    if not ends:
        raise problem
    return min(ends, key=lambda pair: pair[0])


def _start(size: int, count: int, reach: float) -> Array:
    """Decays whose memories are spread evenly, on a log scale, over the run."""
    memory = np.geomspace(1.5, max(size * reach, 3.0), count)
    decays = 1.0 - 1.0 / memory
    scales = 0.5 * memory**-0.5
    scales *= 0.6 / scales.sum()
    return np.concatenate(
        [np.log(decays / (1 - decays)), np.log(scales / (1 - scales.sum()))]
    )
