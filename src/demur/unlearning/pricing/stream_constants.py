"""The constants that size an odometer, enforced by the mode or estimated from data.

A sound mode *enforces* its constants (norm bound, clipped residual, projection). They
depend on no record, so that capacity and noise reveal nothing about anyone. Estimated
constants come from calibration, as in the seed; under them the records of calibration
cannot be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from demur.core import validate
from demur.unlearning.models.base import Mode, Theorem
from demur.unlearning.models.logistic import Logistic
from demur.unlearning.models.ogd import OGD
from demur.unlearning.pricing import regret
from demur.unlearning.pricing.calibrator import require_keys


@dataclass(frozen=True)
class StreamConstants:
    """The constants of a stream when its odometer is finalised.

    `descent` is (lambda, radius, t0) of strongly convex descent, for modes that learn
    by it. `enforced` says whether the constants hold by construction.
    """

    G: float
    D: float
    c: float
    C: float
    dimension: int
    shift: float
    noised: Literal["state", "output"] = "state"
    exact: bool = False
    enforced: bool = False
    descent: tuple[float, float, float] | None = None
    theorem: Theorem | None = None
    mode: str = "a deletion"


def constants_from_stats(stats: Mapping[str, float], lam: float) -> StreamConstants:
    """Estimated constants alone: the shift is the trivial L / lambda."""
    require_keys(stats, "G", "D", "c", "C")
    G, D, c, C = (stats[key] for key in ("G", "D", "c", "C"))
    validate.non_negative(G=G, D=D)
    validate.positive(c=c, C=C)
    return StreamConstants(float(G), float(D), float(c), float(C), 1, float(G) / lam)


def constants_from_mode(
    mode: Mode, stats: Mapping[str, float], lam: float
) -> StreamConstants:
    """The constants that the mode enforces; the others from the stats."""
    estimated = replace(
        constants_from_stats(stats, lam),
        dimension=mode.size,
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
            descent=(mode.lam, mode.radius, mode.t0),
            enforced=True,
        )
    if isinstance(mode, Logistic):
        # The noise of a published copy needs no diameter.
        return replace(bounded, G=mode.gradient_bound, enforced=True)
    return bounded  # the shift is the mode's, the number of deletions is estimated


def average_regret(
    constants: StreamConstants, m: int, z: float, T: int, delta_B: float
) -> float:
    """(R_ins + R_del(m)) / T; for modes that publish an output R_del / T alone.

    The noise of a published copy does not touch the learner.
    """
    if constants.exact:
        return 0.0
    if constants.noised == "output":
        lost = regret.output_regret(
            m,
            z,
            G=constants.G,
            shift=constants.shift,
            dimension=constants.dimension,
            T=T,
            delta_B=delta_B,
        )
        return lost / T
    return (
        insertion_regret(constants, T)
        + regret.deletion_regret(
            m,
            z,
            G=constants.G,
            D=constants.D,
            shift=constants.shift,
            dimension=constants.dimension,
            delta_B=delta_B,
        )
    ) / T


def insertion_regret(constants: StreamConstants, T: int) -> float:
    """R_ins over T rounds."""
    if constants.descent is None:
        return regret.fixed_curvature_regret(
            constants.G, constants.D, T, c=constants.c, C=constants.C
        )
    lam, radius, t0 = constants.descent
    return regret.strongly_convex_regret(
        constants.G, constants.D, T, lam=lam, radius=radius, t0=t0
    )
