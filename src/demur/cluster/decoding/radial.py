"""The density of a report from a round cluster, as a table over distance and width.

A cluster is N(mu, s^2 I) (or a Student-t of the same scale) and its points are reported
with a noise that depends on the distance alone. The density of a report at distance r
from mu is then a function of r and s:

    f(r, s) = E[noise density at R],   R = |r e_1 + s Z|,  Z standard normal in R^d.

R has the noncentral chi law,

    p(rho) = rho / s^2 (rho / r)^v exp(-(rho^2 + r^2) / 2 s^2) I_v(rho r / s^2)

with v = d/2 - 1, and the noise density of BPM is lambda_L exp(-k min(R, L)), so that

    f = lambda_L (e^(-kL) + int_0^L (e^(-k rho) - e^(-kL)) p(rho) d rho),

one smooth integral, taken by Gauss-Legendre panels no wider than four widths of p and
ten of the exponential. It holds for every L, the uniform floor included. Nothing is
approximated but the integral and the interpolation between the nodes of the table
(a bicubic spline of log f); `tests/cluster/test_radial.py` bounds both.

A point of the tail of N(mu, s^2 I) may lie outside the cube, where BPM is not defined;
the formula is continued there. A Student-t with `nu` degrees of freedom is the mixture
of N(mu, s^2 / u I) over u ~ Gamma(nu/2, rate nu/2), at a few Gauss-Laguerre nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import interpolate, special

from demur.cluster.decoding.noise import GaussianNoise, Noise, PureNoise

Array = NDArray[np.float64]

LARGEST_NU = 300.0  # a t with more degrees of freedom is a Gaussian in any noise
WIDEST = 0.5  # no spread inside [0, 1] has a larger deviation
_WIDTHS_STEP = 0.12  # of log s
_PANEL_NODES = 20
_STUDENT_NODES = 12
_LOG_TAU_STEP = 0.05
_REACH = 9.0  # standard deviations of R that are integrated over
_LARGE_ORDER = 20.0  # from here on the Bessel function by its uniform expansion
_FAR = 1e7  # from here on by its expansion in 1/z
_WHOLE_ORDERS = {0.0: special.i0e, 1.0: special.i1e}  # these take a tenth of the time
_MOST_NODES = 4000


@dataclass(frozen=True, eq=False)
class RadialTable:
    """log f at the nodes r = i * step and log s = first + j * width_step.

    The four arrays (value, d/dr, d/d log s, and the mixed derivative) determine a
    bicubic piece between any four nodes. Beyond the last r the table goes on as a
    straight line, which is what log f tends to.
    """

    step: float
    first: float
    width_step: float
    value: Array
    by_r: Array
    by_width: Array
    by_both: Array

    @property
    def narrowest(self) -> float:
        """The smallest s of the table; anything narrower is invisible in the noise."""
        return math.exp(self.first)

    @property
    def log_widths(self) -> tuple[float, float]:
        """The range of log s."""
        return self.first, self.first + self.width_step * (len(self.value) - 1)

    def at(self, log_width: float) -> Array:
        """Four rows over r at one width: log f, its slope, and both by log s."""
        last = len(self.value) - 2
        place = (log_width - self.first) / self.width_step
        j = min(max(int(place), 0), last)
        t = place - j
        h = self.width_step
        # Cubic Hermite weights of the two values and the two derivatives.
        a, b = (1 + 2 * t) * (1 - t) ** 2, t * t * (3 - 2 * t)
        c, e = h * t * (1 - t) ** 2, h * t * t * (t - 1)
        da, dc = 6 * t * (t - 1) / h, (1 - t) * (1 - 3 * t)
        de = t * (3 * t - 2)
        rows = np.empty((4, self.value.shape[1]))
        parts = (self.value, self.by_width), (self.by_r, self.by_both)
        for i, (values, slopes) in enumerate(parts):
            v, v_next, w, w_next = values[j], values[j + 1], slopes[j], slopes[j + 1]
            rows[i] = a * v + b * v_next + c * w + e * w_next
            rows[2 + i] = da * (v - v_next) + dc * w + de * w_next
        return rows

    def at_all(self, log_widths: Array) -> Array:
        """`at` for each of some widths."""
        tables = self.value, self.by_r, self.by_width, self.by_both
        return _profiles(
            *tables,
            np.asarray(log_widths, dtype=np.float64),
            self.first,
            self.width_step,
        )

    def log_density(self, r: Array, width: float) -> Array:
        """log f(r, s), for tests and small inputs."""
        value, slope = self.at(math.log(width))[:2]
        x = np.asarray(r) / self.step
        i = np.minimum(x.astype(np.intp), len(value) - 2)
        t = np.minimum(x - i, 1.0)
        beyond = np.maximum(x - i - 1.0, 0.0) * self.step
        h = self.step
        log_f = (1 + 2 * t) * (1 - t) ** 2 * value[i]
        log_f = log_f + t * t * (3 - 2 * t) * value[i + 1]
        log_f += h * t * (1 - t) ** 2 * slope[i] + h * t * t * (t - 1) * slope[i + 1]
        return np.asarray(log_f + beyond * slope[-1])


@njit(cache=True, nogil=True)
def _profiles(
    value: Array,
    by_r: Array,
    by_width: Array,
    by_both: Array,
    log_widths: Array,
    first: float,
    h: float,
) -> Array:
    """As `RadialTable.at`, without its dozens of small arrays."""
    nodes = value.shape[1]
    rows = np.empty((len(log_widths), 4, nodes))
    for i in range(len(log_widths)):
        place = (log_widths[i] - first) / h
        j = min(max(int(place), 0), len(value) - 2)
        t = place - j
        a, b = (1 + 2 * t) * (1 - t) ** 2, t * t * (3 - 2 * t)
        c, e = h * t * (1 - t) ** 2, h * t * t * (t - 1)
        da, dc = 6 * t * (t - 1) / h, (1 - t) * (1 - 3 * t)
        de = t * (3 * t - 2)
        for m in range(nodes):
            v, v_next = value[j, m], value[j + 1, m]
            w, w_next = by_width[j, m], by_width[j + 1, m]
            rows[i, 0, m] = a * v + b * v_next + c * w + e * w_next
            rows[i, 2, m] = da * (v - v_next) + dc * w + de * w_next
            v, v_next = by_r[j, m], by_r[j + 1, m]
            w, w_next = by_both[j, m], by_both[j + 1, m]
            rows[i, 1, m] = a * v + b * v_next + c * w + e * w_next
            rows[i, 3, m] = da * (v - v_next) + dc * w + de * w_next
    return rows


@lru_cache(maxsize=16)
def radial_table(noise: Noise, nu: float | None) -> RadialTable:
    """The table of one noise; a function of public numbers, so it may be cached."""
    # A width of 3% of the noise's deviation makes no visible difference.
    narrowest = min(0.05, max(0.005, 0.03 * noise.deviation))
    count = max(4, math.ceil(math.log(WIDEST / narrowest) / _WIDTHS_STEP) + 1)
    log_widths = np.linspace(math.log(narrowest), math.log(WIDEST), count)
    furthest = noise.furthest(WIDEST)
    nodes = min(_MOST_NODES, max(200, math.ceil(furthest / (narrowest / 1.5))))
    r = np.linspace(0.0, furthest, nodes)
    if nu is None or nu >= LARGEST_NU:
        table = _rows(noise, r, log_widths)
    else:
        table = _student_rows(noise, r, log_widths, nu)
    spline = interpolate.RectBivariateSpline(log_widths, r, table)
    parts = [spline(log_widths, r, dx=dx, dy=dy) for dx, dy in ((0, 1), (1, 0), (1, 1))]
    step, width_step = float(r[1]), float(log_widths[1] - log_widths[0])
    return RadialTable(step, float(log_widths[0]), width_step, table, *parts)


def _rows(noise: Noise, r: Array, log_widths: Array) -> Array:
    return np.stack([log_density(noise, r, float(s)) for s in np.exp(log_widths)])


def log_density(noise: Noise, r: Array, s: float) -> Array:
    """log f(r, s), exactly."""
    if isinstance(noise, GaussianNoise):
        variance = noise.sigma**2 + s * s
        square = r * r / variance
        return -0.5 * (square + noise.block * math.log(2 * math.pi * variance))
    if math.isinf(noise.threshold):
        return smoothed_laplace(noise, r, s)
    return smoothed_exponential(noise, r, s)


def _student_rows(noise: Noise, r: Array, log_widths: Array, nu: float) -> Array:
    """The t as a mixture over widths, from one table over all the widths it needs."""
    nodes, weights = special.roots_genlaguerre(_STUDENT_NODES, nu / 2 - 1)
    relevant = weights > 1e-12 * weights.sum()
    shifts = 0.5 * np.log(nu / (2 * nodes[relevant]))
    logs = np.log(weights[relevant] / weights[relevant].sum())
    low, high = log_widths[0] + shifts.min(), log_widths[-1] + shifts.max()
    widths = np.linspace(low, high, math.ceil((high - low) / _WIDTHS_STEP) + 1)
    along = interpolate.CubicSpline(widths, _rows(noise, r, widths))
    parts = [
        along(log_widths + shift) + log for shift, log in zip(shifts, logs, strict=True)
    ]
    return _log_sum(np.stack(parts), 0)


def smoothed_laplace(noise: PureNoise, r: Array, s: float) -> Array:
    """log f(r, s) at L = infinity: N(0, (tau + s^2) I) over tau, see `scale_mixture`.

    The trapezoidal rule in log tau, from where tau is nothing beside s^2.
    """
    shape = 0.5 * (noise.block + 1.0)
    rate = 0.5 * noise.rate**2
    top = math.log(float(special.gammaincinv(shape, 1.0 - 1e-15)) / rate)
    # A far report asks for a large tau: the integrand peaks near tau = r / k.
    top = max(top, math.log(float(r.max()) / noise.rate) + 3.0)
    bottom = min(math.log(1e-7 * s * s), top - 5.0)
    logs = np.linspace(bottom, top, math.ceil((top - bottom) / _LOG_TAU_STEP) + 1)
    tau = np.exp(logs)
    masses = shape * (logs + math.log(rate)) - rate * tau - math.lgamma(shape)
    masses += math.log(logs[1] - logs[0])
    variance = tau + s * s
    masses -= 0.5 * noise.block * np.log(2 * math.pi * variance)
    return _log_sum(masses - 0.5 * (r * r)[:, None] / variance, 1)


def _log_sum(terms: Array, axis: int) -> Array:
    """log(sum(exp(terms))), -inf where all of them are; the last digit may differ.

    scipy's takes complex numbers, signs and all kinds of arrays, and thrice the time.
    """
    top = np.maximum(terms.max(axis=axis, keepdims=True), -1e300)
    with np.errstate(divide="ignore"):
        sums = np.log(np.exp(terms - top).sum(axis=axis))
    return np.asarray(sums + top.squeeze(axis))


def smoothed_exponential(noise: PureNoise, r: Array, s: float) -> Array:
    """log f(r, s) of BPM or multivariate Laplace noise, by quadrature."""
    floor = -noise.rate * noise.threshold
    return noise.log_peak + np.logaddexp(log_excess(noise, r, s), floor)


def log_excess(noise: PureNoise, r: Array, s: float) -> Array:
    """log E[e^(-k R) - e^(-kL) where R < L], the part above the uniform floor."""
    k, L, d = noise.rate, noise.threshold, noise.block
    middle = np.sqrt(r * r + (d - 1) * s * s)
    low = np.maximum(middle - k * s * s - _REACH * s, 0.0)
    high = np.minimum(middle + _REACH * s, L)
    panels = max(1, math.ceil(float((high - low).max()) / min(4.0 * s, 10.0 / k)))
    nodes, weights = special.roots_legendre(_PANEL_NODES)
    inside = (0.5 + 0.5 * nodes + np.arange(panels)[:, None]).reshape(-1) / panels
    share = np.log(np.tile(0.5 * weights / panels, panels))
    length = high - low
    logs = np.full(len(r), -np.inf)
    # Far out of the ball nothing but the floor is left.
    some = np.flatnonzero(length > 0.0)
    for rows in np.array_split(some, max(1, len(some) * len(inside) // 500_000)):
        rho = low[rows, None] + length[rows, None] * inside
        terms = share + np.log(length[rows, None])
        terms = terms - k * rho + _log_chi(rho, r[rows, None], s, d)
        if math.isfinite(L):
            with np.errstate(divide="ignore"):  # a node that is rounded to L
                terms += np.log(-np.expm1(-k * (L - rho)))
        logs[rows] = _log_sum(terms, 1)
    return logs


def _log_chi(rho: Array, r: Array, s: float, d: int) -> Array:
    """log density of R = |r e_1 + s Z| at rho."""
    x, y = rho / s, r / s
    if d == 1:
        return (
            -0.5 * (x - y) ** 2
            + np.log1p(np.exp(-2.0 * x * y))
            - math.log(s * math.sqrt(2 * math.pi))
        )
    order = 0.5 * d - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        z = x * y
        general = (
            np.log(x)
            - math.log(s)
            + order * (np.log(x) - np.log(y))
            - 0.5 * (x - y) ** 2
            + _log_scaled_bessel(order, z)
        )
        # The limit of a small argument, where the Bessel function may underflow:
        # I_v(z) = (z/2)^v / Gamma(v + 1) (1 + O(z^2)).
        central = (
            (d - 1) * np.log(x)
            - math.log(s)
            - 0.5 * (x * x + y * y)
            - order * math.log(2.0)
            - math.lgamma(order + 1.0)
            + np.log1p(z * z / (4.0 * (order + 1.0)))
        )
    return np.where(z < 1e-3, central, general)


def _log_scaled_bessel(order: float, z: Array) -> Array:
    """log(I_v(z) e^-z)."""
    if order in _WHOLE_ORDERS:
        return np.log(_WHOLE_ORDERS[order](z))
    if order < _LARGE_ORDER:
        # scipy gives up on arguments from about 1e9 on; long before, the next term of
        # Hankel's expansion is below 1e-9.
        far = np.log1p(-(4 * order**2 - 1) / (8 * z)) - 0.5 * np.log(2 * math.pi * z)
        return np.where(z > _FAR, far, np.log(special.ive(order, np.minimum(z, _FAR))))
    # Debye's uniform expansion in 1/v; its next term is below 2e-8 from v = 20 on.
    t = z / order
    root = np.sqrt(1.0 + t * t)
    p = 1.0 / root
    q = p * p
    u1 = p * (3 - 5 * q) / 24
    u2 = q * (81 - 462 * q + 385 * q * q) / 1152
    u3 = p * q * (30375 - 369603 * q + 765765 * q * q - 425425 * q**3) / 414720
    series = np.log1p(u1 / order + u2 / order**2 + u3 / order**3)
    # order * eta - z without its cancellation: root - t = 1 / (root + t).
    exponent = order * (1.0 / (root + t) + np.log(t / (1.0 + root)))
    return exponent - 0.5 * np.log(2 * math.pi * order * root) + series
