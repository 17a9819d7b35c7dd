"""`memory_pair.src.calibrator`: N* by the original's formula, stats as a dict."""

from __future__ import annotations

from typing import Any

import numpy as np

from demur.unlearning.pricing import calibrator
from demur.unlearning.pricing.calibrator import CalibStats


class Calibrator:
    """Collects gradients and parameters; `finalize` gives G, D, c, C and N_star."""

    def __init__(self, quantile: float = 0.95, D_cap: float = 10.0) -> None:
        self._inner = calibrator.Calibrator(quantile, D_cap, formula="seed")
        self._gamma: float | None = None  # of the latest finalize

    @property
    def quantile(self) -> float:
        """Which quantile of the gradient norms is G."""
        return self._inner.quantile

    @property
    def D_cap(self) -> float:
        """The largest D."""
        return self._inner.D_cap

    @property
    def grad_norms(self) -> list[float]:
        """The norms seen so far."""
        return self._inner.grad_norms

    @property
    def thetas(self) -> list[Any]:
        """The parameters seen so far."""
        return list(self._inner.thetas)

    @property
    def c_hat(self) -> float | None:
        """The smallest curvature, after `finalize`."""
        return self._inner.c_hat

    @property
    def C_hat(self) -> float | None:
        """The largest curvature, after `finalize`."""
        return self._inner.C_hat

    def observe(self, grad: np.ndarray[Any, Any], theta: np.ndarray[Any, Any]) -> None:
        """Note one gradient and the parameters after it."""
        self._inner.observe(grad, theta)

    def estimate_bounds(self, model: Any) -> tuple[float, float]:
        """(c, C) from model.lbfgs_bounds(), or (1, 1)."""
        return self._inner.estimate_bounds(model)

    def finalize(self, gamma: float, model: Any) -> dict[str, Any]:
        """N* = ceil((G D sqrt(c C) / gamma)^2) and the constants, by name."""
        stats = as_dict(self._inner.finalize(gamma, model))
        self._gamma = float(gamma)
        return stats


def as_dict(stats: CalibStats) -> dict[str, Any]:
    """The stats under the original's keys."""
    return dict(stats)
