"""Notes: facts about an entry, in the chain, free, and never in the way of a charge."""

import json

import pytest

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent
from demur.ledger import export_ledger
from tests.ledger.kit import BUDGET, UNIT, edit, says

FACTS = {"verdict": "not refuted", "n": 2000, "bound": 0.25, "steps": [1, 2, None]}


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(
        tmp_path / "ledger.db", dataset="people", budgets={UNIT: BUDGET}
    ) as ledger:
        yield ledger


def charged(ledger, label="a count"):
    return ledger.charge(says(GaussianEvent(8.0)), label=label)


def test_a_note_is_durable_ordered_and_free(ledger, tmp_path):
    entry = charged(ledger)
    spent = ledger.status()
    ledger.annotate(entry, "audit", FACTS)
    ledger.annotate(entry, "utility", {"name": "accuracy", "value": 0.5})
    assert ledger.status() == spent
    with Ledger.open(tmp_path / "ledger.db") as again:
        assert [n.about for n in again.notes()] == ["audit", "utility"]
        (audit,) = again.notes(entry, "audit")
        assert (audit.facts, audit.entry_id) == (FACTS, entry.id)
        assert again.entries() == [entry]
        assert again.verify().ok


def test_notes_are_found_by_entry_and_subject(ledger):
    first, second = charged(ledger, "one"), charged(ledger, "two")
    ledger.annotate(first, "audit", {"n": 1})
    ledger.annotate(second, "audit", {"n": 2})
    ledger.annotate(second, "utility", {"n": 3})
    assert [n.facts["n"] for n in ledger.notes(about="audit")] == [1, 2]
    assert [n.facts["n"] for n in ledger.notes(second)] == [2, 3]
    assert ledger.notes(first, "utility") == ()


def test_an_edited_note_breaks_the_chain(ledger, tmp_path):
    ledger.annotate(charged(ledger), "audit", {"verdict": "refuted"})
    assert ledger.verify().ok
    edit(
        tmp_path / "ledger.db",
        "UPDATE demur_rows SET body = replace(body, 'refuted', 'not refuted')"
        " WHERE kind = 'note'",
    )
    assert not ledger.verify().ok


@pytest.mark.parametrize(
    ("about", "facts", "error"),
    [
        ("", {"n": 1}, ValueError),
        ("Audit", {"n": 1}, ValueError),
        ("a" * 41, {"n": 1}, ValueError),
        (None, {"n": 1}, ValueError),
        ("audit", {}, TypeError),
        ("audit", [1], TypeError),
        ("audit", {1: 2}, TypeError),
        ("audit", {"n": float("nan")}, ValueError),
        ("audit", {"n": float("inf")}, ValueError),
        ("audit", {"n": object()}, ValueError),
        ("audit", {"n": "9" * 70_000}, ValueError),
    ],
)
def test_bad_notes_are_refused_and_leave_no_trace(ledger, about, facts, error):
    entry, tip = charged(ledger), ledger.tip
    before = tip()
    with pytest.raises(error):
        ledger.annotate(entry, about, facts)
    assert tip() == before


def test_facts_that_contain_themselves_are_refused(ledger):
    entry, facts = charged(ledger), {}
    facts["self"] = facts
    with pytest.raises(ValueError, match="plain data"):
        ledger.annotate(entry, "audit", facts)


def test_a_note_needs_an_entry_of_this_ledger(ledger):
    elsewhere = charged(Ledger(Budget(1.0, 1e-6), unit=UNIT))
    with pytest.raises(Exception, match="not an entry of this ledger"):
        ledger.annotate(elsewhere, "audit", FACTS)


def test_notes_are_in_the_export(ledger):
    ledger.annotate(charged(ledger), "audit", FACTS)
    (note,) = json.loads(json.dumps(export_ledger(ledger)))["notes"]
    assert (note["about"], note["facts"]) == ("audit", FACTS)
