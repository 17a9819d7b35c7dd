"""The calls of a served ledger, and its client, without HTTP between them.

`tests/serve` has the same through a running service. Here the data go through JSON
both ways in one process, so that every field and every answer can be looked at.
"""

import base64
import json
from dataclasses import asdict

import pytest

from demur import (
    Budget,
    BudgetExceeded,
    Filter,
    Ledger,
    OutcomeUnknown,
    Seeded,
)
from demur.core.accounting import profile_of
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure, Repeated
from demur.core.digest import digest_of_text
from demur.durable.chain import Tip, canonical
from demur.errors import (
    AlreadyDecided,
    ApprovalPending,
    DemurError,
    IdempotencyConflict,
    LedgerDamaged,
    LedgerMismatch,
    NoiseReuse,
    NotPrivate,
)
from demur.ledger import ApprovalRule, calls
from demur.ledger.calls import LedgerCalls
from demur.ledger.remote import mirror
from demur.ledger.remote.wire import error_data, error_of
from demur.ledger.storage.receipts import Receipt
from demur.mechanisms import Gaussian
from tests.ledger.kit import UNIT, says

QUIET = says(GaussianEvent(20.0))
HUGE = says(GaussianEvent(0.1), name="far too much")
TEXT = canonical(QUIET.to_json())
ID, KEY, INPUT = "a" * 32, "b" * 64, "c" * 64
CHARGE = {"declaration": QUIET.to_json(), "label": "visits"}
PLACE = "http://localhost/ledgers/visits"
COUNT = Gaussian(20.0, {UNIT: 1.0})


@pytest.fixture
def own(tmp_path, opened):
    """The ledger, as it is opened where it is kept."""
    terms = {"dataset": "people", "budgets": {UNIT: Budget(4.0, 1e-6)}}
    rule = Filter.gaussian(blocks=0.5)
    place = tmp_path / "own" / "ledger.db"
    return opened(place, actor="the service", filter=rule, **terms)


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    (tmp_path / "own").mkdir()


def rows_of(ledger, kind=None):
    """The rows of a ledger, as its own calls tell them."""
    told = LedgerCalls(ledger).rows("x", {"after": 0})["rows"]
    names = [column.name for column in calls._COLUMNS]
    bodies = [json.loads(dict(zip(names, row, strict=True))["body"]) for row in told]
    return [body for body in bodies if kind in (None, body["kind"])]


# -- a charge ------------------------------------------------------------------------


def test_every_field_of_a_charge_is_in_its_row(own):
    sent = CHARGE | {
        "count": 3,
        "id": ID,
        "key": KEY,
        "noise": "os",
        "input": INPUT,
        "idempotency_key": "june",
        "block_delta": 1e-9,
        "purpose": "the weekly report",
        "knows": None,
    }
    answer = LedgerCalls(own).charge("ann", sent)
    sequence, row = answer["result"]
    (stored,) = rows_of(own, "charge")
    assert sequence == 1 and stored == row
    expected = {
        "kind": "charge",
        "id": ID,
        "key": KEY,
        "label": "visits",
        "declaration": digest_of_text(TEXT),
        "count": 3,
        "noise": "os",
        "input": INPUT,
        "idempotency_key": "june",
        "block_delta": 1e-9,
        "actor": "ann",
    }
    assert expected.items() <= row.items() and "unsafe" not in row
    (receipt,) = map(Receipt.from_json, answer["receipts"])
    assert receipt.tip == own.tip() and json.loads(receipt.body) == row
    assert receipt.declaration == TEXT


def test_what_a_client_leaves_out_has_a_default(own):
    (one, two) = (LedgerCalls(own).charge("ann", CHARGE)["result"][1] for _ in "12")
    assert one["id"] != two["id"] and one["key"] != two["key"]
    for row in (one, two):
        assert len(row["id"]) == 32 and len(row["key"]) == 64
        assert (row["count"], row["noise"]) == (1, "os")
        for name in ("input", "idempotency_key", "block_delta"):
            assert row[name] is None


BAD = [
    ("label", "", ValueError, "label must be 1 to"),
    ("label", "a\nb", ValueError, "label must be 1 to"),
    ("label", 5, TypeError, "label must be a string"),
    ("count", 0, ValueError, "count must be at least 1"),
    ("count", True, TypeError, "count must be a whole"),
    ("count", 2**40 + 1, ValueError, "count must be at most 2"),
    ("noise", "none", ValueError, "noise must be os or seeded"),
    ("noise", "seeded", NotPrivate, "this ledger is not"),
    ("block_delta", 1.5, ValueError, "block_delta must be between"),
    ("block_delta", "x", TypeError, "block_delta must be a number"),
    ("idempotency_key", "", ValueError, "idempotency_key must be 1 to"),
    ("idempotency_key", 7, TypeError, "idempotency_key must be a string"),
    ("id", "A" * 32, ValueError, "id must be hexadecimal digits, 32 of"),
    ("id", "a" * 64, ValueError, "id must be hexadecimal digits, 32 of"),
    ("id", None, ValueError, "id must be hexadecimal digits"),
    ("key", "b" * 63, ValueError, "key must be hexadecimal digits, 64 of"),
    ("key", "b" * 64 + "\n", ValueError, "key must be hexadecimal"),
    ("input", "c" * 32, ValueError, "input must be hexadecimal digits, 64 of"),
    ("input", 5, ValueError, "input must be hexadecimal"),
    ("purpose", "a\nb", ValueError, "purpose must be 1 to"),
    ("purpose", 5, TypeError, "purpose must be a string"),
    ("purpose", 0, TypeError, "purpose must be a string"),
    ("purpose", [], TypeError, "purpose must be a string"),
    ("declaration", {}, ValueError, "declaration"),
    ("declaration", "text", (TypeError, ValueError), "declaration"),
    ("knows", "no tip", ValueError, "tip"),
]


@pytest.mark.parametrize(("name", "value", "kind", "text"), BAD)
def test_a_field_that_is_wrong_is_refused_and_nothing_is_written(
    own, name, value, kind, text
):
    with pytest.raises(kind, match=text):
        LedgerCalls(own).charge("ann", CHARGE | {name: value})
    assert rows_of(own) == []


def test_the_largest_count_and_the_smallest_are_allowed(own):
    tiny = CHARGE | {"declaration": says(GaussianEvent(1e9)).to_json()}
    for count in (1, 2**40):
        row = LedgerCalls(own).charge("ann", tiny | {"count": count})["result"][1]
        assert row["count"] == count


def test_a_ledger_for_testing_takes_seeded_noise(tmp_path, opened):
    terms = {"dataset": "people", "budgets": {UNIT: Budget(4.0, 1e-6)}}
    ledger = opened(tmp_path / "own" / "t.db", testing=True, **terms)
    row = LedgerCalls(ledger).charge("ann", CHARGE | {"noise": "seeded"})["result"][1]
    assert row["noise"] == "seeded" and not ledger.entries()[0].private


def test_settings_that_can_lose_a_commit_are_in_the_row(own):
    own._unsafe = ("fsync is off",)
    row = LedgerCalls(own).charge("ann", CHARGE)["result"][1]
    assert row["unsafe"] == ["fsync is off"]


NEEDED = {
    "charge": CHARGE,
    "commit": {"entry": ID},
    "draw": {"entry": ID, "count": 1},
    "note": {"entry": ID, "about": "utility", "facts": {"accuracy": 0.5}},
    "decide": {"number": 1, "approved": True, "reason": "yes"},
    "contains": {"tip": "0:" + "0" * 64},
    "rows": {"after": 0},
    "profile": {"event": INPUT},
    "find": {"key": "june"},
    "charged": {"entry": ID},
    "stored_declaration": {"digest": INPUT},
    "drawn": {"entry": ID},
}


@pytest.mark.parametrize("call", NEEDED)
def test_a_call_names_the_field_that_it_lacks(own, call):
    for name in NEEDED[call]:
        left = {key: value for key, value in NEEDED[call].items() if key != name}
        with pytest.raises(ValueError, match=rf"missing: \['{name}'\], unknown: \[\]"):
            getattr(LedgerCalls(own), call)("ann", left)
    with pytest.raises(ValueError, match=r"missing: \[\], unknown: \['x{40}'\]"):
        getattr(LedgerCalls(own), call)("ann", NEEDED[call] | {"x" * 50: 1})
    with pytest.raises(ValueError, match=r"unknown: \[('n\d', ){7}'n\d'\]"):
        getattr(LedgerCalls(own), call)(
            "ann", NEEDED[call] | {f"n{i}": i for i in range(10)}
        )
    with pytest.raises(TypeError, match="a call is a JSON object"):
        getattr(LedgerCalls(own), call)("ann", [])


@pytest.mark.parametrize(
    "call", ["commit", "draw", "note", "charged", "drawn", "profile"]
)
def test_ids_that_are_no_ids_are_refused(own, call):
    name = "event" if call == "profile" else "entry"
    for wrong in ("a" * 31, "g" * 32, 5, None):
        with pytest.raises(ValueError, match=f"{name} must be hexadecimal"):
            getattr(LedgerCalls(own), call)("ann", NEEDED[call] | {name: wrong})


def test_tokens_that_are_no_tokens_are_refused(own):
    entry = LedgerCalls(own).charge("ann", CHARGE)["result"][1]["id"]
    for call in ("draw", "note"):
        sent = NEEDED[call] | {"entry": entry, "token": "t"}
        with pytest.raises(ValueError, match="token must be hexadecimal"):
            getattr(LedgerCalls(own), call)("ann", sent)
    for count in (0, "1", 1.0, True):
        with pytest.raises((TypeError, ValueError), match="count must be"):
            LedgerCalls(own).draw("ann", {"entry": entry, "count": count})
    assert len(rows_of(own)) == 1


def test_a_reader_makes_no_call_that_writes(own, tmp_path, opened):
    reader = opened(tmp_path / "own" / "ledger.db", read_only=True)
    for call in ("charge", "commit", "draw", "note", "decide"):
        with pytest.raises(LedgerMismatch, match="opened to be read"):
            getattr(LedgerCalls(reader), call)("ann", NEEDED[call])
    with pytest.raises(LedgerMismatch, match="opened to be read"):
        LedgerCalls(reader).find("ann", {"key": "june", "settled": True})
    assert LedgerCalls(reader).find("ann", {"key": "june"}) is None


# -- repeats -------------------------------------------------------------------------


def test_a_repeat_of_every_call_that_writes_finds_its_row_and_its_receipt(own):
    """Whether the first answer was lost, the service cannot know."""
    served = LedgerCalls(own)
    token = {"entry": ID, "token": "d" * 32}
    facts = {"about": "utility", "facts": {"accuracy": 0.5}}
    repeated = [
        ("charge", CHARGE | {"id": ID, "key": KEY, "count": 5}),
        ("draw", token | {"count": 2}),
        ("note", token | {"token": "e" * 32} | facts),
        ("commit", {"entry": ID, "artefact": "reports"}),
    ]
    for number, (call, sent) in enumerate(repeated, 1):
        first = getattr(served, call)("ann", dict(sent))
        again = getattr(served, call)("ann", dict(sent))
        assert again == first and len(first["receipts"]) == 1
        assert own.tip().sequence == number
    other = CHARGE | {"id": ID, "key": "f" * 64, "count": 5}
    with pytest.raises(IdempotencyConflict, match="another key"):
        served.charge("ann", other)
    assert served.draw("ann", {"entry": ID, "count": 3})["result"] == 2
    with pytest.raises(BudgetExceeded, match="all are used"):
        served.draw("ann", {"entry": ID, "count": 1})
    assert served.drawn("ann", {"entry": ID}) == 5
    for artefact in ("others", None):
        with pytest.raises(DemurError, match="another artefact"):
            served.commit("ann", {"entry": ID, "artefact": artefact})
    with pytest.raises(ValueError, match="artefact"):
        served.commit("ann", {"entry": ID, "artefact": ""})


def test_a_declined_call_is_written_once(own):
    sent = CHARGE | {"declaration": HUGE.to_json(), "id": ID, "key": KEY}
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            LedgerCalls(own).charge("ann", sent)
    (row,) = rows_of(own)
    assert (row["kind"], row["actor"], row["id"]) == ("declined", "ann", ID)


def test_a_row_that_a_client_was_shown_must_be_there(own):
    served = LedgerCalls(own)
    served.charge("ann", CHARGE | {"id": ID})
    own_tip = str(own.tip())
    served.commit("ann", {"entry": ID, "knows": own_tip})
    unknown = f"2:{'0' * 64}"
    for call in ("charge", "commit", "draw", "note"):
        sent = NEEDED[call] | {"knows": unknown}
        with pytest.raises(LedgerDamaged, match="acknowledged"):
            getattr(served, call)("ann", sent)
    assert served.contains("ann", {"tip": own_tip}) is True
    assert served.contains("ann", {"tip": unknown}) is False
    assert own.tip().sequence == 2


def test_the_ledger_knows_the_rows_that_its_clients_wrote(own):
    LedgerCalls(own).charge("ann", CHARGE | {"id": ID})
    assert own._acknowledged.newest == own.tip()
    assert own.receipt(own.entries()[0]).tip == own.tip()
    own._acknowledged._newest = Tip(7, "0" * 64)  # the file was put back
    with pytest.raises(LedgerDamaged, match="acknowledged"):
        LedgerCalls(own).charge("ann", CHARGE)


def test_writers_of_a_file_take_turns(own):
    served, taken = LedgerCalls(own), []

    class Turn:
        def __enter__(self):
            taken.append("begin")

        def __exit__(self, *_):
            taken.append("end")

    assert served._turn.acquire(timeout=1.0)
    served._turn.release()
    served._turn = Turn()
    served.charge("ann", CHARGE)
    assert taken == ["begin", "end"]


# -- decisions -----------------------------------------------------------------------


def test_a_decision_is_that_of_the_caller(tmp_path, opened):
    ledger = opened(
        tmp_path / "own" / "a.db",
        dataset="people",
        budgets={UNIT: Budget(4.0, 1e-6)},
        approval=ApprovalRule(above=0.1),
    )
    served = LedgerCalls(ledger)
    sent = CHARGE | {"id": ID, "idempotency_key": "k", "purpose": "the report"}
    with pytest.raises(ApprovalPending) as caught:
        served.charge("ann", sent)
    assert caught.value.number == 1 and ledger.requests()[0].purpose == "the report"
    for wrong in ("true", 1, None):
        with pytest.raises(TypeError, match="approved must be true or false"):
            served.decide("olga", {"number": 1, "approved": wrong, "reason": "yes"})
    told = served.decide("olga", {"number": 1, "approved": True, "reason": "yes"})
    decision = ledger.requests()[0].decision
    assert told["result"] == asdict(decision) and decision.approved
    assert (decision.actor, decision.reason) == ("olga", "yes")
    with pytest.raises(AlreadyDecided):
        served.decide("olga", {"number": 1, "approved": False, "reason": "no"})
    sequence, row = served.charge("ann", sent)["result"]
    assert row["request"] and ledger.requests()[0].entry == sequence


# -- reading -------------------------------------------------------------------------


def test_rows_come_in_pages_that_follow_from_each_other(own, monkeypatch):
    served = LedgerCalls(own)
    for number in range(5):
        served.charge("ann", CHARGE | {"label": f"{number}"})
    whole = served.rows("ann", {"after": 0})
    assert [row[0] for row in whole["rows"]] == [1, 2, 3, 4, 5]
    assert whole["declarations"] == {digest_of_text(TEXT): TEXT}
    assert whole["header"]["sequence"] == 5 and whole["profiles"] == []
    page = served.rows("ann", {"after": 2, "most": 2})
    assert page["rows"] == whole["rows"][2:4]
    names = [column.name for column in calls._COLUMNS]
    assert page["before"] == whole["rows"][1][names.index("hash")]
    monkeypatch.setattr(calls, "_MOST_ROWS", 3)
    assert len(served.rows("ann", {"after": 0, "most": 100})["rows"]) == 3
    assert served.rows("ann", {"after": 5})["rows"] == []
    assert served.rows("ann", {"after": 2**62 - 1})["rows"] == []
    for wrong in (-1, 2**62, True, 1.0, "1", None):
        with pytest.raises(ValueError, match="after must be a row's number, or 0"):
            served.rows("ann", {"after": wrong})
    for wrong in (0, 1.5):
        with pytest.raises((TypeError, ValueError), match="most"):
            served.rows("ann", {"after": 0, "most": wrong})


def test_a_page_holds_two_thousand_rows_at_most():
    assert calls._MOST_ROWS == mirror._AT_ONCE == 2000


def test_what_a_charge_rests_on_can_be_fetched(own):
    event = Repeated(PoissonGaussian(0.01, 2.0), 50)
    served = LedgerCalls(own)
    sent = CHARGE | {"declaration": says(event).to_json(), "id": ID}
    served.charge("ann", sent)
    (named,) = served.rows("ann", {"after": 0})["profiles"]
    stored = served.profile("ann", {"event": named})
    json.dumps(stored)
    assert base64.b64decode(stored["body"]) == profile_of(event).to_bytes()
    with pytest.raises(DemurError, match="no such profile"):
        served.profile("ann", {"event": INPUT})
    text = canonical(says(event).to_json())
    digest = digest_of_text(text)
    assert served.stored_declaration("ann", {"digest": digest}) == text
    with pytest.raises(LedgerDamaged, match="missing|edited"):
        served.stored_declaration("ann", {"digest": INPUT})
    with pytest.raises(ValueError, match="digest must be hexadecimal"):
        served.stored_declaration("ann", {"digest": "x"})


def test_a_charge_is_found_by_its_key_and_by_its_id(own, monkeypatch):
    served = LedgerCalls(own)
    assert served.find("ann", {"key": "june"}) is None
    sequence, row = served.charge("ann", CHARGE | {"idempotency_key": "june"})["result"]
    asked = []
    find = calls.Journal.find

    def heard(journal, key, *, settled):
        asked.append((key, settled, journal is own._journal))
        return find(journal, key, settled=settled)

    monkeypatch.setattr(calls.Journal, "find", heard)
    for settled in ({}, {"settled": False}, {"settled": True}, {"settled": "yes"}):
        assert served.find("ann", {"key": "june"} | settled) == [sequence, row]
    assert [each[1] for each in asked] == [False, False, True, False]
    assert [each[2] for each in asked] == [True, True, False, True]
    assert served.charged("ann", {"entry": row["id"]}) == [row, False]
    served.commit("ann", {"entry": row["id"]})
    assert served.charged("ann", {"entry": row["id"]}) == [row, True]
    with pytest.raises(ValueError, match="key must be 1 to"):
        served.find("ann", {"key": ""})


def test_the_header_tells_the_state_and_the_callers_name(own):
    LedgerCalls(own).charge("ann", CHARGE)
    told = LedgerCalls(own).header("ann", {})
    tip = own.tip()
    assert told["actor"] == "ann" and told["header"]["ledger_id"] == own.id
    assert (told["header"]["sequence"], told["header"]["hash"]) == (
        tip.sequence,
        tip.hash,
    )
    assert told["header"]["terms"] == own.terms.to_text()


# -- a client ------------------------------------------------------------------------


class Loopback:
    """A caller whose service is in this process; data are JSON on the way."""

    service: LedgerCalls
    actor = "ann"

    def __init__(self, url, token, timeouts):
        self.said = []

    def read(self, call, **data):
        name = "stored_declaration" if call == "declaration" else call
        sent = json.loads(canonical(data))
        self.said.append((call, sent))
        try:
            answer = getattr(self.service, name)(self.actor, sent)
        except Exception as error:
            told = json.loads(json.dumps(error_data(error)))
            raise error_of(told) from error
        return json.loads(json.dumps(answer))

    write = read

    def close(self):
        self.said.append("closed")


@pytest.fixture
def remote(own, monkeypatch, tmp_path):
    """Open a client of the ledger; each has its own folder of keys."""
    monkeypatch.setattr(mirror, "Caller", Loopback)
    monkeypatch.setattr(Loopback, "service", LedgerCalls(own), raising=False)
    made = []

    def open_client(**more):
        keys = tmp_path / f"keys-{len(made)}"
        made.append(Ledger.open(PLACE, token="t" * 20, **({"keys": keys} | more)))
        return made[-1]

    yield open_client
    for client in made:
        client.close()


def test_a_client_reads_what_the_ledger_has(own, remote):
    client = remote()
    assert (client.id, client.terms, client.durable) == (own.id, own.terms, True)
    for number in range(3):
        entry = client.charge(QUIET, label=f"entry {number}")
    client.annotate(entry, "utility", {"accuracy": 0.5})
    with pytest.raises(BudgetExceeded):
        client.charge(HUGE, label="too much")
    sampled = says(Repeated(PoissonGaussian(0.01, 2.0), 50))
    client.charge(sampled, label="sampled")
    assert client.entries() == own.entries() and len(own.entries()) == 4
    assert client.status() == own.status() and client.reading() == own.reading()
    assert client.tip() == own.tip() and client.declined() == own.declined() != ()
    assert client.notes() == own.notes() != ()
    check = client.verify(own.tip())
    assert check == own.verify(own.tip()) and check.ok
    assert client.entries()[0].actor == "ann" and client.file_path() is None
    own.charge(QUIET, label="later")
    assert [each.label for each in client.entries()][-1] == "later"
    assert client._acknowledged.newest.sequence == 6, "of its own rows"
    client.close()
    assert client._store.caller.said[-1] == "closed"


def test_rows_are_fetched_once_and_profiles_once(own, remote, monkeypatch):
    monkeypatch.setattr(mirror, "_AT_ONCE", 2)
    sampled = says(Repeated(PoissonGaussian(0.01, 2.0), 50))
    for number in range(5):
        own.charge((QUIET, sampled)[number % 2], label=f"{number}")
    client = remote()
    said = client._store.caller.said
    assert len(client.entries()) == 5
    asked = [data["after"] for call, data in said if call == "rows"]
    assert asked == [0, 2, 4]
    assert [call for call, _ in said].count("profile") == 1
    own.charge(sampled, label="5")
    said.clear()
    assert len(client.entries()) == 6
    assert [(c, d.get("after")) for c, d in said] == [("rows", 5)]


def test_a_client_draws_commits_and_repeats(own, remote):
    client, other = remote(), remote()
    named = {"label": "v", "idempotency_key": "k", "digest": COUNT.digest([5.0])}
    payment = client.paid(COUNT, **named)
    first = COUNT.apply([5.0], payment.key)
    assert COUNT.apply([5.0], client.paid(COUNT, **named).key) == first
    client.paid(COUNT, label="w", idempotency_key="w")
    with pytest.raises(NoiseReuse, match="not here"):
        other.paid(COUNT, label="w", idempotency_key="w").key  # noqa: B018
    assert client.find("k") == own.find("k") == payment.entry
    assert client.find("j") is None and client.find("j", settled=True) is None
    assert client.resumed("k").entry == payment.entry
    payment.commit("reports")
    assert own.commit_of(payment.entry).artefact == "reports"
    said = [data for call, data in client._store.caller.said if call == "find"]
    assert [data["settled"] for data in said] == [False, False, True, True]
    reserved = client.reserve(QUIET, count=5, label="r", idempotency_key="r")
    assert [draw.index for draw in reserved.draw_many(2)] == [0, 1]
    assert (reserved.drawn, reserved.remaining, reserved.count) == (2, 3, 5)


def test_a_client_is_refused_what_is_not_its_own(remote, own):
    client = remote()
    with pytest.raises(NotPrivate):
        client.charge(QUIET, label="s", source=Seeded(1))
    with pytest.raises(DemurError, match="where it is kept"):
        client.recover(f"3:{'0' * 64}")
    with pytest.raises(LedgerMismatch, match="dataset"):
        remote(dataset="others")
    with pytest.raises(LedgerDamaged, match="does not contain"):
        remote(tip=f"3:{'0' * 64}")
    with pytest.raises(ValueError, match="the service's"):
        remote(actor="somebody")
    with pytest.raises(ValueError, match="the service's"):
        remote(signing_key="a file")
    with pytest.raises(LedgerMismatch, match="opened to be read"):
        remote(read_only=True).charge(QUIET, label="x")
    with pytest.raises(LedgerMismatch, match="made where it is kept"):
        client._store.create(None)
    assert own.entries() == []


def test_a_newer_ledger_is_not_read(remote, own, monkeypatch):
    header = LedgerCalls.header

    def newer(self, actor, data):
        told = header(self, actor, data)
        return told | {"header": told["header"] | {"schema_version": 99}}

    monkeypatch.setattr(LedgerCalls, "header", newer)
    with pytest.raises(LedgerMismatch, match="has schema 99"):
        remote()


def changed(monkeypatch, call, change):
    """The service lies in one call."""
    truth = getattr(LedgerCalls, call)

    def lying(self, actor, data):
        return change(json.loads(json.dumps(truth(self, actor, data))))

    monkeypatch.setattr(LedgerCalls, call, lying)


COLUMN = [column.name for column in calls._COLUMNS].index


def other_body(page):
    for row in page["rows"]:
        row[COLUMN("body")] = row[COLUMN("body")].replace("honest", "other")
    return page


def other_hash(page):
    for row in page["rows"]:
        row[COLUMN("hash")] = "0" * 64
    return page


def other_number(page):
    for row in page["rows"]:
        row[COLUMN("sequence")] += 1
    return page


LIES = [
    (other_body, "does not follow"),
    (other_hash, "does not follow"),
    (other_number, "does not follow"),
    (lambda page: page | {"rows": []}, "does not show row 2"),
    (lambda page: page | {"before": "0" * 64}, "acknowledged"),
    (
        lambda page: page | {"header": page["header"] | {"hash": "0" * 64}},
        "does not end with the row it names",
    ),
    (
        lambda page: page | {"rows": [], "header": page["header"] | {"sequence": 0}},
        "acknowledged",
    ),
]


@pytest.mark.parametrize(("lie", "told"), LIES)
def test_a_service_that_lies_about_rows_is_noticed(remote, own, monkeypatch, lie, told):
    client = remote()
    client.charge(QUIET, label="first")
    assert len(client.entries()) == 1
    changed(monkeypatch, "rows", lie)
    own.charge(QUIET, label="honest")
    with pytest.raises(LedgerDamaged, match=told):
        client.entries()


@pytest.mark.parametrize("name", ["declaration", "count", "input", "noise"])
def test_a_service_that_charges_for_something_else_is_noticed(
    remote, own, monkeypatch, name
):
    client = remote()

    def other(answer):
        answer["result"][1][name] = "another"
        return answer

    changed(monkeypatch, "charge", other)
    with pytest.raises(LedgerDamaged, match="another charge than it was asked for"):
        client.charge(QUIET, label="x")


def test_a_service_that_tells_another_declaration_is_noticed(remote, own, monkeypatch):
    client = remote()
    client.charge(QUIET, label="x", idempotency_key="k")
    other = remote()
    assert other.resumed("k").entry == own.find("k")
    changed(monkeypatch, "stored_declaration", lambda text: text.replace("noisy", "a"))
    assert other.resumed("k") is not None, "it is known here"
    with pytest.raises(LedgerDamaged, match="another declaration than the row names"):
        remote().resumed("k")


# -- errors on the way ---------------------------------------------------------------


def test_errors_keep_their_kind_and_their_text():
    class Own(BudgetExceeded):
        pass

    kept = [
        ValueError("v"),
        TypeError("t"),
        BudgetExceeded("b"),
        OutcomeUnknown("o"),
        ApprovalPending("a", 7),
    ]
    for error in kept:
        again = error_of(json.loads(json.dumps(error_data(error))))
        assert type(again) is type(error) and str(again) == str(error)
    assert error_data(kept[-1])["number"] == 7 == again.number
    assert error_data(Own("x")) == {"kind": "BudgetExceeded", "message": "x"}
    assert "number" not in error_data(kept[0])
    for private in (KeyError("a secret"), OSError("a path"), RuntimeError("x")):
        told = error_data(private)
        assert told["kind"] == "Defect" and "secret" not in str(told)
        assert error_of(told) is None
    for nothing in (None, 5, {}, {"kind": "ValueError"}, {"kind": "x", "message": "y"}):
        assert error_of(nothing) is None
    assert error_of({"kind": "ValueError", "message": 5}) is None


def test_pure_charges_of_a_client_cost_what_they_cost_here(remote, own):
    client = remote()
    entry = client.charge(says(Pure(0.25)), label="x", block_delta=1e-7)
    (row,) = rows_of(own, "charge")
    assert row["block_delta"] == 1e-7 and row["id"] == entry.id
    assert client.status() == own.status()
