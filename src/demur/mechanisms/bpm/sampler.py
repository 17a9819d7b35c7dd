"""The exact BPM sampler: each row from its own stream, mostly in float64.

The law is that of `table`, at the point v itself (a float64 is a real number), then
rounded to the nearest multiple of the grid g and cut to the cube: a function of the
continuous report alone, so it costs nothing. The words of an attempt of a row:

    0            which component: the cube, a shell, rare, or start again
    1            whether a draw from a shell is kept
    2 ... d + 3  normals for a shell, uniform coordinates for the cube

A row that starts again takes the next attempt's words of its own stream.

**Float64 never decides alone.** Each comparison has an interval around its computed
sides; what it cannot settle goes to `exact` with the same bits, so the answer does
not depend on float64 at all and is the same on every machine. The intervals, u = 2^-53:

Shell of outer radius o. `enclose` gives z_i = hi + lo within err_i, whatever the bits
not drawn; E^2 = sum err_i^2, inflated by 1%. Squares are summed in runs of 64 and the
runs with compensation: the computed |z|^2 is right to 68u, |z| to 36u, besides E from
the errors of z. With N = |z| over d + 2 and n over d coordinates, relative errors are
at most 1.01 E/N + 40u for N and 3 E/N + 80u for N (N + n), as n <= N.

- The distance to the shell's edge is o - r = o q / (N (N + n)), q = N^2 - n^2 the
  square of the last two: no cancellation. q is off by 2 sqrt(q) E + E^2 + 4uq. So
  x = k (o - r) is off by
  dx = x (3 E/N + 2^-44) + 1.01 k o / (N (N + n)) (2 sqrt(q) E + E^2).
- Kept, for u_1 the uniform of word 1, if u_1 < K = (e^x - 1) / (e^(kh) - 1). Sure if
  x - dx exceeds kh. Otherwise e^x < 2 because kh <= 1/4, and K is off by
  2 dx / (e^(kh) - 1) + 2^-38 (1 + K), where 2^-38 is ample for the library's expm1.
- x_i / g = v_i / g + T z_i with T = o / (g N). v_i / g is exact (g is a power of two),
  and split into an integer and a fraction, exactly. T z_i is off by
  |T z_i| (1.01 E/N + 45u) + 1.01 T E, the last sum by u (|T z_i| + 1/2).

Cube. -L/g + (1 + 2L)/g (w + U) 2^-64 is off by 2^-50 times the sum of both sizes.

Timing. How many attempts a row takes depends on its bits alone. Whether it goes to
integers depends also on where v + noise falls in its grid cell: whoever can time single
rows to the microsecond learns, of one row in a million or fewer, that it fell near an
edge.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import NDArray

from demur.mechanisms.bpm import exact
from demur.mechanisms.bpm.constants import constants
from demur.mechanisms.bpm.table import Table
from demur.mechanisms.sampling.normal_quantile import enclose
from demur.mechanisms.sampling.row_streams import WORDS_PER_BLOCK, RowStreams

Indices = NDArray[np.int64]

# Words and enclosures of a block of rows stay in the second-level cache.
_WORDS_AT_ONCE = 2**15
_DONE, _AGAIN, _OPEN = 0, 1, 2
_CUBE, _RARE, _NONE = -1, -2, -3
_FARTHEST = 2**52  # indices beyond it (only for L = infinity) are cut: exact floats
_NEVER = 600.0  # e^-600 < 10^-260: that seldom does a report of L = infinity end up cut


def grid_of(epsilon: float, L: float, dimension: int) -> float:
    """A power of two near 2^-16 of a coordinate's noise, or of 1 if that is less.

    It is coarser where float64 could not count it: never below 2^-41 of the cube's
    side, or 2^-37 of the noise where there is no cube.

    >>> grid_of(4.0, 0.5, 2) == 2.0**-18
    True
    """
    noise = min((dimension + 1.0) / epsilon, L) / math.sqrt(dimension)
    wanted = min(1.0, noise if noise > 0.0 else 1.0) * 2.0**-16
    if math.isfinite(L):
        wanted = max(wanted, (1.0 + 2.0 * L) * 2.0**-40)
    else:
        wanted = max(wanted, noise * 2.0**-36, 2.0**-40)
    return math.ldexp(1.0, math.frexp(wanted)[1] - 1)


def reach_of(epsilon: float, L: float, dimension: int) -> float:
    """How far outside [0, 1] a coordinate of a report can lie: L, if it is not huge.

    At L = infinity |x - v| is Gamma(d, rate k), and P(k |x - v| > d + sqrt(2 d t) + t)
    is at most e^-t (Laurent and Massart). Reports are cut to that distance from the
    cube, at t = 600. It costs nothing, being a function of the report alone, and who
    gets reports knows that one further out was not drawn. At a finite L beyond, the law
    inside the ball has at most twice that tail (half the Gamma's mass or more lies in
    the ball); so reports are cut there too, unless the uniform part is ever seen.
    """
    if constants(epsilon, L, dimension).log_w > -_NEVER:
        return L
    never = dimension + math.sqrt(2.0 * dimension * _NEVER) + _NEVER
    grid = grid_of(epsilon, L, dimension)
    steps = max(1, math.ceil(never / epsilon / grid))
    return min(steps, _FARTHEST) * grid if math.isinf(L) else min(steps * grid, L)


def index_range(reach: float, grid: float) -> tuple[int, int]:
    """The smallest and the largest index of a grid point in [-reach, 1 + reach]."""
    low, high = -Fraction(reach) / Fraction(grid), 1 + Fraction(reach)
    return math.ceil(low), math.floor(high / Fraction(grid))


def draw(
    points: NDArray[np.float64],
    row_ids: NDArray[np.uint64],
    table: Table,
    grid: float,
    streams: RowStreams,
) -> Indices:
    """Grid indices of one report for each point, in the points' order."""
    n, d = points.shape
    out = np.empty((n, d), dtype=np.int64)
    width = d + 4
    stride = -(-width // WORDS_PER_BLOCK) * WORDS_PER_BLOCK
    at_once = max(1, _WORDS_AT_ONCE // width)
    todo = np.arange(n)
    attempt = 0
    while todo.size:
        again = []
        for start in range(0, todo.size, at_once):
            rows = todo[start : start + at_once]
            words = streams.words(row_ids[rows], attempt * stride, width)
            status = _attempt(
                points,
                row_ids,
                rows,
                words,
                attempt * stride,
                table,
                grid,
                streams,
                out,
            )
            again.append(rows[status == _AGAIN])
        todo = np.concatenate(again)
        attempt += 1
    reach = reach_of(table.epsilon, table.L, table.dimension)
    low, high = index_range(reach, grid)
    np.clip(out, low, high, out=out)
    return out


def _attempt(
    points: NDArray[np.float64],
    row_ids: NDArray[np.uint64],
    rows: NDArray[np.int64],
    words: NDArray[np.uint64],
    first: int,
    table: Table,
    grid: float,
    streams: RowStreams,
    out: Indices,
) -> NDArray[np.uint8]:
    """One attempt of some rows; writes what is decided and says which start again."""
    d = points.shape[1]
    component = np.empty(len(rows), dtype=np.int64)
    limit = np.uint64(int(table.upper[-1]) + table.rare)
    _select(words[:, 0], table.upper, limit, table.guide, component)
    last = len(table.outer) - 1
    if math.isinf(table.outer[last]):
        component[component == last] = _CUBE
    status = np.full(len(rows), _AGAIN, dtype=np.uint8)

    cube = np.flatnonzero(component == _CUBE)
    if cube.size:
        start, side = -table.L / grid, (1.0 + 2.0 * table.L) / grid
        _cube(words, cube, rows, start, side, out, status)

    ball = np.flatnonzero(component >= 0)
    if ball.size:
        normals = np.empty((ball.size, d + 2), dtype=np.uint64)
        _gather(words, ball, normals)
        hi, lo, error = (
            part.reshape(normals.shape) for part in enclose(normals.reshape(-1))
        )
        _ball(
            points,
            words,
            ball,
            rows,
            hi,
            lo,
            error,
            table.outer,
            component,
            table.epsilon,
            table.step,
            1.0 / grid,
            out,
            status,
        )

    left = np.flatnonzero((status == _OPEN) | (component == _RARE))
    for i in map(int, left):
        row = int(rows[i])
        own = exact.RowWords(streams, int(row_ids[row]), first, words[i].tolist())
        radius = float(table.outer[component[i]]) if component[i] >= 0 else math.inf
        if component[i] == _RARE:
            rare = exact.rare_radius(table, own)
            if rare is None:
                status[i] = _AGAIN
                continue
            radius = rare
        decided = _decide(table, radius, points[row], grid, own)
        status[i] = _AGAIN if decided is None else _DONE
        if decided is not None:
            out[row] = [min(max(i, -_FARTHEST), _FARTHEST) for i in decided]
    return status


def _decide(
    table: Table,
    radius: float,
    point: NDArray[np.float64],
    grid: float,
    words: exact.RowWords,
) -> list[int] | None:
    if math.isinf(radius):
        return exact.cube_indices(table, grid, words, range(len(point)))
    return exact.ball_indices(table, radius, point.tolist(), grid, words)


# Everything the kernels need is in this file or an argument: numba's cache does not
# notice when a function in another file changes.
@njit(cache=True, nogil=True)
def _select(
    words: NDArray[np.uint64],
    upper: NDArray[np.uint64],
    limit: np.uint64,
    guide: NDArray[np.int64],
    component: NDArray[np.int64],
) -> None:
    for r in range(words.size):
        place = words[r] >> np.uint64(2)
        i = guide[place >> np.uint64(50)]
        while i < upper.size and place >= upper[i]:
            i += 1
        component[r] = i
        if i == upper.size:
            component[r] = _RARE if place < limit else _NONE


@njit(cache=True, nogil=True)
def _gather(
    words: NDArray[np.uint64], where: NDArray[np.int64], out: NDArray[np.uint64]
) -> None:
    for r in range(where.size):
        for j in range(out.shape[1]):
            out[r, j] = words[where[r], 2 + j]


@njit(cache=True, fastmath=False, nogil=True)
def _cube(
    words: NDArray[np.uint64],
    where: NDArray[np.int64],
    rows: NDArray[np.int64],
    start: float,
    width: float,
    out: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> None:
    decided = 0.5 - (width - start) * 2.0**-50
    for i in where:
        state = _DONE
        for j in range(out.shape[1]):
            f = start + width * (np.float64(words[i, 2 + j]) * 2.0**-64)
            near = np.rint(f)
            if not abs(f - near) < decided:
                state = _OPEN
            out[rows[i], j] = np.int64(near)
        status[i] = state


# `where` are the rows of `words` at hand, `rows` their places in `points` and `out`;
# hi, lo and err have one row for each of `where`.
@njit(cache=True, fastmath=False, nogil=True)
def _ball(
    points: NDArray[np.float64],
    words: NDArray[np.uint64],
    where: NDArray[np.int64],
    rows: NDArray[np.int64],
    hi: NDArray[np.float64],
    lo: NDArray[np.float64],
    err: NDArray[np.float64],
    outer: NDArray[np.float64],
    component: NDArray[np.int64],
    epsilon: float,
    step: float,
    per_grid: float,
    out: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> None:
    d = points.shape[1]
    edge = epsilon * step
    whole_edge = np.expm1(edge)
    for r in range(where.size):
        i = where[r]
        row = rows[i]
        o = outer[component[i]]
        total, low_bits, errors = 0.0, 0.0, 0.0
        for run in range(0, d, 64):
            part = 0.0
            for j in range(run, min(run + 64, d)):
                z = hi[r, j] + lo[r, j]
                part += z * z
                errors += err[r, j] * err[r, j]
            both = total + part
            if total >= part:
                low_bits += (total - both) + part
            else:
                low_bits += (part - both) + total
            total = both
        inside = total + low_bits
        q = 0.0
        for j in range(d, d + 2):
            z = hi[r, j] + lo[r, j]
            q += z * z
            errors += err[r, j] * err[r, j]
        n = np.sqrt(inside + q)
        e = 1.01 * np.sqrt(errors)
        if not e < 2.0**-10 * n:  # a normal beyond 7.6, or one whose bound is poor
            status[i] = _OPEN
            continue
        over = epsilon * o / (n * (n + np.sqrt(inside)))
        x = over * q
        dx = x * (3.0 * e / n + 2.0**-44) + 1.01 * over * e * (2.0 * np.sqrt(q) + e)
        if not x - dx > edge * (1.0 + 2.0**-40):
            chance = np.expm1(x) / whole_edge
            off = 2.0 * dx / whole_edge + 2.0**-38 * (1.0 + chance)
            u = np.float64(words[i, 1]) * 2.0**-64
            if u > chance + off:
                status[i] = _AGAIN
                continue
            if not u < chance - off:
                status[i] = _OPEN
                continue
        scale = o * per_grid / n
        relative = 1.02 * e / n + 2.0**-45
        decided = 0.5 - 1.02 * scale * e - 2.0**-50
        state = _DONE
        for j in range(d):
            at = points[row, j] * per_grid
            whole = np.rint(at)
            moved = scale * (hi[r, j] + lo[r, j])
            back = words[i, 2 + j] >> np.uint64(63)
            f = (at - whole) + (-moved if back else moved)
            near = np.rint(f)
            if not abs(f - near) < decided - abs(moved) * relative:
                state = _OPEN
            out[row, j] = np.int64(whole) + np.int64(near)
        status[i] = state
