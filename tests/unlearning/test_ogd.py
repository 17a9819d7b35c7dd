"""ogd: the shift theorem, measured; its rounding; and twins that it does not cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from demur.core.calibrate import gaussian_mu
from demur.unlearning.modes import OGD
from tests.unlearning.modes_kit import records, unit_rows, worst_case


def shift(make, X, Y, missing):
    """The distance between a run and its replay without some ticks, and the bound."""
    whole, replay = make(), make()
    whole.insert_many(X, Y)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        replay.skip() if i in missing else replay.insert(x, float(y))
    distance = np.linalg.norm(whole.published() - replay.published())
    return distance, whole.shift_bound(len(missing))


def test_a_worst_case_record_reaches_the_bound():
    # 5,000 ticks, lambda 0.1, d 20; learned early, in the middle and last.
    for i in (0, 2500, 4999):
        X, Y = worst_case(5000, 20, [i])
        distance, bound = shift(lambda: OGD(20, lambda_=0.1), X, Y, {i})
        assert 0.9 * bound <= distance <= bound
        assert bound == pytest.approx(1 / (0.1 * (5000 + 11)), rel=1e-6)


def test_a_subjects_worst_records_add_up():
    ticks = [3, 400, 401, 999]
    X, Y = worst_case(1000, 10, ticks)
    distance, bound = shift(lambda: OGD(10), X, Y, set(ticks))
    assert 0.9 * bound <= distance <= bound


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 6),
    n=st.integers(1, 60),
    loss=st.sampled_from(["huber", "logistic"]),
    lambda_=st.floats(1e-3, 10.0),
    kappa=st.floats(0.01, 100.0),
    bound=st.floats(0.1, 10.0),
    share=st.floats(0.05, 3.0),
    late=st.floats(1.0, 30.0),
)
def test_no_stream_moves_it_farther(
    seed, d, n, loss, lambda_, kappa, bound, share, late
):
    X, Y = records(n, d, seed=seed, norm=bound)
    rng = np.random.default_rng(seed)
    if loss == "huber":
        Y = Y * 10.0 ** rng.uniform(-2, 4, size=n)
    probe = OGD(d, loss=loss, lambda_=lambda_, kappa=kappa, norm_bound=bound)

    def make():
        return OGD(
            d,
            loss=loss,
            lambda_=lambda_,
            kappa=kappa,
            norm_bound=bound,
            radius=share * probe.gradient_bound / lambda_,
            t0=late * probe.t0,
        )

    missing = set(rng.choice(n, size=rng.integers(1, min(n, 3) + 1), replace=False))
    distance, limit = shift(make, X, Y, missing)
    assert distance <= limit
    assert np.linalg.norm(make().published()) == 0.0


def rigged(**changes):
    """An ogd whose constants were changed behind its back."""
    mode = OGD(2, lambda_=0.1, kappa=changes.pop("kappa", 1.0), radius=1e9)
    for place, value in changes.items():
        index = ["lambda_", "kappa_used", "norm_used", "radius_used", "t0"].index(place)
        mode._constants[index] = value
        if place == "t0":
            mode.t0 = value  # the bound believes it too
    return mode


def test_twin_without_t0_is_caught():
    """Steps longer than 1 / beta overshoot: from 2 apart to 9 apart in one tick."""
    X, Y = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0.2, 1.0])
    distance, bound = shift(lambda: rigged(t0=0.0), X, Y, {0})
    assert distance == pytest.approx(9.0) and bound == pytest.approx(5.0, rel=1e-4)
    distance, bound = shift(lambda: OGD(2, lambda_=0.1, radius=1e9), X, Y, {0})
    assert distance <= bound
    with pytest.raises(ValueError, match="beta / lambda"):
        OGD(2, lambda_=0.1, t0=10.0)


def test_twin_that_does_not_clip_the_residual_is_caught():
    X, Y = worst_case(50, 2, [7])
    Y[7] = 5.0
    distance, bound = shift(lambda: rigged(kappa_used=np.inf), X, Y, {7})
    assert distance > 3 * bound
    distance, bound = shift(lambda: rigged(), X, Y, {7})
    assert distance <= bound


def test_twin_that_does_not_clip_rows_is_caught():
    X, Y = worst_case(50, 2, [7])
    X[7] *= 3.0
    distance, bound = shift(lambda: rigged(norm_used=100.0), X, Y, {7})
    assert distance > 2 * bound
    distance, bound = shift(lambda: rigged(), X, Y, {7})
    assert distance <= bound


def test_twin_with_a_replay_on_another_clock_is_caught():
    """The replay's tick is empty, not left out: later steps would be longer."""
    X, Y = np.ones((2, 1)), np.array([1e6, -1e6])
    distance, bound = shift(lambda: OGD(1), X, Y, {0})
    assert distance <= bound
    whole, short = OGD(1), OGD(1)
    whole.insert_many(X, Y)
    short.insert_many(X[1:], Y[1:])
    assert np.linalg.norm(whole.published() - short.published()) > 1.05 * bound


@pytest.mark.parametrize("loss", ["huber", "logistic"])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_rounding_stays_within_what_is_charged(loss, share):
    """The same steps in extended precision, 20,000 of them."""
    n, d, lambda_ = 20_000, 9, 0.05
    X, Y = unit_rows(n, d, seed=5)
    Y = Y * 3 if loss == "huber" else (Y > 0).astype(float)
    reach = OGD(d, loss=loss, lambda_=lambda_).radius
    mode = OGD(d, loss=loss, lambda_=lambda_, radius=share * 0.1 * reach)
    mode.insert_many(X, Y)
    long = np.longdouble
    w = np.zeros(d, dtype=long)
    lam, t0, radius = long(lambda_), long(mode.t0), long(mode.radius)
    rows, one = X.astype(long), long(1)
    for t in range(n):
        score = rows[t] @ w
        if loss == "huber":
            slope = min(max(score - long(Y[t]), -one), one)
        else:
            slope = one / (one + np.exp(-score)) - long(Y[t])
        tau = long(t + 1) + t0
        w = w - (lam * w + slope * rows[t]) / (lam * tau)
        w = w * min(one, radius / np.sqrt(w @ w))
    error = float(np.linalg.norm(w - mode.published()))
    # Two worlds are charged; one is measured.
    assert error <= mode._rounding(float(n)) / 2
    assert mode._rounding(float(n)) < 1e-2 * mode.shift_bound()


def test_projection_holds_after_steps_and_after_noise():
    X, Y = unit_rows(300, 4)
    mode = OGD(4, radius=0.05)
    for x, y in zip(X, 100 * Y, strict=True):
        mode.insert(x, float(y))
        assert np.linalg.norm(mode.published()) <= 0.05 * (1 + 1e-12)
    mode.delete(noise=np.full(4, 1e3))
    assert np.linalg.norm(mode.published()) == pytest.approx(0.05)
    # The twin that forgets to project leaves the ball.
    mode._constants[3] = np.inf
    mode.insert_many(X, 100 * Y)
    assert np.linalg.norm(mode.published()) > 0.1
    # The default radius is one that no step leaves.
    free = OGD(4)
    free.insert_many(X, 1e9 * np.abs(Y))
    assert np.linalg.norm(free.published()) <= free.radius * (1 + 1e-9)


def test_a_deletion_is_its_noise_and_needs_no_record():
    X, Y = unit_rows(50, 4)
    mode = OGD(4)
    mode.insert_many(X, Y)
    before, noise = mode.published(), np.array([0.1, -0.2, 0.3, 0.0])
    bound = mode.shift_bound()
    mode.delete(noise=noise)
    assert np.array_equal(mode.published(), before + noise)
    assert bound <= mode.shift_bound() <= bound * (1 + 1e-12) and mode.ticks == 50
    assert set(mode.state()) == {"w", "ticks", "drift"}
    assert mode.shift_bound(3) == pytest.approx(3 * bound)


def test_grids_of_other_peoples_deletions_are_added():
    """Two worlds a hair apart may fall on different points of somebody's grid."""
    grid = 2.0**-4
    X, Y = worst_case(400, 3, [5])
    whole, replay = OGD(3), OGD(3)
    rng = np.random.default_rng(0)
    worst = twin = 0.0
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        replay.skip() if i == 5 else replay.insert(x, float(y))
        whole.insert(x, float(y))
        if i % 10 == 9:
            distance = np.linalg.norm(whole.published() - replay.published())
            worst = max(worst, distance / whole.shift_bound())
            twin = max(twin, distance / OGD.shift_bound(_without_drift(whole)))
            noise = grid * rng.integers(-3, 4, size=3)
            for world in (whole, replay):
                world.delete(noise=noise, grid=grid)
    assert worst <= 1.0 < twin


def _without_drift(mode):
    twin = mode.fresh()
    twin.restore({**mode.state(), "drift": np.array(0.0)})
    return twin


def mu_lower(hits, false, trials, confidence=0.999):
    wrong = (1 - confidence) / 2
    low = beta.ppf(wrong, hits, trials - hits + 1)
    high = beta.ppf(1 - wrong, false + 1, trials - false)
    return float(norm.ppf(low) - norm.ppf(high))


def joint_audit(factor, trials=6000, deletions=16):
    """Lower bound on mu when all of `deletions` worst-case records are deleted.

    They are deleted one after the other at the end, so that the shifts add up along one
    axis: sqrt(m) / z, as the composition has it, is reached but for the early ticks.
    """
    at = list(range(0, 400, 400 // deletions))[:deletions]
    X, Y = worst_case(400, 5, at)
    whole, replay = OGD(5), OGD(5)
    whole.insert_many(X, Y)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        replay.skip() if i in at else replay.insert(x, float(y))
    mu = gaussian_mu(1.0, 1e-5)
    sigma = factor * whole.shift_bound() * np.sqrt(deletions) / mu
    middle = (whole.published()[-1] + replay.published()[-1]) / 2
    rng = np.random.default_rng(7)
    above = []
    for world in (whole, replay):
        start, hits = world.state(), 0
        for noises in rng.normal(size=(trials, deletions, 5)) * sigma:
            for noise in noises:
                world.delete(noise=noise)
            hits += world.published()[-1] > middle
            world.restore(start)
        above.append(hits)
    hits, false = above
    return mu_lower(hits, false, trials), mu


@pytest.mark.slow
def test_joint_deletions_stay_under_their_composition():
    found, claimed = joint_audit(1.0)
    assert 0.5 * claimed <= found <= claimed  # the test sees the shift


@pytest.mark.slow
def test_twin_with_half_the_joint_noise_is_caught():
    found, claimed = joint_audit(0.5)
    assert found > claimed


@pytest.mark.parametrize(
    "config",
    [
        {"lambda_": 0.0},
        {"lambda_": float("nan")},
        {"kappa": -1.0},
        {"norm_bound": float("inf")},
        {"radius": 0.0},
        {"t0": float("nan")},
        {"loss": "squared"},
        {"lambda_": 1e-300, "norm_bound": 1e10},
    ],
)
def test_bad_configurations_are_refused(config):
    with pytest.raises(ValueError):
        OGD(3, **config)


def test_the_theorem_says_what_it_says():
    theorem = OGD.theorem
    assert theorem.composition("subject") == "nothing"
    assert theorem.composition("joint") == "deletions"
    assert "gdp" not in theorem.joint_accounting and "zcdp" in theorem.joint_accounting
    text = " ".join(theorem.not_covered)
    for words in ("before the deletion", "must not depend", "is not hidden"):
        assert words in text
