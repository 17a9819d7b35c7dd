"""The primitives under batch selection: binomial tables, uniform numbers, subsets."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from demur.core.entropy import NoiseKey, Seeded, Stream
from demur.training.batches import binomial, subsets
from demur.training.batches.binomial import LARGEST_DISTANCE, binomial_table


def stream(block: int = 0, seed: int = 0) -> Stream:
    return NoiseKey(Seeded(seed).new_key(), private=False).stream("test", block)


def exact_binomial(n: int, p: Fraction) -> list[Fraction]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def distance(table, law: list[Fraction]) -> Fraction:
    drawn = dict(enumerate(table.probabilities, start=table.smallest))
    return sum(abs(drawn.get(k, 0) - p) for k, p in enumerate(law)) / 2


@pytest.mark.parametrize(
    ("n", "p"),
    [
        (1, 0.3),
        (20, 0.3),
        (20, 1e-9),
        (50, 0.999),
        (120, 1 / 3),
        (150, 0.01),
    ],
)
def test_the_table_is_as_close_to_the_binomial_as_it_says(n, p):
    table = binomial_table(n, Fraction(p))
    assert distance(table, exact_binomial(n, Fraction(p))) <= table.distance
    assert table.distance <= LARGEST_DISTANCE


def test_a_table_for_another_probability_is_further_away_than_that():
    """The same comparison rejects a probability that is off in its last bit."""
    near = math.nextafter(0.3, 1.0)
    table = binomial_table(90, Fraction(near))
    assert distance(table, exact_binomial(90, Fraction(0.3))) > 1e3 * LARGEST_DISTANCE


@pytest.mark.slow
def test_large_tables_keep_the_moments():
    n, p = 10**6, Fraction(0.25)
    table = binomial_table(n, p)
    sizes = range(table.smallest, table.smallest + len(table.cumulative))
    mean = sum(k * w for k, w in zip(sizes, table.probabilities, strict=True))
    var = sum(
        (k - mean) ** 2 * w for k, w in zip(sizes, table.probabilities, strict=True)
    )
    assert abs(mean - n * p) < Fraction(1, 2**100)
    assert abs(var - n * p * (1 - p)) < Fraction(1, 2**90)
    assert table.distance <= LARGEST_DISTANCE


def test_edges_are_certain():
    s = stream()
    assert binomial_table(0, Fraction(1, 2)).draw(s) == 0
    assert binomial_table(9, Fraction(0)).draw(s) == 0
    assert binomial_table(9, Fraction(1)).draw(s) == 9
    with pytest.raises(ValueError, match="from 0 to 1"):
        binomial_table(3, Fraction(3, 2))


@pytest.mark.parametrize("drawn_with, accepted", [(0.3, True), (0.315, False)])
def test_draws_follow_the_table(drawn_with, accepted):
    table, s = binomial_table(12, Fraction(drawn_with)), stream(1)
    found = np.bincount([table.draw(s) for _ in range(20_000)], minlength=13)
    law = np.array([float(p) for p in exact_binomial(12, Fraction(0.3))])
    tail = law[9:].sum()
    value = chisquare(
        np.append(found[:9], found[9:].sum()), 20_000 * np.append(law[:9], tail)
    ).pvalue
    assert bool(value > 1e-4) is accepted


# 2^32 = 2.5 of this bound and 1 over. Unless some words are rejected, of two numbers
# that follow each other one has 3 words and the other 2: the odd one in the lower half,
# the even one in the upper.
_UNEVEN = int(2**32 / 2.5)


def evenness(drawn) -> float:
    favoured = (drawn % 2 == 0) == (drawn >= _UNEVEN // 2)
    return float(binomtest(int(favoured.sum()), len(drawn)).pvalue)


def test_numbers_below_a_bound_have_no_bias():
    drawn = subsets.uniform_below(_UNEVEN, 20_000, stream(2))
    assert drawn.min() >= 0 and drawn.max() < _UNEVEN
    assert evenness(drawn.astype(np.int64)) > 1e-4


def test_without_rejection_the_same_test_finds_the_bias():
    words = np.frombuffer(stream(2).read(80_000), "<u4").astype(np.uint64)
    drawn = (words * np.uint64(_UNEVEN)) >> np.uint64(32)
    assert evenness(drawn.astype(np.int64)) < 1e-50


def subset_counts(choose, runs: int = 12_000) -> list[int]:
    cells: dict[tuple[int, ...], int] = {
        c: i for i, c in enumerate(itertools.combinations(range(6), 3))
    }
    found = [0] * len(cells)
    s = stream(3)
    for _ in range(runs):
        found[cells[tuple(sorted(int(i) for i in choose(s)))]] += 1
    return found


def test_every_subset_is_equally_likely_and_the_places_come_back():
    places = subsets.identity(6)
    counts = subset_counts(lambda s: subsets.subset(places, 3, s))
    assert chisquare(counts).pvalue > 1e-4
    assert places.tolist() == list(range(6))


@pytest.mark.slow
def test_a_shuffle_that_draws_from_all_places_is_rejected():
    """The classic mistake: step i swaps with any place instead of one from i on."""

    def wrong(s: Stream):
        places = list(range(6))
        for i in range(6):
            j = int(subsets.uniform_below(6, 1, s)[0])
            places[i], places[j] = places[j], places[i]
        return places[:3]

    assert chisquare(subset_counts(wrong)).pvalue < 1e-6


def test_shuffles_are_uniform():
    orders = {o: i for i, o in enumerate(itertools.permutations(range(4)))}
    found = [0] * 24
    s = stream(4)
    for _ in range(12_000):
        places = subsets.identity(4)
        subsets.shuffle(places, s)
        found[orders[tuple(places.tolist())]] += 1
    assert chisquare(found).pvalue > 1e-4


def test_a_draw_that_runs_out_of_words_starts_again(monkeypatch):
    few = iter([3])

    def short(s, count, bound):
        size = next(few, None)
        words = _words(s, count, bound)
        return words if size is None else words[:size]

    _words = subsets._words
    monkeypatch.setattr(subsets, "_words", short)
    places = subsets.identity(50)
    chosen = subsets.subset(places, 20, stream(5))
    assert len(set(chosen.tolist())) == 20
    assert places.tolist() == list(range(50))


def test_words_that_would_favour_a_number_are_rejected():
    """2^32 = 3 * 1431655765 + 1: one word is too many, and it is word 0."""
    words = np.array([0, 2**32 - 1], dtype=np.uint32)
    chosen, swaps = np.full(1, -1, np.int32), np.empty(1, np.int32)
    assert subsets._partial_shuffle(
        np.arange(3, dtype=np.int32), words, swaps, chosen, True
    )
    assert chosen[0] == 2
    out = np.full(1, -1, np.int32)
    assert subsets._below(words, 3, out) and out[0] == 2
    assert not subsets._below(words[:1], 3, out)


def test_a_table_that_is_cut_short_is_not_used(monkeypatch):
    monkeypatch.setattr(binomial, "_MOST_WEIGHTS", 20)
    with pytest.raises(ValueError, match="spread too far"):
        binomial.binomial_table.__wrapped__(1001, Fraction(1, 2))
