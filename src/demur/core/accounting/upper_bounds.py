"""Upper bounds on a price without a grid: closed forms and Renyi divergences."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from demur.core.accounting import gaussian, renyi
from demur.core.accounting.events import (
    AllocatedGaussian,
    Atom,
    Neighbours,
    PoissonGaussian,
    Pure,
    Sampled,
)
from demur.core.accounting.totals import Total, inverse_square_up
from demur.core.rounding import down, float_down, float_up, sum_up, up

PLD_LARGEST_EPSILON = 100.0  # Above, a grid takes minutes and nobody is protected.
_MOST_BLOCKS = 2**18  # Equal pure events that are still composed on a grid.
_MOST_STEPS = 2**26  # Equal sampled steps, likewise.
_SMALLEST_SAMPLE = 1e-12  # Rarer samples are priced without a grid.
# Allocations beyond these are priced as if the record's step were known.
_LEAST_ALLOCATED_MULTIPLIER = 0.25
_LARGEST_BLOCK = 2**20


def too_wide(total: Total, delta: float) -> bool:
    """Whether no grid is built: epsilon above 100 (about), or nothing a grid can hold.

    Events without a Renyi divergence are judged by their zero-out twin: a record that
    contributes nothing is one of those a record may be replaced by, so the twin costs
    no more.
    """
    blocks = [*total.pure.values(), *total.approx.values()]
    if max(blocks, default=0) > _MOST_BLOCKS or any(
        not (_SMALLEST_SAMPLE <= event.probability and 1e-3 <= event.multiplier <= 1e6)
        or count > _MOST_STEPS
        or (
            isinstance(event, AllocatedGaussian)
            and (
                event.multiplier < _LEAST_ALLOCATED_MULTIPLIER
                or event.steps > _LARGEST_BLOCK
            )
        )
        for event, count in total.sampled.items()
    ):
        return True
    twins: dict[Sampled, int] = {}
    for event, count in total.sampled.items():
        twin, times = poisson_twin(event, count)
        twins[twin] = twins.get(twin, 0) + times
    rough = renyi_epsilon(replace(total, sampled=twins), delta)
    return rough > PLD_LARGEST_EPSILON


def poisson_twin(event: Sampled, count: int) -> tuple[PoissonGaussian, int]:
    """Plain Poisson steps that cost about as much, with Renyi divergences.

    An allocation to one of m steps is like m Poisson steps of probability 1 / m.
    """
    steps = event.steps if isinstance(event, AllocatedGaussian) else 1
    return PoissonGaussian(event.probability, event.multiplier), count * steps


def closed_form(total: Total, delta: float) -> float:
    """Epsilon in closed form: Gaussians as one Gaussian, the rest added up."""
    left = Fraction(delta) - total.delta_sum
    mu_squared = total.mu_squared + _unamplified(total)
    if left < 0 or (left == 0 and mu_squared) or math.isinf(mu_squared):
        return math.inf
    if not mu_squared:
        return float_up(total.epsilon_sum)
    if not 0.0 < float_down(left):
        return math.inf
    alone = gaussian.gaussian_epsilon(up(math.sqrt(mu_squared)), float_down(left))
    return sum_up(alone, float_up(total.epsilon_sum))


def closed_form_delta(total: Total, epsilon: float) -> float:
    """Delta in closed form, likewise."""
    left = Fraction(epsilon) - total.epsilon_sum
    mu_squared = total.mu_squared + _unamplified(total)
    if left < 0 or math.isinf(mu_squared):
        return 1.0
    if not mu_squared:
        return min(1.0, float_up(total.delta_sum))
    alone = gaussian.gaussian_delta(up(math.sqrt(mu_squared)), float_down(left))
    return min(1.0, sum_up(alone, float_up(total.delta_sum)))


def _unamplified(total: Total) -> float:
    """mu^2 of the sampled events as if every record took part: always a bound.

    Given which other records are drawn, a sampled step is a mixture of Gaussian pairs
    whose shift is at most the sensitivity of the whole sum: C for a record that
    appears or vanishes, 2C for one that is replaced, and 2C where a full batch lets
    the record push another one out. An allocated record takes part in one sum.
    """
    mu_squared = Fraction(0)
    for event, count in total.sampled.items():
        whole = (
            isinstance(event, PoissonGaussian | AllocatedGaussian)
            and event.neighbours is not Neighbours.REPLACE_ONE
        )
        z = event.multiplier if whole else down(event.multiplier / 2)
        mu_squared += inverse_square_up(z) * count
    return float_up(mu_squared)


def _renyi_of_total(total: Total) -> NDArray[np.float64] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        divergence = renyi.ORDERS / 2.0 * total.mu_squared * (1 + 1e-12)
        rest: dict[Atom, int] = {Pure(eps): n for eps, n in total.pure.items() if eps}
        for event, count in [*rest.items(), *total.sampled.items()]:
            single = renyi.divergences(event, renyi.ORDERS)
            if single is None:
                return None
            divergence = divergence + single * float_up(Fraction(count))
    return np.nan_to_num(divergence, nan=math.inf, posinf=math.inf)


def total_divergence(total: Total, order: int) -> float | None:
    """D_order of a total without pairs and searches; None where it is not known."""
    if total.approx or total.searches:
        return None
    divergence = Fraction(order) / 2 * Fraction(total.mu_squared)
    for event, count in [
        *((Pure(eps), n) for eps, n in total.pure.items()),
        *total.sampled.items(),
    ]:
        single = renyi.divergence(event, order)
        if single is None or math.isinf(single):
            return single
        divergence += Fraction(single) * count
    return float_up(divergence * (1 + Fraction(1, 10**12)))


def renyi_epsilon(total: Total, delta: float) -> float:
    """Epsilon by the best Renyi order; infinite where an event has no divergence."""
    left = float_down(max(Fraction(delta) - total.delta_sum, Fraction(0)))
    divergence = _renyi_of_total(total)
    if left <= 0 or divergence is None:
        return math.inf
    epsilon = min(
        (
            renyi.to_epsilon(float(d), int(a), left)
            for d, a in zip(divergence, renyi.ORDERS, strict=True)
            if math.isfinite(d)
        ),
        default=math.inf,
    )
    if math.isinf(epsilon):
        return epsilon
    return sum_up(epsilon, float_up(total.block_epsilon))


def renyi_delta(total: Total, epsilon: float) -> float:
    """Delta by the best Renyi order; 1 where an event has no divergence."""
    left = float_down(max(Fraction(epsilon) - total.block_epsilon, Fraction(0)))
    divergence = _renyi_of_total(total)
    if divergence is None or Fraction(epsilon) < total.block_epsilon:
        return 1.0
    a = renyi.ORDERS.astype(np.float64)
    with np.errstate(over="ignore"):
        logs = (a - 1) * (divergence - left + np.log1p(-1 / a)) - np.log(a)
    smallest = float(np.min(logs))
    if smallest >= 0:
        return 1.0
    delta = math.exp(smallest) * (1 + 1e-9)
    return min(1.0, sum_up(up(delta), float_up(total.delta_sum)))
