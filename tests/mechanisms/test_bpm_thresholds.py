"""L for a unit and a price: the price is met, and the choice is the decoder's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.errors import NotCovered
from demur.mechanisms import BPM
from demur.mechanisms.bpm import thresholds
from demur.mechanisms.bpm.thresholds import information, risk, threshold_at_price

UNITS = [
    ReplaceOne(),
    ReplaceOne(records_per_person=3),
    Ball(0.3, space="cube"),
    Ball(0.3, space="elsewhere"),
    Ball(5.0, space="cube"),
]


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_the_price_is_met_and_not_exceeded(unit):
    for price, d in ((0.1, 40), (4.0, 20), (1 / 3, 17)):  # no search from d = 17 on
        bpm = BPM.for_unit(unit, price=price, dimension=d)
        assert price * (1 - 1e-12) < bpm.event(unit).epsilon <= price


@pytest.mark.slow
def test_few_dimensions_take_a_small_L_and_many_do_not():
    plane = BPM.for_unit(ReplaceOne(), price=4.0, dimension=2)
    assert plane.L < 0.4 and plane.epsilon > 10.0
    assert plane.event(ReplaceOne()).epsilon <= 4.0
    many = BPM.for_unit(ReplaceOne(), price=4.0, dimension=8)
    assert many.alpha > 0.985 and many.L > math.sqrt(8)
    # A small ball leaves nothing to gain by L: its price is that of the rate.
    assert BPM.for_unit(Ball(0.1, space="cube"), price=0.4, dimension=2).alpha > 0.98
    # Twin: the information about one point alone would take the smallest L there is.
    single = [(4.0 / L) ** 2 * BPM(4.0 / L, L, 2).p_L for L in (0.01, 0.1, 0.5)]
    assert single[0] > single[1] > single[2]
    assert risk(4.0 / 1.4, 1.4, 2, 10_000, 0.1) > risk(16.0, 0.25, 2, 10_000, 0.1)


@pytest.mark.parametrize(
    ("unit", "price", "d"),
    [(Ball(0.2, space="cube"), 16.0, 2), (ReplaceOne(), 1000.0, 64)],
    ids=str,
)
def test_a_large_price_is_spent_where_L_is_below_the_unit(unit, price, d):
    bpm = BPM.for_unit(unit, price=price, dimension=d)
    assert price * (1 - 1e-12) < bpm.event(unit).epsilon <= price
    assert bpm.alpha >= 0.989
    # The twin takes "auto" at the rate of the unit's radius, and leaves some over.
    rate = price / (0.2 if d == 2 else 8.0)
    assert BPM(rate, "auto", d).event(unit).epsilon < 0.8 * price


@pytest.mark.filterwarnings("error")
def test_scores_of_sharp_reports_have_no_overflow():
    # Reports this sharp are points, no better: a deviation of 0.05, 250 in a cluster.
    assert risk(4e3, 0.3, 1, 1000, 0.05) == pytest.approx(0.05**2 / 250, rel=1e-3)
    for price, unit in ((1e300, ReplaceOne()), (1e-300, ReplaceOne())):
        with pytest.raises(ValueError, match="price must lie between"):
            BPM.for_unit(unit, price=price, dimension=2)
    with pytest.raises(ValueError, match="too small for the price"):
        BPM.for_unit(Ball(1e-300, space="cube"), price=1.0, dimension=2)


def test_bad_prices_and_units_are_refused():
    with pytest.raises(NotCovered):
        BPM.for_unit(AddOrRemoveOne(), price=1.0, dimension=2)
    for wrong in ({"price": 0.0}, {"price": math.nan}, {"price": 1.0, "n": 0}):
        with pytest.raises(ValueError):
            BPM.for_unit(ReplaceOne(), dimension=20, **wrong)


@pytest.mark.parametrize(("price", "L"), [(2.0, 0.25), (4.0, 0.6), (3.0, 1.5)])
def test_the_information_of_a_report_is_the_integral(price, L):
    """On the line: densities by convolution on a grid, and the integral over it."""
    k, width, step = price / L, 0.1, 0.002
    # Reports of points outside the cube are left: widths are small, few are there.
    x = np.arange(-L - 0.5, 1.5 + L, step)
    bpm = BPM(k, L, 1)
    floor = bpm.uniform_weight / (1.0 + 2.0 * L)
    inside = (x >= -L) & (x <= 1.0 + L)
    excess = np.exp(k * np.maximum(L - np.abs(x - x[:, None]), 0.0)) - 1.0
    layouts = 0.1 + 0.8 * np.random.default_rng(24).random((32, 4, 1))
    densities = []
    for layout in layouts:
        points = stats.norm.pdf(x[:, None], layout[:, 0], width).mean(axis=1)
        densities.append(floor * (inside + step * excess @ points))
    given = np.array(densities)
    mean = given.mean(axis=0)
    assert step * given.sum(axis=1) == pytest.approx(np.ones(32), rel=0.02)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(given > 0.0, given * np.log(given / mean), 0.0)
    exact = step * terms.sum(axis=1).mean()
    found = information(k, L, 1, width)
    # A mean over 1,600 reports of a variable of about its own size squared.
    assert found == pytest.approx(exact, rel=0.12)
    # The twin counts a report of a known point, without asking which cluster it is of.
    assert k**2 * bpm.p_L * width**2 > 1.5 * exact or k < 4.0


@pytest.mark.slow
def test_few_reports_take_a_larger_L(monkeypatch):
    few, many = (threshold_at_price(2.83, math.sqrt(2), 2, n)[1] for n in (300, 10_000))
    assert 0.28 < few < 0.7 and many < 0.28
    bpm = BPM.for_unit(ReplaceOne(), price=2.83, dimension=2, n=300)
    assert bpm.L == few and bpm.event(ReplaceOne()).epsilon <= 2.83
    # The twin has the curvature at the right centres alone.
    monkeypatch.setattr(thresholds, "information", lambda *setting: math.inf)
    twin = threshold_at_price.__wrapped__(2.83, math.sqrt(2), 2, 300)[1]
    assert twin < 0.28
