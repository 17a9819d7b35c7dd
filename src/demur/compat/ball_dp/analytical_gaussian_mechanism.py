"""Exact calibration of Gaussian noise."""

from __future__ import annotations

from demur.core import validate
from demur.core.accounting.gaussian import gaussian_sigma


def calibrate_analytic_gaussian(
    *, epsilon: float, delta: float, GS: float, tol: float = 1e-12
) -> float:
    """The smallest sigma that is (epsilon, delta)-private at sensitivity GS.

    `tol` is accepted and unused: the answer is the closest float on the private side.

    >>> round(calibrate_analytic_gaussian(epsilon=1.0, delta=1e-6, GS=1.0), 6)
    4.224679
    """
    validate.positive(tol=tol)
    return gaussian_sigma(epsilon, delta, GS, method="analytic")
