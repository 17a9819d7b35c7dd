"""The regret bounds, number by number: each constant in them is part of the promise."""

import math

import pytest

from demur.unlearning.pricing import capacity as cap
from demur.unlearning.pricing import regret

CLOSE = {"rel": 1e-14}


def test_regret_at_a_fixed_curvature():
    assert regret.fixed_curvature_regret(2.0, 3.0, 49) == 42.0
    assert regret.fixed_curvature_regret(2.0, 3.0, 49, c=0.25, C=4.0) == 168.0


def test_strongly_convex_regret():
    found = regret.strongly_convex_regret(2.0, 3.0, 8, lam=0.5, radius=6.0, t0=4.0)
    # lambda t0 D^2 / 2 + (G + lambda radius)^2 / (2 lambda) log((T + t0) / t0)
    assert found == pytest.approx(9.0 + 25.0 * math.log(3.0), **CLOSE)


def test_deletion_regret():
    at = {"G": 2.0, "D": 3.0, "shift": 0.5, "dimension": 9, "delta_B": 0.1}
    assert regret.deletion_regret(0, 4.0, **at) == 0.0
    found = regret.deletion_regret(5, 4.0, **at)
    wander = 24.0 * math.sqrt(10.0 * math.log(20.0))
    width = 3.0 + math.sqrt(2.0 * math.log(100.0))
    assert found == pytest.approx(wander + 40.0 * width**2, **CLOSE)
    assert regret.deletion_regret(1, 4.0, **at) > 0.0


def test_output_regret():
    at = {"G": 2.0, "shift": 0.5, "dimension": 9, "T": 7, "delta_B": 0.1}
    assert regret.output_regret(0, 4.0, **at) == 0.0
    width = 3.0 + math.sqrt(2.0 * math.log(50.0))
    assert regret.output_regret(5, 4.0, **at) == pytest.approx(28.0 * width, **CLOSE)
    assert regret.output_regret(1, 4.0, **at) > 0.0


def test_the_seeds_deletion_regret_is_the_seeds():
    at = {"L": 2.0, "lam": 0.5, "epsilon": 4.0}
    at |= {"delta": 1e-5, "delta_B": 0.05}
    found = regret.seed_deletion_regret(3, **at)
    inner = 2.0 * math.log(3.75e5) / 4.0
    exact = 12.0 * math.sqrt(inner * 2.0 * math.log(20.0))
    assert found == pytest.approx(exact, **CLOSE)
    assert regret.seed_deletion_regret(0, **at) == 0.0
    inner = 2.0 * math.log(1.25e5) / 4.0
    exact = 4.0 * math.sqrt(inner * 2.0 * math.log(20.0))
    assert regret.seed_deletion_regret(1, **at) == pytest.approx(exact, **CLOSE)


@pytest.mark.parametrize("most", [1, 6, 7, 8, 100])
def test_the_largest_is_at_most_the_most(most):
    assert cap.largest_count(lambda m: m <= 7, most) == min(7, most)
    assert cap.largest_count(lambda m: True, most) == most
    assert cap.largest_count(lambda m: False, most) == 0
