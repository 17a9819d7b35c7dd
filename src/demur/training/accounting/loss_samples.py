"""Privacy loss samples, for runs without a closed form.

For a strategy C without negative entries, a record that is blanked, added or removed
moves the run at most as the pair

    P = E_u N(C u, s^2),   Q = N(0, s^2)     on R^T,

u the 0/1 vector of the steps it takes part in, s the noise per unit of contribution
(arXiv 2410.06266 for balls in bins, 2602.09338 for separated batches).
With L(y) = log E_u exp((2 <C u, y> - |C u|^2) / 2 s^2), delta at epsilon is
E_P h(L - epsilon) one way and E_Q h(-L - epsilon) the other, h(x) = max(0, 1 - e^-x).

- balls in bins: u is one of k vectors; L needs the k products <C u_i, y> alone, whose
  joint law is a k-dimensional Gaussian.
- separated batches, C with at most min_sep bands: the columns of a pattern have no row
  in common, so the exponent is a sum of s_t = (2 <c_t, y> - |c_t|^2) / 2 s^2 over its
  steps, and E_u is a recursion from the last step back, A_t the value of being
  available:

      A_t = (1 - p) A_(t+1) + p e^(s_t) A_(t+min_sep),   A_t = 1 for t >= T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import logsumexp

from demur.core import validate
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import Strategy
from demur.training.accounting.accounts import check_known
from demur.training.batches.selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    RandomAllocationSampling,
)

Losses: TypeAlias = NDArray[np.float64]
Sampler: TypeAlias = Callable[[int, np.random.Generator], tuple[Losses, Losses]]
_MOST_STEPS = 2**14


def hockey_stick(losses: Losses, epsilon: float) -> Losses:
    """max(0, 1 - e^(epsilon - loss)) for each loss."""
    return -np.expm1(np.minimum(epsilon - losses, 0.0))


def loss_sampler(
    selection: BatchSelectionStrategy, strategy: Strategy, deviation: float
) -> Sampler:
    """(count, rng) -> losses of so many runs, with the record and without it.

    `deviation` is the noise per unit of contribution.
    """
    validate.positive(deviation=deviation)
    check_known(selection)
    if not 1 <= selection.iterations <= _MOST_STEPS:
        raise NotPriced(
            f"a verification takes 1 to {_MOST_STEPS} steps; got {selection.iterations}"
        )
    if getattr(selection, "truncated_batch_size", None) is not None:
        raise NotPriced("truncated batches have no verification here")
    matrix = strategy.matrix()
    if len(matrix) != selection.iterations:
        raise NotPriced(
            f"the noise strategy has {len(matrix)} steps, the batches"
            f" {selection.iterations}"
        )
    if (matrix < 0).any():
        raise NotPriced(
            "a noise strategy with negative entries has no dominating pair to sample"
        )
    match selection:
        case BallsInBinsSampling():
            return _balls_in_bins(selection, matrix, deviation)
        case RandomAllocationSampling(total_participations=1, iterations=steps):
            # One bin for each step.
            bins = BallsInBinsSampling(iterations=steps, cycle_length=steps)
            return _balls_in_bins(bins, matrix, deviation)
        case BMinSepSampling():
            if strategy.bands > selection.min_sep:
                raise NotPriced(
                    f"the noise strategy has {strategy.bands} bands, more than"
                    f" min_sep={selection.min_sep}: patterns do not separate"
                )
            return _separated(selection, matrix, strategy.bands, deviation)
    raise NotPriced(
        f"{type(selection).__name__} has no verification by sampling: balls-in-bins,"
        " min-separated batches and random allocation to one step do"
    )


def _balls_in_bins(
    selection: BallsInBinsSampling, matrix: NDArray[Any], deviation: float
) -> Sampler:
    bins = min(selection.cycle_length, selection.iterations)
    moved = np.stack([matrix[:, j::bins].sum(axis=1) for j in range(bins)], axis=1)
    if bins < selection.cycle_length:  # bins that no step ever uses
        unused = selection.cycle_length - bins
        moved = np.hstack([moved, np.zeros((len(moved), unused))])
    moved = moved / deviation
    gram = moved.T @ moved
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    half = np.diag(gram) / 2
    size = len(gram)

    def losses(products: NDArray[Any]) -> Losses:
        return np.asarray(logsumexp(products - half, axis=1) - math.log(size))

    def draw(count: int, rng: np.random.Generator) -> tuple[Losses, Losses]:
        which = rng.integers(size, size=count)
        with_record = rng.standard_normal((count, size)) @ root.T + gram[which]
        without = rng.standard_normal((count, size)) @ root.T
        return losses(with_record), -losses(without)

    return draw


def _separated(
    selection: BMinSepSampling, matrix: NDArray[Any], bands: int, deviation: float
) -> Sampler:
    columns = matrix / deviation
    half = (columns**2).sum(axis=0) / 2
    steps, p, apart = len(matrix), selection.sampling_prob, selection.min_sep
    free, blocked = _start_law(selection)
    diagonals = [np.diagonal(columns, -j) for j in range(bands)]

    def products(noise: NDArray[Any]) -> NDArray[Any]:
        """<c_t, y> for every step t."""
        out = np.zeros_like(noise)
        for j, entries in enumerate(diagonals):
            out[:, : steps - j] += entries * noise[:, j:]
        return out

    def losses(noise: NDArray[Any]) -> Losses:
        scores = products(noise) - half
        return _expected_over_patterns(scores, p, apart, free, blocked)

    def draw(count: int, rng: np.random.Generator) -> tuple[Losses, Losses]:
        noise = rng.standard_normal((count, steps))
        # The first step that the record is available in, then gaps of min_sep or more.
        start = rng.choice(apart, p=[free] + [blocked] * (apart - 1), size=count)
        rounds = np.zeros((count, steps), dtype=bool)
        _patterns(rounds, start, rng.random((count, steps)), p, apart)
        shift = np.zeros_like(noise)
        for j, entries in enumerate(diagonals):
            shift[:, j:] += entries * rounds[:, : steps - j]
        without = rng.standard_normal((count, steps))
        return losses(noise + shift), -losses(without)

    return draw


def _start_law(selection: BMinSepSampling) -> tuple[float, float]:
    """The chances to be available in step 0, and of each way to be blocked there."""
    p, apart = selection.sampling_prob, selection.min_sep
    blocked = p / (1 + (apart - 1) * p) if selection.warm_start else 0.0
    return 1.0 - (apart - 1) * blocked, blocked


@njit(cache=True)
def _patterns(
    rounds: NDArray[np.bool_],
    start: NDArray[np.int64],
    coins: NDArray[np.float64],
    p: float,
    apart: int,
) -> None:
    for i in range(rounds.shape[0]):
        t = start[i]
        while t < rounds.shape[1]:
            if coins[i, t] < p:
                rounds[i, t] = True
                t += apart
            else:
                t += 1


@njit(cache=True)
def _expected_over_patterns(
    scores: NDArray[np.float64], p: float, apart: int, free: float, blocked: float
) -> NDArray[np.float64]:
    """log of the value of the first step, by the recursion from the last one back."""
    count, steps = scores.shape
    out = np.empty(count)
    value = np.zeros(steps + apart)
    log_p = math.log(p) if p > 0 else -math.inf
    log_rest = math.log1p(-p) if p < 1 else -math.inf
    for i in range(count):
        for t in range(steps - 1, -1, -1):
            stay = log_rest + value[t + 1]
            take = log_p + scores[i, t] + value[t + apart]
            top = max(stay, take)
            value[t] = top + math.log(math.exp(stay - top) + math.exp(take - top))
        top = value[0]
        for t in range(1, apart):
            top = max(top, value[t])
        total = free * math.exp(value[0] - top)
        for t in range(1, apart):
            total += blocked * math.exp(value[t] - top)
        out[i] = top + math.log(total)
    return out
