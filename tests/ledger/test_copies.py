"""Copied, moved, emptied, removed: no second budget by accident.

The attacks: copy the main file alone, at any moment; open what is no ledger; take the
file away while it is open; make a new ledger where one was.
"""

import shutil
import sqlite3

import pytest

from demur import Ledger
from demur.core.accounting.events import GaussianEvent
from demur.durable import atomic_files, sqlite
from demur.durable.store import Store
from demur.errors import (
    LedgerDamaged,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnreachable,
)
from demur.ledger.storage import ledger_store
from demur.ledger.storage.header import Header
from tests.ledger.kit import BUDGET, UNIT, edit, says

TERMS = {"dataset": "people", "budgets": {UNIT: BUDGET}}
NOISY = says(GaussianEvent(20.0))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def ahead(monkeypatch):
    """The sabotaged twin: a write-ahead log, which nothing moves into the file."""
    monkeypatch.setattr(sqlite, "JOURNAL", "wal")


def entries_in_a_copy(path):
    """What somebody has who copies the one file that they know of."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    with Ledger.open(copy, **TERMS) as ledger:
        count = len(ledger.entries())
    copy.unlink()
    sqlite.journal_of(copy).unlink(missing_ok=True)
    return count


def test_a_copy_of_the_file_has_every_acknowledged_charge(path):
    with Ledger.open(path, **TERMS) as ledger:
        for charged in range(1, 9):
            ledger.charge(NOISY, label="x")
            assert entries_in_a_copy(path) == charged


def test_with_a_log_beside_it_a_copy_has_none(path, ahead):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="x")
        assert entries_in_a_copy(path) == 0


def reading(path):
    """A reader that holds its snapshot: somebody's browser of databases."""
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM demur_rows").fetchone()
    return reader


def test_past_a_reader_nothing_is_acknowledged(path, monkeypatch):
    monkeypatch.setattr(sqlite, "PATIENCE_SECONDS", 0.2)
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="before")
        reader = reading(path)
        with pytest.raises(LedgerUnreachable, match="locked.*Nothing was spent"):
            ledger.charge(NOISY, label="meanwhile")
        assert entries_in_a_copy(path) == len(ledger.entries()) == 1
        reader.close()
        ledger.charge(NOISY, label="after")
        assert entries_in_a_copy(path) == 2


def test_with_a_log_a_charge_past_a_reader_is_missing_from_a_copy(path, ahead):
    with Ledger.open(path, **TERMS) as ledger:
        reader = reading(path)
        ledger.charge(NOISY, label="meanwhile")
        assert entries_in_a_copy(path) == 0
        reader.close()


def put_ahead(path):
    """A habit of tools that replicate or browse: the mode is the file's, for all."""
    other = sqlite3.connect(path, isolation_level=None)
    assert other.execute("PRAGMA journal_mode=wal").fetchone() == ("wal",)
    return other


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_put_into_another_mode_takes_no_charge(path, honest, monkeypatch):
    """Without the look, a charge would be acknowledged and not be in the file."""
    monkeypatch.setattr(sqlite, "PATIENCE_SECONDS", 0.2)
    if not honest:
        monkeypatch.setattr(sqlite, "_check_journal", lambda *_: None)
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="before")
        other = put_ahead(path)
        if not honest:
            ledger.charge(NOISY, label="meanwhile")
            content = path.read_bytes()
            copy = path.with_name("copy.db")
            copy.write_bytes(content)
            left = sqlite3.connect(copy)
            assert left.execute("SELECT count(*) FROM demur_rows").fetchone() == (1,)
            left.close()
            other.close()
            return
        with pytest.raises(LedgerRefused, match="journal_mode=wal.*Nothing was"):
            ledger.charge(NOISY, label="meanwhile")
        with pytest.raises(LedgerUnreachable, match="locked"):
            Ledger.open(path).charge(NOISY, label="meanwhile")
        other.close()
    with Ledger.open(path) as again:  # back in the ledger's own mode
        again.charge(NOISY, label="after")
        assert entries_in_a_copy(path) == 2


def folder(path):
    """Every file beside this one, and what is in it."""
    return {p.name: p.read_bytes() for p in path.parent.iterdir() if p.is_file()}


def other_program(path, journal):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.execute("INSERT INTO recipes VALUES ('soup')")
    connection.commit()
    connection.close()


def empty_database(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=1")
    connection.close()


FOREIGN = {
    "an empty file": lambda path: path.touch(),
    "a database without tables": empty_database,
    "another program's": lambda path: other_program(path, "delete"),
    "another program's, with a log": lambda path: other_program(path, "wal"),
    "a text": lambda path: path.write_text("dear diary\n" * 500),
    "a short text": lambda path: path.write_text("hello"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("terms", [TERMS, {}, {"read_only": True}])
def test_what_is_no_ledger_is_refused_and_left_as_it_was(path, name, terms):
    FOREIGN[name](path)
    before = folder(path)
    with pytest.raises((LedgerMismatch, LedgerDamaged), match="Nothing was changed"):
        Ledger.open(path, **terms)
    assert folder(path) == before


def test_the_main_file_of_a_log_that_was_left_behind_is_refused(tmp_path):
    """Everything is in the log of another program's mode, and the log is not copied."""
    path, copy = tmp_path / "a.db", tmp_path / "b.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute("CREATE TABLE demur_ledger (id INTEGER)")
    connection.commit()
    shutil.copyfile(path, copy)  # before anything is moved
    connection.close()
    with pytest.raises(LedgerMismatch, match="file without a ledger"):
        Ledger.open(copy, **TERMS)


def test_a_ledger_that_was_taken_away_is_not_begun_anew(path):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="x", digest="d", idempotency_key="k")
    path.rename(path.with_name("moved.db"))
    before = folder(path)
    with pytest.raises(LedgerMismatch, match=r"'ledger\.db\.keys'.*second budget"):
        Ledger.open(path, **TERMS)
    assert folder(path) == before


def test_a_journal_without_its_ledger_is_a_ledger_taken_away(path):
    sqlite.journal_of(path).write_bytes(b"x" * 512)
    with pytest.raises(LedgerMismatch, match=r"'ledger\.db-journal'.*second budget"):
        Ledger.open(path, **TERMS)
    assert not path.exists()


def remove(path):
    path.unlink()


def replace(path):
    aside = path.with_name("older.db")
    shutil.copyfile(path, aside)
    aside.replace(path)


@pytest.mark.parametrize("harm", [remove, replace])
def test_a_file_taken_away_under_an_open_ledger_takes_no_more(path, harm):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="before")
        harm(path)
        with pytest.raises(LedgerDamaged, match="removed|replaced"):
            ledger.charge(NOISY, label="after")
        with pytest.raises(LedgerDamaged, match="removed|replaced"):
            ledger.entries()
        before = folder(path)
        ledger.close()  # and connects anew
        with pytest.raises(LedgerDamaged, match="removed|replaced"):
            ledger.charge(NOISY, label="after")
        assert folder(path) == before


def test_without_the_look_it_would_be_paid_into_nowhere(path, ahead, monkeypatch):
    """The sabotaged twin (SQLite looks for itself when it writes without a log)."""
    monkeypatch.setattr(Store, "_check_file", lambda _: None)
    with Ledger.open(path, **TERMS) as ledger:
        kept = path.with_name("kept.db")
        shutil.copyfile(path, kept)
        remove(path)
        ledger.charge(NOISY, label="after")
        assert not path.exists()
        with Ledger.open(kept) as left:
            assert left.entries() == []


@pytest.mark.parametrize("at", ["_fill", "atomic_files"])
def test_a_ledger_that_was_not_made_to_the_end_is_not_there(path, at, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    if at == "_fill":
        monkeypatch.setattr(ledger_store, "_fill", killed)
    else:
        monkeypatch.setattr(atomic_files, "link_if_free", killed)
    with pytest.raises(KeyboardInterrupt):
        Ledger.open(path, **TERMS)
    assert folder(path) == {}
    monkeypatch.undo()
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="x")


TORN = {  # what a copy may hold that was taken between two pages of one write
    "the row without the header": "UPDATE demur_ledger SET sequence = 1, hash ="
    " (SELECT hash FROM demur_rows WHERE sequence = 1)",
    "the header without the row": "DELETE FROM demur_rows WHERE sequence = 2",
}


@pytest.mark.parametrize("tear", TORN)
@pytest.mark.parametrize("honest", [True, False])
def test_a_copy_taken_in_the_middle_of_a_write_is_read_only(
    path, tear, honest, monkeypatch
):
    """Without the look at the end of the chain it would be written to."""
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="one")
        ledger.charge(NOISY, label="two")
    edit(str(path), TORN[tear])
    if not honest:
        monkeypatch.setattr(Header, "ends", lambda *_: True)
    with Ledger.open(path) as ledger:
        assert not ledger.verify().ok
        if honest:
            with pytest.raises(LedgerDamaged, match="middle of a write"):
                ledger.charge(NOISY, label="three")
        elif "without the row" in tear:
            ledger.charge(NOISY, label="three")


def test_links_to_one_ledger_are_one_ledger(path, opened):
    asked = {"label": "one", "digest": "d", "idempotency_key": "k"}
    ledger = opened(path, **TERMS)
    entry = ledger.charge(NOISY, **asked)
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.db").symlink_to(path)
    same = opened(elsewhere / "link.db")
    assert same.charge(NOISY, **asked) == entry  # under the same secret
    assert same.id == ledger.id and len(same.entries()) == 1
    assert {p.name for p in elsewhere.iterdir()} == {"link.db"}
