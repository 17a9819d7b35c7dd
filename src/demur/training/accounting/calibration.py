"""Noise calibration: the least multiplier for a target (epsilon, delta).

A privacy loss distribution of a thousand sampled steps takes most of a second on a fine
grid. The search therefore runs on `accounting.rough_price`, a tenth of that time and a
few parts in ten thousand above the price, from the starting point of the central limit
theorem for sampled Gaussians (Bu, Dong, Long and Su 2020),

    mu = q sqrt(T (e^(1/z^2) - 1))   =>   z = 1 / sqrt(log(1 + mu^2 / (q^2 T))),

by secants on logarithms. The result is then priced in full, by `accounting.price` and,
where the caller gave one, by their accountant, and moved up until it meets the target
under both. The search saves time; no guarantee depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demur.core import accounting, validate
from demur.core.accounting import calibration, events
from demur.core.accounting.events import (
    AllocatedGaussian,
    Event,
    PoissonGaussian,
    Sampled,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.gaussian import gaussian_mu

_CLOSE = 2e-5  # log(price / target) at which the search ends
_MOST_ROUGH = 25
_MOST_PRICED = 8
_LOSS = 2e-3  # how far below the target a result may lie without another attempt


@dataclass(frozen=True)
class Calibration:
    """A noise multiplier, and what the run costs with it."""

    noise_multiplier: float
    epsilon: float
    delta: float


def calibrate_noise(
    make_event: Callable[[float], Event],
    epsilon: float,
    delta: float,
    *,
    accountant: Any = None,
) -> Calibration:
    """The smallest noise multiplier at which the event costs at most epsilon.

    `make_event(z)` is the whole run at multiplier z. `accountant`, one of
    dp_accounting's and new, must agree: its epsilon of the event is then at most the
    target as well.

    >>> from demur.core.accounting.events import PoissonGaussian, Repeated
    >>> least = calibrate_noise(
    ...     lambda z: Repeated(PoissonGaussian(0.01, z), 100), epsilon=1.0, delta=1e-6)
    >>> round(least.noise_multiplier, 2), least.epsilon <= 1.0
    (0.99, True)
    """
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)

    if accountant is not None:
        accounting.check_accountant(accountant, make_event(1.0))
    priced = _sampled_search(make_event, epsilon, delta)
    if priced is None:
        multiplier = calibration.calibrate(make_event, epsilon, delta, rtol=1e-5)
        priced = multiplier, accounting.price(make_event(multiplier), delta)
    if accountant is not None and not _same_grid(
        accountant, make_event(priced[0]), epsilon, delta
    ):
        priced = _agreed(make_event, epsilon, delta, accountant, priced)
    return Calibration(*priced, delta)


def _same_grid(accountant: Any, event: Event, epsilon: float, delta: float) -> bool:
    """Whether an accountant only repeats, as finely, what has been computed.

    dp_accounting's PLD accountant builds the distribution that `price` has built. On a
    grid that is no coarser it differs by rounding alone, for which there is room.
    """
    theirs = accounting.grid_of_accountant(accountant)
    ours = accounting.deciding_grid(event, delta)
    if theirs is None or ours is None or theirs > ours:
        return False
    return accounting.price(event, delta) <= epsilon * (1 - 5e-5)


def _agreed(
    make_event: Callable[[float], Event],
    epsilon: float,
    delta: float,
    accountant: Any,
    priced: tuple[float, float],
) -> tuple[float, float]:
    """Enough noise for the caller's accountant as well."""

    def theirs(event: Event, at: float) -> float:
        return accounting.accountant_epsilon(accountant, event, at)

    multiplier, ours = priced
    if theirs(make_event(multiplier), delta) <= epsilon:
        return priced
    multiplier = calibration.calibrate(
        make_event,
        epsilon,
        delta,
        price=theirs,
        bracket=(multiplier, 1.1 * multiplier),
        rtol=1e-4,
    )
    ours = accounting.price(make_event(multiplier), delta)
    if ours > epsilon:  # a price that rises with the noise; never seen
        raise ArithmeticError(
            f"the price is {ours} at multiplier {multiplier}, above {epsilon}, although"
            f" it was below it at {priced[0]}"
        )
    return multiplier, ours


def _sampled_search(
    make_event: Callable[[float], Event],
    epsilon: float,
    delta: float,
) -> tuple[float, float] | None:
    """Multiplier and price for repeated sampled steps; None where that is no help."""
    counts = events.atoms(make_event(1.0))
    if len(counts) != 1:
        return None
    ((atom, count),) = counts.items()
    if not isinstance(atom, Sampled) or atom.probability in (0.0, 1.0):
        return None
    rough = _Rough(make_event, epsilon, delta)
    multiplier = rough.solve(_first_guess(atom, count, epsilon, delta))
    if multiplier is None:
        return None
    best: tuple[float, float] | None = None
    slope, before = rough.slope, (0.0, 0.0)
    for _ in range(_MOST_PRICED):
        cost = accounting.price(make_event(multiplier), delta)
        if cost <= epsilon and (best is None or multiplier < best[0]):
            best = multiplier, cost
        if cost <= epsilon and cost >= epsilon * (1 - _LOSS):
            break
        if not 0.0 < cost < math.inf:
            break
        # Along the rough curve first, then through the prices themselves: where steps
        # are much smaller than the rough grid, its slope is another one. A hair more
        # noise, so as not to fall short.
        miss = math.log(cost / epsilon)
        at = math.log(multiplier)
        if before[1] and at != before[0]:
            measured = (before[1] - miss) / (at - before[0])
            slope = measured if measured > 0.05 else slope
        before = at, miss
        step = max(-1.0, min(1.0, miss / slope))
        multiplier *= math.exp(step) * (1 + (1e-6 if miss > 0 else 1e-5))
    return best


class _Rough:
    """log(rough price / target) as a function of log(multiplier)."""

    def __init__(
        self, make_event: Callable[[float], Event], epsilon: float, delta: float
    ) -> None:
        self._make_event = make_event
        self._target = epsilon
        self._delta = delta
        self.slope = 2.0  # -d log(price) / d log(multiplier)

    def _miss(self, log_multiplier: float) -> float:
        event = self._make_event(math.exp(log_multiplier))
        ((atom, count),) = events.atoms(event).items()
        assert isinstance(atom, Sampled)
        epsilon = accounting.rough_price(atom, count, self._delta)
        if not 0.0 < epsilon < math.inf:
            return math.copysign(math.inf, epsilon - 1.0)
        return math.log(epsilon / self._target)

    def solve(self, guess: float) -> float | None:
        """The multiplier whose rough price is the target; None if the search fails."""
        at = math.log(guess)
        miss = self._miss(at)
        for _ in range(_MOST_ROUGH):
            if abs(miss) <= _CLOSE:
                return math.exp(at)
            if math.isinf(miss):
                step = math.copysign(1.0, miss)
            else:
                step = max(-1.0, min(1.0, miss / self.slope))
            after = self._miss(at + step)
            if math.isfinite(after) and math.isfinite(miss):
                slope = (miss - after) / step
                if slope > 0.05:
                    self.slope = slope
            at, miss = at + step, after
        return None


def _first_guess(atom: Sampled, count: int, epsilon: float, delta: float) -> float:
    mu = gaussian_mu(epsilon, delta)
    moved = 1.0
    if isinstance(atom, PoissonGaussian | TruncatedPoissonGaussian):
        twice = atom.neighbours is events.Neighbours.REPLACE_ONE
        moved = math.sqrt(2.0) if twice else 1.0
    steps = count * (atom.steps if isinstance(atom, AllocatedGaussian) else 1)
    ratio = mu / (atom.probability * moved * math.sqrt(steps))
    return 1.0 / math.sqrt(math.log1p(min(ratio * ratio, 1e300)))
