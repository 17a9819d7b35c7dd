"""`Calibrator`: constants of a stream, estimated from its first records, and N*.

G is a quantile of gradient norms, D the largest distance from the first parameters, c
and C bound the curvature matrix. They are *estimates from the data*: they plan (N*),
and in `formula="seed"` they also size the noise, as the seed does. The sound modes
size their noise by what they enforce, and never by these.

`formula="consistent"` has N* = ceil((G D sqrt(C / c) / gamma)^2), the number of rounds
after which descent in the norm of a fixed B has average regret gamma. The seed writes
sqrt(c C), which has units: rescaling the features changes it at will. Both agree at
c = C = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate

Formula: TypeAlias = Literal["seed", "consistent"]
FORMULAS: tuple[Formula, ...] = ("seed", "consistent")

# Fewer observations than this give no estimate: G = D = c = C = 1 then.
FEWEST_POINTS = 2
LARGEST_N_STAR = 1_000_000


class HasCurvature(Protocol):
    """A model that may know the spectrum of its curvature matrix."""

    def lbfgs_bounds(self) -> tuple[float, float]:
        """(c, C)."""
        ...


@dataclass(frozen=True)
class CalibStats(Mapping[str, float]):
    """The estimated constants; also readable by the seed's keys, as in stats["G"]."""

    G: float
    D: float
    c: float
    C: float
    N_star: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Self:
        """Stats from a plain dict; those that are missing or impossible are refused."""
        require_keys(stats, *(field.name for field in fields(cls)))
        G, D, c, C = (stats[key] for key in ("G", "D", "c", "C"))
        validate.non_negative(G=G, D=D)
        validate.positive(c=c, C=C)
        validate.count(N_star=stats["N_star"])
        return cls(float(G), float(D), float(c), float(C), int(stats["N_star"]))

    def __getitem__(self, key: str) -> float:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return any(field.name == key for field in fields(self))

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


class Calibrator:
    """Collects gradient norms and parameters, and turns them into constants.

    >>> calibrator = Calibrator()
    >>> for step in range(1, 101):
    ...     calibrator.observe([0.5, 0.0], [0.02 * step, 0.0])
    >>> stats = calibrator.finalize(0.1)
    >>> stats.G, round(stats.D, 2), stats.N_star
    (0.5, 1.98, 99)
    """

    def __init__(
        self,
        quantile: float = 0.95,
        D_cap: float = 10.0,
        *,
        G_cap: float = 100.0,
        formula: Formula = "consistent",
    ) -> None:
        validate.probability(quantile=quantile)
        validate.positive(D_cap=D_cap, G_cap=G_cap)
        self.quantile = float(quantile)
        self.D_cap = float(D_cap)
        self.G_cap = float(G_cap)
        self.formula = checked_formula(formula)
        self.grad_norms: list[float] = []
        self.thetas: list[NDArray[np.float64]] = []
        self.c_hat: float | None = None
        self.C_hat: float | None = None

    def observe(self, grad: ArrayLike, theta: ArrayLike) -> None:
        """Note one gradient (its norm, at most G_cap) and the parameters after it."""
        gradient = np.asarray(grad, dtype=np.float64)
        parameters = np.array(theta, dtype=np.float64)
        if not (np.isfinite(gradient).all() and np.isfinite(parameters).all()):
            raise ValueError("grad and theta must be finite; nothing was noted")
        if self.thetas and parameters.shape != self.thetas[0].shape:
            raise ValueError(
                f"theta must have shape {self.thetas[0].shape}, as before; got"
                f" {parameters.shape}. Nothing was noted."
            )
        self.grad_norms.append(min(float(np.linalg.norm(gradient)), self.G_cap))
        self.thetas.append(parameters)

    @property
    def observations(self) -> int:
        """The number of observations."""
        return len(self.grad_norms)

    def forget_from(self, index: int) -> None:
        """Drop observation `index` and all later ones.

        What came before a record does not depend on it; every later gradient and
        parameter does. So what may be kept after its deletion is the part before it.
        """
        del self.grad_norms[index:]
        del self.thetas[index:]

    def estimate_bounds(self, model: object = None) -> tuple[float, float]:
        """(c, C) of the model's curvature matrix; (1, 1) where it has none."""
        bounds = getattr(model, "lbfgs_bounds", None)
        if bounds is None:
            return 1.0, 1.0
        c, C = bounds()
        if not 0.0 < c <= C < math.inf:
            return 1.0, 1.0
        return float(c), float(C)

    def finalize(self, gamma: float, model: object = None) -> CalibStats:
        """The constants, and N* for average regret `gamma`: 1 .. 1,000,000.

        With fewer than 2 observations G = D = c = C = 1 stand in. Extreme gradients
        are cut at the quantile and at G_cap, and D at D_cap.
        """
        validate.positive(gamma=gamma)
        if self.observations < FEWEST_POINTS:
            G = D = c = C = 1.0
        else:
            G = float(np.quantile(self.grad_norms, self.quantile))
            moved = np.stack(self.thetas) - self.thetas[0]
            D = min(float(np.linalg.norm(moved, axis=1).max()), self.D_cap)
            c, C = self.estimate_bounds(model)
        self.c_hat, self.C_hat = c, C
        return CalibStats(G, D, c, C, self.sample_complexity(G, D, c, C, gamma))

    def sample_complexity(
        self, G: float, D: float, c: float, C: float, gamma: float
    ) -> int:
        """N* for given constants."""
        root = math.sqrt(c * C) if self.formula == "seed" else math.sqrt(C / c)
        rounds = G * D * root / gamma
        if not rounds < math.sqrt(LARGEST_N_STAR):
            return LARGEST_N_STAR
        return max(1, math.ceil(rounds**2))

    def to_dict(self) -> dict[str, Any]:
        """The settings, for a log."""
        return {"quantile": self.quantile, "D_cap": self.D_cap, "G_cap": self.G_cap}


def require_keys(stats: Mapping[str, Any], *keys: str) -> None:
    """Refuse stats that lack one of these."""
    missing = [key for key in keys if key not in stats]
    if missing:
        raise ValueError(
            f"stats must hold {', '.join(keys)}, as finalize_calibration returns them;"
            f" {', '.join(missing)} is missing. Nothing was spent."
        )


def checked_formula(formula: str) -> Formula:
    """The formula's name, or a clear error."""
    for known in FORMULAS:
        if formula == known:
            return known
    raise ValueError(f"formula must be 'seed' or 'consistent'; got {formula!r}")
