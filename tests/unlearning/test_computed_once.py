"""A deletion is computed once where its noise does not enter the computation."""

import numpy as np
import pytest

from demur.unlearning import CapacityExhausted, MemoryPair, PrivacyOdometer
from demur.unlearning.models import OGD, Logistic, Ridge
from demur.unlearning.models import logistic as logistic_model
from demur.unlearning.models import ridge as ridge_model
from demur.unlearning.retrain.search import places_holding
from demur.unlearning.service.deletion import Deletions
from tests.unlearning.modes_kit import records
from tests.unlearning.service_kit import UnlearningService

WIDE = 40  # past 32 features ridge is solved by LAPACK


class RehearsesTwice(Deletions):
    """The twin: throws the rehearsal away and computes the deletion again."""

    def noised(self, payment, rehearsed, records, plan):
        copy = self._state.mode.copy()
        noise = None
        if plan.mechanism is not None:
            noise = plan.mechanism.apply(np.zeros(copy.dimension), payment.key)
        self._apply(copy, records, noise, plan.grid)
        return copy


class TwiceComputed(UnlearningService):
    _deletions = RehearsesTwice


def counted(monkeypatch, module, name):
    """How often a function was called since."""
    calls, real = [], getattr(module, name)

    def noted(*arguments, **more):
        calls.append(name)
        return real(*arguments, **more)

    monkeypatch.setattr(module, name, noted)
    return calls


def deleted_by_service(service_class, path, mode, count, **terms):
    """A service that has learned; deletes `count` records when called."""
    X, Y = records(60, WIDE, seed=1)
    service = service_class.open(
        path, mode=mode, dimension=WIDE, record_store="encrypted", **terms
    )
    service.insert_many(X, Y, record_ids=range(60))

    def delete():
        with service:
            for number in range(count):
                service.delete(number)

    return delete


def deleted_by_stream(mode, count):
    X, Y = records(60, WIDE, seed=1)
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=1e9)
    model = MemoryPair(WIDE, odometer, mode=mode)
    odometer.finalize_with(model.finalize_calibration(1.0), T_estimate=10**6)
    for number in range(60):
        model.insert(X[number], Y[number], record_id=f"r{number}")

    def delete():
        for number in range(count):
            model.delete(X[number], Y[number], record_id=f"r{number}")

    return delete


@pytest.mark.slow
def test_ridge_is_factorised_once_for_each_deletion(tmp_path, monkeypatch):
    delete = deleted_by_service(UnlearningService, tmp_path / "one.db", "ridge", 5)
    twin = deleted_by_service(TwiceComputed, tmp_path / "two.db", "ridge", 5)
    stream = deleted_by_stream(Ridge(WIDE), 5)
    for run, factorizations in ((delete, 5), (twin, 10), (stream, 5)):
        with monkeypatch.context() as patch:
            calls = counted(patch, ridge_model, "cho_factor")
            run()
        assert len(calls) == factorizations


@pytest.mark.slow
def test_logistic_takes_one_newton_step_for_each_deletion(tmp_path, monkeypatch):
    terms = {"epsilon": 1.0, "delta": 1e-6, "capacity": 9}
    terms |= {"Lambda": 5.0, "tolerance": 1e5}
    delete = deleted_by_service(
        UnlearningService, tmp_path / "one.db", "logistic", 3, **terms
    )
    twin = deleted_by_service(
        TwiceComputed, tmp_path / "two.db", "logistic", 3, **terms
    )
    stream = deleted_by_stream(Logistic(WIDE, Lambda=5.0, tolerance=1e5), 3)
    for run, steps in ((delete, 3), (twin, 6), (stream, 3)):
        with monkeypatch.context() as patch:
            calls = counted(patch, logistic_model.newton_kernels, "event")
            run()
        assert len(calls) == steps


@pytest.mark.parametrize("k", [1, 3])
def test_noise_afterwards_gives_the_same_bits(k):
    """`delete` with silent noise and then `publish`: what the rehearsal relies on."""
    X, Y = records(40, 6)
    at_once, after = (Logistic(6, Lambda=5.0, tolerance=1.0) for _ in range(2))
    noise = np.random.default_rng(0).normal(size=6)
    grid = 2.0**-30
    noise = np.rint(noise / grid) * grid
    for mode in (at_once, after):
        mode.fit(X, Y)
    rows, targets = X[:k], Y[:k]
    at_once.delete(rows, targets, noise, records=k, grid=grid)
    after.delete(rows, targets, np.zeros(6), records=k, grid=grid)
    after.publish(noise, grid=grid)
    assert at_once.digest() == after.digest()
    assert np.array_equal(at_once.published(), after.published())


def test_a_mode_that_noises_its_state_is_computed_with_its_noise():
    """Descent projects after the noise: adding it later gives another model."""
    at_once, after = (OGD(3, radius=0.4, lam=0.3) for _ in range(2))
    noise = np.array([0.5, -0.5, 1.0])
    for mode in (at_once, after):
        mode.insert_many(np.eye(3), np.ones(3))
    at_once.delete(noise=noise)
    after.delete(noise=np.zeros(3))
    assert not np.array_equal(at_once.published(), after.published() + noise)


@pytest.mark.parametrize("make", [Ridge, lambda d: Logistic(d, tolerance=1e5)])
def test_nothing_of_the_record_is_left_where_the_result_was_taken_over(make):
    """The model in use takes over the copy's state; its own work space is cleared."""
    X, Y = records(30, 8, seed=4)
    X[-1] /= np.linalg.norm(X[-1])
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=1e9)
    model = MemoryPair(8, odometer, mode=make(8))
    odometer.finalize_with(model.finalize_calibration(1.0), T_estimate=10**6)
    for number in range(30):
        model.insert(X[number], Y[number], record_id=f"r{number}")
    assert places_holding(model.mode, X[-1]), "the last row is in use"
    model.delete(X[-1], Y[-1], record_id="r29")
    assert not places_holding(model.mode, X[-1])


def test_a_deletion_that_cannot_be_made_is_not_paid_for(tmp_path):
    X, Y = records(60, WIDE, seed=1)
    with UnlearningService.open(
        tmp_path / "model.db",
        mode="logistic",
        dimension=WIDE,
        epsilon=1.0,
        delta=1e-6,
        capacity=9,
        tolerance=1e-9,
    ) as service:
        service.insert_many(X, Y, record_ids=range(60))
        with pytest.raises(CapacityExhausted, match="Nothing was spent"):
            service.delete(0, X[0], Y[0])
        assert service.status().used == 0 and not service.ledger.entries()
