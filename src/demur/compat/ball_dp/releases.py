"""How every release of this package leaves: priced, recorded, then drawn.

The original adds NumPy noise to the parameters. Here the same call declares its
sensitivity as a curve over the radius, charges a ledger (one of its own in memory,
where none is given) and draws from the operating system on an integer grid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.release import head_ledger
from demur.core import validate
from demur.core.accounting import calibrate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource
from demur.core.entropy import OsEntropy, Seeded, Source
from demur.core.entry import Entry
from demur.core.rounding import up
from demur.core.sensitivity import Sensitivity
from demur.ledger import Ledger
from demur.mechanisms.gaussian import Gaussian

logger = logging.getLogger(__name__)

SigmaMethod: TypeAlias = Literal["classic", "analytic"]
Rng: TypeAlias = np.random.Generator | np.random.RandomState | Source | int | None

UNPROTECTED = ("labels", "class counts", "the number of records")

# Radii that were computed from data in this process. A caller writes `r=float(r)`, so
# the number itself is all there is to recognise them by. A declared radius that equals
# one of them to the last bit is marked too: the harmless way to be wrong.
_ESTIMATED_RADII: set[float] = set()


def remember_estimated(radii: Iterable[float]) -> None:
    """Note radii that were computed from data."""
    _ESTIMATED_RADII.update(float(r) for r in radii)


def was_estimated(r: float) -> bool:
    """Whether this very number was computed from data in this process."""
    return float(r) in _ESTIMATED_RADII


def source_of(rng: Rng) -> Source:
    """Where the noise comes from: the operating system, or a `Seeded` test source.

    Generators and seeds are accepted and ignored: noise that a seed repeats hides
    nothing. With `demur.Seeded(n)` noise can be repeated, and is stamped NOT PRIVATE.
    """
    if rng is None:
        return OsEntropy()
    if isinstance(rng, OsEntropy | Seeded):
        return rng
    if isinstance(rng, np.random.Generator | np.random.RandomState | int):
        logger.info(
            "rng is ignored: the noise of a release comes from the operating system."
            " For a repeatable test pass demur.Seeded(...); the result is NOT PRIVATE."
        )
        return OsEntropy()
    raise TypeError(
        "rng must be None, a NumPy generator, a seed (both are ignored) or"
        f" demur.Seeded(...); got {type(rng).__name__}. Nothing was spent."
    )


@dataclass(frozen=True)
class Recorded:
    """A noisy vector, the noise on it, and the entry that paid."""

    values: NDArray[np.float64]
    moved: float
    sigma: float
    entry: Entry
    conditional: tuple[str, ...]

    def marks(self) -> dict[str, Any]:
        """What our results carry beside the original's keys, as plain data."""
        return {
            "private": self.entry.private,
            "conditional": list(self.conditional),
            "statement": self.entry.statement(),
        }


def release_vector(
    values: ArrayLike,
    sensitivity: Sensitivity,
    *,
    r: float,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod,
    rng: Rng,
    ledger: Ledger | None,
    space: str,
    label: str,
    name: str,
    bounds: tuple[Bound, ...] = (),
    conditional: tuple[str, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> Recorded:
    """Check, calibrate to (eps, delta) at Ball(r, space), charge, draw."""
    validate.positive(r=r, eps=eps)
    validate.open_probability(delta=delta)
    vector = np.array(values, dtype=np.float64).reshape(-1)
    unit = Ball(r, space=space)
    source = source_of(rng)
    if was_estimated(r):
        conditional = (*conditional, "the radius, which was estimated from the data")
        bounds = (*bounds, Bound(float(r), BoundSource.ESTIMATED, "radius of the ball"))
    marks = tuple(f"nothing is lost through {text}" for text in conditional)
    fine_print: dict[str, Any] = {
        "name": name,
        "bounds": bounds,
        "unprotected": UNPROTECTED,
        "assumptions": (*assumptions, *marks),
    }
    moved = sensitivity.at(unit)
    if sigma_method == "analytic":
        mechanism = Gaussian.calibrated(
            epsilon=eps,
            delta=delta,
            sensitivity=sensitivity,
            unit=unit,
            dimension=max(vector.size, 1),
            **fine_print,
        )
    elif sigma_method == "classic":
        sigma = calibrate.gaussian_sigma(eps, delta, moved, method="classic")
        mechanism = Gaussian(
            up(sigma), sensitivity, dimension=max(vector.size, 1), **fine_print
        )
    else:
        raise ValueError(
            f"sigma_method must be 'analytic' or 'classic'; got {sigma_method!r}."
            " Nothing was spent."
        )
    ledger = head_ledger(ledger, radius=r, space=space, epsilon=eps, delta=delta)
    release = mechanism.release(vector, ledger=ledger, label=label, source=source)
    sigma = float(np.max(mechanism.sigma))
    return Recorded(release.value, moved, sigma, release.entry, conditional)
