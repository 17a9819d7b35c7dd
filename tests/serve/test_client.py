"""A served ledger is a ledger: what it promises holds through HTTP."""

import http.client
import json
import os
import pickle
import threading

import numpy as np
import pytest

from demur import Ledger
from demur.core.entropy import Seeded
from demur.errors import (
    AccessRefused,
    ApprovalPending,
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    LedgerDamaged,
    LedgerMismatch,
    LedgerMissing,
    LedgerUnreachable,
    NoiseReuse,
    NotPrivate,
    OutcomeUnknown,
)
from demur.ledger import Timeouts, export_ledger
from demur.ledger.remote.connection import Address, Caller
from demur.mechanisms import Gaussian
from demur.report import gather
from tests.serve.kit import HUGE, LOUD, QUIET, UNIT

pytestmark = pytest.mark.slow

IMPATIENT = Timeouts(connect=2, silence=1, lock=1, pause=0.5, call=1.5)
COUNT = Gaussian(20.0, {UNIT: 1.0})


def test_a_release_is_charged_drawn_and_committed(served):
    with served.open() as ledger:
        release = COUNT.release([5.0], ledger=ledger, label="visits")
        assert np.isfinite(release.value).all()
        assert release.entry.actor == "the analyst", "as its token says"
        assert ledger.commit_of(release.entry) is not None
        assert [e.id for e in ledger.entries()] == [release.entry.id]
    (own,) = served.ledger.entries()
    assert own == release.entry and served.ledger.verify().ok


def test_it_reads_as_the_ledger_itself(served):
    with served.open() as ledger:
        for i in range(3):
            entry = ledger.charge(QUIET, label=f"entry {i}")
        ledger.annotate(entry, "utility", {"accuracy": 0.5})
        with pytest.raises(BudgetExceeded):
            ledger.charge(HUGE, label="too much", idempotency_key="h")
        own = served.ledger
        assert ledger.status() == own.status() and ledger.tip() == own.tip()
        assert ledger.reading() == own.reading()
        assert ledger.declined() == own.declined() != ()
        assert export_ledger(ledger) == export_ledger(own)
        assert ledger.verify(own.tip()) == own.verify(own.tip())
        here, there = (gather(each).to_json() for each in (ledger, own))
        assert here | {"issued": there["issued"]} == there
        assert ledger.would_fit(QUIET) and not ledger.would_fit(HUGE)
        assert ledger.entry(entry.sequence) == own.entry(entry.sequence)
        assert ledger.id == own.id and ledger.terms == own.terms


def test_no_key_reaches_the_service(served, monkeypatch):
    sent = []
    exchange = Caller._exchange

    def heard(caller, *given):
        sent.append(given[2])
        return exchange(caller, *given)

    monkeypatch.setattr(Caller, "_exchange", heard)
    with served.open() as ledger:
        call = {"idempotency_key": "k", "digest": COUNT.digest([5.0])}
        with ledger.paid(COUNT, label="visits", **call) as payment:
            folder = ledger.keys_path()
            (stored,) = [p for p in folder.glob("*.key") if len(p.stem) == 32]
            key, secret = stored.read_bytes(), (folder / "input-digests.key")
            secret = secret.read_bytes()
            COUNT.apply([5.0], payment.key)
    everything = b"".join(sent)
    for private in (key, secret):
        assert private not in everything and private.hex().encode() not in everything
    assert COUNT.digest([5.0]).encode() not in everything, "inputs are keyed"
    assert b'"key":"' in everything, "its hash is there"


def test_the_service_prices_by_itself(served):
    declaration = QUIET.to_json()
    status, told = served.call(
        "charge", declaration=declaration, label="cheap", cost=0.0, spent=[]
    )
    assert status == 400 and "unknown" in told["error"]["message"]
    # Under the name of something small, what is large is large.
    large = HUGE.to_json() | {"name": QUIET.name, "fingerprint": QUIET.fingerprint}
    more = {"label": "cheap", "idempotency_key": "k"}
    status, told = served.call("charge", declaration=large, **more)
    assert status == 409 and told["error"]["kind"] == "BudgetExceeded"
    status, told = served.call(
        "charge", declaration=declaration, label="x", actor="officer"
    )
    assert status == 400 and not served.ledger.entries()


def test_a_repeat_is_one_charge_and_the_same_noise(served):
    digest = COUNT.digest([5.0])
    with served.open() as ledger:
        call = {"label": "visits", "idempotency_key": "k", "digest": digest}
        payment = ledger.paid(COUNT, **call)
        first = COUNT.apply([5.0], payment.key)
        with served.open() as again:
            repeat = again.paid(COUNT, **call)
            assert np.array_equal(COUNT.apply([5.0], repeat.key), first)
            repeat.commit()
            with pytest.raises(NoiseReuse):
                again.paid(COUNT, **call).key  # noqa: B018
            with pytest.raises(IdempotencyConflict):
                again.paid(QUIET, **call | {"digest": "e" * 64})
        assert ledger.find("k").id == payment.entry.id
        assert ledger.find("other", settled=True) is None
        assert ledger.resumed("k").entry == payment.entry
    assert len(served.ledger.entries()) == 1


def test_a_key_that_was_paid_elsewhere_is_not_here(served, tmp_path):
    with served.open() as ledger, served.open(keys=tmp_path / "other") as other:
        ledger.paid(COUNT, label="v", idempotency_key="k", digest=None)
        with pytest.raises(NoiseReuse):
            other.paid(COUNT, label="v", idempotency_key="k").key  # noqa: B018


def test_reservations_are_handed_out_once(served):
    with served.open() as ledger, served.open() as other:
        reserved = ledger.reserve(QUIET, count=5, label="r", idempotency_key="k")
        assert [d.index for d in reserved.draw_many(2)] == [0, 1]
        same = other.reserve(QUIET, count=5, label="r", idempotency_key="k")
        assert same.draw().index == 2 and reserved.drawn == 3
        with pytest.raises(BudgetExceeded, match="2 are left"):
            same.draw_many(3)
        assert [d.index for d in reserved.draw_many(2)] == [3, 4]


def test_approval_over_http(served):
    with served.open(purpose="the weekly report") as analyst:
        with pytest.raises(ApprovalPending) as caught:
            analyst.charge(LOUD, label="loud", idempotency_key="k")
        assert caught.value.number == 1
        with served.open("officer") as officer:
            (request,) = officer.requests()
            assert request.purpose == "the weekly report"
            assert request.actor == "the analyst"
            decision = officer.approve(1, reason="yes")
            assert decision.actor == "the officer"
            with pytest.raises(AccessRefused, match="may not charge"):
                officer.charge(LOUD, label="loud", idempotency_key="k")
        with pytest.raises(AccessRefused, match="may not decide"):
            analyst.approve(1, reason="yes")
        entry = analyst.charge(LOUD, label="loud", idempotency_key="k")
    assert served.ledger.requests()[0].entry == entry.sequence
    assert served.ledger.verify().ok


def test_seeded_noise_is_refused_here_and_there(served):
    with served.open() as ledger, pytest.raises(NotPrivate):
        ledger.charge(QUIET, label="s", source=Seeded(1))
    status, told = served.call(
        "charge", declaration=QUIET.to_json(), label="s", noise="seeded"
    )
    assert (status, told["error"]["kind"]) == (409, "NotPrivate")


def test_terms_are_compared_and_a_tip_is_looked_for(served):
    with served.open(dataset="people", tip=served.ledger.tip()):
        pass
    with pytest.raises(LedgerMismatch, match="dataset"):
        served.open(dataset="others")
    with pytest.raises(LedgerDamaged, match="does not contain"):
        served.open(tip=f"3:{'0' * 64}")


# -- addresses and tokens --------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/ledgers/visits",
        "https://demur_secret@example.org/ledgers/visits",
        "https://example.org/ledgers/visits?token=demur_secret",
        "https://example.org/ledgers/visits#demur_secret",
        "https://example.org/visits",
        "https://example.org/ledgers/../etc",
        "https://example.org/ledgers/",
        "https:///ledgers/visits",
    ],
)
def test_an_address_that_would_give_a_token_away_is_refused(url):
    with pytest.raises(ValueError, match="url must") as caught:
        Ledger.open(url, token="demur_" + "x" * 40)
    assert "demur_secret" not in str(caught.value)


def test_an_address_may_have_a_prefix():
    address = Address.parse("https://example.org/privacy/ledgers/visits/")
    assert address.path("charge") == "/privacy/api/ledgers/visits/charge"
    assert Address.parse("http://127.0.0.1:81/ledgers/v").port == 81


def test_a_token_is_needed_and_known(served, monkeypatch):
    url = f"{served.url}/ledgers/visits"
    monkeypatch.delenv("DEMUR_TOKEN", raising=False)
    for wrong in (None, "", "short", "with space " * 3, 7):
        with pytest.raises(ValueError, match="token must be"):
            Ledger.open(url, token=wrong)
    with pytest.raises(AccessRefused, match="unknown"):
        Ledger.open(url, token="demur_" + "x" * 40)
    with pytest.raises(LedgerMissing):
        served.open(name="others")
    monkeypatch.setenv("DEMUR_TOKEN", served.tokens["viewer"])
    with Ledger.open(url) as ledger:
        assert ledger.tip().sequence == 0
        with pytest.raises(AccessRefused, match="may not charge"):
            ledger.charge(QUIET, label="x")
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(ledger._store.caller)
        assert served.tokens["viewer"] not in repr(ledger._store.caller)
    with pytest.raises(ValueError, match="service's"):
        served.open(actor="somebody")
    with pytest.raises(ValueError, match="token is for a service"):
        Ledger.open("ledger.db", token="x" * 40)


def test_what_is_recovered_is_recovered_where_it_is_kept(served):
    with served.open() as ledger, pytest.raises(DemurError, match="where it is kept"):
        ledger.recover(f"3:{'0' * 64}")


# -- lost answers ----------------------------------------------------------------------


class Broken:
    """Loses the next answer, before or after the service has it."""

    def __init__(self, monkeypatch, where, times=1):
        self.left, exchange = times, Caller._exchange

        def lossy(caller, connection, call, content, give_up):
            if self.left and call in ("charge", "draw", "commit", "note"):
                self.left -= 1
                if where == "after":
                    exchange(caller, connection, call, content, give_up)
                connection.close()
                raise http.client.RemoteDisconnected("the link was cut")
            return exchange(caller, connection, call, content, give_up)

        monkeypatch.setattr(Caller, "_exchange", lossy)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_lost_answer_is_asked_for_again_and_paid_once(served, monkeypatch, where):
    with served.open() as ledger:
        Broken(monkeypatch, where)
        entry = ledger.charge(QUIET, label="once")
        Broken(monkeypatch, where)
        reserved = ledger.reserve(QUIET, count=3, label="r")
        Broken(monkeypatch, where)
        assert reserved.draw().index == 0
        Broken(monkeypatch, where)
        ledger.annotate(entry, "utility", {"accuracy": 0.5})
        Broken(monkeypatch, where)
        ledger._commit(entry, "artefact")
        assert ledger._acknowledged.newest == ledger.tip(), "it has the receipts"
        assert [e.label for e in ledger.entries()] == ["once", "r"]
        assert len(ledger.notes()) == 1 and reserved.drawn == 1
    assert served.ledger.verify().ok


def test_the_twin_that_makes_a_new_name_pays_twice(served, monkeypatch):
    from demur.ledger import calls  # noqa: PLC0415

    body = calls.LedgerCalls._body
    monkeypatch.setattr(
        calls.LedgerCalls,
        "_body",
        lambda self, *a: body(self, *a) | {"id": os.urandom(16).hex()},
    )
    with served.open() as ledger:
        Broken(monkeypatch, "after")
        ledger.charge(QUIET, label="once")
    assert len(served.ledger.entries()) == 2


def test_where_time_runs_out_the_error_says_which(served, monkeypatch):
    with served.open(timeouts=IMPATIENT) as ledger:
        Broken(monkeypatch, "after", times=99)
        with pytest.raises(OutcomeUnknown):
            ledger.charge(QUIET, label="x", idempotency_key="k", digest="d" * 64)
        monkeypatch.undo()
        entry = ledger.charge(QUIET, label="x", idempotency_key="k", digest="d" * 64)
        assert ledger._key(entry, "d" * 64), "its key was kept"
    assert len(served.ledger.entries()) == 1


def test_a_service_that_is_away_spent_nothing(served):
    ledger = served.open(timeouts=IMPATIENT)
    ledger.close()
    ledger._store.caller.address = Address(False, "127.0.0.1", 9, "", "visits")
    with pytest.raises(LedgerUnreachable, match="Nothing was spent"):
        ledger.charge(QUIET, label="x")
    assert not list(ledger.keys_path().glob("?" * 32 + ".key"))


def test_a_refusal_after_a_lost_answer_is_no_certainty(served, monkeypatch):
    with served.open(timeouts=IMPATIENT) as ledger:
        exchange, asked = Caller._exchange, []

        def revoked(caller, connection, call, content, give_up):
            asked.append(call)
            if len(asked) == 1:
                exchange(caller, connection, call, content, give_up)
                raise http.client.RemoteDisconnected("the link was cut")
            connection.close()
            error = {"kind": "AccessRefused", "message": "revoked"}
            return 401, {"error": error}

        monkeypatch.setattr(Caller, "_exchange", revoked)
        with pytest.raises(OutcomeUnknown):
            ledger.charge(QUIET, label="x", idempotency_key="k")


def test_a_ledger_that_lost_rows_is_noticed(served):
    with served.open() as ledger:
        ledger.charge(QUIET, label="x")
        ledger._acknowledged._newest = type(ledger.tip())(9, "0" * 64)
        with pytest.raises(LedgerDamaged, match="acknowledged"):
            ledger.charge(QUIET, label="y")


def test_a_service_that_rewrites_is_noticed(served, monkeypatch):
    with served.open() as ledger:
        ledger.charge(QUIET, label="x")
        assert len(ledger.entries()) == 1
        read = Caller.read

        def lying(caller, call, **data):
            answer = read(caller, call, **data)
            if call == "rows":
                answer["rows"] = [
                    [v.replace("honest", "other") if isinstance(v, str) else v
                     for v in row]
                    for row in answer["rows"]
                ]  # fmt: skip
            return answer

        monkeypatch.setattr(Caller, "read", lying)
        ledger.charge(QUIET, label="honest")
        with pytest.raises(LedgerDamaged, match="does not follow"):
            ledger.entries()


def test_a_service_that_tells_another_declaration_is_noticed(served, monkeypatch):
    with served.open() as ledger:
        ledger.charge(QUIET, label="x", idempotency_key="k", digest="d" * 64)
        read = Caller.read

        def lying(caller, call, **data):
            answer = read(caller, call, **data)
            return answer.replace("noisy", "other") if call == "declaration" else answer

        monkeypatch.setattr(Caller, "read", lying)
        with served.open() as other, pytest.raises(LedgerDamaged, match="declaration"):
            other.resumed("k")


def test_many_threads_share_a_served_ledger(served):
    with served.open() as ledger:
        entries, threads = [], []
        for i in range(8):
            threads.append(
                threading.Thread(
                    target=lambda i=i: entries.append(
                        ledger.charge(QUIET, label=f"t{i}")
                    )
                )
            )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({e.id for e in entries}) == 8
    assert served.ledger.verify().ok


def test_a_curl_client_needs_no_key(served):
    status, told = served.call(
        "charge", declaration=QUIET.to_json(), label="by curl", idempotency_key="c"
    )
    assert status == 200
    number, row = told["is"]["result"]
    again = served.call(
        "charge", declaration=QUIET.to_json(), label="by curl", idempotency_key="c"
    )[1]["is"]["result"]
    assert again[0] == number and row["actor"] == "the analyst"
    assert json.dumps(told).count(row["key"]) >= 1
