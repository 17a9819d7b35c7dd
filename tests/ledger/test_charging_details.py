"""Details of a payment: what is checked, handed on, announced, kept and wiped."""

import copy
import json

import numpy as np
import pytest

from demur import (
    AddOrRemoveOne,
    Budget,
    BudgetExceeded,
    Declaration,
    DemurError,
    Filter,
    Ledger,
    OutcomeUnknown,
    ReplaceOne,
    Seeded,
)
from demur.core.accounting.events import ApproxDP, GaussianEvent, Pure
from demur.core.cost import Cost, Fixed
from demur.core.recording import Tape, watching
from demur.durable.chain import load_signing_key
from demur.durable.keys import KeyStore, keys_folder
from demur.errors import (
    EntryCommitted,
    LedgerMismatch,
    NoiseReuse,
    NotPrivate,
)
from demur.ledger.payment import Payment
from demur.ledger.reservation import LARGEST, Reservation
from demur.ledger.writer import Unfinished
from demur.mechanisms import Gaussian
from tests.ledger.kit import BUDGET, UNIT, ask, says

COUNT = Gaussian(20.0, {UNIT: 1.0})
PURE = says(Pure(0.25))
TINY = says(GaussianEvent(1e9))
BOTH = Declaration(
    "two units", Cost((Fixed(UNIT, Pure(0.25)), Fixed(ReplaceOne(), Pure(0.5))))
)
NAMED = {"label": "visitors", "digest": "d" * 64, "idempotency_key": "job-7"}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(place, opened):
    return opened(place, dataset="people", budgets={UNIT: BUDGET}, actor="ann")


def bodies(place, kind):
    found = ask(place, f"SELECT body FROM demur_rows WHERE kind = '{kind}'")
    return [json.loads(body) for (body,) in found]


def stored_keys(ledger):
    return sorted(path.stem for path in ledger.keys_path().glob("?" * 32 + ".key"))


# -- what is charged -----------------------------------------------------------------


def test_a_row_says_what_was_asked(ledger, place):
    more = {"source": None, "block_delta": np.float64(1e-9), "count": np.int64(3)}
    entry = ledger.paid(COUNT, **NAMED, **more).entry
    (row,) = bodies(place, "charge")
    asked = {"label": "visitors", "idempotency_key": "job-7", "count": 3}
    asked |= {"noise": "os", "actor": "ann", "block_delta": 1e-9, "id": entry.id}
    assert asked.items() <= row.items()
    assert row["input"] not in (None, NAMED["digest"]), "under the ledger's secret"
    assert "unsafe" not in row and entry.actor == "ann"
    ledger._unsafe = ("fsync is off",)
    assert ledger.charge(COUNT, label="x").unsafe == ("fsync is off",)


@pytest.mark.parametrize(
    ("more", "kind", "named"),
    [
        ({"label": ""}, ValueError, "label"),
        ({"label": 5}, TypeError, "label"),
        ({"digest": ""}, ValueError, "digest"),
        ({"digest": 5}, TypeError, "digest"),
        ({"idempotency_key": ""}, ValueError, "idempotency_key"),
        ({"idempotency_key": "x" * 201}, ValueError, "idempotency_key"),
        ({"count": 0}, ValueError, "count"),
        ({"count": 1.0}, TypeError, "count"),
        ({"count": LARGEST + 1}, ValueError, "count must be at most 2"),
        ({"source": 7}, TypeError, "source must be None"),
        ({"source": object()}, TypeError, "Nothing was spent"),
        ({"source": Seeded(1)}, NotPrivate, "this ledger is durable"),
        ({"block_delta": 2.0}, ValueError, "block_delta"),
        ({"block_delta": "x"}, TypeError, "block_delta"),
        ({"mechanism": object()}, TypeError, "mechanism"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(ledger, more, kind, named):
    with pytest.raises(kind, match=named):
        ledger.paid(**({"mechanism": COUNT, "label": "x"} | more))
    assert ledger.tip().sequence == 0 and ledger._keys._memory == {}
    assert stored_keys(ledger) == []


def test_the_largest_count_is_allowed(ledger):
    assert LARGEST == 2**40
    payment = ledger.paid(TINY, label="many", count=LARGEST)
    assert payment.entry.count == payment.reservation.remaining == LARGEST


def test_seeded_noise_is_for_memory_and_for_tests(tmp_path, opened):
    terms = {"dataset": "people", "budgets": {UNIT: BUDGET}}
    testing = opened(tmp_path / "t.db", testing=True, **terms)
    for allowed in (testing, Ledger(BUDGET, unit=UNIT)):
        payment = allowed.paid(COUNT, label="x", source=Seeded(1))
        assert not payment.entry.private and not payment.key.private
        assert allowed.paid(COUNT, label="y").key.private


def test_charge_and_reserve_are_paid_with_the_same_arguments(ledger, monkeypatch):
    asked, paid = [], ledger.paid

    def heard(mechanism, **named):
        asked.append(named)
        return paid(mechanism, **named)

    monkeypatch.setattr(ledger, "paid", heard)
    more = {"digest": "d", "block_delta": 1e-9, "source": None}
    ledger.charge(COUNT, label="a", idempotency_key="a", **more)
    ledger.reserve(COUNT, count=2, label="b", idempotency_key="b", **more)
    assert asked == [
        {"label": "a", "idempotency_key": "a"} | more,
        {"label": "b", "idempotency_key": "b", "count": 2} | more,
    ]


def test_the_purpose_is_on_the_way_to_whoever_decides(place, ledger, opened):
    asked, charge = [], type(ledger._journal).charge

    def heard(journal, *given, **named):
        asked.append(named["purpose"])
        return charge(journal, *given, **named)

    other = opened(place, purpose="the report")
    for each in (ledger, other):
        each._journal.charge = lambda *a, j=each._journal, **n: heard(j, *a, **n)
        each.charge(COUNT, label="x")
    assert asked == ["", "the report"]


def test_a_recording_hears_of_a_charge_and_whether_it_was_paid():
    ledger, tape = Ledger(Budget(1.0, 1e-6), unit=UNIT), Tape()
    with watching(tape):
        ledger.paid(COUNT, label="one", count=2, source=Seeded(1))
        with pytest.raises(BudgetExceeded):
            ledger.paid(says(Pure(5.0)), label="too much", source=Seeded(1))
        with pytest.raises(NotPrivate):
            ledger.paid(COUNT, label="private")
    heard = [(c.label, c.count, c.paid) for c in tape.charges]
    assert heard == [("one", 2, True), ("too much", 1, False)]
    assert tape.charges[0].declaration == COUNT.declaration()
    assert len(ledger.entries()) == 1


def test_a_reader_charges_draws_commits_and_decides_nothing(place, ledger, opened):
    payment = ledger.paid(COUNT, label="x", count=3)
    entry = payment.entry
    reader = opened(place, read_only=True)
    for attempt in (
        lambda: reader.paid(COUNT, label="y"),
        lambda: Payment(reader, entry, None).commit(),
        lambda: Payment(reader, entry, None).reservation.draw(),
        lambda: reader.annotate(entry, "utility", {"accuracy": 0.5}),
        lambda: reader.approve(1, reason="yes"),
        lambda: reader.decline(1, reason="no"),
        lambda: reader.recover(ledger.tip()),
    ):
        with pytest.raises(LedgerMismatch, match="opened to be read"):
            attempt()
    assert ledger.tip().sequence == 1 and payment.reservation.drawn == 0


# -- what is announced ---------------------------------------------------------------


def announced(capsys, ledger, mechanism, **more):
    entry = ledger.charge(mechanism, label="x", **more)
    capsys.readouterr()
    ledger._announce(entry)
    return capsys.readouterr().out.strip()


def test_an_announcement_says_the_cost_and_what_is_left(capsys):
    ledger = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    left = "Charged 'x': epsilon 0.25. AddOrRemoveOne(): "
    assert announced(capsys, ledger, PURE) == left + "0.75 of 1 left"
    for _ in range(3):
        last = announced(capsys, ledger, PURE)
    assert last == left + "nothing left of 1"


def test_an_announcement_for_several_budgets(capsys):
    budgets = {UNIT: Budget(1.0), ReplaceOne(): Budget(2.0)}
    ledger = Ledger(budgets, filter="pure")
    said = announced(capsys, ledger, BOTH)
    assert said == (
        "Charged 'x': epsilon 0.25 and 0.5. AddOrRemoveOne(): 0.75 of 1 left;"
        " ReplaceOne(): 1.5 of 2 left"
    )


def test_nothing_is_announced_of_what_costs_nothing(capsys):
    ledger = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    assert announced(capsys, ledger, says(Pure(0.0))) == ""
    assert announced(capsys, ledger, PURE, idempotency_key="k") != ""


def test_a_budget_without_a_limit_is_not_announced(capsys):
    endless = Budget(float.fromhex("0x1.fffffffffffffp+1023"))
    assert endless.unlimited
    budgets = {UNIT: endless, ReplaceOne(): Budget(2.0)}
    said = announced(capsys, Ledger(budgets, filter="pure"), BOTH)
    assert said == "Charged 'x': epsilon 0.25 and 0.5. ReplaceOne(): 1.5 of 2 left"


BLOCK = says(ApproxDP(0.125, 3e-8))


def test_what_is_left_of_delta_is_rounded_down(capsys):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter="pure")
    assert announced(capsys, ledger, BLOCK) == (
        "Charged 'x': epsilon 0.125. AddOrRemoveOne(): 0.875 of 1 left, delta 9.7e-07"
        " of 1e-06"
    )
    ledger.charge(says(ApproxDP(0.125, 5.16e-7)), label="y")
    assert announced(capsys, ledger, BLOCK).endswith(", delta 4.2e-07 of 1e-06")


@pytest.mark.parametrize(
    ("spent", "left"),
    [("0", 1e-6), ("9e-07", 1e-7), ("9.9998e-07", 2e-11), ("9.9999e-07", 0.0)],
)
def test_a_remainder_below_the_digits_that_are_kept_is_none(spent, left):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter="pure")
    (status,) = ledger.status()
    accounts = {"block delta": spent} if spent != "0" else {}
    status = type(status)(status.unit, status.budget, 0.0, accounts)
    said = ledger._left_delta(status)
    shown = float(said.removeprefix(", delta ").split()[0])
    assert said.endswith(" of 1e-06") and shown <= left
    assert shown == pytest.approx(left, rel=0.06)


def test_delta_is_left_out_where_no_entry_takes_a_part_of_it(capsys):
    gaussian = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    assert gaussian.terms.filter == Filter.gaussian()
    assert gaussian._left_delta(gaussian.status()[0]) == ""
    assert "delta" not in announced(capsys, gaussian, COUNT)
    pure = Ledger(Budget(1.0), unit=UNIT, filter="pure")
    assert pure._left_delta(pure.status()[0]) == ""


# -- keys ----------------------------------------------------------------------------


def test_a_key_is_stored_for_a_call_that_can_be_repeated_alone(ledger):
    """It needs a name and an input; several runs have several inputs."""
    steps = says(GaussianEvent(30.0), draws=None)
    kept = ledger.paid(COUNT, **NAMED).entry
    assert stored_keys(ledger) == [kept.id]
    for number, (mechanism, more) in enumerate(
        [
            (COUNT, {}),
            (COUNT, {"digest": "d"}),
            (COUNT, {"idempotency_key": "a"}),
            (COUNT, {"idempotency_key": "b", "digest": "d", "count": 2}),
        ],
        1,
    ):
        ledger.paid(mechanism, label="x", **more)
        assert stored_keys(ledger) == [kept.id]
        assert len(ledger._keys._memory) == number
    plan = ledger.paid(steps, label="s", digest="d", idempotency_key="c", count=2)
    assert stored_keys(ledger) == sorted([kept.id, plan.entry.id])
    assert (
        ledger.paid(
            steps, label="s", digest="d", idempotency_key="c", count=2
        ).key.binding
        == plan.key.binding
    )


def test_a_key_is_bound_to_what_the_row_says(ledger):
    plain = says(GaussianEvent(30.0), draws=4)
    key = ledger.paid(plain, label="x", digest="d", count=3).key
    bound = key.binding
    assert (bound.draws, bound.runs, bound.digest) == (4, 3, "d")
    assert bound.fingerprint == plain.fingerprint and key.private


@pytest.mark.parametrize("digest", ["e" * 64, None])
def test_a_key_is_not_there_for_another_input(ledger, digest):
    entry = ledger.paid(COUNT, **NAMED).entry
    words = "no digest" if digest is None else "the digest of another input"
    with pytest.raises(NoiseReuse, match=f"for one input, and {words} was given"):
        ledger._key(entry, digest)
    assert ledger._key(entry, NAMED["digest"]).binding.digest == NAMED["digest"]


def test_an_input_may_be_named_late_where_none_was_charged(ledger):
    entry = ledger.paid(COUNT, label="x").entry
    assert ledger._key(entry, "late").binding.digest == "late"


def test_equal_inputs_of_two_entries_look_different_and_of_a_repeat_the_same(
    ledger, place
):
    for more in ({}, {}, {"idempotency_key": "a"}, {"idempotency_key": "b"}):
        ledger.paid(COUNT, label="x", digest="d", **more)
    assert len({body["input"] for body in bodies(place, "charge")}) == 4
    ledger.paid(COUNT, label="x", digest="d", idempotency_key="a")
    assert len(bodies(place, "charge")) == 4


def test_a_committed_entry_has_no_key_any_more(ledger):
    payment = ledger.paid(COUNT, **NAMED)
    ledger._journal.commit(payment.entry.id, None)  # and the process died
    assert stored_keys(ledger) == [payment.entry.id]
    with pytest.raises(EntryCommitted, match="is committed and its key is wiped"):
        ledger._key(payment.entry, NAMED["digest"])
    assert stored_keys(ledger) == []


def test_a_commit_wipes_the_key_and_a_failure_what_was_handed_out(ledger):
    with ledger.paid(COUNT, **NAMED) as payment:
        assert stored_keys(ledger) == [payment.entry.id]
    assert stored_keys(ledger) == []
    again = NAMED | {"idempotency_key": "job-8"}
    with pytest.raises(ZeroDivisionError), ledger.paid(COUNT, **again) as payment:
        key = payment.key
        raise ZeroDivisionError
    assert stored_keys(ledger) == [payment.entry.id], "for a repeat"
    with pytest.raises(NoiseReuse, match="wiped"):
        key.authorise(COUNT.fingerprint, again["digest"]).stream("p")


FAILURES = [
    (ZeroDivisionError(), True, False),
    (ZeroDivisionError(), False, False),
    (OutcomeUnknown("lost"), True, True),
    (OutcomeUnknown("lost"), False, False),
    (KeyboardInterrupt(), True, True),
    (KeyboardInterrupt(), False, False),
]


@pytest.mark.parametrize(("error", "named", "kept"), FAILURES)
def test_the_key_of_a_charge_that_failed_is_kept_for_a_repeat_alone(
    ledger, monkeypatch, error, named, kept
):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(ledger._journal, "charge", failing)
    more = NAMED if named else {"label": "visitors", "digest": "d"}
    with pytest.raises(type(error)):
        ledger.paid(COUNT, **more)
    assert len(stored_keys(ledger)) == kept and ledger._keys._memory == {}


def test_a_repeat_leaves_its_own_key_nowhere(ledger):
    first = ledger.paid(COUNT, label="x", idempotency_key="k")
    assert list(ledger._keys._memory) == [first.entry.id]
    again = ledger.paid(COUNT, label="x", idempotency_key="k")
    assert again.entry == first.entry
    assert list(ledger._keys._memory) == [first.entry.id]


def test_a_wiped_key_is_that_of_an_entry_of_this_ledger(ledger):
    entry = ledger.paid(COUNT, **NAMED).entry
    stranger = Ledger(BUDGET, unit=UNIT).charge(COUNT, label="x")
    with pytest.raises(DemurError, match="entry"):
        ledger.wipe_key(stranger)
    assert stored_keys(ledger) == [entry.id]
    assert ledger.unfinished() == (
        Unfinished(entry, ledger.keys_path() / f"{entry.id}.key"),
    )
    ledger.wipe_key(entry)
    assert ledger.unfinished() == (Unfinished(entry, None),)
    assert ledger.tip().sequence == 1, "nothing was written"


def test_keys_of_a_server_are_under_the_users_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DEMUR_KEYS", str(tmp_path / "a"))
    assert keys_folder() == tmp_path / "a"
    monkeypatch.delenv("DEMUR_KEYS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert keys_folder() == tmp_path / "state" / "demur" / "keys"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys_folder() == tmp_path / ".local" / "state" / "demur" / "keys"


@pytest.mark.parametrize("folder", [None, "keys"])
def test_a_store_keeps_hands_out_withdraws_and_wipes(tmp_path, folder):
    store = KeyStore(None if folder is None else tmp_path / folder)
    key, other = bytes([1] * 32), bytes([2] * 32)
    store.put("kept", key, keep=True)
    store.put("once", other, keep=False)
    assert (store._folder is None) == ("kept" in store._memory)
    assert [store.take("kept", keep=True) for _ in "12"] == [key, key]
    store.withdraw("kept")
    assert store.take("kept", keep=True) == key, "a repeat may ask for it"
    assert store.take("once", keep=False) == other
    assert store.take("once", keep=False) is None
    store.put("lost", other, keep=False)
    store.withdraw("lost")
    assert store.take("lost", keep=False) is None
    store.wipe("kept")
    assert store.take("kept", keep=True) is None and store._kept == set()
    store.wipe("kept")
    if folder is not None:
        for wrong in ("", "A", "a/b", "..", "x" * 65):
            with pytest.raises(ValueError, match="not the name of a key"):
                store._path(wrong)
        store.put("x" * 64, key, keep=True)
        (tmp_path / folder / f"{'x' * 64}.key").write_bytes(bytes(32))
        with pytest.raises(NoiseReuse, match="damaged or wiped"):
            store.take("x" * 64, keep=True)
        (tmp_path / folder / f"{'x' * 64}.key").write_bytes(bytes([1] * 31))
        with pytest.raises(NoiseReuse, match="damaged or wiped"):
            store.take("x" * 64, keep=True)
    digests = {store.keyed_digest("a", salt) for salt in ("1", "1", "2")}
    assert len(digests) == 2 and all(len(digest) == 64 for digest in digests)


# -- a payment -----------------------------------------------------------------------


def test_a_payment_is_itself_however_it_is_copied(ledger):
    payment = ledger.paid(COUNT, label="x")
    assert copy.copy(payment) is payment and copy.deepcopy([payment])[0] is payment
    with pytest.raises(TypeError, match="cannot be pickled"):
        payment.__reduce__()
    assert repr(payment) == "Payment('x')"


def test_a_payment_that_was_committed_has_not_failed(ledger):
    with pytest.raises(ZeroDivisionError):
        with ledger.paid(COUNT, label="x") as payment:
            payment.commit("reports")
            raise ZeroDivisionError
    assert ledger.commit_of(payment.entry).artefact == "reports"
    with pytest.raises(NoiseReuse, match="committed"):
        payment.key  # noqa: B018
    payment.commit("reports")


def test_a_payment_commits_once(ledger, monkeypatch):
    asked, commit = [], ledger._commit

    def committing(*given):
        asked.append(given)
        return commit(*given)

    monkeypatch.setattr(ledger, "_commit", committing)
    with ledger.paid(COUNT, label="x") as payment:
        payment.released("reports")
    payment.commit()
    assert asked == [(payment.entry, "reports")]


@pytest.mark.parametrize("artefact", ["", "a\nb", 5])
def test_an_artefact_is_a_name(ledger, artefact):
    payment = ledger.paid(COUNT, label="x")
    for way in (payment.released, payment.commit):
        with pytest.raises((TypeError, ValueError), match="artefact"):
            way(artefact)
    assert ledger.commit_of(payment.entry) is None


def test_a_reservation_hands_out_numbered_draws(ledger):
    reserved = ledger.reserve(COUNT, count=6, label="x")
    assert isinstance(reserved, Reservation) and reserved.entry.count == 6
    assert (reserved.count, reserved.drawn, reserved.remaining) == (6, 0, 6)
    assert reserved.draw().index == 0
    draws = reserved.draw_many(3)
    assert [draw.index for draw in draws] == [1, 2, 3]
    assert {draw.entry for draw in draws} == {reserved.entry}
    assert (reserved.drawn, reserved.remaining) == (4, 2)
    for wrong in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="count"):
            reserved.draw_many(wrong)
    with pytest.raises(BudgetExceeded, match="6 draws and 2 are left; asked for 3"):
        reserved.draw_many(3)
    assert [draw.index for draw in reserved.draw_many(2)] == [4, 5]
    with pytest.raises(BudgetExceeded, match="6 draws and all are used"):
        reserved.draw()
    assert repr(reserved) == "Reservation('x', count=6)"


# -- what else is written ------------------------------------------------------------


def test_a_resumed_payment_waits_for_those_under_way(ledger, monkeypatch):
    entry = ledger.paid(COUNT, **NAMED).entry
    asked, find = [], ledger._journal.find

    def heard(key, *, settled):
        asked.append((key, settled))
        return find(key, settled=settled)

    monkeypatch.setattr(ledger._journal, "find", heard)
    assert ledger.find("job-7") == entry == ledger.resumed("job-7").entry
    assert ledger.find("job-8") is None is ledger.resumed("job-8")
    assert asked == [
        ("job-7", False),
        ("job-7", True),
        ("job-8", False),
        ("job-8", True),
    ]


def test_a_note_is_of_its_entry_and_by_whom(ledger, place):
    first, second = (ledger.charge(COUNT, label=label) for label in "ab")
    ledger.annotate(first, "utility", {"accuracy": 0.5})
    ledger.annotate(first, "utility", {"accuracy": 0.5})
    ledger.annotate(second, "audit", {"people": 3})
    rows = bodies(place, "note")
    assert [row["id"] for row in rows] == [first.id, first.id, second.id]
    assert {row["actor"] for row in rows} == {"ann"}
    assert len({row["token"] for row in rows}) == 3, "each call has its own name"
    assert all(len(row["token"]) == 32 for row in rows)
    assert [note.about for note in ledger.notes(second)] == ["audit"]
    assert len(ledger.notes(about="utility")) == 2 and len(ledger.notes()) == 3


def test_decisions_are_what_was_said(ledger, monkeypatch):
    asked = []
    monkeypatch.setattr(ledger._journal, "decide", lambda *given: asked.append(given))
    ledger.approve(3, reason="yes")
    ledger.decline(4, reason="no")
    assert asked == [(3, True, "yes", "ann"), (4, False, "no", "ann")]


def test_a_recovery_takes_a_tip_or_its_text(ledger, monkeypatch):
    asked, tip = [], ledger.tip()
    monkeypatch.setattr(ledger._journal, "recover", lambda *given: asked.append(given))
    ledger.recover(tip, receipts=[1], write_down="all")
    ledger.recover(str(tip))
    assert asked == [("ann", tip, [1], "all"), ("ann", tip, (), None)]


def test_a_receipt_is_that_of_the_entry_whether_it_is_recent_or_not(ledger, place):
    entries = [ledger.charge(COUNT, label=label) for label in "abc"]
    recent = [ledger.receipt(entry) for entry in entries]
    ledger._acknowledged._recent.clear()
    assert [ledger.receipt(entry) for entry in entries] == recent
    for entry, receipt in zip(entries, recent, strict=True):
        assert receipt.sequence == entry.sequence and entry.id in receipt.body
        assert receipt.ledger_id == ledger.id and receipt.declaration is not None
    assert recent[-1].tip == ledger.tip() and recent[1].tip == recent[2].follows
    stranger = Ledger(BUDGET, unit=UNIT).charge(COUNT, label="x")
    with pytest.raises(DemurError, match="'x' is not an entry of this ledger"):
        ledger.receipt(stranger)


def test_evidence_is_signed_by_a_ledger_with_a_key(ledger, tmp_path, opened):
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    from demur.durable.chain import evidence_digest  # noqa: PLC0415

    assert ledger.sign_evidence(b"x") is None
    key = Ed25519PrivateKey.generate()
    file = tmp_path / "key.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    file.chmod(0o600)
    signed = opened(
        tmp_path / "signed.db",
        dataset="people",
        budgets={AddOrRemoveOne(): BUDGET},
        signing_key=load_signing_key(file),
    )
    signature = bytes.fromhex(signed.sign_evidence(b"x"))
    assert isinstance(evidence_digest(b"x"), str)
    assert signature != bytes.fromhex(signed.sign_evidence(b"y"))
    assert len(signature) == 64
