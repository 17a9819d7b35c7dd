"""What is set aside or rounded up is so by the amount stated, and not below the truth."""

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from demur.core import gaussian, renyi
from demur.core.accounting.profiles import sampled_profile
from demur.core.accounting.totals import total_of
from demur.core.accounting.upper_bounds import renyi_delta
from demur.core.events import (
    ApproxDP,
    Gaussian,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
    compose,
)
from demur.core.sampled_gaussian import truncation


@pytest.mark.parametrize("delta", [1.0, 0.3, 1e-5, 1e-300])
def test_the_ideal_delta_leaves_the_samplers_share(delta):
    left = Fraction(gaussian.ideal_delta(delta))
    ideal = Fraction(delta) * (1 - Fraction(2) ** -20)
    assert ideal * (1 - Fraction(2) ** -51) <= left <= ideal
    assert gaussian.ideal_delta(0.0) == 0.0


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_the_ideal_delta_of_no_probability_is_refused(bad):
    with pytest.raises(ValueError, match="delta"):
        gaussian.ideal_delta(bad)


def best_order_delta(divergence_of, epsilon):
    """min over orders of e^((a-1)(D - epsilon)) (1 - 1/a)^(a-1) / a, in 40 digits."""
    with mp.workdps(40):
        return min(
            mp.exp((a - 1) * (divergence_of(mp.mpf(a)) - epsilon))
            * (1 - 1 / mp.mpf(a)) ** (a - 1)
            / a
            for a in map(int, renyi.ORDERS)
        )


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [1.0, 5.0, 12.0])
def test_the_renyi_delta_is_the_best_orders_rounded_up(mu, epsilon):
    event = Repeated(Gaussian(2.0 / mu), 4)
    exact = best_order_delta(lambda a: a * mp.mpf(mu) ** 2 / 2, epsilon)
    found = renyi_delta(total_of(event), epsilon)
    # A relative 1e-9 is added: far more than the logarithms are off by.
    low = min(1, exact * (1 + mp.mpf(9e-10)))
    assert low <= found <= min(1, exact * (1 + mp.mpf(1e-8))) + 1e-300


def test_the_renyi_delta_adds_what_blocks_spend():
    alone = renyi_delta(total_of(Gaussian(2.0)), 3.0)
    blocks = Repeated(ApproxDP(0.25, 1e-4), 4)
    both = renyi_delta(total_of(compose([Gaussian(2.0), blocks])), 4.0)
    assert both == pytest.approx(alone + 4e-4, rel=1e-9)
    assert both >= alone + 4e-4
    assert renyi_delta(total_of(blocks), 0.99) == 1.0


def test_the_renyi_delta_of_an_unknown_divergence_is_one():
    event = TruncatedPoissonGaussian(1000, 0.05, 60, 2.0)
    assert renyi_delta(total_of(event), 5.0) == 1.0
    assert renyi_delta(total_of(Pure(1.0)), 5.0) < 1e-12


def test_a_kept_profile_has_at_most_2_to_the_14_dots():
    wide = sampled_profile(PoissonGaussian(0.01, 1.0), 60_000)
    assert 2**13 <= wide.remove.size <= 2**14 + 1
    assert wide.remove.size == wide.add.size
    assert np.isclose(wide.width, (wide.remove.size - 1) * wide.step)


def test_a_batch_that_holds_everyone_is_never_full():
    assert truncation(TruncatedPoissonGaussian(50, 0.1, 50, 1.0)) == (0.0, 0.0)
    chance, rate = truncation(TruncatedPoissonGaussian(50, 0.1, 2, 1.0))
    assert 0.0 < rate < chance < 1.0
