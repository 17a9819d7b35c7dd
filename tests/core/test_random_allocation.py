"""Random allocation: its price against quadrature, samples and other events."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy.special import ndtr

from demur.core import accounting
from demur.core.accounting import random_allocation
from demur.core.accounting.events import (
    AllocatedGaussian,
    Composed,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Repeated,
    from_json,
    to_json,
)
from demur.core.adjacency import AddOrRemoveOne, ReplaceOne, ZeroOut
from demur.core.cost import Fixed
from demur.core.errors import NotPriced

EPSILONS = np.array([-1.0, 0.0, 0.3, 1.0, 2.0])


def call_price(strike, s):
    """E (w - strike)+ for w = exp(x / s - 1 / 2s^2), in closed form."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = 0.5 / s - s * np.log(np.maximum(strike, 1e-300))
    closed = ndtr(first) - strike * ndtr(first - 1 / s)
    return np.where(strike > 0, closed, 1.0 - strike)


def exact_one_step(steps, s, epsilon, vanishes):
    """delta for one of two or three steps: closed in one, quadrature in the others.

    E (W - a)+ is E of the closed form given the other terms; E (1 - e^epsilon W)+
    follows from it, since E W = 1.
    """
    # So many nodes that halving them changes the tenth digit.
    nodes = np.linspace(-9.0, 9.0 + 1 / s, 20_001 if steps == 2 else 801)
    weights = np.exp(-(nodes**2) / 2)
    weights = weights / weights.sum()
    others, chances = np.zeros(1), np.ones(1)
    for _ in range(steps - 1):
        w = np.exp(nodes / s - 0.5 / (s * s))
        others = (others[:, None] + w).ravel()
        chances = (chances[:, None] * weights).ravel()
    a = math.exp(epsilon if vanishes else -epsilon)
    value = float(chances @ call_price(steps * a - others, s)) / steps
    return value if vanishes else math.exp(epsilon) * (a - 1.0 + value)


@pytest.mark.slow
@pytest.mark.parametrize("vanishes", [True, False])
@pytest.mark.parametrize(("steps", "s"), [(2, 0.7), (2, 2.0), (3, 1.0)])
def test_the_profile_is_that_of_the_mixture(steps, s, vanishes):
    event = AllocatedGaussian(steps, s)
    deltas = random_allocation.hockey_stick(event, EPSILONS, vanishes)
    wanted = np.array([exact_one_step(steps, s, e, vanishes) for e in EPSILONS])
    # From above, and by no more than cells of 2% explain.
    assert (deltas >= wanted * (1 - 1e-9) - 1e-12).all()
    np.testing.assert_allclose(deltas, wanted, rtol=8e-3, atol=1e-9)
    # Ratios put to the nearest places instead, or a term too many, are below it.
    fewer = random_allocation.hockey_stick(
        AllocatedGaussian(steps + 1, s), EPSILONS[1:], vanishes
    )
    assert (fewer < wanted[1:]).all()


def densities(k, steps, s, cells):
    """With the record and without it, on a cube of R^T; and the volume of a cell."""
    sets = itertools.combinations(range(steps), k)
    shifts = [[float(t in chosen) for t in range(steps)] for chosen in sets]
    line = np.linspace(-6.0 * s, 1 + 6.0 * s, cells)
    axes = np.meshgrid(*[line] * steps, sparse=True)

    def around(shift):
        return math.prod(
            np.exp(-((x - m) ** 2) / (2 * s * s))
            for x, m in zip(axes, shift, strict=True)
        )

    volume = ((line[1] - line[0]) / (s * math.sqrt(2 * math.pi))) ** steps
    with_record = sum(around(shift) for shift in shifts) / len(shifts)
    return with_record, around([0.0] * steps), volume


@pytest.mark.slow
@pytest.mark.parametrize(("k", "steps"), [(2, 3), (2, 4)])
def test_several_steps_cost_at_most_their_blocks(k, steps):
    s = 1.0
    with_record, without, volume = densities(k, steps, s, 49 if steps == 3 else 25)
    sizes = {steps // k: k - steps % k, steps // k + 1: steps % k}
    blocks = [Repeated(AllocatedGaussian(m, s), c) for m, c in sizes.items() if c]

    def delta(p, q, epsilon):
        return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * volume)

    for epsilon in (0.3, 1.0, 2.0):
        bound = accounting.delta_of(blocks, epsilon)
        found = delta(with_record, without, epsilon)
        assert 0.5 * bound < found < bound
        assert delta(without, with_record, epsilon) < bound
    # The bound has power: one block for all of the steps is exceeded.
    assert delta(with_record, without, 1.0) > accounting.delta_of(
        AllocatedGaussian(steps, s), 1.0
    )


def losses(steps, s, count, rng):
    """log dP/dQ of one run with the record in step 0, and of one without it."""
    noise = rng.standard_normal((2, count, steps))
    noise[0, :, 0] += 1 / s
    exponents = noise / s - 1 / (2 * s * s)
    top = exponents.max(axis=2)
    return top + np.log(np.exp(exponents - top[..., None]).mean(axis=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "s"), [(50, 0.6), pytest.param(400, 1.0, marks=pytest.mark.deep)]
)
def test_the_profile_is_that_of_samples(steps, s):
    count, rng = 20_000, np.random.default_rng(5)
    with_record, without = losses(steps, s, count, rng)
    for epsilon in (0.0, 0.1):
        for vanishes, loss in ((True, with_record), (False, -without)):
            draws = -np.expm1(np.minimum(epsilon - loss, 0.0))
            error = 5 * draws.std() / math.sqrt(count) + 1e-9
            (delta,) = random_allocation.hockey_stick(
                AllocatedGaussian(steps, s), np.array([epsilon]), vanishes
            )
            assert abs(delta - draws.mean()) <= error + 2e-3 * delta
            # The price of twice as many steps would be found out.
            if vanishes:
                (wrong,) = random_allocation.hockey_stick(
                    AllocatedGaussian(2 * steps, s), np.array([epsilon]), vanishes
                )
                assert wrong < draws.mean() - error


def test_the_price_lies_between_a_finer_allocation_and_a_known_step():
    prices = [accounting.price(AllocatedGaussian(m, 1.0), 1e-6) for m in (1, 2, 8, 32)]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] == accounting.price(GaussianEvent(1.0), 1e-6)


@pytest.mark.slow
def test_allocation_is_not_dearer_than_poisson_steps_at_the_same_rate():
    # Known for large numbers of steps; here, where both are priced by a grid.
    allocated = accounting.price(Repeated(AllocatedGaussian(100, 1.0), 10), 1e-6)
    poisson = accounting.price(Repeated(PoissonGaussian(0.01, 1.0), 1000), 1e-6)
    assert 0.85 * poisson < allocated < poisson


def test_a_replaced_record_has_no_allocated_event():
    with pytest.raises(ValueError, match="replace_one"):
        AllocatedGaussian(10, 1.0, Neighbours.REPLACE_ONE)
    with pytest.raises(ValueError, match="cannot be stated"):
        Fixed(ReplaceOne(), AllocatedGaussian(10, 1.0))
    with pytest.raises(ValueError, match="cannot be stated"):
        Fixed(ZeroOut(), AllocatedGaussian(10, 1.0))
    assert Fixed(AddOrRemoveOne(), AllocatedGaussian(10, 1.0))


def test_the_event_is_written_and_read():
    event = Composed(
        (Repeated(AllocatedGaussian(7, 1.5, Neighbours.ZERO_OUT), 3), GaussianEvent(2))
    )
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    for bad in (
        {"steps": 0},
        {"steps": 2.5},
        {"multiplier": -1.0},
        {"neighbours": "x"},
    ):
        data = to_json(AllocatedGaussian(7, 1.5))
        data["event"] |= bad
        with pytest.raises(ValueError):
            from_json(data)


def test_it_has_no_counterpart_in_dp_accounting():
    with pytest.raises(NotPriced, match="AllocatedGaussian"):
        accounting.to_dp_event(AllocatedGaussian(7, 1.5))


@pytest.mark.parametrize("event", [(4, 0.01), (2**21, 1.0), (3, 0.2)])
def test_beyond_the_grid_the_step_counts_as_known(event):
    steps, s = event
    assert accounting.price(AllocatedGaussian(steps, s), 1e-6) == accounting.price(
        GaussianEvent(s), 1e-6
    )


@pytest.mark.parametrize(("steps", "s"), [(1, 1.0), (2, 0.7), (300, 2.0)])
def test_noise_beyond_the_grid_counts_whole(steps, s):
    """Its chance by the union bound, raised by 1e-9; with the record one step moves."""
    law = random_allocation._ratios(steps, s)
    reach = random_allocation._REACH
    away = ndtr(-reach - 1 / s)
    for told, exact in (
        (law.left_out_with, ndtr(-reach) + (steps - 1) * away),
        (law.left_out_without, steps * away),
    ):
        assert exact < told <= exact * (1 + 2e-9)
    assert law.masses.sum() == pytest.approx(1.0, abs=1e-9)
    assert (law.masses * law.places).sum() == pytest.approx(1.0, abs=1e-9)
    far = random_allocation.hockey_stick(
        AllocatedGaussian(steps, s), np.array([2000.0]), True
    )
    assert far.tolist() == [law.left_out_with]
