"""Units: the whole covers table, radii, spaces, maps, words and data."""

import itertools
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur import AddOrRemoveOne, Ball, Erasure, LipschitzMap, ReplaceOne, ZeroOut
from demur.core.adjacency import one_record, reachable_balls, unit_from_json
from demur.errors import NotCovered

PLAIN = [AddOrRemoveOne, ReplaceOne, ZeroOut, Erasure]


def unit_of(kind, records=1):
    if kind is Ball:
        return Ball(0.5, space="cube", records_per_person=records)
    return kind(records_per_person=records)


@pytest.mark.parametrize("left", [*PLAIN, Ball])
@pytest.mark.parametrize("right", [*PLAIN, Ball])
def test_covers_table_is_strict(left, right):
    expected = left is right or (left is ReplaceOne and right is Ball)
    assert unit_of(left).covers(unit_of(right)) is expected


@pytest.mark.parametrize("left", [*PLAIN, Ball])
@pytest.mark.parametrize("right", [*PLAIN, Ball])
@pytest.mark.parametrize(
    ("mine", "theirs"), list(itertools.product([1, 2, 7], repeat=2))
)
def test_more_records_per_person_never_help(left, right, mine, theirs):
    related = left is right or (left is ReplaceOne and right is Ball)
    covered = unit_of(left, mine).covers(unit_of(right, theirs))
    assert covered is (related and mine >= theirs)


def test_a_ball_covers_smaller_balls_of_its_own_space_only():
    ball = Ball(0.2, space="minilm")
    assert ball.covers(Ball(0.2, space="minilm"))
    assert ball.covers(Ball(math.nextafter(0.2, 0.0), space="minilm"))
    assert not ball.covers(Ball(math.nextafter(0.2, 1.0), space="minilm"))
    assert not ball.covers(Ball(0.1, space="cube"))
    assert not ball.covers(ReplaceOne())
    assert ReplaceOne().covers(Ball(1e300, space="anything"))


UNITS = st.one_of(
    st.sampled_from(PLAIN).flatmap(lambda k: st.integers(1, 9).map(k)),
    st.builds(
        Ball,
        st.floats(5e-324, 1e300, allow_subnormal=True),
        st.sampled_from(["a", "b", "minilm 768"]),
        st.integers(1, 9),
    ),
)


@pytest.mark.slow
@given(UNITS, UNITS, UNITS)
def test_covers_is_an_order(a, b, c):
    assert a.covers(a)
    if a.covers(b) and b.covers(c):
        assert a.covers(c)
    if a.covers(b) and b.covers(a):
        assert a == b


@pytest.mark.slow
@given(UNITS)
def test_json_round_trip(unit):
    again = unit_from_json(json.loads(json.dumps(unit.to_json())))
    assert again == unit
    assert hash(again) == hash(unit)
    assert type(again) is type(unit)


@pytest.mark.slow
@given(UNITS)
def test_one_record_keeps_the_rest(unit):
    single = one_record(unit)
    assert single.records_per_person == 1
    assert type(single) is type(unit)
    assert unit.covers(single)


@pytest.mark.parametrize("radius", [math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0])
def test_bad_radius_is_refused_by_name(radius):
    with pytest.raises(ValueError, match="radius"):
        Ball(radius, space="cube")


@pytest.mark.parametrize("radius", [True, None, "0.2", 1j, [0.2]])
def test_a_radius_is_a_number(radius):
    with pytest.raises(TypeError, match="radius"):
        Ball(radius, space="cube")


@pytest.mark.parametrize("space", ["", "a" * 201, "tab\tseparated", "nul\x00"])
def test_bad_space_is_refused(space):
    with pytest.raises(ValueError, match="space"):
        Ball(0.2, space=space)


@pytest.mark.parametrize("space", [None, 3, b"cube", ["cube"]])
def test_a_space_is_a_string(space):
    with pytest.raises(TypeError, match="space"):
        Ball(0.2, space=space)


@pytest.mark.parametrize("kind", [*PLAIN, Ball])
@pytest.mark.parametrize("records", [0, -1])
def test_nobody_owns_fewer_than_one_record(kind, records):
    with pytest.raises(ValueError, match="records_per_person"):
        unit_of(kind, records)


@pytest.mark.parametrize("kind", [*PLAIN, Ball])
@pytest.mark.parametrize("records", [True, 1.0, math.nan, "2", None])
def test_records_are_whole_numbers(kind, records):
    with pytest.raises(TypeError, match="records_per_person"):
        unit_of(kind, records)


@pytest.mark.parametrize("unit", [unit_of(kind) for kind in [*PLAIN, Ball]])
def test_units_are_frozen_and_hashable(unit):
    with pytest.raises(AttributeError):
        unit.records_per_person = 2
    assert len({unit, one_record(unit)}) == 1


def test_descriptions_say_what_is_protected():
    assert AddOrRemoveOne().describe() == "the presence or absence of one record"
    assert "any change to the content of one record" in ReplaceOne().describe()
    assert "blank" in ZeroOut().describe()
    assert "learned and then deleted" in Erasure().describe()
    words = Ball(0.25, space="minilm").describe()
    assert "0.25" in words
    assert "'minilm'" in words
    assert "labels unchanged" in words


@pytest.mark.parametrize("kind", [*PLAIN, Ball])
def test_descriptions_name_a_person_with_many_records(kind):
    assert "one record" in unit_of(kind).describe()
    words = unit_of(kind, 7).describe()
    assert "person" in words
    assert "7" in words
    assert str(unit_of(kind, 7)).endswith("records_per_person=7)")
    assert "records_per_person" not in str(unit_of(kind))


def test_a_space_with_braces_is_only_a_name():
    assert "{persons}" in Ball(0.2, space="{persons}").describe()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "ball",
        {},
        {"unit": "sphere"},
        {"unit": None},
        {"unit": "ball"},
        {"unit": "ball", "radius": 1.0},
        {"unit": "ball", "radius": "1", "space": "a"},
        {"unit": "ball", "radius": True, "space": "a"},
        {"unit": "ball", "radius": math.nan, "space": "a"},
        {"unit": "ball", "radius": 1.0, "space": "a", "extra": 1},
        {"unit": "ball", "radius": 1.0, "space": ""},
        {"unit": "replace_one", "records_per_person": 0},
        {"unit": "replace_one", "records_per_person": 1.5},
        {"unit": "replace_one", "__class__": "os.system"},
        {"unit": "replace_one", 3: 4},
        {"unit": []},
        {"unit": {}},
    ],
)
def test_bad_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        unit_from_json(data)


# ------------------------------------------------------------------ Lipschitz maps


def test_a_map_converts_a_radius_upwards():
    ball = LipschitzMap("a", "b", 3.0).convert(Ball(0.2, "a", records_per_person=4))
    assert ball.space == "b"
    assert ball.records_per_person == 4
    assert Fraction(ball.radius) >= 3 * Fraction(0.2)
    assert ball.radius < 0.6 * (1 + 1e-15)


@pytest.mark.slow
@given(st.floats(1e-150, 1e150), st.floats(1e-150, 1e150))
def test_conversion_is_never_below_the_product(radius, constant):
    image = LipschitzMap("a", "b", constant).convert(Ball(radius, "a"))
    assert Fraction(image.radius) >= Fraction(radius) * Fraction(constant)


def test_an_underflowing_product_is_still_a_ball():
    image = LipschitzMap("a", "b", 1e-200).convert(Ball(1e-200, "a"))
    assert image.radius > 0.0


def test_a_map_refuses_another_space_and_says_so():
    with pytest.raises(NotCovered, match="'c'.*Nothing was spent"):
        LipschitzMap("a", "b", 1.0).convert(Ball(0.2, "c"))


@pytest.mark.parametrize("constant", [math.nan, math.inf, 0.0, -1.0])
def test_bad_constants_are_refused(constant):
    with pytest.raises(ValueError, match="constant"):
        LipschitzMap("a", "b", constant)


def test_bad_names_of_a_map_are_refused():
    with pytest.raises(ValueError, match="source"):
        LipschitzMap("", "b", 1.0)
    with pytest.raises(TypeError, match="target"):
        LipschitzMap("a", None, 1.0)
    with pytest.raises(TypeError, match="constant"):
        LipschitzMap("a", "b", True)


def radii(ball, maps):
    return {b.space: b.radius for b in reachable_balls(ball, maps)}


def test_without_maps_only_the_ball_itself_is_reachable():
    ball = Ball(0.3, "a")
    assert reachable_balls(ball, []) == [ball]


def test_a_chain_multiplies_the_constants():
    maps = [LipschitzMap("b", "c", 5.0), LipschitzMap("a", "b", 2.0)]
    reached = radii(Ball(1.0, "a"), maps)
    assert set(reached) == {"a", "b", "c"}
    assert Fraction(reached["c"]) >= 10
    assert reached["c"] == pytest.approx(10.0, rel=1e-14)


def test_maps_are_not_walked_backwards():
    assert set(radii(Ball(1.0, "b"), [LipschitzMap("a", "b", 2.0)])) == {"b"}


def test_the_shorter_of_two_ways_is_kept():
    maps = [
        LipschitzMap("a", "c", 10.0),
        LipschitzMap("a", "b", 2.0),
        LipschitzMap("b", "c", 2.0),
    ]
    assert radii(Ball(1.0, "a"), maps)["c"] == pytest.approx(4.0, rel=1e-14)


@pytest.mark.parametrize("constant", [0.1, 0.5, 1.0, 3.0])
def test_a_cycle_cannot_shrink_the_radius_that_was_asked(constant):
    maps = [
        LipschitzMap("a", "b", constant),
        LipschitzMap("b", "a", constant),
        LipschitzMap("a", "a", constant),
    ]
    reached = radii(Ball(1.0, "a"), maps)
    assert reached["a"] == 1.0
    assert Fraction(reached["b"]) >= Fraction(constant)


def test_no_cycle_anywhere_shrinks_a_radius():
    """Maps that contradict each other (b to c to b by 1/4) must not be exploited."""
    maps = [
        LipschitzMap("a", "b", 1.0),
        LipschitzMap("b", "c", 0.5),
        LipschitzMap("c", "b", 0.5),
    ]
    reached = radii(Ball(1.0, "a"), maps)
    assert reached["b"] >= 1.0
    assert reached["c"] >= 0.5


def test_a_generator_of_maps_may_be_given():
    maps = (LipschitzMap("a", "b", 2.0) for _ in range(1))
    assert set(radii(Ball(1.0, "a"), maps)) == {"a", "b"}


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.sampled_from("abcd"), st.floats(0.01, 100.0)
        ),
        max_size=8,
    )
)
def test_every_reached_radius_belongs_to_a_real_path(edges):
    """Sound: no radius is below the best simple path, computed exactly."""
    best = {"a": Fraction(1)}

    def walk(space, radius, seen):
        for source, target, constant in edges:
            if source == space and target not in seen:
                value = radius * Fraction(constant)
                best[target] = min(best.get(target, value), value)
                walk(target, value, seen | {target})

    walk("a", Fraction(1), {"a"})
    reached = radii(Ball(1.0, "a"), [LipschitzMap(*edge) for edge in edges])
    assert set(reached) == set(best)
    for space, radius in reached.items():
        assert Fraction(radius) >= best[space]


def test_a_contracting_detour_is_found():
    maps = [
        LipschitzMap("a", "b", 2.0),
        LipschitzMap("a", "c", 3.0),
        LipschitzMap("c", "b", 0.1),
    ]
    assert radii(Ball(1.0, "a"), maps)["b"] == pytest.approx(0.3, rel=1e-14)


def test_a_map_that_overflows_does_not_spoil_the_others():
    maps = [LipschitzMap("a", "b", 1e300), LipschitzMap("a", "c", 1.0)]
    assert "c" in radii(Ball(1e300, "a"), maps)
