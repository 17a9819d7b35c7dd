"""Constants and N* from the first records, and the curvature of stored pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.unlearning import Calibrator
from demur.unlearning.models.lbfgs import LimitedMemoryBFGS
from demur.unlearning.pricing.calibrator import LARGEST_N_STAR


class Curved:
    def __init__(self, c, C):
        self.c, self.C = c, C

    def lbfgs_bounds(self):
        return self.c, self.C


def observed(norms, thetas, **options):
    made = Calibrator(**options)
    for norm, theta in zip(norms, thetas, strict=True):
        made.observe([norm, 0.0], [theta, 0.0])
    return made


norms = st.lists(st.floats(0.0, 1e3), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None)
@given(norms=norms, gammas=st.tuples(st.floats(1e-3, 10.0), st.floats(1e-3, 10.0)))
def test_n_star_is_positive_and_falls_with_gamma(norms, gammas):
    made = observed(norms, np.linspace(0, 3, len(norms)))
    low, high = sorted(gammas)
    loose, tight = made.finalize(high), made.finalize(low)
    assert 1 <= loose.N_star <= tight.N_star <= LARGEST_N_STAR


@pytest.mark.parametrize("formula", ["seed", "consistent"])
def test_n_star_by_hand(formula):
    made = observed([2.0] * 20, np.linspace(0, 1.5, 20), formula=formula)
    stats = made.finalize(0.5, Curved(0.5, 8.0))
    root = math.sqrt(4.0) if formula == "seed" else math.sqrt(16.0)
    assert (stats.G, stats.D, stats.c, stats.C) == (2.0, 1.5, 0.5, 8.0)
    assert stats.N_star == math.ceil((2.0 * 1.5 * root / 0.5) ** 2)


@pytest.mark.parametrize("scale", [0.1, 7.0])
def test_rescaled_features_change_the_seeds_n_star_alone(scale):
    """x -> a x has w -> w / a, gradients times a, curvature times a^2."""

    def n_star(formula, a):
        thetas = np.linspace(0, 2.0 / a, 30)
        made = observed([3.0 * a] * 30, thetas, formula=formula, D_cap=1e6)
        return made.finalize(0.5, Curved(0.25 * a * a, 4.0 * a * a)).N_star

    assert n_star("consistent", scale) == pytest.approx(
        n_star("consistent", 1.0), abs=1
    )
    assert n_star("seed", scale) != pytest.approx(n_star("seed", 1.0), rel=0.5)


def test_outliers_and_divergence_are_cut():
    norms = [1.0] * 99 + [1e9]
    made = observed(norms, np.linspace(0, 1e4, 100))
    stats = made.finalize(0.1)
    assert stats.G == 1.0 and stats.D == 10.0
    assert max(made.grad_norms) == made.G_cap == 100.0
    wild = observed([1e9] * 100, np.linspace(0, 1e4, 100)).finalize(1e-9)
    assert wild.G == 100.0 and wild.N_star == LARGEST_N_STAR


@pytest.mark.parametrize("points", [0, 1])
def test_too_few_points_leave_the_defaults(points):
    made = observed([5.0] * points, [3.0] * points)
    stats = made.finalize(0.5, Curved(2.0, 3.0))
    assert (stats.G, stats.D, stats.c, stats.C, stats.N_star) == (1, 1, 1, 1, 4)


def test_curvature_falls_back_to_one():
    made = Calibrator()
    for model in (
        None,
        object(),
        Curved(0.0, 1.0),
        Curved(2.0, 1.0),
        Curved(1, math.inf),
    ):
        assert made.estimate_bounds(model) == (1.0, 1.0)


def test_stats_read_like_the_seeds_dict():
    stats = observed([1.0, 2.0], [0.0, 1.0]).finalize(0.5)
    assert dict(stats) == {k: stats[k] for k in ("G", "D", "c", "C", "N_star")}
    assert stats["G"] == stats.G and len(stats) == 5
    with pytest.raises(KeyError):
        stats["nothing"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_noted(bad):
    made = observed([1.0, 2.0], [0.0, 1.0])
    for grad, theta in (([bad, 0.0], [0.0, 0.0]), ([0.0, 0.0], [bad, 0.0])):
        with pytest.raises(ValueError, match="finite"):
            made.observe(grad, theta)
    with pytest.raises(ValueError, match="shape"):
        made.observe([1.0, 0.0], [1.0, 0.0, 0.0])
    assert made.observations == len(made.thetas) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"quantile": 1.5},
        {"quantile": math.nan},
        {"D_cap": 0.0},
        {"G_cap": -1.0},
        {"formula": "best"},
    ],
)
def test_bad_options(options):
    with pytest.raises(ValueError, match="must be"):
        Calibrator(**options)
    with pytest.raises(ValueError, match="gamma"):
        Calibrator().finalize(0.0)


# -- L-BFGS ------------------------------------------------------------------------


def dense_inverse(pairs, dimension):
    """H by the BFGS recursion on matrices, from H0 = (s.y)/(y.y) of the last pair."""
    s, y = pairs[-1]
    H = np.eye(dimension) * float(s @ y) / float(y @ y)
    for s, y in pairs:
        rho = 1.0 / float(y @ s)
        V = np.eye(dimension) - rho * np.outer(y, s)
        H = V.T @ H @ V + rho * np.outer(s, s)
    return H


def random_pairs(rng, dimension, count):
    root = rng.normal(size=(dimension, dimension))
    hessian = root @ root.T + 0.1 * np.eye(dimension)
    steps = rng.normal(size=(count, dimension))
    return [(s, hessian @ s) for s in steps]


@pytest.mark.parametrize(("dimension", "count"), [(3, 1), (6, 4), (12, 10), (4, 9)])
def test_two_loop_and_spectrum_against_dense_matrices(dimension, count):
    rng = np.random.default_rng(dimension + count)
    memory = LimitedMemoryBFGS(m_max=count)
    pairs = random_pairs(rng, dimension, count)
    for s, y in pairs:
        assert memory.add_pair(s, y)
    H = dense_inverse(pairs, dimension)
    g = rng.normal(size=dimension)
    np.testing.assert_allclose(memory.direction(g), -H @ g, rtol=1e-8, atol=1e-10)
    values = np.linalg.eigvalsh(np.linalg.inv(H))
    np.testing.assert_allclose(memory.bounds(), (values[0], values[-1]), rtol=1e-5)


def test_memory_keeps_the_last_pairs_and_refuses_flat_ones():
    memory = LimitedMemoryBFGS(m_max=3)
    assert memory.bounds() is None and len(memory) == 0
    np.testing.assert_array_equal(memory.direction(np.ones(2)), -np.ones(2))
    assert not memory.add_pair(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert not memory.add_pair(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    assert not memory.add_pair(np.array([1.0, 0.0]), np.array([math.nan, 0.0]))
    for k in range(1, 6):
        assert memory.add_pair(np.array([1.0, k]), np.array([1.0, 2.0 * k]))
    assert [float(s[1]) for s in memory.S] == [3.0, 4.0, 5.0]


def test_pairs_are_copies():
    memory = LimitedMemoryBFGS()
    s, y = np.ones(2), np.ones(2)
    memory.add_pair(s, y)
    s[:] = 7.0
    assert memory.S[0][0] == 1.0
