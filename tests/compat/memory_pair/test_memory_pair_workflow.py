"""The workflow of the document's section 7, and the unit tests it asks for."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from demur import errors
from demur.compat import memory_pair
from demur.compat.memory_pair.src.calibrator import Calibrator
from demur.compat.memory_pair.src.memory_pair import MemoryPair, Phase
from demur.compat.memory_pair.src.odometer import PrivacyOdometer
from demur.unlearning import CapacityExhausted

D = 5


def stream(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) / math.sqrt(D)
    return X, X @ rng.normal(size=D) + 0.05 * rng.normal(size=n)


def calibrated(gamma_learn=0.5, gamma_priv=5.0, records=500):
    odometer = PrivacyOdometer(1.0, 1e-5, lambda_=0.1, gamma=gamma_priv)
    calibrator = Calibrator(quantile=0.95, D_cap=10.0)
    model = MemoryPair(dim=D, odometer=odometer, calibrator=calibrator)
    X, Y = stream(5000)
    for x, y in zip(X[:records], Y[:records], strict=True):
        model.calibrate_step(x, y)
    return model, odometer, model.finalize_calibration(gamma_learn), X, Y


@pytest.mark.slow
def test_the_whole_workflow():
    model, odometer, stats, X, Y = calibrated(gamma_learn=0.05)
    assert set(stats) == {"G", "D", "c", "C", "N_star"}
    assert model.phase in (Phase.LEARNING, Phase.INTERLEAVING)
    at = 500
    while not model.ready_to_predict:
        model.insert(X[at % 5000], Y[at % 5000])
        at += 1
    assert model.inserts_seen >= model.N_star
    odometer.finalize_with(stats, T_estimate=20_000)
    assert odometer.ready_to_delete
    m = odometer.deletion_capacity
    deleted = 0
    for step in range(300):
        model.insert(X[step], Y[step])
        if step % 10 == 9 and odometer.ready_to_delete:  # 10 inserts : 1 delete
            model.delete(X[step], Y[step])
            deleted += 1
    assert model.deletes_seen == deleted == min(30, m)
    assert odometer.capacity_remaining == m - deleted
    assert odometer.eps_spent == pytest.approx(deleted * odometer.eps_step)


@pytest.mark.slow
def test_n_star_is_positive_and_monotone_in_gamma():
    found = [calibrated(gamma_learn=g)[2]["N_star"] for g in (5.0, 1.0, 0.2, 0.05)]
    assert found[0] >= 1 and found == sorted(found) and found[0] < found[-1]


@pytest.mark.slow
def test_m_is_at_least_one_and_blocks_at_one_more(caplog):
    for gamma in (1e-6, 0.5, 2.0):  # no more deletions than records
        model, odometer, stats, X, Y = calibrated(gamma_priv=gamma)
        with caplog.at_level(logging.WARNING):
            odometer.finalize_with(stats, T_estimate=2000)
        m = odometer.deletion_capacity
        assert m >= 1
        while not model.ready_to_predict:
            model.insert(X[0], Y[0])
        for i in range(m):
            model.delete(X[i], Y[i])
        assert not odometer.ready_to_delete
        with pytest.raises(RuntimeError, match="Odometer not finalized or capacity"):
            model.delete(X[m], Y[m])
        with pytest.raises(RuntimeError, match="Odometer not finalized or capacity"):
            odometer.spend()
        with pytest.raises(CapacityExhausted):  # by demur's name as well
            odometer.spend()
    assert "Capacity is 1; next delete forces retrain" in caplog.text


def test_delete_before_finalisation_is_a_runtime_error():
    model, _, _, X, Y = calibrated(gamma_learn=5.0)
    assert model.phase is Phase.INTERLEAVING
    with pytest.raises(RuntimeError, match="Odometer not finalized"):
        model.delete(X[0], Y[0])
    with pytest.raises(memory_pair.CapacityDepleted):  # and by its own name
        model.delete(X[0], Y[0])
    assert errors.CapacityDepleted is memory_pair.CapacityDepleted


def test_transitions_are_guarded():
    model, _, _, X, Y = calibrated(gamma_learn=1e-3)
    assert model.phase is Phase.LEARNING
    with pytest.raises(RuntimeError, match="calibration is over"):
        model.calibrate_step(X[0], Y[0])
    with pytest.raises(RuntimeError, match="LEARNING"):
        model.delete(X[0], Y[0])
    fresh = MemoryPair(D, PrivacyOdometer(1.0, 1e-5, 0.1))
    with pytest.raises(RuntimeError, match="CALIBRATION"):
        fresh.insert(X[0], Y[0])


@pytest.mark.slow
def test_it_learns():
    model, _, _, X, Y = calibrated()
    errors = [abs(model.insert(x, y) - y) for x, y in zip(X, Y, strict=True)]
    assert np.median(errors[-1000:]) < 0.5 * np.std(Y)
    c, C = model.lbfgs_bounds()
    assert 0 < c <= C < math.inf and len(model.lbfgs) == D


def test_metrics_of_section_eight():
    model, odometer, stats, X, Y = calibrated()
    odometer.finalize_with(stats, T_estimate=20_000)
    for x, y in zip(X[500:600], Y[500:600], strict=True):
        model.insert(x, y)
    found = model.metrics().to_dict()
    assert found["N_star_theory"] == stats["N_star"]
    assert found["m_theory"] == odometer.deletion_capacity
    assert found["sigma_step_theory"] == odometer.sigma_step
    assert found["gamma_priv"] == 5.0 and found["D_cap"] == 10.0
    assert math.isfinite(found["avg_regret_empirical"])


def test_the_mode_says_that_it_promises_nothing():
    model, odometer, stats, *_ = calibrated()
    odometer.finalize_with(stats, T_estimate=20_000)
    assert "nobody has proved" in odometer.entry.statement()
    assert model._inner.mode.theorem.scopes == ()


def test_the_short_names():
    for name in ("Calibrator", "MemoryPair", "Phase", "PrivacyOdometer"):
        assert hasattr(memory_pair, name)
    with pytest.raises(AttributeError, match="after finalize_with"):
        _ = PrivacyOdometer(1.0, 1e-5, 0.1).L
