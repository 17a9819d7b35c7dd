"""What the odometer is sized by, and how many deletions that allows.

Two sources. A sound mode *enforces* its constants (norm bound, clipped residual,
projection), and they depend on no record: capacity and noise then tell nothing of
anyone. Estimated constants come from calibration; they are the seed's way, and whoever
is in the calibration records cannot be deleted under them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from demur.core import validate
from demur.unlearning.models.base import Mode, Theorem
from demur.unlearning.models.logistic import Logistic
from demur.unlearning.models.ogd import OGD
from demur.unlearning.pricing import capacity


@dataclass(frozen=True)
class Sizing:
    """Constants at the moment of finalisation.

    `descent` is (lambda, radius, t0) of strongly convex descent, where that is what
    learns. `enforced` says whether the constants hold by construction.
    """

    G: float
    D: float
    c: float
    C: float
    dim: int
    shift: float
    noised: Literal["state", "output"] = "state"
    exact: bool = False
    enforced: bool = False
    descent: tuple[float, float, float] | None = None
    theorem: Theorem | None = None
    mode: str = "a deletion"


def from_stats(stats: Mapping[str, float], lambda_: float) -> Sizing:
    """Estimated constants alone: the shift is the trivial L / lambda."""
    missing = [key for key in ("G", "D", "c", "C") if key not in stats]
    if missing:
        raise ValueError(
            f"stats must hold G, D, c and C, as finalize_calibration returns them;"
            f" {', '.join(missing)} is missing. Nothing was spent."
        )
    G, D, c, C = (stats[key] for key in ("G", "D", "c", "C"))
    validate.non_negative(G=G, D=D)
    validate.positive(c=c, C=C)
    return Sizing(float(G), float(D), float(c), float(C), 1, float(G) / lambda_)


def from_mode(mode: Mode, stats: Mapping[str, float], lambda_: float) -> Sizing:
    """What the mode enforces; what it does not, from the stats."""
    estimated = replace(
        from_stats(stats, lambda_),
        dim=mode.dim,
        exact=mode.exact,
        noised=mode.publishes,
        theorem=mode.theorem,
        mode=mode.name,
    )
    if mode.exact:
        return replace(estimated, shift=0.0, enforced=True)
    if not mode.theorem.scopes:  # the seed: no theorem, and nothing is enforced
        return estimated
    bounded = replace(estimated, c=1.0, C=1.0, shift=mode.shift_bound())
    if isinstance(mode, OGD):
        # Steps and noise are projected onto the ball, so |w - u| <= its diameter.
        return replace(
            bounded,
            G=mode.gradient_bound,
            D=2.0 * mode.radius,
            descent=(mode.lambda_, mode.radius, mode.t0),
            enforced=True,
        )
    if isinstance(mode, Logistic):
        # |l'| <= 1; the noise of a published copy needs no diameter.
        return replace(bounded, G=mode.norm_bound, enforced=True)
    return bounded  # the shift is the mode's, the number of deletions is estimated


def average_regret(sizing: Sizing, m: int, z: float, T: int, delta_B: float) -> float:
    """(R_ins + R_del(m)) / T under constants that add up; for `output` R_del alone.

    A published copy's noise does not touch the learner: what it costs is its own.
    """
    if sizing.exact:
        return 0.0
    if sizing.noised == "output":
        lost = capacity.output_regret(
            m, z, G=sizing.G, shift=sizing.shift, dim=sizing.dim, T=T, delta_B=delta_B
        )
        return lost / T
    return (
        insertion_regret(sizing, T)
        + capacity.deletion_regret(
            m,
            z,
            G=sizing.G,
            D=sizing.D,
            shift=sizing.shift,
            dim=sizing.dim,
            delta_B=delta_B,
        )
    ) / T


def insertion_regret(sizing: Sizing, T: int) -> float:
    """R_ins over T rounds."""
    if sizing.descent is None:
        return capacity.insertion_regret(sizing.G, sizing.D, T, c=sizing.c, C=sizing.C)
    lambda_, radius, t0 = sizing.descent
    return capacity.strongly_convex_regret(
        sizing.G, sizing.D, T, lambda_=lambda_, radius=radius, t0=t0
    )
