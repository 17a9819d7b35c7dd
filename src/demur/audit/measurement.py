"""One comparison of two runs: a distance, what is allowed, and the privacy loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from demur.core.recording import Arrays, MechanismUse

Array: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[MechanismUse, MechanismUse]


@dataclass(frozen=True)
class MeasuredLoss:
    """A measured privacy loss: squared mu, and pure epsilon."""

    squared_mu: float = 0.0
    epsilon: float = 0.0

    def __add__(self, other: MeasuredLoss) -> MeasuredLoss:
        return MeasuredLoss(
            self.squared_mu + other.squared_mu, self.epsilon + other.epsilon
        )


@dataclass(frozen=True)
class Measurement:
    """One comparison: `distance` must be a number, and at most `allowed`.

    `counted`: the distance is a number of rows or steps, not a length.
    """

    what: str
    distance: float
    allowed: float
    loss: MeasuredLoss = MeasuredLoss()
    counted: bool = False

    @property
    def within(self) -> bool:
        """Whether the mechanism's declaration covers this pair of inputs."""
        return math.isfinite(self.distance) and self.distance <= self.allowed

    @property
    def share(self) -> float:
        """distance / allowed; 0 for a count that is within its limit."""
        if self.distance == 0.0 or (self.counted and self.within):
            return 0.0
        if not math.isfinite(self.distance) or self.allowed == 0.0:
            return math.inf
        return self.distance / self.allowed


def norm(difference: Array) -> float:
    """The Euclidean norm; infinite if there is a NaN."""
    if not np.isfinite(difference).all():
        return math.inf
    largest = float(np.max(np.abs(difference), initial=0.0))
    if largest == 0.0:
        return 0.0
    # Scaled, so that neither small nor large squares are lost.
    return largest * float(np.linalg.norm(difference / largest))


def _difference(first: Arrays, second: Arrays) -> Array | None:
    if [a.shape for a in first] != [b.shape for b in second]:
        return None
    flat = [
        np.asarray(a, np.float64).reshape(-1) - np.asarray(b, np.float64).reshape(-1)
        for a, b in zip(first, second, strict=True)
    ]
    return np.concatenate(flat)


def input_difference(pair: Pair) -> Array | None:
    """The difference of the inputs as one vector; None where their shapes differ."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _difference(pair[0].value, pair[1].value)
