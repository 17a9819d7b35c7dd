"""Parts of the modes' bounds and clocks that no model's accuracy would show."""

import numpy as np
import pytest

from demur.unlearning import make_mode
from demur.unlearning.models.base import Mode
from tests.unlearning.modes_kit import unit_rows


@pytest.mark.parametrize("radius", [None, 0.5])
def test_the_rounding_error_of_an_ogd_step_is_the_stated_one(radius):
    """u (c R + eta (B^2 R (d/4 + 8) + 16 G)), c = 4, or d + 20 where steps project."""
    mode = make_mode("ogd", 12, norm_bound=3.0, lam=0.5, radius=radius)
    each, data = mode._step_error()
    R, G = mode.radius, mode.gradient_bound
    assert each == pytest.approx((4.0 if radius is None else 32.0) * R, rel=1e-14)
    assert data == pytest.approx(9.0 * R * 11.0 + 16.0 * G, rel=1e-14)


def test_a_measured_residual_never_raises_the_certificate():
    X, Y = unit_rows(40, 3)
    labels = (Y > 0).astype(float)
    mode = make_mode("logistic", 3, Lambda=5.0, tolerance=0.5)
    mode.insert_many(X, labels)
    followed = mode.certificate()
    measured = mode.measure(X, labels)
    assert 0.0 < measured < followed
    assert mode.measure(X, labels) == measured == mode.certificate()
    # A renewed mode is at rounding level: measuring cannot make it worse.
    mode.renew(X, labels)
    renewed = mode.certificate()
    assert mode.measure(X, labels) <= renewed < measured
    with pytest.raises(ValueError, match="are live"):
        mode.measure(X[1:], labels[1:])


def test_a_measured_residual_does_not_hide_what_came_after_it():
    X, Y = unit_rows(40, 3)
    labels = (Y > 0).astype(float)
    mode = make_mode("logistic", 3, Lambda=5.0, tolerance=0.5)
    mode.fit(X[:20], labels[:20])
    at_rest = mode.certificate()
    mode.insert_many(X[20:], labels[20:])
    assert mode.measure(X, labels) > at_rest


@pytest.mark.parametrize("skips", [0, 1, 2])
def test_ridge_solves_by_its_clock_and_not_by_its_records(skips):
    """Blocks give the predictions of single insertions, however many ticks passed."""
    X, Y = unit_rows(14, 40)
    config = {"bits": 25, "limbs": 2, "refresh": 3}
    single, whole = (make_mode("ridge", 40, **config) for _ in range(2))
    for mode in (single, whole):
        mode.insert(X[0], float(Y[0]))
        for _ in range(skips):
            mode.skip()
    one_by_one = [single.insert(x, float(y)) for x, y in zip(X[1:], Y[1:], strict=True)]
    assert np.array_equal(whole.insert_many(X[1:], Y[1:]), one_by_one)
    # The weights of tick 3 are the first that predict.
    assert np.flatnonzero(one_by_one)[0] == 2 - skips


@pytest.mark.parametrize(("loss", "beta"), [("huber", 1.0), ("logistic", 0.25)])
@pytest.mark.parametrize("lam", [0.3, 0.07])
def test_steps_begin_where_the_theorem_lets_them(loss, beta, lam):
    """t0 >= beta B^2 / lambda (and 1 more), never rounded down to a whole number."""
    mode = make_mode("ogd", 2, loss=loss, norm_bound=1.5, lam=lam)
    least = 1.0 + beta * 2.25 / lam
    assert least <= mode.t0 <= least * (1 + 1e-9)
    with pytest.raises(ValueError, match="t0"):
        make_mode("ogd", 2, loss=loss, norm_bound=1.5, lam=lam, t0=least * (1 - 1e-6))


@pytest.mark.parametrize("key", ["H", "P", "gram"])
def test_a_logistic_state_of_another_size_or_with_nan_is_refused(key):
    mode = make_mode("logistic", 3)
    state = mode.state()
    mode.restore(state)
    spoilt = np.array(state[key])
    spoilt[1, 1] = np.nan
    for bad in (spoilt, np.zeros((2, 2)), np.zeros((1, 3))):
        with pytest.raises(ValueError, match="not a state of a logistic mode"):
            mode.restore({**state, key: bad})


def test_a_mode_without_its_parts_is_none():
    missing = {"check", "predict", "insert", "delete", "published", "state", "restore"}
    assert missing <= Mode.__abstractmethods__
