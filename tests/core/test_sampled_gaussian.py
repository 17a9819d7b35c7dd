"""Sticks of sampled Gaussians against quadrature, and the rough price against PLD."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from demur.core import accounting
from demur.core.accounting import sampled_gaussian, sampled_profiles
from demur.core.accounting.events import (
    Neighbours,
    PoissonGaussian,
    Repeated,
    TruncatedPoissonGaussian,
)
from tests.families import thinned

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


def exact_gaussian(s, a):
    half = 1 / (2 * s)
    return mp.ncdf(half - a * s) - mp.exp(a) * mp.ncdf(-half - a * s)


def exact_vanishes(q, s, epsilon):
    above = mp.expm1(epsilon) + q
    if above <= 0:
        return -mp.expm1(epsilon)
    return q * exact_gaussian(s, mp.log(above / q))


def exact_appears(q, s, epsilon):
    above = mp.expm1(-epsilon) + q
    if above <= 0:
        return mp.mpf(0)
    a = mp.log(above / q)
    return q * mp.exp(epsilon + a) * exact_gaussian(s, -a)


def exact_replaced(q, s, epsilon):
    bend = (1 - q) * mp.sinh(epsilon / 2) * mp.exp(1 / (2 * s * s)) / q
    x = s * s * (epsilon / 2 + mp.asinh(bend))
    here, there = (
        (1 - q) * mp.ncdf(-x / s) + q * mp.ncdf((shift - x) / s) for shift in (1, -1)
    )
    return here - mp.exp(epsilon) * there


EXACT = {
    "vanishes": exact_vanishes,
    "appears": exact_appears,
    "replaced": exact_replaced,
}


def sticks_and_truths(way, seed):
    """Sticks over the whole range of a loss, both its ends and the middle, exactly."""
    draw = np.random.default_rng(seed)
    q, s = float(10 ** draw.uniform(-8, 0)), float(10 ** draw.uniform(-1.2, 1.5))
    who = Neighbours.REPLACE_ONE if way == "replaced" else Neighbours.ADD_OR_REMOVE_ONE
    event = PoissonGaussian(q, s, who)
    low, high = sampled_gaussian.loss_range(event, 9.75, way == "vanishes")
    near = (high - low) * 10 ** draw.uniform(-12, 0, 3)
    around = 10 ** draw.uniform(-6, 0, 3) * draw.choice([-1, 1], 3)
    at = np.concatenate([draw.uniform(low, high, 6), low + near, high - near, around])
    sticks = sampled_gaussian.hockey_stick(event, at, way == "vanishes")
    with mp.workdps(50):
        truths = [EXACT[way](mp.mpf(q), mp.mpf(s), mp.mpf(float(e))) for e in at]
    return q, sticks.tolist(), truths


@pytest.mark.parametrize("seed", thinned(range(400), every=20))
@pytest.mark.parametrize("way", list(EXACT))
def test_sticks_are_rounded_up_and_hardly(way, seed):
    q, sticks, truths = sticks_and_truths(way, seed)
    for stick, true in zip(sticks, truths, strict=True):
        assert true <= stick <= true * (1 + mp.mpf(1e-12)) + 2.5e-13 * q


@pytest.mark.parametrize("way", list(EXACT))
def test_without_slack_some_stick_is_too_low(way, monkeypatch):
    monkeypatch.setattr(sampled_gaussian, "SLACK", 0.0)
    rounds = (sticks_and_truths(way, seed) for seed in range(0, 400, 20))
    assert any(
        stick < true
        for _, sticks, truths in rounds
        for stick, true in zip(sticks, truths, strict=True)
    )


PEER = [
    PoissonGaussian(0.01, 1.0),
    PoissonGaussian(0.5, 6.0, Neighbours.REPLACE_ONE),
    PoissonGaussian(0.001, 0.6, Neighbours.ZERO_OUT),
    TruncatedPoissonGaussian(1000, 0.05, 60, 1.5),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "event", PEER, ids=lambda e: f"{type(e).__name__}-{e.neighbours}"
)
def test_one_step_is_what_a_peer_computes_point_by_point(event):
    step = 2.0**-9
    relation = accounting.to_relation(event.neighbours)
    peer = (
        pld.from_gaussian_mechanism(
            event.multiplier,
            sampling_prob=event.probability,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )
        if isinstance(event, PoissonGaussian)
        else pld.from_truncated_subsampled_gaussian_mechanism(
            event.dataset_size,
            event.probability,
            event.batch_size,
            event.multiplier,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )
    )
    at = np.arange(-200, 1000, 7) * step
    for vanishes, theirs in ((True, peer._pmf_remove), (False, peer._pmf_add)):
        ours = sampled_profiles.connected_dots(event, step, vanishes)
        np.testing.assert_allclose(
            ours.get_delta_for_epsilon(at),
            theirs.get_delta_for_epsilon(at),
            rtol=1e-9,
            atol=1e-12,
        )
        # A range that ends early shows here: what lies beyond counts as infinite.
        assert ours._infinity_mass <= 1e-20


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
