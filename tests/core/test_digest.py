"""Digests and fingerprints: equal for equal things, different for different ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur import Declaration
from demur.core.declaration import fingerprint_of
from demur.core.digest import (
    digest_of_array,
    digest_of_parts,
    digest_of_rows,
    digest_of_text,
)
from demur.core.rounding import printed_down, printed_pair, printed_up
from tests.core.test_entry import HEAD

ARRAYS = [
    np.zeros(4),
    np.zeros((2, 2)),
    np.zeros((4, 1)),
    np.zeros(4, dtype=np.int64),
    np.zeros(4, dtype=np.float32),
    np.zeros(8, dtype=np.float32),
    -np.zeros(4),
    np.array([0.0, 0.0, 0.0, 5e-324]),
    np.array(["a", "b"]),
    np.array([b"a", b"b"]),
]


def test_arrays_of_other_types_shapes_or_bits_have_other_digests():
    assert len({digest_of_array(array) for array in ARRAYS}) == len(ARRAYS)
    assert len({fingerprint_of("m", array) for array in ARRAYS}) == len(ARRAYS)


def test_a_digest_does_not_depend_on_the_layout_in_memory():
    matrix = np.arange(12.0).reshape(3, 4)
    for same in (matrix.copy(order="F"), np.tile(matrix, (2, 2))[:3, :4]):
        assert digest_of_array(same) == digest_of_array(matrix)


def test_objects_have_no_digest():
    """Their bytes are addresses: equal arrays would differ, and other ones be equal."""
    for array in (np.array(["a", None]), np.array([object()])):
        with pytest.raises(TypeError, match="Python objects"):
            digest_of_array(array)
        with pytest.raises(TypeError, match="Python objects"):
            fingerprint_of("m", array)


def test_parts_are_kept_apart():
    ways = [
        ("a\nb", "c"),
        ("a", "b\nc"),
        ("a", "b", "c"),
        ("a\nb\nc",),
        ("c", "b", "a"),
    ]
    assert len({digest_of_parts(*parts) for parts in ways}) == len(ways)
    assert digest_of_parts("a", 1) == digest_of_parts("a", "1")
    assert digest_of_text("a") == digest_of_text(b"a")


def test_rows_are_named_by_their_ids_whatever_the_order():
    rows, ids = np.arange(6.0).reshape(3, 2), np.array([7, 3, 5], dtype=np.uint64)
    order = [2, 0, 1]
    same = digest_of_rows("points", rows[order], ids[order])
    assert digest_of_rows("points", rows, ids) == same
    assert digest_of_rows("points", rows[order], ids) != same
    assert digest_of_rows("reports", rows, ids) != same


@pytest.mark.parametrize(
    "other",
    [
        ("m", 1.0, 4),
        ("m", 1, 3),
        ("m", True, 3),
        ("m", "1.0", 3),
        ("m", math.nextafter(1.0, 2.0), 3),
        ("m", [1.0, 3]),
        ("n", 1.0, 3),
        ("m", 3, 1.0),
        ("m", 1.0),
        ("m", np.array([1.0]), 3),
    ],
    ids=[str(i) for i in range(10)],
)
def test_fingerprints_differ_in_kind_type_order_and_last_bit(other):
    assert fingerprint_of(*other) != fingerprint_of("m", 1.0, 3)


def test_a_declaration_without_a_fingerprint_gets_that_of_its_other_fields():
    plain = Declaration("m", HEAD.cost)
    assert plain.fingerprint and plain == Declaration("m", HEAD.cost)
    others = [
        Declaration("n", HEAD.cost),
        Declaration("m", HEAD.cost, sampler_distance=1e-9),
        Declaration("m", HEAD.cost, unprotected=("labels",)),
        Declaration("m", HEAD.cost, assumptions=("none",)),
        Declaration("m", HEAD.cost, draws=None),
    ]
    assert len({d.fingerprint for d in [plain, *others]}) == 6


@pytest.mark.parametrize("distance", [0, np.float32(0.0), np.int64(0)])
def test_a_declaration_does_not_depend_on_the_type_of_its_numbers(distance):
    same = Declaration("m", HEAD.cost, sampler_distance=distance)
    assert same == Declaration("m", HEAD.cost)
    assert Declaration.from_json(same.to_json()) == same


# ------------------------------------------------------------------- printed numbers


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_what_is_printed_is_on_its_side(value, digits):
    above, below = printed_up(value, digits), printed_down(value, digits)
    assert float(below) <= value <= float(above)
    assert float(above) - float(below) <= value * 10.0 ** (1 - digits) * 1.000001
    for text in (above, below):
        assert len(text.split("e")[0].replace(".", "").strip("0")) <= digits


def test_short_numbers_are_printed_as_they_are():
    for text in ("0.1", "0.3", "1e-05", "2", "0.25", "1e-06", "inf", "0"):
        assert printed_up(float(text)) == printed_down(float(text)) == text


@given(st.floats(1e-12, 1e6), st.floats(0.0, 1.0) | st.just(1.0))
def test_a_cost_within_its_budget_is_not_printed_above_it(budget, share):
    spent, limit = printed_pair(cost := budget * share, budget)
    assert float(spent) <= float(limit) and float(spent) >= cost
    # Down, or one number where seven digits do not tell the two apart.
    assert float(limit) <= budget or spent == limit == printed_up(budget)


def test_two_roundings_would_look_like_an_overdraft():
    """The twin: four digits of each, up and down."""
    assert float(printed_up(9.4953)) > float(printed_down(9.49539))
    assert printed_pair(9.4953, 9.49539) == ("9.4953", "9.4953")
    assert printed_pair(2.5, 1.0) == ("2.5", "1")
