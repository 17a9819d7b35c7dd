"""Renyi divergences of single events: closed forms, from both sides."""

import math

import mpmath as mp
import numpy as np
import pytest

from demur.core.accounting import renyi
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
)

ORDERS = np.array([2, 3, 17, 64, 1024, 1025, 2**20])


def between(values, exact, *, rel=3e-12, absolute=0.0):
    """Not below the exact numbers, and above them by no more than is stated."""
    for value, wanted in zip(values, exact, strict=True):
        assert wanted <= value <= wanted * (1 + rel) + absolute


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 2.0, 77.0])
def test_of_a_gaussian(multiplier):
    with mp.workdps(40):
        exact = [mp.mpf(int(a)) / 2 / mp.mpf(multiplier) ** 2 for a in ORDERS]
        between(renyi.divergences(GaussianEvent(multiplier), ORDERS), exact)
    whole = PoissonGaussian(1.0, multiplier)
    same = renyi.divergences(GaussianEvent(whole.whole_multiplier), ORDERS)
    assert renyi.divergences(whole, ORDERS).tolist() == same.tolist()


@pytest.mark.parametrize(
    "epsilon", [1e-9, 1e-6, 3e-5, 9e-5, 2e-4, 0.01, 1.0, 30.0, 500.0]
)
def test_of_a_pure_event(epsilon):
    """Where a epsilon is small, logarithms cancel: it was 4e-11 too small at 1e-6."""
    exact = []
    with mp.workdps(60):
        e = mp.mpf(epsilon)
        for a in map(int, ORDERS):
            p, q = 1 / (1 + mp.exp(-e)), mp.exp(-e) / (1 + mp.exp(-e))
            both = p**a * q ** (1 - a) + q**a * p ** (1 - a)
            exact.append(mp.log(both) / (a - 1))
        values = renyi.divergences(Pure(epsilon), ORDERS)
        for a, value, wanted in zip(ORDERS, values, exact, strict=True):
            assert wanted <= value
            # Below 1e-4 the bound a eps^2 / 2, which is a little above.
            loose = 1.001 if a * epsilon < 1e-4 else 1 + 1e-9
            assert value <= wanted * loose + 2e-12
            assert value <= epsilon * (1 + 2e-12) + 2e-12


def test_of_what_is_beyond_numbers():
    assert renyi.divergences(Pure(501.0), ORDERS).tolist() == [501.0] * len(ORDERS)
    assert math.isinf(renyi.divergence(GaussianEvent(1e-200), 2))
    assert renyi.divergences(PoissonGaussian(0.0, 2.0), ORDERS).tolist() == (
        [0.0] * len(ORDERS)
    )
    assert renyi.divergence(ApproxDP(0.1, 1e-6), 2) is None
    both = PoissonGaussian(0.1, 2.0, Neighbours.REPLACE_ONE)
    assert renyi.divergence(both, 2) is None


@pytest.mark.parametrize(("q", "z"), [(0.01, 1.0), (0.5, 4.0), (0.99, 0.7)])
def test_of_a_sampled_gaussian(q, z):
    """The binomial sum up to order 1024; that of the whole where it is smaller."""
    values = renyi.divergences(PoissonGaussian(q, z), ORDERS)
    for a, value in zip(map(int, ORDERS), values, strict=True):
        whole = a / (2.0 * z * z)
        if a > 1024:
            assert whole <= value <= whole * (1 + 3e-12) + 2e-12
            continue
        with mp.workdps(60):
            terms = [
                mp.binomial(a, k)
                * mp.mpf(1 - q) ** (a - k)
                * mp.mpf(q) ** k
                * mp.exp(mp.mpf(k * (k - 1)) / (2 * mp.mpf(z) ** 2))
                for k in range(a + 1)
            ]
            exact = min(mp.log(mp.fsum(terms)) / (a - 1), mp.mpf(whole))
        assert exact * (1 - 1e-12) <= value <= exact * (1 + 1e-9) + 1e-11
    tiny = renyi.divergence(PoissonGaussian(q, 1e-160), 2)
    assert math.isinf(tiny)


@pytest.mark.parametrize("order", [2, 17, 1024])
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_what_a_divergence_means_as_an_epsilon(order, delta):
    with mp.workdps(40):
        a, d = mp.mpf(order), mp.mpf(delta)
        exact = 20 + mp.log(1 - 1 / a) - mp.log(d * a) / (a - 1)
        assert exact <= renyi.to_epsilon(20.0, order, delta) <= exact * (1 + 1e-14)
    assert renyi.to_epsilon(0.0, 1024, 0.9) == 0.0


@pytest.mark.parametrize("order", [0, 1, -2])
def test_orders_are_from_two(order):
    with pytest.raises(ValueError, match="order must be"):
        renyi.divergence(GaussianEvent(1.0), order)
    assert renyi.ORDERS[0] == 2 and renyi.ORDERS[-1] == 2**20
    assert set(range(2, 65)) <= set(renyi.ORDERS.tolist())
