"""Backups of a running service: of one moment, and refused if they lack deletions."""

import shutil
import sqlite3
import threading

import pytest

from demur import unlearning
from demur.core.adjacency import Erasure
from demur.durable import database_files, sqlite
from demur.ledger import Budget, Ledger
from demur.unlearning import ServiceBusy, ServiceDamaged, verify_certificate
from demur.unlearning.service import backup as backups
from tests.unlearning.service_kit import (
    UnlearningService,
    bytes_of,
    fill,
    open_service,
    record,
)

pytestmark = pytest.mark.slow
CASES = {
    "ogd": {},
    "joint": {"scope": "joint", "capacity": 9},
    "encrypted": {"mode": "ridge", "record_store": "encrypted"},
    "logistic": {"mode": "logistic"},
}


def own_folder(tmp_path):
    """A service in a folder of its own: backups with keys lie elsewhere."""
    (tmp_path / "service").mkdir()
    return tmp_path / "service" / "model.db"


@pytest.mark.parametrize(
    "case",
    [
        "encrypted",
        *(pytest.param(c, marks=pytest.mark.deep) for c in CASES if c != "encrypted"),
    ],
)
def test_a_backup_with_keys_is_the_service_of_one_moment(tmp_path, case):
    with open_service(own_folder(tmp_path), **CASES[case]) as service:
        fill(service, range(8))
        held = service.delete(1, *record(1))
        service.retrain([(n, *record(n)) for n in range(2, 8)])
        fill(service, [8], flush=False)  # not acknowledged yet: the backup has it
        tip = service.backup(tmp_path / "copy", keys=True)
        expected = service.published().tolist()
        fill(service, [9])
    copy = tmp_path / "copy" / "model.db"
    assert not any("records.db" in name for name in bytes_of(copy))
    with UnlearningService.open(copy, tip=tip) as service:
        assert service.published().tolist() == expected
        assert service.status().tip == tip and service.status().live == 7
        assert service.verify().ok and service.certificate(1) == held
        service.delete(3, *record(3))
        assert service.verify().ok
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700


def test_a_backup_without_keys_goes_back_beside_them(tmp_path):
    path = tmp_path / "model.db"
    with open_service(path) as service:
        fill(service, range(4))
        service.delete(0)
        service.backup(tmp_path / "copy")
        fill(service, [5])
    assert not (tmp_path / "copy" / "model.db.keys").exists()
    with pytest.raises(unlearning.ServiceMismatch, match="not beside"):
        UnlearningService.open(tmp_path / "copy" / "model.db")
    shutil.copy(tmp_path / "copy" / "model.db", path)  # the file was lost
    with UnlearningService.open(path) as service:
        assert service.status().live == 3 and service.verify().ok


@pytest.mark.parametrize("keys", [True, False])
def test_a_backup_from_before_a_deletion_is_refused(tmp_path, keys):
    """By the ledger that was not lost; by a tip, if that was put back as well."""
    path, copy = own_folder(tmp_path), tmp_path / "copy"
    with open_service(path) as service:
        fill(service, range(4))
        service.backup(copy, keys=keys)
        held = service.delete(1)
        tip = service.status().tip
    shutil.copy(copy / "model.db", path)
    if keys:
        shutil.copytree(copy / "model.db.keys", f"{path}.keys", dirs_exist_ok=True)
    with pytest.raises(ServiceDamaged, match="still deleted|seal key"):
        UnlearningService.open(path)
    if keys:  # everything is put back: nothing here knows of the deletion
        for left in path.parent.glob("model.db.ledger-1*"):
            left.unlink() if left.is_file() else shutil.rmtree(left)
        shutil.copy(copy / "model.db.ledger-1", path.parent)
        with pytest.raises(ServiceDamaged, match="row .* of this tip"):
            UnlearningService.open(path, tip=str(tip))
        UnlearningService.open(path).close()
        assert "no deletion of this record" in str(verify_certificate(held, path))


def deleting(service, numbers):
    """A copy of the database, and a deletion between that and what comes next."""
    copied, left = backups.sqlite.copy_database, list(numbers)

    def copy(source, target):
        copied(source, target)
        if left:
            service.delete(left.pop())

    return copy


@pytest.mark.parametrize("keys", [True, False])
def test_a_deletion_meanwhile_is_noticed(tmp_path, monkeypatch, keys):
    """A reader copies beside the running service, whose deletions come in between."""
    path = own_folder(tmp_path)
    with (
        open_service(path) as service,
        UnlearningService.open(path, read_only=True) as reader,
    ):
        fill(service, range(9))
        monkeypatch.setattr(
            backups.sqlite, "copy_database", deleting(service, [1, 2, 3])
        )
        tip = reader.backup(tmp_path / "copy", keys=keys)
        assert tip == service.status().tip and service.status().live == 6
    if not keys:
        shutil.copytree(f"{path}.keys", tmp_path / "copy" / "model.db.keys")
    with UnlearningService.open(tmp_path / "copy" / "model.db") as copy:
        assert copy.status().live == 6 and copy.verify().ok


def test_the_twin_that_copies_once_makes_a_backup_of_two_moments(tmp_path, monkeypatch):
    path = tmp_path / "model.db"
    monkeypatch.setattr(backups, "_last_intent", lambda _: 0)
    with (
        open_service(path) as service,
        UnlearningService.open(path, read_only=True) as reader,
    ):
        fill(service, range(4))
        monkeypatch.setattr(backups.sqlite, "copy_database", deleting(service, [1]))
        reader.backup(tmp_path / "copy")
    shutil.copytree(f"{path}.keys", tmp_path / "copy" / "model.db.keys")
    with pytest.raises(ServiceDamaged):
        UnlearningService.open(tmp_path / "copy" / "model.db")


@pytest.mark.deep
def test_backups_beside_a_busy_writer_all_open(tmp_path):
    path, stop = own_folder(tmp_path), threading.Event()
    taken = []

    def read():
        with UnlearningService.open(path, read_only=True) as reader:
            while not stop.is_set() and len(taken) < 4:
                reader.backup(tmp_path / f"copy{len(taken)}", keys=True)
                taken.append(1)

    with open_service(path) as service:
        fill(service, range(40))
        thread = threading.Thread(target=read)
        thread.start()
        for number in range(40, 52):
            service.insert(*record(number), record_id=number)
            service.delete(number - 40)
        stop.set()
        thread.join()
    assert taken
    for number in range(len(taken)):
        with UnlearningService.open(tmp_path / f"copy{number}" / "model.db") as copy:
            assert copy.verify().ok


def test_no_moment_between_deletions_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    path = tmp_path / "model.db"
    monkeypatch.setattr(backups, "_last_intent", lambda _: None)
    monkeypatch.setattr(backups, "_WAIT", 0.0)
    with open_service(path) as service:
        before = sorted(p.name for p in tmp_path.iterdir())
        with pytest.raises(ServiceBusy, match="Nothing was written"):
            service.backup(tmp_path / "copy")
        (tmp_path / "there").mkdir()
        with pytest.raises(FileExistsError):
            service.backup(tmp_path / "there")
        with pytest.raises(ValueError, match="no folder"):
            service.backup(tmp_path / "nowhere" / "copy")
    (tmp_path / "there").rmdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_shared_ledger_is_backed_up_by_itself(tmp_path):
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    with Ledger.open(tmp_path / "shared.db", dataset="d", budgets=budgets) as ledger:
        with open_service(own_folder(tmp_path), ledger=ledger) as service:
            fill(service, range(3))
            service.delete(1)
            service.backup(tmp_path / "copy", keys=True)
        assert not list((tmp_path / "copy").glob("*ledger*"))
        with UnlearningService.open(
            tmp_path / "copy" / "model.db", ledger=ledger
        ) as copy:
            assert copy.verify().ok


@pytest.mark.parametrize("full", ["copy_database", "make_whole"])
def test_a_disk_that_is_full_is_said_to_be_one(tmp_path, monkeypatch, full):
    """It is no defect of demur, and nothing is left."""

    def refuses(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    module = sqlite if full == "copy_database" else database_files
    with open_service(tmp_path / "model.db") as service:
        fill(service, range(2))
        before = sorted(tmp_path.iterdir())
        monkeypatch.setattr(module, full, refuses)
        with pytest.raises(OSError, match="the disk is full, or refuses"):
            if full == "copy_database":
                service.backup(tmp_path / "copy")
            else:
                service.evidence(tmp_path / "evidence.db")
        assert sorted(tmp_path.iterdir()) == before
        keys = tmp_path / "model.db.keys" / "copy"
        with pytest.raises(ValueError, match="does not belong"):
            service.backup(keys)


def test_keys_that_a_deletion_erases_do_not_stay_in_the_services_folder(tmp_path):
    """A copy of the seal's key beside the service would outlive the deletion."""
    path = own_folder(tmp_path)
    with open_service(path) as service:
        before = sorted(path.parent.iterdir())
        for place in (path.parent / "copy", tmp_path / "service" / ".." / "service/b"):
            with pytest.raises(ValueError, match="does not belong in the folder of"):
                service.backup(place, keys=True)
        assert sorted(path.parent.iterdir()) == before
        service.backup(path.parent / "copy")  # without keys nothing is told
