"""BPM by the paper's own sampler (Algorithms 2 to 4), in floating point: for tests.

With probability p_L the report lies in the ball of radius L around v: a radius from the
Gamma(d, rate k) law cut off at L, and a uniform direction. Otherwise it is uniform on
the part of the cube outside the ball, found by rejection (for d >= 2 at least
1 - V_d / 2^d of the tries succeed; on a line there is nothing to try). The law is that
of `sampler`; the bits are not: floating point reveals the point under it, so that this
sampler is for tests and takes a seed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.mechanisms.bpm.constants import constants, log_gamma_p

Values = NDArray[np.float64]


def two_stage(
    points: Values, epsilon: float, L: float, rng: np.random.Generator
) -> Values:
    """One report for each point. NOT PRIVATE in its last bits."""
    n, d = points.shape
    if L == 0.0:
        return rng.random((n, d))
    inside = rng.random(n) < math.exp(constants(epsilon, L, d).log_p)
    out = np.empty((n, d))
    near = np.flatnonzero(inside)
    direction = rng.normal(size=(near.size, d))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    radius = inside_radii(near.size, d, epsilon, L, rng)
    out[near] = points[near] + radius[:, None] * direction
    out[~inside] = outside_ball(points[~inside], L, rng)
    return out


def outside_ball(points: Values, L: float, rng: np.random.Generator) -> Values:
    """Uniform on the cube outside the ball around each point (Algorithm 3)."""
    n, d = points.shape
    if d == 1:
        # What is left is [-L, v - L] and [v + L, 1 + L], of lengths v and 1 - v: one in
        # 1 + 2L tries would succeed.
        u = rng.random((n, 1))
        return np.where(u < points, u - L, u + L)
    out = np.empty((n, d))
    left = np.arange(n)
    while left.size:
        tried = rng.random((left.size, d)) * (1.0 + 2.0 * L) - L
        out[left] = tried
        left = left[np.linalg.norm(tried - points[left], axis=1) <= L]
    return out


def inside_radii(
    count: int, d: int, epsilon: float, L: float, rng: np.random.Generator
) -> Values:
    """Radii of density proportional to r^(d-1) e^(-kr) on (0, L)."""
    x = epsilon * L
    if x >= d:
        top = math.exp(log_gamma_p(d, x))
        return np.asarray(special.gammaincinv(d, top * rng.random(count)) / epsilon)
    # P(d, kL) may underflow here. With s = r / L, s^(d-1) e^(-xs) is at most
    # s^(d-1-x) e^-x, a power law, because -xs <= -x - x log s.
    out = np.empty(count)
    left = np.arange(count)
    while left.size:
        s = rng.random(left.size) ** (1.0 / (d - x))
        with np.errstate(divide="ignore"):
            accepted = np.log(rng.random(left.size)) < x * (1.0 - s + np.log(s))
        out[left] = L * s
        left = left[~accepted]
    return out
