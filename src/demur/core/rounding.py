"""Floating-point results moved to the private side.

One float64 operation is off by at most half an ulp, so its exact result lies below
`up(x)` and above `down(x)`. Sums over a book are kept exact instead (`Fraction`).
"""

import math


def up(value: float, ulps: int = 1) -> float:
    """The float `ulps` steps above `value` (towards +inf)."""
    for _ in range(ulps):
        value = math.nextafter(value, math.inf)
    return value


def down(value: float, ulps: int = 1) -> float:
    """The float `ulps` steps below `value` (towards -inf)."""
    for _ in range(ulps):
        value = math.nextafter(value, -math.inf)
    return value
