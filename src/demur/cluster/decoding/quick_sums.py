"""The sums of `likelihood` for the chains: many mixtures, in a quarter of the time.

Chains need the likelihood of thousands of mixtures, of few reports that lie in memory
in one order. Their sums need not be exact (`exact_sums`), so that the compiler may add
in any order: reports lie by column, and every loop runs over 128 of them and does one
thing, eight at a time where the processor can. The sums are those of the exact pass to
about 1e-13 (`tests/cluster/test_quick_sums.py`). Noise by coordinate has no such pass.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BLOCK = 128  # reports: what a block needs stays in the processor's first cache
_WIDE = 32  # blocks are whole multiples: what is left over would go one by one
_LOGS = 16  # sums of up to K shares, multiplied before their logarithm is taken
# No infinities or other surprises are given away: places beyond the table are finite.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


def in_columns(reports: Array) -> Array:
    """Reports by column, the last one repeated up to a whole block."""
    more = -len(reports) % _WIDE
    return np.pad(reports, ((0, more), (0, 0)), mode="edge").T.copy()


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def quick_sums(
    columns: Array,
    count: int,
    centers: Array,
    log_weights: Array,
    profiles: Array,
    step: float,
    mixtures: int,
) -> Array:
    """A row of each mixture: log f, slopes by log widths, masses, slopes by centres.

    The arguments are those of `likelihood.LikelihoodSums`, the first `count` columns
    of `in_columns` being the reports.
    """
    d, n = columns.shape  # n is a multiple of _WIDE
    k = len(centers) // mixtures
    last = profiles.shape[2] - 2
    highest, inverse = float(last), 1.0 / step
    sums = np.zeros((mixtures, 1 + 2 * k + k * d))
    logs, pulls = np.empty((k, _BLOCK)), np.empty((k, _BLOCK))
    widths = np.empty((k, _BLOCK))
    square, radius = np.empty(_BLOCK), np.empty(_BLOCK)
    place = np.empty(_BLOCK, np.uint32)
    top, total = np.empty(_BLOCK), np.empty(_BLOCK)
    for m in range(mixtures):
        for start in range(0, n, _BLOCK):
            size = min(_BLOCK, n - start)
            for j in range(k):
                center = centers[m * k + j]
                value, slope = profiles[m * k + j, 0], profiles[m * k + j, 1]
                by_w, by_w_slope = profiles[m * k + j, 2], profiles[m * k + j, 3]
                log_weight = log_weights[m * k + j]
                log_f, pull, width = logs[j], pulls[j], widths[j]
                for i in range(size):
                    square[i] = 0.0
                for a in range(d):
                    # A view: indices that begin at 0 are known not to be negative.
                    column, middle = columns[a, start : start + size], center[a]
                    for i in range(size):
                        gap = column[i] - middle
                        square[i] += gap * gap
                for i in range(size):
                    radius[i] = np.sqrt(square[i])
                for i in range(size):
                    place[i] = np.uint32(min(radius[i] * inverse, highest))
                for i in range(size):
                    u = place[i]
                    v = np.uint32(u + np.uint32(1))
                    x = radius[i] * inverse - float(u)
                    t = min(x, 1.0)
                    over = (x - t) * step  # beyond the last node
                    q = 1.0 - t
                    h1 = t * t * (3.0 - 2.0 * t)
                    h0 = 1.0 - h1
                    g0, g1 = step * t * q * q, -step * t * t * q
                    v0, v1, s0, s1 = value[u], value[v], slope[u], slope[v]
                    log_f[i] = log_weight + h0 * v0 + h1 * v1 + g0 * s0
                    log_f[i] += (g1 + over) * s1
                    width[i] = h0 * by_w[u] + h1 * by_w[v] + g0 * by_w_slope[u]
                    width[i] += (g1 + over) * by_w_slope[v]
                    steep = 6.0 * t * q * inverse * (v1 - v0)
                    steep += q * (1.0 - 3.0 * t) * s0 + t * (3.0 * t - 2.0) * s1
                    pull[i] = steep / max(radius[i], 1e-300)
            for i in range(size):
                top[i] = logs[0, i]
                total[i] = 0.0
            for j in range(1, k):
                for i in range(size):
                    top[i] = max(top[i], logs[j, i])
            for j in range(k):
                log_f = logs[j]
                for i in range(size):
                    # e^x = (e^(x / 256))^256, by its series: no call of a function.
                    x = max(log_f[i] - top[i], -60.0) / 256.0
                    e = 1.0 + x / 6.0 * (1.0 + x / 7.0 * (1.0 + x / 8.0))
                    e = 1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * e))
                    e = 1.0 + x * (1.0 + x / 2.0 * e)
                    e *= e
                    e *= e
                    e *= e
                    e *= e
                    e *= e
                    e *= e
                    e *= e
                    e *= e
                    log_f[i] = e
                    total[i] += e
            likelihood, product = 0.0, 1.0
            real = min(size, count - start)
            for i in range(real):
                likelihood += top[i]
            for i in range(real):
                product *= total[i]
                if i % _LOGS == _LOGS - 1:
                    likelihood += np.log(product)
                    product = 1.0
            sums[m, 0] += likelihood + np.log(product)
            for i in range(size):
                total[i] = 1.0 / total[i]
            for i in range(real, size):
                total[i] = 0.0
            for j in range(k):
                share, pull, width = logs[j], pulls[j], widths[j]
                mass, by_width = 0.0, 0.0
                for i in range(size):
                    s = share[i] * total[i]
                    mass += s
                    by_width += s * width[i]
                    pull[i] *= s
                sums[m, 1 + j] += by_width
                sums[m, 1 + k + j] += mass
                for a in range(d):
                    column = columns[a, start : start + size]
                    middle, by_center = centers[m * k + j, a], 0.0
                    for i in range(size):
                        by_center += pull[i] * (middle - column[i])
                    sums[m, 1 + 2 * k + j * d + a] += by_center
    return sums
