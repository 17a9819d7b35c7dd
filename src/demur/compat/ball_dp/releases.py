"""The release of a vector with Gaussian noise, for every function of this package.

The original adds NumPy noise to the parameters. Here the same call declares its
sensitivity as a curve over the radius, charges a ledger (one in memory, where none is
given) and draws from the operating system on an integer grid.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.release import FIXED_IN_ADVANCE, head_ledger
from demur.convex.sensitivity import radius_origin
from demur.core import validate
from demur.core.accounting.gaussian import gaussian_sigma
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource
from demur.core.entropy import OsEntropy, Seeded, Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.core.rounding import up
from demur.core.sensitivity import Sensitivity
from demur.ledger import Ledger
from demur.mechanisms.gaussian import Gaussian

logger = logging.getLogger(__name__)

SigmaMethod: TypeAlias = Literal["classic", "analytic"]
Rng: TypeAlias = np.random.Generator | np.random.RandomState | Source | int | None

UNPROTECTED = ("labels", "class counts", "the number of records")
ON_ROUNDING = (
    "rounding the parameters to less than float64 reveals nothing more (conditional:"
    " the sensitivity does not include it)"
)


def source_of(rng: Rng) -> Source:
    """The source of noise: the operating system, or a `Seeded` source for tests.

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
class ReleaseOptions:
    """How a vector is released: the original's numbers, and where it is charged."""

    r: float
    eps: float
    delta: float
    sigma_method: SigmaMethod
    source: Source
    ledger: Ledger | None
    space: str
    label: str

    def __post_init__(self) -> None:
        validate.positive(r=self.r, eps=self.eps)
        validate.open_probability(delta=self.delta)
        if self.sigma_method not in ("analytic", "classic"):
            raise ValueError(
                "sigma_method must be 'analytic' or 'classic'; got"
                f" {self.sigma_method!r}. Nothing was spent."
            )

    @property
    def unit(self) -> Ball:
        """The ball of radius r."""
        return Ball(self.r, space=self.space)


@dataclass(frozen=True)
class Recorded:
    """A noisy vector, the noise on it, and the entry that paid."""

    values: NDArray[np.float64]
    moved: float
    sigma: float
    entry: Entry
    conditional: tuple[str, ...]

    def report(self, options: ReleaseOptions, **more: float) -> dict[str, Any]:
        """The keys of the original's results, and three of ours, as plain data."""
        return {
            "Delta": self.moved,
            "sigma": self.sigma,
            "eps": float(options.eps),
            "delta": float(options.delta),
            "sigma_method": str(options.sigma_method),
            "r": float(options.r),
            **more,
            "private": self.entry.private,
            "conditional": list(self.conditional),
            "statement": self.entry.statement(),
        }


def release_vector(
    values: ArrayLike,
    sensitivity: Sensitivity,
    options: ReleaseOptions,
    *,
    name: str,
    bounds: tuple[Bound, ...] = (),
    conditional: tuple[str, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> Recorded:
    """The vector with noise for (eps, delta) at the options' ball, charged first.

    `assumptions` and `conditional` are clauses: the statement assumes both, and the
    result lists the second.
    """
    vector = np.array(values, dtype=np.float64).reshape(-1)
    promise = Promise(options.unit, options.eps, options.delta)
    origin = radius_origin.conditions(options.r)
    if not radius_origin.was_estimated(options.r):
        assumptions = (*assumptions, *origin)
    else:
        conditional = (*conditional, *origin)
        radius = Bound(float(options.r), BoundSource.ESTIMATED, "radius of the ball")
        bounds = (*bounds, radius)
    fine_print: dict[str, Any] = {
        "name": name,
        "dimension": max(vector.size, 1),
        "bounds": bounds,
        "unprotected": UNPROTECTED,
        "assumptions": (FIXED_IN_ADVANCE, *assumptions, *conditional),
    }
    moved = sensitivity.at(promise.unit)
    if options.sigma_method == "analytic":
        mechanism = Gaussian.calibrated(
            epsilon=promise.epsilon,
            delta=promise.delta,
            sensitivity=sensitivity,
            unit=promise.unit,
            **fine_print,
        )
    else:
        sigma = gaussian_sigma(promise.epsilon, promise.delta, moved, method="classic")
        mechanism = Gaussian(up(sigma), sensitivity, **fine_print)
    release = mechanism.release(
        vector,
        ledger=head_ledger(options.ledger, promise),
        label=options.label,
        source=options.source,
    )
    sigma = float(np.max(mechanism.sigma))
    return Recorded(release.value, moved, sigma, release.entry, conditional)
