"""Costs as a function of the unit: covering, groups, the cheapest true statement."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur import AddOrRemoveOne, Ball, Erasure, LipschitzMap, ReplaceOne, ZeroOut
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.cost import Cost, Fixed, GaussianOverBalls, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.errors import NotCovered

LINE = PiecewiseLinear.linear(2.0, cap=3.0)
HEAD = Cost((GaussianOverBalls("minilm", LINE, sigma=6.0),))
REPORT = Cost((PureOverBalls("cube", LINE, rate=4.0), Fixed(ReplaceOne(), Pure(12.0))))
PLAN = Cost((Fixed(AddOrRemoveOne(), Repeated(PoissonGaussian(0.01, 1.0), 100)),))


def test_a_fixed_term_speaks_about_what_its_unit_covers():
    cost = Cost((Fixed(ReplaceOne(), GaussianEvent(2.0)),))
    assert cost.at(ReplaceOne()) == GaussianEvent(2.0)
    assert cost.at(Ball(1e9, "anything")) == GaussianEvent(2.0)
    for unit in (AddOrRemoveOne(), ZeroOut(), Erasure()):
        with pytest.raises(NotCovered):
            cost.at(unit)


@pytest.mark.parametrize(
    "unit", [AddOrRemoveOne(), ReplaceOne(), ZeroOut(), Ball(1.0, "a"), Erasure()]
)
@pytest.mark.parametrize(
    "other", [AddOrRemoveOne(), ReplaceOne(), ZeroOut(), Ball(1.0, "a"), Erasure()]
)
def test_a_cost_is_readable_exactly_where_its_unit_covers(unit, other):
    cost = Cost((Fixed(unit, GaussianEvent(2.0)),))
    if unit.covers(other):
        assert cost.at(other) == GaussianEvent(2.0)
    else:
        with pytest.raises(NotCovered):
            cost.at(other)


def test_not_covered_names_both_units_and_that_nothing_was_spent():
    with pytest.raises(NotCovered) as caught:
        REPORT.at(AddOrRemoveOne())
    message = str(caught.value)
    assert "AddOrRemoveOne()" in message
    assert "space='cube'" in message
    assert "ReplaceOne()" in message
    assert "Nothing was spent" in message


def test_not_covered_gives_the_reason_of_a_term():
    short = PiecewiseLinear(((0.0, 1.0), (2.0, 3.0)), saturates=False)
    cost = Cost((GaussianOverBalls("a", short, 1.0),))
    assert isinstance(cost.at(Ball(2.0, "a")), GaussianEvent)
    with pytest.raises(NotCovered, match="up to radius 2 only"):
        cost.at(Ball(2.5, "a"))


@given(st.floats(1e-6, 1e6))
def test_a_gaussian_over_balls_is_sigma_over_sensitivity(radius):
    event = HEAD.at(Ball(radius, "minilm"))
    moved = min(2 * Fraction(radius), Fraction(3))
    assert Fraction(event.multiplier) <= 6 / moved
    assert event.multiplier == pytest.approx(float(6 / moved), rel=1e-13)


@given(st.floats(1e-6, 1e6))
def test_a_pure_cost_is_rate_times_distance(radius):
    event = REPORT.at(Ball(radius, "cube"))
    truth = 4 * min(2 * Fraction(radius), Fraction(3))
    assert event.epsilon <= 12.0
    assert Fraction(event.epsilon) >= min(truth, Fraction(12))
    assert event.epsilon == pytest.approx(float(truth), rel=1e-13)


@given(st.floats(1e-6, 10.0), st.floats(1e-6, 10.0), st.integers(1, 5))
def test_costs_grow_with_the_radius(a, b, records):
    near, far = sorted((a, b))
    small = HEAD.at(Ball(near, "minilm", records))
    large = HEAD.at(Ball(far, "minilm", records))
    assert small.multiplier >= large.multiplier * (1 - 1e-14)
    small = REPORT.at(Ball(near, "cube", records))
    large = REPORT.at(Ball(far, "cube", records))
    assert small.epsilon <= large.epsilon * (1 + 1e-14)


@given(st.integers(1, 1000))
def test_a_person_with_k_records_costs_k_times(k):
    gaussian = Cost((Fixed(AddOrRemoveOne(), GaussianEvent(6.0)),))
    event = gaussian.at(AddOrRemoveOne(k))
    assert Fraction(event.multiplier) * k <= 6
    assert event.multiplier == pytest.approx(6.0 / k, rel=1e-14)
    pure = Cost((Fixed(AddOrRemoveOne(), Pure(0.3)),))
    event = pure.at(AddOrRemoveOne(k))
    assert Fraction(event.epsilon) >= k * Fraction(0.3)
    assert event.epsilon == pytest.approx(0.3 * k, rel=1e-14)
    over = HEAD.at(Ball(0.5, "minilm", k))
    assert over.multiplier == pytest.approx(6.0 / k, rel=1e-13)


def test_a_group_keeps_counts_and_merges():
    event = Composed((Repeated(GaussianEvent(4.0), 3), Pure(0.5), GaussianEvent(4.0)))
    at_ball = Cost((Fixed(ReplaceOne(), event),)).at(Ball(1.0, "a", 2))
    assert isinstance(at_ball, Composed)
    assert {type(part) for part in at_ball.events} == {Repeated, Pure}


@pytest.mark.parametrize("event", [PoissonGaussian(0.1, 1.0), ApproxDP(1.0, 1e-6)])
def test_events_without_a_group_form_are_refused_with_the_reason(event):
    cost = Cost((Fixed(AddOrRemoveOne(), event),))
    assert cost.at(AddOrRemoveOne()) == event
    with pytest.raises(NotCovered, match="3 records"):
        cost.at(AddOrRemoveOne(3))


def test_a_statement_about_persons_covers_those_with_fewer_records():
    cost = Cost((Fixed(AddOrRemoveOne(5), ApproxDP(1.0, 1e-6)),))
    assert cost.at(AddOrRemoveOne(2)) == ApproxDP(1.0, 1e-6)
    with pytest.raises(NotCovered):
        cost.at(AddOrRemoveOne(6))


def test_the_cheapest_of_several_true_statements_is_read():
    cost = Cost(
        (
            Fixed(ReplaceOne(), GaussianEvent(2.0)),
            GaussianOverBalls("minilm", LINE, sigma=6.0),
        )
    )
    assert cost.at(Ball(1e-3, "minilm")).multiplier > 1000
    assert cost.at(Ball(100.0, "minilm")) == GaussianEvent(2.0)
    assert cost.at(Ball(100.0, "elsewhere")) == GaussianEvent(2.0)
    reverse = Cost(tuple(reversed(cost.terms)))
    for radius in (1e-3, 1.0, 100.0):
        ball = Ball(radius, "minilm")
        assert reverse.at(ball) == cost.at(ball)
    free = Cost(
        (Fixed(ReplaceOne(), GaussianEvent(2.0)), Fixed(ReplaceOne(), Pure(0.0)))
    )
    assert free.at(ReplaceOne()) == Pure(0.0)


def test_repeated_statements_compare_too():
    dear = Fixed(ReplaceOne(), Repeated(GaussianEvent(1.0), 100))
    cost = Cost((dear, GaussianOverBalls("minilm", LINE, sigma=1e6)))
    assert cost.at(Ball(1e-3, "minilm")) != dear.event


def test_nothing_moves_nothing_to_pay():
    still = PiecewiseLinear(((0.0, 0.0), (1.0, 0.0), (2.0, 1.0)), True)
    cost = Cost((GaussianOverBalls("a", still, 1.0),))
    assert cost.at(Ball(0.5, "a")) == Pure(0.0)
    assert Cost((PureOverBalls("a", still, 1.0),)).at(Ball(0.5, "a")) == Pure(0.0)


def test_a_ball_is_read_through_a_declared_map():
    maps = [LipschitzMap("pixels", "raw", 1.0), LipschitzMap("raw", "minilm", 0.25)]
    with pytest.raises(NotCovered):
        HEAD.at(Ball(2.0, "pixels"))
    event = HEAD.at(Ball(2.0, "pixels"), maps)
    assert event.multiplier == pytest.approx(6.0, rel=1e-13)
    assert event.multiplier <= 6.0
    with pytest.raises(NotCovered):
        HEAD.at(Ball(2.0, "minilm-2"), maps)
    with pytest.raises(NotCovered):  # a map moves balls, nothing else
        HEAD.at(ReplaceOne(), maps)


def test_a_map_is_an_offer_the_cheaper_space_wins():
    cost = Cost(
        (GaussianOverBalls("a", LINE, 1.0), GaussianOverBalls("b", LINE, 100.0))
    )
    maps = [LipschitzMap("a", "b", 2.0)]
    assert cost.at(Ball(0.1, "a")).multiplier == pytest.approx(5.0)
    assert cost.at(Ball(0.1, "a"), maps).multiplier == pytest.approx(250.0)


def test_an_erasure_is_never_read_as_privacy():
    cost = Cost((Fixed(Erasure(), GaussianEvent(5.0)),))
    assert cost.only_erasure()
    assert cost.at(Erasure()) == GaussianEvent(5.0)
    for unit in (AddOrRemoveOne(), ReplaceOne(), ZeroOut(), Ball(1e-9, "a")):
        with pytest.raises(NotCovered, match="Erasure"):
            cost.at(unit)
    assert not PLAN.only_erasure()
    both = Cost((*cost.terms, *PLAN.terms))
    assert not both.only_erasure()
    with pytest.raises(NotCovered):
        PLAN.at(Erasure())


def test_an_overflowing_term_does_not_hide_a_true_one():
    cost = Cost(
        (
            GaussianOverBalls("a", PiecewiseLinear(((0.0, 1e300),), True), 1e-300),
            Fixed(ReplaceOne(), GaussianEvent(1.0)),
        )
    )
    assert cost.at(Ball(1.0, "a")) == GaussianEvent(1.0)


def test_a_cost_has_to_say_something():
    with pytest.raises(ValueError, match="terms"):
        Cost(())


def test_terms_given_as_a_list_cannot_change_later():
    terms = [Fixed(ReplaceOne(), GaussianEvent(2.0))]
    cost = Cost(terms)
    terms.append(Fixed(AddOrRemoveOne(), Pure(0.0)))
    assert len(cost.terms) == 1
    hash(cost)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales_are_refused(bad):
    with pytest.raises(ValueError, match="sigma"):
        GaussianOverBalls("a", LINE, bad)
    with pytest.raises(ValueError, match="rate"):
        PureOverBalls("a", LINE, bad)
    with pytest.raises(TypeError, match="sigma"):
        GaussianOverBalls("a", LINE, True)


@pytest.mark.parametrize("cost", [HEAD, REPORT, PLAN, Cost((*HEAD.terms, *PLAN.terms))])
def test_json_round_trip(cost):
    assert Cost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


GOOD = HEAD.to_json()["terms"][0]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"terms": None},
        {"terms": []},
        {"terms": [None]},
        {"terms": [{"term": "os.system"}]},
        {"terms": [GOOD | {"sigma": "1"}]},
        {"terms": [GOOD | {"sigma": math.nan}]},
        {"terms": [GOOD | {"space": 3}]},
        {"terms": [GOOD | {"sensitivity": None}]},
        {"terms": [{"term": "fixed", "at": {}, "is": {}}]},
        {"terms": [{"term": "fixed", "at": {"unit": []}, "is": {}}]},
        {"terms": [{"term": "fixed", "at": {"unit": "replace_one"}, "is": 3}]},
    ],
)
def test_bad_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        Cost.from_json(data)
