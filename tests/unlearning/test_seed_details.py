"""The seed mode step by step: it has no guarantee, but does what it says."""

import math

import numpy as np
import pytest

from demur.unlearning import make_mode
from demur.unlearning.models.lbfgs import LimitedMemoryBFGS
from demur.unlearning.models.seed import Seed

RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(12, 3)), RNG.normal(size=12)


def dense_inverse(pairs, dimension):
    """H after BFGS updates of H0 = (s . y) / (y . y) I of the newest pair."""
    if not pairs:
        return np.eye(dimension)
    s, y = pairs[-1]
    H = (s @ y) / (y @ y) * np.eye(dimension)
    for s, y in pairs:
        V = np.eye(dimension) - np.outer(y, s) / (y @ s)
        H = V.T @ H @ V + np.outer(s, s) / (y @ s)
    return H


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_direction_is_that_of_the_dense_matrix(count):
    memory, pairs = LimitedMemoryBFGS(3), []
    for s, y in zip(X[:count], X[:count] + Y[:count, None] / 9, strict=True):
        assert memory.add_pair(s, y)
        pairs.append((s, y))
    pairs = pairs[-3:]
    assert len(memory) == len(pairs)
    H, g = dense_inverse(pairs, 3), np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(memory.direction(g), -H @ g, rtol=1e-9)
    if not pairs:
        assert memory.bounds() is None
        return
    values = np.linalg.eigvalsh(np.linalg.inv(H))
    np.testing.assert_allclose(memory.bounds(), (values[0], values[-1]), rtol=1e-8)


def test_a_pair_without_curvature_is_not_kept():
    memory, unit = LimitedMemoryBFGS(2), np.array([1.0, 0.0])
    for y in (0.0 * unit, -unit, 1e-10 * unit, np.array([0.0, 1.0])):
        assert memory.add_pair(unit, y) is False and len(memory) == 0
    assert memory.add_pair(unit, 1.0001e-10 * unit) is True
    s = unit.copy()
    memory.add_pair(s, s)
    s[:] = 9.0
    assert memory.S[-1].tolist() == memory.Y[-1].tolist() == [1.0, 0.0], "copies"
    wide = LimitedMemoryBFGS(3)
    wide.add_pair(np.array([1.0, 0, 0]), np.array([4.0, 0, 0]))
    assert wide.bounds() == (4.0, 4.0), "outside of its span too"


def inserted(mode, x, y):
    """What an insert should lead to: weights, step and change of the gradient."""
    residual = mode.theta @ x - y
    direction = mode.lbfgs.direction(residual * x)
    if mode.safeguard:
        eta = mode.step / math.sqrt(mode.t + 1)
        theta = mode.theta + eta / (1 - eta * (direction @ x) / residual) * direction
        theta = theta * min(1.0, mode.radius / np.linalg.norm(theta))
    else:
        theta = mode.theta + mode.step * direction
    s = theta - mode.theta
    return theta, s, (theta @ x - y) * x - residual * x


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"step": 0.5, "m_max": 2},
        {"radius": 0.3},
        {"safeguard": False, "step": 0.05},
    ],
)
def test_an_insert_is_one_step(given):
    mode = Seed(3, **given)
    assert mode.lbfgs.m_max == given.get("m_max", 3)
    for number, (x, y) in enumerate(zip(X, Y, strict=True), 1):
        told = mode.theta @ x
        theta, s, change = inserted(mode, x, y)
        pairs = len(mode.lbfgs)
        assert mode.predict(x) == mode.insert(x, y) == pytest.approx(told)
        np.testing.assert_allclose(mode.theta, theta, rtol=1e-12)
        assert mode.t == number
        if change @ s > 1e-10:
            np.testing.assert_allclose(mode.lbfgs.S[-1], s, rtol=1e-12)
            np.testing.assert_allclose(mode.lbfgs.Y[-1], change, rtol=1e-12)
        else:
            assert len(mode.lbfgs) == pairs
    assert np.linalg.norm(mode.theta) <= mode.radius * (1 + 1e-12)


def test_an_exact_prediction_moves_nothing():
    mode = Seed(3)
    mode.insert(X[0], Y[0])
    before = mode.theta.copy()
    mode.insert(X[1], float(before @ X[1]))
    assert np.array_equal(mode.theta, before) and mode.t == 2


def test_a_curvature_of_the_wrong_sign_is_plain_descent():
    mode = Seed(3)
    x = np.array([1.0, 2.0, 0.0])
    theta = mode._implicit_step(0.25 * x, 0.5, x)  # along x: x'Hx would be negative
    np.testing.assert_allclose(theta, -0.5 * x / (1.0 + 5.0), rtol=1e-15)
    with np.errstate(over="ignore"):
        assert np.isnan(mode._implicit_step(1e200 * x, 0.5, 1e200 * x)).all()
    assert mode._implicit_step(x, 0.0, x).tolist() == mode.theta.tolist()


def grown(**given):
    mode = Seed(3, **given)
    mode.insert_many(X, Y)
    assert len(mode.lbfgs) > 1
    return mode


def test_a_restored_mode_has_its_pairs():
    mode, twin = grown(), Seed(3)
    state = mode.state()
    assert state["S"].shape == state["Y"].shape == (len(mode.lbfgs), 3)
    twin.restore(state)
    assert twin.t == mode.t == 12 and twin.lbfgs.m_max == 3
    for name, array in twin.state().items():
        assert np.array_equal(array, state[name]), name
    state["theta"][:] = state["S"][:] = 0.0
    assert np.array_equal(twin.theta, mode.theta), "copies"
    for world in (mode, twin):
        world.delete(X[2], Y[2], np.full(3, 1e-3))
        world.insert(X[3], Y[3])
    assert np.array_equal(mode.theta, twin.theta)
    empty = Seed(3)
    assert empty.state()["S"].shape == (0, 3)
    twin.restore(empty.state())
    assert len(twin.lbfgs) == 0 and twin.t == 0


def test_a_deletion_goes_back_along_the_gradient_of_now():
    mode, noise = grown(), np.array([0.25, -0.5, 0.125])
    pairs = list(zip(mode.lbfgs.S, mode.lbfgs.Y, strict=True))
    H = dense_inverse(pairs, 3)
    theta = mode.theta.copy()
    for x, y in ((X[1], Y[1]), (X[5], Y[5])):
        theta = theta + H @ ((theta @ x - y) * x)
    mode.delete(X[[1, 5]], Y[[1, 5]], noise, records=2)
    np.testing.assert_allclose(mode.theta, theta + noise, rtol=1e-9)
    assert mode.t == 12 and len(mode.lbfgs) == len(pairs)
    before = mode.theta.copy()
    mode.forget_nothing(noise)
    assert np.array_equal(mode.theta, before + noise)
    mode.forget_nothing()
    assert np.array_equal(mode.theta, before + noise)
    shown = mode.published()
    shown[:] = 0.0
    assert np.array_equal(mode.theta, before + noise), "a copy"


def test_what_is_refused_changes_nothing():
    mode = grown()
    before = mode.state()
    for wrong in (
        lambda: mode.delete(),
        lambda: mode.delete(X[0]),
        lambda: mode.delete(X[:2], Y[:2]),
        lambda: mode.delete(X[0], Y[0], records=2),
        lambda: mode.delete(X[0], 1e308),
        lambda: mode.insert(X[0], math.nan),
        lambda: mode.insert(X[0], "one"),
        lambda: mode.insert(X[0][:2], 1.0),
        lambda: mode.insert(X[0] * 1e200, 1.0),
        lambda: mode.insert_many(X[0], Y),
        lambda: mode.insert_many(X, Y[:3]),
        lambda: mode.insert_many(X, [*Y[:11], math.nan]),
        lambda: mode.shift_bound(0),
    ):
        with pytest.raises((TypeError, ValueError)), np.errstate(all="ignore"):
            wrong()
        for name, array in mode.state().items():
            assert np.array_equal(array, before[name])
    mode.skip()
    assert mode.t == 13


def test_its_configuration_makes_it_again():
    mode = Seed(3, step=0.5, m_max=2, L=3.0, lam=0.5, safeguard=False, radius=7.0)
    assert mode.config() == {
        "step": 0.5,
        "m_max": 2,
        "L": 3.0,
        "lam": 0.5,
        "safeguard": False,
        "radius": 7.0,
    }
    again = make_mode("seed", dimension=3, **mode.config())
    assert again.config() == mode.config() and type(again) is Seed
    assert mode.shift_bound() == 6.0 and mode.shift_bound(2) == 12.0
    assert mode.lbfgs_bounds() == (1.0, 1.0) and grown().lbfgs_bounds() != (1.0, 1.0)
    for name in ("step", "L", "lam", "radius"):
        for wrong in (0.0, math.inf):
            with pytest.raises(ValueError, match=name):
                Seed(3, **{name: wrong})
    with pytest.raises(TypeError, match="safeguard"):
        Seed(3, safeguard=1)
    with pytest.raises(ValueError, match="m_max"):
        Seed(3, m_max=0)
