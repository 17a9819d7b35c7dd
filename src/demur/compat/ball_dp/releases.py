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
_ON_THE_RADIUS = "the radius is public (conditional: it was estimated from the data)"

# Radii that were computed from data in this process. A caller writes `r=float(r)`, so
# they can be recognised by the number alone. A declared radius that equals one of them
# to the last bit counts as estimated too, which is harmless.
_ESTIMATED_RADII: set[float] = set()


class EstimatedRadius(float):
    """A radius that was read off data, and so is every number computed from it.

    The number itself, its float32 version and its texts of three digits and more are
    remembered: `float(r)`, `np.float32(r)` and `float(f"{r:.4f}")` are estimated too.
    """

    def __new__(cls, value: Any) -> EstimatedRadius:
        """The number, remembered as estimated."""
        made = super().__new__(cls, value)
        number = float.__float__(made)
        _ESTIMATED_RADII.update({number, float(np.float32(number))})
        _ESTIMATED_RADII.update(float(f"{number:.{k}f}") for k in range(3, 8))
        _ESTIMATED_RADII.update(float(f"{number:.{k}g}") for k in range(3, 8))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (float(self),)

    def __add__(self, other: Any) -> Any:
        return _derived(float.__add__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _derived(float.__sub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return _derived(float.__mul__(self, other))

    def __truediv__(self, other: Any) -> Any:
        return _derived(float.__truediv__(self, other))

    def __pow__(self, other: Any, mod: None = None) -> Any:
        return _derived(float.__pow__(self, other))

    def __rsub__(self, other: Any) -> Any:
        return _derived(float.__rsub__(self, other))

    def __rtruediv__(self, other: Any) -> Any:
        return _derived(float.__rtruediv__(self, other))

    def __round__(self, digits: Any = None) -> Any:
        return _derived(float.__round__(self, digits))

    def __abs__(self) -> Any:
        return _derived(float.__abs__(self))

    __radd__, __rmul__ = __add__, __mul__


def _derived(value: Any) -> Any:
    return EstimatedRadius(value) if isinstance(value, float) else value


def was_estimated(r: float) -> bool:
    """Whether this number was computed from data in this process."""
    return isinstance(r, EstimatedRadius) or float(r) in _ESTIMATED_RADII


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
    if was_estimated(options.r):
        conditional = (*conditional, _ON_THE_RADIUS)
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
