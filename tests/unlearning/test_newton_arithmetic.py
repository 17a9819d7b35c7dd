"""The compiled Newton steps against their formulas in numpy, amount by amount.

Allowances for rounding are 1e-16 of what they stand beside. So each is also looked at
where it stands alone: at a step of length zero, beside a large drift, or beside a large
entry of H that the step does not touch.
"""

import math

import numpy as np
import pytest

from demur.unlearning.models import newton_kernels as newton

U = 2.0**-53
LOOSE = 1.0 + 1e-12


def sigmoid(z):
    return 1.0 / (1.0 + math.exp(-z)) if z > -700 else 0.0


def probabilities(scores):
    p = np.exp(scores - scores.max())
    return p / p.sum()


class World:
    """The state before an event, as the kernels take it."""

    def __init__(self, n, classes=0, *, seed=0, apart=0.0, drift=1e-9, residual=1e-3):
        rng = np.random.default_rng(seed)
        size = n * max(classes, 1)
        A = rng.normal(size=(size, size))
        self.H = A @ A.T + 3.0 * np.eye(size)
        self.P = np.linalg.inv(self.H)
        self.gram = np.zeros((size, size))
        self.w = rng.normal(size=size) / 3.0
        self.anchor = self.w + rng.normal(size=size) / 50.0
        self.shown = rng.normal(size=size)
        self.scalars = np.array([40.0, residual, 25.0, drift, 5.0, apart, 90.0])
        self.x = rng.normal(size=n)
        # norm bound, Lambda, largest residual, the bound rounded up, classes
        self.constants = np.array([2.0, 3.0, 50.0, 2.0 + 1e-12, float(classes)])

    def arrays(self):
        size = len(self.w)
        vectors = np.array([self.w, self.anchor, self.shown, *np.zeros((3, size))])
        return np.array([self.H, self.P, self.gram]), vectors, self.scalars.copy()

    def run(self, y, sign):
        """What the kernel returns, and the state after it."""
        step = newton.softmax_event if self.constants[4] else newton.event
        given = self.arrays()
        told = step(*given, self.x, y, sign, self.constants)
        return told, given


def expected(world, y, sign):
    """The step of `event` and of `softmax_event`, in numpy; None if it is refused."""
    K = int(world.constants[4])
    n, size = len(world.x), len(world.w)
    B, ridge = world.constants[3], world.constants[1]
    norm = np.linalg.norm(world.x)
    row = world.x * (1.0 if norm <= 2.0 * LOOSE else 2.0 / norm)
    shown = world.shown if world.scalars[5] == 1.0 else world.w
    if K:
        own = int(y)
        p = probabilities(world.anchor.reshape(K, n) @ row)
        D = np.diag(p) - np.outer(p, p)
        slopes = probabilities(world.w.reshape(K, n) @ row) - np.eye(K)[own]
        told = probabilities(shown.reshape(K, n) @ row)[own]
        change = np.kron(D, np.outer(row, row))
        gradient = np.kron(slopes, row)
        trace = np.trace(world.H) + float((p * (1 - p)).sum() * (row @ row))
    else:
        at = sigmoid(world.anchor @ row)
        change = at * (1 - at) * np.outer(row, row)
        gradient = (sigmoid(world.w @ row) - (y == 1.0)) * row
        told = sigmoid(shown @ row)
        trace = np.trace(world.H) + at * (1 - at) * float(row @ row)
    H = world.H + sign * change
    # P may be no inverse of H (it drifts), so the update is that of its own inverse.
    whole = np.linalg.inv(world.P) + sign * change
    if not np.linalg.eigvalsh((whole + whole.T) / 2.0)[0] > 0.0:
        return None
    P = np.linalg.inv(whole)
    step = -sign * (P @ gradient)
    length = np.linalg.norm(step)
    weight = np.linalg.norm(world.w) + length
    moved, anchor = np.linalg.norm(world.w - world.anchor), np.linalg.norm(world.anchor)
    miss = np.linalg.norm(H @ step + sign * gradient)
    top = world.scalars[2] + (float(row @ row) * LOOSE if sign > 0 else 0.0)
    if K:
        drift = 6.0 * trace + (n + 6.0 * K + 48.0) * (1.0 + anchor * B) * B * B
        most, curved = 2.0 * K + 32.0, math.sqrt(6.0) / 9.0
    else:
        drift = 4.0 * trace + (n + 16.0) * (1.0 + anchor * B) * B * B
        most, curved = 16.0, 1.0 / (6.0 * math.sqrt(3.0))
    drift = world.scalars[3] + U * drift
    bend = curved * B * top * (moved + length / 2.0) * length
    rounding = (
        drift * length
        + (size + 16.0) * U * trace * length
        + U * B * (most + (n + 16.0) * weight * B)
        + U * (top + ridge) * weight
    )
    residual = world.scalars[1] + (bend + miss + rounding) * (1.0 + 1e-9)
    if sign < 0 and residual > world.constants[2]:
        return None
    gram = world.gram.copy()
    gram[:n, :n] += sign * np.outer(row, row)
    before = world.scalars
    scalars = [before[0] + sign, residual, top, drift, before[4] + 1, before[5]]
    return told, H, P, gram, world.w + step, [*scalars, before[6] + 1]


def compare(world, y, sign, tight=1e-9):
    told, (matrices, vectors, scalars) = world.run(y, sign)
    wanted = expected(world, y, sign)
    assert wanted is not None
    np.testing.assert_allclose(told, wanted[0], rtol=1e-12)
    for mine, other in zip(matrices, wanted[1:4], strict=True):
        scale = np.abs(other).max() or 1.0
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12 * scale)
    np.testing.assert_allclose(vectors[0], wanted[4], rtol=1e-9, atol=1e-13)
    assert np.array_equal(vectors[1], world.anchor)
    assert np.array_equal(vectors[2], world.shown)
    np.testing.assert_allclose(scalars, wanted[5], rtol=tight)
    return scalars


CASES = [(1, 0, 1.0), (3, 0, 0.0), (5, 0, -1.0), (6, 0, 1.0), (3, 3, 2.0), (2, 4, 0.0)]


@pytest.mark.parametrize(("n", "classes", "y"), CASES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_an_event_is_one_newton_step(n, classes, y, sign, apart):
    world = World(n, classes, seed=n, apart=apart)
    scalars = compare(world, y, sign)
    assert scalars[1] > world.scalars[1] and scalars[0] == 40.0 + sign


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_long_row_is_clipped(classes, sign):
    world = World(4, classes)
    world.x *= 100.0
    compare(world, 1.0, sign)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_set_aside_for_rounding_at_a_step_of_length_zero(classes, sign):
    """Probabilities of exactly 0 and 1, so that there is no gradient."""
    world = World(4, classes, residual=0.0)
    direction = world.x / np.linalg.norm(world.x)
    world.x = direction * 1.5
    if classes:
        table = np.zeros((classes, 4))
        table[1] = 900.0 * direction
        world.w = world.anchor = table.ravel()
    else:
        world.w = world.anchor = 900.0 * direction
    scalars = compare(world, 1.0, sign)
    assert 0.0 < scalars[1] < 1e-9


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_drifts_is_set_aside(classes, sign):
    world = World(4, classes, residual=0.0, drift=1e6)
    world.constants[2] = math.inf
    scalars = compare(world, 1.0, sign)
    assert scalars[1] > 1e4
    still = World(4, classes, residual=0.0, drift=0.0)
    still.constants[2] = math.inf
    assert 0.0 < compare(still, 1.0, sign)[3] < 1e-9


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_trace_is_set_aside(classes, sign):
    """An entry of H that the step does not touch, as large as 2^60."""
    world = World(4, classes, residual=0.0, drift=0.0)
    world.constants[2] = math.inf
    size = len(world.w)
    world.P = np.eye(size) / 8.0
    world.H = 8.0 * np.eye(size)
    world.x[3] = 0.0
    for c in range(max(classes, 1)):
        world.H[4 * c + 3, 4 * c + 3] = 2.0**60
    scalars = compare(world, 1.0, sign)
    assert scalars[3] > 100.0 and scalars[1] > 10.0


@pytest.mark.parametrize("classes", [0, 3])
def test_a_deletion_is_certified_up_to_its_largest_residual(classes):
    world = World(4, classes)
    _, (*_, scalars) = world.run(1.0, -1.0)
    world.constants[2] = scalars[1]
    told, after = world.run(1.0, -1.0)
    assert told >= 0.0 and after[2][0] == 39.0
    world.constants[2] = math.nextafter(scalars[1], 0.0)
    told, after = world.run(1.0, -1.0)
    assert told == -1.0
    unchanged = world.arrays()
    assert np.array_equal(after[0], unchanged[0])
    assert np.array_equal(after[1][:3], unchanged[1][:3])
    assert np.array_equal(after[2], world.scalars)
    world.constants[2] = 0.0
    told, after = world.run(1.0, 1.0)  # what is learned has no limit
    assert told >= 0.0 and after[2][1] > 0.0


@pytest.mark.parametrize("classes", [0, 3])
def test_a_deletion_of_what_was_never_learned_has_no_step(classes):
    """H without the record would not be positive."""
    world = World(4, classes)
    world.P = 1e3 * np.eye(len(world.w))
    assert expected(world, 1.0, -1.0) is None
    told, after = world.run(1.0, -1.0)
    assert told == -1.0 and np.array_equal(after[2], world.scalars)
    assert np.array_equal(after[0], world.arrays()[0])


@pytest.mark.parametrize(
    ("classes", "y"), [(0, 0.5), (0, 2.0), (0, math.nan), (3, 3.0), (3, -1.0), (3, 0.5)]
)
def test_what_is_not_usable_changes_nothing(classes, y):
    world = World(3, classes)
    told, after = world.run(y, 1.0)
    assert math.isnan(told) and np.array_equal(after[2], world.scalars)
    for wrong in (math.nan, math.inf, 1e200):
        world.x[1] = wrong
        told, after = world.run(1.0, 1.0)
        assert math.isnan(told)
        for mine, other in zip(after, world.arrays(), strict=True):
            assert np.array_equal(mine, other)


@pytest.mark.parametrize(
    ("records", "after"), [(40.0, 64.0), (512.0, 64.0), (800.0, 100.0)]
)
def test_the_top_eigenvalue_is_measured_every_eighth_of_the_records(records, after):
    scalars = np.zeros(7)
    scalars[0], scalars[4] = records, after
    assert newton.measurement_due(scalars)
    scalars[4] = after - 1
    assert not newton.measurement_due(scalars)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_run_is_its_events_up_to_the_next_measurement(classes):
    world = World(3, classes)
    world.scalars[4] = 61.0
    rows = np.random.default_rng(2).normal(size=(5, 3))
    Y = np.ones(5)
    one, many = world.arrays(), world.arrays()
    step = newton.softmax_event if classes else newton.event
    run = newton.softmax_run if classes else newton.run
    alone = [step(*one, row, 1.0, 1.0, world.constants) for row in rows[:3]]
    out = np.zeros(5)
    assert run(*many, rows, Y, world.constants, out) == 3
    assert out.tolist() == [*alone, 0.0, 0.0]
    for mine, other in zip(one, many, strict=True):
        assert np.array_equal(mine, other)
    many[2][4] = 0.0
    assert run(*many, rows, Y, world.constants, out) == 5 and (out > 0).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9])
def test_products_have_every_term_once(n):
    a = np.array([(-1.0) ** j * (2 * j + 1) for j in range(n)])
    b = np.array([3.0 * j + 7.0 for j in range(n)])
    exact = sum(int(x) * int(y) for x, y in zip(a, b, strict=True))
    table = np.array([b, a, 2 * a])
    assert newton._product(a, b, n) == exact == newton._row_product(table, 1, b, n)
    assert newton._row_product(table, 2, b, n) == 2 * exact
    assert newton._along(np.concatenate([a, -a]), b, 2).tolist() == [exact, -exact]
    newton._add_multiple(a, 2.0, b)
    assert a.tolist() == [(-1.0) ** j * (2 * j + 1) + 6.0 * j + 14.0 for j in range(n)]


def test_the_largest_second_derivatives_are_rounded_up():
    for stated, exact in (
        (newton.M_LOGISTIC, 1.0 / (6.0 * math.sqrt(3.0))),
        (newton.M_SOFTMAX, math.sqrt(6.0) / 9.0),
    ):
        assert exact < stated < exact * (1 + 1e-12)
