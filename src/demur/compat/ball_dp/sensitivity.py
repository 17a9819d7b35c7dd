"""The L2 sensitivity of a regularised minimiser, Lz r / (lam n)."""

from __future__ import annotations

from dataclasses import dataclass

from demur.core import validate


@dataclass(frozen=True)
class ERMSensitivity:
    """A sensitivity and what it was computed from."""

    delta_l2: float
    lz: float
    r: float
    lam: float
    n: int


def erm_sensitivity_l2(*, lz: float, r: float, lam: float, n: int) -> ERMSensitivity:
    """Lz r / (lam n): how far the exact minimiser moves when one record moves by r.

    It holds for records of the same label, a convex differentiable loss, and an
    L2 penalty lam/2 on *every* coordinate, the bias included.

    >>> erm_sensitivity_l2(lz=2.0, r=0.5, lam=0.1, n=100).delta_l2
    0.1
    """
    validate.positive(lz=lz, lam=lam)
    validate.non_negative(r=r)
    validate.count(n=n)
    moved = float(lz) * float(r) / (float(lam) * int(n))
    return ERMSensitivity(moved, float(lz), float(r), float(lam), int(n))
