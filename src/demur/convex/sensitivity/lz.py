"""Lipschitz-in-data constants Lz, as quantbayes.ball_dp names and computes them.

They are true (Delta <= Lz r / (lam n)) and loose: at lam = 0.01 and norm bound 1 the
softmax one gives more noise than plain replace-one output perturbation from r = 0.03
on. Nothing in demur calibrates with them; `losses.grad_diff_bound` is what is used.
"""

from __future__ import annotations

import math

from demur.core import validate


def _augmented(B: float, lam: float, include_bias: bool) -> float:
    """Bt^2 = B^2 + 1: the squared norm bound of a row with its bias feature."""
    validate.positive(B=B, lam=lam)
    return B * B + 1.0 if include_bias else float(B * B)


def lz_prototypes_exact() -> float:
    """Lz of |x - mu_y|^2: its gradient is 2 (mu_y - x), so exactly 2."""
    return 2.0


def lz_logistic_binary_bound(
    *, B: float, lam: float, include_bias: bool = True
) -> float:
    """Lz = 1 + Bt^2 / (4 lam): curvature 1/4 and |theta| <= Bt / lam.

    >>> lz_logistic_binary_bound(B=1.0, lam=0.01)
    51.0
    """
    return 1.0 + _augmented(B, lam, include_bias) / (4.0 * lam)


def lz_softmax_linear_bound(
    *, B: float, lam: float, include_bias: bool = True
) -> float:
    """Lz = sqrt(2) (1 + Bt^2 / (2 lam)): curvature 1/2, |theta| <= sqrt(2) Bt / lam."""
    return math.sqrt(2.0) * (1.0 + _augmented(B, lam, include_bias) / (2.0 * lam))


def lz_glm_data_independent_bound(
    *, A: float, L: float, B: float, lam: float, include_bias: bool = True
) -> float:
    """Lz = A (1 + L Bt^2 / lam) for slopes up to A and curvatures up to L."""
    validate.positive(A=A)
    validate.non_negative(L=L)
    return A * (1.0 + L * _augmented(B, lam, include_bias) / lam)


def lz_squared_hinge_bound(*, B: float, lam: float, include_bias: bool = True) -> float:
    """Lz = 2 + 4 Bt sqrt(2 / lam): |theta| <= sqrt(2 / lam)."""
    return 2.0 + 4.0 * math.sqrt(_augmented(B, lam, include_bias) * 2.0 / lam)
