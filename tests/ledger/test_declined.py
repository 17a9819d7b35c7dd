"""Who asked, and what was declined: rows of the chain that cost nothing."""

import getpass
import json

import pytest

from demur import Ledger
from demur.core.accounting.events import GaussianEvent
from demur.errors import BudgetExceeded
from demur.ledger import export_ledger, journal
from tests.ledger.kit import BUDGET, UNIT, ask, edit, says

NOISY, BIG = says(GaussianEvent(20.0)), says(GaussianEvent(0.1), name="a sharp count")


def decline(ledger, label="too much", **more):
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge(BIG, label=label, **more)
    return str(caught.value)


def test_a_declined_request_is_a_row_that_costs_nothing(new_ledger, ledger_url):
    ledger = new_ledger(actor="ada@analytics")
    ledger.charge(NOISY, label="one")
    before = ledger.status(), ledger.entries(), ledger.epsilon()
    why = decline(ledger, idempotency_key="k")
    assert (ledger.status(), ledger.entries(), ledger.epsilon()) == before
    (declined,) = ledger.declined()
    assert (declined.label, declined.count, declined.sequence) == ("too much", 1, 2)
    assert declined.declaration == BIG and declined.actor == "ada@analytics"
    assert declined.why == why and "of 2" in why
    ((text,),) = ask(ledger_url, "SELECT body FROM demur_rows WHERE sequence = 2")
    (cost,) = json.loads(text)["cost"]
    assert cost["mu squared"] == str(100)  # what it would have cost
    assert ledger.verify(ledger.tip()).ok
    assert ledger.find("k") is None  # the key is free for what fits
    ledger.charge(NOISY, label="less", idempotency_key="k")


def test_a_declined_row_that_was_changed_is_found(new_ledger, ledger_url):
    ledger = new_ledger()
    decline(ledger)
    edit(
        ledger_url,
        "UPDATE demur_rows SET body = replace(body, 'too much', 'a little')",
    )
    assert not ledger.verify().ok


def test_a_flood_of_declined_requests_is_bounded(monkeypatch):
    monkeypatch.setattr(journal, "_MOST_DECLINED", 3)
    monkeypatch.setattr(journal, "_RECENT", 5)
    with Ledger(BUDGET, UNIT) as ledger:
        for i in range(9):
            decline(ledger, f"request {i}")
        assert [d.label for d in ledger.declined()] == [
            f"request {i}" for i in range(3)
        ]
        for _ in range(4):
            ledger.charge(NOISY, label="ordinary work")
        decline(ledger, "later")
        assert ledger.declined()[-1].label == "later"
        assert ledger.verify().ok


@pytest.mark.slow
def test_without_the_bound_all_of_a_flood_is_kept(monkeypatch):
    """The sabotaged twin."""
    monkeypatch.setattr(journal, "_MOST_DECLINED", 10**9)
    with Ledger(BUDGET, UNIT) as ledger:
        for i in range(150):
            decline(ledger, f"request {i}")
        assert len(ledger.declined()) == 150
    monkeypatch.undo()
    with Ledger(BUDGET, UNIT) as ledger:
        for i in range(150):
            decline(ledger, f"request {i}")
        assert len(ledger.declined()) == 100


def test_an_entry_says_who_charged_it_and_an_export_only_when_asked(new_ledger):
    ledger = new_ledger(actor="grace@night-shift")
    entry = ledger.charge(NOISY, label="one")
    ledger.annotate(entry, "audit", {"fine": True})
    assert entry.actor == ledger.entries()[0].actor == "grace@night-shift"
    assert "grace" not in json.dumps(export_ledger(ledger))
    (row,) = export_ledger(ledger, actors=True)["entries"]
    assert row["actor"] == "grace@night-shift"


def test_the_default_actor_is_this_user_on_this_host(new_ledger):
    entry = new_ledger().charge(NOISY, label="one")
    user, _, host = entry.actor.partition("@")
    assert user == getpass.getuser() and host


@pytest.mark.parametrize("wrong", ["", "a\nb", "x" * 300, 5])
def test_an_actor_is_a_name(wrong):
    with pytest.raises((ValueError, TypeError), match="actor"):
        Ledger.open("nowhere.db", dataset="d", budgets={UNIT: BUDGET}, actor=wrong)
