"""The exponential mechanism, word by word: weights, the draw, scores, refusals."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from demur.core.accounting.events import Pure
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.recording import ScoredChoice, Tape, watching
from demur.mechanisms import exponential
from demur.mechanisms.exponential import (
    GridQuantile,
    base_numerator,
    check_size,
    draw_index,
    integer_weights,
    quantile_scores,
)
from tests.keys import os_key

UNIT = ReplaceOne()
GRID = np.linspace(0.0, 1.0, 11)


class Words:
    """A stream that gives the bytes it was told to."""

    def __init__(self, *numbers):
        self.numbers, self.asked = list(numbers), []

    def read(self, count):
        self.asked.append(count)
        return self.numbers.pop(0).to_bytes(count, "little")


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 7.3, 40.0])
def test_the_base_is_the_smallest_fraction_that_is_not_too_small(epsilon):
    with mp.workdps(60):
        exact = mp.exp(-mp.mpf(epsilon) / 2) * 2**32
        assert base_numerator(epsilon) == int(mp.ceil(exact))


def test_weights_are_powers_of_the_base():
    a, b = base_numerator(1.0), 2**32
    scores = [3, 0, 2, 3]
    weights = integer_weights(scores, 1.0)
    whole = math.gcd(*weights)
    for weight, score in zip(weights, scores, strict=True):
        assert Fraction(weight, weights[1]) == Fraction(a, b) ** score
    assert whole > 0 and all(isinstance(weight, int) for weight in weights)


def test_scores_are_cut_where_nothing_is_left_of_a_weight():
    """64 natural logarithms below the best one, and the list's length."""
    last = math.ceil(2.0 * (64.0 + math.log(4)) / 1.0)
    weights = integer_weights([0, last - 1, last, 10 * last], 1.0)
    assert weights[1] > weights[2] == weights[3] > 0
    assert math.log(Fraction(weights[2], weights[0])) < -64.0 - math.log(4) + 0.5
    assert weights[0] == 2 ** (32 * last)


@pytest.mark.parametrize("scores", [[], [-1], [0, -1, 2]])
def test_scores_are_whole_numbers_from_0(scores):
    with pytest.raises(ValueError, match="scores must be whole numbers from 0"):
        integer_weights(scores, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_epsilon_is_positive(epsilon):
    for ask in (
        lambda: draw_index([0], epsilon, Words()),
        lambda: check_size(3, epsilon),
        lambda: GridQuantile(0.5, epsilon, GRID, UNIT),
    ):
        with pytest.raises(ValueError, match="epsilon must be positive"):
            ask()


def test_the_index_is_where_the_words_sum_falls():
    """Each index gets exactly its weight of the whole numbers below the sum."""
    scores, epsilon = [2, 0, 1], 1.0
    weights = integer_weights(scores, epsilon)
    size = (sum(weights).bit_length() + 7) // 8
    shift = -sum(weights).bit_length() % 8
    begins = [0, weights[0], weights[0] + weights[1]]
    for index, begin in enumerate(begins):
        for number in (begin, begin + weights[index] - 1):
            stream = Words(number << shift)
            assert draw_index(scores, epsilon, stream) == index
            assert stream.asked == [size]


@pytest.mark.parametrize("limit", [1, 2, 3, 255, 256, 257, 2**40 + 1])
def test_a_number_below_a_limit_is_the_first_that_fits(limit):
    bits = limit.bit_length()
    shift, size = -bits % 8, (bits + 7) // 8
    for number in {0, limit - 1, limit // 2}:
        for low_bits in {0, (1 << shift) - 1}:  # bits past those needed are dropped
            stream = Words(
                limit << shift, (2**bits - 1) << shift, number << shift | low_bits
            )
            if limit == 2**bits - 1:  # the second is as good as the first
                stream.numbers.pop(1)
            assert exponential._below(limit, stream) == number
            assert set(stream.asked) == {size} and stream.numbers == []


def test_a_recording_sees_the_scores():
    weights = integer_weights([1, 0], 0.5)
    shift = -sum(weights).bit_length() % 8
    first = Tape()
    with watching(first):
        assert draw_index([1, 0], 0.5, Words(weights[0] << shift)) == 1
    (use,) = first.uses
    assert use.name == "the exponential mechanism"
    assert use.value[0].tolist() == [1, 0] and use.released == 1
    assert isinstance(use.declared, ScoredChoice) and use.declared.epsilon == 0.5


# -- size ----------------------------------------------------------------------------


def test_weights_may_take_half_a_gibibyte(monkeypatch):
    assert exponential._LARGEST_TABLE == 2.0**29
    size = 10 * exponential._cut(10, 0.5) * 32 / 8
    monkeypatch.setattr(exponential, "_LARGEST_TABLE", size)
    check_size(10, 0.5)
    with pytest.raises(ValueError, match="too small for a list of 11"):
        check_size(11, 0.5)
    monkeypatch.setattr(exponential, "_LARGEST_TABLE", size - 1)
    with pytest.raises(ValueError, match=r"epsilon=0.5 is too small for a list of 10"):
        GridQuantile(0.5, 0.5, GRID[:10], UNIT)
    with pytest.raises(ValueError, match="too small"):
        integer_weights([0] * 10, 0.5)


# -- quantiles -------------------------------------------------------------------------


def test_scores_count_values_between_a_candidate_and_the_quantile():
    values = np.array([0.05, 0.1, 0.1, 0.35, 0.9])
    scores = quantile_scores(values, 0.6, np.array([0.0, 0.1, 0.2, 0.35, 0.5, 1.0]))
    assert scores == [3, 0, 0, 1, 1, 2]  # three values should be covered
    assert quantile_scores(values[::-1], 0.6, np.array([0.1])) == [0]
    assert quantile_scores(np.array([]), 0.5, GRID) == [0] * 11
    assert quantile_scores(np.array([]), 0.5, GRID, np.array([])) == [0] * 11


def test_of_groups_the_one_furthest_behind_counts():
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    groups = np.array(["a", "b", "a", "b", "a", "b"])
    grid = np.array([0.0, 0.2, 0.4, 0.6])
    expected = []
    for candidate in grid:
        behind = [
            round(0.5 * 3) - int((values[groups == g] <= candidate).sum()) for g in "ab"
        ]
        expected.append(abs(max(behind)))
    assert quantile_scores(values, 0.5, grid, groups) == expected == [2, 1, 0, 1]


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_is_between_0_and_1(quantile):
    with pytest.raises(ValueError, match="quantile must be strictly between"):
        GridQuantile(quantile, 1.0, GRID, UNIT)


@pytest.mark.parametrize(
    "grid", [[], [[0.1, 0.2]], [0.2, 0.1], [0.1, math.inf], [math.nan], 0.5]
)
def test_a_grid_is_finite_and_increasing(grid):
    with pytest.raises(ValueError, match="grid must be a list of finite numbers"):
        GridQuantile(0.5, 1.0, np.array(grid), UNIT)


def test_equal_candidates_and_a_single_one_are_allowed():
    for grid in ([0.5], [0.1, 0.1, 0.2]):
        assert GridQuantile(0.5, 1.0, np.array(grid), UNIT).grid.tolist() == grid


def test_a_quantile_costs_its_epsilon_and_draws_from_its_grid():
    mechanism = GridQuantile(
        np.float32(0.5), np.float64(2.0), GRID, UNIT, unprotected=("n",)
    )
    assert type(mechanism.quantile) is type(mechanism.epsilon) is float
    declared = mechanism.declaration()
    assert declared.cost.at(UNIT) == Pure(2.0) and declared.unprotected == ("n",)
    assert declared.fingerprint == mechanism.fingerprint
    values = np.repeat([0.05, 0.35], 100)  # others are e^-100 times as likely
    key = os_key(mechanism, mechanism.digest(values))
    assert mechanism.apply(values, key) in GRID[1:4]
    others = [
        GridQuantile(0.25, 2.0, GRID, UNIT),
        GridQuantile(0.5, 1.0, GRID, UNIT),
        GridQuantile(0.5, 2.0, GRID[1:], UNIT),
        GridQuantile(0.5, 2.0, GRID, Ball(0.1, space="x")),
    ]
    assert mechanism.fingerprint not in {other.fingerprint for other in others}
