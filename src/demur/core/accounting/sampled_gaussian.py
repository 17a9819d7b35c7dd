"""Privacy profiles (hockey sticks) of sampled Gaussians in closed form.

With q the probability, s the noise per unit of contribution and
D(a) = Phi(1/(2s) - a s) - e^a Phi(-1/(2s) - a s) the stick of N(1, s^2) against
N(0, s^2), the likelihood ratio of each pair is monotone, so delta at epsilon is a
difference of two tails:

- a record that vanishes, (1-q) N(0) + q N(1) against N(0): q D(a) with
  e^a = (e^epsilon - (1 - q)) / q, and 1 - e^epsilon where epsilon <= log(1 - q);
- one that appears, N(0) against (1-q) N(0) + q N(1): q e^(epsilon + a) D(-a) with
  e^a = (e^-epsilon - (1 - q)) / q, and 0 where epsilon >= -log(1 - q);
- one that is replaced, (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1): the tails
  beyond x = s^2 (epsilon / 2 + asinh((1-q) sinh(epsilon / 2) e^(1 / 2s^2) / q)).

A record in one of several sums is priced in `random_allocation`.
A truncated sample is a mixture, its component visible: the sticks mix (`events` and
dp_accounting's analysis, Ganesh 2025).

Rounding is upwards. Each stick is a difference of terms, each good to a tenth of
`SLACK` of its size, and SLACK times their size is added. What enters through a, or
through x, is less: a wrong cut is another set of outputs, at which the stick is no
larger, and (e^epsilon - (1 - q)) is off by ulps of q, weighted by the second tail.
Sticks below 1e-60 are read as 1e-60.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from demur.core.accounting.events import (
    AllocatedGaussian,
    Neighbours,
    PoissonGaussian,
    Sampled,
    TruncatedPoissonGaussian,
)

Curve = NDArray[Any]
SLACK = 1e-13  # Of the terms of a stick, for their rounding.


def hockey_stick(event: Sampled, epsilons: Curve, vanishes: bool) -> Curve:
    """delta at each epsilon, rounded up, for a record that vanishes or appears."""
    return np.maximum(_stick(event, epsilons, vanishes), 1e-60)


def _stick(event: Sampled, epsilons: Curve, vanishes: bool) -> Curve:
    if isinstance(event, AllocatedGaussian):
        from demur.core.accounting import random_allocation  # loads numba

        return random_allocation.hockey_stick(event, epsilons, vanishes)
    q, s = event.probability, event.multiplier
    if isinstance(event, TruncatedPoissonGaussian):
        inner = PoissonGaussian(q, s, event.neighbours)
        part = _stick(inner, epsilons, vanishes)
        chance, rate = truncation(event)
        if chance == 0.0:
            return part
        return (1 - chance) * part + chance * _replaced(rate, s / 2, epsilons)
    if event.neighbours is Neighbours.REPLACE_ONE:
        return _replaced(q, s, epsilons)
    return _vanishes(q, s, epsilons) if vanishes else _appears(q, s, epsilons)


def loss_range(event: Sampled, reach: float, vanishes: bool) -> tuple[float, float]:
    """The range of the privacy loss, but for noise beyond `reach` deviations."""
    if isinstance(event, AllocatedGaussian):
        from demur.core.accounting import random_allocation

        return random_allocation.loss_range(event, vanishes)
    q, s = event.probability, event.multiplier
    both = event.neighbours is Neighbours.REPLACE_ONE
    if isinstance(event, TruncatedPoissonGaussian):
        chance, rate = truncation(event)
        if chance > 0.0:
            q, s, both = max(q, rate), s / 2, True
    # At reach deviations beyond the shifted mean, 1 + reach s.
    ratio = math.expm1(min((1 + 2 * reach * s) / (2 * s * s), 700.0))
    top = math.log1p(q * ratio)
    if both:
        far = (3 + 2 * reach * s) / (2 * s * s)
        top += far if q == 1.0 else -math.log1p(q * math.expm1(-far))
        return -top, top
    least = math.log1p(-q) if q < 1.0 else -top
    return (least, top) if vanishes else (-top, -least)


def truncation(event: TruncatedPoissonGaussian) -> tuple[float, float]:
    """The chance that a drawn record meets a full batch; its rate, given that."""
    return _truncation(event.dataset_size, event.probability, event.batch_size)


@lru_cache(maxsize=64)
def _truncation(n: int, q: float, cap: int) -> tuple[float, float]:
    from scipy.stats import binom  # 1 s to import, and rarely needed

    full = float(binom.sf(cap - 1, n - 1, q))
    if full == 0.0:
        return 0.0, 0.0
    rate = float(binom.sf(cap, n, q)) * cap / full / n
    # Sticks grow with both, which the library computes to twelve digits or more.
    return min(1.0, full * (1 + 1e-12)), min(1.0, rate * (1 + 1e-11))


def gaussian_stick(s: float, a: Curve) -> Curve:
    """delta at each a of N(1, s^2) against N(0, s^2), rounded up."""
    first = ndtr(0.5 / s - a * s)
    second = np.exp(a + log_ndtr(-0.5 / s - a * s))
    return _above(first, second)


def _above(first: Curve, second: Curve) -> Curve:
    return np.asarray(np.maximum(first - second, 0.0) + SLACK * first)


def _inner(q: float, epsilons: Curve) -> tuple[NDArray[np.bool_], Curve]:
    """Where e^epsilon exceeds 1 - q, and log((e^epsilon - (1 - q)) / q) there."""
    above = np.expm1(epsilons) + q
    inside = above > 0.0
    return inside, np.log(np.where(inside, above, q) / q)


def _vanishes(q: float, s: float, epsilons: Curve) -> Curve:
    inside, a = _inner(q, epsilons)
    certain = -np.expm1(np.minimum(epsilons, 0.0)) * (1 + SLACK)
    return np.where(inside, q * gaussian_stick(s, a), certain)


def _appears(q: float, s: float, epsilons: Curve) -> Curve:
    inside, a = _inner(q, -epsilons)
    tail = epsilons + log_ndtr(0.5 / s + a * s)
    with np.errstate(over="ignore"):  # outside, where it is not asked
        first = np.exp(a + tail)
        second = np.exp(epsilons + log_ndtr(-0.5 / s + a * s))
        # e^a is a small difference at the end of the range: off by ulps of 1.
        stick = _above(first, second) + 1e-15 * np.exp(tail)
    return np.where(inside, q * stick, 0.0)


def _replaced(q: float, s: float, epsilons: Curve) -> Curve:
    half = np.abs(epsilons) / 2
    with np.errstate(divide="ignore", over="ignore"):
        log_a = (
            math.log1p(-q)
            - math.log(q)
            + 0.5 / (s * s)
            + half
            + np.log(-np.expm1(-2 * half) / 2)
            if q < 1.0
            else np.full(len(half), -np.inf)
        )
        # asinh(e^t), which is t + log 2 for large t.
        large = log_a > 300
        bend = np.where(
            large, log_a + math.log(2.0), np.arcsinh(np.exp(np.where(large, 0, log_a)))
        )
    x = s * s * np.sign(epsilons) * (half + bend)
    with np.errstate(over="ignore"):
        # The middle's share of both terms at once: what is left is of the size of q.
        middle = -np.expm1(epsilons) * (1 - q) * ndtr(-x / s)
    mine = q * ndtr((1 - x) / s)
    theirs = q * np.exp(epsilons + log_ndtr(-(1 + x) / s))
    size = np.abs(middle) + mine + theirs
    return np.asarray(np.maximum(middle + mine - theirs, 0.0) + SLACK * size)
