"""The law that BPM draws from: balls and a cube with weights that are exact numbers.

The mixture of `constants` has a continuous radius S and weights that no computer
holds. What is drawn instead is a law of the same form whose privacy loss is at most
k min(|v - v'|, L) *exactly*, k = epsilon: rounding is always towards less information.

**Components.** Radii o_n = L - n h, n = 0, 1, ..., h a power of two, cut the ball into
shells. A draw picks the cube with mass a_U, or shell n with mass a_n, or starts again
with what is left of 1. For the cube it is uniform on [-L, 1 + L]^d. For shell n, y is
uniform in the ball of radius o_n around v and kept with probability

    K_n(|y - v|),    K_n(r) = min(1, (e^(k (o_n - r)) - 1) / (e^(kh) - 1)),

else the draw starts again. K_n is 1 inside o_n - h and falls to 0 at o_n. As the
chance to start again does not depend on v (every ball lies in the cube), the law has
the density phi(|x - v|) / constant on the cube, with

    phi(r) = a_U / (1 + 2L)^d + sum_n Q_n K_n(r),    Q_n = a_n / (V_d o_n^d).

**Privacy.** phi does not increase. Inside shell n, where o_n - h <= r <= o_n,

    phi(r) = phi(o_n) + Q_n (e^(k (o_n - r)) - 1) / (e^(kh) - 1),
    -phi'(r) <= k phi(r)   if and only if   Q_n <= (e^(kh) - 1) phi(o_n).        (*)

Under (*) log phi is k-Lipschitz, constant beyond L, and |r - r'| <= |v - v'| by the
triangle inequality. So the log-ratio at every x is at most k |v - v'|, and at most
log(phi(0) / phi(L)) <= k L: epsilon-d_E-privacy, with no delta.

**Weights.** With a small margin m let e^(kappa h) - 1 = (1 - m) (e^(kh) - 1) and, in
the ideal, phi*(o_n) = a*_U (1 + 2L)^-d e^(kappa (L - o_n)), which makes
Q*_n = (e^(kappa h) - 1) phi*(o_n): (*) with a factor 1 - m to spare. Three things may
move a weight away from its ideal:

- logarithms are computed in float64: log a* has 8 terms, the largest of size t, each
  right to 2^-49 of its size (libraries do ten times better): together e = 2^-46 t;
- *main* weights, from the outermost to the innermost with a* >= 2^-32, are cut down to
  multiples of 2^-62. log a*_n is concave in o_n, so none between falls below, but for
  e: they lose a factor of at least 1 - 2^-30 (1 + 2e);
- shells inside the innermost main one get no weight at all. phi is constant there.

So phi(o_n) >= (1 - 2^-29)(1 - e) phi*(o_n) for the shells that have weight, and
Q_n <= (1 - m)(1 + e)(e^(kh) - 1) phi*(o_n). With m = 2^-28 + 4e that is (*).

**Rare weights.** Shells further out than the main ones weigh less than 2^-32, down to
e^-1000000; but without them phi would jump. They keep their weight a_n = exp(l_n), l_n
the float64 that was computed, and so does the cube where a_U < 2^-32. An integer
share `rare` of 2^62 is set aside for all of them; `exact` decides among them, to as
many bits as it takes, when a draw falls there.

The law differs from the ideal BPM by kappa for k (a relative 2^-28 or so) and by the
shells that were left out: nothing that a sample could show, or that privacy rests on.
For L = infinity there is no cube, and the radii are multiples of h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from demur.mechanisms.bpm.constants import log_ball_volume

BITS = 62  # main weights are multiples of 2^-62
_MAIN = 2.0**30  # a main weight is at least this many of them
_LARGEST_TERM = 2.0**24  # the margin stays below 2^-19
_MOST_SHELLS = 2**23
_GUIDE_BITS = 12


@dataclass(frozen=True, eq=False)
class Table:
    """Weights of the cube and of the main shells, and where the rare ones start.

    `upper` are the running sums of the main weights, `outer` their radii (infinity for
    the cube). A word of 62 bits below `upper[-1]` picks the first component whose sum
    exceeds it; below `upper[-1] + rare` it is rare; else the draw starts again.
    `guide` holds where the search for a word begins, by its first bits.
    """

    epsilon: float
    L: float
    dimension: int
    step: float
    outer: NDArray[np.float64]
    upper: NDArray[np.uint64]
    guide: NDArray[np.int64]
    rare: int
    rare_cube: float | None  # log of the cube's weight where it is rare
    first_rare: float | None  # radius of the innermost rare shell, if there are any
    log_scale: float

    def log_weight(self, radius: float) -> float:
        """log a_n of the shell of this outer radius, in float64: the definition."""
        return float(self._log_weights(np.array([radius]))[0])

    def _log_weights(self, radii: NDArray[np.float64]) -> NDArray[np.float64]:
        return _log_weights(
            self.epsilon, self.L, self.dimension, self.step, radii, self.log_scale
        )


@lru_cache(maxsize=32)
def make_table(epsilon: float, L: float, dimension: int) -> Table:
    """The table of a mechanism; a ValueError where float64 cannot carry the proof."""
    if L == 0.0:
        return _cube_alone(epsilon, dimension)
    step = _step(epsilon, L, dimension)
    radii = _radii(epsilon, L, dimension, step)
    logs = _log_weights(epsilon, L, dimension, step, radii, 0.0)
    log_cube = 0.0 if math.isfinite(L) else -math.inf
    top = max(log_cube, float(logs.max(initial=-math.inf)))
    total = math.exp(log_cube - top) + float(np.exp(logs - top).sum())
    # A little below the whole, so that sums of rounded weights stay below it.
    log_scale = -(top + math.log(total)) - 2.0**-30
    logs = logs + log_scale
    log_cube += log_scale

    main = np.floor(np.exp2(logs / math.log(2.0) + BITS))
    heavy = np.flatnonzero(main >= _MAIN)
    shells = np.arange(heavy[0], heavy[-1] + 1) if heavy.size else heavy
    cube = math.floor(2.0 ** (log_cube / math.log(2.0) + BITS))
    weights, outer = list(main[shells].astype(np.uint64)), list(radii[shells])
    rare_cube: float | None = None
    if cube >= _MAIN:
        weights.append(np.uint64(cube))
        outer.append(math.inf)
    elif math.isfinite(L):
        rare_cube = log_cube
    # Radii fall, so what comes before the first main shell lies outside it. Without
    # any main shell none is kept: the uniform law alone.
    rare_logs = logs[: shells[0]] if len(shells) else logs[:0]
    first_rare = None
    rare = math.exp(rare_cube) if rare_cube is not None else 0.0
    if len(shells) and (len(rare_logs) or math.isinf(L) or radii[0] < L):
        first_rare = float(radii[shells[0]] + step)
        rare += float(np.exp(rare_logs).sum())
        if radii[0] < L:
            last, weight = float(radii[0]), float(logs[0])
            rare += beyond(epsilon, dimension, step, last, weight)
    upper = np.cumsum(np.array(weights, dtype=np.uint64))
    share = math.ceil(rare * (1.0 + 2.0**-10) * 2.0**BITS) + 1 if rare else 0
    if int(upper[-1]) + share > 2**BITS:
        raise AssertionError("the weights of the table exceed the whole")
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << np.uint64(BITS - _GUIDE_BITS)
    return Table(
        epsilon=epsilon,
        L=L,
        dimension=dimension,
        step=step,
        outer=np.array(outer, dtype=np.float64),
        upper=upper,
        guide=np.searchsorted(upper, starts, side="right").astype(np.int64),
        rare=share,
        rare_cube=rare_cube,
        first_rare=first_rare,
        log_scale=log_scale,
    )


def _cube_alone(epsilon: float, dimension: int) -> Table:
    """L = 0: a uniform point, whatever v is."""
    return Table(
        epsilon=epsilon,
        L=0.0,
        dimension=dimension,
        step=1.0,
        outer=np.array([math.inf]),
        upper=np.array([2**BITS], dtype=np.uint64),
        guide=np.zeros(2**_GUIDE_BITS, dtype=np.int64),
        rare=0,
        rare_cube=None,
        first_rare=None,
        log_scale=0.0,
    )


def _step(epsilon: float, L: float, dimension: int) -> float:
    """A power of two from 1/16 to 1/8 of the length over which a ball's volume grows.

    A draw from a shell is kept with a probability of about 1 - d h / (2 o).
    """
    length = min((dimension + 1.0) / epsilon, L) / dimension
    step = math.ldexp(1.0, math.frexp(length / 8.0)[1] - 1)
    fine = math.isfinite(L) and step < math.ulp(L)
    if not 2.0**-500 < step < 2.0**500 or fine:
        raise ValueError(
            f"epsilon and L are too far apart to draw from: epsilon {epsilon:g},"
            f" L {L:g}, dimension {dimension}. L='auto' fits. Nothing was spent."
        )
    return step


def _radii(
    epsilon: float, L: float, dimension: int, step: float
) -> NDArray[np.float64]:
    """Outer radii that can carry a main weight, falling; exact floats.

    P(Gamma(d + 1) > d + 1 + 12 sqrt(d + 1) + 60) < 2^-90 for every d.
    """
    shape = dimension + 1.0
    reach = (shape + 12.0 * math.sqrt(shape) + 60.0) / epsilon
    low = max(0.0, (shape - 12.0 * math.sqrt(shape) - 60.0) / epsilon)
    if math.isinf(L):
        first, last = math.ceil(reach / step), max(1, math.floor(low / step))
        return np.arange(first, last - 1, -1, dtype=np.float64) * step
    skipped = max(0, math.floor((L - reach) / step))
    most = math.ceil(L / step) - 1
    if low < L:
        most = min(most, math.ceil((L - low) / step))
    count = min(most - skipped + 1, _MOST_SHELLS)
    # L - n h: a multiple of ulp(L) or of h, below L; so it is a float64.
    return L - (skipped + np.arange(count, dtype=np.float64)) * step


def _log_weights(
    epsilon: float,
    L: float,
    dimension: int,
    step: float,
    radii: NDArray[np.float64],
    log_scale: float,
) -> NDArray[np.float64]:
    """log a*_n, where the cube's is `log_scale` (or the shells' own, if L is inf)."""
    bounded = math.isfinite(L)
    cube = dimension * math.log1p(2.0 * L) if bounded else 0.0
    volume = log_ball_volume(dimension)
    reach = L if bounded else (dimension + 12.0 * math.sqrt(dimension) + 80.0) / epsilon
    # The smallest radius is what is left of L; the largest is L, or about `reach`.
    least = math.fmod(L, step) or step if bounded else step
    balls = dimension * max(abs(math.log(least)), abs(math.log(2.0 * reach)))
    largest = max(2.0 * epsilon * reach, cube, balls, abs(volume), 64.0)
    if not largest <= _LARGEST_TERM:
        raise ValueError(
            f"epsilon * L or the dimension is too large to draw from: epsilon"
            f" {epsilon:g}, L {L:g}, dimension {dimension}. L='auto' is the smallest L"
            " that loses almost nothing. Nothing was spent."
        )
    margin = 2.0**-28 + 4.0 * 2.0**-46 * largest
    growth = (1.0 - margin) * math.expm1(epsilon * step)
    kappa = math.log1p(growth) / step
    falls = kappa * (L - radii) if bounded else -kappa * radii
    logs: NDArray[np.float64] = (
        falls
        + dimension * np.log(radii)
        + (volume - cube + math.log(growth) + log_scale)
    )
    return logs


def beyond(
    epsilon: float, dimension: int, step: float, radius: float, log_weight: float
) -> float:
    """More than the weight of all shells beyond `radius`: a geometric series.

    The ratio of neighbours, e^(-kappa h) (1 + h/o)^d, falls with o.
    """
    log_ratio = -epsilon * step * (1 - 2.0**-18) + dimension * math.log1p(step / radius)
    if log_ratio >= 0.0:
        return math.inf  # too close to the peak to tell; never so for the table's end
    return math.exp(log_weight) / -math.expm1(log_ratio)
