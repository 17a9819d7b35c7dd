"""The seed's samplers: right laws, and no way to draw from a seed by accident."""

import logging
import math

import numpy as np
import pytest
from scipy import stats

from demur import Budget, Ledger, ReplaceOne, Seeded
from demur.compat.bpm import BPM, bpm_sampling, sample_f1, sample_f2
from demur.compat.bpm import sampling as module
from demur.compat.bpm.mechanism import compute_lambda_2r

V = np.array([0.3, 0.8])
ONE = BPM(epsilon=4.0, L=0.5, dimension=2)
CONSTANTS = (ONE.k, ONE.L, ONE.p_L, ONE.lambda_2r)


def reports(n: int) -> np.ndarray:
    return np.array(
        [bpm_sampling(V, *CONSTANTS, source=s) for s in map(Seeded, range(n))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, pytest.param(3000, marks=pytest.mark.deep)])
def test_a_report_follows_the_law(n):
    """100 reports with the seed's p_L would pass with probability 1e-8."""
    found = reports(n)
    near = int((np.linalg.norm(found - V, axis=1) <= 0.5).sum())
    assert stats.binomtest(near, n, ONE.p_L).pvalue > 1e-4
    assert stats.binomtest(near, n, 0.798).pvalue < 1e-9  # the seed's p_L is seen
    assert (found >= -0.5).all() and (found <= 1.5).all()
    mean = np.abs(found.mean(axis=0) - (0.19 * V + 0.81 * 0.5))
    assert (mean < 5 * found.std(axis=0) / math.sqrt(n) + 0.001).all()


def test_the_operating_system_draws_and_no_seed_does():
    np.random.seed(7)
    one = bpm_sampling(V, *CONSTANTS)
    np.random.seed(7)
    two = bpm_sampling(V, *CONSTANTS)
    assert not np.array_equal(one, two)
    state = np.random.get_state(legacy=True)[1].copy()  # type: ignore[index]
    for draw in (
        lambda: bpm_sampling(V, *CONSTANTS),
        lambda: sample_f1(V, 0.5),
        lambda: sample_f2(V, 0.5, 4.0, ONE.lambda_2r),
    ):
        draw()
    after = np.random.get_state(legacy=True)[1]  # type: ignore[index]
    np.testing.assert_array_equal(state, after)


def test_a_seeded_source_repeats():
    one, two = (bpm_sampling(V, *CONSTANTS, source=Seeded(3)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_a_ledger_is_charged_before_the_draw():
    ledger = Ledger(Budget(3.0), unit=ReplaceOne(), filter="pure")
    assert bpm_sampling(V, *CONSTANTS, ledger=ledger).shape == (2,)
    assert ledger.epsilon() == pytest.approx(2.0)
    with pytest.raises(Exception, match="Declined"):
        bpm_sampling(V, *CONSTANTS, ledger=ledger)


@pytest.mark.parametrize(
    ("p_L", "lambda_2r"), [(0.798, ONE.lambda_2r), (ONE.p_L, 1.0), (math.nan, 1.0)]
)
def test_the_seeds_wrong_constants_are_refused(p_L, lambda_2r):
    with pytest.raises(ValueError, match="must be .* for these k, L and d"):
        bpm_sampling(V, 4.0, 0.5, p_L, lambda_2r)


@pytest.mark.slow
def test_the_parts_follow_their_laws():
    source = Seeded(1)
    out = np.array([sample_f1(V, 0.5, source=source) for _ in range(2000)])
    far = np.linalg.norm(out - V, axis=1)
    assert far.min() > 0.5 and (out >= -0.5).all() and (out <= 1.5).all()
    beyond = out[out[:, 0] > 0.85, 0]  # the ball ends at 0.8: uniform from there on
    assert stats.kstest(beyond, "uniform", args=(0.85, 0.65)).pvalue > 1e-4
    share = 1 - math.pi * 0.25 / 4
    expected = 0.65 / 2 / share
    assert stats.binomtest(len(beyond), 2000, expected).pvalue > 1e-4
    for d in (1, 2, 5):
        scale = compute_lambda_2r(d, 0.5, 4.0)
        radii = [
            module.sample_radius(d, 0.5, 4.0, scale, source=source) for _ in range(1500)
        ]
        law = stats.gamma(d, scale=0.25)
        assert (
            stats.kstest(radii, lambda r, law=law: law.cdf(r) / law.cdf(0.5)).pvalue
            > 1e-4
        )
        # The uniform radius is told apart.
        assert stats.kstest(radii, "uniform", args=(0, 0.5)).pvalue < 1e-4
    inside = np.array(
        [sample_f2(V, 0.5, 4.0, ONE.lambda_2r, source=source) for _ in range(1500)]
    )
    radii = np.linalg.norm(inside - V, axis=1)
    law = stats.gamma(2, scale=0.25)
    assert stats.kstest(radii, lambda r: law.cdf(r) / law.cdf(0.5)).pvalue > 1e-4
    angles = np.arctan2(*(inside - V).T) / (2 * math.pi) + 0.5
    assert stats.kstest(angles, "uniform").pvalue > 1e-4


def test_outside_the_ball_on_a_line():
    """Two pieces of lengths v and 1 - v, however far apart; no search for them."""
    source, v = Seeded(4), np.array([0.3])
    for L in (0.5, 1e12):
        found = np.array([sample_f1(v, L, source=source)[0] for _ in range(600)])
        left = found < v[0]
        assert (np.where(left, v[0] - found, found - v[0]) >= L * (1 - 1e-15)).all()
        assert stats.binomtest(int(left.sum()), 600, 0.3).pvalue > 1e-4
        assert (found >= -L).all() and (found <= 1 + L).all()
    assert stats.kstest(found[found > 0] - 1e12, "uniform", (0.3, 0.7)).pvalue > 1e-4


def test_parts_say_once_that_they_are_not_private(caplog):
    module._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sample_f1(V, 0.5)
    assert caplog.text.count("NOT PRIVATE") == 1


def test_an_error_does_not_quote_the_point():
    with pytest.raises(ValueError, match="real numbers") as caught:
        bpm_sampling([0.1, "patient 61"], *CONSTANTS)
    assert "patient" not in str(caught.value) and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "call",
    [
        lambda: bpm_sampling([[0.1, 0.2]], *CONSTANTS),
        lambda: bpm_sampling([], *CONSTANTS),
        lambda: bpm_sampling([math.nan, 0.2], *CONSTANTS),
        lambda: bpm_sampling([1.5, 0.2], *CONSTANTS),
        lambda: sample_f1([0.5, 0.5], math.inf),
        lambda: sample_f1([2.5, 0.5], 1.0),
        lambda: module.sample_radius(2, 0.5, 4.0, 1.0),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError, match="must"):
        call()
