"""Each compiled loop against plain numpy or whole numbers, entry by entry.

Numbers are chosen so that sums and products are exact and every entry differs: an index
that is off by one, a sign or a factor shows in the result.
"""

import math

import numpy as np
import pytest

from demur.unlearning.models import kernels

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13]


def numbers(n, start=1):
    """Small whole numbers, all different and of both signs."""
    return np.array([(-1.0) ** j * (start + 2 * j) for j in range(n)])


@pytest.mark.parametrize("n", LENGTHS)
def test_sums_of_products_have_every_term_once(n):
    w, x = numbers(n), numbers(n, 7)[::-1].copy()
    exact = sum(int(a) * int(b) for a, b in zip(w, x, strict=True))
    assert kernels._dot(w, x, n) == exact
    assert kernels._dot_clipped(w, x, 0.5, n) == exact / 2
    for scale in (1.0, 0.25):
        scores = kernels.class_scores(np.concatenate([w, 2 * w, -w]), x, scale, 3)
        assert scores.tolist() == [scale * exact * c for c in (1, 2, -1)]


def test_a_row_within_the_bound_is_taken_as_it_is():
    assert kernels._scale(4.0, 2.0) == 1.0 == kernels._scale(0.0, 2.0)
    assert kernels._scale(4.0 * (1 + 1e-12) ** 2, 2.0) == 1.0
    assert kernels._scale(4.0 * (1 + 3e-12), 2.0) < 1.0
    assert kernels._scale(16.0, 2.0) == 0.5
    row = numbers(5)
    assert kernels.clip(row, 100.0) is row or np.array_equal(
        kernels.clip(row, 100.0), row
    )
    long = 2.0 * np.array([2.0, -2.0, 1.0])  # of norm 6
    assert kernels.clip(long, 3.0).tolist() == [2.0, -2.0, 1.0]
    both = kernels.clip_rows(np.array([long, long / 4.0]), 3.0)
    assert both.tolist() == [[2.0, -2.0, 1.0], [1.0, -1.0, 0.5]]
    assert long.tolist() == [4.0, -4.0, 2.0], "the caller's row is left alone"


@pytest.mark.parametrize("z", [-800.0, -3.0, -0.0, 0.0, 2.5, 800.0])
def test_a_probability_is_the_logistic_of_its_score(z):
    exact = 1.0 / (1.0 + math.exp(-z)) if z > -700 else 0.0
    assert kernels._sigmoid(z) == pytest.approx(exact, rel=1e-15, abs=1e-300)


def test_probabilities_of_classes_and_the_best_of_them():
    scores = np.array([1.0, 3.0, -2.0, 3.0])
    expected = np.exp(scores - 3.0) / np.exp(scores - 3.0).sum()
    own = scores.copy()
    assert kernels.softmax(own) == 1, "the first of equals"
    np.testing.assert_allclose(own, expected, rtol=1e-15)
    assert kernels.softmax(np.array([5.0, 1.0])) == 0
    assert kernels.softmax(np.array([1.0, 2.0, 9.0])) == 2
    large = np.array([1000.0, 999.0])
    kernels.softmax(large)
    np.testing.assert_allclose(large, [1 / (1 + math.exp(-1)), 1 / (1 + math.e)])


def test_a_prediction_is_a_score_a_probability_or_a_class():
    w, x = numbers(5), numbers(5, 3)
    score = float(w @ x)
    norm = float(np.linalg.norm(x))
    assert kernels.predict(w, x, 1e3, kernels.HUBER) == score
    halved = kernels.predict(w, x, norm / 2, kernels.HUBER)
    assert halved == pytest.approx(score / 2, rel=1e-14)
    small = w / 100.0
    assert kernels.predict(small, x, 1e3, kernels.LOGISTIC) == pytest.approx(
        1.0 / (1.0 + math.exp(-float(small @ x))), rel=1e-14
    )
    classes = np.concatenate([-w, w, 0 * w])
    assert kernels.predict(classes, x, 1e3, 3.0) == 1.0
    assert kernels.predict(-classes, x, 1e3, 3.0) == 0.0
    assert math.isnan(kernels.predict(w, np.full(5, 1e200), 1.0, kernels.HUBER))
    assert math.isnan(kernels.predict(w, np.full(5, np.nan), 1.0, kernels.LOGISTIC))


@pytest.mark.parametrize(
    ("y", "kind", "usable"),
    [
        (2.5, kernels.HUBER, True),
        (math.inf, kernels.HUBER, False),
        (1.0, kernels.LOGISTIC, True),
        (0.0, kernels.LOGISTIC, True),
        (-1.0, kernels.LOGISTIC, True),
        (0.5, kernels.LOGISTIC, False),
        (2.0, kernels.LOGISTIC, False),
        (0.0, 3.0, True),
        (2.0, 3.0, True),
        (3.0, 3.0, False),
        (-1.0, 3.0, False),
        (1.5, 3.0, False),
        (math.nan, 3.0, False),
    ],
)
def test_the_first_row_that_a_step_refuses(y, kind, usable):
    X, Y = np.ones((3, 2)), np.array([1.0, y, 1.0])
    assert kernels.first_unusable(X, Y, kind) == (3 if usable else 1)
    for wrong in (1e200, math.nan, math.inf):
        X[2, 1] = wrong
        assert kernels.first_unusable(X, np.ones(3), kind) == 2
        assert not kernels.has_square(X[2])
    assert kernels.has_square(X[0])


# -- online gradient descent --------------------------------------------------------


def stepped(w, ticks, x, y, lam, kappa, bound, radius, t0, kind):
    """One step in plain numpy."""
    norm = np.linalg.norm(x)
    row = x if norm <= bound else x * (bound / norm)
    tau = ticks + 1 + t0
    if kind >= 2:
        table = w.reshape(int(kind), -1)
        p = np.exp(table @ row - (table @ row).max())
        p /= p.sum()
        told, own = p[int(y)], np.eye(int(kind))[int(y)]
        gradient = np.outer(p - own, row).ravel()
    elif kind == 1:
        told = 1.0 / (1.0 + math.exp(-(w @ row)))
        gradient = (told - (1.0 if y == 1 else 0.0)) * row
    else:
        told = w @ row
        gradient = np.clip(told - y, -kappa, kappa) * row
    after = (tau - 1) / tau * w - gradient / (lam * tau)
    length = np.linalg.norm(after)
    return told, after if length <= radius else after * (radius / length)


STEPS = [
    (0.0, 0.7, 50.0, 0.5),
    (0.0, 0.7, 50.0, -300.0),  # the residual is clipped on either side
    (0.0, 0.7, 50.0, 300.0),
    (0.0, 0.7, 1.0, 0.5),
    (1.0, 0.7, 50.0, 1.0),
    (1.0, 0.7, 50.0, 0.0),
    (1.0, 0.7, 1.0, -1.0),
    (3.0, 0.7, 50.0, 0.0),
    (3.0, 0.7, 1.0, 2.0),
]


@pytest.mark.parametrize(("kind", "kappa", "bound", "y"), STEPS)
@pytest.mark.parametrize("radius", [math.inf, 0.3])
@pytest.mark.parametrize("ticks", [0.0, 7.0])
def test_a_step_of_descent(kind, kappa, bound, y, radius, ticks):
    n, outputs = 6, int(max(kind, 1))
    rng = np.random.default_rng(5)
    w, x = rng.normal(size=n * outputs) / 4, rng.normal(size=n)
    constants = np.array([0.3, kappa, bound, radius, 2.0, kind])
    told, after = stepped(w, ticks, x, y, 0.3, kappa, bound, radius, 2.0, kind)
    state = np.append(w, ticks)
    assert kernels.ogd_step(state, x, constants, y) == pytest.approx(told, rel=1e-12)
    np.testing.assert_allclose(state[:-1], after, rtol=1e-10, atol=1e-12)
    assert state[-1] == ticks + 1
    out, many = np.empty(2), np.append(w, ticks)
    kernels.ogd_run(many, np.array([x, x / 2]), np.array([y, y]), constants, out)
    told_next, after_next = stepped(
        after, ticks + 1, x / 2, y, 0.3, kappa, bound, radius, 2.0, kind
    )
    np.testing.assert_allclose(out, [told, told_next], rtol=1e-10)
    np.testing.assert_allclose(many[:-1], after_next, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "y"), [(0.0, math.nan), (1.0, 0.5), (1.0, 2.0), (3.0, 3.0), (3.0, 0.5)]
)
def test_a_label_that_makes_no_sense_changes_nothing(kind, y):
    state = np.append(numbers(2 * int(max(kind, 1))) / 8, 3.0)
    before = state.copy()
    constants = np.array([0.3, 1.0, 5.0, 1.0, 2.0, kind])
    assert math.isnan(kernels.ogd_step(state, np.ones(2), constants, y))
    huge = np.full(2, 1e200)
    assert math.isnan(kernels.ogd_step(state, huge, constants, 1.0))
    assert np.array_equal(state, before)


def test_a_tick_without_a_record_shrinks_alone():
    state = np.append(numbers(3), 5.0)
    kernels.ogd_skip(state, np.array([0.3, 1.0, 5.0, 1e-3, 2.0, 0.0]))
    np.testing.assert_allclose(state, [*(numbers(3) * 7 / 8), 6.0], rtol=1e-15)


@pytest.mark.parametrize(("radius", "factor"), [(3.0, 1.0), (2.9999, None), (1.5, 0.5)])
def test_a_projection_keeps_the_direction(radius, factor):
    w = np.array([2.0, -2.0, 1.0, 99.0])
    kernels._project(w, 3, radius)
    share = radius / 3.0 if factor is None else factor
    np.testing.assert_allclose(w, [2 * share, -2 * share, share, 99.0], rtol=1e-15)


# -- ridge regression on whole numbers ----------------------------------------------

TOP = 2.0**20
RIDGE = np.array([2.0, 4.0, TOP, 8.0, 0.5, 1.0])  # bound 2, labels to 4


def integers(x, y, constants=RIDGE, outputs=1):
    k = np.zeros(len(x) + outputs, dtype=np.int64)
    usable = kernels.ridge_integers(np.array(x), y, constants, k)
    return k.tolist() if usable else None


def test_a_record_in_whole_steps():
    half = int(TOP) // 2
    assert integers([1.0, -0.5], 2.0) == [half, -half // 2, half]
    assert integers([0.0, 4.0], -9.0) == [0, int(TOP), -int(TOP)], "clipped"
    assert integers([3.0, 4.0], 4.0)[:2] == [round(0.6 * TOP), round(0.8 * TOP)]
    assert integers([0.4 / TOP * 2, 0.6 / TOP * 2], 0.0) == [0, 1, 0], "rounded"
    for x, y in (([1e200, 0.0], 0.0), ([math.nan, 0.0], 0.0), ([1.0, 0.0], math.inf)):
        assert integers(x, y) is None
    classes = RIDGE.copy()
    classes[5] = 3.0
    assert integers([1.0, 0.0], 2.0, classes, 3) == [half, 0, 0, 0, int(TOP)]
    assert integers([1.0, 0.0], 0.0, classes, 3) == [half, 0, int(TOP), 0, 0]
    for y in (3.0, -1.0, 0.5):
        assert integers([1.0, 0.0], y, classes, 3) is None


@pytest.mark.parametrize("limbs", [1, 2])
def test_products_are_added_and_taken_back(limbs):
    rows = np.array([[3, -5, 0, 7], [2**20, 11, -(2**20), 1]], dtype=np.int64)
    sums = np.zeros((limbs, 4, 4), dtype=np.int64)
    exact = np.zeros((4, 4), dtype=object)
    for row in rows:
        kernels.ridge_add(sums, row, 1)
        exact += np.outer(row.astype(object), row.astype(object))

    def whole():
        high = sums[1].astype(object) * 2**32 if limbs == 2 else 0
        return sums[0].astype(object) + high

    assert (whole() == np.tril(exact)).all()
    if limbs == 2:
        assert (sums[0] >= 0).all() and (sums[0] < 2 * 2**32).all()
    assert kernels.ridge_possible(sums, 2) and not kernels.ridge_possible(sums, 0)
    system = np.zeros((4, 4))
    kernels.ridge_floats(sums, system, RIDGE)
    expected = np.triu(exact.T.astype(float)) + np.diag([8.0, 8.0, 8.0, 0.0])
    np.testing.assert_array_equal(np.triu(system), expected)
    kernels.ridge_add(sums, rows[0], -1)
    assert (whole() == np.tril(np.outer(rows[1], rows[1]))).all()
    kernels.ridge_add(sums, rows[1], -1)
    assert not sums.any() and kernels.ridge_possible(sums, 0)
    sums[0, 2, 2] = -1
    assert not kernels.ridge_possible(sums, 5)
    sums[0, 2, 2] = 0
    sums[-1, 3, 3] = -1 if limbs == 2 else -5
    assert not kernels.ridge_possible(sums, 5)


@pytest.mark.parametrize(("n", "outputs"), [(1, 1), (3, 1), (4, 3)])
def test_weights_solve_the_normal_equations(n, outputs):
    rng = np.random.default_rng(n)
    rows = rng.integers(-50, 50, size=(30, n + outputs))
    constants = np.array([2.0, 4.0, TOP, 8.0, 0.25, float(outputs)])
    sums = np.zeros((1, n + outputs, n + outputs), dtype=np.int64)
    for row in rows:
        kernels.ridge_add(sums, row, 1)
    w, system = np.zeros(outputs * n), np.zeros((n + outputs, n + outputs))
    kernels.ridge_solve(sums, w, system, constants)
    X, Y = rows[:, :n].astype(float), rows[:, n:].astype(float)
    expected = 0.25 * np.linalg.solve(X.T @ X + 8.0 * np.eye(n), X.T @ Y)
    np.testing.assert_allclose(w.reshape(outputs, n).T, expected, rtol=1e-9)


@pytest.mark.parametrize("period", [0, 2])
def test_rows_are_predicted_then_added_and_solved_when_due(period):
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(5, 3)), rng.uniform(-4, 4, size=5)
    sums, w = np.zeros((1, 4, 4), dtype=np.int64), np.zeros(3)
    system, k = np.zeros((4, 4)), np.zeros(4, dtype=np.int64)
    clock, out = np.array([0, 0, period, 0]), np.empty(5)
    solved = []
    for i in range(5):
        due = period and (i + 1) % period == 0
        before = w.copy()
        row = X[i] * min(1.0, 2.0 / np.linalg.norm(X[i]))
        told = kernels.ridge_insert(sums, w, system, k, clock, X[i], Y[i], RIDGE)
        assert told == pytest.approx(before @ row, rel=1e-12, abs=1e-15)
        assert clock.tolist() == [i + 1, i + 1, period, 0 if due else 1]
        solved.append(not np.array_equal(before, w))
    assert solved == [bool(period) and i in (1, 3) for i in range(5)]
    expected = np.zeros((1, 4, 4), dtype=np.int64)
    for x, y in zip(X, Y, strict=True):
        row = np.array(integers(x, y), dtype=np.int64)
        kernels.ridge_add(expected, row, 1)
    assert np.array_equal(sums, expected)
    again = np.zeros_like(sums), np.zeros(3), np.zeros((4, 4)), np.zeros(4, np.int64)
    ticks = np.array([0, 0, period, 0])
    kernels.ridge_run(*again, ticks, X, Y, RIDGE, out)
    assert np.array_equal(again[0], sums) and np.array_equal(again[1], w)
    before = clock.copy()
    bad = np.array([np.nan, 0.0, 0.0])
    assert math.isnan(kernels.ridge_insert(sums, w, system, k, clock, bad, 0.0, RIDGE))
    assert np.array_equal(clock, before)


def test_a_block_of_rows_is_predicted_and_not_added():
    w, X, Y = np.array([0.5, -0.25]), np.array([[1.0, 2.0], [0.5, 0.25]]), np.ones(2)
    k, block, out = np.zeros(3, np.int64), np.zeros((2, 3)), np.zeros(2)
    kernels.ridge_block_rows(w, X, Y, RIDGE, k, block, out)
    assert block.tolist() == [integers(x, 1.0) for x in X.tolist()]
    norm = math.sqrt(5.0)
    np.testing.assert_allclose(out, [0.0 * norm, 0.1875], atol=1e-15)
    classes, many = RIDGE.copy(), np.array([1.0, 0.0, 0.0, 1.0, 2.0, 2.0])
    classes[5] = 3.0
    assert kernels._own_score(many, X[1], 0.0, classes) == 0.5
    assert kernels._own_score(many, X[1], 1.0, classes) == 0.25
    assert kernels._own_score(many, X[1], 2.0, classes) == 1.5
