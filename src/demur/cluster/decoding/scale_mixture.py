"""Noise as a scale mixture of Gaussians, for clusters that are not round.

Multivariate Laplace noise is N(0, tau I) with tau ~ Gamma((d + 1) / 2, rate k^2 / 2):
the density exp(-k r) is completely monotone in r^2, and the Bessel function of the
general case is elementary at this order (K_1/2). Under N(mu, Sigma) clusters a report
is then a mixture of N(mu, Sigma + tau_q I) over nodes tau_q: closed forms for all.

At a finite L the part above the uniform floor, (e^(-kr) - e^(-kL))+ / A, has a bounded
support and is no such mixture; its best approximation with positive weights is found by
non-negative least squares on the radial density. What that costs is measured as a total
variation distance, `Nodes.distance`: up to 0.025 where the edge of the ball matters,
1e-3 or less at L = "auto" (0.01 in one dimension). Round clusters (`radial`) need
none of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, special, stats

from demur.cluster.decoding.noise import GaussianNoise, Noise, PureNoise
from demur.cluster.decoding.radial import log_excess
from demur.mechanisms.bpm import BPM

Array = NDArray[np.float64]

_NODES = 24
_FAR_STEP = 0.5  # of log tau, beyond what is drawn
_CANDIDATES = 24
_RADII = 400
_SMOOTHING = 0.03  # clusters have some width: finer detail of the kernel is not seen


@dataclass(frozen=True, eq=False)
class Nodes:
    """Noise = informative * sum_q weights_q N(0, variances_q I) + uniform floor."""

    variances: Array
    weights: Array
    informative: float
    log_floor: float  # log of the uniform part's density, its weight included
    distance: float  # total variation distance to the exact noise, about


@lru_cache(maxsize=16)
def scale_mixture(noise: Noise) -> Nodes:
    """The nodes of one noise."""
    if isinstance(noise, GaussianNoise):
        return Nodes(np.array([noise.sigma**2]), np.ones(1), 1.0, -math.inf, 0.0)
    if math.isinf(noise.threshold):
        variances, weights = _gamma_nodes(noise)
        return Nodes(variances, weights, 1.0, -math.inf, 0.0)
    law = BPM(noise.rate, noise.threshold, noise.block)
    side = noise.block * math.log1p(2.0 * noise.threshold)
    log_floor = math.log(law.uniform_weight) - side
    variances, weights, distance = _fitted_nodes(noise)
    return Nodes(variances, weights, law.alpha, log_floor, law.alpha * distance)


def _gamma_nodes(noise: PureNoise) -> tuple[Array, Array]:
    """The trapezoidal rule in log tau, which converges exponentially.

    A report at distance r asks for tau near r / k. Nodes go on until that of the
    farthest report there is: past the last one the tail would be a Gaussian's, and one
    client who reports what nobody draws would pull a cluster after it. The density need
    not be precise there: in high dimension these nodes lie further apart.
    """
    shape = 0.5 * (noise.block + 1.0)
    ends = np.log(special.gammaincinv(shape, [1e-7, 1.0 - 1e-9]))
    low, high = (float(end) for end in ends)
    step = (high - low) / (_NODES - 1)
    reach = BPM(noise.rate, math.inf, noise.block).reach
    apart = max(step, _FAR_STEP)
    further = max(0, int((math.log(0.5 * noise.rate * reach) - high) / apart))
    steps = np.repeat([step, apart], [_NODES, further])
    logs = low + np.cumsum(steps) - step
    weights = steps * np.exp(shape * logs - np.exp(logs) - special.gammaln(shape))
    weights /= weights.sum()
    return np.exp(logs) * 2.0 / noise.rate**2, weights


def _fitted_nodes(noise: PureNoise) -> tuple[Array, Array, float]:
    d, L = noise.block, noise.threshold
    # What a multivariate Laplace kernel would use, cut to what a ball of radius L can.
    usual = special.gammaincinv(0.5 * (d + 1.0), [1e-6, 1.0 - 1e-9]) * 2.0
    low, high = usual / noise.rate**2
    top, bottom = min(L * L, high), min(low, 0.02 * L * L / d)
    variances = np.geomspace(bottom, top, _CANDIDATES)
    # Where the mass is, not the whole range: in high dimension it is a thin shell.
    reach = min(L, float(special.gammaincinv(d + 1, 1.0 - 1e-7)) / noise.rate)
    r = np.linspace(0.0, reach + 6.0 * _SMOOTHING, _RADII + 1)[1:]
    log_shell = (d - 1.0) * np.log(r)
    target = log_excess(noise, r, _SMOOTHING) + log_shell
    target = np.exp(target - target.max())
    target /= integrate.simpson(target, x=r)
    deviations = np.sqrt(variances + _SMOOTHING**2)
    columns = stats.chi.pdf(r[:, None] / deviations, d) / deviations
    # Pearson's distance: errors count relative to the density, down to 1% of its top.
    scale = 1.0 / np.sqrt(target + 0.01 * target.max())
    weights, _ = optimize.nnls(
        columns * scale[:, None], target * scale, maxiter=100 * _CANDIDATES
    )
    weights /= weights.sum()
    used = weights > 1e-6
    gap = np.abs(columns @ weights - target)
    distance = 0.5 * float(integrate.simpson(gap, x=r))
    return variances[used], weights[used] / weights[used].sum(), distance
