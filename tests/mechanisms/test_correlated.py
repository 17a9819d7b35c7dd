"""Strategies against brute force, finite differences and jax-privacy 2.0.0."""

from itertools import combinations

import jax
import numpy as np
import pytest
from jax_privacy.matrix_factorization import buffered_toeplitz as peer_buffered
from jax_privacy.matrix_factorization import dense as peer_dense
from jax_privacy.matrix_factorization import sensitivity as peer_sensitivity
from jax_privacy.matrix_factorization import toeplitz as peer_toeplitz

from demur.mechanisms.correlated import (
    BandedToeplitz,
    Buffered,
    Dense,
    Participation,
    Strategy,
    Workload,
    optimize_banded_toeplitz,
    optimize_buffered,
    optimize_dense,
)
from demur.mechanisms.correlated import toeplitz as toeplitz_module
from demur.mechanisms.correlated.buffered import _search
from demur.mechanisms.correlated.sensitivity import best_pattern, of_gram, of_toeplitz
from demur.mechanisms.correlated.strategy import loss

ONCE = Participation(max_participations=1)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def patterns(size, participation):
    """Every set of steps that the participation allows."""
    for count in range(1, participation.most(size) + 1):
        for chosen in combinations(range(size), count):
            gaps = np.diff(chosen)
            if not gaps.size or gaps.min() >= participation.min_separation:
                yield list(chosen)


def brute_force(matrix, participation):
    """The largest sum of |X_ij| over all allowed sets: what is to be bounded."""
    gram = np.abs(matrix.T @ matrix)
    return max(
        np.sqrt(gram[np.ix_(p, p)].sum()) for p in patterns(len(matrix), participation)
    )


SHARINGS = [Participation(b, k) for b in (1, 2, 3, 5) for k in (None, 1, 2, 3)]


# -- sensitivity -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("bands", [1, 2, 3, 4, 9])
def test_toeplitz_sensitivity_is_that_of_every_pattern(sharing, bands):
    rng = np.random.default_rng(bands)
    falling = np.sort(rng.uniform(0.1, 1.0, bands))[::-1]
    signed = np.concatenate([[1.0], rng.normal(size=bands - 1)])
    for coefs, attained in ((falling, True), (signed, False)):
        strategy = BandedToeplitz(coefs, 9)
        found = strategy.sensitivity(sharing)
        truth = brute_force(strategy.matrix(), sharing)
        assert truth <= found.value
        if attained:
            assert found.exact
        if found.exact:
            assert found.value == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("sharing", SHARINGS, ids=str)
@pytest.mark.parametrize("bands", [2, 4, 8])
def test_dense_sensitivity_bounds_every_pattern(sharing, bands):
    rng = np.random.default_rng(5)
    matrix = np.tril(np.triu(rng.normal(size=(8, 8)), 1 - bands), 0)[::-1, ::-1].T
    matrix = np.tril(matrix)
    matrix[np.diag_indices(8)] = rng.uniform(0.5, 1.5, 8)
    found = Dense(matrix).sensitivity(sharing)
    truth = brute_force(matrix, sharing)
    assert truth <= found.value <= 2.0 * truth
    if found.exact:
        assert found.value == pytest.approx(truth, rel=1e-10)
    else:
        assert sharing.min_separation < Dense(matrix).bands


def test_normalised_columns_have_norm_one_whatever_the_coefs():
    """The peer scales its noise by |coefs| here and claims more than it adds."""
    strategy = BandedToeplitz([0.5, 0.25], 10, column_normalize=True)
    norms = np.linalg.norm(strategy.matrix(), axis=0)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-14)
    assert strategy.sensitivity(ONCE).value == pytest.approx(1.0)
    assert np.linalg.norm(strategy.coefs) == pytest.approx(0.559, abs=1e-3)
    for sharing in SHARINGS:
        truth = brute_force(strategy.matrix(), sharing)
        assert truth <= strategy.sensitivity(sharing).value


def test_a_separation_off_by_one_is_noticed():
    """The same comparison rejects a bound for steps one further apart."""
    strategy = BandedToeplitz([1.0, 0.9, 0.8], 9)
    sabotaged = of_toeplitz(np.asarray(strategy.coefs), 9, Participation(3))
    assert sabotaged.value < brute_force(strategy.matrix(), Participation(2))


def test_a_rising_column_is_not_called_exact():
    """For c = (1, 2) the pattern 0, 1 is not what the falling formula assumes."""
    rising = np.array([0.1, 1.0])
    found = of_toeplitz(rising, 3, Participation(1))
    truth = brute_force(BandedToeplitz(rising, 3).matrix(), Participation(1))
    assert not found.exact and truth <= found.value


@pytest.mark.parametrize("apart, most", [(1, 3), (2, 2), (3, 4), (7, 1)])
def test_best_pattern_is_the_best(apart, most):
    values = np.random.default_rng(2).uniform(size=10)
    truth = max(values[p].sum() for p in patterns(10, Participation(apart, most)))
    assert best_pattern(values, apart, most) == pytest.approx(truth)


@pytest.mark.slow
def test_sensitivities_of_the_peer(x64):
    coefs = np.array([1.0, 0.6, 0.3, 0.2])
    matrix = BandedToeplitz(coefs, 30).matrix()
    for apart, most in ((4, 3), (6, None), (2, 5)):
        ours = of_toeplitz(coefs, 30, Participation(apart, most)).value
        theirs = peer_toeplitz.minsep_sensitivity_squared(
            coefs, min_sep=apart, max_participations=most, n=30
        )
        assert ours**2 == pytest.approx(float(theirs), rel=1e-9)
        bound = peer_sensitivity.get_min_sep_sensitivity_upper_bound(
            matrix, min_sep=apart, max_participations=most
        )
        dense = of_gram(matrix.T @ matrix, Participation(apart, most))
        assert dense.value <= float(bound) * (1 + 1e-9)


# -- errors and workloads --------------------------------------------------------------


def strategies(size):
    yield BandedToeplitz([1.0, 0.5, 0.2], size)
    yield BandedToeplitz([0.7, 0.4, 0.2], size, column_normalize=True)
    yield Buffered([0.9, 0.4], [0.2, 0.3], size)
    yield optimize_dense(size, bands=4)


@pytest.mark.parametrize("index", range(4))
def test_errors_are_the_row_norms(index):
    size = 12
    strategy = list(strategies(size))[index]
    assert isinstance(strategy, Strategy)
    rates = np.linspace(1.0, 0.1, size)
    for work in (
        Workload.prefix_sums(size),
        Workload.momentum(size, 0.9),
        Workload.momentum(size, 0.9, rates),
        Workload.of(np.tril(np.random.default_rng(1).normal(size=(size, size)))),
    ):
        noise = work.matrix() @ np.linalg.inv(strategy.matrix())
        np.testing.assert_allclose(
            strategy.errors(work), (noise**2).sum(axis=1), rtol=1e-9
        )


def test_momentum_workload_is_the_optimizer():
    """Row t times the gradients is minus the parameters after step t."""
    rng = np.random.default_rng(0)
    size, beta = 9, 0.8
    rates, gradients = rng.uniform(0.1, 1, size), rng.normal(size=size)
    velocity, moved, after = 0.0, 0.0, []
    for rate, gradient in zip(rates, gradients, strict=True):
        velocity = beta * velocity + gradient
        moved += rate * velocity
        after.append(moved)
    work = Workload.momentum(size, beta, rates)
    np.testing.assert_allclose(work.matrix() @ gradients, after, rtol=1e-12)
    constant = Workload.momentum(size, beta)
    same = Workload.momentum(size, beta, np.ones(size))
    np.testing.assert_allclose(constant.matrix(), same.matrix(), rtol=1e-12)


# -- optimisation ----------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_toeplitz_gradient(reduction):
    rng = np.random.default_rng(3)
    coefs = np.array([1.0, 0.5, 0.3, 0.1])
    work = [Workload.prefix_sums(20), Workload.momentum(20, 0.5)]
    if reduction == "mean":
        work.append(Workload.momentum(20, 0.9, rng.uniform(size=20)))
    for one in work:
        error = toeplitz_module._error(one, reduction)
        value, gradient = error(coefs)
        scale = BandedToeplitz(coefs, 20).errors(one)
        expected = scale.mean() if reduction == "mean" else scale.max()
        assert value == pytest.approx(expected, rel=1e-10)
        for k in range(4):
            bump = np.zeros(4)
            bump[k] = 1e-5
            slope = (error(coefs + bump)[0] - error(coefs - bump)[0]) / 2e-5
            assert gradient[k] == pytest.approx(slope, rel=1e-5)


# What the peer's searches end with, in seconds each: by (size, bands), and of 32 steps.
PEER_TOEPLITZ = {(50, 2): 14.05963191052472, (1000, 16): 39.41531727284133}
PEER_DENSE = 3.579999382137288


@pytest.mark.deep
def test_the_peers_losses_are_those_it_finds(x64):
    for (size, bands), stored in PEER_TOEPLITZ.items():
        coefs = peer_toeplitz.optimize_banded_toeplitz(size, bands)
        assert float(peer_toeplitz.loss(coefs, size)) == pytest.approx(stored, rel=1e-6)
    error = peer_dense.per_query_error(strategy_matrix=peer_dense.optimize(32))
    assert float(np.mean(error)) == pytest.approx(PEER_DENSE, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size, bands", PEER_TOEPLITZ)
def test_toeplitz_loss_is_at_most_the_peers(x64, size, bands):
    ours = optimize_banded_toeplitz(size, bands)
    assert loss(ours) <= PEER_TOEPLITZ[size, bands] * 1.001
    assert loss(ours) == pytest.approx(
        float(peer_toeplitz.loss(np.asarray(ours.coefs), size)), rel=1e-6
    )


def test_one_band_answers_at_once():
    best = optimize_banded_toeplitz(10**6, 1)
    assert np.asarray(best.coefs).tolist() == [1.0]


def test_a_search_that_has_not_converged_says_so(monkeypatch):
    monkeypatch.setattr(toeplitz_module, "_MOST_STEPS", 1)
    with pytest.raises(ArithmeticError, match="did not converge"):
        optimize_banded_toeplitz(500, 16)


def test_a_workload_moves_the_answer():
    """Optimised for its own workload, a strategy beats one made for another."""
    rates = np.concatenate([np.ones(50), np.full(50, 0.05)])
    work = Workload.momentum(100, 0.9, rates)
    own = optimize_banded_toeplitz(100, 8, workload=work)
    plain = optimize_banded_toeplitz(100, 8)
    assert loss(own, work) < 0.999 * loss(plain, work)
    assert loss(plain) < 0.999 * loss(own)


@pytest.mark.slow
def test_dense_is_the_minimum_and_never_worse_than_the_peer():
    best = optimize_dense(32)
    assert best.sensitivity(ONCE).value == pytest.approx(1.0)
    assert best.errors().mean() <= PEER_DENSE * 1.001
    # Convex in X: no feasible direction goes down.
    gram = best.matrix().T @ best.matrix()
    work = Workload.prefix_sums(32).matrix()
    squared = work.T @ work
    rng = np.random.default_rng(0)
    for _ in range(20):
        step = rng.normal(size=gram.shape)
        step = (step + step.T) * 1e-3
        np.fill_diagonal(step, 0.0)
        moved = np.trace(squared @ np.linalg.inv(gram + step))
        assert moved >= np.trace(squared @ np.linalg.inv(gram)) * (1 - 1e-7)


def test_a_band_costs_little_and_is_kept():
    full, banded = optimize_dense(24), optimize_dense(24, bands=6)
    assert banded.bands == 6
    assert full.errors().mean() < banded.errors().mean() < 1.3 * full.errors().mean()
    toeplitz = optimize_banded_toeplitz(24, 6)
    assert banded.errors().mean() <= loss(toeplitz)


@pytest.mark.parametrize("sharing", [ONCE, Participation(5, 3)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_buffered_search_is_flat_where_it_ends(sharing, reduction):
    """Moving any parameter either way raises the loss."""
    best = optimize_buffered(40, buffers=2, participation=sharing, reduction=reduction)
    here = loss(best, participation=sharing, reduction=reduction)
    for name in ("decays", "scales"):
        for i in range(2):
            for factor in (0.98, 1.01):
                moved = {
                    "decays": np.array(best.decays),
                    "scales": np.array(best.scales),
                }
                moved[name][i] *= factor
                try:
                    other = Buffered(**moved, iterations=40)
                except ValueError:
                    continue  # outside the set
                there = loss(other, participation=sharing, reduction=reduction)
                assert there >= here * (1 - 1e-9)


# What peer_buffered.optimize(n=200, max_buffers=3) ends with, in a minute.
PEER_DECAYS = [0.9934643694253033, 0.8287053867131811]
PEER_SCALES = [0.11506320551687521, 0.3327266349054962]


@pytest.mark.deep
def test_the_peers_buffers_are_those_it_finds(x64):
    found = peer_buffered.optimize(n=200, max_buffers=3)
    np.testing.assert_allclose(found.buf_decay, PEER_DECAYS, rtol=1e-6)
    np.testing.assert_allclose(found.output_scale, PEER_SCALES, rtol=1e-6)


@pytest.mark.slow
def test_buffered_loss_is_at_most_the_peers(x64):
    size = 200
    ours = optimize_buffered(size)
    theirs = peer_buffered.BufferedToeplitz.build(PEER_DECAYS, PEER_SCALES)
    bound = float(peer_buffered.max_loss(theirs, size))
    assert loss(ours, reduction="max") <= 1.001 * bound
    # With half its buffers ours would not pass: the comparison has power.
    assert loss(optimize_buffered(size, buffers=1), reduction="max") > 1.001 * bound
    coefs = ours.coefs()
    same = peer_buffered.BufferedToeplitz.build(ours.decays, ours.scales)
    np.testing.assert_allclose(coefs, same.toeplitz_coefs(size), rtol=1e-9)


def test_search_is_reproducible():
    work = Workload.prefix_sums(30)
    first = _search(work, ONCE, "max", 2, None)
    again = _search(work, ONCE, "max", 2, None)
    assert first[0] == again[0]


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: BandedToeplitz([], 5),
        lambda: BandedToeplitz([1.0] * 6, 5),
        lambda: BandedToeplitz([0.0, 1.0], 5),
        lambda: BandedToeplitz([1.0, np.nan], 5),
        lambda: BandedToeplitz([[1.0]], 5),
        lambda: Buffered([1.0], [0.1], 5),
        lambda: Buffered([0.5], [1.1], 5),
        lambda: Buffered([0.5, 0.2], [0.1], 5),
        lambda: Dense([[1.0, 1.0], [0.0, 1.0]]),
        lambda: Dense([[0.0]]),
        lambda: Dense(np.zeros((0, 0))),
        lambda: Workload.momentum(5, 1.0),
        lambda: Workload.momentum(5, 0.5, [1.0]),
        lambda: Workload.of([[1.0, 2.0], [0.0, 1.0]]),
        lambda: optimize_banded_toeplitz(5, 6),
        lambda: optimize_banded_toeplitz(5, 2, reduction="median"),
        lambda: optimize_buffered(5, workload=Workload.of(np.eye(5))),
        lambda: optimize_dense(5, bands=9),
        lambda: BandedToeplitz([1.0], 5).errors(Workload.prefix_sums(6)),
        lambda: of_gram(np.full((2, 2), np.inf), ONCE),
        lambda: Participation(0),
    ],
)
def test_bad_input_is_a_clear_error(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3,), (2, 2, 2), (0, 0)])
def test_a_workload_is_a_square_matrix(shape):
    with pytest.raises(ValueError, match="matrix must be square"):
        Workload.of(np.ones(shape))
