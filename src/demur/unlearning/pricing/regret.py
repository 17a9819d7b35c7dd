"""Regret bounds of learning and of deletions: the second limit on the capacity.

Strongly convex descent takes steps eta_t = 1 / (lambda (t + t0)), t = 1, 2, ...;
gradients of the data are at most G, those of the loss at most G' = G + lambda R, and
projection onto the ball of radius R keeps |w - u| <= D = 2 R. With
a_t = |w_t - u|^2, strong convexity and one step give

    f_t(w_t) - f_t(u) <= lambda (t + t0) / 2 (a_t - a_{t+1}) - lambda / 2 a_t
                         + eta_t G'^2 / 2,

which sums to R_ins = lambda t0 D^2 / 2 + G'^2 / (2 lambda) ln((T + t0) / t0). A
deletion after step t replaces w by w + xi, xi of deviation z Delta in each coordinate,
Delta = G / (lambda (t + t0)). In the sum this is lambda (t + t0) / 2 = G / (2 Delta)
times (2 <w - u, xi> + |xi|^2), and projection only shrinks it. The first parts are a
martingale with Gaussian increments of deviation at most G D z, the second ones scaled
chi-squares; with probability 1 - delta_B (half for each),

    R_del(m) <= G D z sqrt(2 m ln(2 / delta_B))
                + m z^2 G Delta / 2 (sqrt d + sqrt(2 ln(2 m / delta_B)))^2.

u must not depend on the noise. Delta falls with the clock, so its value when the
odometer is finalised serves for all later deletions. A mode that noises its published
copy alone (`output`) does not disturb the descent; each prediction then loses at most
G |xi|.

A deletion with c times the noise (several records, or a person's later request) counts
as c^2 deletions: both sums of R_del add up z^2, and the logarithm of m grows.
"""

from __future__ import annotations

import math


def fixed_curvature_regret(
    G: float, D: float, T: int, *, c: float = 1.0, C: float = 1.0
) -> float:
    """G D sqrt((C/c) T): descent in the norm of a fixed B with c I <= B <= C I."""
    return G * D * math.sqrt((C / c) * T)


def strongly_convex_regret(
    G: float, D: float, T: int, *, lam: float, radius: float, t0: float
) -> float:
    """R_ins of strongly convex descent; see the module's argument."""
    whole = G + lam * radius
    start = lam * t0 * D * D / 2.0
    return start + whole * whole / (2.0 * lam) * math.log((T + t0) / t0)


def deletion_regret(
    m: int,
    z: float,
    *,
    G: float,
    D: float,
    shift: float,
    dimension: int,
    delta_B: float,
) -> float:
    """R_del(m) for noise that enters the state; see the module's argument."""
    if m == 0:
        return 0.0
    wander = G * D * z * math.sqrt(2.0 * m * math.log(2.0 / delta_B))
    width = math.sqrt(dimension) + math.sqrt(2.0 * math.log(2.0 * m / delta_B))
    return wander + m * z * z * G * shift / 2.0 * width * width


def output_regret(
    m: int, z: float, *, G: float, shift: float, dimension: int, T: int, delta_B: float
) -> float:
    """T rounds under a published copy whose noise has deviation z * shift."""
    if m == 0:
        return 0.0
    width = math.sqrt(dimension) + math.sqrt(2.0 * math.log(m / delta_B))
    return T * G * z * shift * width


def seed_insertion_regret(G: float, D: float, T: int, *, c: float, C: float) -> float:
    """The seed's G D sqrt(c C T), verbatim: its units are not those of a loss."""
    return G * D * math.sqrt(c * C * T)


def seed_deletion_regret(
    m: int,
    *,
    L: float,
    lam: float,
    epsilon: float,
    delta: float,
    delta_B: float,
) -> float:
    """The seed's R_del(m), verbatim: its units are not those of a loss."""
    inner = 2.0 * math.log(1.25 * max(m, 1) / delta) / epsilon
    return (m * L / lam) * math.sqrt(inner * (2.0 * math.log(1.0 / delta_B)))
