"""Noise that two rows share is found wherever the rows are."""

import numpy as np
import pytest

from demur.audit import NoPower, shared_noise_test
from demur.audit.distributions import normal


def rows(count=60, length=300, seed=0):
    return np.random.default_rng(seed).normal(size=(count, length))


def test_independent_rows_pass_with_a_p_value():
    result = shared_noise_test(rows(), normal(1.0))
    assert not result.refuted and 1e-6 < result.p_value <= 1.0


@pytest.mark.parametrize(
    "shared",
    [
        lambda r: r,
        lambda r: -r,
        lambda r: 0.8 * r + 0.6 * rows(1, 300, 9)[0],
    ],
    ids=["same", "mirrored", "in part"],
)
def test_a_shared_row_is_found(shared):
    draws = rows()
    draws[41] = shared(draws[3])
    result = shared_noise_test(draws, normal(1.0))
    assert result.refuted and "3 and 41" in result.evidence


def test_a_constant_row_is_found_and_short_rows_are_refused():
    draws = rows()
    draws[5] = 0.25
    assert shared_noise_test(draws, normal(1.0)).refuted
    with pytest.raises(NoPower, match="too short"):
        shared_noise_test(rows(60, 20), normal(1.0))
    with pytest.raises(ValueError, match="rows must be"):
        shared_noise_test(np.full((3, 50), np.nan), normal(1.0))


def test_p_values_are_not_smaller_than_uniform():
    p = np.array(
        [
            shared_noise_test(rows(8, 200, seed), normal(1.0)).p_value
            for seed in range(300)
        ]
    )
    # Of 300 uniform numbers at most 110 are below 0.25 but for once in a million.
    assert (p < 0.25).sum() <= 110 and (p < 0.25).sum() >= 30
