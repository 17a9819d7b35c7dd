"""How a ledger is stored: what is found missing, written once and taken back."""

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from demur import AddOrRemoveOne, Budget, Filter, Ledger
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Repeated
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.durable import atomic_files
from demur.durable.chain import Tip, canonical
from demur.errors import LedgerDamaged, LedgerMismatch
from demur.ledger.storage import rows, tables
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.ledger_store import LedgerStore
from demur.ledger.storage.receipts import Receipt
from tests.ledger.kit import UNIT, ask, edit, says

COUNT = says(GaussianEvent(20.0))
TERMS = {"dataset": "people", "budgets": {UNIT: Budget(4.0, 1e-6)}}
SAMPLED = PoissonGaussian(0.01, 2.0)


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(place, opened):
    return opened(place, **TERMS)


# -- declarations --------------------------------------------------------------------


DAMAGE = {
    "missing": "DELETE FROM demur_declarations",
    "edited": "UPDATE demur_declarations SET body = replace(body, 'noisy', 'exact')",
}
READINGS = {
    "a reading": lambda ledger: ledger.reading(),
    "the entries": lambda ledger: ledger.entries(),
    "one entry": lambda ledger: ledger.entry(1),
    "a repeat": lambda ledger: ledger.find("k"),
    "a key": lambda ledger: ledger._journal.charged(ledger.charged_id),
    "a declaration": lambda ledger: ledger._journal.stored_declaration(
        digest_of_text(canonical(COUNT.to_json()))
    ),
    "a charge": lambda ledger: ledger.charge(COUNT, label="x", idempotency_key="k"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("reading", READINGS)
def test_a_declaration_that_is_not_what_was_paid_for_is_not_read(
    ledger, place, damage, reading
):
    ledger.charged_id = ledger.charge(COUNT, label="x", idempotency_key="k").id
    READINGS[reading](ledger)
    edit(place, DAMAGE[damage])
    with pytest.raises(LedgerDamaged, match="is missing or was edited"):
        READINGS[reading](ledger)


def test_a_file_that_was_put_back_gets_its_declarations_again(ledger, place):
    """What one transaction has seen says nothing about a file a moment later."""
    for _ in range(3):
        ledger.charge(COUNT, label="x")
    edit(place, DAMAGE["missing"])
    ledger.charge(COUNT, label="y")
    stored = ask(place, "SELECT digest, body FROM demur_declarations")
    text = canonical(COUNT.to_json())
    assert stored == [(digest_of_text(text), text)]


def test_a_declaration_and_a_profile_are_stored_once(place, opened):
    ledger = opened(place, filter=Filter.gaussian(blocks=0.5), **TERMS)
    for _ in range(2):
        ledger.charge(says(SAMPLED), label="x")
    ledger.paid(says(SAMPLED), label="y", count=2)
    ((declared,),) = ask(place, "SELECT count(*) FROM demur_declarations")
    events = ask(place, "SELECT event, digest, event_body, body FROM demur_profiles")
    assert declared == 1 and len(events) == 2
    expected = rows.profiles_of(says(SAMPLED)) | rows.profiles_of(says(SAMPLED), 2)
    assert {event: (digest, body, data) for event, digest, body, data in events} == {
        event: (each.digest, canonical(rows.events.to_json(each.event)), each.data)
        for event, each in expected.items()
    }


def test_the_profile_of_a_charge_is_that_of_all_its_runs():
    one, ten = rows.profiles_of(says(SAMPLED)), rows.profiles_of(says(SAMPLED), 10)
    assert [each.event for each in one.values()] == [SAMPLED]
    assert [each.event for each in ten.values()] == [Repeated(SAMPLED, 10)]
    assert rows.profiles_of(COUNT) == {}
    two = Declaration(
        "two",
        Cost((Fixed(UNIT, GaussianEvent(2.0)), Fixed(AddOrRemoveOne(2), SAMPLED))),
    )
    assert [each.event for each in rows.profiles_of(two).values()] == [SAMPLED]


def test_equal_charges_are_read_as_a_group(ledger):
    for label in ("one", "two", "three"):
        ledger.paid(COUNT, label=label, count=2)
    ledger.paid(COUNT, label="four")
    with ledger._store.read() as connection:
        groups = rows.groups(connection)
    assert [(g.declaration, *list(vars(g).values())[1:]) for g in groups] == [
        (COUNT, 3, 6, "one", True),
        (COUNT, 1, 1, "four", True),
    ]


# -- the schema ----------------------------------------------------------------------


def test_the_tables_of_a_file_are_these(ledger, place):
    """Types, keys and indexes of a file that was made, which old files have too."""
    with closing(sqlite3.connect(place)) as connection:
        schema = dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
        )
        indexes = {
            (table, name): unique
            for table in schema
            for _, name, unique, *_ in connection.execute(f"PRAGMA index_list({table})")
            if not name.startswith("sqlite_")
        }
    plain = {name: " ".join(text.split()) for name, text in schema.items()}
    assert "event_body TEXT NOT NULL" in plain["demur_profiles"]
    assert "body BLOB NOT NULL" in plain["demur_profiles"]
    assert "body TEXT NOT NULL" in plain["demur_declarations"]
    assert "UNIQUE (idempotency_key)" in plain["demur_rows"]
    assert "sequence BIGINT NOT NULL" in plain["demur_rows"]
    assert set(indexes) == {
        ("demur_rows", "ix_demur_rows_entry_id"),
        ("demur_rows", "ix_demur_rows_declaration"),
    } and set(indexes.values()) == {0}


def test_a_ledger_that_is_up_to_date_is_only_read_when_it_is_opened(
    ledger, place, opened, monkeypatch
):
    def write(self):
        raise AssertionError("it is written to")

    monkeypatch.setattr(LedgerStore, "write", write)
    assert opened(place).id == ledger.id


@pytest.mark.parametrize("version", [0, 99])
def test_a_schema_that_is_not_known_is_refused(ledger, place, opened, version):
    edit(place, f"UPDATE demur_ledger SET schema_version = {version}")
    words = "reads up to" if version else "from which no migration is known"
    with pytest.raises(LedgerMismatch, match=f"has schema {version}.*{words}"):
        opened(place)
    assert ask(place, "SELECT schema_version FROM demur_ledger") == [(version,)]
    assert max(tables.KNOWN_VERSIONS) >= tables.SCHEMA_VERSION


# -- making a ledger -----------------------------------------------------------------


def test_a_ledger_that_was_created_stays_open(place, monkeypatch):
    made, closed = [], []
    attach, close = Ledger._attach, LedgerStore.close

    def heard(self, store, *given, **named):
        made.append(store)
        return attach(self, store, *given, **named)

    monkeypatch.setattr(Ledger, "_attach", heard)

    def closing(self):
        closed.append(self)
        close(self)

    monkeypatch.setattr(LedgerStore, "close", closing)
    ledger = Ledger.create(place, **TERMS)
    again = Ledger.open(place)
    assert made == [ledger._store, again._store]
    assert not set(made) & set(closed)
    with pytest.raises(LedgerMismatch, match="dataset"):
        Ledger.open(place, dataset="others")
    assert made[-1] in closed, "a refusal leaves no connection open"
    closed.clear()
    with pytest.raises(LedgerMismatch, match="there is a ledger at"):
        Ledger.create(place, **TERMS)
    assert closed, "nor does this one"
    for each in (ledger, again):
        each.close()
    assert {ledger._store, again._store} <= set(closed)


def test_ledgers_are_told_apart(place, opened, tmp_path):
    one, two = opened(place, **TERMS), opened(tmp_path / "two.db", **TERMS)
    assert one.id != two.id and len(one.id) == len(two.id) == 32
    assert one.tip() != two.tip(), "the chain begins with the ledger"
    assert one.tip().sequence == 0 and one.contains(one.tip())
    assert not one.contains(two.tip()) and not one.contains(Tip(1, "0" * 64))


# -- what was acknowledged -----------------------------------------------------------


def receipts(ledger, count):
    entries = [ledger.charge(COUNT, label=f"{n}") for n in range(count)]
    return [ledger.receipt(entry) for entry in entries], entries


def test_the_newest_row_is_remembered_and_the_last_thousand(ledger):
    made, entries = receipts(ledger, 3)
    known = Acknowledged(ledger.id, None)
    assert known.newest is None
    known.keep([])
    assert known.newest is None
    known.keep(reversed(made))
    assert known.newest == made[-1].tip
    known.know(made[0].tip)
    assert known.newest == made[-1].tip, "an older row changes nothing"
    known.know(Tip(7, "0" * 64))
    assert known.newest.sequence == 7
    for receipt, entry in zip(made, entries, strict=True):
        assert known.receipt(entry.sequence, entry.id) == receipt
        assert known.receipt(entry.sequence + 1, entry.id) is None
        assert known.receipt(entry.sequence, "f" * 32) is None
    assert known._recent.maxlen == 1000


def test_receipts_follow_from_each_other_and_survive_json(ledger):
    made, _ = receipts(ledger, 3)
    for before, after in zip(made, made[1:], strict=False):
        assert after.follows == before.tip
    for receipt in made:
        assert Receipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt
    good = made[0].to_json()
    wrong = [
        None,
        [],
        {},
        good | {"more": 1},
        good | {"sequence": "1"},
        good | {"previous": "x"},
        good | {"body": "{}x"},
        good | {"body": "[]"},
        good | {"body": '{"a":  1}'},
        good | {"body": "[" * 100_000},
        good | {"declaration": 5},
        good | {"signature": 5},
        {key: value for key, value in good.items() if key != "signature"},
    ]
    for data in wrong:
        with pytest.raises(ValueError):
            Receipt.from_json(data)


# -- files ---------------------------------------------------------------------------


def aside(folder, *names):
    return [
        (atomic_files.written_aside(folder / name, f"new {name}"), folder / name)
        for name in names
    ]


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_file_written_aside_is_hidden_and_has_one_line(tmp_path):
    ((temporary, place),) = aside(tmp_path, "a")
    assert temporary.parent == tmp_path and temporary.name.startswith(".a.")
    assert temporary.name.endswith(".partial") and temporary.read_text() == "new a\n"
    assert not place.exists()
    names = {atomic_files.temporary_name(place) for _ in range(20)}
    assert len(names) == 20


def test_a_file_that_cannot_be_written_is_not_left(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        atomic_files.written_aside(tmp_path / "a", "a line")
    assert content(tmp_path) == {}


def test_files_replace_others_together(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text("old")
    order, replace = [], os.replace

    def heard(source, target):
        order.append((Path(target).name, sorted(p.name for p in tmp_path.glob("?"))))
        replace(source, target)

    monkeypatch.setattr(os, "replace", heard)
    atomic_files.name_all(aside(tmp_path, "a", "b", "c"), replace=True)
    assert content(tmp_path) == {name: f"new {name}\n" for name in "abc"}
    # The later names are gone before the first is given.
    assert order == [("a", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]


def test_files_are_named_together_or_not_at_all(tmp_path):
    pairs = aside(tmp_path, "a", "b")
    atomic_files.name_all(pairs)
    assert {place.read_text() for _, place in pairs} == {"new a\n", "new b\n"}
    atomic_files.name_all(aside(tmp_path, "a", "b"))  # the same files: all is well
    (tmp_path / "b").write_text("another")
    (tmp_path / "a").unlink()
    with pytest.raises(FileExistsError, match="another file is there"):
        atomic_files.name_all(aside(tmp_path, "a", "b", "c"))
    assert not (tmp_path / "a").exists() and not (tmp_path / "c").exists()
    assert (tmp_path / "b").read_text() == "another"


def test_a_name_is_taken_if_it_is_free(tmp_path, monkeypatch):
    ((temporary, place),) = aside(tmp_path, "a")
    assert atomic_files.link_if_free(temporary, place)
    assert not atomic_files.link_if_free(temporary, place)
    assert place.read_text() == "new a\n"

    def no_links(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    ((temporary, place),) = aside(tmp_path, "b")
    assert atomic_files.link_if_free(temporary, place) and not temporary.exists()
    ((temporary, _),) = aside(tmp_path, "c")
    assert not atomic_files.link_if_free(temporary, place)
    assert place.read_text() == "new b\n"
    place.unlink()
    place.symlink_to(tmp_path / "nowhere")
    assert not atomic_files.link_if_free(temporary, place), "a link is a name too"


def test_names_are_given_under_a_lock_of_the_folder(tmp_path, monkeypatch):
    asked, opened_ones = [], []
    flock, close = atomic_files.fcntl.flock, os.close

    def locking(descriptor, how):
        asked.append(how)
        flock(descriptor, how)

    def closing(descriptor):
        opened_ones.append(descriptor)
        close(descriptor)

    monkeypatch.setattr(atomic_files.fcntl, "flock", locking)
    monkeypatch.setattr(os, "close", closing)
    ((temporary, place),) = aside(tmp_path, "a")
    atomic_files.link_if_free(temporary, place)
    assert asked == [atomic_files.fcntl.LOCK_EX] and len(opened_ones) == 1
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    atomic_files.sync_folder(tmp_path)
    assert synced == opened_ones[1:] and len(synced) == 1
