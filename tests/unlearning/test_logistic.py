"""logistic: the residual recursion against true gradients, and twins it rejects."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from demur.unlearning import CertificateExceeded
from demur.unlearning.models import Logistic, newton_kernels
from tests.unlearning.modes_kit import records


def classes(n, d, seed=0, length=2.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    w = rng.normal(size=d) * length
    return X, (rng.random(n) < 1 / (1 + np.exp(-X @ w))).astype(float)


def true_gradient(mode, X, Y, w=None):
    """Norm of the gradient over the live records, in extended precision."""
    w = (mode._vectors[0] if w is None else w).astype(np.longdouble)
    rows = np.array([mode.check(x, y)[0] for x, y in zip(X, Y, strict=True)])
    rows = rows.reshape(-1, mode.dimension).astype(np.longdouble)
    total = rows.T @ (1 / (1 + np.exp(-rows @ w)) - Y) + mode.Lambda * w
    return float(np.sqrt(total @ total))


def minimiser(mode, X, Y):
    fresh = mode.fresh()
    fresh.fit(X, Y)
    assert true_gradient(fresh, X, Y) / mode.Lambda < 1e-7
    return fresh._vectors[0]


STILL = {d: np.zeros(d) for d in range(1, 60)}


def test_the_fit_is_the_minimiser():
    X, Y = classes(400, 5)
    mode = Logistic(5, Lambda=3.0)
    mode.fit(X, Y)

    def value(w):
        return np.sum(np.logaddexp(0, X @ w) - Y * (X @ w)) + 1.5 * w @ w

    peer = minimize(value, np.zeros(5), tol=1e-12).x
    assert np.allclose(mode.published(), peer, atol=1e-5)
    assert true_gradient(mode, X, Y) <= mode._scalars[1]
    assert mode.certificate() < 1e-10
    assert mode.predict(X[0]) == pytest.approx(1 / (1 + np.exp(-X[0] @ peer)), abs=1e-5)
    with pytest.raises(ValueError, match="empty"):
        mode.fit(X, Y)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 6),
    start=st.integers(0, 30),
    Lambda=st.floats(0.01, 50.0),
    bound=st.floats(0.2, 5.0),
)
def test_the_residual_covers_the_gradient_at_every_event(seed, d, start, Lambda, bound):
    rng = np.random.default_rng(seed)
    X, Y = records(90, d, seed=seed, norm=bound)
    mode = Logistic(d, Lambda=Lambda, norm_bound=bound, tolerance=1e12)
    live = list(range(start))
    if start:
        mode.fit(X[:start], Y[:start])
    for i in range(start, 90):
        mode.insert(X[i], float(Y[i]))
        live.append(i)
        if rng.random() < 0.5:
            gone = live.pop(int(rng.integers(len(live))))
            mode.delete(X[gone], Y[gone], STILL[d])
        assert true_gradient(mode, X[live], Y[live]) <= mode._scalars[1]
    kept = mode.records
    assert kept == len(live)
    if live:
        assert np.linalg.eigvalsh(
            np.array([mode.check(X[i], Y[i])[0] for i in live]).T
            @ np.array([mode.check(X[i], Y[i])[0] for i in live])
        )[-1] <= mode._scalars[2] * (1 + 1e-12)
        distance = np.linalg.norm(mode._vectors[0] - minimiser(mode, X[live], Y[live]))
        assert distance <= mode.certificate() + 1e-7
        assert mode.measure(X[live], Y[live]) * Lambda >= true_gradient(
            mode, X[live], Y[live]
        )
        mode.renew(X[live], Y[live])
        assert true_gradient(mode, X[live], Y[live]) <= mode._scalars[1] < 1e-6


def forget_all(mode, X, Y, count, after=lambda mode: None):
    """Delete the first `count` records; the largest true gradient over its bound."""
    worst = 0.0
    for i in range(count):
        mode.delete(X[i], Y[i], STILL[mode.dimension])
        after(mode)
        now = true_gradient(mode, X[i + 1 :], Y[i + 1 :])
        worst = np.maximum(worst, now / mode._scalars[1])
    return worst


def one_direction(n):
    """Half of the records along one axis, so that their deletion bends F there."""
    X, Y = classes(n, 3, seed=1, length=6.0)
    X[: n // 2] = [[1.0, 0.0, 0.0]]
    Y[: n // 2] = np.arange(n // 2) % 3 > 0
    return X, Y


def fitted(X, Y, cls=Logistic):
    mode = cls(3, Lambda=1.0, tolerance=1e9)
    mode.fit(X, Y)
    return mode


@pytest.mark.slow
def test_the_bound_is_reached():
    """All rows equal, where |s''| is largest: a bound 3% smaller would be refuted."""
    n, positive = 2000, 1577
    X, Y = np.ones((n, 1)), np.repeat([1.0, 0.0], [positive, n - positive])
    mode = Logistic(1, Lambda=1e-3, tolerance=1e9)
    mode.fit(X, Y)
    assert 0.97 < forget_all(mode, X, Y, 60) <= 1.0
    assert true_gradient(mode, X[60:], Y[60:]) >= 0.97 * mode._scalars[1]


@pytest.mark.slow
def test_twin_that_does_not_downdate_the_hessian_is_caught():
    X, Y = one_direction(200)

    class Stale(Logistic):
        def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
            kept = self._matrices.copy()
            super().delete(x, y, noise, records=records, grid=grid)
            self._matrices[:] = kept

    assert forget_all(fitted(X, Y), X, Y, 60) <= 1.0
    assert forget_all(fitted(X, Y, Stale), X, Y, 60) > 1.0


def test_twin_without_the_bending_term_is_caught():
    X, Y = one_direction(200)
    order = np.argsort(-Y[:100], kind="stable")
    X[:100], Y[:100] = X[order], Y[order]
    flat = fitted(X, Y)

    def no_top(mode):
        mode._scalars[2] = 0.0  # L = 0 removes M B L (...) |step|

    no_top(flat)
    assert forget_all(flat, X, Y, 60, no_top) > 1.0


def test_twin_that_forgets_an_insertion_is_caught():
    """A record added to the sums without a Newton step leaves its gradient behind."""
    X, Y = classes(100, 3)
    mode = fitted(X[:99], Y[:99])
    before = mode._vectors[0].copy()
    mode.insert(X[99], float(Y[99]))
    assert true_gradient(mode, X, Y) <= mode._scalars[1]
    assert true_gradient(mode, X, Y, before) > mode._scalars[1]


def test_m_is_the_largest_second_derivative():
    z = np.linspace(-6, 6, 200_001)
    p = 1 / (1 + np.exp(-z))
    largest = np.max(np.abs(p * (1 - p) * (1 - 2 * p)))
    assert largest <= newton_kernels.M_LOGISTIC <= largest * (1 + 1e-9)


@pytest.mark.slow
def test_50000_records_and_500_deletions():
    X, Y = classes(50_000, 20)
    mode = Logistic(20, Lambda=500.0, tolerance=1.1e-3)
    mode.fit(X, Y)
    untouched = mode.published()
    for i in range(500):
        mode.delete(X[i], Y[i], STILL[20])
    refit = minimiser(mode, X[500:], Y[500:])
    distance = np.linalg.norm(mode.published() - refit)
    assert distance <= mode.certificate() <= 1.1e-3
    assert distance < 0.01 * np.linalg.norm(untouched - refit)
    measured = mode.measure(X[500:], Y[500:])
    assert distance <= measured < 1e-4
    # Room again, without a refit from nothing.
    mode.renew(X[500:], Y[500:])
    assert mode.certificate() < 1e-8


def test_past_its_tolerance_nothing_happens_until_it_is_renewed():
    X, Y = classes(200, 4)
    mode = Logistic(4, Lambda=2.0, tolerance=0.05)
    mode.insert_many(X, Y)  # online: far beyond the tolerance
    assert mode.certificate() > 0.05
    before = mode.digest()
    noise = np.full(4, 0.1)
    for call in (
        lambda: mode.delete(X[0], Y[0], noise),
        lambda: mode.delete(X[:3], Y[:3], noise, records=3),
        lambda: mode.publish(noise),
    ):
        with pytest.raises(CertificateExceeded, match="renew"):
            call()
        assert mode.digest() == before
    with pytest.raises(ValueError, match="199 records were handed in"):
        mode.renew(X[1:], Y[1:])
    with pytest.raises(ValueError, match="199 records were handed in"):
        mode.measure(X[1:], Y[1:])
    with pytest.raises(TypeError, match="forgotten"):
        mode.renew(X[1:], Y[1:], forgotten=True)
    assert mode.digest() == before
    mode.renew(X, Y)
    mode.delete(X[0], Y[0], noise)
    assert mode.records == 199
    done = 1
    with pytest.raises(CertificateExceeded):
        while True:
            mode.delete(X[done], Y[done], noise)
            done += 1
    assert done > 3 and mode.certificate() <= 0.05
    # Several at once: all or none.
    before = mode.digest()
    rows = slice(done, done + 5)
    with pytest.raises(CertificateExceeded):
        mode.delete(X[rows], Y[rows], noise, records=5)
    assert mode.digest() == before
    mode.renew(X[done:], Y[done:])
    mode.delete(X[rows], Y[rows], noise, records=5)
    assert mode.records == 200 - done - 5


def test_a_deletion_too_large_for_one_step_is_solved_from_the_survivors():
    X, Y = classes(40, 3)
    mode = Logistic(3, Lambda=0.5, tolerance=1e-6)
    mode.fit(X, Y)
    noise = np.zeros(3)
    with pytest.raises(CertificateExceeded):
        mode.delete(X[:9], Y[:9], noise, records=9)
    mode.renew(X[9:], Y[9:], forgotten=9)
    mode.publish(noise)
    assert mode.records == 31
    assert np.allclose(mode.published(), minimiser(mode, X[9:], Y[9:]), atol=1e-9)
    assert true_gradient(mode, X[9:], Y[9:]) <= mode._scalars[1]


def test_published_copies_stand_still_between_publications():
    X, Y = classes(300, 4)
    mode = Logistic(4, Lambda=5.0, tolerance=0.5)
    mode.fit(X[:200], Y[:200])
    mode.insert(X[200], float(Y[200]))
    assert np.array_equal(mode.published(), mode._vectors[0])
    noise = np.array([1.0, -1.0, 0.5, 0.0])
    mode.delete(X[0], Y[0], noise)
    copy = mode.published()
    assert np.array_equal(copy, mode._vectors[0] + noise)
    assert not mode._vectors[3:].any()  # no work space keeps the record
    said = mode.predict(X[5])
    assert said == pytest.approx(1 / (1 + np.exp(-X[5] @ copy)))
    # Insertions teach the inner point; what they return comes from the copy.
    assert mode.insert(X[5], float(Y[5])) == said
    mode.insert_many(X[201:], Y[201:])
    mode.renew(np.vstack([X[1:], X[5:6]]), np.append(Y[1:], Y[5]))
    assert np.array_equal(mode.published(), copy) and mode.predict(X[5]) == said
    mode.publish(noise / 2)
    assert np.array_equal(mode.published(), mode._vectors[0] + noise / 2)


def test_shift_is_declared_and_does_not_follow_the_data():
    mode = Logistic(2, tolerance=0.25)
    before = mode.shift_bound()
    mode.insert_many(*records(50, 2))
    assert mode.shift_bound() == mode.shift_bound(7) == before == 0.5
    theorem = Logistic.theorem
    assert theorem.composition("subject") == "publications"
    assert theorem.composition("joint") == "publications"


def test_many_insertions_and_deletions_keep_p_the_inverse():
    X, Y = classes(3000, 6)
    mode = Logistic(6, Lambda=0.5, tolerance=1e12)
    mode.insert_many(X, Y)
    for i in range(2990):
        mode.delete(X[i], Y[i], STILL[6])
    H, P, gram = mode._matrices
    assert np.allclose(H @ P, np.eye(6), atol=1e-8)
    assert np.allclose(gram, X[2990:].T @ X[2990:], atol=1e-9)
    assert true_gradient(mode, X[2990:], Y[2990:]) <= mode._scalars[1]


@pytest.mark.parametrize(
    "config",
    [
        {"Lambda": 0.0},
        {"Lambda": 1e-10},
        {"tolerance": float("inf")},
        {"norm_bound": -1},
        {"norm_bound": 1e200, "Lambda": 1e300},
    ],
)
def test_bad_configurations_are_refused(config):
    with pytest.raises(ValueError):
        Logistic(3, **config)
