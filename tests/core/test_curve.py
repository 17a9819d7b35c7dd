"""Piecewise-linear bounds, against exact rational arithmetic."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.core.curve import PiecewiseLinear
from demur.errors import NotCovered

SIZES = st.floats(0.0, 1e100, allow_subnormal=False)


def exact(knots, radius):
    """The line through the knots at `radius`, exactly; the last value past it."""
    radius = Fraction(radius)
    points = [(Fraction(r), Fraction(b)) for r, b in knots]
    if radius >= points[-1][0]:
        return points[-1][1]
    for (r0, b0), (r1, b1) in zip(points, points[1:], strict=False):
        if r0 <= radius <= r1:
            return b0 + (b1 - b0) * (radius - r0) / (r1 - r0)
    raise AssertionError("no interval")


EITHER = st.booleans()


@st.composite
def curves(draw, saturates=EITHER):
    radii = draw(st.lists(SIZES, max_size=8, unique=True))
    radii = sorted({0.0, *radii})
    bounds = sorted(draw(st.lists(SIZES, min_size=len(radii), max_size=len(radii))))
    return PiecewiseLinear(tuple(zip(radii, bounds, strict=True)), draw(saturates))


@pytest.mark.slow
@settings(max_examples=400)
@given(curves(), st.floats(0.0, 1.0), SIZES)
def test_a_curve_is_at_least_its_exact_line(curve, part, anywhere):
    last = curve.knots[-1][0]
    for radius in (part * last, anywhere, *(r for r, _ in curve.knots)):
        if radius > last and not curve.saturates:
            with pytest.raises(NotCovered, match="Nothing was spent"):
                curve(radius)
            continue
        bound = curve(radius)
        truth = exact(curve.knots, radius)
        assert Fraction(bound) >= truth
        assert bound <= max(float(truth) * (1 + 1e-13), 1e-320)


@pytest.mark.slow
@settings(max_examples=300)
@given(curves(st.just(True)), SIZES, SIZES)
def test_a_curve_never_falls(curve, a, b):
    low, high = sorted((a, b))
    assert curve(low) <= curve(high) * (1 + 1e-14) + 1e-320


@pytest.mark.slow
@settings(max_examples=300)
@given(st.floats(1e-100, 1e100), st.floats(0.0, 1e30))
def test_a_line_is_at_least_slope_times_radius(slope, radius):
    line = PiecewiseLinear.linear(slope)
    far = line.knots[-1][0]
    if radius > far:
        with pytest.raises(NotCovered):
            line(radius)
        return
    truth = Fraction(slope) * Fraction(radius)
    assert Fraction(line(radius)) >= truth
    assert line(radius) <= float(truth) * (1 + 1e-13) + 1e-320


@pytest.mark.slow
@settings(max_examples=300)
@given(st.floats(1e-100, 1e100), st.floats(1e-100, 1e100), st.floats(0.0, 1e250))
def test_a_capped_line_is_at_least_the_smaller_of_both(slope, cap, radius):
    curve = PiecewiseLinear.linear(slope, cap=cap)
    corner = curve.knots[-1][0]
    for r in (radius, corner, corner / 2, math.nextafter(corner, 0.0)):
        truth = min(Fraction(slope) * Fraction(r), Fraction(cap))
        assert Fraction(curve(r)) >= truth
        assert curve(r) <= cap
    assert curve(1e300) == cap


@pytest.mark.parametrize(("slope", "cap"), [(1e-300, 1e300), (1e300, 1e-300)])
def test_a_corner_out_of_range_leaves_the_cap(slope, cap):
    curve = PiecewiseLinear.linear(slope, cap=cap)
    for radius in (0.0, 1e-300, 1.0, 1e300):
        truth = min(Fraction(slope) * Fraction(radius), Fraction(cap))
        assert Fraction(curve(radius)) >= truth


FUNCTIONS = {
    "convex": lambda r: r * r,
    "concave": math.sqrt,
    "steps": lambda r: float(math.floor(r * 3)),
    "both": lambda r: r + math.sin(r),
    "jump": lambda r: 0.0 if r < 0.7 else 5.0,
    "constant": lambda r: 2.0,
    "zero": lambda r: 0.0,
    "saturating": lambda r: math.tanh(r),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "radii", [[1.0], [0.1, 0.5, 0.69, 0.71, 3.0], [i / 7 for i in range(1, 40)]]
)
def test_dominating_dominates_any_rising_function(name, radii):
    function = FUNCTIONS[name]
    curve = PiecewiseLinear.dominating(function, radii)
    last = max(radii)
    for i in range(1001):
        radius = last * i / 1000
        assert curve(radius) >= function(radius)
    for radius in radii:
        assert curve(math.nextafter(radius, 0.0)) >= function(radius) * (1 - 1e-12)
    with pytest.raises(NotCovered):
        curve(math.nextafter(last, math.inf))


def test_the_same_check_catches_the_chord():
    """A sabotaged twin: knots at the function's own values cut under sqrt."""
    radii = [0.0, 1.0, 4.0]
    chord = PiecewiseLinear(tuple((r, math.sqrt(r)) for r in radii), False)
    assert any(chord(r / 100) < math.sqrt(r / 100) for r in range(401))


def test_dominating_ignores_order_and_can_saturate():
    curve = PiecewiseLinear.dominating(
        lambda r: min(r, 2.0), [3.0, 1.0, 2.0], saturates=True
    )
    assert curve(1e9) == 2.0
    assert curve(0.0) == 1.0


def test_dominating_refuses_a_falling_function_and_nan():
    with pytest.raises(ValueError, match="non-decreasing"):
        PiecewiseLinear.dominating(lambda r: -r + 5, [1.0, 2.0])
    with pytest.raises(ValueError, match="bound"):
        PiecewiseLinear.dominating(lambda r: math.nan, [1.0])
    with pytest.raises(ValueError):
        PiecewiseLinear.dominating(lambda r: r, [1.0, 1.0])


def test_dominating_without_radii_is_a_value_error():
    with pytest.raises(ValueError, match="radii"):
        PiecewiseLinear.dominating(lambda r: r, [])


def test_a_denormal_slope_is_still_bounded():
    curve = PiecewiseLinear(((0.0, 0.0), (1e10, 1e-314)), False)
    assert Fraction(curve(5e9)) >= exact(curve.knots, 5e9)


@pytest.mark.parametrize(
    "knots",
    [
        (),
        ((1.0, 1.0),),
        ((0.0, 1.0), (0.0, 2.0)),
        ((0.0, 2.0), (1.0, 1.0)),
        ((0.0, math.nan),),
        ((0.0, 1.0), (math.nan, 2.0)),
        ((0.0, 1.0), (1.0, math.inf)),
        ((0.0, -1.0),),
        ((-1.0, 0.0), (1.0, 1.0)),
        tuple((float(i), 1.0) for i in range(10_001)),
    ],
)
def test_bad_knots_are_refused(knots):
    with pytest.raises(ValueError):
        PiecewiseLinear(knots, True)


@pytest.mark.parametrize("knots", [((0.0, True),), ((0.0, "1"),), ((None, 1.0),)])
def test_knots_are_numbers(knots):
    with pytest.raises(TypeError):
        PiecewiseLinear(knots, True)


@pytest.mark.parametrize("radius", [math.nan, math.inf, -1.0])
def test_bad_radii_are_refused(radius):
    with pytest.raises(ValueError, match="radius"):
        PiecewiseLinear.linear(1.0, cap=1.0)(radius)


def test_a_single_knot_is_a_constant():
    assert PiecewiseLinear(((0.0, 3.0),), True)(17.0) == 3.0
    with pytest.raises(NotCovered):
        PiecewiseLinear(((0.0, 3.0),), False)(17.0)


@pytest.mark.parametrize("slope", [0.0, -1.0, math.nan, math.inf])
def test_bad_slopes_and_caps_are_refused(slope):
    with pytest.raises(ValueError):
        PiecewiseLinear.linear(slope)
    with pytest.raises(ValueError):
        PiecewiseLinear.linear(1.0, cap=slope)


@pytest.mark.slow
@given(curves())
def test_json_round_trip(curve):
    data = json.loads(json.dumps(curve.to_json()))
    assert PiecewiseLinear.from_json(data) == curve


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["knots", "saturates", "x"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(JSON)
def test_any_other_data_is_a_value_error(data):
    try:
        curve = PiecewiseLinear.from_json(data)
    except ValueError:
        return
    assert curve.to_json() == data


@pytest.mark.parametrize("knots", [[[0.0, 1.0, 2.0]], [[0.0]], [0.0], "ab", {}])
def test_misshapen_knots_are_a_value_error(knots):
    with pytest.raises(ValueError):
        PiecewiseLinear.from_json({"knots": knots, "saturates": True})
