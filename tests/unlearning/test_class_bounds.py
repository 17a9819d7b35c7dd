"""The bounds over classes against oracles, each with a twin at 0.7 of its constant."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import Ridge as SklearnRidge

from demur.unlearning.models import OGD, Logistic, Ridge, newton_kernels
from demur.unlearning.models.classes import SOFTMAX_SLOPE, SOFTMAX_SMOOTH
from demur.unlearning.models.newton_fit import Minimum
from tests.unlearning.classes_kit import (
    FAMILIES,
    class_records,
    conflict,
    probabilities,
    shift,
    true_gradient,
)

pytestmark = pytest.mark.slow

TWIN = 0.7  # a constant smaller by this factor must be refuted


def score_vectors(K, seed):
    """Random scores of every size, and pairs of classes that leave no other."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(400, K)) * 10.0 ** rng.uniform(-2, 2, size=(400, 1))
    pairs = np.full((201, K), -60.0)
    pairs[:, 0] = 0.0
    pairs[:, 1] = np.linspace(-40, 40, 201)
    return np.vstack([spread, pairs])


def hessian(scores):
    p = probabilities(scores)
    return np.diag(p) - np.outer(p, p)


@pytest.mark.parametrize("K", [2, 3, 5, 10])
def test_the_slope_of_softmax(K):
    p = probabilities(score_vectors(K, 0))
    longest = max(float(np.linalg.norm(p - e, axis=1).max()) for e in np.eye(K))
    assert TWIN * SOFTMAX_SLOPE < 0.9999 * SOFTMAX_SLOPE < longest <= SOFTMAX_SLOPE


@pytest.mark.parametrize("K", [2, 3, 5, 10])
def test_the_smoothness_of_softmax(K):
    tops = [np.linalg.eigvalsh(hessian(s)) for s in score_vectors(K, 1)]
    largest = max(float(values[-1]) for values in tops)
    assert min(float(values[0]) for values in tops) > -1e-12  # convex
    assert TWIN * SOFTMAX_SMOOTH < 0.99 * SOFTMAX_SMOOTH < largest
    assert largest <= SOFTMAX_SMOOTH * (1 + 1e-12)


@pytest.mark.parametrize("K", [2, 3, 5, 10])
def test_the_third_derivative_of_softmax(K):
    """Differences of Hessians, and an ascent on the third central moment."""
    rng = np.random.default_rng(K)
    M = newton_kernels.M_SOFTMAX
    assert np.sqrt(6) / 9 <= M <= np.sqrt(6) / 9 * (1 + 1e-12)
    scores = score_vectors(K, 2)
    for s in scores[::3]:
        t = s + rng.normal(size=K) * 10.0 ** rng.uniform(-3, 1)
        gap = np.linalg.norm(hessian(s) - hessian(t), 2)
        assert gap <= M * np.linalg.norm(s - t) * (1 + 1e-6) + 1e-15

    def moment(z):
        p, v = probabilities(z[:K]), z[K:] / np.linalg.norm(z[K:])
        return -float(p @ (v - p @ v) ** 3)

    starts = rng.normal(size=(3, 2 * K))
    starts[0, :2], starts[0, 2:K], starts[0, K:] = (1.3, 0.0), -20.0, 0.0
    starts[0, K : K + 2] = (-1.0, 1.0)
    best = max(-minimize(moment, z, method="BFGS").fun for z in starts)
    assert TWIN * M < 0.999 * M < best <= M


# -- ogd -------------------------------------------------------------------------------


def one_step(tau, lam, W, V, x, y):
    """Two states after the same record, at a step of 1 / (lam tau)."""
    ends = []
    for point in (W, V):
        mode = OGD(x.size, classes=len(W) // x.size, lam=lam, radius=1e9)
        mode.restore(
            {"w": point, "ticks": np.array(0, dtype=np.int64), "drift": np.array(0.0)}
        )
        mode._constants[4] = tau - 1.0  # t0; the first tick has t0 + 1
        mode.insert(x, y)
        ends.append(mode.published())
    return float(np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(W - V))


def steps_near_the_fold(K, d, tau, lam, seed, trials=60):
    """The largest factor by which a step stretched a distance.

    Two classes share the record, which is where the curvature is 1/2, and the states
    differ along it.
    """
    rng = np.random.default_rng(seed)
    worst = 0.0
    for _ in range(trials):
        x = rng.normal(size=d)
        x /= np.linalg.norm(x)
        W = np.zeros((K, d))
        W[2:] = -40.0 * x
        V = W.copy()
        size = 10.0 ** rng.uniform(-6, -1)
        V[0], V[1] = V[0] + size * x, V[1] - size * x
        if rng.random() < 0.3:
            V += size * rng.normal(size=V.shape)
        y = float(rng.integers(0, K))
        worst = max(worst, one_step(tau, lam, W.ravel(), V.ravel(), x, y))
    return worst


@pytest.mark.parametrize("K", [2, 4, 10])
def test_steps_contract_where_the_theorem_lets_them_begin(K):
    """|1 - eta beta| <= 1 - eta lambda from tau = (beta + lambda) / (2 lambda) on; the
    mode begins at beta / lambda, where no step overshoots either. 0.7 of the former
    stretches.
    """
    lam, d = 1e-2, 3
    least = OGD(d, classes=K, lam=lam).t0
    assert least == pytest.approx(1 + SOFTMAX_SMOOTH / lam)
    needed = 1.0 + SOFTMAX_SMOOTH / (2.0 * lam)
    for tau in (least, needed):
        contraction = 1.0 - 1.0 / tau
        found = steps_near_the_fold(K, d, tau, lam, seed=K)
        assert 0.9 * contraction < found <= contraction * (1 + 1e-9)
    assert steps_near_the_fold(K, d, TWIN * needed, lam, seed=K) > 1.0
    with pytest.raises(ValueError, match="beta / lambda"):
        OGD(d, classes=K, lam=lam, t0=TWIN * least)


@pytest.mark.parametrize("K", [2, 3, 10])
def test_a_record_that_contradicts_all_others_reaches_the_bound(K):
    X, Y = conflict(2000, 4, K, 1500)
    distance, bound = shift(lambda: OGD(4, classes=K, lam=1e-4), X, Y, {1500})
    assert TWIN * bound < 0.999 * bound < distance <= bound
    B = OGD(4, classes=K, lam=1e-4).gradient_bound
    assert bound == pytest.approx(B / (1e-4 * (2000 + 5001)), rel=1e-3)
    assert B == pytest.approx(np.sqrt(2.0))


def ogd_ratio(seed, family, most=60):
    """Distance over bound of one random stream and configuration."""
    rng = np.random.default_rng(seed)
    K, d, n = (
        int(rng.integers(3, 11)),
        int(rng.integers(1, 6)),
        int(rng.integers(1, most)),
    )
    bound, lam = 10.0 ** rng.uniform(-1, 1), 10.0 ** rng.uniform(-3, 1)
    X, Y = class_records(n, d, K, seed=seed, family=family, norm=bound)
    probe = OGD(d, classes=K, lam=lam, norm_bound=bound)
    radius = rng.uniform(0.05, 3.0) * probe.gradient_bound / lam
    t0 = rng.uniform(1.0, 10.0) * probe.t0

    def make():
        return OGD(d, classes=K, lam=lam, norm_bound=bound, radius=radius, t0=t0)

    count = int(rng.integers(1, min(n, 3) + 1))
    distance, limit = shift(make, X, Y, set(rng.choice(n, size=count, replace=False)))
    return distance / limit


@pytest.mark.parametrize("family", FAMILIES)
def test_no_stream_moves_ogd_farther(family):
    worst = max(ogd_ratio(seed, family) for seed in range(40))
    assert 0.2 < worst <= 1.0


@pytest.mark.deep
@pytest.mark.parametrize("family", FAMILIES)
def test_no_stream_of_many_moves_ogd_farther(family):
    assert max(ogd_ratio(seed, family, most=400) for seed in range(1500)) <= 1.0


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_rounding_of_ogd_stays_within_what_is_charged(share):
    """The same steps in extended precision, 2,000 of them, and each by itself."""
    n, d, K, lam = 2000, 4, 5, 0.02
    X, Y = class_records(n, d, K, seed=5)
    X /= np.linalg.norm(X, axis=1, keepdims=True) * 1.01
    reach = OGD(d, classes=K, lam=lam).radius
    mode = OGD(d, classes=K, lam=lam, radius=None if share == 1 else 0.02 * reach)
    mode.insert_many(X, Y)
    long = np.longdouble
    W, rows = np.zeros((K, d), dtype=long), X.astype(long)
    t0, radius = long(mode.t0), long(mode.radius)
    for t in range(n):
        slopes = probabilities(rows[t] @ W.T)
        slopes[int(Y[t])] -= 1
        tau = long(t + 1) + t0
        W = W - (long(lam) * W + np.outer(slopes, rows[t])) / (long(lam) * tau)
        W = W * min(long(1), radius / np.sqrt((W * W).sum()))
    error = float(np.linalg.norm((W.ravel() - mode.published()).astype(float)))
    # Two worlds are charged; one is measured.
    assert 0.0 < error <= mode._rounding(float(n)) / 2
    assert mode._rounding(float(n)) < 1e-2 * mode.shift_bound()
    each, data = mode._step_error()
    assert each == (4.0 if share == 1 else d * K + 20.0) * mode.radius
    assert data == pytest.approx(
        mode.radius * (d / 4 + 8) + (16 + 2 * K) * mode.gradient_bound
    )


def test_drift_over_classes_counts_every_weight():
    mode = OGD(3, classes=4)
    before = mode.shift_bound()
    mode.delete(noise=np.zeros(12), grid=2.0**-10)
    grown = mode.shift_bound() - before
    assert grown == pytest.approx(2.0**-10 * np.sqrt(12), rel=1e-6)


# -- ridge -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("d", "K", "config"),
    [(3, 3, {}), (8, 10, {"bits": 28}), (40, 5, {}), (40, 4, {"bits": 25})],
)
def test_ridge_forgets_exactly(family, d, K, config):
    n = 150
    X, Y = class_records(n, d, K, seed=d, family=family)
    rng = np.random.default_rng(d)
    gone = rng.choice(n, size=70, replace=False)
    mode = Ridge(d, classes=K, **config)
    for i in rng.permutation(n):
        mode.insert(X[i], float(Y[i]))
    for i in gone[:60]:
        mode.delete(X[i], Y[i])
    mode.delete(X[gone[60:]], Y[gone[60:]], records=10)
    kept = np.array([i for i in rng.permutation(n) if i not in set(gone.tolist())])
    fresh = mode.fresh()
    fresh.insert_many(X[kept], Y[kept])
    assert mode.digest() == fresh.digest()
    assert np.array_equal(mode.published(), fresh.published())
    for x in X[:10]:
        assert np.array_equal(mode.probabilities(x), fresh.probabilities(x))
    # The sums are those of Python's integers over the survivors.
    top = 2.0**mode.bits
    expected = np.zeros((d + K, d + K), dtype=object)
    for i in kept:
        x, y = mode.check(X[i], Y[i])
        z = np.append(np.clip(np.rint(x * top), -top, top), top * np.eye(K)[int(y)])
        z = np.array([int(v) for v in z], dtype=object)
        expected += np.outer(z, z)
    sums = mode._sums.astype(object)
    whole = sums[0] + (sums[1] * 2**32 if mode.limbs == 2 else 0)
    lower = np.tril_indices(d + K)
    assert (whole[lower] == expected[lower]).all()
    # Nobody left: nothing left.
    mode.delete(X[kept], Y[kept], records=len(kept))
    assert mode.digest() == mode.fresh().digest()


@pytest.mark.parametrize("d", [3, 32, 33])
def test_ridge_weights_are_those_of_scikit_learn(d):
    X, Y = class_records(400, d, 6, seed=2)
    X /= np.linalg.norm(X, axis=1, keepdims=True) * 1.0001
    mode = Ridge(d, classes=6, Lambda=2.5, bits=28)
    mode.insert_many(X, Y)
    one_hot = np.eye(6)[Y.astype(int)]
    peer = SklearnRidge(alpha=2.5, fit_intercept=False).fit(X, one_hot)
    assert np.allclose(mode.published().reshape(6, d), peer.coef_, atol=1e-6)
    assert mode.predict(X[0]) == np.argmax(peer.predict(X[:1]))


def test_head_room_of_ridge_is_refused_before_it_overflows():
    mode = Ridge(1, classes=2, bits=30, limbs=1)
    assert mode.max_records == 7
    for _ in range(7):
        mode.insert([1.0], 1)
    with pytest.raises(ValueError, match="live records"):
        mode.insert([1.0], 1)
    mode.max_records = 8  # the twin: one more, and the count of a class is negative
    mode.insert([1.0], 1)
    assert mode._sums[0, 2, 2] < 0 and mode._sums[0, 1, 1] == 0


# -- logistic --------------------------------------------------------------------------


def newton_ratio(K, factor=1.0, n=1000, few=225, deletions=30):
    """The largest true gradient over the residual, on equal rows of two classes.

    The third moment is the largest at these shares. The other classes begin far away:
    at the minimum itself they would take part in every step. `factor` scales the
    bending term, through the top eigenvalue that multiplies M.
    """
    X, Y = np.ones((n, 1)), np.repeat([0.0, 1.0], [few, n - few])
    mode = Logistic(1, classes=K, Lambda=1e-9, tolerance=1e12)
    objective = mode._objective(X, Y)
    w = np.full(K, -40.0)
    w[:2] = np.array([0.5, -0.5]) * np.log(few / (n - few))
    H = objective.hessian(w)
    residual = objective.gradient(w).bound
    mode._take(Minimum(w, residual, H, objective._inverse(H), X.T @ X, 0.0), n)
    mode._scalars[2] *= factor
    worst = 0.0
    for i in range(deletions):
        mode.delete(X[i], Y[i], np.zeros(K))
        if i % 10 == 9:
            now = true_gradient(mode, X[i + 1 :], Y[i + 1 :])
            worst = max(worst, now / mode._scalars[1])
    return worst


@pytest.mark.parametrize("K", [2, 3, 5, 10])
def test_the_residual_over_classes_is_reached(K):
    worst = newton_ratio(K)
    assert 0.98 < worst <= 1.0
    assert newton_ratio(K, factor=TWIN) > 1.0


def newton_ratios(seed, family, events=60):
    """Gradient over residual at every event, and distance over certificate."""
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(3, 11)), int(rng.integers(1, 4))
    bound, Lambda = 10.0 ** rng.uniform(-0.5, 0.5), 10.0 ** rng.uniform(-2, 1.5)
    X, Y = class_records(events, d, K, seed=seed, family=family, norm=bound)
    mode = Logistic(d, classes=K, Lambda=Lambda, norm_bound=bound, tolerance=1e12)
    start = int(rng.integers(0, events // 2))
    live = list(range(start))
    if start:
        mode.fit(X[:start], Y[:start])
    worst = 0.0
    for i in range(start, events):
        mode.insert(X[i], float(Y[i]))
        live.append(i)
        if rng.random() < 0.5:
            gone = live.pop(int(rng.integers(len(live))))
            mode.delete(X[gone], Y[gone], np.zeros(mode.size))
        worst = max(worst, true_gradient(mode, X[live], Y[live]) / mode._scalars[1])
    assert mode.records == len(live)
    refit = mode.fresh()
    refit.fit(X[live], Y[live])
    apart = np.linalg.norm(mode._vectors[0] - refit._vectors[0])
    assert true_gradient(refit, X[live], Y[live]) <= refit._scalars[1]
    return worst, apart / (mode.certificate() + refit.certificate())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_residual_covers_the_gradient_and_the_certificate_the_refit(family):
    found = np.array([newton_ratios(seed, family) for seed in range(6)])
    assert (found.max(axis=0) <= 1.0).all()
    assert (found.max(axis=0) > 1e-3).all()


@pytest.mark.deep
@pytest.mark.parametrize("family", FAMILIES)
def test_residuals_of_many_streams(family):
    found = np.array([newton_ratios(seed, family, events=150) for seed in range(100)])
    assert (found.max(axis=0) <= 1.0).all()


def test_the_minimum_is_that_of_a_general_solver():
    X, Y = class_records(200, 3, 4, seed=1)
    mode = Logistic(3, classes=4, Lambda=3.0)
    mode.fit(X, Y)
    rows = np.array([mode.check(x, y)[0] for x, y in zip(X, Y, strict=True)])

    def value(w):
        scores = rows @ w.reshape(4, 3).T
        own = scores[np.arange(200), Y.astype(int)]
        return np.sum(np.log(np.exp(scores).sum(axis=1)) - own) + 1.5 * w @ w

    peer = minimize(value, np.zeros(12), tol=1e-12).x
    assert np.allclose(mode.published(), peer, atol=1e-5)
    assert mode.certificate() < 1e-10
    # H is the Hessian there: differences of gradients say so.
    H, P, _ = mode._matrices
    assert np.allclose(H @ P, np.eye(12), atol=1e-9)
    objective = mode._objective(X, Y)
    nudge = np.random.default_rng(0).normal(size=12) * 1e-6
    ahead, behind = (objective.gradient(peer + s * nudge).value for s in (1, -1))
    assert np.allclose((ahead - behind) / 2, H @ nudge, atol=1e-11)


def test_updates_over_classes_keep_the_hessian_and_its_inverse():
    X, Y = class_records(400, 4, 5, seed=4)
    mode = Logistic(4, classes=5, Lambda=0.5, tolerance=1e12)
    mode.fit(X[:200], Y[:200])
    mode.insert_many(X[200:], Y[200:])
    for i in range(350):
        mode.delete(X[i], Y[i], np.zeros(20))
    H, P, gram = mode._matrices
    rows = np.array([mode.check(x, 0)[0] for x in X[350:]])
    objective = mode._objective(X[350:], Y[350:])
    assert np.allclose(H, objective.hessian(mode._vectors[1]), atol=1e-10)
    assert np.allclose(H @ P, np.eye(20), atol=1e-8)
    assert np.allclose(gram[:4, :4], rows.T @ rows, atol=1e-11)
    assert not gram[4:].any() and not gram[:, 4:].any()
    assert not mode._vectors[3:].any()  # no work space keeps a record


def test_one_record_moves_the_minimiser_by_at_most_its_gradient_over_lambda():
    """sqrt(2) B / Lambda; 0.7 of it is refuted by one record among 120 classes."""
    lone = Logistic(1, classes=120, Lambda=1e3)
    lone.fit([[1.0]], [7])
    limit = lone.gradient_bound / lone.Lambda
    assert TWIN * limit < np.linalg.norm(lone.published()) <= limit
    for seed, family in enumerate(FAMILIES):
        X, Y = class_records(30, 3, 4, seed=seed, family=family)
        with_all, without = (Logistic(3, classes=4, Lambda=0.3) for _ in range(2))
        with_all.fit(X, Y)
        without.fit(X[1:], Y[1:])
        moved = np.linalg.norm(with_all.published() - without.published())
        assert moved <= with_all.gradient_bound / 0.3
