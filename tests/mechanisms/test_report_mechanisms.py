"""The baselines: Laplace noise by coordinate, Gaussian noise; law, price, streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.accounting.gaussian import gaussian_epsilon
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports, _further
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import ReportMechanism, Reports, RowMechanism
from demur.mechanisms.sampling.rounded_gaussian import FURTHER_WORDS
from demur.mechanisms.sampling.row_streams import RowStreams

POINTS = np.array([[0.1, 0.9, 0.4], [0.5, 0.5, 0.5], [0.0, 1.0, 0.25]])
MECHANISMS = [BPM(8.0, "auto", 3), LaplaceReports(8.0, 3), GaussianReports(8.0, 3)]
every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)


def new_ledger(epsilon=50.0, delta=1e-5):
    # Half of delta is for blocks, so that pure entries of any size have a price.
    return Ledger(Budget(epsilon, delta), unit=Ball(0.2, space="cube"))


def many(mechanism, point, n, seed):
    release = mechanism.privatize(
        np.tile(point, (n, 1)), ledger=None, source=Seeded(seed)
    )
    return release.value.values


@every
def test_they_are_report_mechanisms(mechanism):
    assert isinstance(mechanism, ReportMechanism)
    release = mechanism.privatize(POINTS, ledger=None)
    assert isinstance(release.value, Reports) and release.value.mechanism == mechanism
    assert "Not recorded" in release.statement()
    assert "NOT PRIVATE" not in release.statement()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS[1:], ids=["laplace", "gaussian"])
def test_the_noise_has_its_law(mechanism):
    n, v = 60_000, np.array([0.2, 0.7, 1.0])
    noise = many(mechanism, v, n, 5) - v
    if isinstance(mechanism, LaplaceReports):
        law = stats.laplace(scale=math.sqrt(3) / 8.0)
        wrong = stats.laplace(scale=1.06 * math.sqrt(3) / 8.0)
    else:
        law = stats.norm(scale=mechanism.sigma)
        wrong = stats.norm(scale=1.06 * mechanism.sigma)
    for column in noise.T:
        assert stats.kstest(column, law.cdf).pvalue > 1e-4
        assert stats.kstest(column, wrong.cdf).pvalue < 1e-4
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 5 / math.sqrt(n)
    direct = law.logpdf(noise[:50]).sum(axis=1)
    assert np.allclose(mechanism.log_density(v, v + noise[:50]), direct)


@every
def test_reports_do_not_depend_on_order_or_company(mechanism):
    points = np.random.default_rng(0).random((40, 3))
    ids = np.arange(100, 140, dtype=np.uint64)
    turn = np.random.default_rng(1).permutation(40)
    streams = RowStreams(mechanism.row_key(NoiseKey(bytes(32), private=False)))
    whole = mechanism.draw_rows(points, ids, streams)
    turned = mechanism.draw_rows(points[turn], ids[turn], streams)
    part = mechanism.draw_rows(points[:7], ids[:7], streams)
    assert np.array_equal(whole[turn], turned) and np.array_equal(whole[:7], part)
    other = mechanism.draw_rows(points, ids + np.uint64(50), streams)
    assert not np.isclose(whole - points, other - points).all(axis=1).any()


@every
def test_a_worker_with_the_key_of_the_rows_draws_the_same(mechanism):
    """What a cluster is given: never the entry's key, and no other noise."""
    assert isinstance(mechanism, RowMechanism)
    key = Seeded(3).new_key()
    release = mechanism.privatize(POINTS, ledger=None, source=Seeded(3))
    row_key = mechanism.row_key(NoiseKey(key, private=False))
    ids = np.arange(3, dtype=np.uint64)
    drawn = mechanism.draw_rows(POINTS, ids, RowStreams(row_key))
    assert np.array_equal(drawn, release.value.values)
    assert row_key != key and len(row_key) == 32
    others = {m.row_key(NoiseKey(key, private=False)) for m in MECHANISMS}
    assert len(others) == len(MECHANISMS)  # no two mechanisms share a stream


@every
def test_bad_input_charges_nothing(mechanism):
    ledger = new_ledger()
    outside, nan = POINTS.copy(), POINTS.copy()
    outside[1, 1], nan[0, 0] = 1.0 + 1e-9, np.nan
    for bad in (outside, nan, POINTS[:, :2], POINTS[:0], POINTS[0]):
        with pytest.raises(ValueError, match="points"):
            mechanism.privatize(bad, ledger=ledger)
    with pytest.raises(ValueError, match="differ"):
        mechanism.privatize(POINTS, ledger=ledger, row_ids=[1, 1, 2])
    with pytest.raises(TypeError, match="ledger"):
        mechanism.privatize(POINTS, ledger="ledger")
    assert ledger.entries() == []


@every
def test_a_key_without_a_ledger_is_refused(mechanism):
    """The second run would draw other noise: two reports of one point, paid once."""
    with pytest.raises(ValueError, match="needs a ledger"):
        mechanism.privatize(POINTS, ledger=None, idempotency_key="monday")


@pytest.mark.parametrize("kind", [LaplaceReports, GaussianReports])
def test_bad_parameters(kind):
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            kind(epsilon, 3)
    with pytest.raises(ValueError, match="dimension"):
        kind(1.0, 0)
    with pytest.raises(ValueError, match="delta"):
        GaussianReports(1.0, 3, delta=0.0)


def test_the_price_of_laplace_by_coordinate_is_that_of_the_whole_vector():
    for d in (1, 2, 3, 7, 100):
        laplace = LaplaceReports(4.0, d)
        cost = laplace.declaration().cost
        assert cost.at(Ball(0.3, space="cube")) == Pure(1.2)
        assert cost.at(ReplaceOne()).epsilon == pytest.approx(4.0 * math.sqrt(d))
        # Worst pairs: the diagonal attains the bound, and nothing exceeds it.
        v = np.full(d, 0.3)
        for move in (np.eye(d)[0] * 0.2, np.full(d, 0.2 / math.sqrt(d))):
            far = v + 50.0
            loss = laplace.log_density(v + move, far) - laplace.log_density(v, far)
            assert loss <= 4.0 * 0.2 * (1 + 1e-12)
        assert loss == pytest.approx(0.8)
        if d > 1:
            # The twin takes epsilon on every coordinate and breaks the promise.
            assert 4.0 * np.abs(move).sum() > 4.0 * 0.2 * 1.4


def test_gaussian_reports_cost_what_they_say_at_every_radius():
    for d, epsilon in ((1, 1.0), (3, 4.0), (30, 8.0)):
        mechanism = GaussianReports(epsilon, d)
        declared = mechanism.declaration()
        total = epsilon * math.sqrt(d)
        whole = declared.cost.at(ReplaceOne())
        assert isinstance(whole, GaussianEvent)
        assert gaussian_epsilon(1 / whole.multiplier, 1e-6) <= total
        # Calibrated, not merely enough: 1% less noise would not do.
        assert gaussian_epsilon(1.01 / whole.multiplier, 1e-6) > total
        for share in (0.05, 0.2, 0.5, 0.9):
            r = share * math.sqrt(d)
            event = declared.cost.at(Ball(r, space="cube"))
            assert event.multiplier == pytest.approx(mechanism.sigma / r, rel=1e-4)
            # Below the diameter it costs less than the epsilon r of pure noise.
            assert gaussian_epsilon(1 / event.multiplier, 1e-6) <= epsilon * r
        assert 0.0 < declared.sampler_distance < d * 2.0**-268


def test_a_gaussian_report_fits_its_own_budget_and_no_smaller_one():
    mechanism = GaussianReports(2.0, 4)
    exact = Ledger(Budget(mechanism.total, 1e-6), unit=ReplaceOne())
    mechanism.privatize(np.full((5, 4), 0.5), ledger=exact)
    with pytest.raises(BudgetExceeded):
        mechanism.privatize(np.full((5, 4), 0.5), ledger=exact)
    assert len(exact.entries()) == 1


def test_gaussian_reports_lie_on_the_grid_of_one_row():
    mechanism = GaussianReports(4.0, 2)
    row = mechanism._row("cube")
    values = many(mechanism, np.array([0.3, 0.7]), 2000, 1)
    assert np.array_equal(np.rint(values / row.grid) * row.grid, values)
    again = mechanism.privatize(np.full((3, 2), 0.5)).value.values
    assert np.isfinite(again).all()


def test_further_bits_of_a_coordinate_are_its_rows_own():
    """What settles a close call comes from the same row's stream, at its own place."""
    streams = RowStreams(bytes(range(32)))
    ids = np.array([7, 2**63], dtype=np.uint64)
    found = {i: _further(streams, ids, 3)(i).read() for i in range(6)}
    assert len(set(found.values())) == 6
    for i, bits in found.items():
        row, word = int(ids[i // 3]), i % 3
        first = streams.further_bits(row, word, 1)
        assert bits[:8] == first.to_bytes(8, "little")
        assert len(bits) == 8 * FURTHER_WORDS


def test_reports_that_are_not_finite_are_refused_by_unbounded_mechanisms():
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match="reports"):
            Reports(np.array([[0.1, value, 0.2]]), np.arange(1), MECHANISMS[1])
