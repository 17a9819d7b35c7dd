"""Integers round(scale * N(0, 1)), exact up to a statistical distance near 2^-908.

Each coordinate takes 64 bits: a sign and the first 63 bits k of the tail probability
p = (k + U) / 2^64 of |N| = Q^-1(p); U in (0, 1) stands for the endless bits not drawn.
As p is uniform on (0, 1/2) and the sign independent of it, N is standard normal. A
coordinate is *decided* once every U gives the same integer: what is returned is then
the rounding of a true Gaussian, and the same bits give it on every machine.

Ties. y = scale * |N| is rounded by floor(y + 1/2) and the sign put in front. This is
floor(scale * N + 1/2) unless scale * N is a half integer, which has probability zero:
under a continuous law all rules for ties give the same law.

Fast path. `enclose` gives hi + lo within `error` of x = Q^-1(p) for every U. Write the
scale as s = s1 + s2 with 26 bits in s1, 27 in s2 and 0 <= s2 < 2^-25 s. As hi has 26
bits and is below 16, s1 hi and s2 hi are exact float64 and s2 hi < 2^-21 s; so is
s1 hi - rint(s1 hi). With u = 2^-53 and |lo| < 2^-8, the errors in computing
f = (s1 hi - rint(s1 hi)) + (s2 hi + s lo) are

    s lo                     u s 2^-8
    s2 hi + (s lo)           u s (2^-8 + 2^-20)
    the sum of both parts    u s (2^-8 + 2^-20) + u/2

and s (hi + lo) is off by s error. So rint(s1 hi) + f is within
e = s (error + 2^-59) + 2^-52 of y; the listed errors need only 0.76 s 2^-59 + 2^-54 of
this, and the rest pays for the rounding of e and of 1/2 - e (e < 1/2 if it matters). If
|f - rint(f)| < 1/2 - e then y is nearest to rint(s1 hi) + rint(f) for every U.

Open coordinates. p is compared with Q((n +- 1/2) / scale), enclosed in integer
arithmetic, first as it is and then with up to fourteen times 64 further bits. So many
are hardly ever drawn (one coordinate in 2^64 of the open ones needs a second word):
they are there so that the distance can be paid for at a large epsilon, which multiplies
it by e^epsilon.

Distance. With all further words p is known to a cell of width 2^-960, one of 2^959.
The comparison can fail on cell 0 and on cells that the enclosure of some
Q((n + 1/2) / scale) meets. An enclosure is far narrower than a cell, so it meets two at
most, and because Q(37) < 2^-963 only those with (n + 1/2) / scale <= 37 reach beyond
cell 0; there are no more than 37 scale + 1. On the same bits the sampler and the exact
rounded Gaussian therefore differ with probability at most

    eta = (74 scale + 3) 2^-959    per coordinate; 2^-908.7 at the largest scale.

Range. The near end of a cell is at least 2^-960, so a decided n has n - 1/2 < 37 scale;
one left open is the rounding at the middle of its cell, 2^-961 or more, where x < 36.4
(or one beside it: there the guess in float64 is kept). Hence results stay below
37 * 2^44 + 2 < 2^50.

Timing. The fast path has no loop or branch that depends on the bits. Which coordinates
are open depends on the bits alone, never on what the noise is added to, and reveals
that y is close to a half integer; `open_fraction` says how rarely. The row of the
table that is read does depend on the noise: code that shares a cache with this process
is outside the model, as it is for every sampler by table.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from fractions import Fraction
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from demur.core.rounding import float_up
from demur.mechanisms.sampling.normal_quantile import ERROR, SLOPE, enclose

SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**44
FURTHER_WORDS = 14

# Words, enclosure, scales and results of a block stay in the second-level cache.
_BLOCK = 8192


class ByteStream(Protocol):
    """Random bytes, each handed out once."""

    def read(self, n: int, /) -> bytes:
        """The next n bytes."""
        ...


def rounded_gaussian(
    count: int,
    scale: float | NDArray[np.float64],
    draw: ByteStream,
    refine: Callable[[int], ByteStream],
) -> NDArray[np.int64]:
    """`count` integers round(scale * N(0, 1)), one `scale` for all or one for each.

    `draw` gives 8 bytes per coordinate; `refine(i)` a fresh stream for coordinate i,
    asked for only if the first 64 bits do not settle it, for 112 bytes at most. The
    law is exact up to `sampler_distance(count, scale)`.

    >>> import io
    >>> bits = io.BytesIO(bytes([0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0xA0]))
    >>> rounded_gaussian(2, 1000.0, bits, lambda i: io.BytesIO(bytes(32)))
    array([  674, -1150])
    """
    scales = _scales(count, scale)
    result = np.empty(count, dtype=np.int64)
    shared = np.full(min(count, _BLOCK), scales) if scales.ndim == 0 else None
    for start in range(0, count, _BLOCK):
        out = result[start : start + _BLOCK]
        words = _words(draw, len(out))
        here = scales[start : start + _BLOCK] if shared is None else shared[: len(out)]
        undecided = np.empty(len(out), dtype=np.bool_)
        _round(words.view(np.int64), *enclose(words), here, out, undecided)
        for i in map(int, np.flatnonzero(undecided)):
            further = functools.partial(refine, start + i)
            out[i] = settled(int(words[i]), float(here[i]), further)
    return result


def settled(word: int, scale: float, refine: Callable[[], ByteStream]) -> int:
    """One coordinate from its 64 bits, in integer arithmetic; `refine()` has more bits.

    >>> import io
    >>> settled(0x4000_0000_0000_0000, 1000.0, lambda: io.BytesIO(bytes(8)))
    674
    """
    magnitude = _decide(word & (2**63 - 1), scale, refine)
    return -magnitude if word >> 63 else magnitude


def sampler_distance(count: int, scale: float | NDArray[np.float64]) -> float:
    """Bound on the statistical distance of `count` draws to the exact law, rounded up.

    It assumes ideal bits; what a stream of pseudorandom bytes adds is its own.

    >>> sampler_distance(10**6, 2.0**26) < 2.0**-900
    True
    """
    largest = float(np.max(_scales(count, scale), initial=SMALLEST_SCALE))
    eta = (74 * Fraction(largest) + 3) / 2**959
    return float_up(count * eta)


def open_fraction(scale: float) -> float:
    """About how many coordinates in one are left to integer arithmetic.

    >>> f"{open_fraction(2.0**26):.0e} {open_fraction(2.0**40):.0e}"
    '5e-10 9e-06'
    """
    # The undrawn bits cost SLOPE / phi(x) 2^-65; 1 / phi averages to 2 * 7.6, twice the
    # largest x with a finite bound. Words without one: 2^18 of 2^63.
    undrawn = SLOPE * 2 * 7.6 * 2.0**-65
    return min(1.0, 2 * (scale * (2 * ERROR + undrawn) + 2.0**-52) + 2.0**-45)


def _scales(count: int, scale: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """`scale` as float64, of no dimension or of `count` entries, all in range."""
    if isinstance(count, bool) or not isinstance(count, numbers.Integral):
        raise TypeError(f"count must be a whole number; got {count!r}")
    if count < 0:
        raise ValueError(f"count must be at least 0; got {count}")
    scales = np.asarray(scale, dtype=np.float64, order="C")
    if scales.ndim and scales.shape != (count,):
        raise ValueError(
            f"scale must be one number or one per coordinate, shape ({count},);"
            f" got shape {scales.shape}"
        )
    # Written so that NaN is outside.
    outside = ~((scales >= SMALLEST_SCALE) & (scales <= LARGEST_SCALE))
    if np.any(outside):
        raise ValueError(
            f"scale must be between 1 and 2^44; got {scales[outside].flat[0]}. It is"
            " sigma / grid: take a finer grid if it is below 1, a coarser one if it is"
            " above 2^44; nothing was drawn"
        )
    return scales


def _words(stream: ByteStream, count: int) -> NDArray[np.uint64]:
    data = stream.read(8 * count)
    if len(data) != 8 * count:
        raise ValueError(
            f"the stream gave {len(data)} bytes where {8 * count} were asked for;"
            " hand in one that does not run dry, and release nothing of this draw"
        )
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)


# Everything the kernel needs is in this file or an argument: numba's cache does not
# notice when a function in another file changes.
@njit(cache=True, fastmath=False, nogil=True)
def _round(
    words: NDArray[np.int64],
    hi: NDArray[np.float64],
    lo: NDArray[np.float64],
    error: NDArray[np.float64],
    scale: NDArray[np.float64],
    out: NDArray[np.int64],
    undecided: NDArray[np.bool_],
) -> None:
    for n in range(words.size):
        s = scale[n]
        # The upper 26 bits by mask: exact even if a compiler fuses operations.
        s1 = np.int64(np.float64(s).view(np.int64) & ~0x7FF_FFFF).view(np.float64)
        s2 = s - s1
        whole = np.rint(s1 * hi[n])
        f = (s1 * hi[n] - whole) + (s2 * hi[n] + s * lo[n])
        near = np.rint(f)
        e = s * (error[n] + 2.0**-59) + 2.0**-52
        undecided[n] = not abs(f - near) < 0.5 - e
        magnitude = np.int64(whole + near)
        out[n] = -magnitude if words[n] < 0 else magnitude


def _decide(k: int, scale: float, refine: Callable[[], ByteStream]) -> int:
    """round(scale * x) for p in (k, k + 1) / 2^64, drawing more bits of p as needed."""
    bits = 64
    n, decided = _locate(k, bits, scale)
    if decided:
        return n
    stream = refine()
    for _ in range(FURTHER_WORDS):
        k = k << 64 | int(_words(stream, 1)[0])
        bits += 64
        n, decided = _locate(k, bits, scale)
        if decided:
            break
    return n  # if still open: the middle of the cell, to within one, paid for in eta


def _locate(k: int, bits: int, scale: float) -> tuple[int, bool]:
    """Integer n for p in (k, k + 1) / 2^bits, and whether the whole cell leads to it.

    The first n is a guess in float64; the comparisons, which are rigorous, move it.
    """
    top, bottom = scale.as_integer_ratio()
    middle = (2 * k + 1) / (2 << bits)
    n = round(-NormalDist().inv_cdf(middle) * scale)
    near, far = (k + 1) << 64, k << 64  # the ends of the cell, in 2^-(bits + 64)
    while True:
        low, high = tail_bounds((2 * n + 1) * bottom, 2 * top, bits + 64)
        if near <= low:
            n += 1
            continue
        if far < high:
            return n, False
        if n == 0:
            return n, True
        low, high = tail_bounds((2 * n - 1) * bottom, 2 * top, bits + 64)
        if far < high:
            return n, near <= low
        n -= 1


def tail_bounds(top: int, bottom: int, bits: int) -> tuple[int, int]:
    """Integers around 2^bits Q(top / bottom), Q the upper tail of the standard normal.

    With t = top / bottom > 0, 1/2 - Q(t) is 1 / sqrt(2 pi) times the alternating sum of
    t^(2i+1) / (2^i i! (2i+1)). Lower and upper bounds of its terms are carried in
    fixed point and rounded outwards. A step widens them by 2 units, later steps widen
    that by exp(t^2 / 2) at most, and there are fewer than 2^12 steps for t <= 38 and
    bits <= 1024: less than 2^25 exp(t^2 / 2) units in the sum, and less than one of the
    result, which is at most 4 units wide.

    >>> low, high = tail_bounds(2, 1, 64)
    >>> low / 2**64, high - low <= 4
    (0.0227501319, True)
    """
    squared, over = top * top, bottom * bottom
    # exp(t^2 / 2) < 2^(3 t^2 / 4); to a multiple of 64, so that constants are shared.
    point = bits + 32 + 3 * squared // (4 * over) + 1
    point += -point % 64
    low = (top << point) // bottom
    high = low + 1
    least, most = low, high
    i = 0
    # Beyond i = t^2 / 2 terms shrink, so what is left out is less than the first of it.
    while high > 2 or 2 * i * over < squared:
        i += 1
        low = low * squared // (2 * i * over)
        high = -(-high * squared // (2 * i * over))
        if i % 2:
            least -= -(-high // (2 * i + 1))
            most -= low // (2 * i + 1)
        else:
            least += low // (2 * i + 1)
            most += -(-high // (2 * i + 1))
    root_low, root_high = _inverse_root_two_pi(point)
    half = 1 << (2 * point - 1)
    shift = 2 * point - bits
    smallest = half - (most + high) * root_high >> shift
    largest = -(-(half - (least - high) * root_low) >> shift)
    return smallest, largest


@functools.lru_cache(maxsize=64)
def _inverse_root_two_pi(point: int) -> tuple[int, int]:
    """Integers around 2^point / sqrt(2 pi)."""
    # Machin: pi = 16 arctan(1/5) - 4 arctan(1/239). Every division is off by less than
    # 1, there are fewer than 2 (point + 32) of them and none counts more than 20 times:
    # together less than 2^20 for point < 2^14, well inside the 32 guard bits.
    guarded = point + 32
    pi = 16 * _arctan_of_inverse(5, guarded) - 4 * _arctan_of_inverse(239, guarded)
    pi_low, pi_high = (pi - 2**20) >> 32, ((pi + 2**20) >> 32) + 1
    cube = 1 << 3 * point
    return (
        math.isqrt(cube // (2 * pi_high)),
        math.isqrt(cube // (2 * pi_low) + 1) + 1,
    )


def _arctan_of_inverse(m: int, point: int) -> int:
    """2^point arctan(1 / m), to within the number of terms."""
    power = (1 << point) // m
    total, i = power, 0
    while power:
        i += 1
        power //= m * m
        total += -power // (2 * i + 1) if i % 2 else power // (2 * i + 1)
    return total
