"""Sums that no order and no batches can change; and the twin that they would change."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demur.cluster.decoding.likelihood import LikelihoodSums, MixtureObjective
from demur.cluster.decoding.noise import GaussianNoise, PureNoise, noise_of
from demur.cluster.decoding.radial import radial_table
from demur.cluster.rows.exact_sums import PartialSums, anchors, split_sums, summed
from demur.cluster.rows.ranked_rows import RowsInMemory
from demur.mechanisms.bpm import BPM

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=True)
TERMS = hnp.arrays(np.float64, st.integers(1, 60), elements=NUMBERS)


class Terms:
    """The rows themselves are the terms."""

    def __init__(self, bound=1.0):
        self.bounds = np.array([bound])

    def __call__(self, rows, anchors):
        return split_sums(rows, anchors[:, 0])


class Batches:
    """Rows cut at given places, the batches in a given order."""

    def __init__(self, values, cuts=(), turn=None):
        self.parts = np.split(values, sorted(cuts))
        if turn is not None:
            self.parts = [self.parts[i] for i in turn]
        self.shape = values.shape
        self.passes = 0

    def over(self, work):
        self.passes += 1
        assert self.passes < 99, "a loop without end"
        parts = [work(np.ascontiguousarray(part)) for part in self.parts if len(part)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(TERMS, st.data())
def test_any_order_and_any_batches_give_the_same_sum(terms, data):
    order = data.draw(st.permutations(range(len(terms))))
    cuts = data.draw(st.lists(st.integers(0, len(terms)), max_size=5))
    turn = data.draw(st.permutations(range(len(cuts) + 1)))
    one = summed(Batches(terms[:, None]), Terms())
    other = summed(Batches(terms[order][:, None], cuts, turn), Terms())
    assert one.tobytes() == other.tobytes()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(TERMS, st.floats(1e-3, 1e9))
def test_the_sum_is_that_of_fsum_within_the_stated_bound(terms, bound):
    """Both pieces are sums without any error, and the rest is below n^3 B 2^-104."""
    n = len(terms)
    largest = max(2.0 * float(np.abs(terms).max()), bound)
    rows = Batches(terms[:, None])
    found = rows.over(lambda part: Terms()(part, anchors(n, np.array([largest]))))
    exact = sum(map(Fraction, terms.tolist()))
    kept = Fraction(float(found.high[0])) + Fraction(float(found.low[0]))
    assert abs(kept - exact) <= Fraction(n) ** 3 * Fraction(largest) / 2**104
    total = float(summed(rows, Terms(bound))[0])
    slack = 2.0**-53 * abs(total) + n**3 * largest * 2.0**-104
    assert abs(total - math.fsum(terms)) <= 2 * slack


@settings(deadline=None)
@given(TERMS)
def test_pieces_are_multiples_of_one_quantum(terms):
    """Which is why their sums are exact; the twin with terms as they are has none."""
    bound = np.array([float(np.abs(terms).max()) + 1.0])
    cuts = anchors(len(terms), bound)
    high = (terms + cuts[0]) - cuts[0]
    quantum = float(cuts[0, 0]) / 1.5 * 2.0**-52
    assert (np.mod(high / quantum, 1.0) == 0.0).all()
    assert (np.abs(terms - high) <= quantum / 2).all()


def test_plain_sums_depend_on_the_batches():
    """The sabotaged twin: with plain float64 sums the tests above have power."""
    rng = np.random.default_rng(0)
    different = 0
    for _ in range(50):
        terms = rng.normal(size=1000)
        parts = np.split(terms, [300, 650])
        plain = sum(float(np.add.accumulate(part)[-1]) for part in parts)
        different += plain != float(np.add.accumulate(terms)[-1])
        rows, cut = Batches(terms[:, None]), Batches(terms[:, None], [300, 650])
        assert summed(rows, Terms()) == summed(cut, Terms())
    assert different > 40


def test_a_bound_that_was_too_small_is_found_and_the_pass_repeated():
    terms = np.array([[3.0], [1e5], [-2e5], [1e-9]])
    rows = Batches(terms)
    assert summed(rows, Terms(1.0))[0] == math.fsum(terms.ravel())
    assert rows.passes == 2
    # Without the repetition the pieces are not exact: the order decides.
    many = np.random.default_rng(0).normal(size=(1000, 1))
    cut = anchors(1000, np.array([1e-12]))
    found = {Terms()(rows, cut).rounded()[0] for rows in (many, many[::-1])}
    assert len(found) == 2


def test_what_is_not_finite_ends_and_says_so():
    for bad in (np.inf, -np.inf, np.nan):
        with np.errstate(invalid="ignore"):
            found = summed(Batches(np.array([[1.0], [bad]])), Terms())[0]
        assert not np.isfinite(found)
    assert summed(Batches(np.zeros((3, 1))), Terms(0.0))[0] == 0.0


@pytest.mark.parametrize("guess", [np.nan, np.inf, -1.0])
def test_a_guess_that_is_no_bound_is_replaced_by_what_a_pass_met(guess):
    terms = np.random.default_rng(0).normal(size=(1000, 1))
    rows = Batches(terms)
    assert summed(rows, Terms(guess))[0] == math.fsum(terms.ravel())
    assert rows.passes == 2
    assert summed(Batches(terms[::-1], [7, 500]), Terms(guess)) == summed(rows, Terms())


# -- the likelihood's kernel -----------------------------------------------------------

NOISES = {
    "bpm": noise_of(BPM(6.0, 0.8, 3)),
    "laplace": PureNoise(6.0, math.inf, 3, 3),
    "by coordinate": PureNoise(4.0, math.inf, 1, 3),
    "gaussian": GaussianNoise(0.3, 3),
}


def work_for(noise, clusters=4, seed=0):
    rng = np.random.default_rng(seed)
    table = radial_table(noise, None)
    logs = np.log(rng.dirichlet(np.ones(clusters)))
    centers = rng.random((clusters, 3))
    profile = table.at_all(np.full(clusters, math.log(0.1)))
    product = noise.block != noise.dimension
    return LikelihoodSums(centers, logs, profile, table.step, product)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_a_pass_over_reports_does_not_depend_on_order_and_batches(noise):
    rng = np.random.default_rng(1)
    reports = rng.normal(0.5, 0.6, size=(5000, 3))
    reports[7] = 40.0  # far beyond the table
    work = work_for(NOISES[noise])
    whole = summed(Batches(reports), work)
    for seed in range(3):
        turn = np.random.default_rng(seed)
        cuts = turn.integers(0, 5000, size=11)
        cut = Batches(reports[turn.permutation(5000)], cuts, turn.permutation(12))
        assert summed(cut, work).tobytes() == whole.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_a_pass_is_the_sum_of_its_reports(noise):
    """Against math.fsum over passes of one report each: the terms are the same."""
    reports = np.random.default_rng(2).normal(0.5, 0.6, size=(400, 3))
    work = work_for(NOISES[noise])
    whole = summed(Batches(reports), work)
    each = np.array([summed(Batches(one[None]), work) for one in reports])
    exact = [math.fsum(column) for column in each.T]
    assert np.allclose(whole, exact, rtol=0.0, atol=1e-12 * np.abs(each).sum(axis=0))
    # The twin adds up in float64 and is off in the last digits, in this order.
    plain = np.add.accumulate(each, axis=0)[-1]
    assert (plain != whole).any()


@pytest.mark.slow
def test_the_guessed_bounds_hold_for_reports_of_the_mechanism():
    """One pass is enough: a repetition would double the price of a fit."""
    for L, d in ((0.5, 2), ("auto", 3), (math.inf, 10)):
        bpm = BPM(6.0, L, d)
        X = np.random.default_rng(0).random((4000, d))
        rows = Batches(np.array(bpm.privatize(X, ledger=None).value.values))
        table = radial_table(noise_of(bpm), None)
        objective = MixtureObjective(rows, table, 5, False, None, math.log(0.2), False)
        rng = np.random.default_rng(1)
        for _ in range(10):
            vector = np.array([rng.uniform(*bound) for bound in objective.bounds])
            before = rows.passes
            objective(vector)
            assert rows.passes == before + 1


def test_a_held_matrix_is_one_batch_in_any_layout():
    values = np.random.default_rng(0).random((20, 9))
    ids = np.arange(20, dtype=np.uint64)
    squares = [
        (RowsInMemory(given, ids).values ** 2).sum(axis=1).tobytes()
        for given in (values, np.asfortranarray(values))
    ]
    assert squares[0] == squares[1]


def test_partial_sums_keep_the_largest():
    one = PartialSums(np.ones(2), np.zeros(2), np.array([1.0, 5.0]))
    two = PartialSums(np.ones(2), np.ones(2), np.array([3.0, 2.0]))
    both = one + two
    assert both.largest.tolist() == [3.0, 5.0] and both.rounded().tolist() == [3.0, 3.0]
