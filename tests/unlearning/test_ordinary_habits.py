"""What people hand in by habit or by mistake: refused in words, and nothing changes."""

import resource
import signal
import time
from datetime import timedelta

import numpy as np
import pytest

from demur.core.errors import OutcomeUnknown
from demur.unlearning import (
    Calibrator,
    MemoryPair,
    Passphrase,
    PrivacyOdometer,
    ServiceLimits,
    UnlearnableClassifier,
    verify_certificate,
)
from demur.unlearning.errors import RecordMismatch, ServiceDamaged
from demur.unlearning.models import OGD
from demur.unlearning.retrain.comparison import verify_against_retrain
from demur.unlearning.retrain.worlds import stream
from demur.unlearning.service import service
from tests.unlearning.service_kit import DIM, fill, open_service, record, sql


@pytest.fixture
def kept(tmp_path):
    """A service with the records 0 to 9; the test must leave them alone."""
    with open_service(tmp_path / "model.db") as opened:
        fill(opened, range(10))
        tip = opened.status().tip
        yield opened
        assert (opened.status().live, opened.status().tip) == (10, tip)
        assert opened.verify().ok


ONE_ID = ["17", b"17", bytearray(b"17"), {1: 7}, 17, None, np.array(17)]


@pytest.mark.parametrize("ids", ONE_ID, ids=repr)
def test_one_id_in_the_place_of_many_is_not_read_by_its_letters(kept, ids):
    """`delete_many("17")` would delete 1 and 7, for good."""
    rows = np.zeros((2, DIM))
    for ask in (
        lambda: kept.delete_many(ids),
        lambda: kept.insert_many(rows, [1, 1], record_ids=ids),
        lambda: kept.openings(ids),
    ):
        with pytest.raises(TypeError, match="list of ids"):
            ask()


def test_persons_and_ids_of_rows_have_an_order(kept):
    rows = np.zeros((2, DIM))
    for ids in (
        {"record_ids": {"a", "b"}},
        {"record_ids": frozenset("ab")},
        {"record_ids": ["a", "b"], "subject_ids": "ab"},
        {"record_ids": ["a", "b"], "subject_ids": {"a", "b"}},
    ):
        with pytest.raises(TypeError, match="list of ids"):
            kept.insert_many(rows, [1, 1], **ids)
    with pytest.raises(TypeError, match="list of ids"):
        kept.delete_many({1, 2}, rows, [1, 1])


def test_the_twin_that_takes_any_iterable_deletes_others(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "id_list", lambda _, given, **__: list(given))
    with open_service(tmp_path / "model.db") as opened:
        fill(opened, range(10))
        opened.delete_many("17")
        assert opened.find_deleted([1, 7, 17]) == ([0, 1], [])


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), {1, 2}, np.array([1, 2]), range(1, 3)])
def test_every_usual_collection_of_ids_is_taken(tmp_path, ids):
    with open_service(tmp_path / "model.db") as opened:
        fill(opened, range(4))
        assert len(opened.delete_many(ids)) == 2
        assert len(opened.delete_many(iter([3]))) == 1


def test_a_pair_and_an_estimator_do_not_read_an_id_by_its_letters():
    odometer = PrivacyOdometer(epsilon=1.0, delta=1e-5, lam=0.1, gamma=1.0)
    pair = MemoryPair(dimension=DIM, odometer=odometer, calibrator=Calibrator())
    rows = np.array([record(i)[0] for i in range(30)])
    targets = np.array([record(i)[1] for i in range(30)])
    for x, y in zip(rows, targets, strict=True):
        pair.calibrate_step(x, y)
    stats = pair.finalize_calibration(gamma_learn=100.0)
    pair.insert_many(rows, targets, record_ids=[str(i) for i in range(30)])
    odometer.finalize_with(stats, T_estimate=10**6)
    estimator = UnlearnableClassifier(mode="ridge", classes=[-1, 1])
    estimator.partial_fit(rows, targets, record_ids=[str(i) for i in range(30)])
    for ask in (
        lambda: pair.delete_many("17"),
        lambda: pair.insert_many(rows[:2], targets[:2], record_ids="ab"),
        lambda: pair.insert_many(rows[:2], targets[:2], record_ids={"a", "b"}),
        lambda: estimator.unfit(rows[[1, 7]], targets[[1, 7]], record_ids="17"),
        lambda: estimator.partial_fit(rows[:2], targets[:2], record_ids="ab"),
    ):
        with pytest.raises(TypeError, match="list of ids"):
            ask()
    assert (odometer.deletions_made, pair.inserts_seen) == (0, 60)
    pair.delete_many(["1", "7"])


@pytest.mark.parametrize("limits", [{"noise": 5}, 5, "strict", ServiceLimits])
def test_limits_that_are_none_are_refused_before_a_service_is_made(tmp_path, limits):
    with pytest.raises(TypeError, match="must be ServiceLimits"):
        open_service(tmp_path / "model.db", limits=limits)
    assert list(tmp_path.iterdir()) == []


def test_a_retrain_does_not_change_whose_record_it_is(tmp_path):
    """It was ignored: the file named one person, and the service had another."""
    with open_service(tmp_path / "model.db") as opened:
        fill(opened, [0], subject_id="ada")
        fill(opened, [1])
        tip = opened.status().tip
        for wrong in ((0, *record(0), "bob"), (1, *record(1), "ada")):
            with pytest.raises(RecordMismatch, match="another person's"):
                opened.retrain([wrong])
        for bad in ("ab", [(0,)], [(0, *record(0), "ada", 1)], [{"id": 0}], [None]):
            with pytest.raises(ValueError, match="records must be"):
                opened.retrain(bad)
        assert opened.status().tip == tip
        same = [(0, *record(0), "ada"), [1, *record(1)], (2, *record(2), "ada")]
        assert opened.retrain(same) == []
        assert len(opened.delete_subject("ada")) == 2
        assert opened.verify().ok


@pytest.mark.parametrize("key", [b"thirty-two bytes of a key, or so", 5, ["a"]])
def test_a_key_of_another_kind_is_refused_in_words(tmp_path, key):
    with pytest.raises(TypeError, match="memory_key must be a key file"):
        open_service(tmp_path / "model.db", memory_key=key)
    assert not (tmp_path / "model.db").exists()


def test_a_passphrase_that_no_file_could_hold_is_not_quoted():
    with pytest.raises(ValueError, match="text in Unicode") as told:
        Passphrase("secret \ud800 words")
    assert "secret" not in str(told.value) and told.value.__cause__ is None


def test_a_deadline_past_the_calendar_is_refused(kept):
    with pytest.raises(ValueError, match="before the year 10000"):
        kept.delete(1, deadline=timedelta(days=10**8))


def test_rows_that_do_not_fit_the_mode_are_refused_before_they_are_copied():
    """A hundred million features for a mode of four took ten seconds."""
    wide = np.broadcast_to(np.float64(0.0), (3, 10**8))
    began = time.monotonic()
    with pytest.raises(ValueError, match="the 4 features of the mode"):
        verify_against_retrain(OGD(4), stream(wide, np.zeros(3), {1: 0}))
    assert time.monotonic() - began < 1.0


def test_a_disk_that_is_full_is_told_in_the_words_of_a_service(tmp_path):
    """Those of a ledger speak of a key that calls to a service do not have."""
    path = tmp_path / "model.db"
    opened = open_service(path, durability="each")
    fill(opened, range(3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    acknowledged = 3
    try:
        most = path.stat().st_size + 4096
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        with pytest.raises(OutcomeUnknown) as told:
            for number in range(3, 200):
                opened.insert(*record(number), record_id=number)
                acknowledged += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
        opened.close()
    assert "Open the deletion service again" in str(told.value)
    assert "idempotency" not in str(told.value)
    with open_service(path) as again:
        assert again.status().live == acknowledged and again.verify().ok


TIME = "2026-11-18T12:00:00.000+00:00"


@pytest.mark.parametrize(
    ("row", "opens"),
    [
        (("x" * 64, 1, TIME, TIME, "rate"), True),
        (("live", 2, TIME, TIME, "rate"), True),
        (("live", 1, TIME, "soon", "rate"), False),
        (("live", 1, 5, TIME, "rate"), False),
        (("live", 1, TIME, TIME, "<b>"), False),
        (("live", "one", TIME, TIME, "rate"), False),
    ],
    ids=["stranger", "another generation", "deadline", "time", "reason", "generation"],
)
def test_a_queue_that_was_edited_is_found(tmp_path, row, opens):
    """`verify` did not look at it, and `status` ended in an error about dates."""
    path = tmp_path / "model.db"
    with open_service(path) as opened:
        fill(opened, range(3))
        certificate = opened.delete(1)
    live = sql(path, "SELECT pseudonym FROM demur_unlearning_records WHERE live")[0][0]
    row = [live if value == "live" else value for value in row]
    assert verify_certificate(certificate, path).ok
    sql(path, "INSERT INTO demur_unlearning_queue VALUES (?, ?, ?, ?, ?, NULL)", *row)
    problems = verify_certificate(certificate, path).problems
    assert any("a request in the queue is" in problem for problem in problems)
    if opens:
        with open_service(path) as again:
            assert again.status().queued == 1 and not again.verify().ok
    else:
        with pytest.raises(ServiceDamaged, match="in the queue"):
            open_service(path)
