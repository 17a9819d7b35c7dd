"""What a store says of its ledger: nothing in it becomes a path, all of it is fixed."""

import re

import pytest

from demur.core.accounting.events import GaussianEvent
from demur.core.digest import digest_of_text
from demur.errors import LedgerDamaged, LedgerMismatch
from demur.ledger.storage import header
from demur.ledger.storage.header import Header
from tests.ledger.kit import BUDGET, UNIT, ask, edit, says

pytestmark = pytest.mark.slow
NOISY = says(GaussianEvent(20.0))
REPEATABLE = {"label": "count", "digest": "d" * 64, "idempotency_key": "monday"}


@pytest.fixture(params=["empty", "used"])
def ledger(request, new_ledger):
    ledger = new_ledger()
    if request.param == "used":
        ledger.charge(NOISY, label="before")
    return ledger


def set_id(url, text):
    edit(url, "UPDATE demur_ledger SET ledger_id = '" + str(text) + "'")


@pytest.mark.parametrize(
    "shape",
    ["{folder}/taken", "../../taken", "taken", "", "A" * 32, "0" * 33, "0\n" * 16],
)
def test_an_id_is_digits_or_refused(ledger, ledger_url, opened, tmp_path, shape):
    set_id(ledger_url, shape.format(folder=tmp_path)[:64])
    before = {p.name for p in tmp_path.iterdir()}
    with pytest.raises(LedgerDamaged, match="32 hexadecimal digits"):
        opened(ledger_url)
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.postgres
def test_without_the_check_a_server_would_receive_the_keys(
    postgres_url, opened, tmp_path, monkeypatch
):
    """The sabotaged twin: the keeper of the server names a folder of their own."""
    terms = {"dataset": "d", "budgets": {UNIT: BUDGET}}
    opened(postgres_url, **terms)
    set_id(postgres_url, "../taken")  # from where keys would lie
    monkeypatch.setattr(header, "_LEDGER_ID", re.compile(".*"))
    monkeypatch.setattr(Header, "begins", lambda *_: True)
    opened(postgres_url).charge(NOISY, **REPEATABLE)
    assert "input-digests.key" in {p.name for p in (tmp_path / "taken").iterdir()}


def other_id(url):
    set_id(url, "0" * 32)


def other_terms(url):
    ((text,),) = ask(url, "SELECT terms FROM demur_ledger")
    larger = text.replace('"epsilon":', '"epsilon":9')
    assert larger != text
    edit(url, "UPDATE demur_ledger SET terms = :x", x=larger)


@pytest.mark.parametrize("change", [other_id, other_terms])
def test_a_changed_ledger_is_read_and_not_written(ledger, ledger_url, opened, change):
    entries = [entry.id for entry in ledger.entries()]
    change(ledger_url)
    changed = opened(ledger_url)
    assert [entry.id for entry in changed.entries()] == entries
    found = changed.verify()
    assert any("id, schema and terms" in problem for problem in found.problems)
    with pytest.raises(LedgerDamaged, match="does not begin as it was made"):
        changed.charge(NOISY, label="after")
    assert [entry.id for entry in changed.entries()] == entries


@pytest.mark.parametrize("change", [other_id, other_terms])
def test_a_genesis_without_them_would_not_notice(
    new_ledger, ledger_url, opened, change, monkeypatch
):
    """The sabotaged twin: the chain begins at a constant."""
    monkeypatch.setattr(header, "_genesis", lambda *_: digest_of_text("a ledger"))
    new_ledger().charge(NOISY, label="before")
    change(ledger_url)
    changed = opened(ledger_url)
    assert changed.verify().ok
    changed.charge(NOISY, label="after")


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 7, 99])
def test_another_schema_is_refused(ledger, ledger_url, opened, version):
    edit(ledger_url, f"UPDATE demur_ledger SET schema_version = {version}")
    with pytest.raises(LedgerMismatch, match=f"schema {version}"):
        opened(ledger_url)


@pytest.mark.parametrize("rows", [0, 2])
def test_one_address_holds_one_ledger(ledger, ledger_url, opened, rows):
    statement = (
        "INSERT INTO demur_ledger SELECT 2, schema_version, ledger_id, sequence, hash,"
        " totals, terms FROM demur_ledger"
        if rows
        else "DELETE FROM demur_ledger"
    )
    edit(ledger_url, statement)
    with pytest.raises((LedgerDamaged, LedgerMismatch), match="rows|no ledger"):
        opened(ledger_url)
    with pytest.raises(LedgerDamaged, match=f"has {rows} rows"):
        ledger.tip()
