"""ridge: integers forget exactly, floats do not, and overflow is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge

from demur.unlearning.models import Ridge
from tests.unlearning.modes_kit import records, unit_rows


@pytest.mark.slow
def test_20000_inserts_and_10000_deletes_leave_the_survivors_alone():
    n, d = 20_000, 20
    X, Y = unit_rows(n, d)
    rng = np.random.default_rng(1)
    doomed = set(rng.choice(n, size=10_000, replace=False).tolist())
    mode = Ridge(d, y_bound=3.0)
    waiting: list[int] = []
    at = 0
    # Insertions in random order, deletions strewn among them in another.
    order = rng.permutation(n)
    while at < n or waiting:
        if at < n and (not waiting or rng.random() < 0.6):
            i = int(order[at])
            at += 1
            mode.insert(X[i], float(Y[i]))
            if i in doomed:
                waiting.append(i)
        else:
            j = waiting.pop(int(rng.integers(len(waiting))))
            mode.delete(X[j], Y[j])
    kept = np.array([i for i in rng.permutation(n) if int(i) not in doomed])
    fresh = Ridge(d, y_bound=3.0)
    fresh.insert_many(X[kept], Y[kept])
    assert mode.records == 10_000
    assert mode.digest() == fresh.digest()
    assert np.array_equal(mode.published(), fresh.published())


class FloatRidge(Ridge):
    """The twin: the same sums in floating point."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.gram = np.zeros((dimension + 1, dimension + 1))

    def insert(self, x, y):
        predicted = super().insert(x, y)
        z = np.append(x, y)
        self.gram += np.outer(z, z)
        return predicted

    def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
        super().delete(x, y, noise, records=records, grid=grid)
        z = np.append(x, y)
        self.gram -= np.outer(z, z)


def test_twin_with_float_sums_is_caught():
    X, Y = unit_rows(200, 5)
    mode, fresh = FloatRidge(5, y_bound=3.0), FloatRidge(5, y_bound=3.0)
    for x, y in zip(X, Y, strict=True):
        mode.insert(x, float(y))
    for x, y in zip(X[:100], Y[:100], strict=True):
        mode.delete(x, y)
    for x, y in zip(X[100:], Y[100:], strict=True):
        fresh.insert(x, float(y))
    assert mode.digest() == fresh.digest()
    assert np.array_equal(mode._sums, fresh._sums)
    assert not np.array_equal(mode.gram, fresh.gram)
    assert np.allclose(mode.gram, fresh.gram)  # near is not equal


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 40),
    n=st.integers(1, 40),
    bits=st.integers(2, 30),
    two=st.booleans(),
)
def test_sums_are_those_of_python_integers(seed, d, n, bits, two):
    limbs = 2 if two or bits > 28 else 1
    mode = Ridge(d, bits=bits, limbs=limbs, norm_bound=1.7, y_bound=0.9)
    X, Y = records(n, d, seed=seed, norm=1.7)
    rng = np.random.default_rng(seed)
    mode.insert_many(X, Y)
    gone = rng.choice(n, size=int(rng.integers(n + 1)), replace=False)
    for i in gone:
        mode.delete(X[i], Y[i])
    expected = np.zeros((d + 1, d + 1), dtype=object)
    for i in set(range(n)) - set(gone.tolist()):
        x, y = mode.check(X[i], Y[i])
        z = np.append(np.rint(x * (2.0**bits / 1.7)), np.rint(y / 0.9 * 2.0**bits))
        z = np.clip(z, -(2.0**bits), 2.0**bits)
        z = np.array([int(v) for v in z], dtype=object)
        expected += np.outer(z, z)
    found = mode._sums[0].astype(object)
    if limbs == 2:
        found = found + mode._sums[1].astype(object) * 2**32
    lower = np.tril_indices(d + 1)
    assert (found[lower] == expected[lower]).all()


@pytest.mark.parametrize("d", [3, 32, 33, 60])
@pytest.mark.parametrize("bits", [21, 28])
def test_weights_are_those_of_scikit_learn(d, bits):
    X, Y = unit_rows(500, d)
    mode = Ridge(d, y_bound=5.0, Lambda=2.5, bits=bits)
    mode.insert_many(X, Y)
    peer = SklearnRidge(alpha=2.5, fit_intercept=False).fit(X, Y)
    assert np.allclose(mode.published(), peer.coef_, atol=3e-5 if bits == 21 else 3e-7)
    assert mode.predict(X[0]) == pytest.approx(float(peer.predict(X[:1])[0]), abs=1e-4)


@pytest.mark.parametrize("d", [5, 40])
def test_a_ridge_lost_in_rounding_still_gives_finite_weights(d):
    mode = Ridge(d, Lambda=1e-18)
    row = np.full(d, 1.0 / d)
    for _ in range(50):
        assert np.isfinite(mode.insert(row, 0.5))
    assert mode.records == 50
    assert mode.predict(row) == pytest.approx(0.5, abs=1e-3)


def test_lagged_predictions_never_reach_past_a_deletion():
    X, Y = unit_rows(120, 40)
    mode, replay = Ridge(40, refresh=50), Ridge(40, refresh=50)
    first = mode.insert_many(X[:45], Y[:45])
    assert not first.any()  # the weights are solved at tick 50
    for i in range(45):
        replay.skip() if i == 3 else replay.insert(X[i], float(Y[i]))
    mode.delete(X[3], Y[3])
    replay.forget_nothing()
    # From here on both worlds say the same, lag included.
    assert np.array_equal(
        mode.insert_many(X[45:], Y[45:]), replay.insert_many(X[45:], Y[45:])
    )
    assert np.array_equal(mode._w, replay._w)
    assert all(np.array_equal(v, replay.state()[k]) for k, v in mode.state().items())


def test_twin_that_does_not_solve_at_the_deletion_is_caught():
    X, Y = unit_rows(120, 40)
    mode, replay = Ridge(40, refresh=50), Ridge(40, refresh=50)
    mode.insert_many(X[:60], Y[:60])
    for i in range(60):
        replay.skip() if i == 3 else replay.insert(X[i], float(Y[i]))
    lagged = mode._w.copy()
    mode.delete(X[3], Y[3])
    replay.forget_nothing()
    assert np.array_equal(mode._w, replay._w)
    assert not np.array_equal(lagged, replay._w)  # it still knew the record


def test_head_room_is_refused_before_it_overflows():
    mode = Ridge(1, bits=30, limbs=1)
    assert mode.max_records == 7
    for _ in range(7):
        mode.insert([1.0], 1.0)
    before = mode.digest()
    for call in (
        lambda: mode.insert([1.0], 1.0),
        lambda: mode.insert_many([[1.0]], [1.0]),
    ):
        with pytest.raises(ValueError, match="live records"):
            call()
    assert mode.digest() == before
    mode.delete([1.0], 1.0)
    mode.insert([1.0], 1.0)
    assert mode.digest() == before
    mode.max_records = 8  # the twin: one more, and a sum of squares is negative
    mode.insert([1.0], 1.0)
    assert mode._sums[0, 0, 0] < 0
    wide = Ridge(1, bits=30, limbs=2)
    for _ in range(100):
        wide.insert([1.0], 1.0)
    assert wide.predict([1.0]) == pytest.approx(100 / 101)


def test_a_record_that_was_never_learned_is_refused_where_it_shows():
    X, Y = unit_rows(4, 3)
    mode = Ridge(3, y_bound=3.0)
    mode.insert(0.1 * X[0], float(0.1 * Y[0]))
    before = mode.digest()
    for row, target in ((X[1], Y[1]), (0.1 * X[0], 0.0), (0.05 * X[0], 0.05 * Y[0])):
        with pytest.raises(ValueError, match="not among the live"):
            mode.delete(row, target)
        assert mode.digest() == before
    mode.delete(0.1 * X[0], 0.1 * Y[0])
    with pytest.raises(ValueError, match="0 are live"):
        mode.delete(0.1 * X[0], 0.1 * Y[0])
    assert mode.digest() == Ridge(3, y_bound=3.0).digest()


def test_deleting_rows_together_is_deleting_them_one_by_one():
    X, Y = records(30, 6)
    one, two = Ridge(6), Ridge(6)
    for mode in (one, two):
        mode.insert_many(X, Y)
    one.delete(X[[3, 9, 20]], Y[[3, 9, 20]], records=3)
    for i in (20, 3, 9):
        two.delete(X[i], Y[i])
    assert one.digest() == two.digest()
    assert not one._integers.any()  # no work space keeps a record


@pytest.mark.parametrize(
    "config",
    [
        {"bits": 0},
        {"bits": 31},
        {"limbs": 3},
        {"Lambda": 0.0},
        {"norm_bound": float("nan")},
        {"y_bound": -1.0},
        {"refresh": 0},
        {"norm_bound": 1e-200},
    ],
)
def test_bad_configurations_are_refused(config):
    with pytest.raises(ValueError):
        Ridge(3, **config)


def test_a_damaged_state_is_refused():
    mode = Ridge(2)
    state = mode.state()
    for key, value in (
        ("sums", state["sums"].astype(float)),
        ("sums", state["sums"][:, :2, :2]),
        ("clock", np.array([-1, 0, 1, 0])),
        ("w", np.array([np.nan, 0.0])),
    ):
        with pytest.raises(ValueError):
            mode.restore({**state, key: value})


@pytest.mark.parametrize(
    "config",
    [
        {"norm_bound": 1e160},
        {"norm_bound": 1e-170, "Lambda": 1e-300},
        {"y_bound": 1e300, "Lambda": 1e-9},  # weights that overflow predict NaN
    ],
)
def test_bounds_beyond_float64_are_refused(config):
    with pytest.raises(ValueError, match="must be|too large"):
        Ridge(3, **config)
