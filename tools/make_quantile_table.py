"""Make, or check bit for bit, the table of `demur.mechanisms.sampling.normal_quantile`.

    python tools/make_quantile_table.py            # write it, print the certificate
    python tools/make_quantile_table.py --check    # regenerate and compare every bit

Row (j, i) covers 2^j + i 2^(j-7) <= k < 2^j + (i+1) 2^(j-7), that is tail probabilities
p = (k + U) / 2^64, on which v runs from -1 to 1. Its eight float64 are

    hi, c0, c1, ..., c6    with  Q^-1(p) = hi + (c0 + c1 v + ... + c6 v^6)  + remainder

where hi is a multiple of 2^-22 (so that it has at most 26 bits) and the polynomial is
the one through the seven Chebyshev nodes, worked out with 60 digits. The roundings to
float64 are the only ones that count; `certificate` bounds what they, the remainder and
the evaluation can do, for every row.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

FIRST_BINADE, LAST_BINADE, SUB_BITS, DEGREE = 18, 62, 7, 6
DIGITS = 60
TARGET = (
    Path(__file__).resolve().parents[1]
    / "src/demur/mechanisms/normal_quantile_table.npy"
)
U = 2.0**-53  # unit roundoff of float64, to nearest
Array = NDArray[np.float64]


def upper_quantile(p: Any) -> Any:
    """Q^-1(p) for an mpmath p in (0, 1/2], to the working precision."""
    x = mpmath.mpf(-ndtri(float(p)))
    while True:
        # Taylor series of Q^-1 about Q(x), in the derivatives P_n of the certificate:
        # the error after a step is of the order of its fourth power.
        phi = mpmath.npdf(x)
        step = (mpmath.erfc(x / mpmath.sqrt(2)) / 2 - p) / phi
        x += step * (1 + step * (x / 2 + step * (2 * x * x + 1) / 6))
        if abs(step) < mpmath.mpf(10) ** -(mpmath.mp.dps // 3):
            return x


@functools.cache
def _interpolation(digits: int) -> tuple[list[Any], Any]:
    """Chebyshev nodes on [-1, 1] and the map from values there to coefficients."""
    n = DEGREE + 1
    nodes = [mpmath.cos((2 * i + 1) * mpmath.pi / (2 * n)) for i in range(n)]
    vandermonde = mpmath.matrix([[v**m for m in range(n)] for v in nodes])
    return nodes, vandermonde**-1


def row(j: int, i: int) -> list[float]:
    """The eight float64 of row (j, i)."""
    with mpmath.workdps(DIGITS):
        nodes, inverse = _interpolation(DIGITS)
        half = mpmath.mpf(2) ** (j - SUB_BITS - 65)
        centre = (2 ** (SUB_BITS + 1) + 2 * i + 1) * half
        values = mpmath.matrix([upper_quantile(centre + half * v) for v in nodes])
        c = list(inverse * values)
        hi = mpmath.nint(c[0] * 2**22) / 2**22
        exact = [hi, c[0] - hi, *c[1:]]
        rounded = [float(value) for value in exact]
        assert all(
            abs(f - e) <= U * abs(e) for f, e in zip(rounded, exact, strict=True)
        )
        return rounded


def rows() -> list[tuple[int, int]]:
    """(j, i) of every row, in the order of the table."""
    binades = range(FIRST_BINADE, LAST_BINADE + 1)
    return [(j, i) for j in binades for i in range(2**SUB_BITS)]


@dataclass(frozen=True)
class Certificate:
    """What `normal_quantile` relies on, one value per row unless said otherwise."""

    remainder: Array  # interpolation error
    rounding: Array  # of the coefficients, of v, and of every operation
    low: Array  # largest |c0 + c1 v + ...| as computed
    slope_ratio: Array  # sup |d/dv Q^-1| over |c1|
    hi_fits: bool  # every hi is a multiple of 2^-22 below 2^4

    @property
    def error(self) -> Array:
        """Bound on |hi + lo - Q^-1((k + 1/2) / 2^64)|."""
        return (self.remainder + self.rounding) * (1 + 1e-9)


def starts() -> tuple[Array, Array, Array]:
    """Per row: smallest p, an upper bound on x = Q^-1 there, half width in p."""
    index = np.array(rows(), dtype=np.float64)
    half = 2.0 ** (index[:, 0] - SUB_BITS - 65)
    p = (2.0 ** (SUB_BITS + 1) + 2 * index[:, 1]) * half
    return p, -ndtri(p) * (1 + 1e-12), half


def derivative_polynomial(n: int) -> list[int]:
    """Coefficients of P_n, constant term first: P_1 = 1, P_(n+1) = n x P_n + P_n'."""
    c = [1]
    for m in range(1, n):
        grown = [0] + [m * a for a in c]
        for power in range(1, len(c)):
            grown[power - 1] += power * c[power]
        c = grown
    return c


def certificate(table: Array) -> Certificate:
    """Bounds by the formulas of `demur.mechanisms.sampling.normal_quantile`.

    Evaluated in float64; the factors 1 + 1e-9 pay for that.
    """
    _, x, half = starts()
    phi = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    n = DEGREE + 1
    p_n = np.polynomial.polynomial.polyval(x, np.array(derivative_polynomial(n), float))
    remainder = p_n * (half / phi) ** n / (2.0 ** (n - 1) * math.factorial(n))
    size = np.abs(table[:, n])
    error = U * size
    for m in range(DEGREE, 0, -1):  # columns c5, ..., c0: one Horner step each
        c = np.abs(table[:, m])
        product = (1 + U) ** 2 * error + (2 * U + U * U) * size
        size = c + size
        error = (1 + U) * (U * c + product) + U * size
    return Certificate(
        remainder=remainder * (1 + 1e-9),
        rounding=error * (1 + 1e-9),
        low=(size + error) * (1 + 1e-9),
        slope_ratio=half / phi / np.abs(table[:, 2]) * (1 + 1e-9),
        hi_fits=bool(
            np.all(table[:, 0] * 2**22 == np.rint(table[:, 0] * 2**22))
            and np.all((table[:, 0] >= 0) & (table[:, 0] < 16))
        ),
    )


def digest(table: Array) -> str:
    """SHA-256 of the coefficients as little-endian float64, row by row."""
    return hashlib.sha256(table.astype("<f8").tobytes()).hexdigest()


def main() -> int:
    """Write the table or compare it; exit status 1 if a bit differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    check = parser.parse_args().check
    table = np.array([row(j, i) for j, i in rows()], dtype="<f8")
    proof = certificate(table)
    print(f"rows {len(table)}, sha256 {digest(table)}")
    print(f"remainder <= 2^{math.log2(proof.remainder.max()):.2f}")
    print(f"rounding  <= 2^{math.log2(proof.rounding.max()):.2f}")
    print(
        f"error     <= {proof.error.max():.4g} = 2^{math.log2(proof.error.max()):.2f}"
    )
    print(f"|lo|      <= {proof.low.max():.4g} = 2^{math.log2(proof.low.max()):.2f}")
    print(f"slope     <= {proof.slope_ratio.max():.6f} |c1|, hi fits: {proof.hi_fits}")
    if check:
        same = np.load(TARGET, allow_pickle=False).tobytes() == table.tobytes()
        print("every bit agrees" if same else "DIFFERS from the table on disk")
        return 0 if same else 1
    np.save(TARGET, table, allow_pickle=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
