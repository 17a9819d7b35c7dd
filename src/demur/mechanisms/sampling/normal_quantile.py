"""The normal quantile from 64 random bits, with a proven bound on its error.

`enclose(words)` reads the low 63 bits k of each word as the start of a uniform tail
probability p = (k + U) / 2^64, where U in (0, 1) stands for all the bits that were
not drawn, and returns (hi, lo, error) with

    |hi + lo - Q^-1(p)| <= error      for every U in (0, 1),

Q(x) being the probability that a standard normal exceeds x. The error is absolute,
and below 2^-58.8 for p > 1/16 (half an ulp of a value near 1 is 2^-54): `hi` has 26
bits and `lo` is smaller than 2^-8, so that the pair carries what one float64 could
not. It is infinite for k < 2^18 (x > 7.6, probability 2^-45): those need more bits.

>>> import numpy as np
>>> x = enclose(np.array([2**62, 2**20], dtype=np.uint64))   # p = 1/4 and 2^-44
>>> x.value
array([0.674490, 7.423940])
>>> x.error < 1e-7
array([ True,  True])

Method. 2^j <= k < 2^(j+1) is cut into 128 equal pieces, j = 18, ..., 62. On a piece,
v = (2 (k - start) + 1) / 2^(j-7) - 1 runs through (-1, 1), and f(v) = Q^-1(p) is
replaced by the polynomial of degree 6 through its values at the 7 Chebyshev nodes. The
constant term is split into `hi`, a multiple of 2^-22, and c0.
`tools/make_quantile_table.py` makes the coefficients.

Certificate. u = 2^-53; w is half the width of a piece in p; |v| <= 1.

1. Remainder. With phi the normal density dx/dp = -1/phi(x), hence by induction
   |d^n x / dp^n| = P_n(x) / phi(x)^n, P_1 = 1, P_(n+1) = n x P_n + P_n'. The P_n have
   coefficients >= 0 and phi decreases in x > 0, so on a piece the maximum is at the
   largest x, that is at the smallest p. Interpolation at 7 Chebyshev nodes leaves at
   most max |f^(7)| / (2^6 7!) = P_7(x) (w / phi(x))^7 / (2^6 7!), taken there: less
   than 2^-66 on every piece.
2. Rounding. Let q_6 = c6 and q_i = c_i + v q_(i+1), so that `lo` is q_0; let r_i
   bound |q_i|, and e_i the error of its computed value. A stored c_i is off by
   u |c_i|. The numerator of v, 2 (k - start) + 1 - 2^(j-7), is an exact int64 below
   2^55; its conversion to float64 is rounded once and the division by a power of two
   not at all. So r_6 = |c6|, e_6 = u |c6| and, with the conversion and the product
   (2u + u^2), the coefficient and the sum (u each) in turn,
       r_i = |c_i| + r_(i+1),
       e_i = (1 + u) (u |c_i| + (1 + u)^2 e_(i+1) + (2u + u^2) r_(i+1)) + u r_i.
   That is about 5 u |c1|: e_0 < 2^-59.01, r_0 < 2^-8.3 on every piece. `hi` is exact
   and nothing underflows. A compiler that fuses a product and a sum only drops terms.
3. Undrawn bits. The cell from k to k + 1 lies in one piece (j >= 18 > 7) and reaches
   2^(7-j) to either side of v, and |f'| <= w / phi(x) at the smallest p of the piece,
   which is at most 1.004 |c1|. So U moves f by less than SLOPE |c1| 2^(7-j).

1 and 2 together stay below ERROR = 2^-59 with 1% to spare and 3 below SLOPE with 1%;
this pays for the rounding of ERROR + SLOPE |c1| 2^(7-j), of relative size below 4u.
The tests recompute all three for each of the 5,760 pieces and compare with mpmath.

The bound is on the absolute error because rounding scale * x to an integer needs no
other: near p = 1/2, where x -> 0, the relative error is large and does not matter.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

ERROR = 2.0**-59  # of hi + lo at U = 1/2
SLOPE = 1.0 + 2.0**-6  # sup |f'| over |c1|
LOW = 2.0**-8  # |lo| stays below
HIGH = 16.0  # hi is a multiple of 2^-22 below this: at most 26 bits
DECIDED_FROM = 2**18  # below this k the error is infinite

_TABLE = "normal_quantile_table.npy"
_SHA256 = "52fd98e3e2b0f1f0c347992d23d4b6d95fdef59c90a1afdaf6ef3dd10b3746e2"

# The float64 of 2^j (1 + i/128 + ...) has exponent field 1023 + j and then the seven
# bits of i, so that its upper bits count the pieces.
_KEY_SHIFT = 52 - 7
_FIRST_KEY = (1023 + 18) << 7


class Enclosure(NamedTuple):
    """Quantiles |x - (hi + lo)| <= error, one per word."""

    hi: NDArray[np.float64]
    lo: NDArray[np.float64]
    error: NDArray[np.float64]

    @property
    def value(self) -> NDArray[np.float64]:
        """The float64 nearest to hi + lo."""
        return self.hi + self.lo


def _load() -> NDArray[np.float64]:
    with resources.files(__package__).joinpath(_TABLE).open("rb") as file:
        table = np.load(file, allow_pickle=False)
    # A damaged table would give wrong noise without any other sign.
    if hashlib.sha256(table.astype("<f8").tobytes()).hexdigest() != _SHA256:
        raise ImportError(f"{_TABLE} is damaged; reinstall demur, nothing was drawn")
    # A row is one cache line of 64 bytes if the array starts on one.
    room = np.empty(table.size + 8)
    skip = -room.ctypes.data % 64 // 8
    aligned = room[skip : skip + table.size].reshape(table.shape)
    aligned[:] = table
    aligned.flags.writeable = False
    return aligned


TABLE = _load()


def enclose(words: NDArray[np.uint64], table: NDArray[np.float64] = TABLE) -> Enclosure:
    """Quantiles of the low 63 bits of each word, with their error bounds.

    `table` is there for tests that hand in a wrong one.
    """
    out = Enclosure(*(np.empty(len(words)) for _ in range(3)))
    _enclose(np.ascontiguousarray(words).view(np.int64), table, *out)
    return out


# Everything the kernel needs is in this file or an argument: numba's cache does not
# notice when a function in another file changes.
@njit(cache=True, fastmath=False, nogil=True)
def _enclose(
    words: NDArray[np.int64],
    table: NDArray[np.float64],
    hi: NDArray[np.float64],
    lo: NDArray[np.float64],
    error: NDArray[np.float64],
) -> None:
    for n in range(words.size):
        k = words[n] & 0x7FFF_FFFF_FFFF_FFFF
        # Without its last 11 bits k has at most 52, so the conversion is exact and
        # cannot round up into the next piece. The seven bits of i are above them
        # from j = 18 on.
        key = np.float64(k & ~2047).view(np.int64) >> _KEY_SHIFT
        inside = key >= _FIRST_KEY
        key = max(key, np.int64(_FIRST_KEY))
        shift = (key >> 7) - 1023 - 7  # j - 7
        width = np.int64(1) << shift
        cell = np.int64((1023 - shift) << 52).view(np.float64)  # 2^(7-j)
        v = np.float64(2 * (k & (width - 1)) + 1 - width) * cell
        c = table[key - _FIRST_KEY]
        q = c[5] + v * (c[6] + v * c[7])
        q = c[1] + v * (c[2] + v * (c[3] + v * (c[4] + v * q)))
        hi[n] = c[0]
        lo[n] = q
        error[n] = ERROR + SLOPE * abs(c[2]) * cell if inside else np.inf
