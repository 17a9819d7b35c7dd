"""The strength of a regulariser in the words of other libraries."""

import math

import numpy as np
import pytest

from demur.convex.sensitivity.conventions import lam_from


@pytest.mark.parametrize(
    ("convention", "value", "lam"),
    [
        ("lam", 0.25, 0.25),
        ("lambda_frob", 0.25, 0.5),
        ("sklearn_C", 0.25, 0.5),
        ("weight_decay", 0.25, 0.25),
    ],
)
def test_a_strength_in_another_convention(convention, value, lam):
    for number in (8, np.int64(8)):
        told = lam_from(convention, np.float32(value), number)
        assert told == lam and type(told) is float


@pytest.mark.parametrize("n", [0, -1, True, 1.5, None])
def test_the_number_of_records_is_whole(n):
    for convention in ("lam", "sklearn_C"):
        with pytest.raises((TypeError, ValueError), match="n must be"):
            lam_from(convention, 1.0, n)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "1"])
def test_a_strength_is_positive(value):
    with pytest.raises((TypeError, ValueError), match="value must be"):
        lam_from("lam", value, 8)


def test_an_unknown_convention_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match="one of lam, lambda_frob, sklearn_C, weight_"):
        lam_from("C", 1.0, 8)
