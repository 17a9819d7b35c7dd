"""Approvals: a charge that waits is not paid and not drawn for, whoever tries what."""

import pickle
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.adjacency import AddOrRemoveOne
from demur.errors import (
    AlreadyDecided,
    ApprovalDeclined,
    ApprovalPending,
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    LedgerMismatch,
)
from demur.ledger import ApprovalRule
from demur.ledger.approval import approvals
from demur.ledger.rules.terms import Terms
from demur.mechanisms import Gaussian
from tests.ledger.kit import UNIT, edit, says

RULE = ApprovalRule(above=0.5, mechanisms=("a sharp *",))
TERMS = {"budgets": {UNIT: Budget(4.0, 1e-6)}, "approval": RULE}
QUIET = says(GaussianEvent(20.0))  # epsilon 0.2 alone
LOUD = says(GaussianEvent(4.0), name="a loud count")  # epsilon 1.1 alone
SHARP = says(GaussianEvent(30.0), name="a sharp count")
HUGE = says(GaussianEvent(0.1), name="far too much")


@pytest.fixture
def officer(new_ledger, ledger_url, opened):
    new_ledger(**TERMS)
    return opened(ledger_url, actor="officer")


@pytest.fixture
def analyst(officer, ledger_url, opened):
    return opened(ledger_url, actor="analyst", purpose="the weekly report")


def ask(ledger, mechanism=LOUD, key="monday", **more):
    with pytest.raises(ApprovalPending) as caught:
        ledger.paid(mechanism, **({"label": "visits", "idempotency_key": key} | more))
    return caught.value.number


def test_a_charge_that_waits_is_a_row_and_nothing_else(analyst, officer):
    before = officer.status()
    number = ask(analyst)
    assert ask(analyst) == number == 1, "a repeat is the same request"
    assert officer.status() == before and not officer.entries()
    (request,) = officer.requests()
    assert request.state == "pending" and request.declaration == LOUD
    assert (request.actor, request.purpose) == ("analyst", "the weekly report")
    assert request.epsilon == (pytest.approx(1.06, abs=0.01),)
    assert officer.tip().sequence == 1 and officer.verify(officer.tip()).ok


def test_approved_it_is_charged_once_by_the_same_call(analyst, officer):
    officer.approve(ask(analyst), reason="as agreed")
    entry = analyst.charge(LOUD, label="visits", idempotency_key="monday")
    again = analyst.charge(LOUD, label="visits", idempotency_key="monday")
    assert again.id == entry.id and len(officer.entries()) == 1
    (request,) = officer.requests()
    assert (request.state, request.entry) == ("charged", entry.sequence)
    assert request.decision.reason == "as agreed"
    assert request.decision.actor == "officer"
    assert officer.verify(officer.tip()).ok
    # One approval is for one charge.
    ask(analyst, key="tuesday")


def test_noise_is_drawn_after_the_charge_and_not_before(tmp_path):
    count = Gaussian(4.0, {AddOrRemoveOne(): 1.0})
    path = tmp_path / "ledger.db"
    with Ledger.create(path, dataset="people", **TERMS):
        pass
    call = {"label": "visits", "idempotency_key": "k", "digest": count.digest([7.0])}
    drawn = []

    def release():
        with Ledger.open(path) as ledger, ledger.paid(count, **call) as payment:
            drawn.append(count.apply([7.0], payment.key))

    for _ in range(2):
        with pytest.raises(ApprovalPending):
            release()
        assert not list((tmp_path / "ledger.db.keys").glob("[0-9a-f]*.key"))
    assert not drawn
    with Ledger.open(path, actor="officer") as ledger:
        ledger.approve(1, reason="yes")
    release()
    assert len(drawn) == 1 and np.isfinite(drawn[0]).all()


def test_what_the_rule_does_not_concern_is_paid_at_once(analyst):
    assert analyst.charge(QUIET, label="quiet").label == "quiet"
    assert not analyst.needs_approval(QUIET)
    assert analyst.needs_approval(LOUD) and analyst.needs_approval(SHARP)
    # Many quiet ones at once cost what they cost together.
    assert analyst.needs_approval(QUIET, count=30)
    ask(analyst, QUIET, count=30)


def test_what_does_not_fit_is_declined_by_the_budget_and_not_asked_for(analyst):
    with pytest.raises(BudgetExceeded):
        analyst.charge(HUGE, label="h", idempotency_key="h")
    assert not analyst.requests() and len(analyst.declined()) == 1


def test_an_approval_is_no_budget(analyst, officer):
    """The budget is asked when the charge is paid, not when it is approved."""
    large = says(GaussianEvent(2.0), name="a large one")  # three do not fit
    for i in range(3):
        officer.approve(ask(analyst, large, key=f"k{i}"), reason="yes")
    with pytest.raises(BudgetExceeded):
        for i in range(3):
            analyst.charge(large, label="visits", idempotency_key=f"k{i}")
    assert [r.state for r in officer.requests()] == ["charged", "charged", "approved"]
    assert officer.epsilon() <= 4.0 and officer.verify().ok


def test_a_declined_request_stays_declined(analyst, officer):
    number = ask(analyst)
    officer.decline(number, reason="ask for less")
    for _ in range(2):
        with pytest.raises(ApprovalDeclined, match="ask for less"):
            analyst.charge(LOUD, label="visits", idempotency_key="monday")
    with pytest.raises(AlreadyDecided):
        officer.approve(number, reason="on second thoughts")
    assert officer.requests()[0].state == "declined" and not officer.entries()
    assert ask(analyst, key="less") == officer.tip().sequence


CHANGED = {
    "mechanism": {"mechanism": says(GaussianEvent(3.9), name="a loud count")},
    "label": {"label": "visitors"},
    "count": {"count": 2},
    "input": {"digest": "e" * 64},
    "no input": {"digest": None},
    "block_delta": {"block_delta": 1e-9},
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("approved", [False, True])
def test_nothing_is_slipped_in_under_a_request(
    analyst, officer, what, approved, ledger_url
):
    call = {"mechanism": LOUD, "label": "visits", "idempotency_key": "k"}
    call["digest"] = "d" * 64
    ask(analyst, key="k", digest="d" * 64)
    if approved:
        officer.approve(1, reason="yes")
    with pytest.raises(IdempotencyConflict, match="request 1"):
        analyst.paid(**call | CHANGED[what])
    assert not officer.entries()
    if approved:
        analyst.paid(**call)


@pytest.mark.parametrize("what", CHANGED)
def test_the_twin_that_compares_nothing_lets_it_in(analyst, officer, monkeypatch, what):
    monkeypatch.setattr(approvals, "SAME", ())
    monkeypatch.setattr(
        approvals.Approvals, "_ask", lambda self, w, name, body, *_: _asked(w, name)
    )

    def _asked(writing, name):
        facts = {"label": "visits", "charge_key": "k", "purpose": "", "actor": "a"}
        row = {"kind": "request", "id": name, "time": "now"} | facts
        writing.append(row)
        return ApprovalPending("pending", 1)

    with pytest.raises(ApprovalPending):
        analyst.paid(LOUD, label="visits", idempotency_key="k", digest="d" * 64)
    officer.approve(1, reason="yes")
    call = {"mechanism": LOUD, "label": "visits", "idempotency_key": "k"}
    analyst.paid(**call | {"digest": "d" * 64} | CHANGED[what])
    monkeypatch.undo()
    assert not officer.verify().ok, "and `verify` finds it"


def test_two_officers_at_once_make_one_decision(analyst, officer, ledger_url, opened):
    number = ask(analyst)
    others = [opened(ledger_url, actor=f"officer {i}") for i in range(6)]
    begin, outcomes = threading.Barrier(6), []

    def decide(i):
        begin.wait()
        try:
            verdict = others[i].approve if i % 2 else others[i].decline
            outcomes.append(verdict(number, reason=f"reason {i}"))
        except AlreadyDecided as error:
            outcomes.append(error)

    threads = [threading.Thread(target=decide, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [each for each in outcomes if not isinstance(each, AlreadyDecided)]
    assert len(made) == 1 and len(outcomes) == 6
    (request,) = officer.requests()
    assert request.decision == made[0] and officer.tip().sequence == 2


def test_the_same_decision_again_is_the_same_row(analyst, officer):
    number = ask(analyst)
    first = officer.approve(number, reason="yes")
    assert officer.approve(number, reason="yes, as I said") == first


def test_nobody_approves_their_own_request(analyst, officer):
    number = ask(analyst)
    with pytest.raises(DemurError, match="somebody else"):
        analyst.approve(number, reason="I say so")
    assert officer.requests()[0].state == "pending"
    analyst.decline(number, reason="not needed any more")
    assert officer.requests()[0].state == "declined"


def test_a_request_needs_a_name_to_come_back_by(analyst):
    with pytest.raises(ValueError, match="idempotency_key must be given"):
        analyst.charge(LOUD, label="visits")
    assert not analyst.requests()


@pytest.mark.parametrize("number", [1, 7])
def test_what_is_no_request_is_not_decided_on(analyst, officer, number):
    analyst.charge(QUIET, label="quiet")
    with pytest.raises(DemurError, match="no request"):
        officer.approve(number, reason="yes")


@pytest.mark.parametrize("reason", ["", "x" * 20_000, "a\nb", 7])
def test_a_decision_has_a_reason(analyst, officer, reason):
    number = ask(analyst)
    with pytest.raises((ValueError, TypeError), match="reason"):
        officer.approve(number, reason=reason)
    assert officer.requests()[0].decision is None


def test_a_flood_of_requests_is_bounded(analyst, monkeypatch):
    monkeypatch.setattr(approvals, "_MOST_REQUESTS", 3)
    for i in range(3):
        ask(analyst, key=f"k{i}")
    with pytest.raises(DemurError, match="decide on them first"):
        analyst.charge(LOUD, label="visits", idempotency_key="one more")
    assert len(analyst.requests()) == 3
    assert ask(analyst, key="k1") == 2, "those that were entered are still found"


# -- what verify finds -----------------------------------------------------------------


def test_a_client_that_ignores_the_rule_is_found(analyst, officer, monkeypatch):
    monkeypatch.setattr(Terms, "needs_approval", lambda *_: False)
    analyst.charge(LOUD, label="past the officer")
    monkeypatch.undo()
    (problem,) = officer.verify().problems
    assert "without an approval" in problem


def test_a_client_that_approves_by_itself_is_found(analyst, officer, monkeypatch):
    number = ask(analyst)
    monkeypatch.setattr(analyst, "_actor", "officer")
    analyst.approve(number, reason="yes")
    analyst.charge(LOUD, label="visits", idempotency_key="monday")
    assert officer.verify().ok, "the ledger knows people by the names it is told"
    # But not under their own name, past the check.
    analyst._actor = "analyst"
    number = ask(analyst, key="other")
    monkeypatch.setattr(
        approvals.rows,
        "body_at",
        lambda connection, sequence, kind, look=approvals.rows.body_at: (
            look(connection, sequence, kind) | {"actor": "somebody"}
        ),
    )
    analyst.approve(number, reason="yes")
    monkeypatch.undo()
    assert any("their own request" in p for p in officer.verify().problems)


def test_a_decision_that_was_turned_round_is_found(analyst, officer, ledger_url):
    officer.decline(ask(analyst), reason="no")
    edit(
        ledger_url,
        "UPDATE demur_rows SET body = replace(body, 'false', 'true')"
        " WHERE kind = 'decision'",
    )
    assert any("hash" in problem for problem in officer.verify().problems)


def test_requests_and_decisions_are_signed(tmp_path):
    key, path = Ed25519PrivateKey.generate(), tmp_path / "signed.db"
    with Ledger.create(path, dataset="people", signing_key=key, **TERMS):
        pass
    with Ledger.open(path, signing_key=key, actor="analyst") as ledger:
        ask(ledger)
    with Ledger.open(path, actor="officer") as reader:
        with pytest.raises(LedgerMismatch, match="signed"):
            reader.approve(1, reason="without the key")
    with Ledger.open(path, signing_key=key, actor="officer") as ledger:
        ledger.approve(1, reason="yes")
        assert ledger.verify(signer=ledger.terms.signer).ok
        edit(path, "UPDATE demur_rows SET signature = NULL WHERE kind = 'decision'")
        assert not ledger.verify().ok


# -- terms, and what was lost ----------------------------------------------------------


def test_the_rule_is_part_of_the_terms(new_ledger, ledger_url, opened):
    ledger = new_ledger(**TERMS)
    assert opened(ledger_url).terms.approval == RULE
    assert opened(ledger_url, approval=RULE).terms == ledger.terms
    for other in (ApprovalRule(above=9.0), replace(RULE, mechanisms=())):
        with pytest.raises(LedgerMismatch, match="approval"):
            opened(ledger_url, approval=other)
    edit(ledger_url, "UPDATE demur_ledger SET schema_version = 5")
    with pytest.raises(DemurError, match="does not begin as it was made"):
        opened(ledger_url).charge(QUIET, label="quiet")


def test_a_ledger_without_a_rule_is_as_before(new_ledger, ledger_url, opened):
    ledger = new_ledger()
    assert "approval" not in ledger.terms.to_text()
    assert ledger._store.header().schema_version == 5
    with pytest.raises(LedgerMismatch, match="approval"):
        opened(ledger_url, approval=RULE)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"above": -1.0}, {"above": float("nan")}, {"mechanisms": "DP-SGD"}],
)
def test_a_rule_that_says_nothing_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        ApprovalRule(**wrong)
    with pytest.raises(TypeError, match="approval"):
        Terms.make(dataset="d", budgets=TERMS["budgets"], approval="all")


def test_every_charge_waits_at_zero():
    rule = ApprovalRule(above=0.0)
    free = says(Pure(0.0))
    terms = Terms.make(dataset="d", budgets=TERMS["budgets"], approval=rule)
    assert terms.needs_approval(free) and terms.needs_approval(QUIET)
    assert Terms.from_text(terms.to_text()) == terms


def test_what_was_lost_is_entered_again(tmp_path, opened):
    path, aside = tmp_path / "ledger.db", tmp_path / "older.db"
    ledger = opened(str(path), dataset="people", actor="analyst", **TERMS)
    officer = opened(str(path), actor="officer")
    ledger.charge(QUIET, label="before")
    shutil.copy(path, aside)
    officer.approve(ask(ledger), reason="yes")
    ledger.charge(LOUD, label="visits", idempotency_key="monday")
    ask(ledger, key="waits")
    tip, asked = ledger.tip(), [r.state for r in ledger.requests()]
    receipts = [*ledger._acknowledged._recent, *officer._acknowledged._recent]
    path.write_bytes(aside.read_bytes())
    copy = opened(str(path), actor="operator")
    assert copy.recover(tip, receipts=receipts).complete
    assert [r.state for r in copy.requests()] == asked == ["charged", "pending"]
    assert copy.verify(tip).ok and len(copy.entries()) == 2


def test_the_error_says_which_request_and_travels():
    error = ApprovalPending("waits", 7)
    assert pickle.loads(pickle.dumps(error)).number in (7, None)
    assert str(error) == "waits"
