"""Exports: every number is the ledger's, and the registry's words fit."""

import json

import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    Declaration,
    Erasure,
    Ledger,
    ReplaceOne,
    Seeded,
    ZeroOut,
)
from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.cost import Cost, Fixed
from demur.ledger import export_ledger, registry_records
from tests.ledger.kit import UNIT, says

WORDS = {"product": "P", "organisation": "O"}


def ledger_of(*units):
    return Ledger(dict.fromkeys(units, Budget(2.0, 1e-6)), dataset="people")


@pytest.fixture
def ledger():
    ledger = ledger_of(UNIT)
    ledger.charge(says(GaussianEvent(12.0), unprotected=("labels",)), label="one")
    ledger.charge(says(GaussianEvent(9.0), name="another"), label="two")
    return ledger


def test_an_export_holds_the_ledgers_own_numbers(ledger):
    data = export_ledger(ledger)
    assert json.loads(json.dumps(data)) == data
    assert (data["format"], data["dataset"]) == (1, "people")
    assert data["filter"] == str(ledger.terms.filter)
    assert data["private"] is True
    (budget,) = data["budgets"]
    (status,) = ledger.status()
    assert budget["unit"] == UNIT.to_json()
    assert (budget["epsilon"], budget["delta"]) == (2.0, 1e-6)
    assert budget["spent_epsilon"] == status.spent_epsilon > 0
    assert budget["tight_epsilon"] == ledger.epsilon() > 0
    listed = [(e["sequence"], e["label"], e["count"]) for e in data["entries"]]
    assert listed == [(1, "one", 1), (2, "two", 1)]
    assert [e["id"] for e in data["entries"]] == [e.id for e in ledger.entries()]
    assert data["tip"] == str(ledger.tip())


def test_an_export_with_one_seeded_entry_is_not_private():
    ledger = ledger_of(UNIT)
    ledger.charge(says(GaussianEvent(12.0)), label="one")
    assert export_ledger(ledger)["private"] is True
    ledger.charge(says(GaussianEvent(12.0)), label="two", source=Seeded(1))
    assert export_ledger(ledger)["private"] is False
    (record,) = registry_records(ledger, **WORDS)
    assert record["implementation"] == {"library": "demur", "private": False}


def test_a_registry_record_says_what_the_ledger_says(ledger):
    (record,) = registry_records(ledger, **WORDS)
    reading = ledger.reading(UNIT)
    assert record["product"] == {"name": "P", "organisation": "O"}
    assert record["description"] == "Releases about people"
    assert record["year"] == ledger.entries()[-1].time[:4]
    assert record["flavour"] == "Approximate DP"
    assert record["privacy_loss"] == {
        "privacy_unit": "record-level",
        "neighbouring_relation": "unbounded (add or remove)",
        "unit": UNIT.to_json(),
        "epsilon": reading.epsilon,
        "delta": 1e-6,
        "budget_epsilon": 2.0,
    }
    assert record["accounting"] == {
        "enforced_by": str(ledger.terms.filter),
        "releases": reading.entries,
        "mechanisms": ["a noisy count", "another"],
        "not_protected": ["labels"],
    }
    assert record["implementation"]["private"] is True
    (worded,) = registry_records(ledger, **WORDS, description="Counts")
    assert worded["description"] == "Counts"


def test_words_for_the_register_go_by_name(ledger):
    with pytest.raises(TypeError):
        registry_records(ledger, "P", "O")


def test_an_empty_ledger_of_pure_epsilons():
    ledger = Ledger(Budget(1.0), unit=UNIT, dataset="people", filter="pure")
    (record,) = registry_records(ledger, **WORDS)
    assert record["year"] is None
    assert record["flavour"] == "Pure DP"
    ledger.charge(says(Pure(0.5)), label="x")
    (record,) = registry_records(ledger, **WORDS)
    assert record["privacy_loss"]["epsilon"] == 0.5


@pytest.mark.parametrize(
    ("unit", "relation"),
    [
        (AddOrRemoveOne(), "unbounded (add or remove)"),
        (ReplaceOne(), "bounded (replace)"),
        (ZeroOut(), "zero out"),
        (Ball(0.5, space="rows"), "metric (a ball around the record)"),
    ],
)
def test_the_register_has_a_word_for_every_unit(unit, relation):
    (record,) = registry_records(ledger_of(unit), **WORDS)
    assert record["privacy_loss"]["neighbouring_relation"] == relation


def test_a_person_with_several_records_is_the_unit_of_the_register():
    (record,) = registry_records(ledger_of(AddOrRemoveOne(3)), **WORDS)
    level = record["privacy_loss"]["privacy_unit"]
    assert level == "person-level (up to 3 records)"


def test_a_promise_to_forget_is_no_privacy_loss():
    ledger = ledger_of(UNIT, Erasure())
    deletion = Declaration("a deletion", Cost((Fixed(Erasure(), GaussianEvent(9.0)),)))
    ledger.charge(deletion, label="forget")
    assert len(export_ledger(ledger)["budgets"]) == 2
    (record,) = registry_records(ledger, **WORDS)
    assert record["privacy_loss"]["unit"] == UNIT.to_json()
