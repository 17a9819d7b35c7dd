"""Drift detection: gradient norms compared with those seen at calibration.

The detector compares the gradient norms of a recent window with those of calibration,
by the statistic of Welch: it flags when their means differ by more than `threshold`
standard errors *and* by more than a share `effect` of the calibrated mean, so that
neither noise nor an irrelevant difference raises an alarm.

What the window holds depends on its records. A deletion empties it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from demur.core import validate


class DriftDetector:
    """A window of gradient norms against those seen at calibration.

    >>> detector = DriftDetector(window=50)
    >>> detector.start([1.0, 1.1, 0.9] * 20)
    >>> any(detector.update(1.0 + 0.1 * (i % 2)) for i in range(200))
    False
    >>> any(detector.update(1.7) for i in range(200))
    True
    """

    def __init__(
        self, window: int = 200, *, threshold: float = 6.0, effect: float = 0.3
    ) -> None:
        validate.count(window=window)
        validate.positive(threshold=threshold, effect=effect)
        if window < 2:
            raise ValueError(f"window must be at least 2; got {window}")
        self.window = int(window)
        self.threshold = float(threshold)
        self.effect = float(effect)
        self._recent: deque[float] = deque(maxlen=self.window)
        self._mean: float | None = None
        self._error = 0.0
        self._sum = self._squares = 0.0
        self._since = 0

    def start(self, norms: Iterable[float]) -> None:
        """Compare with these from now on; with fewer than 2 it never flags."""
        reference = np.asarray(list(norms), dtype=np.float64)
        self.forget()
        if len(reference) < 2:
            self._mean = None
            return
        self._mean = float(reference.mean())
        self._error = float(reference.var(ddof=1)) / len(reference)

    def update(self, norm: float) -> bool:
        """Note one norm; True if the full window has drifted."""
        norm = float(norm)
        if not math.isfinite(norm):
            raise ValueError(f"norm must be finite; got {norm}")
        if len(self._recent) == self.window:
            oldest = self._recent[0]
            self._sum -= oldest
            self._squares -= oldest * oldest
        self._recent.append(norm)
        self._sum += norm
        self._squares += norm * norm
        self._since += 1
        if self._since >= self.window:  # rounding errors do not pile up
            self._count_anew()
        if self._mean is None or len(self._recent) < self.window:
            return False
        mean = self._sum / self.window
        spread = max(self._squares - self._sum * mean, 0.0) / (self.window - 1)
        gap = abs(mean - self._mean)
        error = math.sqrt(self._error + spread / self.window)
        return gap > self.effect * self._mean and gap > self.threshold * error

    def _count_anew(self) -> None:
        self._sum = math.fsum(self._recent)
        self._squares = math.fsum(norm * norm for norm in self._recent)
        self._since = 0

    def recent(self) -> tuple[float, ...]:
        """The window, oldest first."""
        return tuple(self._recent)

    def forget(self) -> None:
        """Empty the window: a deleted record may be in it."""
        self._recent.clear()
        self._count_anew()
