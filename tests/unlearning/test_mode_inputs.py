"""Rows and targets of a mode: what is no number, of another shape, or not finite."""

import math

import numpy as np
import pytest

from demur.unlearning.models import inputs

NOT_NUMBERS = [
    [object(), 1.0],
    [1j, 2.0],
    ["a", "b"],
    [[1.0], [2.0, 3.0]],
    [10**400, 1.0],
    np.array([1j, 2.0]),
    np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
    np.ma.array([1.0, 2.0], mask=[True, False]),
]


@pytest.mark.parametrize("bad", NOT_NUMBERS)
def test_what_is_no_array_of_numbers_is_a_value_error(bad):
    with pytest.raises(ValueError, match="x must be a vector of real numbers"):
        inputs.vector(bad, 2)
    with pytest.raises(ValueError, match="X must be a matrix of real numbers"):
        inputs.rows(bad[None] if isinstance(bad, np.ndarray) else [bad], [1.0], 2)
    with pytest.raises(ValueError, match="Y must be a vector of real numbers"):
        inputs.rows([[1.0, 2.0]] * 2, bad, 2)


def test_shapes_are_checked():
    for X, Y in ([[1.0, 2.0], [0.0]], [[[1.0]], [0.0]], [[[1.0, 2.0]], [[0.0]]]):
        with pytest.raises(ValueError, match="must have shape|one target for each"):
            inputs.rows(X, Y, 2)
    with pytest.raises(ValueError, match="one target for each of 1 rows"):
        inputs.rows([[1.0, 2.0]], [0.0, 1.0], 2)
    with pytest.raises(ValueError, match="shape"):
        inputs.vector([1.0, 2.0, 3.0], 2)
    with pytest.raises(ValueError, match="one record in a call; got"):
        inputs.vector([[1.0, 2.0]], 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_row_that_is_not_finite_is_named(bad):
    X, Y = np.ones((4, 2)), np.ones(4)
    X[2, 1] = bad
    with pytest.raises(ValueError, match="row 2"):
        inputs.rows(X, Y, 2)
    X[2, 1], Y[3] = 1.0, bad
    with pytest.raises(ValueError, match="row 3"):
        inputs.rows(X, Y, 2)
    with pytest.raises(ValueError, match="finite"):
        inputs.vector([1.0, bad], 2)


@pytest.mark.parametrize("bound", [1e-100, 1e100])
def test_the_smallest_and_the_largest_norm_bound_are_allowed(bound):
    inputs.check_norm_bound(bound)
    for beyond in (bound * (0.9 if bound < 1 else 1.1), 0.0, math.nan):
        with pytest.raises(ValueError, match="norm_bound"):
            inputs.check_norm_bound(beyond)


def test_no_clipped_row_is_longer_than_the_longest():
    draw = np.random.default_rng(0)
    for dimension in (1, 2, 50, 700):
        longest = inputs.longest(0.3, dimension)
        assert 0.3 < longest < 0.3 * (1 + 1e-10)
        for size in (0.3, 1.0, 1e150, 1e300):
            row = draw.normal(size=dimension)
            row *= size / np.linalg.norm(row)
            clipped = inputs.clipped(row, 0.3)
            assert 0.3 * (1 - 1e-9) <= math.hypot(*clipped) <= longest


@pytest.mark.parametrize(
    ("given", "taken"), [(0, 0.0), (1, 1.0), (-1, 0.0), (True, 1.0), (np.False_, 0.0)]
)
def test_classes(given, taken):
    assert inputs.label(given) == taken


@pytest.mark.parametrize("bad", [2, 0.5, math.nan, math.inf])
def test_other_numbers_are_no_classes(bad):
    with pytest.raises(ValueError, match="y must"):
        inputs.label(bad)
