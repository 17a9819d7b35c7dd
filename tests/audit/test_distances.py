"""Distances in the geometry of each promise, against the formulas written out."""

import math

import numpy as np
import pytest

from demur import AddOrRemoveOne, Ball, Erasure, ReplaceOne, Sensitivity
from demur.audit.distances import charged_loss, measure
from demur.audit.measurement import MeasuredLoss, Measurement
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.curve import PiecewiseLinear
from demur.core.recording import MechanismUse, RowNoise, ScoredChoice, Shift, Step
from demur.mechanisms import BPM
from demur.mechanisms.correlated import (
    BandedToeplitz,
    Buffered,
    Dense,
    Participation,
)

ONE, TWO = AddOrRemoveOne(), ReplaceOne()


def pair(declared, one, two, key=None):
    one, two = (v if isinstance(v, tuple) else (np.asarray(v),) for v in (one, two))
    return tuple(MechanismUse("m", declared, value, None, key) for value in (one, two))


def only(pairs, unit):
    (measured,) = measure(pairs, unit)
    return measured


# -- a vector --------------------------------------------------------------------------


def test_a_shift_is_a_distance_and_costs_mu():
    declared = Shift(Sensitivity.of({TWO: 5.0}), 2.0)
    measured = only([pair(declared, [0.0, 0.0], [3.0, 4.0])], TWO)
    assert measured.distance == pytest.approx(5.0) and measured.within
    assert measured.share == pytest.approx(1.0)
    assert measured.loss.squared_mu == pytest.approx(6.25)


def test_a_shift_under_one_sigma_for_each_coordinate():
    declared = Shift(Sensitivity.of({TWO: 1.0}), np.array([3.0, 8.0]))
    measured = only([pair(declared, [0.0, 0.0], [3.0, 4.0])], TWO)
    assert measured.distance == pytest.approx(math.hypot(1.0, 0.5))
    assert measured.loss.squared_mu == pytest.approx(1.25) and not measured.within


def test_a_shift_over_balls_follows_the_radius():
    curve = PiecewiseLinear.linear(2.0, cap=3.0)
    declared = Shift(Sensitivity.of({"s": curve}), 1.0)
    moved = [pair(declared, [0.0], [0.99])]
    assert only(moved, Ball(0.5, space="s")).within
    assert not only(moved, Ball(0.49, space="s")).within
    assert not only(moved, Ball(0.5, space="other")).within


@pytest.mark.parametrize(
    "one, two",
    [
        ([0.0], [np.nan]),
        ([np.nan], [np.nan]),
        ([np.inf], [np.inf]),
        ([0.0], [0.0, 0.0]),
    ],
)
def test_what_is_not_a_number_is_infinitely_far(one, two):
    declared = Shift(Sensitivity.of({TWO: 1e300}), 1.0)
    measured = only([pair(declared, one, two)], TWO)
    assert measured.distance == measured.share == math.inf and not measured.within


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_squares_are_not_lost(size):
    declared = Shift(Sensitivity.of({TWO: 5.0 * size}), 1.0)
    measured = only([pair(declared, [0.0, 0.0], [3.0 * size, 4.0 * size])], TWO)
    assert measured.distance == pytest.approx(5.0 * size) and measured.within


def test_where_nothing_is_declared_nothing_may_move():
    declared = Shift(Sensitivity.of({Erasure(): 1.0}), 1.0)
    assert not only([pair(declared, [0.0], [1e-300])], TWO).within
    assert only([pair(declared, [0.5], [0.5])], TWO).within


def test_infinite_room_is_no_share():
    assert Measurement("x", 1.0, math.inf).share == 0.0
    assert Measurement("x", math.inf, math.inf).share == math.inf


def test_a_count_within_its_limit_is_no_share():
    assert Measurement("x", 2.0, 2.0, counted=True).share == 0.0
    assert Measurement("x", 3.0, 2.0, counted=True).share == 1.5


# -- scores ----------------------------------------------------------------------------


def test_scores_move_by_one():
    inside = only([pair(ScoredChoice(0.5), [1, 2, 3], [2, 1, 3])], TWO)
    assert inside.within and inside.loss == MeasuredLoss(epsilon=0.5)
    beyond = only([pair(ScoredChoice(0.5), [1, 2, 3], [3, 2, 3])], TWO)
    assert not beyond.within and beyond.loss == MeasuredLoss(epsilon=1.0)


# -- rows ------------------------------------------------------------------------------

BALL = RowNoise(BPM(4.0, 0.5, 2).declaration().cost)
IDS = np.array([7, 3, 9], dtype=np.uint64)
POINTS = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])


def rows(points, ids=IDS, key=0, other=POINTS, declared=BALL):
    return pair(declared, (IDS, other), (ids, np.asarray(points)), key)


def test_a_row_is_known_by_its_id():
    order = np.array([2, 0, 1])
    count = only([rows(POINTS[order], IDS[order])], TWO)
    assert count.distance == 0.0
    shuffled = measure([rows(POINTS[order])], TWO)
    assert shuffled[0].distance == 3.0 and not shuffled[0].within


def test_one_row_may_move_and_costs_its_own_distance():
    moved = POINTS + [[0.0, 0.0], [0.06, 0.08], [0.0, 0.0]]
    count, row = measure([rows(moved)], Ball(0.1001, space="cube"))
    assert count.within and row.within and row.distance == pytest.approx(0.1)
    assert row.loss.epsilon == pytest.approx(0.4)
    assert not measure([rows(moved)], Ball(0.0999, space="cube"))[1].within


def test_rows_of_one_key_are_counted_together_and_of_two_apart():
    first = POINTS + [[0.1, 0.0], [0.0, 0.0], [0.0, 0.0]]
    second = POINTS + [[0.0, 0.0], [0.0, 0.1], [0.0, 0.0]]
    same = measure([rows(first, key=1), rows(second, key=1)], TWO)
    assert same[0].distance == 2.0 and not same[0].within
    apart = measure([rows(first, key=1), rows(second, key=2)], TWO)
    assert all(measured.within for measured in apart)
    both = measure([rows(first, key=1), rows(second, key=1)], ReplaceOne(2))
    assert all(measured.within for measured in both)


@pytest.mark.parametrize(
    "given",
    [rows(POINTS[:2], IDS[:2]), rows(POINTS, np.array([7, 3, 8], dtype=np.uint64))],
)
def test_rows_that_come_or_go(given):
    assert not all(measured.within for measured in measure([given], TWO))


def test_reports_say_nothing_about_presence():
    moved = POINTS + [[0.1, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert not measure([rows(moved)], ONE)[0].within


# -- steps -----------------------------------------------------------------------------

STRATEGIES = {
    "plain": BandedToeplitz([1.0], 6),
    "banded": BandedToeplitz([0.8, 0.5, 0.3], 6),
    "normalised": BandedToeplitz([0.8, 0.5, 0.3], 6, column_normalize=True),
    "dense": Dense(np.tril(np.arange(1.0, 37.0).reshape(6, 6)) + np.eye(6)),
    "buffered": Buffered([0.9, 0.4], [0.2, 0.1], 6),
}


def run(strategy, before, after, *, mixed=False, patterns=None, bound=1.0):
    return [
        pair(Step(t, strategy, 2.0, bound, patterns, mixed), one, two)
        for t, (one, two) in enumerate(zip(before, after, strict=True))
    ]


def worlds(steps, moved=1.0, seed=0):
    """Sums of two worlds that differ at `steps`, by vectors of norm `moved`."""
    rng = np.random.default_rng(seed)
    before, after = rng.normal(size=(2, 6, 4))
    after = before.copy()
    for t in steps:
        direction = rng.normal(size=4)
        after[t] += moved * direction / np.linalg.norm(direction)
    return before, after


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_is_one_gaussian_on_C_G(name):
    strategy = STRATEGIES[name]
    before, after = worlds([0, 3])
    matrix = strategy.matrix()
    whole = np.linalg.norm(matrix @ (before - after))
    for mixed in (False, True):
        given = (matrix @ before, matrix @ after) if mixed else (before, after)
        step, together = measure(run(strategy, *given, mixed=mixed), ONE)
        assert step.distance == pytest.approx(1.0) and step.within
        assert together.distance == pytest.approx(whole, rel=1e-9)
        assert together.loss.squared_mu == pytest.approx((whole / 2.0) ** 2)


def test_a_step_moves_by_one_contribution_or_two():
    for moved, unit, within in [
        (1.0, ONE, True),
        (1.01, ONE, False),
        (2.0, TWO, True),
        (2.01, TWO, False),
        (1.0, Erasure(), False),
    ]:
        given = run(STRATEGIES["plain"], *worlds([1], moved))
        assert measure(given, unit)[0].within is within


def test_steps_must_be_a_pattern_of_the_plan():
    strategy, patterns = STRATEGIES["banded"], Participation(3, 2)

    def violated(steps, moved=1.0):
        given = run(strategy, *worlds(steps, moved), patterns=patterns)
        return {m.what: m for m in measure(given, ONE) if not m.within}

    assert violated([0, 3]) == violated([2, 5]) == violated([]) == {}
    too_close = "the number of steps that are too close to another with the record"
    assert too_close in violated([0, 2])
    assert "the number of steps with the record" in violated([0, 2, 4])


def test_the_sensitivity_of_the_run_is_attained_by_equal_contributions():
    strategy, patterns = STRATEGIES["banded"], Participation(3, 2)
    before = np.zeros((6, 4))
    after = before.copy()
    after[[0, 3], 0] = 1.0
    together = measure(run(strategy, before, after, patterns=patterns), ONE)[1]
    assert together.within and together.share == pytest.approx(1.0, abs=1e-4)
    after[[0, 3], 0] = 1.001
    assert not measure(run(strategy, before, after, patterns=patterns), ONE)[1].within


def test_runs_are_told_apart_and_must_be_whole():
    strategy, other = STRATEGIES["plain"], BandedToeplitz([1.0], 6)
    given = run(strategy, *worlds([0]))
    assert len(measure(given + run(strategy, *worlds([1])), ONE)) == 4
    mingled = [p for both in zip(given, run(other, *worlds([1]))) for p in both]  # noqa: B905
    assert (
        all(m.within for m in measure(mingled, ONE)) and len(measure(mingled, ONE)) == 4
    )
    assert not measure(given[:2] + given[3:], ONE)[0].within


def test_a_nan_in_a_step():
    before, after = worlds([])
    after[2, 1] = np.nan
    (measured,) = measure(run(STRATEGIES["plain"], before, after), ONE)
    assert not measured.within and measured.loss.squared_mu == math.inf


# -- what is charged -------------------------------------------------------------------


@pytest.mark.parametrize(
    "event, loss",
    [
        (GaussianEvent(2.0), MeasuredLoss(0.25)),
        (Repeated(GaussianEvent(2.0), 3), MeasuredLoss(0.75)),
        (Composed((Pure(0.5), GaussianEvent(1.0))), MeasuredLoss(1.0, 0.5)),
        (PoissonGaussian(0.1, 2.0), MeasuredLoss(0.25)),
        (PoissonGaussian(0.1, 2.0, Neighbours.REPLACE_ONE), MeasuredLoss(1.0)),
        (TruncatedPoissonGaussian(10, 0.1, 3, 2.0), MeasuredLoss(0.25)),
        (ApproxDP(1.0, 1e-6), None),
    ],
)
def test_what_an_event_allows_when_its_coins_are_known(event, loss):
    assert charged_loss(event) == loss
