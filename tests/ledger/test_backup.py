"""Backups of a ledger, its unfinished entries, and a ledger that is made once."""

import os
import sqlite3
import threading
from contextlib import closing

import pytest

from demur import AddOrRemoveOne, Budget, Ledger
from demur.core.errors import DemurError, LedgerMismatch, LedgerMissing, NoiseReuse
from demur.durable import atomic_files
from demur.ledger import backup_ledger, check_backup
from demur.mechanisms import Gaussian

UNIT = AddOrRemoveOne()
TERMS = {"dataset": "visits", "budgets": {UNIT: Budget(5.0, 1e-6)}}
COUNT = Gaussian(40.0, {UNIT: 1.0}, name="a count")


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", **TERMS) as made:
        made.charge(COUNT, label="one")
        yield made


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_backup_is_the_ledger_at_one_moment(ledger, tmp_path):
    tip = backup_ledger(ledger, tmp_path / "backup.db")
    assert tip == ledger.tip()
    ledger.charge(COUNT, label="two")
    with Ledger.open(tmp_path / "backup.db", tip=tip) as copy:
        assert [entry.label for entry in copy.entries()] == ["one"]
        assert copy.id == ledger.id and copy.verify(tip).ok
    check = check_backup(tmp_path / "backup.db", tip=str(tip), ledger=ledger)
    assert check.ok and check.tip == tip
    assert (check.behind_tip, check.behind_ledger) == (0, 1)
    assert check_backup(tmp_path / "backup.db", tip=ledger.tip()).behind_tip == 1
    later = backup_ledger(ledger, tmp_path / "later.db")
    assert check_backup(tmp_path / "later.db", tip=tip).behind_tip == -1
    assert check_backup(tmp_path / "later.db", ledger=ledger).behind_ledger == 0
    assert later == ledger.tip()


def test_a_backup_is_taken_while_others_write(ledger, tmp_path):
    done = threading.Event()

    def write():
        while not done.is_set():
            ledger.charge(COUNT, label="more")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for k in range(3):
            backup_ledger(ledger, tmp_path / f"{k}.db")
    finally:
        done.set()
        writer.join()
    for k in range(3):
        assert check_backup(tmp_path / f"{k}.db", ledger=ledger).ok


def test_no_file_is_ever_replaced(ledger, tmp_path, monkeypatch):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = names(tmp_path)
    for name in ("thesis.tex", "link", "ledger.db"):
        with pytest.raises(FileExistsError, match="never replaces"):
            backup_ledger(ledger, tmp_path / name)
    with pytest.raises(ValueError, match="no folder"):
        backup_ledger(ledger, tmp_path / "none" / "b.db")
    assert names(tmp_path) == before

    # One that appears in the meantime stays, too.
    real = atomic_files.link_if_free

    def late(aside, place):
        place.write_text("somebody's")
        return real(aside, place)

    monkeypatch.setattr(atomic_files, "link_if_free", late)
    with pytest.raises(FileExistsError):
        backup_ledger(ledger, tmp_path / "late.db")
    assert (tmp_path / "late.db").read_text() == "somebody's"
    assert names(tmp_path) == sorted([*before, "late.db"])


def test_a_backup_that_fails_leaves_nothing(ledger, tmp_path, monkeypatch):
    before = names(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "link_if_free", full)
    with pytest.raises(OSError, match="No space"):
        backup_ledger(ledger, tmp_path / "backup.db")
    assert names(tmp_path) == before


def test_only_a_ledger_in_a_file_is_copied(tmp_path):
    with pytest.raises(ValueError, match="in memory"):
        backup_ledger(Ledger(Budget(1.0, 1e-6), unit=UNIT), tmp_path / "b.db")
    assert names(tmp_path) == []


def test_a_check_changes_no_byte_and_finds_an_edit(ledger, tmp_path):
    path = tmp_path / "backup.db"
    backup_ledger(ledger, path)
    before, listed = path.read_bytes(), names(tmp_path)
    path.chmod(0o400)
    assert check_backup(path).ok
    assert path.read_bytes() == before and names(tmp_path) == listed
    path.chmod(0o600)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE demur_rows SET body = replace(body, 'one', 'eno')")
    assert any("row 1" in p for p in check_backup(path, ledger=ledger).problems)


def test_what_is_no_beginning_of_the_ledger_is_a_problem(ledger, tmp_path):
    backup_ledger(ledger, tmp_path / "old.db")
    ledger.charge(COUNT, label="two")
    backup_ledger(ledger, tmp_path / "new.db")
    with Ledger.open(tmp_path / "old.db", read_only=True) as restored:
        check = check_backup(tmp_path / "new.db", ledger=restored)
    assert not check.ok and check.behind_ledger is None
    assert "1 rows beyond the ledger" in check.problems[0]
    with Ledger.create(tmp_path / "other.db", **TERMS) as other:
        other.charge(COUNT, label="one")
        other.charge(COUNT, label="two")
        check = check_backup(tmp_path / "new.db", ledger=other)
    assert "is not in the ledger" in check.problems[0]
    wrong = f"1:{'0' * 64}"
    assert not check_backup(tmp_path / "new.db", tip=wrong).ok


def test_a_ledger_is_made_once(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    Ledger.create(path, **TERMS).close()
    tip = Ledger.open(path).tip()
    with pytest.raises(LedgerMismatch, match="already"):
        Ledger.create(path, **TERMS)
    # Another process may be first between the look and the making.
    monkeypatch.setattr("demur.ledger.ledger.LedgerStore.exists", lambda self: False)
    with pytest.raises(LedgerMismatch, match="already"):
        Ledger.create(path, **TERMS)
    monkeypatch.undo()
    assert Ledger.open(path).tip() == tip
    with pytest.raises(LedgerMissing):
        Ledger.open(tmp_path / "none.db", read_only=True)
    with pytest.raises(ValueError, match="dataset"):
        Ledger.create(tmp_path / "bad.db", **TERMS | {"dataset": ""})
    assert names(tmp_path) == ["a.db"]


def test_unfinished_entries_and_their_keys(ledger, tmp_path):
    COUNT.release([3.0], ledger=ledger, label="finished")
    job = {"digest": COUNT.digest([3.0]), "idempotency_key": "june"}
    cut = ledger.paid(COUNT, label="cut off", **job)
    path = tmp_path / "ledger.db"
    with Ledger.open(path, read_only=True) as reader:
        first, second = reader.unfinished()
        assert (first.entry.label, first.key) == ("one", None)
        assert second.entry == cut.entry and second.key.is_file()
        assert reader.commit_of(second.entry) is None
        finished = reader.entry(2)
        assert finished.label == "finished" and reader.commit_of(finished).artefact
        tip = reader.tip()
        reader.wipe_key(second.entry)
        assert reader.unfinished()[1].key is None and reader.tip() == tip
        for number in (3, 99):
            with pytest.raises(DemurError, match="is no entry"):
                reader.entry(number)
    assert not second.key.exists()
    with pytest.raises(NoiseReuse):
        _ = Ledger.open(path).paid(COUNT, label="cut off", **job).key
    assert os.listdir(second.key.parent) == ["input-digests.key"]
