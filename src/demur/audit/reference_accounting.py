"""Epsilon from below, by a computation that shares no code with the accountant.

demur's prices are upper bounds. Here the other side is computed for the same mechanism:
a number that epsilon cannot be smaller than. A price below it is wrong, and its
distance above it is how much a wrong price could hide (`demur.audit.result.power`).

- *Gaussian*: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu), solved for e.
- *Finite mechanisms*, exactly: m answers of randomised response have m + 1 different
  likelihood ratios, so that delta is a sum of m + 1 terms. It is an instance of every
  composition of m pure mechanisms. A person with k records in one answer each is the
  same sum for k m answers.
- *Best of a secret number of runs*: a run answers 0 or 1 by randomised response, and
  the best answer is 0 if every run's is. Its probability under both datasets is a power
  series in the law of the number, and the logarithm of their ratio is a lower bound.
- *Sampled Gaussians*: the privacy loss of one step on a grid, each loss rounded *down*,
  and the FFT to its power. A loss rounded down lowers delta at every epsilon, so that
  delta of the composition is a lower bound; what falls out of the grid is dropped. The
  FFT itself is off by about 1e-15 of the total mass, far below the deltas of interest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from demur.core import validate

Values: TypeAlias = NDArray[np.float64]

_POINTS = 30_001  # of one step's outputs
_REACH = 8.0  # deviations of the noise on either side; what lies beyond is dropped
_LARGEST_FFT = 2**18


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a mu-GDP Gaussian at `delta`."""
    validate.positive(mu=mu)
    validate.open_probability(delta=delta)

    def log_delta(epsilon: float) -> float:
        first = float(special.log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
        if second >= first:
            return -math.inf
        return first + math.log1p(-math.exp(second - first))

    return _largest(lambda e: log_delta(e) > math.log(delta), mu * (mu + 40.0))


def pure_epsilon(epsilon: float, count: int, delta: float) -> float:
    """The epsilon of `count` answers of epsilon-randomised response, exactly."""
    validate.positive(epsilon=epsilon)
    validate.count(count=count)
    validate.probability(delta=delta)
    likely = 1.0 / (1.0 + math.exp(-epsilon))
    right = np.arange(count + 1)
    masses = stats.binom.pmf(right, count, likely)
    losses = np.asarray((2 * right - count) * epsilon, dtype=np.float64)
    if delta == 0.0:
        return count * epsilon
    return _largest(lambda e: _delta(losses, masses, e) > delta, count * epsilon)


def best_of_epsilon(epsilon: float, weights: Values) -> float:
    """A lower bound on epsilon for the best of K pure runs, P(K = k) = weights[k]."""
    validate.positive(epsilon=epsilon)
    runs, law = np.arange(1, len(weights)), np.asarray(weights)[1:]
    likely = 1.0 / (1.0 + math.exp(-epsilon))
    zero = [float(law @ (chance**runs)) for chance in (likely, 1.0 - likely)]
    return math.log(zero[0] / zero[1])


@dataclass(frozen=True)
class SampledStep:
    """One Gaussian step in which a record takes part with `probability`.

    `multiplier` is the noise over one contribution. `kind` is how the datasets differ:
    "remove" (the first has the record), "add" (the second has it) or "replace".
    """

    probability: float
    multiplier: float
    kind: str

    def losses(self) -> tuple[Values, Values]:
        """The privacy losses of its outputs, cell by cell from below, and masses."""
        q, z = self.probability, self.multiplier
        # "add" is mirrored, so that the loss grows with the output in all three.
        low, high = -1.0 - _REACH * z, 1.0 + _REACH * z
        x = np.linspace(low, high, _POINTS)
        first, second = self._laws(q)
        loss = _log_mixture(first, x, z) - _log_mixture(second, x, z)
        cells = np.diff(_cdf(first, x, z))
        return loss[:-1], np.maximum(cells, 0.0)

    def _laws(self, q: float) -> tuple[list[tuple[float, float]], ...]:
        none = [(1.0, 0.0)]
        match self.kind:
            case "remove":
                return [(1.0 - q, 0.0), (q, 1.0)], none
            case "add":
                return none, [(1.0 - q, 0.0), (q, -1.0)]
            case "replace":
                return [(1.0 - q, 0.0), (q, 1.0)], [(1.0 - q, 0.0), (q, -1.0)]
        raise ValueError(f"kind must be remove, add or replace; got {self.kind!r}")


def sampled_epsilon(step: SampledStep, count: int, delta: float) -> float:
    """A lower bound on the epsilon of `count` such steps at `delta`."""
    validate.count(count=count)
    validate.open_probability(delta=delta)
    losses, masses = step.losses()
    mean = float(losses @ masses)
    spread = math.sqrt(max(float((losses - mean) ** 2 @ masses), 1e-30))
    # The window holds all of the sum but a mass far below delta.
    half = 12.0 * spread * math.sqrt(count) + 2.0 * float(np.abs(losses).max())
    grid = max(1e-4 * spread / math.sqrt(count), 2.0 * half / _LARGEST_FFT)
    size = 2 ** math.ceil(math.log2(2.0 * half / grid))
    index = np.floor(losses / grid).astype(np.int64)
    single = np.zeros(size)
    np.add.at(single, index % size, masses)
    sums = np.fft.irfft(np.fft.rfft(single) ** count, size)
    start = round(count * float((index * masses).sum())) - size // 2
    places = start + (np.arange(size) - start) % size
    total = np.maximum(sums, 0.0)
    values = places * grid
    return _largest(lambda e: _delta(values, total, e) > delta + 1e-13, values.max())


def allocated_epsilon(multiplier: float, delta: float) -> float:
    """A lower bound for a record in one of two noisy sums, at random.

    Outputs are told apart by the cell of a grid that they fall into: less than
    everything is seen, so that delta is at most the true one.
    """
    validate.positive(multiplier=multiplier)
    edges = np.linspace(-_REACH, _REACH, 701) * multiplier
    none, there = (np.diff(special.ndtr((edges - at) / multiplier)) for at in (0, 1))
    without = np.outer(none, none).reshape(-1)
    either = 0.5 * (np.outer(there, none) + np.outer(none, there)).reshape(-1)
    seen = (without > 0) & (either > 0)
    losses = np.log(either[seen] / without[seen])
    epsilons = [
        _largest(lambda e: _delta(signed, mass, e) > delta, 60.0)  # noqa: B023
        for signed, mass in ((losses, either[seen]), (-losses, without[seen]))
    ]
    return max(epsilons)


def _cdf(law: list[tuple[float, float]], x: Values, z: float) -> Values:
    parts = [weight * special.ndtr((x - at) / z) for weight, at in law]
    return np.asarray(sum(parts))


def _log_mixture(law: list[tuple[float, float]], x: Values, z: float) -> Values:
    logs = [
        np.log(weight) - 0.5 * ((x - at) / z) ** 2 for weight, at in law if weight > 0.0
    ]
    return np.asarray(special.logsumexp(logs, axis=0))


def _delta(losses: Values, masses: Values, epsilon: float) -> float:
    above = losses > epsilon
    return float(masses[above] @ -np.expm1(epsilon - losses[above]))


def _largest(above: Callable[[float], bool], most: float) -> float:
    """The largest epsilon in [0, most] that is still `above`, from below."""
    low, high = 0.0, most
    if not above(0.0):
        return 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if above(middle) else (low, middle)
    return low
