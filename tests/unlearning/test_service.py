"""The service: learning by id, forgetting on request, refusals that spend nothing."""

import os
import shutil
import threading
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from demur import __version__
from demur.core.adjacency import AddOrRemoveOne, Erasure
from demur.core.errors import DemurError, LedgerMismatch, NoiseReuse
from demur.ledger import Budget, Ledger, Payment
from demur.unlearning import (
    CapacityExhausted,
    QueuedRequest,
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    ServiceBusy,
    ServiceDamaged,
    ServiceLimits,
    ServiceMismatch,
    UnknownRecord,
    make_mode,
    verify_certificate,
)
from demur.unlearning.records import journal, snapshot, tables
from demur.unlearning.service import retraining
from demur.unlearning.service.deletion import Deletions
from tests.unlearning.service_kit import (
    DIM,
    UnlearningService,
    fill,
    open_service,
    record,
    sql,
)

MODES = ("ogd", "ridge", "logistic")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.db"


def ledgers(service):
    """What is charged: ids of entries, in order."""
    return [entry.id for entry in service.ledger.entries()]


@pytest.mark.parametrize("mode", MODES)
def test_a_record_is_learned_forgotten_and_certified(path, mode):
    with open_service(path, mode=mode, record_store="encrypted") as service:
        fill(service, range(12))
        if mode == "logistic":
            service.renew()
        certificate = service.delete(3)
        assert certificate.mode == mode and certificate.generation == 1
        assert certificate.epsilon_so_far <= 1.0
        assert (certificate.epsilon == 0.0) == (mode == "ridge")
        assert service.delete(3) == certificate == service.certificate(3)
        assert service.status().live == 11 and service.status().deleted == 1
        assert service.verify().ok, str(service.verify())


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_reopening_goes_on_bit_for_bit(tmp_path, mode):
    """One service that is closed all the time, and one that is not: equal models."""
    often, once = tmp_path / "often.db", tmp_path / "once.db"
    with open_service(once, mode=mode) as service:
        fill(service, range(8))
        expected = service._state.mode.digest()
        predicted = service.predict(record(99)[0])
    for number in range(8):
        with open_service(often, mode=mode) as service:
            fill(service, [number])
    with UnlearningService.open(often) as service:
        assert service._state.mode.digest() == expected
        assert service.predict(record(99)[0]) == predicted


def test_ridge_equals_a_model_that_never_saw_the_deleted(path):
    """Nobody gets the digest of an exact state: it would tell of the others."""
    with open_service(path, mode="ridge") as service:
        fill(service, range(30))
        for number in (4, 0, 17, 29):
            certificate = service.delete(number, *record(number))
        digest = service._state.mode.digest()
    fresh = make_mode("ridge", DIM)
    for number in reversed(range(30)):
        if number not in (4, 0, 17, 29):
            fresh.insert(*record(number))
    assert certificate.state_digest is None and digest == fresh.digest()


@pytest.mark.slow
def test_noise_of_a_deletion_has_the_certified_size(path):
    """The state moves by noise of deviation sigma, and by nothing else."""
    moved = []
    with open_service(path, requests_per_subject=1, dimension=40) as service:
        for number in range(200):
            service.insert(*record(number, 40), record_id=number)
        for number in range(12):
            before = service.published()
            certificate = service.delete(number)
            moved.append((service.published() - before) / certificate.sigma)
            assert certificate.sigma >= 4.2246 * certificate.shift_bound
    spread = np.concatenate(moved)
    # 480 standard normals: the mean square is 1 within 4.5 deviations of 0.0645.
    assert abs(np.mean(spread**2) - 1.0) < 0.29
    assert abs(np.mean(spread)) < 4.5 / np.sqrt(len(spread))


def test_repeating_a_deletion_spends_nothing(path):
    with open_service(path) as service:
        fill(service, range(5))
        service.delete(1)
        spent, tip = ledgers(service), service.status().tip
        weights = service.published()
        service.delete(1)
        assert ledgers(service) == spent and service.status().tip == tip
        assert np.array_equal(service.published(), weights)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ogd", "ridge"])
def test_refusals_change_and_spend_nothing(path, mode):
    with open_service(path, mode=mode) as service:
        fill(service, range(5))
        x, y = record(2)
        before = service.status(), ledgers(service), service._state.mode.digest()
        refused = [
            (UnknownRecord, lambda: service.delete(77)),
            (RecordMismatch, lambda: service.delete(2, record(3)[0], y)),
            (RecordMismatch, lambda: service.delete(2, x, -y)),
            (ValueError, lambda: service.delete(2, x)),
            (ValueError, lambda: service.delete(2, x * np.nan, y)),
            (ValueError, lambda: service.delete(2, x[:2], y)),
            (RecordExists, lambda: service.insert(x, y, record_id=2)),
            (ValueError, lambda: service.insert(x * np.inf, y, record_id=50)),
            (ValueError, lambda: service.insert(x, float("nan"), record_id=50)),
            (ValueError, lambda: service.insert([], y, record_id=50)),
            (ValueError, lambda: service.insert(x, y, record_id="")),
            (TypeError, lambda: service.insert(x, y, record_id=1.5)),
            (TypeError, lambda: service.insert(x, y, record_id=True)),
            (ValueError, lambda: service.insert(x, y, record_id="a" * 1000)),
            (UnknownRecord, lambda: service.delete_many([1, 77])),
            (ValueError, lambda: service.delete_many([1, 2], [x])),
            (UnknownRecord, lambda: service.delete_subject("nobody")),
            (UnknownRecord, lambda: service.certificate(2)),
            (TypeError, lambda: service.delete(2, deadline="soon")),
            (ValueError, lambda: service.delete(2, deadline=datetime(2030, 1, 1))),
            (
                RecordExists,
                lambda: service.insert_many([x, x], [y, y], record_ids=[8, 8]),
            ),
            (
                RecordExists,
                lambda: service.insert_many([x, x], [y, y], record_ids=[8, 2]),
            ),
        ]
        if mode == "ridge":
            refused.append((RecordNeeded, lambda: service.delete(2)))
        for kind, act in refused:
            with pytest.raises(kind):
                act()
            now = service.status(), ledgers(service), service._state.mode.digest()
            assert now == before
        assert service.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "x",
    [
        [10**400, 0, 0, 0],
        np.array([1j, 0, 0, 0]),
        np.ma.array([1.0, 2.0, 3.0, 4.0], mask=[1, 0, 0, 0]),
        np.array(["2020-01-01"] * DIM, dtype="M8[D]"),
        ["secret", 0, 0, 0],
        [[1.0, 2.0], [3.0]],
    ],
    ids=["huge", "complex", "masked", "dates", "words", "ragged"],
)
def test_a_bad_record_never_stops_a_service(path, mode, x):
    with open_service(path, mode=mode) as service:
        fill(service, range(3))
        before = service.status(), service._state.mode.digest()
        matrix = x[None] if isinstance(x, np.ndarray) else [x]
        for learn in (
            lambda: service.insert(x, 1.0, record_id="bad"),
            lambda: service.insert_many(matrix, [1.0], record_ids=["bad"]),
            lambda: service.insert(*record(3)[:1], "secret", record_id="bad"),
            lambda: service.insert_many(record(3)[0], [1.0], record_ids=["bad"]),
        ):
            with pytest.raises((ValueError, TypeError)) as refusal:
                learn()
            assert "secret" not in str(refusal.value)
            assert (service.status(), service._state.mode.digest()) == before
        fill(service, [3])
        assert service.status().live == 4 and service.verify().ok


def test_ids_may_come_in_arrays(path):
    ids = np.array([7, 2**64 - 1], dtype=np.uint64)
    with open_service(path) as service:
        rows = [record(number) for number in range(4)]
        X, Y = np.array([x for x, _ in rows]), np.array([y for _, y in rows])
        service.insert_many(X[:2], Y[:2], record_ids=ids, subject_ids=ids)
        service.insert_many(X[2:], Y[2:], record_ids=np.array(["a", "b"]))
        assert service.delete(str(2**64 - 1)).generation == 1
        assert [c.generation for c in service.delete_many(ids)] == [1, 1]
        assert service.delete_subject(np.int64(7)) == [service.certificate(7)]
        with pytest.raises(TypeError, match="record_id"):
            service.insert(*record(5), record_id=np.float64(1.0))


def test_a_record_that_comes_back_is_a_new_generation(path):
    with open_service(path) as service:
        fill(service, range(3))
        first = service.delete(0)
        fill(service, [0])
        second = service.delete(0)
        assert (first.generation, second.generation) == (1, 2)
        assert first.subject == second.subject
        # The second request of one person gets a smaller part and more noise.
        assert second.sigma / second.shift_bound > 1.9 * first.sigma / first.shift_bound
        assert first.epsilon_so_far < second.epsilon_so_far <= 1.0
        assert service.delete(0) == second
        assert service.verify().ok


def test_a_record_that_comes_back_without_a_name_is_still_its_persons(path):
    """As somebody else's it would have a second budget for the same record."""
    with open_service(path) as service:
        service.insert(*record(0), record_id=0, subject_id="ada")
        first = service.delete(0)
        service.insert(*record(0), record_id=0)
        x, y = record(1)
        service.insert_many([x], [y], record_ids=[1], subject_ids=["ada"])
        second, third = service.delete(0), service.delete(1)
        assert first.subject == second.subject == third.subject
        assert [c.requests for c in (first, second, third)] == [1, 2, 3]
        service.insert(*record(0), record_id=0, subject_id="bob")  # said otherwise
        assert service.delete(0).requests == 1 and service.verify().ok


def test_many_that_come_back_are_looked_up_together(path, monkeypatch):
    """One by one it took twelve times as long."""
    ids, rows = range(30), [record(number) for number in range(30)]
    X, Y = [x for x, _ in rows], [y for _, y in rows]
    with open_service(path) as service:
        owners = [number // 2 for number in ids]
        service.insert_many(X, Y, record_ids=ids, subject_ids=owners)
        service.delete_many(ids)
        looked, real = [], type(service._state).subjects

        def counted(state, pseudonyms):
            looked.append(1)
            return real(state, pseudonyms)

        monkeypatch.setattr(type(service._state), "subjects", counted)
        some = [None if number % 3 else 7 for number in ids]
        service.insert_many(X, Y, record_ids=ids, subject_ids=some)
        assert looked == [1]
        names = service._state.directory
        assert real(service._state, map(names.find, ids)) == {
            names.find(number): names.find_subject(owner if other is None else other)
            for number, owner, other in zip(ids, owners, some, strict=True)
        }


def test_no_request_of_a_person_is_the_last_and_none_exceeds_the_budget(path):
    with open_service(path, limits=ServiceLimits(noise=None)) as service:
        so_far = []
        for number in range(6):
            service.insert(*record(number), record_id=number, subject_id="ada")
        for number in range(6):
            so_far.append(service.delete(number).epsilon_so_far)
        assert so_far == sorted(so_far) and so_far[-1] <= 1.0


def test_requests_of_a_person_end_where_they_were_limited(path):
    with open_service(path, requests_per_subject=2) as service:
        for number in range(3):
            service.insert(*record(number), record_id=number, subject_id="ada")
        fill(service, [3])
        service.delete(0)
        assert service.delete(1).epsilon_so_far <= 1.0
        with pytest.raises(CapacityExhausted) as refusal:
            service.delete(2)
        assert refusal.value.reason == "privacy" and refusal.value.retrain_required
        service.delete(3)  # Somebody else's requests are their own.


def test_a_persons_records_are_one_request_with_their_shifts_summed(path):
    with open_service(path) as service:
        for number in range(4):
            service.insert(*record(number), record_id=number, subject_id="ada")
        fill(service, [4])
        certificates = service.delete_subject("ada")
        alone = service.delete(4)
        assert [c.records for c in certificates] == [4] * 4
        assert len({c.operation for c in certificates}) == 1
        assert certificates[0].requests == 1
        assert certificates[0].shift_bound == pytest.approx(
            4 * alone.shift_bound, rel=1e-4
        )
        assert service.delete_subject("ada") == certificates
        assert service.verify().ok


def test_a_batch_is_one_noise_and_one_entry(path):
    with open_service(path) as service:
        fill(service, range(10))
        entries = len(ledgers(service))
        certificates = service.delete_many([1, 2, 3, 2])
        assert len(ledgers(service)) == entries + 1
        assert len({c.sigma for c in certificates}) == 1
        assert certificates[1] == certificates[3]
        assert service.status().live == 7
        assert service.verify().ok


@pytest.mark.slow
def test_joint_deletions_add_up_to_the_budget_and_no_further(path):
    with open_service(path, scope="joint", capacity=5) as service:
        fill(service, range(20))
        for number in range(3):
            certificate = service.delete(number)
        batch = service.delete_many([10, 11])
        assert certificate.epsilon_so_far < batch[0].epsilon_so_far <= 1.0
        spent = service.ledger.status()[0].spent_epsilon
        assert spent == pytest.approx(batch[0].epsilon_so_far, rel=1e-9)
        # Two at once under one noise cost what two alone cost.
        ratio = (certificate.sigma / certificate.shift_bound) / (
            batch[0].sigma / batch[0].shift_bound
        )
        assert ratio == pytest.approx(np.sqrt(2.0), rel=1e-5)
        before = ledgers(service)
        with pytest.raises(CapacityExhausted, match="Nothing was spent") as refusal:
            service.delete(15)
        assert refusal.value.reason == "privacy"
        assert ledgers(service) == before


def test_a_limit_for_the_sake_of_quality_is_called_regret(path):
    with open_service(path, capacity=1) as service:
        fill(service, range(4))
        service.delete(0)
        with pytest.raises(CapacityExhausted) as refusal:
            service.delete(1)
        assert refusal.value.reason == "regret"


def test_a_model_that_cannot_certify_is_called_numeric(path):
    with open_service(path, mode="logistic", tolerance=1e-9) as service:
        fill(service, range(30))
        before = service.status(), ledgers(service)
        with pytest.raises(CapacityExhausted) as refusal:
            service.delete(1, *record(1))
        assert refusal.value.reason == "numeric"
        assert (service.status(), ledgers(service)) == before


def test_exhausted_requests_wait_with_their_deadlines(path):
    late = datetime.now(UTC) - timedelta(days=1)
    with open_service(path, capacity=1, on_exhausted="queue") as service:
        fill(service, range(6))
        service.delete(0)
        usual = service.delete(1)
        overdue = service.delete(2, deadline=late)
        assert isinstance(usual, QueuedRequest) and usual.reason == "regret"
        days = datetime.fromisoformat(usual.deadline) - datetime.now(UTC)
        assert timedelta(days=29) < days < timedelta(days=31)
        assert service.delete(1, deadline=late) == usual  # the first deadline stays
        assert [q.record for q in service.queue()] == [overdue.record, usual.record]
        assert (service.status().queued, service.status().overdue) == (2, 1)
        assert service.process_queue() == []
    with UnlearningService.open(path) as service:
        assert len(service.queue()) == 2
        issued = service.retrain([(n, *record(n)) for n in (3, 4, 5)])
        assert {c.theorem for c in issued} == {"retrain"} and len(issued) == 2
        assert service.queue() == [] and service.status().epoch == 2
        assert service.delete(1) in issued
        assert service.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["subject", "joint"])
def test_exhaustion_can_retrain_from_the_encrypted_store(path, scope):
    terms = {"capacity": 2, "scope": scope, "record_store": "encrypted"}
    with open_service(path, on_exhausted="retrain", **terms) as service:
        fill(service, range(8))
        certificates = [service.delete(number) for number in range(3)]
        begun = service._state.mode.digest()
        certificates += [service.delete(number) for number in (3, 4)]
        kinds = [c.theorem for c in certificates]
        assert kinds == ["ogd-shift", "ogd-shift", "retrain", "ogd-shift", "ogd-shift"]
        assert service.status().epoch == 2 and service.status().live == 3
        # The epoch began as a model that saw the others alone (in the store's order).
        fresh = make_mode("ogd", DIM)
        for number in sorted(range(3, 8), key=service._state.directory.find):
            fresh.insert(*record(number))
        assert begun == fresh.digest()
        assert certificates[2].epsilon == 0.0
        found = service.verify()
        assert found.ok, str(found)


def test_a_retrained_model_is_one_that_never_saw_the_rest(path):
    with open_service(path, mode="ridge") as service:
        fill(service, range(10))
        issued = service.retrain([(n, *record(n)) for n in (1, 3, 12)])
        assert len(issued) == 8 and service.status().live == 3
        fresh = make_mode("ridge", DIM)
        for number in (12, 3, 1):
            fresh.insert(*record(number))
        assert service._state.mode.digest() == fresh.digest()
        service.delete(12, *record(12))
        assert service.verify().ok


def test_retraining_refuses_what_was_deleted_or_is_not_what_was_learned(path):
    with open_service(path) as service:
        fill(service, range(4))
        service.delete(0)
        before = service.status()
        with pytest.raises(RecordExists, match="was deleted"):
            service.retrain([(0, *record(0)), (1, *record(1))])
        with pytest.raises(RecordMismatch):
            service.retrain([(1, *record(2))])
        with pytest.raises(RecordExists, match="twice"):
            service.retrain([(1, *record(1)), ("1", *record(1))])
        with pytest.raises(RecordNeeded):
            service.retrain()
        assert service.status() == before


def test_renewal_takes_the_live_records_and_no_others(path):
    """One left out and a stranger in its place are as many, and another model."""
    with open_service(path, mode="logistic") as service:
        fill(service, range(6))
        live = [(number, *record(number)) for number in range(6)]
        before = service.status(), service._state.mode.digest()
        for wrong in ([*live[1:], (9, *record(9))], live[1:], [*live, (9, *record(9))]):
            with pytest.raises(RecordMismatch, match="not the live records"):
                service.renew(wrong)
            assert (service.status(), service._state.mode.digest()) == before
        service.renew(live)
        assert service.verify().ok


def test_a_buried_id_is_refused_for_good(path):
    with open_service(path) as service:
        with pytest.raises(UnknownRecord):
            service.delete("late", block=True)
        with pytest.raises(RecordExists, match="asked to be forgotten"):
            service.insert(*record(1), record_id="late")
    with UnlearningService.open(path) as service:
        with pytest.raises(RecordExists):
            service.insert(*record(1), record_id="late")
        with pytest.raises(UnknownRecord):
            service.delete("late")
        assert service.verify().ok


def test_inserts_of_a_batch_are_acknowledged_by_flush(path):
    service = open_service(path, durability="batch", batch_size=10)
    fill(service, range(13), flush=False)
    assert service.status().pending == 3
    (rows,) = sql(path, "SELECT count(*) FROM demur_unlearning_records")
    assert rows == (10,)
    tip = service.flush()
    assert tip.sequence == 13 and service.status().pending == 0
    fill(service, [20], flush=False)
    service.delete(0)  # takes the pending insert along
    assert service.status().pending == 0
    service.close()
    with UnlearningService.open(path) as again:
        assert again.status().live == 13


def test_insert_many_is_insert_in_a_loop(tmp_path):
    rows = [record(n) for n in range(20)]
    with open_service(tmp_path / "loop.db") as service:
        one = [service.insert(x, y, record_id=n) for n, (x, y) in enumerate(rows)]
        digest = service._state.mode.digest()
    with open_service(tmp_path / "many.db") as service:
        X, Y = np.array([x for x, _ in rows]), np.array([y for _, y in rows])
        many = service.insert_many(X, Y, record_ids=range(20))
        assert many.tolist() == one and service._state.mode.digest() == digest
        assert service.verify().ok


def test_published_copies_of_an_output_mode_are_paid_for(path):
    with open_service(path, mode="logistic", capacity=3) as service:
        fill(service, range(20))
        live = [(n, *record(n)) for n in range(20)]
        service.renew(live)
        service.delete(0, *record(0))
        fixed = service.published()
        fill(service, [50])
        assert np.array_equal(service.published(), fixed)
        service.renew([*live[1:], (50, *record(50))])
        assert np.array_equal(service.published(), fixed)
        entries = len(ledgers(service))
        service.publish()
        assert not np.array_equal(service.published(), fixed)
        assert len(ledgers(service)) == entries + 1
        service.publish()
        with pytest.raises(CapacityExhausted):
            service.publish()
        assert service.verify().ok


def test_terms_are_kept_and_others_refused(path):
    with open_service(path, lam=0.5):
        pass
    with UnlearningService.open(path, dimension=DIM, epsilon=1.0) as service:
        assert service._state.mode.config()["lam"] == 0.5
    for other in (
        {"mode": "ridge"},
        {"dimension": 9},
        {"epsilon": 2.0},
        {"scope": "joint"},
        {"record_store": "encrypted"},
        {"lam": 0.25},
        {"capacity": 7},
    ):
        with pytest.raises(ServiceMismatch, match=next(iter(other)) + "|config"):
            UnlearningService.open(path, **other)


ZCDP = {"mode": "logistic", "accounting": "zcdp"}
UNSUITED = object()  # a durable ledger without a budget for deletions


@pytest.mark.slow
@pytest.mark.parametrize(
    "terms, words",
    [
        ({"mode": "seed"}, "no promise"),
        ({"mode": "magic"}, "mode must be"),
        ({"scope": "joint"}, "capacity"),
        ({"scope": "joint", "capacity": 3, "accounting": "rdp"}, "not offered"),
        ({"accounting": "basic"}, "accounting must be"),
        ({"epsilon": None}, "epsilon and delta"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"capacity": 0}, "capacity"),
        ({"requests_per_subject": 0}, "requests_per_subject"),
        ({"record_store": "plain"}, "record_store"),
        ({"on_exhausted": "panic"}, "on_exhausted"),
        ({"durability": "never"}, "durability"),
        ({"scope": "planet"}, "scope"),
        ({"epsilon": 0.0137, "delta": 9e-12, **ZCDP}, "certify nothing.*use 'gdp'"),
        ({"ledger": UNSUITED}, "no budget at Erasure"),
        ({"ledger": "model.db"}, "ledger must be a Ledger"),
    ],
)
def test_terms_that_are_refused_leave_nothing_behind(path, tmp_path, terms, words):
    path = tmp_path / "place" / "model.db"
    path.parent.mkdir()
    with Ledger.open(
        tmp_path / "l.db", dataset="d", budgets={AddOrRemoveOne(): Budget(1.0)}
    ) as unsuited:
        given = unsuited if terms.get("ledger") is UNSUITED else terms.get("ledger")
        with pytest.raises((ValueError, TypeError, LedgerMismatch), match=words):
            open_service(path, **terms | {"ledger": given})
    assert list(path.parent.iterdir()) == []
    with open_service(path) as service:  # the place is free for good terms
        fill(service, range(3))


def test_a_ledger_that_declines_a_service_leaves_none_behind(path, tmp_path):
    """Its terms would bind the next opening, which may ask for others."""
    with Ledger.open(
        tmp_path / "l.db", dataset="d", budgets={Erasure(): Budget(0.5, 1e-6)}
    ) as ledger:
        with pytest.raises(CapacityExhausted, match="cannot carry this service"):
            open_service(path, ledger=ledger)
        assert ledger.entries() == [] and not path.exists()
        assert not path.with_name("model.db.keys").exists()
        with open_service(path, ledger=ledger, epsilon=0.5) as service:
            fill(service, range(3))
            service.delete(1)
            assert service.verify().ok
        assert len(ledger.entries()) == 2  # one budget per person, one deletion


def test_there_is_one_writer(path):
    with open_service(path):
        with pytest.raises(ServiceBusy, match="writer already"):
            UnlearningService.open(path)
    with UnlearningService.open(path):
        pass


def test_a_link_is_no_second_door(path):
    with open_service(path) as service:
        fill(service, range(3))
        link = path.parent / "link.db"
        link.symlink_to(path)
        with pytest.raises(ServiceBusy):
            UnlearningService.open(link, keys=path.parent / "model.db.keys")


def test_a_service_has_one_ledger_and_one_secret_through_a_link_too(path):
    with open_service(path) as service:
        fill(service, range(3))
    link = path.parent / "link.db"
    link.symlink_to(path)
    with UnlearningService.open(link) as service:
        certificate = service.delete(1)
    with UnlearningService.open(path) as service:
        assert service.certificate(1) == certificate and service.verify().ok
    assert verify_certificate(certificate, link).ok
    assert [p.name for p in path.parent.glob("link.db*")] == ["link.db"]


def test_a_forked_copy_and_a_closed_one_are_refused(path):
    service = open_service(path)
    fill(service, range(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            service.predict(record(0)[0])
        except DemurError:
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    service.close()
    service.close()
    with pytest.raises(DemurError, match="closed"):
        service.insert(*record(3), record_id=3)
    with pytest.raises(TypeError):
        service.__reduce__()


@pytest.mark.slow
def test_threads_take_turns(path):
    with open_service(path, durability="batch") as service:
        fill(service, range(40))
        failures = []

        def work(first):
            try:
                for number in range(first, first + 10):
                    service.insert(*record(100 + number), record_id=100 + number)
                    service.predict(record(number)[0])
                    if number % 5 == 0:
                        service.delete(number)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in (0, 10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert service.status().live == 72 and service.verify().ok


def test_a_failed_write_stops_the_service_and_reopening_finds_what_was_acknowledged(
    path, monkeypatch
):
    service = open_service(path, durability="each")
    fill(service, range(5))
    digest = service._state.mode.digest()

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("demur.unlearning.records.journal.append", full)
        with pytest.raises(OSError):
            service.insert(*record(5), record_id=5)
    with pytest.raises(DemurError, match="open it again"):
        service.predict(record(0)[0])
    service.close()
    with UnlearningService.open(path) as again:
        assert again._state.mode.digest() == digest
        again.insert(*record(5), record_id=5)
        assert again.verify().ok


def test_a_deletion_that_fails_in_the_middle_stays_spent_and_can_be_repeated(
    path, monkeypatch
):
    with open_service(path) as service:
        fill(service, range(5))
        entries = len(ledgers(service))
        before = service.published()

        def broken(*_):
            raise RuntimeError("the noise ran out")

        with monkeypatch.context() as patch:
            patch.setattr(type(service._requests.deletions), "noised", broken)
            with pytest.raises(RuntimeError):
                service.delete(1)
        assert len(ledgers(service)) == entries + 1
        assert np.array_equal(service.published(), before)
        certificate = service.delete(1)
        assert certificate.requests == 2  # The lost one counts.
        assert len(ledgers(service)) == entries + 2
        assert service.verify().ok


class Died(BaseException):
    """Stands for the end of the process."""


def interrupted(service, monkeypatch, step, *request):
    """Die in one step of a deletion; the locks go, as they would."""

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Deletions, step, die)
        patch.setattr(Deletions, "abandon", lambda *_: None)
        with pytest.raises(Died):
            service.delete(*request)
    service._resources.close()


@pytest.mark.parametrize("step, paid", [("spend", 0), ("noised", 1), ("commit", 1)])
def test_an_interrupted_deletion_is_carried_out_on_opening(
    path, monkeypatch, step, paid
):
    service = open_service(path)
    fill(service, range(5))
    before = service.published()
    entries = len(ledgers(service))
    interrupted(service, monkeypatch, step, 1)
    with UnlearningService.open(path) as again:
        certificate = again.certificate(1)
        assert certificate.requests == 2  # The interrupted one stays counted.
        assert len(ledgers(again)) == entries + paid + 1
        for entry in again.ledger.entries():  # No key outlives its process.
            with pytest.raises(NoiseReuse):
                again.ledger._key(entry, None)
        assert not np.array_equal(again.published(), before)
        assert again.queue() == [] and again.verify().ok


def test_an_interrupted_deletion_that_needs_its_record_waits_for_it(path, monkeypatch):
    service = open_service(path, mode="ridge")
    fill(service, range(5))
    digest = service._state.mode.digest()
    interrupted(service, monkeypatch, "noised", 1, *record(1))
    with UnlearningService.open(path) as again:
        (waiting,) = again.queue()
        assert waiting.reason == "interrupted" and not waiting.overdue
        assert again._state.mode.digest() == digest
        assert again.process_queue() == []
        assert again.delete(1, *record(1)).requests == 2
        assert again.queue() == [] and again.verify().ok


def copied(path, name):
    folder = path.parent / name
    shutil.copytree(path.parent, folder, ignore=lambda *_: [name], dirs_exist_ok=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("terms", [{}, {"scope": "joint", "capacity": 5}])
def test_an_older_copy_of_the_service_or_of_its_ledger_is_refused(path, terms):
    """Putting back a backup would bring back the deleted, or what was spent."""
    service = open_service(path, **terms)
    fill(service, range(5))
    service.delete(0)
    service.close()
    older = copied(path, "older")
    with UnlearningService.open(path) as service:
        service.delete(1)
    newer = copied(path, "newer")
    ledger = "model.db.ledger-1"
    shutil.copy(newer / ledger, older / ledger)
    with pytest.raises(ServiceDamaged, match="still deleted"):
        UnlearningService.open(older / "model.db")
    for left in newer.glob(f"{ledger}*"):
        left.unlink() if left.is_file() else shutil.rmtree(left)
    with pytest.raises(ServiceDamaged, match="still spent"):
        UnlearningService.open(newer / "model.db")


@pytest.mark.parametrize("terms", [{}, {"scope": "joint", "capacity": 3}])
def test_a_service_made_anew_does_not_take_up_the_ledgers_of_another(path, terms):
    with open_service(path, **terms) as service:
        fill(service, range(3))
        service.delete(0)
        service.retrain([(1, *record(1))])
    path.unlink()
    shutil.rmtree(path.parent / "model.db.keys")
    for left in path.parent.glob("model.db.ledger-*-journal"):
        left.unlink()
    ledgers = sorted(path.parent.glob("model.db.ledger-*"))
    while ledgers:  # A later epoch's is another service's as well.
        with pytest.raises(
            ServiceMismatch, match="ledger of another.*Nothing was creat"
        ):
            open_service(path, **terms)
        assert not path.exists() and not (path.parent / "model.db.keys").exists()
        ledgers.pop(0).unlink()
    with open_service(path, **terms) as service:
        assert service.status().live == 0 and service.verify().ok


def test_a_service_of_another_schema_is_refused_with_the_way_out(path):
    with open_service(path) as service:
        fill(service, range(3))
        held = service.delete(1)
    for schema in (tables.SCHEMA_VERSION - 1, tables.SCHEMA_VERSION + 1):
        sql(path, "UPDATE demur_unlearning SET schema_version = ?", schema)
        for act in (UnlearningService.open, lambda at: verify_certificate(held, at)):
            with pytest.raises(ServiceMismatch, match="the version that made it"):
                act(path)
    sql(path, "UPDATE demur_unlearning SET schema_version = ?", tables.SCHEMA_VERSION)
    with UnlearningService.open(path) as service:
        assert service.delete(1) == held and service.verify().ok


def test_the_format_has_the_number_of_its_schema(path):
    """Whoever changes what rows or terms say gives the schema a new number.

    Schema 1 had retrains that no ledger knew, and terms without `testing`. Schema 2 had
    other names for the ledger, the dimension and what an intent uses. Schema 3 had
    seals that nothing ended, and remembered every id. Schema 4 had pseudonyms that
    nobody could open, and neither signers nor labels nor published answers. Schema 5
    bound a retrain to its first row alone, and kept no limits with a request. Schema 6
    began its chain with the terms alone, so that services of equal terms had one tip.
    """
    with open_service(path) as service:
        fill(service, range(3))
        service.delete(0)
        taken = service.snapshot()
        fill(service, [3])
        service.restore(taken)
        service.retrain([(1, *record(1)), (9, *record(9))])
        said = {"terms": set(asdict(service._state.terms))}
        with service._state.database.read() as connection:
            for row, body in journal.walk(connection):
                said.setdefault(row.op, set()).update(set(body) - ALL_ROWS)
    assert (tables.SCHEMA_VERSION, said) == (7, {k: set(v.split()) for k, v in SAID})


ALL_ROWS = {"op", "epoch", "tick", "run"}
SAID = (
    (
        "terms",
        "mode dimension epsilon delta scope accounting capacity requests_per_subject"
        " record_store config remembers testing signer labels answers",
    ),
    ("insert", "record generation subject state seal time"),
    ("intent", "operation records requests used used_by deadline time"),
    ("delete", "operation certificate state seal"),
    ("restore", "operation entry ledger to drops time"),
    ("retrain", "operation entry ledger before records new drops time"),
    ("drop", "certificate state seal"),
)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["subject", "joint"])
@pytest.mark.parametrize("way", ["retrain", "on_exhausted", "restore"])
def test_an_older_copy_is_refused_whichever_way_a_record_had_gone(path, scope, way):
    """A model in the model's place forgets too, and leaves a trace in the ledger."""
    service = open_service(path, scope=scope, capacity=1, on_exhausted="retrain")
    fill(service, range(3))
    service.delete(0)
    taken = service.snapshot()
    fill(service, [3])
    service.close()
    older = copied(path, "older")
    live = [(number, *record(number)) for number in (1, 2)]
    with UnlearningService.open(
        path, on_exhausted="retrain", records=lambda: iter(live)
    ) as service:
        if way == "retrain":
            service.retrain(live)
        elif way == "restore":
            service.restore(taken)
        else:
            assert service.delete(3).theorem == "retrain"
        assert service.certificate(3).epsilon == 0.0 and service.verify().ok
    with UnlearningService.open(path) as again:
        assert again.verify().ok and again.status().live == 2
    for ledger in path.parent.glob("model.db.ledger-?"):
        shutil.copy(ledger, older)
    with pytest.raises(ServiceDamaged, match="still deleted"):
        UnlearningService.open(older / "model.db")


@pytest.mark.slow
def test_an_older_copy_with_its_older_ledger_is_told_by_a_later_one(path):
    service = open_service(path, scope="joint", capacity=2)
    fill(service, range(4))
    service.delete(0)
    service.close()
    older = copied(path, "older")
    with UnlearningService.open(path) as service:
        service.retrain([(number, *record(number)) for number in (1, 2)])
    shutil.copy(path.parent / "model.db.ledger-2", older)
    with pytest.raises(ServiceDamaged, match="epoch that this journal has not reached"):
        UnlearningService.open(older / "model.db")


def test_a_model_is_not_replaced_behind_the_ledgers_back(path, monkeypatch):
    """The sabotaged twin: a retrain that the ledger never hears of."""

    @contextmanager
    def silently(state, charges):
        yield {"operation": "", "entry": None, "ledger": ""}

    with open_service(path) as service:
        fill(service, range(3))
        with monkeypatch.context() as patch:
            patch.setattr(retraining.intents, "replacing", silently)
            service.retrain([(1, *record(1))])
        assert "a retrain without its intent" in str(service.verify())


def test_a_record_is_not_dropped_without_a_new_model(path):
    """The sabotaged twin: a certificate of a retrain that never was."""
    with open_service(path) as service:
        fill(service, range(3))
        state, pseudonym = service._state, service._state.directory.find(1)
        same = state.mode.fresh()
        same.restore(state.mode.state())
        charges = service._opened.charges
        certificates = retraining._certificates(
            state, charges, [pseudonym], same, "retrain", 1
        )
        state.replace(same, retraining._drops(state, certificates), certificates)
        assert "without a new model" in str(service.verify())
        assert not verify_certificate(service.certificate(1), path).ok


@pytest.mark.parametrize("scope", ["subject", "joint"])
def test_a_retrain_that_dies_before_it_is_written_comes_to_nothing(
    path, monkeypatch, scope
):
    service = open_service(path, scope=scope, capacity=2)
    fill(service, range(4))
    service.delete(0)
    before = service.published()
    with monkeypatch.context() as patch:
        patch.setattr(type(service._state), "replace", failing())
        with pytest.raises(Died):
            service.retrain([(1, *record(1))])
    service._resources.close()
    with UnlearningService.open(path) as again:
        assert again.status().epoch == 1 and again.status().live == 3
        assert np.array_equal(again.published(), before)
        assert again.queue() == [] and again.verify().ok
        assert len(again.retrain([(1, *record(1))])) == 2 and again.verify().ok


def test_a_retrain_that_dies_before_its_entry_is_bound_is_bound_on_opening(
    path, monkeypatch
):
    """The entry is in the ledger of the epoch that it ended, not in the new one."""
    service = open_service(path, scope="joint", capacity=3)
    fill(service, range(4))
    service.delete(0)
    with monkeypatch.context() as patch:
        patch.setattr(Payment, "commit", failing())
        with pytest.raises(Died):
            service.retrain([(1, *record(1))])
    service._resources.close()
    ledger = path.with_name("model.db.ledger-1")
    rows = "SELECT kind FROM demur_rows ORDER BY sequence"
    kinds = sql(ledger, rows)
    assert kinds == [("charge",), ("commit",), ("charge",)]
    for _ in range(2):  # once, however often it is opened
        with UnlearningService.open(path) as again:
            assert again.status().epoch == 2 and again.verify().ok
        assert sql(ledger, rows) == [*kinds, ("commit",)]


def test_a_restore_that_fails_leaves_the_clock_alone(path, monkeypatch):
    """Memory moves with the disk, in one step, or not at all."""
    with open_service(path) as service:
        fill(service, range(3))
        taken = service.snapshot()
        fill(service, [3])
        state = service._state
        real, replace = state.sealed, type(state).replace

        def replacing(*args, **kwargs):
            state.sealed = failing()
            return replace(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(type(state), "replace", replacing)
            with pytest.raises(Died):
                service.restore(taken)
        state.sealed = real
        held = service.delete(3)
        assert held.tick == 4 and service.verify().ok
        assert verify_certificate(held, path).ok


def test_a_shared_ledger_carries_the_service(tmp_path, path):
    budgets = {Erasure(): Budget(2.0, 1e-6), AddOrRemoveOne(): Budget(1.0, 1e-6)}
    with Ledger.open(tmp_path / "ledger.db", dataset="d", budgets=budgets) as ledger:
        with open_service(path, ledger=ledger, requests_per_subject=1) as service:
            fill(service, range(4))
            certificate = service.delete(2)
            assert certificate.ledger == ledger.id
            assert service.verify().ok
        assert ledger.epsilon(unit=AddOrRemoveOne()) == 0.0
        zcdp = {"ledger": ledger, "accounting": "zcdp"}
        with pytest.raises(LedgerMismatch, match="squares of mu"):
            open_service(tmp_path / "j.db", scope="joint", capacity=3, **zcdp)
        with pytest.raises(LedgerMismatch, match="squares of mu"):
            open_service(tmp_path / "j.db", **zcdp)
    with Ledger.open(
        tmp_path / "other.db",
        dataset="d",
        budgets={AddOrRemoveOne(): Budget(1.0, 1e-6)},
    ) as ledger:
        with pytest.raises(LedgerMismatch, match="Erasure"):
            open_service(tmp_path / "k.db", ledger=ledger)
    memory = Ledger(Budget(1.0, 1e-6), unit=Erasure())
    with pytest.raises(LedgerMismatch, match="durable"):
        open_service(tmp_path / "l.db", ledger=memory)
    with pytest.raises(TypeError, match="ledger"):
        open_service(tmp_path / "m.db", ledger="ledger.db")


@pytest.mark.slow
def test_a_shared_ledger_that_is_spent_declines(tmp_path, path):
    budgets = {Erasure(): Budget(0.5, 1e-6)}
    rule = {"dataset": "d", "budgets": budgets, "filter": "rdp"}
    with Ledger.open(tmp_path / "ledger.db", **rule) as ledger:
        terms = {"ledger": ledger, "scope": "joint", "capacity": 50}
        with open_service(path, **terms) as service:
            fill(service, range(40))
            done = 0
            with pytest.raises(CapacityExhausted, match="declines") as refusal:
                for number in range(40):
                    service.delete(number)
                    done += 1
            assert refusal.value.reason == "privacy" and 0 < done < 40
            assert ledger.status()[0].spent_epsilon <= 0.5
            assert service.status().live == 40 - done
            assert service.verify().ok


def test_no_text_of_a_service_shows_its_secret(path):
    with open_service(path) as service:
        fill(service, range(3))
        certificate = service.delete(1)
        shown = [repr(service), str(service.status()), certificate.to_json()]
        shown += [repr(service._state.pseudonyms), str(service.verify())]
    text = "".join(shown)
    assert certificate.library == __version__
    secret = (path.parent / "model.db.keys" / "unlearning-pseudonyms.key").read_bytes()
    assert secret.hex() not in text and repr(secret) not in text
    mode = path.stat().st_mode & 0o777
    assert mode == 0o600


def failing(kind=Died):
    def fail(*_, **__):
        raise kind

    return fail


@pytest.mark.parametrize("step", ["learned", "insert_many"])
def test_a_model_that_moved_without_its_record_is_never_made_durable(
    path, monkeypatch, step
):
    """Ctrl-C between the model and the tables: a record without an id, else."""
    with open_service(path) as service:
        fill(service, range(3))
        digest = service._state.mode.digest()
        with monkeypatch.context() as patch:
            patch.setattr(type(service._state), "learned", failing())
            with pytest.raises(Died):
                if step == "learned":
                    service.insert(*record(3), record_id=3)
                else:
                    x, y = record(3)
                    service.insert_many([x], [y], record_ids=[3])
        assert service._state.mode.digest() != digest
        with pytest.raises(DemurError, match="open it again"):
            service.flush()
    with UnlearningService.open(path) as again:
        assert again._state.mode.digest() == digest and again.status().live == 3


@pytest.mark.slow
def test_a_deletion_that_memory_missed_stops_the_service(path, monkeypatch):
    """Ctrl-C right after the commit: the old model must not be written again."""
    with open_service(path) as service:
        fill(service, range(4))
        with monkeypatch.context() as patch:
            honest = Deletions.commit

            def late(self, *rest):
                # Only now: the transaction of the intent must still be noticed.
                patch.setattr(type(self._state), "_appended", failing())
                return honest(self, *rest)

            patch.setattr(Deletions, "commit", late)
            with pytest.raises(Died):
                service.delete(1)
        with pytest.raises(DemurError, match="open it again"):
            service.insert(*record(9), record_id=9)
    with UnlearningService.open(path) as again:
        assert again.certificate(1).requests == 1 and again.verify().ok


@pytest.mark.slow
def test_an_epoch_without_its_ledger_forgets_nothing(path, monkeypatch):
    with open_service(path, scope="joint", capacity=3) as service:
        fill(service, range(4))
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "open", failing(OSError))
            with pytest.raises(OSError):
                service.retrain([(n, *record(n)) for n in range(3)])
        with pytest.raises(DemurError, match="open it again"):
            service.delete(0)
    with UnlearningService.open(path) as again:
        assert again.status().epoch == 2 and again.verify().ok


@pytest.mark.parametrize("made_up", ["scrub", "by the next deletion"])
def test_keys_that_could_not_be_wiped_are_told_and_made_up_for(
    path, monkeypatch, made_up
):
    with open_service(path, record_store="encrypted") as service:
        fill(service, range(3))
        pseudonym = service._state.directory.find(1)
        with monkeypatch.context() as patch:
            patch.setattr(type(service._state.encrypted), "erase", failing(OSError))
            with pytest.raises(OSError):
                service.delete(1)
        assert service.status().unclean and service.delete(1).generation == 1
        keys = path.parent / "model.db.keys" / "records.db"
        kept = "SELECT count(*) FROM demur_record_keys WHERE pseudonym = ?"
        assert sql(keys, kept, pseudonym) == [(1,)]
        if made_up == "scrub":
            service.scrub()
        else:
            service.delete(2)
        assert sql(keys, kept, pseudonym) == [(0,)] and not service.status().unclean


def test_a_late_wipe_spares_the_key_of_a_record_that_came_back(path, monkeypatch):
    with open_service(path, mode="ridge", record_store="encrypted") as service:
        fill(service, range(3))
        with monkeypatch.context() as patch:
            patch.setattr(type(service._state.encrypted), "erase", failing(OSError))
            with pytest.raises(OSError):
                service.delete(1)
        fill(service, [1])  # its second generation, with a key of its own
        service.delete(2)  # wipes what the first one left
        keys = path.parent / "model.db.keys" / "records.db"
        kept = "SELECT generation FROM demur_record_keys WHERE pseudonym = ?"
        assert sql(keys, kept, service._state.directory.find(1)) == [(2,)]
        assert service.delete(1).generation == 2 and service.verify().ok


def test_a_forked_copy_that_closes_writes_nothing(path):
    with open_service(path) as service:
        fill(service, range(2))
        service.insert(*record(2), record_id=2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                service.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rows = "SELECT count(*) FROM demur_unlearning_journal"
        assert sql(path, rows) == [(2,)]
        assert service.flush().sequence == 3 and service.verify().ok


def test_an_interrupted_batch_is_carried_out_as_one_request(path, monkeypatch):
    service = open_service(path)
    for number in range(5):
        service.insert(*record(number), record_id=number, subject_id="ada")
    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "noised", failing())
        patch.setattr(Deletions, "abandon", lambda *_: None)
        with pytest.raises(Died):
            service.delete_many([1, 2, 3])
    service._resources.close()
    with UnlearningService.open(path) as again:
        issued = [again.certificate(number) for number in (1, 2, 3)]
        assert {(c.requests, c.records) for c in issued} == {(2, 3)}
        assert len({c.operation for c in issued}) == 1 and again.verify().ok


@pytest.mark.slow
def test_an_interrupted_deletion_whose_key_is_lost_does_not_lock_the_service(
    path, monkeypatch
):
    service = open_service(path, mode="ridge", record_store="encrypted")
    fill(service, range(3))
    interrupted(service, monkeypatch, "noised", 1)
    sql(path.parent / "model.db.keys" / "records.db", "DELETE FROM demur_record_keys")
    with UnlearningService.open(path) as again:
        assert [q.reason for q in again.queue()] == ["interrupted"]
        assert again.delete(1, *record(1)).requests == 2 and again.queue() == []


def test_a_state_edited_under_an_open_service_is_found(path):
    with open_service(path) as service:
        fill(service, range(3))
        ((body,),) = sql(path, "SELECT body FROM demur_unlearning_state")
        state = snapshot.decode(body)
        state["w"] = state["w"] + 1e-9
        sql(path, "UPDATE demur_unlearning_state SET body = ?", snapshot.encode(state))
        assert "not the one that the journal names" in str(service.verify())
        sql(path, "UPDATE demur_unlearning_state SET body = ?", b"[]\nx")
        assert not service.verify().ok
