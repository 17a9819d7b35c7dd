"""Drift is seen when it is there, and recalibration never mints budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

from demur.unlearning import (
    CapacityExhausted,
    DriftDetector,
    MemoryPair,
    Phase,
    PrivacyOdometer,
)

DIM = 5


def alarms(detector, reference, norms):
    detector.start(reference)
    return sum(detector.update(norm) for norm in norms)


def test_no_alarm_without_drift():
    rng = np.random.default_rng(0)
    for _ in range(20):
        same = rng.exponential(size=5500)
        assert not alarms(DriftDetector(200), same[:500], same[500:])


@pytest.mark.parametrize("factor", [0.4, 2.0])
def test_alarm_after_drift(factor):
    rng = np.random.default_rng(1)
    for _ in range(20):
        reference, later = rng.exponential(size=500), factor * rng.exponential(size=400)
        assert alarms(DriftDetector(200), reference, later)


def test_a_difference_nobody_cares_about_is_no_drift():
    rng = np.random.default_rng(2)
    reference = 1.0 + 1e-3 * rng.normal(size=500)
    later = 1.1 + 1e-3 * rng.normal(size=500)  # a hundred standard errors, 10 %
    assert not alarms(DriftDetector(200), reference, later)


def test_a_sleeping_detector():
    detector = DriftDetector(10)
    assert not any(detector.update(1e6) for _ in range(50))
    detector.start([1.0])
    assert not any(detector.update(1e6) for _ in range(50))
    with pytest.raises(ValueError, match="finite"):
        detector.update(math.nan)
    for options in ({"window": 1}, {"threshold": 0.0}, {"effect": math.nan}):
        with pytest.raises(ValueError, match="must be"):
            DriftDetector(**({"window": 5} | options))


def stream(n, scale, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, DIM))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, scale * X[:, 0] + 0.1 * rng.normal(size=n)


def calibrated(mode, drift, formula="consistent", **options):
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=5.0, formula=formula)
    model = MemoryPair(DIM, odometer, mode=mode, drift=drift, **options)
    X, Y = stream(300, 1.0)
    for x, y in zip(X, Y, strict=True):
        model.calibrate_step(x, y)
    stats = model.finalize_calibration(1.0)
    odometer.finalize_with(stats, T_estimate=100_000)
    return model


@pytest.mark.slow
def test_recalibration_on_drift_never_mints():
    heard = []
    model = calibrated("seed", DriftDetector(100), "seed", step=0.1)
    model.on("drift", heard.append)
    model.on("recalibrate", heard.append)
    paid = model.odometer._payment.entry.count
    left, G = model.odometer.capacity_remaining, model.stats.G
    for round_ in range(4):  # the targets flip: large gradients, again and again
        X, Y = stream(300, (-1) ** (round_ + 1) * 3.0, seed=round_)
        for x, y in zip(X, Y, strict=True):
            model.insert(x, y)
            assert model.odometer.capacity_remaining <= left
            left = model.odometer.capacity_remaining
    assert model.recalibrations >= 1
    assert [h.kind for h in heard[:2]] == ["drift", "recalibrate"]
    assert model.stats.G != G
    assert model.odometer._payment.entry.count == paid
    assert len(model.odometer.ledger.entries()) == 1
    assert model.phase is Phase.INTERLEAVING


def test_a_calmer_stream_wins_nothing():
    model = calibrated("seed", DriftDetector(100), "seed", step=0.1)
    before = model.odometer.capacity_remaining
    for _ in range(3):
        model.drift.start([10.0] * 100)
        for _ in range(100):
            model.insert(np.full(DIM, 0.01), 0.0)
    assert model.recalibrations >= 1 and model.stats.G < 0.1
    assert model.odometer.capacity_remaining == before


def test_ogd_is_sized_by_what_it_enforces_whatever_drifts():
    model = calibrated("ogd", DriftDetector(100), radius=1.0)
    before = model.odometer.plan
    X, Y = stream(600, 30.0, seed=5)
    for x, y in zip(X, Y, strict=True):
        model.insert(x, y)
    assert model.recalibrations >= 1
    assert model.odometer.plan.z == before.z
    assert model.odometer.deletion_capacity == before.m


def test_a_deletion_empties_the_window():
    model = calibrated("ogd", DriftDetector(100), radius=1.0)
    X, Y = stream(50, 1.0, seed=7)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        model.insert(x, y, record_id=f"r{i}")
    assert len(model.drift.recent()) == 50
    model.delete(record_id="r3")
    assert model.drift.recent() == ()


def test_recalibrating_by_hand_needs_a_detector():
    model = calibrated("ogd", None, radius=1.0)
    with pytest.raises(ValueError, match="drift=DriftDetector"):
        model.recalibrate()


def test_a_wild_stream_can_end_deletions():
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=0.2, formula="seed")
    model = MemoryPair(DIM, odometer, mode="seed", drift=DriftDetector(50), step=0.05)
    X, Y = stream(300, 0.1)
    for x, y in zip(X, Y, strict=True):
        model.calibrate_step(x, y)
    stats = model.finalize_calibration(1.0)
    odometer.finalize_with(stats, T_estimate=20_000)
    assert odometer.capacity_remaining > 1
    X, Y = stream(200, 50.0, seed=3)
    for x, y in zip(X, Y, strict=True):
        model.insert(x, y)
    assert model.recalibrations >= 1 and odometer._status == "degenerate"
    with pytest.raises(CapacityExhausted) as refused:
        model.delete(X[0], Y[0])
    assert refused.value.reason == "regret"


def test_running_sums_against_the_window():
    rng = np.random.default_rng(4)
    detector = DriftDetector(37)
    detector.start(rng.exponential(size=100))
    for norm in rng.exponential(size=500) * 10.0 ** rng.integers(-3, 4, size=500):
        detector.update(norm)
        window = np.array(detector.recent())
        assert detector._sum == pytest.approx(window.sum(), rel=1e-9)
        assert detector._squares == pytest.approx((window**2).sum(), rel=1e-9)
