"""Mechanisms as black boxes, correct and broken, for the audits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from demur import AddOrRemoveOne, Seeded
from demur.core.entropy import NoiseKey
from demur.mechanisms import BPM, Gaussian

UNIT = AddOrRemoveOne()
SIGMA = 2.0


def key_of(source: Seeded) -> NoiseKey:
    return NoiseKey(source.new_key(), private=False)


def gaussian(dimension: int = 3, sigma: float = SIGMA) -> Gaussian:
    return Gaussian(sigma, {UNIT: 1.0}, dimension=dimension)


def released(
    mechanism: Gaussian, *, claimed_sigma: float = SIGMA, reuse: bool = False
) -> Callable:
    """run(dataset, source): the mechanism on a vector; its noise may be reused."""

    def run(value, source):
        return mechanism.apply(value, key_of(Seeded(1) if reuse else source))

    return run


def released_many(sigma: float = SIGMA, *, reuse: bool = False) -> Callable:
    """run(number, source, count): the mechanism on `count` copies, each its own noise.

    One call on a vector of `count` coordinates is `count` releases of one number.
    """

    def run(number, source, count):
        if reuse:
            noise = gaussian(1, sigma).apply([0.0], key_of(Seeded(1)))
            return np.full(count, number) + noise
        return gaussian(count, sigma).apply(np.full(count, number), key_of(source))

    return run


def pair(dimension: int = 3, distance: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Two values at the given distance, off the axes."""
    direction = np.arange(1.0, dimension + 1)
    direction *= distance / np.linalg.norm(direction)
    start = np.linspace(-1.0, 1.0, dimension)
    return start + direction, start


def bpm_reports(bpm: BPM) -> Callable:
    """run(point, source, count) for `many=True`."""

    def run(point, source, count):
        return bpm.apply(np.tile(point, (count, 1)), key_of(source))

    return run


def seed_reports(bpm: BPM) -> Callable:
    """The first sampler: the ball's mass lacks its factor e^(-kL).

    A report falls into the ball far too often, and the density jumps at its edge.
    """
    epsilon, L, d = bpm.epsilon, bpm.L, bpm.dimension
    volume = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
    inside = math.factorial(d) * volume / epsilon**d
    inside *= float(special.gammainc(d, epsilon * L)) * math.exp(epsilon * L)
    outside = math.exp(-epsilon * L) * ((1 + 2 * L) ** d - volume * L**d)
    p = inside / (inside + outside)

    def run(point, source, count):
        rng = np.random.default_rng(source.seed)
        u = rng.random(count) * special.gammainc(d, epsilon * L)
        radius = special.gammaincinv(d, u) / epsilon
        z = rng.normal(size=(count, d))
        out = point + radius[:, None] * z / np.linalg.norm(z, axis=1, keepdims=True)
        left = np.flatnonzero(rng.random(count) >= p)
        while left.size:
            out[left] = rng.random((left.size, d)) * (1 + 2 * L) - L
            left = left[np.linalg.norm(out[left] - point, axis=1) <= L]
        return out

    return run


def crescent(bpm: BPM, one: np.ndarray, two: np.ndarray) -> Callable:
    """1 inside the ball of one point and outside that of the other, else 0."""

    def score(x):
        near, far = np.linalg.norm(x - one), np.linalg.norm(x - two)
        return float(near <= bpm.L < far)

    return score


def likelihood_ratio(bpm: BPM, one: np.ndarray, two: np.ndarray) -> Callable:
    return lambda x: float(bpm.log_density(one, x) - bpm.log_density(two, x))
