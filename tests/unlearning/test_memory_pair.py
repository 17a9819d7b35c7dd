"""The state machine: phases, ids, what is spent when, and what a deletion does."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest

from demur.compat import memory_pair as compat
from demur.core.adjacency import Erasure
from demur.core.errors import NotPaidFor
from demur.ledger import Budget, Draw, Ledger
from demur.unlearning import (
    Calibrator,
    CapacityExhausted,
    DriftDetector,
    EarlyPrediction,
    Hooks,
    IllegalTransition,
    MemoryPair,
    Phase,
    PrivacyOdometer,
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    RecordUsedInCalibration,
    UnknownRecord,
    make_mode,
)
from demur.unlearning.stream.losses import best_in_hindsight

DIM = 4
MODES = ["ogd", "ridge", "logistic", "seed"]
CONFIG = {
    "ogd": {"radius": 1.0},
    "ridge": {},
    "logistic": {"Lambda": 50.0, "tolerance": 0.01},
    "seed": {},
}


def data(n, seed=0, labels=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, DIM))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Y = X @ np.array([0.5, -0.3, 0.2, 0.1]) + 0.05 * rng.normal(size=n)
    return X, (Y > 0).astype(float) if labels else Y


def _learned(X, Y, count):
    rows = np.arange(count) % len(X)
    return X[rows], Y[rows]


def of(mode):
    return data(600, labels=mode == "logistic")


def pair(mode="ogd", *, odometer=None, **options):
    formula = "seed" if mode == "seed" else "consistent"
    odometer = odometer or PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0, formula=formula)
    return MemoryPair(DIM, odometer, mode=mode, **(CONFIG[mode] | options))


def ready(
    mode="ogd", *, T=100_000, named=False, renewed=True, odometer=None, **options
):
    """A model in INTERLEAVING with 300 records learned, its odometer finalised."""
    model = pair(mode, odometer=odometer, **options)
    X, Y = of(mode)
    for i in range(50):
        model.calibrate_step(X[i], Y[i], f"c{i}" if named else None)
    stats = model.finalize_calibration(1.0)
    for i in range(50, 300):
        model.insert(X[i], Y[i], f"r{i}" if named else None)
    if mode == "logistic" and renewed:
        model.renew(X[:300], Y[:300])
    model.odometer.finalize_with(stats, T_estimate=T)
    assert model.phase is Phase.INTERLEAVING and model.odometer.ready_to_delete
    return model


# -- phases ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_whole_way(mode):
    model = pair(mode)
    X, Y = of(mode)
    assert model.phase.name == "CALIBRATION" and model.N_star is None
    for i in range(40):
        model.calibrate_step(X[i], Y[i])
    gamma = 0.02 if mode != "ridge" else 0.01
    stats = model.finalize_calibration(gamma_learn=gamma)
    assert model.N_star == stats.N_star >= 1
    at = 40
    while not model.ready_to_predict:
        assert model.phase is Phase.LEARNING and not model.can_predict
        assert model.inserts_seen < model.N_star
        model.insert(X[at % 600], Y[at % 600])
        at += 1
    assert model.phase is Phase.INTERLEAVING and model.can_predict
    assert model.inserts_seen == max(model.N_star, 40)
    model.odometer.finalize_with(stats, T_estimate=100_000)
    before = model.odometer.capacity_remaining
    if mode == "logistic":
        model.renew(*_learned(X, Y, at))
    last = (at - 1) % 600
    if mode == "seed" and at == 40:
        last = 599  # a record of calibration is refused there
    model.delete(X[last], Y[last])
    assert model.odometer.capacity_remaining == before - 1
    assert (model.deletes_seen, model.events_seen) == (1, model.inserts_seen + 1)


def test_n_star_that_is_reached_already_counts_at_once():
    model = pair()
    X, Y = of("ogd")
    for i in range(40):
        model.calibrate_step(X[i], Y[i])
    model.finalize_calibration(1.0)
    assert model.N_star <= 40 and model.phase is Phase.INTERLEAVING


def test_illegal_acts_change_nothing():
    model = pair()
    X, Y = of("ogd")
    for act in (
        lambda: model.insert(X[0], Y[0]),
        lambda: model.insert_many(X, Y),
        lambda: model.delete(X[0], Y[0]),
        lambda: model.delete_many(["a"]),
        lambda: model.recalibrate(),
    ):
        with pytest.raises(IllegalTransition, match="not allowed in phase CALIBRATION"):
            act()
    assert model.events_seen == 0
    for i in range(40):
        model.calibrate_step(X[i], Y[i])
    model.finalize_calibration(0.001)
    digest = model.mode.digest()
    for act in (
        lambda: model.calibrate_step(X[0], Y[0]),
        lambda: model.finalize_calibration(0.5),
        lambda: model.delete(X[0], Y[0]),
    ):
        with pytest.raises(IllegalTransition, match="in phase LEARNING"):
            act()
    assert model.mode.digest() == digest and model.events_seen == 40
    assert model.phase is Phase.LEARNING
    assert issubclass(IllegalTransition, RuntimeError)


def test_delete_before_the_odometer_is_finalised():
    model = pair()
    X, Y = of("ogd")
    for i in range(40):
        model.calibrate_step(X[i], Y[i])
    model.finalize_calibration(1.0)
    with pytest.raises(CapacityExhausted, match="not finalised"):
        model.delete(X[0], Y[0])


@pytest.mark.parametrize("policy", ["flag", "withhold"])
def test_early_predictions(policy):
    model = pair(predictions=policy)
    X, Y = of("ogd")

    def early(made):
        if policy == "withhold":
            return made is None
        return isinstance(made, EarlyPrediction)

    assert all(early(model.calibrate_step(X[i], Y[i])) for i in range(40))
    model.finalize_calibration(0.005)
    assert 60 < model.N_star < 5000
    assert early(model.predict(X[0]))
    while not model.ready_to_predict:
        i = model.inserts_seen % 600
        assert early(model.insert(X[i], Y[i]))
    for made in (model.insert(X[0], Y[0]), model.predict(X[0])):
        assert type(made) is float


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["flag", "withhold"])
def test_many_are_like_one_by_one(mode, policy):
    X, Y = of(mode)
    one, many = pair(mode, predictions=policy), pair(mode, predictions=policy)
    for model in (one, many):
        for i in range(40):
            model.calibrate_step(X[i], Y[i])
        model.finalize_calibration(0.05)
        model.N_star = 100
    slow = [one.insert(x, y) for x, y in zip(X[40:], Y[40:], strict=True)]
    fast = many.insert_many(X[40:], Y[40:])
    expected = [math.nan if p is None else float(p) for p in slow]
    np.testing.assert_array_equal(fast, expected)
    assert one.mode.digest() == many.mode.digest()
    assert one.phase is many.phase and one.inserts_seen == many.inserts_seen


# -- input -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([math.nan, 0, 0, 0], 1.0),
        ([math.inf, 0, 0, 0], 1.0),
        ([0.1, 0.1, 0.1], 1.0),
        (["a", "b", "c", "d"], 1.0),
        ([0.1, 0.1, 0.1, 0.1], math.nan),
        ([0.1, 0.1, 0.1, 0.1], "one"),
        ([], 1.0),
    ],
)
def test_bad_records_change_nothing(mode, x, y):
    model = ready(mode)
    digest, seen = model.mode.digest(), model.events_seen
    left = model.odometer.capacity_remaining
    with pytest.raises((ValueError, TypeError)):
        model.insert(x, y)
    with pytest.raises((ValueError, TypeError)):
        model.delete(x, y)
    assert model.mode.digest() == digest and model.events_seen == seen
    assert model.odometer.capacity_remaining == left
    assert model.odometer._payment.reservation.drawn == 0


def test_bad_options():
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1)
    with pytest.raises(ValueError, match="predictions must be"):
        MemoryPair(3, odometer, predictions="hide")
    with pytest.raises(ValueError, match="calibration_records must be"):
        MemoryPair(3, odometer, calibration_records="drop")
    with pytest.raises(ValueError, match="mode must be one of"):
        MemoryPair(3, odometer, mode="magic")
    with pytest.raises(ValueError, match="lam is 0.2 here"):
        MemoryPair(3, odometer, lam=0.2)
    with pytest.raises(TypeError, match="kapa"):
        MemoryPair(3, odometer, kapa=1.0)
    with pytest.raises(ValueError, match="4 features"):
        MemoryPair(3, odometer, mode=make_mode("ogd", 4))
    with pytest.raises(ValueError, match="comparator"):
        MemoryPair(3, odometer, comparator=[1.0, math.nan, 0.0])
    with pytest.raises(ValueError, match="dimension"):
        MemoryPair(0, odometer)
    with pytest.raises(TypeError, match="odometer must be a PrivacyOdometer"):
        MemoryPair(3, "ledger.db")
    with pytest.raises(TypeError, match="calibrator must be a Calibrator"):
        MemoryPair(3, odometer, compat.Calibrator())
    with pytest.raises(TypeError, match="calibrator must be a Calibrator"):
        compat.MemoryPair(3, compat.PrivacyOdometer(1.0, 1e-5, 0.1), Calibrator())


# -- ids and subjects --------------------------------------------------------------


def test_ids():
    model = ready(named=True)
    X, Y = of("ogd")
    with pytest.raises(RecordExists, match="r60"):
        model.insert(X[0], Y[0], record_id="r60")
    with pytest.raises(UnknownRecord, match="nobody"):
        model.delete(record_id="nobody")
    model.delete(record_id="r60")
    with pytest.raises(UnknownRecord):
        model.delete(record_id="r60")
    assert model.deletes_seen == model.odometer.deletions_made == 1
    model.insert(X[0], Y[0], record_id="r60")  # a new life
    with pytest.raises(TypeError, match="record_id="):
        model.delete()
    with pytest.raises(ValueError, match="together"):
        model.delete(X[0])
    with pytest.raises(TypeError, match="record_id="):
        model.delete("r61")


@pytest.mark.parametrize("hooks", [None, Hooks()])
def test_ids_in_an_array_are_ids(hooks):
    """An array has no truth value: rows must not be learned without their ids."""
    model = ready("ridge", hooks=hooks)
    X, Y = of("ridge")
    ids = np.array(["a", "b", "c"])
    model.insert_many(X[300:303], Y[300:303], ids)
    assert model.inserts_seen == 303 and len(model.registry) == 3
    model.delete(X[301], Y[301], record_id="b")
    model.delete_many(ids[[0, 2]], X[[300, 302]], Y[[300, 302]])
    assert len(model.registry) == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_a_mask_hides_is_not_learned(mode):
    model = ready(mode)
    X, Y = of(mode)
    before = model.mode.digest()
    hidden = np.ma.masked_greater(X[300:302], -2.0)
    for act in (
        lambda: model.insert(hidden[0], Y[300]),
        lambda: model.insert_many(hidden, Y[300:302]),
        lambda: model.delete(hidden[0], Y[300]),
        lambda: model.insert([10**400] * DIM, Y[300]),
        lambda: model.insert(X[300] * 1j, Y[300]),
    ):
        with pytest.raises(ValueError, match="real numbers"):
            act()
    assert model.mode.digest() == before and model.inserts_seen == 300


def test_by_content_only_as_many_as_came_without_an_id():
    model = ready(named=True)
    X, Y = of("ogd")
    with pytest.raises(UnknownRecord, match="0 live"):
        model.delete(X[60], Y[60])
    model.insert(X[400], Y[400])
    model.delete(X[400], Y[400])
    with pytest.raises(UnknownRecord):
        model.delete(X[400], Y[400])


@pytest.mark.parametrize("mode", ["ridge", "logistic", "seed"])
def test_modes_that_need_the_record(mode):
    model = ready(mode, named=True)
    X, Y = of(mode)
    with pytest.raises(RecordNeeded, match="Nothing was spent"):
        model.delete(record_id="r60")
    assert model.odometer.deletions_made == 0
    model.delete(X[60], Y[60], record_id="r60")
    assert model.odometer.deletions_made == 1
    with pytest.raises(ValueError, match="2 were"):
        model.delete(X[61:63], Y[61:63], record_id="r61")


def test_a_subjects_records_sum_their_shifts(monkeypatch):
    model = ready()
    X, Y = of("ogd")
    for i in range(3):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    drawn = []
    plain = model.odometer.noise

    def noted(draw, shift, dimension, **request):
        drawn.append(shift)
        return plain(draw, shift, dimension, **request)

    monkeypatch.setattr(model.odometer, "noise", noted)
    bounds = [model.mode.shift_bound(k) for k in (1, 3)]
    assert bounds[1] == pytest.approx(3 * bounds[0], rel=1e-6)
    model.delete(subject_id="Ada")
    assert drawn == [bounds[1]]
    assert model.odometer.deletions_made == 1, "one request, one draw"
    assert not any(f"p{i}" in model.registry for i in range(3))
    with pytest.raises(UnknownRecord):
        model.delete(subject_id="Ada")
    with pytest.raises(ValueError, match="record_id must be given"):
        model.insert(X[0], Y[0], subject_id="Ada")


def one_request():
    """An odometer under which every subject asks once."""
    return PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0, requests_per_subject=1)


def test_later_requests_of_a_subject_get_more_noise_and_more_of_the_capacity():
    X, Y = of("ogd")
    model = ready()
    odometer = model.odometer
    for i in range(4):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    left, spent = odometer.capacity_remaining, []
    for number in range(1, 4):
        model.delete(record_id=f"p{number}")
        assert odometer.multiplier(number) == pytest.approx(number * odometer.z)
        left -= number**2
        assert odometer.capacity_remaining == left
        spent.append(odometer.epsilon_spent)
    assert spent == sorted(spent) and spent[-1] < 1.0
    assert odometer.deletions_made == 3 and odometer.capacity_used == 14
    model.insert(X[5], Y[5], record_id="q", subject_id="Bob")
    model.delete(record_id="q")
    assert odometer.epsilon_spent == spent[-1], "another person's first request"


def test_a_later_request_that_the_capacity_does_not_hold_is_refused():
    X, Y = of("ogd")
    model = ready()
    for i in range(2):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    model.delete(record_id="p0")
    model.odometer.deletion_capacity = 1 + 3
    digest = model.mode.digest()
    with pytest.raises(CapacityExhausted, match="4 more asked for: regret"):
        model.delete(record_id="p1")
    assert model.mode.digest() == digest and model.odometer.deletions_made == 1


def test_a_subjects_second_request_needs_a_promise_for_two():
    X, Y = of("ogd")
    model = ready(odometer=one_request())
    for i in range(2):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    model.delete(record_id="p0")
    with pytest.raises(CapacityExhausted, match="requests_per_subject") as refused:
        model.delete(record_id="p1")
    assert refused.value.reason == "privacy"
    assert model.odometer.deletions_made == 1 and "p1" in model.registry

    odometer = PrivacyOdometer(
        1.0, 1e-5, 0.1, gamma=2.0, requests_per_subject=2, accounting="zcdp"
    )
    model = ready(odometer=odometer)
    for i in range(2):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    model.delete(record_id="p0")
    model.delete(record_id="p1", subject_id="Ada")
    with pytest.raises(UnknownRecord, match="does not belong"):
        model.insert(X[0], Y[0], record_id="q", subject_id="Bob")
        model.delete(record_id="q", subject_id="Ada")


def test_a_record_that_comes_back_without_a_name_is_still_its_subjects():
    model = ready(odometer=one_request())
    X, Y = of("ogd")
    model.insert(X[0], Y[0], record_id="a", subject_id="Ada")
    model.delete(record_id="a")
    model.insert(X[0], Y[0], record_id="a")
    with pytest.raises(CapacityExhausted, match="requests"):
        model.delete(record_id="a")
    assert model.odometer.deletions_made == 1


def test_a_subject_and_a_record_of_the_same_name_are_two_persons():
    model = ready()
    X, Y = of("ogd")
    model.insert(X[0], Y[0], record_id="7")
    model.insert(X[1], Y[1], record_id="8", subject_id="7")
    model.delete(record_id="7")
    model.delete(subject_id="7")
    assert model.deletes_seen == 2


@pytest.mark.parametrize("mode", ["ridge", "logistic"])
def test_another_record_than_the_one_learned_is_refused(mode):
    model = ready(mode, named=True)
    X, Y = of(mode)
    model.insert_many(X[300:305], Y[300:305], [f"m{i}" for i in range(5)])
    for i, name in ((5, "c5"), (60, "r60"), (302, "m2")):
        digest = model.mode.digest()
        for x, y in ((X[i + 1], Y[i]), (X[i], 1.0 - Y[i])):
            with pytest.raises(RecordMismatch, match=f"{name}.*Nothing was spent"):
                model.delete(x, y, record_id=name)
            with pytest.raises(RecordMismatch):
                ids = [name, "r70"]
                model.delete_many(ids, [x, X[70]], [y, Y[70]])
        assert model.mode.digest() == digest and model.odometer.deletions_made == 0
    if mode == "logistic":
        model.renew(X[:305], Y[:305])
    model.delete((X[60] + 0.0).tolist(), Y[60], record_id="r60")
    assert model.deletes_seen == 1


def test_several_deletions_keep_what_each_subject_may_ask_for():
    X, Y = of("ogd")
    model = ready(odometer=one_request())
    for i in range(2):
        model.insert(X[i], Y[i], record_id=f"p{i}", subject_id="Ada")
    digest = model.mode.digest()
    with pytest.raises(CapacityExhausted, match="requests_per_subject"):
        model.delete_many(["p0", "p1"])
    assert model.mode.digest() == digest and model.odometer.deletions_made == 0
    assert "p0" in model.registry
    model.delete_many(["p0"])


def test_several_deletions_or_none():
    model = ready(named=True, T=2000)
    left = model.odometer.capacity_remaining
    digest = model.mode.digest()
    for ids in (
        ["r60", "nobody"],
        ["r60", "r60"],
        [f"r{i}" for i in range(60, 60 + left + 1)] if left < 200 else ["x"],
    ):
        with pytest.raises((UnknownRecord, ValueError, CapacityExhausted)):
            model.delete_many(ids)
    assert model.mode.digest() == digest
    assert model.odometer.capacity_remaining == left
    model.delete_many(["r60", "r61", "r62"])
    assert model.odometer.capacity_remaining == left - 3


# -- what a deletion does ----------------------------------------------------------


@pytest.mark.slow
def test_ridge_deletion_is_the_replay():
    X, Y = of("ridge")
    model = ready("ridge", named=True)
    ids = [f"r{i}" for i in range(60, 160)]
    model.delete_many(ids, X[60:160], Y[60:160])
    replay = make_mode("ridge", DIM)
    replay.insert_many(
        np.vstack([X[:60], X[160:300]]), np.concatenate([Y[:60], Y[160:300]])
    )
    assert model.mode.digest() == replay.digest()
    assert model.odometer.epsilon_spent == 0.0


@pytest.mark.slow
def test_ogd_noise_has_the_deviation_of_its_shift():
    """Over many models: the weights move by N(0, (z shift)^2) and no more."""
    moves, expected = [], 0.0
    dimension = 400
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, dimension)) / math.sqrt(dimension)
    for _ in range(12):
        odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=5.0)
        model = MemoryPair(dimension, odometer, radius=10.0)
        model.finalize_calibration(1.0)
        model.insert_many(X, X[:, 0])
        odometer.finalize_with(model.stats, T_estimate=10**6)
        before = model.theta
        model.delete(X[0], X[0, 0])
        moves.append(model.theta - before)
        expected = odometer.z * model.mode.shift_bound()
    values = np.concatenate(moves)
    found = math.sqrt(float(np.mean(values**2)))
    wide = 6.0 / math.sqrt(2 * values.size)
    assert found == pytest.approx(expected, rel=wide)
    assert found != pytest.approx(expected / 2, rel=5 * wide), "half would be seen"


def acts_of(model, forget):
    """In which order a deletion spends, draws and changes the model."""
    acts = []

    def noted(name, act):
        def run(*args, **kwargs):
            acts.append((name, model.odometer._payment.reservation.drawn))
            return act(*args, **kwargs)

        return run

    model.odometer.spend = noted("spend", model.odometer.spend)
    model.odometer.noise = noted("noise", model.odometer.noise)
    model.mode.delete = noted("state", model.mode.delete)
    model.mode.restore = noted("state", model.mode.restore)
    forget(model)
    return acts


@pytest.mark.parametrize("mode", ["ogd", "logistic", "ridge"])
def test_the_state_changes_after_the_draw(mode):
    """Whether the noise enters the computation (ogd), ends it, or there is none."""
    X, Y = of(mode)
    acts = acts_of(ready(mode), lambda model: model.delete(X[200], Y[200]))
    noise = [] if mode == "ridge" else [("noise", 1)]
    assert acts == [("spend", 0), *noise, ("state", 1)]


def test_spend_then_noise_then_state():
    X, Y = of("ogd")
    right = [("spend", 0), ("noise", 1), ("state", 1)]

    def forget(model):
        model.delete(X[200], Y[200])

    def sabotaged(model):  # draws first, and would pay when it is done
        draw = Draw(model.odometer._payment.entry, 0)
        noise = model.odometer.noise(draw, model.mode.shift_bound(), DIM)
        model.mode.delete(None, None, noise.values, grid=noise.grid)
        model.odometer.spend()

    assert acts_of(ready(), forget) == right
    with pytest.raises(NotPaidFor, match="has not been taken"):
        acts_of(ready(), sabotaged)


@pytest.mark.parametrize("mode", ["ogd", "logistic", "seed"])
def test_a_failure_after_the_draw_leaves_it_spent(mode, monkeypatch):
    model = ready(mode)
    X, Y = of(mode)

    def broken(draw, shift, dimension):
        raise MemoryError

    monkeypatch.setattr(model.odometer, "noise", broken)
    digest = model.mode.digest()
    with pytest.raises(MemoryError):
        model.delete(X[200], Y[200])
    assert (
        model.odometer.deletions_made == 1 == model.odometer._payment.reservation.drawn
    )
    assert model.mode.digest() == digest and model.deletes_seen == 0


def test_a_used_up_certificate_refuses_before_it_spends():
    model = ready("logistic", Lambda=1.0, tolerance=1e-3, renewed=False)
    X, Y = of("logistic")
    digest = model.mode.digest()
    with pytest.raises(CapacityExhausted) as refused:
        for i in range(200, 300):
            model.delete(X[i], Y[i])
    assert refused.value.reason == "numeric"
    assert model.odometer.deletions_made == model.deletes_seen
    if model.deletes_seen == 0:
        assert model.mode.digest() == digest


@pytest.mark.parametrize("mode", ["ogd", "logistic"])
def test_weights_that_no_grid_holds_are_refused_before_it_spends(mode, monkeypatch):
    """Noise so fine that float64 cannot add it to the weights."""
    model = ready(mode)
    X, Y = of(mode)
    digest = model.mode.digest()
    monkeypatch.setattr(model.odometer, "check_shift", lambda *_, **__: 2.0**-80)
    with pytest.raises(ValueError, match="too large for this grid"):
        model.delete(X[200], Y[200])
    assert model.odometer._payment.reservation.drawn == 0 and model.deletes_seen == 0
    assert model.mode.digest() == digest


def test_a_copy_that_no_grid_holds_is_refused_before_it_spends():
    model = ready("logistic", tolerance=1e-11)
    with pytest.raises(ValueError, match="too large for this grid"):
        model.publish()
    assert model.odometer._payment.reservation.drawn == 0


@pytest.mark.slow
def test_renewal_makes_room():
    model = ready("logistic", Lambda=20.0, tolerance=2e-3)
    X, Y = of("logistic")
    live = list(range(300))
    done = 0
    for i in range(250, 290):
        try:
            model.delete(X[i], Y[i])
        except CapacityExhausted as error:
            assert error.reason == "numeric"
            model.renew(X[live], Y[live])
            model.delete(X[i], Y[i])
            done += 1
        live.remove(i)
    assert done >= 1 and model.deletes_seen == 40
    with pytest.raises(TypeError, match="no certificate"):
        ready("ogd").renew(X, Y)


def test_publishing_costs_a_draw_where_the_copy_is_noised():
    model = ready("logistic")
    left = model.odometer.capacity_remaining
    before = model.theta
    model.publish()
    assert model.odometer.capacity_remaining == left - 1
    assert not np.array_equal(model.theta, before)
    other = ready("ogd")
    other.publish()
    assert other.odometer.deletions_made == 0


@pytest.mark.slow
def test_exhaustion_stops_a_stream_cleanly():
    model = ready(odometer=PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0), T=300)
    X, Y = of("ogd")
    done = 0
    while model.odometer.ready_to_delete:
        model.delete(X[done], Y[done])
        done += 1
    assert 0 < done == model.odometer.deletion_capacity < 250
    with pytest.raises(CapacityExhausted) as refused:
        model.delete(X[done], Y[done])
    assert refused.value.reason == "regret" and refused.value.retrain_required
    model.insert(X[0], Y[0])  # it goes on learning


def test_a_durable_ledger_holds_every_deletion(tmp_path):
    budgets = {Erasure(): Budget(1.0, 1e-5)}
    with Ledger.open(tmp_path / "b.db", dataset="d", budgets=budgets) as ledger:
        odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=2.0, ledger=ledger)
        model = ready(odometer=odometer, named=True)
        for i in range(100, 105):
            model.delete(record_id=f"r{i}")
        tip = ledger.tip()
    with Ledger.open(tmp_path / "b.db", tip=tip) as again:
        assert again.verify(tip).ok
        assert again.status()[0].spent_epsilon == pytest.approx(1.0, abs=1e-12)
        assert tip.sequence == 2 + 5


# -- calibration records -----------------------------------------------------------


def two_worlds(changed):
    """The same stream, calibration record 20 once as it is and once another."""
    X, Y = of("ogd")
    X = X.copy()
    if changed:
        X[20] = -X[20]
    model = pair()
    for i in range(50):
        model.calibrate_step(X[i], Y[i], f"c{i}")
    stats = model.finalize_calibration(0.5)
    model.odometer.finalize_with(stats, T_estimate=100_000)
    model.delete(record_id="c20")
    return model


def test_a_deleted_calibration_record_leaves_no_trace_in_the_constants():
    here, there = two_worlds(False), two_worlds(True)
    assert here.stats == there.stats and here.N_star == there.N_star
    assert here.calibrator.grad_norms == there.calibrator.grad_norms
    for a, b in zip(here.calibrator.thetas, there.calibrator.thetas, strict=True):
        np.testing.assert_array_equal(a, b)
    assert here.calibrator.observations == 20
    assert here.odometer.plan == there.odometer.plan, "noise is sized by no record"


def test_dropping_that_observation_alone_would():
    """The twin: later gradients and parameters still tell of the record."""
    X, Y = of("ogd")
    found = []
    for changed in (False, True):
        rows = X.copy()
        rows[20] = -rows[20] if changed else rows[20]
        model = pair()
        for i in range(50):
            model.calibrate_step(rows[i], Y[i])
        del model.calibrator.grad_norms[20], model.calibrator.thetas[20]
        found.append(model.calibrator.finalize(0.5))
    assert found[0] != found[1]


def test_by_content_a_calibration_record_is_recognised():
    model = ready()
    X, Y = of("ogd")
    model.delete(X[30], Y[30])
    assert model.calibrator.observations == 30
    model.delete(X[200], Y[200])
    assert model.calibrator.observations == 30


@pytest.mark.slow
def test_records_that_sized_the_noise_cannot_be_deleted():
    model = ready("seed", named=True)
    X, Y = of("seed")
    with pytest.raises(RecordUsedInCalibration, match="Nothing was spent"):
        model.delete(X[3], Y[3], record_id="c3")
    assert model.odometer.deletions_made == 0
    model.delete(X[60], Y[60], record_id="r60")
    lenient = ready("seed", named=True, calibration_records="keep")
    lenient.delete(X[3], Y[3], record_id="c3")


# -- hooks -------------------------------------------------------------------------


def test_hooks_hear_every_phase_and_event():
    heard = []
    hooks = Hooks()
    hooks.on("*", heard.append)
    model = pair(hooks=hooks)
    X, Y = of("ogd")
    for i in range(5):
        model.calibrate_step(X[i], Y[i], f"c{i}")
    stats = model.finalize_calibration(1.0)
    while not model.ready_to_predict:
        model.insert(X[9], Y[9])
    model.insert(X[10], Y[10], "r")
    model.odometer.finalize_with(stats, 10**6)
    model.delete(record_id="r")
    kinds = [h.kind for h in heard]
    assert kinds[:6] == ["calibrate"] * 5 + ["phase"]
    assert kinds.count("phase") == 2 and kinds[-2:] == ["insert", "delete"]
    moves = [(h.before, h.phase) for h in heard if h.kind == "phase"]
    assert moves == [
        (Phase.CALIBRATION, Phase.LEARNING),
        (Phase.LEARNING, Phase.INTERLEAVING),
    ]
    assert heard[-1].record_id == "r" and heard[-1].deletes_seen == 1
    with pytest.raises(ValueError, match="kind must be"):
        hooks.on("insertion", heard.append)
    with pytest.raises(TypeError, match="callable"):
        hooks.on("insert", None)


def test_a_hook_that_comes_late_is_heard():
    model = ready()
    heard = []
    X, Y = of("ogd")
    model.insert(X[0], Y[0])
    model.on("insert", heard.append)
    model.insert(X[0], Y[0])
    assert len(heard) == 1


def test_the_act_stands_when_a_hook_fails():
    model = ready(named=True)

    def broken(happened):
        raise OSError("the network is down")

    model.on("delete", broken)
    with pytest.raises(OSError, match="network"):
        model.delete(record_id="r60")
    assert model.deletes_seen == 1 and "r60" not in model.registry


# -- metrics -----------------------------------------------------------------------


def test_metrics_have_the_seeds_names():
    X, Y = of("ogd")
    model = ready(metrics=True)
    found = model.metrics().to_dict()
    seeds = """N_star_theory m_theory eps_step_theory delta_step_theory
        sigma_step_theory G_hat D_hat c_hat C_hat avg_regret_empirical phase eps_spent
        capacity_remaining gamma_learn gamma_priv quantile D_cap""".split()
    assert set(seeds) <= set(found)
    assert found["phase"] == "INTERLEAVING" and found["quantile"] == 0.95
    assert found["m_theory"] == found["capacity_remaining"]
    quiet = ready().metrics()
    assert quiet.avg_regret_empirical is None and quiet.G_hat is not None
    assert pair().metrics().N_star_theory is None


def test_empirical_regret_by_hand_and_under_its_bound():
    X, Y = of("ogd")
    model = pair()
    u = best_in_hindsight(model._loss, X, Y)
    model = ready(metrics=True, comparator=u)
    for i in range(300, 600):
        model.insert(X[i], Y[i])
    replay = make_mode("ogd", DIM, lam=0.1, radius=1.0)
    total = 0.0
    for x, y in zip(X, Y, strict=True):
        w = replay.published()
        for point, sign in ((w, 1), (u, -1)):
            gap = abs(point @ x - y)
            loss = gap**2 / 2 if gap <= 1 else gap - 0.5
            total += sign * (loss + 0.05 * point @ point)
        replay.insert(x, float(y))
    found = model.metrics()
    assert found.avg_regret_empirical == pytest.approx(total / 600, rel=1e-9)
    assert 0 < found.avg_regret_empirical <= found.avg_regret_theory
    other = ready(metrics=True, comparator=u + 0.3)
    assert (
        other.metrics().avg_regret_empirical
        < ready(metrics=True, comparator=u).metrics().avg_regret_empirical
    )


@pytest.mark.slow
def test_best_in_hindsight_beats_its_neighbours():
    for mode in ("ogd", "logistic", "seed"):
        X, Y = of(mode)
        loss = pair(mode)._loss
        u = best_in_hindsight(loss, X, Y)

        def total(v, loss=loss, X=X, Y=Y):
            rows = zip(X, Y, strict=True)
            each = [loss.value(loss.of_score(float(v @ x)), y) for x, y in rows]
            return float(np.mean(each)) + loss.penalty(v)

        rng = np.random.default_rng(0)
        for _ in range(20):
            assert total(u) <= total(u + 0.05 * rng.normal(size=DIM))


@pytest.mark.slow
def test_lbfgs_bounds():
    assert ready("ogd").lbfgs_bounds() == (1.0, 1.0)
    c, C = ready("seed").lbfgs_bounds()
    assert 0 < c <= C and (c, C) != (1.0, 1.0)
    assert pair("seed").lbfgs_bounds() == (1.0, 1.0)


def test_the_calibrator_is_the_callers():
    calibrator = Calibrator(quantile=0.5, D_cap=0.01)
    model = MemoryPair(DIM, PrivacyOdometer(1.0, 1e-5, 0.1), calibrator)
    X, Y = of("ogd")
    for i in range(30):
        model.calibrate_step(X[i], Y[i])
    assert model.finalize_calibration(0.1).D == 0.01
    assert model.calibrator is calibrator


def test_watching_does_not_change_the_model():
    X, Y = of("ogd")
    plain, watched = ready(), ready(metrics=True, drift=DriftDetector(50))
    for i in range(300, 600):
        assert plain.insert(X[i], Y[i]) == watched.insert(X[i], Y[i])
    assert plain.mode.digest() == watched.mode.digest()


# -- threads -----------------------------------------------------------------------


@pytest.mark.slow
def test_threads_wait_for_each_other():
    """Ridge sums integers, so any lost update would show in the digest."""
    X, Y = of("ridge")
    model = ready("ridge")
    rounds = 4

    def learn(part):
        for _ in range(rounds):
            for i in range(part, 100, 4):
                model.insert(X[300 + i], Y[300 + i])
                model.delete(X[300 + i], Y[300 + i])
                model.insert(X[300 + i], Y[300 + i])

    before = model.inserts_seen
    threads = [threading.Thread(target=learn, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replay = make_mode("ridge", DIM)
    replay.insert_many(X[:300], Y[:300])
    for _ in range(rounds):
        replay.insert_many(X[300:400], Y[300:400])
    assert model.inserts_seen == before + 2 * rounds * 100
    assert model.deletes_seen == model.odometer.deletions_made == rounds * 100
    assert model.mode.digest() == replay.digest()


def test_a_hook_may_act_in_turn():
    model = ready(named=True)
    X, Y = of("ogd")
    model.on("delete", lambda happened: model.insert(X[0], Y[0]))
    before = model.inserts_seen
    model.delete(record_id="r60")
    assert model.inserts_seen == before + 1


def test_a_copy_would_be_a_second_budget():
    for model in (pair(), ready()):
        for act in (copy.deepcopy, pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="second budget"):
                act(model.odometer)
        for act in (copy.deepcopy, pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="share its budget"):
                act(model)


# -- the statement -----------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_statement_names_theorem_scope_and_what_is_not_covered(mode):
    text = ready(mode).statement()
    assert make_mode(mode, DIM).theorem.id in text
    for line in (
        "predictions and states published before the deletion are not covered",
        "deletion requests and later inserts must not depend on published outputs",
        "that something was deleted, and when, is not hidden",
    ):
        assert line in text
    promise = {
        "ogd": "one person's deleted records, up to epsilon 1 and delta 1e-05",
        "logistic": "(scope 'subject', accounting 'gdp')",
        "ridge": "Epsilon is 0",
        "seed": "Nothing is certified",
    }
    assert promise[mode] in text and "in memory only" in text


def test_the_statement_of_joint_scope():
    odometer = PrivacyOdometer(
        1.0, 1e-5, 0.1, gamma=2.0, scope="joint", accounting="zcdp"
    )
    assert "never saw any deleted record" in ready(odometer=odometer).statement()


@pytest.mark.slow
@pytest.mark.parametrize("read", [lambda m: m.predict(np.ones(DIM)), lambda m: m.theta])
def test_nobody_reads_a_model_in_the_middle_of_an_act(read):
    """`ridge` solves when it is asked: half-way through a deletion it would keep the
    weights from before.
    """
    model = ready("ridge")
    reader = threading.Thread(target=read, args=(model,))
    with model._lock:
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join(10)
    assert not reader.is_alive()


def test_metrics_before_the_first_record():
    model = pair()
    stats = model.finalize_calibration(1.0)
    model.odometer.finalize_with(stats, T_estimate=100_000)
    assert model.metrics().avg_regret_theory is None


def test_deleting_a_calibration_record_renews_what_drift_is_compared_with():
    quiet = DriftDetector(window=20)
    model = ready(named=True, drift=quiet)
    before = quiet._mean
    model.delete(record_id="c30")
    rest = model.calibrator.grad_norms
    assert len(rest) == 30 and quiet._mean == pytest.approx(np.mean(rest)) != before
