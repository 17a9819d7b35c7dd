"""Sticks of sampled Gaussians against quadrature, and the rough price against PLD."""

from __future__ import annotations

import math

import numpy as np
import pytest

from demur.core import accounting
from demur.core.accounting import sampled_gaussian
from demur.core.accounting.events import (
    Neighbours,
    PoissonGaussian,
    Repeated,
    TruncatedPoissonGaussian,
)

DEEP = pytest.mark.deep
EPSILONS = np.array([-3.0, -0.7, -0.004, 0.0, 0.004, 0.2, 1.0, 2.5, 6.0])


def density(x, q, s, shift):
    bells = [np.exp(-((x - m) ** 2) / (2 * s * s)) for m in (0.0, shift)]
    return ((1 - q) * bells[0] + q * bells[1]) / (s * math.sqrt(2 * math.pi))


def by_quadrature(p, r, epsilon, x):
    """The integral of the positive part, kink and all: good to about 1e-9."""
    return np.trapezoid(np.maximum(p - math.exp(epsilon) * r, 0.0), x)


@pytest.mark.slow
@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (0.3, 0.6), (0.7, 2.0)])
@pytest.mark.parametrize("way", ["vanishes", "appears", "replaced"])
def test_sticks_are_the_integrals_they_stand_for(q, s, way):
    x = np.linspace(-1 - 12 * s, 2 + 12 * s, 400_001)
    mixed, plain = density(x, q, s, 1.0), density(x, 0.0, s, 1.0)
    pairs = {
        "vanishes": (mixed, plain),
        "appears": (plain, mixed),
        "replaced": (mixed, density(x, q, s, -1.0)),
    }
    who = Neighbours.REPLACE_ONE if way == "replaced" else Neighbours.ADD_OR_REMOVE_ONE
    event = PoissonGaussian(q, s, who)
    deltas = sampled_gaussian.hockey_stick(event, EPSILONS, way == "vanishes")
    wanted = [by_quadrature(*pairs[way], e, x) for e in EPSILONS]
    np.testing.assert_allclose(deltas, wanted, atol=2e-8)


def test_the_two_directions_are_not_the_same():
    event = PoissonGaussian(0.1, 1.0)
    first, second = (
        sampled_gaussian.hockey_stick(event, np.array([0.5]), way)[0]
        for way in (True, False)
    )
    assert abs(first - second) > 1e-3


def test_a_truncated_stick_is_between_its_parts():
    loose = TruncatedPoissonGaussian(1000, 0.1, 900, 1.0)
    tight = TruncatedPoissonGaussian(1000, 0.1, 100, 1.0)
    plain = PoissonGaussian(0.1, 1.0, Neighbours.ZERO_OUT)
    at = np.array([0.3, 1.0])
    np.testing.assert_allclose(
        sampled_gaussian.hockey_stick(loose, at, True),
        sampled_gaussian.hockey_stick(plain, at, True),
    )
    assert (
        sampled_gaussian.hockey_stick(tight, at, True)
        > sampled_gaussian.hockey_stick(plain, at, True)
    ).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "delta"),
    [
        (PoissonGaussian(1.0, 2.0), 10, 1e-5),
        (PoissonGaussian(0.3, 2.25), 3000, 1e-5),  # losses beyond 700
        pytest.param(PoissonGaussian(128 / 60_000, 0.7), 1000, 1e-6, marks=DEEP),
        (PoissonGaussian(0.01, 1.0, Neighbours.REPLACE_ONE), 1000, 1e-6),
        pytest.param(PoissonGaussian(0.25, 4.0), 500, 1e-8, marks=DEEP),
        (PoissonGaussian(0.01, 10.0), 10, 1e-5),
        (PoissonGaussian(0.5, 1.5), 1, 1e-5),
        (TruncatedPoissonGaussian(1000, 0.05, 60, 5.0), 300, 1e-5),
        pytest.param(
            TruncatedPoissonGaussian(10_000, 0.01, 130, 2.0), 300, 1e-5, marks=DEEP
        ),
    ],
)
def test_the_rough_price_is_close_and_never_below(event, count, delta):
    """Coarser dots are pessimistic, so the search lands on the private side."""
    rough = accounting.rough_price(event, count, delta)
    price = accounting.price(Repeated(event, count), delta)
    assert price * (1 - 1e-6) <= rough <= price * 1.002
