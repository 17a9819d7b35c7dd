"""What is set aside or rounded up is so by the amount stated."""

import hashlib
import json
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from demur.core.accounting import gaussian, renyi
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
    compose,
)
from demur.core.accounting.sampled_gaussian import truncation
from demur.core.accounting.sampled_profiles import sampled_profile
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import total_of
from demur.core.accounting.upper_bounds import renyi_delta
from demur.core.cost import _cheapest


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
    event = Repeated(GaussianEvent(2.0 / mu), 4)
    exact = best_order_delta(lambda a: a * mp.mpf(mu) ** 2 / 2, epsilon)
    delta = renyi_delta(total_of(event), epsilon)
    # A relative 1e-9 is added: far more than the logarithms are off by.
    low = min(1, exact * (1 + mp.mpf(9e-10)))
    assert low <= delta <= min(1, exact * (1 + mp.mpf(1e-8))) + 1e-300


def test_the_renyi_delta_adds_what_blocks_spend():
    alone = renyi_delta(total_of(GaussianEvent(2.0)), 3.0)
    blocks = Repeated(ApproxDP(0.25, 1e-4), 4)
    both = renyi_delta(total_of(compose([GaussianEvent(2.0), blocks])), 4.0)
    assert both == pytest.approx(alone + 4e-4, rel=1e-9)
    assert both >= alone + 4e-4
    assert renyi_delta(total_of(blocks), 0.99) == 1.0


def test_the_renyi_delta_of_an_unknown_divergence_is_one():
    event = TruncatedPoissonGaussian(1000, 0.05, 60, 2.0)
    assert renyi_delta(total_of(event), 5.0) == 1.0
    assert renyi_delta(total_of(Pure(1.0)), 5.0) < 1e-12


@pytest.mark.slow
def test_a_kept_profile_has_at_most_2_to_the_14_dots():
    wide = sampled_profile(PoissonGaussian(0.01, 1.0), 60_000)
    assert 2**13 <= wide.remove.size <= 2**14 + 1
    assert wide.remove.size == wide.add.size
    assert np.isclose(wide.width, (wide.remove.size - 1) * wide.step)


def test_a_coarser_profile_keeps_every_second_dot_and_adds_one_where_none_is_last():
    curve = np.linspace(0.9, 0.1, 9)
    aligned = Profile(4, -4, curve, curve).coarser(3)
    assert (aligned.exponent, aligned.first) == (3, -2)
    assert aligned.remove.tolist() == aligned.add.tolist() == curve[::2].tolist()
    shifted = Profile(4, -3, curve, curve).coarser(3)
    assert shifted.first == -1
    assert shifted.remove.tolist() == [*curve[1::2].tolist(), curve[-1]]


def test_a_batch_that_holds_everyone_is_never_full():
    assert truncation(TruncatedPoissonGaussian(50, 0.1, 50, 1.0)) == (0.0, 0.0)
    chance, rate = truncation(TruncatedPoissonGaussian(50, 0.1, 2, 1.0))
    assert 0.0 < rate < chance < 1.0


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        # By the sum of 1 / multiplier^2: 0.25 against 0.2755.
        (GaussianEvent(2.0), Repeated(GaussianEvent(3.3), 3)),
        (Repeated(GaussianEvent(3.7), 3), GaussianEvent(2.0)),
        (Repeated(Pure(0.1), 3), Pure(0.4)),
        (Pure(0.2), Repeated(Pure(0.1), 3)),
        (Pure(0.0), GaussianEvent(2.0)),  # nothing is cheaper than anything
    ],
)
def test_the_cheaper_of_two_true_statements_is_charged(cheap, dear):
    assert _cheapest([cheap, dear]) == _cheapest([dear, cheap]) == cheap


def test_statements_that_do_not_compare_are_charged_as_they_come():
    assert _cheapest([Pure(0.1), GaussianEvent(2.0)]) == Pure(0.1)
    assert _cheapest([GaussianEvent(2.0), Pure(0.1)]) == GaussianEvent(2.0)


def rewritten(profile, **change):
    """A stored profile with another header, its checksum put right."""
    data = profile.to_bytes()[:-32]
    size = int.from_bytes(data[:4], "little")
    header = json.dumps(json.loads(data[4 : 4 + size]) | change).encode()
    whole = len(header).to_bytes(4, "little") + header + data[4 + size :]
    return whole + hashlib.sha256(whole).digest()


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"format": 0}, {"dots": 1}, {"dots": 2**22 + 1}, {"dots": 3}],
)
def test_another_format_or_size_of_a_stored_profile_is_refused(change):
    curve = np.array([0.5, 0.25])
    profile = Profile(4, -1, curve, curve)
    assert Profile.from_bytes(rewritten(profile)).first == -1
    with pytest.raises(ValueError, match="not a privacy profile: .*(format|values)"):
        Profile.from_bytes(rewritten(profile, **change))


@pytest.mark.parametrize("first", [2**53 + 1, -(2**53) - 1])
def test_a_stored_profile_that_begins_beyond_the_floats_is_refused(first):
    curve = np.array([0.5, 0.25])
    with pytest.raises(ValueError, match="out of range"):
        Profile.from_bytes(rewritten(Profile(4, 0, curve, curve), first=first))
