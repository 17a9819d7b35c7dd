"""Monte Carlo verification of amplification that has no closed form.

With L the loss of a run (`loss_samples`), delta at epsilon is E h(L - epsilon),
h(x) = max(0, 1 - e^-x), in either direction.

**What is promised.** h lies in [0, 1]. By Hoeffding's inequality in its
Kullback-Leibler form, a mean of N draws at or below m has probability at most
exp(-N KL(m || d)) if the true value is d > m. A verification accepts when that is at
most `failure` / 2 for the target delta, in both directions. So a plan that misses its
target is accepted with probability at most `failure`, and a run that is made only if
accepted is (epsilon, max(delta, failure))-private over the verification's coins too.
That is for one verification of parameters chosen beforehand: trying several and keeping
what passes multiplies `failure`. The statement says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import rel_entr

from demur.core import validate
from demur.core.accounting.events import ApproxDP, Event, Neighbours
from demur.core.errors import NotPriced
from demur.mechanisms.correlated import Strategy
from demur.training.accounting.accounts import ONE_COLUMN, OneDraw
from demur.training.accounting.loss_samples import (
    Losses,
    Sampler,
    hockey_stick,
    loss_sampler,
)
from demur.training.batches.selection import (
    STEP_DISTANCE,
    BallsInBinsSampling,
    BatchSelectionStrategy,
    RandomAllocationSampling,
)

_AT_ONCE = 2**22  # numbers in memory at once


@dataclass(frozen=True)
class MonteCarlo:
    """A verification of (epsilon, delta) by `samples` draws in each direction."""

    epsilon: float
    delta: float
    samples: int
    failure: float = 1e-9

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.open_probability(delta=self.delta, failure=self.failure)
        validate.count(samples=self.samples)
        if self.failure > self.delta:
            raise ValueError(
                f"failure must be at most delta={self.delta:g}: a wrong acceptance"
                f" costs delta as well; got {self.failure:g}"
            )

    def largest_mean(self) -> float:
        """The largest estimate of delta that is accepted; below 0 if none is."""
        enough = math.log(2.0 / self.failure) / self.samples

        def surprise(mean: float) -> float:
            return float(
                rel_entr(mean, self.delta) + rel_entr(1 - mean, 1 - self.delta)
            )

        if surprise(0.0) < enough:
            return -1.0
        low, high = 0.0, self.delta
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if surprise(middle) >= enough else (low, middle)
        return low

    def verify(
        self,
        selection: BatchSelectionStrategy,
        strategy: Strategy,
        noise_multiplier: float,
        neighbours: Neighbours,
        random_state: np.random.Generator | int | None = None,
    ) -> MonteCarloAccount:
        """The account, if the samples verify the target; refused otherwise."""
        if neighbours is Neighbours.REPLACE_ONE:
            raise NotPriced(
                "neighboring_relation=REPLACE_ONE cannot be verified by sampling: the"
                " pair of distributions is known for a record that is added, removed or"
                " blanked. Nothing was spent."
            )
        accepted = self.largest_mean()
        if accepted < 0:
            least = math.log(2.0 / self.failure) / -math.log1p(-self.delta)
            raise NotPriced(
                f"{self.samples} samples cannot verify delta={self.delta:g} even if"
                f" every one is good: take more than {math.ceil(least)}"
            )
        column = strategy.sensitivity(ONE_COLUMN).value
        draw = loss_sampler(selection, strategy, noise_multiplier * column)
        sums = np.zeros(2)
        rng = np.random.default_rng(random_state)
        for losses in _chunks(draw, self.samples, selection.iterations, rng):
            for way, values in enumerate(losses):
                sums[way] += hockey_stick(values, self.epsilon).sum()
        if (sums / self.samples > accepted).any():
            raise NotPriced(
                f"the samples put delta at {sums.max() / self.samples:.3g}, and at most"
                f" {accepted:.3g} verifies {self.delta:g} with {self.samples} of them."
                " Use more noise (and a new verification), or more samples."
            )
        return MonteCarloAccount(self, selection, float(noise_multiplier))


@dataclass(frozen=True)
class MonteCarloAccount(OneDraw):
    """A run whose (epsilon, delta) was verified for one noise multiplier."""

    verification: MonteCarlo
    selection: BatchSelectionStrategy
    noise_multiplier: float

    @property
    def selection_distance(self) -> float:
        """0 for bins and allocations, drawn exactly; else one table a step."""
        exact = isinstance(
            self.selection, BallsInBinsSampling | RandomAllocationSampling
        )
        return 0.0 if exact else STEP_DISTANCE * self.selection.iterations

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the price assumes."""
        verification = self.verification
        return (
            f"one verification by {verification.samples} samples was made, which"
            " accepts a wrong epsilon with probability at most"
            f" {verification.failure:g}",
        )

    def scale(self, strategy: Strategy) -> float:
        """The largest column norm."""
        return strategy.sensitivity(ONE_COLUMN).value

    def draw_event(self, multiplier: float, neighbours: Neighbours) -> Event:
        """The verified (epsilon, delta); refused for another multiplier or relation."""
        if neighbours is Neighbours.REPLACE_ONE or multiplier < self.noise_multiplier:
            raise NotPriced(
                f"only noise_multiplier {self.noise_multiplier:g} was verified, for a"
                " record that is added, removed or blanked"
            )
        return ApproxDP(self.verification.epsilon, self.verification.delta)


def _chunks(
    draw: Sampler, samples: int, steps: int, rng: np.random.Generator
) -> Iterator[tuple[Losses, Losses]]:
    size = max(1, _AT_ONCE // steps)
    for start in range(0, samples, size):
        yield draw(min(size, samples - start), rng)
