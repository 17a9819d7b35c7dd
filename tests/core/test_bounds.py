"""Bounds hold in exact arithmetic; clipping is 1-Lipschitz and normalising is not."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demur import Ball, Bound, clip_rows, normalize_rows, to_unit_cube
from demur.core.bounds import BoundSource, Space
from demur.errors import NotCovered


def squared(row):
    """The exact squared norm of a row of floats."""
    values, times = np.unique(np.abs(row), return_counts=True)
    terms = zip(values.tolist(), times.tolist(), strict=True)
    return sum((n * Fraction(v) ** 2 for v, n in terms), Fraction(0))


def distance_squared(a, b):
    gaps = [Fraction(float(x)) - Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    return sum((gap**2 for gap in gaps), Fraction(0))


def adversarial_rows():
    """Rows whose norm is hard to compute: scale, lost additions, denormals."""
    lost = np.full(10_000, 1e-8)
    lost[0] = 1.0
    return {
        "huge": np.array([1e300, -1e300, 1e300]),
        "largest": np.array([1.7e308, 0.0, 0.0]),
        "tiny": np.array([1e-300, 1e-310, -3e-320]),
        "denormal": np.array([5e-324, 5e-324, 5e-324]),
        "mixed": np.array([1e200, 1.0, 1e-200]),
        "zero": np.zeros(3),
        "edge": np.full(3, 1.0 / math.sqrt(3.0)),
        "just over": np.array([math.nextafter(1.0, 2.0), 0.0, 0.0]),
        "just under": np.array([math.nextafter(1.0, 0.0), 0.0, 0.0]),
        "lost additions": lost,
        "wide": np.full(10_000, 0.01),
        "wide random": np.random.default_rng(0).normal(size=10_000),
    }


ROWS = adversarial_rows()
MATRICES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=64),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("default::RuntimeWarning")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("norm_bound", [1.0, 1e-100, 7])
def test_clipped_rows_are_within_the_bound_exactly(name, norm_bound, order):
    matrix = np.array(np.stack([ROWS[name]] * 2), order=order)
    data, bound, _ = clip_rows(matrix, norm_bound)
    assert bound == Bound(norm_bound, BoundSource.ENFORCED)
    for row in data:
        assert squared(row) <= Fraction(norm_bound) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ROWS)
def test_normalised_rows_are_within_one_exactly(name, order):
    matrix = np.array(np.stack([ROWS[name]] * 2), order=order)
    data, bound, _ = normalize_rows(matrix)
    assert (bound.value, bound.source) == (1.0, BoundSource.ENFORCED)
    for row in data:
        assert squared(row) <= 1
        # The norm of a denormal row has few digits; the bound holds all the same.
        if name not in ("zero", "denormal"):
            assert squared(row) >= Fraction(1) - Fraction(1, 2**30)


@pytest.mark.slow
def test_the_bound_holds_for_very_wide_rows_in_either_memory_order():
    """In column order additions are not pairwise: 100,000 of them may all be lost."""
    matrix = np.full((2, 100_000), 1e-8)
    matrix[:, 0] = 1.0
    for order in "CF":
        data = clip_rows(np.array(matrix, order=order), 1.0).data
        assert squared(data[0]) <= 1, order
        data = normalize_rows(np.array(matrix, order=order)).data
        assert squared(data[0]) <= 1, order


@pytest.mark.slow
@settings(max_examples=200)
@given(MATRICES, st.floats(1e-100, 1e100))
@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_clipping_enforces_its_bound(matrix, norm_bound):
    before = matrix.copy()
    data, _, space = clip_rows(matrix, norm_bound, space="s")
    assert np.array_equal(matrix, before)
    assert data.shape == matrix.shape
    assert space.name == "s"
    for row in data:
        assert squared(row) <= Fraction(norm_bound) ** 2


@pytest.mark.slow
@settings(max_examples=200)
@given(MATRICES, st.floats(1e-100, 1e100))
@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_rows_inside_are_left_alone(matrix, norm_bound):
    data = clip_rows(matrix, norm_bound).data
    inside = Fraction(norm_bound * (1 - 2.0**-39)) ** 2
    for before, after in zip(matrix, data, strict=True):
        if squared(before) <= inside:
            assert np.array_equal(before, after)


def test_clipping_overflowing_rows_raises_no_warning():
    data = clip_rows(np.full((1, 100), 1e308), 1.0).data
    assert squared(data[0]) <= 1
    assert squared(data[0]) > Fraction(1, 2)


def grows(function, a, b, slack=0.0):
    """Whether `function` takes two rows further apart, beyond `slack`."""
    before = float(distance_squared(a, b)) ** 0.5
    pa, pb = function(np.stack([a, b]))
    after = float(distance_squared(pa, pb)) ** 0.5
    return after > before * (1 + 1e-14) + slack


PAIRS = [
    ([1e-3, 0.0], [0.0, 1e-3]),
    ([2.0, 0.0], [0.0, 2.0]),
    ([2.0, 0.0], [0.5, 0.5]),
    ([1e150, 1e150], [1e150, -1e150]),
    ([1.0, 1e-9], [1.0, -1e-9]),
    ([math.nextafter(1.0, 2.0), 0.0], [math.nextafter(1.0, 0.0), 0.0]),
    ([1 - 2.0**-40, 0.0], [1 - 2.0**-41, 0.0]),
    ([1 - 2.0**-40, 1e-12], [1 - 2.0**-39, -1e-12]),
]


def clip(rows):
    return clip_rows(rows, 1.0).data


def normalise(rows):
    return normalize_rows(rows).data


@pytest.mark.parametrize("pair", PAIRS)
def test_clipping_never_increases_a_distance(pair):
    a, b = map(np.array, pair)
    # The projection itself is 1-Lipschitz; its result is rounded, by a few ulps of 1.
    assert not grows(clip, a, b, slack=8 * 2.0**-53)


VECTORS = hnp.arrays(np.float64, 4, elements=st.floats(-1e3, 1e3))


@pytest.mark.slow
@settings(max_examples=150)
@given(VECTORS, VECTORS, st.floats(0.0, 1.0))
def test_clipping_is_one_lipschitz(a, b, near):
    assert not grows(clip, a, b, slack=1e-15)
    # ... and for close pairs, where a discontinuity would show.
    assert not grows(clip, a, a + 1e-9 * near * (b - a), slack=1e-15)


def test_the_same_check_catches_normalising():
    """A sabotaged twin: dividing by the norm moves two small rows to the poles."""
    a, b = np.array([1e-3, 0.0]), np.array([-1e-3, 0.0])
    assert grows(normalise, a, b, slack=1e-15)
    assert not grows(clip, a, b, slack=1e-15)


def test_clipping_keeps_a_radius_and_normalising_refuses_it():
    ball = Ball(0.2, "minilm")
    clipped = clip_rows([[3.0, 4.0]], 1.0, space="minilm").space
    assert clipped.ball(ball) == ball
    normalised = normalize_rows([[3.0, 4.0]], space="minilm").space
    assert normalised.name != "minilm"
    with pytest.raises(NotCovered, match="Nothing was spent"):
        normalised.ball(ball)
    inside = Ball(0.2, normalised.name)
    assert normalised.ball(inside) == inside
    with pytest.raises(NotCovered):
        clipped.ball(Ball(0.2, "another space"))


# ---------------------------------------------------------------------------- cube


def test_the_cube_is_the_cube_and_converts_by_the_narrowest_side():
    X = np.array([[-5.0, 10.0], [0.0, 20.0], [50.0, 12.5]])
    data, bound, space = to_unit_cube(X, [-1.0, 10.0], [1.0, 20.0], space="table")
    assert np.array_equal(data, [[0.0, 0.0], [0.5, 1.0], [1.0, 0.25]])
    assert bound.source is BoundSource.ENFORCED
    assert bound.value == 1.0
    image = space.ball(Ball(0.5, "table"))
    assert image.space == space.name == "cube of table"
    assert Fraction(image.radius) >= Fraction(1, 4)
    assert image.radius == pytest.approx(0.25, rel=1e-14)
    with pytest.raises(NotCovered):
        space.ball(Ball(0.5, "elsewhere"))


def test_one_number_may_stand_for_all_columns():
    data = to_unit_cube([[0.0, 5.0, 10.0]], 0.0, 10.0).data
    assert np.array_equal(data, [[0.0, 0.5, 1.0]])
    assert np.array_equal(to_unit_cube([[0.0, 5.0]], [0.0], [10.0]).data, [[0.0, 0.5]])


@pytest.mark.slow
@settings(max_examples=200)
@given(
    hnp.arrays(np.float64, (2, 3), elements=st.floats(-1e6, 1e6)),
    hnp.arrays(np.float64, 3, elements=st.floats(-100, 100)),
    hnp.arrays(np.float64, 3, elements=st.floats(1e-3, 100)),
)
def test_the_constant_of_the_cube_is_true(X, low, width):
    data, _, space = to_unit_cube(X, low, low + width)
    assert ((data >= 0) & (data <= 1)).all()
    before = float(distance_squared(*X)) ** 0.5
    after = float(distance_squared(*data)) ** 0.5
    # Slack: the scaled value is rounded relative to the size of low, not of x.
    assert after <= before * space.from_source.constant + 1e-12 / width.min() * 100


@pytest.mark.parametrize("name", ["huge", "largest", "tiny", "denormal", "mixed"])
def test_any_finite_row_lands_in_the_cube(name):
    data = to_unit_cube([ROWS[name]], -1.0, 1.0).data
    assert ((data >= 0) & (data <= 1)).all()


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, 0.0),
        (1.0, 0.0),
        ([0.0, 1.0], [1.0, 1.0]),
        (math.nan, 1.0),
        (0.0, math.inf),
        (-1e308, 1e308),
        ([0.0, 0.0, 0.0], 1.0),
        ([[0.0, 0.0]], 1.0),
        ("a", 1.0),
        (None, 1.0),
        (0.0, 5e-324),
    ],
)
@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_bad_boxes_are_refused(low, high):
    with pytest.raises(ValueError):
        to_unit_cube([[0.5, 0.5]], low, high)


def test_a_box_that_is_no_number_is_a_value_error():
    with pytest.raises(ValueError, match="low"):
        to_unit_cube([[0.5, 0.5]], {}, 1.0)


# ----------------------------------------------------------------------- bad input

BAD = {
    "nan": [[1.0, math.nan]],
    "inf": [[math.inf, 1.0]],
    "minus inf": [[1.0, 2.0], [-math.inf, 1.0]],
    "vector": [1.0, 2.0],
    "scalar": 3.0,
    "cube": [[[1.0]]],
    "no rows": np.zeros((0, 3)),
    "no columns": np.zeros((3, 0)),
    "empty": [],
    "ragged": [[1.0], [1.0, 2.0]],
    "strings": [["a", "b"]],
    "none": None,
    "none inside": [[None, 1.0]],
    "objects": [[object()]],
    "complex": [[1 + 2j]],
    "dict": {"a": 1},
    "set": {1.0, 2.0},
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    "enforce",
    [
        lambda X: clip_rows(X, 1.0),
        normalize_rows,
        lambda X: to_unit_cube(X, 0.0, 1.0),
    ],
    ids=["clip", "normalise", "cube"],
)
def test_bad_data_is_refused_clearly(enforce, name):
    with pytest.raises(ValueError, match="X must be"):
        enforce(BAD[name])


def test_complex_arrays_are_refused_not_cut():
    with pytest.raises(ValueError, match="X must be"):
        clip_rows(np.array([[1 + 2j]]), 1.0)


def test_the_message_counts_the_bad_rows():
    X = [[1.0, math.nan], [1.0, 2.0], [math.inf, 0.0]]
    with pytest.raises(ValueError, match="2 rows hold NaN or infinity"):
        clip_rows(X, 1.0)


@pytest.mark.parametrize("norm_bound", [0.0, -1.0, math.nan, math.inf])
def test_bad_norms_are_refused(norm_bound):
    with pytest.raises(ValueError, match="norm_bound"):
        clip_rows([[1.0]], norm_bound)


@pytest.mark.parametrize("norm_bound", [True, None, "1", [1.0]])
def test_a_norm_is_a_number(norm_bound):
    with pytest.raises(TypeError, match="norm_bound"):
        clip_rows([[1.0]], norm_bound)


@pytest.mark.parametrize("space", ["", "\n"])
def test_bad_space_names_are_refused(space):
    for enforce in (
        lambda: clip_rows([[1.0]], 1.0, space=space),
        lambda: to_unit_cube([[1.0]], 0.0, 1.0, space=space),
        lambda: Space(space),
    ):
        with pytest.raises(ValueError):
            enforce()


def test_input_is_never_modified_even_through_a_view():
    X = np.array([[3.0, 4.0], [300.0, 400.0]])
    before = X.copy()
    for enforce in (
        lambda: clip_rows(X, 1.0),
        lambda: normalize_rows(X),
        lambda: to_unit_cube(X, 0.0, 1.0),
        lambda: clip_rows(X[:, ::-1], 1.0),
        lambda: clip_rows(X[0:1], 1.0),
    ):
        out = enforce().data
        assert np.array_equal(X, before)
        assert not np.shares_memory(out, X)


def test_integers_and_float32_become_float64():
    for dtype in (np.int64, np.float32, np.bool_):
        assert clip_rows(np.ones((1, 2), dtype), 1.0).data.dtype == np.float64


# -------------------------------------------------------------------------- Bound


@pytest.mark.parametrize("source", list(BoundSource))
def test_bounds_round_trip(source):
    bound = Bound(0.25, source, "gradient norm")
    assert Bound.from_json(bound.to_json()) == bound
    assert Bound(0.25, str(source), "gradient norm") == bound


def test_only_three_sources_exist():
    assert {str(s) for s in BoundSource} == {"enforced", "declared", "estimated"}
    with pytest.raises(ValueError):
        Bound(1.0, "hoped")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_bounds_are_refused(value):
    with pytest.raises(ValueError, match="value"):
        Bound(value, BoundSource.DECLARED)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"value": 1.0, "source": "declared"},
        {"value": 1.0, "source": "declared", "what": "x", "more": 1},
        {"value": "1", "source": "declared", "what": "x"},
        {"value": True, "source": "declared", "what": "x"},
        {"value": 1.0, "source": "hoped", "what": "x"},
        {"value": 1.0, "source": [], "what": "x"},
        {"value": 1.0, "source": "declared", "what": ""},
        {"value": 1.0, "source": "declared", "what": 3},
        {"value": math.nan, "source": "declared", "what": "x"},
    ],
)
def test_bad_bound_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        Bound.from_json(data)
