"""Rate limits: how often something may happen in a minute."""

from __future__ import annotations

import threading
import time

_MINUTE = 60.0
_MANY = 10_000  # names that are remembered, before those that rested are forgotten


class PerMinute:
    """A bucket for each name: `most` at once, refilled within a minute."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # left, and when

    def _left(self, name: str, now: float) -> float:
        left, then = self._buckets.get(name, (float(self._most), now))
        return min(float(self._most), left + (now - then) * self._most / _MINUTE)

    def is_empty(self, name: str) -> bool:
        """Whether this name has to wait."""
        with self._lock:
            return self._left(name, time.monotonic()) < 1.0

    def take(self, name: str) -> bool:
        """Count one more; whether it was allowed."""
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) >= _MANY:
                self._buckets = {
                    other: kept
                    for other, kept in self._buckets.items()
                    if self._left(other, now) < self._most
                }
            left = self._left(name, now)
            self._buckets[name] = (max(0.0, left - 1.0), now)
            return left >= 1.0
