"""The noise of one deletion: integers on a grid, sized to a shift.

With multiplier z and shift Delta the deviation is sigma >= z (Delta + grid sqrt(d)):
what is noised is first rounded to the grid (`Mode.delete(..., grid=)`), which moves it
by at most grid sqrt(d) / 2 in either world. `mechanisms.gaussian` has the argument why
the sum of grid points is then exactly as private as the continuous mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass

from demur.core import validate
from demur.core.accounting import events
from demur.core.adjacency import Erasure
from demur.core.declaration import fingerprint_of
from demur.core.entropy import NoiseKey
from demur.core.rounding import product_up, up
from demur.mechanisms.gaussian import Gaussian
from demur.unlearning.models.base import Array

# The grid costs at most 1e-4 of the sensitivity, and 2^-20 of it for any usual z.
_FIRST_GUESS = 1.0 + 2.0**-19


@dataclass(frozen=True)
class DrawnNoise:
    """A vector of multiples of `grid`, and the deviation it was drawn with."""

    values: Array
    grid: float
    sigma: float


def mechanism_for(shift: float, z: float, dim: int) -> Gaussian:
    """The Gaussian whose multiplier at `shift`, the grid's cost in, is at least z."""
    validate.positive(shift=shift, z=z)
    sigma = product_up(z, shift * _FIRST_GUESS)
    for _ in range(100):
        found = Gaussian(
            sigma, {Erasure(): shift}, dimension=dim, name="the noise of a deletion"
        )
        event = found.event(Erasure())
        assert isinstance(event, events.Gaussian)
        if event.multiplier >= z:
            return found
        sigma = max(up(sigma), product_up(sigma, z / event.multiplier))
    raise ValueError(
        f"no noise of multiplier {z:g} in {dim} dimensions; nothing was spent"
    )


def noise_fingerprint(z: float) -> str:
    """What the key of reserved deletions was paid for: noise of multiplier z."""
    return fingerprint_of("noise of deletions", z)


def draw_noise(mechanism: Gaussian, key: NoiseKey, draw: int) -> DrawnNoise:
    """The noise of the `draw`-th deletion that the key's entry paid for."""
    values = mechanism.noise(key, draw=draw)
    return DrawnNoise(values, float(mechanism.grid), float(mechanism.sigma))
