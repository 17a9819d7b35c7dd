"""Secrets without distinctive numbers: bits, categories, counts.

A single 0 or 1 occurs everywhere; a whole vector of them does not. From 64 values on,
not all of them equal, the vector is searched for as a whole: as an array or a list of
that length, as bytes in the usual widths, and as a run of digits in text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 64
_WIDTHS = ("?", "u1", "<i4", "<i8", "<f4", "<f8")


@dataclass(frozen=True)
class DiscreteSecret:
    """A vector that must not be released, compared as a whole."""

    name: str
    whole: NDArray[np.float64]

    @classmethod
    def of(cls, name: str, value: Any) -> DiscreteSecret:
        """The secret; a ValueError if it is too short to be recognised."""
        array = np.asarray(value)
        if array.dtype.kind not in "iub" or array.size < LEAST or np.ptp(array) == 0:
            raise ValueError(
                f"{name} cannot be recognised: give data with more digits, or at least"
                f" {LEAST} whole numbers that are not all equal"
            )
        return cls(name, array.astype(np.float64).reshape(-1))

    def in_numbers(self, numbers: NDArray[np.float64]) -> bool:
        """Whether `numbers` are this vector."""
        flat = np.asarray(numbers).reshape(-1)
        return flat.size == self.whole.size and bool((flat == self.whole).all())

    def in_bytes(self, data: bytes) -> bool:
        """Whether the vector is stored in `data`, in one of the usual widths."""
        return any(self.whole.astype(width).tobytes() in data for width in _WIDTHS)

    def in_text(self, text: str) -> bool:
        """Whether the vector is printed in `text`, whatever stands between."""
        digits = "".join(str(int(x)) for x in self.whole)
        return digits in re.sub(r"[^0-9]", "", text)


def whole_numbers(item: Any) -> NDArray[np.float64] | None:
    """The whole numbers of an array or of a flat list; None for anything else."""
    if isinstance(item, list | tuple):
        if len(item) < LEAST or not all(isinstance(x, int | float) for x in item):
            return None
        return np.asarray([float(x) for x in item])
    if not isinstance(item, np.ndarray) or item.dtype.kind not in "iub":
        return None
    return item.astype(np.float64)
