"""The noise of one deletion: integers on a grid, sized to a shift.

With multiplier z and shift Delta the deviation is sigma >= z (Delta + grid sqrt(d)):
what is noised is first rounded to the grid (`Mode.delete(..., grid=)`), which moves it
by at most grid sqrt(d) / 2 in either world. `mechanisms.gaussian` has the argument why
the sum of grid points is then exactly as private as the continuous mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from demur.core import validate
from demur.core.adjacency import Erasure, Unit
from demur.core.declaration import fingerprint_of
from demur.core.entropy import NoiseKey
from demur.core.rounding import sum_up, up
from demur.mechanisms.gaussian import Gaussian
from demur.unlearning.models.base import Array

_ERASURE = Erasure()
_NAME = "the noise of a deletion"


class NoiseNeed(NamedTuple):
    """Noise of `multiplier` times `shift`, for the records of one person."""

    multiplier: float
    shift: float


@dataclass(frozen=True)
class DrawnNoise:
    """A vector of multiples of `grid`, and the deviation it was drawn with."""

    values: Array
    grid: float
    sigma: float


def mechanism_for(
    needs: Sequence[NoiseNeed],
    dimension: int,
    *,
    unit: Unit = _ERASURE,
    name: str = _NAME,
) -> Gaussian:
    """The least Gaussian noise that meets every need, the cost of its grid included.

    One noise serves several persons, each of whom might be served by less.
    """
    for need in needs:
        validate.positive(shift=need.shift, multiplier=need.multiplier)
    largest = max(need.shift for need in needs)
    sigma = max(up(need.multiplier * need.shift, 2) for need in needs)
    while True:  # The grid depends on sigma by a power of two alone: few rounds.
        mechanism = Gaussian(
            sigma,
            {unit: largest},
            dimension=dimension,
            name=name,
        )
        least = max(
            up(need.multiplier * moved_by(mechanism, need.shift), 4) for need in needs
        )
        if sigma >= least:
            return mechanism
        sigma = least


def deletion_noise(sigma: float, shift: float, dimension: int) -> Gaussian:
    """The noise that `mechanism_for` has made, from its deviation and largest shift."""
    return Gaussian(sigma, {_ERASURE: shift}, dimension=dimension, name=_NAME)


def moved_by(mechanism: Gaussian, shift: float) -> float:
    """The shift, and what rounding to the grid adds to any distance."""
    grid = float(mechanism.grid)
    return sum_up(shift, up(grid * math.sqrt(mechanism.dimension), 2))


def noise_fingerprint(z: float) -> str:
    """What the key of reserved deletions was paid for: noise of at least z."""
    return fingerprint_of("noise of deletions", z)


def draw_noise(
    mechanism: Gaussian, key: NoiseKey, draw: int, *, paid_as: str
) -> DrawnNoise:
    """The noise of the `draw`-th deletion that the key's entry paid for.

    `key` was authorised for that draw of what was paid for, `paid_as`.
    """
    values = mechanism.noise(key, draw=draw, paid_as=paid_as)
    return DrawnNoise(values, float(mechanism.grid), float(mechanism.sigma))
