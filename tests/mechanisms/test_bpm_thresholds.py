"""L for a unit and a price: the price is met, and the choice is the decoder's."""

from __future__ import annotations

import math

import pytest

from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.errors import NotCovered
from demur.mechanisms import BPM
from demur.mechanisms.bpm.thresholds import risk

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
