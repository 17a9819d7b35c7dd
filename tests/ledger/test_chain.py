"""Whatever is done to a ledger behind its back is found by `verify`, or named."""

import json
import shutil
import sqlite3
import threading
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Filter, Ledger, Tip
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure, Repeated
from demur.durable import chain
from demur.errors import LedgerDamaged, LedgerMismatch
from demur.ledger.storage.header import Header, State
from tests.ledger.kit import UNIT, ask, edit, says

BUDGET = Budget(8.0, 1e-5)
RULE = Filter.gaussian(blocks=0.5)
CHEAP = Repeated(PoissonGaussian(0.01, 4.0), 10)
DEAR = Repeated(PoissonGaussian(0.01, 1.0), 100)


def fill(ledger):
    """Eight rows of every kind."""
    ledger.charge(says(GaussianEvent(20.0)), label="first")
    entry = ledger.charge(
        says(GaussianEvent(30.0)), label="second", idempotency_key="k"
    )
    ledger._commit(entry, "artefact")
    reserved = ledger.reserve(says(Pure(0.01)), count=3, label="third")
    reserved.draw()
    reserved.draw()
    ledger.charge(says(CHEAP, name="a plan"), label="fourth")
    ledger.charge(says(DEAR, name="another plan"), label="fifth")
    return ledger


@pytest.fixture
def ledger(new_ledger):
    return fill(new_ledger(budgets={UNIT: BUDGET}, filter=RULE))


def change_body(url, sequence, **changes):
    ((text,),) = ask(url, f"SELECT body FROM demur_rows WHERE sequence = {sequence}")
    new = chain.canonical(json.loads(text) | changes)
    edit(
        url,
        f"UPDATE demur_rows SET body = :new WHERE sequence = {sequence}",
        new=new,
    )


def swap(url, a, b):
    edit(
        url,
        f"UPDATE demur_rows SET sequence = -1 WHERE sequence = {a}",
        f"UPDATE demur_rows SET sequence = {a} WHERE sequence = {b}",
        f"UPDATE demur_rows SET sequence = {b} WHERE sequence = -1",
    )


def duplicate(url):
    edit(
        url,
        "INSERT INTO demur_rows (sequence, kind, entry_id, declaration, count, noise,"
        " body, hash) SELECT 9, kind, entry_id, declaration, count, noise, body, hash"
        " FROM demur_rows WHERE sequence = 1",
        "UPDATE demur_ledger SET sequence = 9",
    )


def swap_bodies(url):
    rows = ask(url, "SELECT sequence, body FROM demur_rows WHERE sequence IN (1, 2)")
    (_, first), (_, second) = sorted(rows)
    edit(url, "UPDATE demur_rows SET body = :x WHERE sequence = 1", x=second)
    edit(url, "UPDATE demur_rows SET body = :x WHERE sequence = 2", x=first)


def rehash(url):
    """Make every link right again after an edit: a consistent rewrite."""
    ((own, version, terms),) = ask(
        url, "SELECT ledger_id, schema_version, terms FROM demur_ledger"
    )
    last = Header(own, version, terms, State(0, "", "")).genesis
    rows = sorted(ask(url, "SELECT sequence, body FROM demur_rows"))
    for sequence, text in rows:
        last = chain.link(last, text)
        edit(
            url,
            f"UPDATE demur_rows SET hash = :x WHERE sequence = {sequence}",
            x=last,
        )
    edit(url, f"UPDATE demur_ledger SET hash = :x, sequence = {len(rows)}", x=last)


def edit_declaration(url):
    rows = ask(url, "SELECT digest, body FROM demur_declarations")
    digest, text = next(r for r in rows if "20.0" in r[1])
    edit(
        url,
        f"UPDATE demur_declarations SET body = :x WHERE digest = '{digest}'",
        x=text.replace("20.0", "2000.0"),
    )


def swap_profiles(url):
    """The cheap plan's curve under the dear plan's name."""
    rows = ask(url, "SELECT event, event_body FROM demur_profiles")
    (a, text_a), (b, text_b) = rows
    edit(
        url, f"UPDATE demur_profiles SET event_body = :x WHERE event = '{a}'", x=text_b
    )
    edit(
        url, f"UPDATE demur_profiles SET event_body = :x WHERE event = '{b}'", x=text_a
    )


def swap_curves(url):
    (a, da, ba), (b, db, bb) = ask(
        url, "SELECT event, digest, body FROM demur_profiles"
    )
    for event, digest, data in ((a, db, bb), (b, da, ba)):
        edit(
            url,
            "UPDATE demur_profiles SET digest = :d, body = :x WHERE event = :e",
            d=digest,
            x=bytes(data),
            e=event,
        )


def spoil_curve(url):
    rows = ask(url, "SELECT event, body FROM demur_profiles")
    event, data = rows[0][0], bytearray(rows[0][1])
    data[len(data) // 2] ^= 1
    edit(
        url,
        "UPDATE demur_profiles SET body = :x WHERE event = :e",
        x=bytes(data),
        e=event,
    )


def sql(*statements):
    return lambda url: edit(url, *statements)


def edit_terms(url):
    ((text,),) = ask(url, "SELECT terms FROM demur_ledger")
    edit(url, "UPDATE demur_ledger SET terms = :x", x=text.replace("8.0", "80.0"))


TAMPERS = {
    "label": lambda url: change_body(url, 1, label="another"),
    "spent": lambda url: change_body(url, 1, spent=[{"mu squared": "0"}]),
    "artefact": lambda url: change_body(url, 3, artefact="another"),
    "time": lambda url: change_body(url, 2, time="2001-01-01T00:00:00.000+00:00"),
    "not json": sql("UPDATE demur_rows SET body = '{' WHERE sequence = 2"),
    "deep json": lambda url: edit(
        url, "UPDATE demur_rows SET body = :x WHERE sequence = 2", x="[" * 100_000
    ),
    "division by zero": lambda url: change_body(url, 2, spent=[{"x": "1/0"}]),
    "a list": sql("UPDATE demur_rows SET body = '[1, 2]' WHERE sequence = 2"),
    "hash": sql(f"UPDATE demur_rows SET hash = '{'a' * 64}' WHERE sequence = 2"),
    "last hash": sql(f"UPDATE demur_rows SET hash = '{'a' * 64}' WHERE sequence = 8"),
    "count column": sql("UPDATE demur_rows SET count = 1 WHERE sequence = 4"),
    "kind column": sql("UPDATE demur_rows SET kind = 'draw' WHERE sequence = 1"),
    "noise column": sql("UPDATE demur_rows SET noise = 'seeded' WHERE sequence = 1"),
    "entry column": sql("UPDATE demur_rows SET entry_id = 'x' WHERE sequence = 1"),
    "key column": sql(
        "UPDATE demur_rows SET idempotency_key = NULL WHERE sequence = 2"
    ),
    "declaration column": sql(
        "UPDATE demur_rows SET declaration = (SELECT declaration FROM demur_rows"
        " WHERE sequence = 2) WHERE sequence = 1"
    ),
    "first removed": sql("DELETE FROM demur_rows WHERE sequence = 1"),
    "middle removed": sql("DELETE FROM demur_rows WHERE sequence = 4"),
    "removed and closed up": sql(
        "DELETE FROM demur_rows WHERE sequence = 7",
        "UPDATE demur_rows SET sequence = 7 WHERE sequence = 8",
        "UPDATE demur_ledger SET sequence = 7",
    ),
    "hash malformed": sql("UPDATE demur_rows SET hash = 'none' WHERE sequence = 4"),
    "last hash malformed": sql("UPDATE demur_rows SET hash = 'x' WHERE sequence = 8"),
    "sequence negative": sql("UPDATE demur_rows SET sequence = -2 WHERE sequence = 8"),
    "end removed": sql("DELETE FROM demur_rows WHERE sequence = 8"),
    "all removed": sql("DELETE FROM demur_rows"),
    "reordered": lambda url: swap(url, 1, 2),
    "draws reordered": lambda url: swap(url, 5, 6),
    "bodies swapped": swap_bodies,
    "duplicated": duplicate,
    "totals lowered": sql("UPDATE demur_ledger SET totals = '[{}]'"),
    "totals not json": sql("UPDATE demur_ledger SET totals = 'x'"),
    "totals of another type": sql("UPDATE demur_ledger SET totals = '[1]'"),
    "budget removed": sql("UPDATE demur_ledger SET totals = '[]'"),
    "budget added": sql("UPDATE demur_ledger SET totals = '[{}, {}]'"),
    "tip moved back": sql("UPDATE demur_ledger SET sequence = 7"),
    "tip hash": sql(f"UPDATE demur_ledger SET hash = '{'b' * 64}'"),
    "terms": edit_terms,
    "declaration": edit_declaration,
    "declaration removed": sql("DELETE FROM demur_declarations"),
    "curve": spoil_curve,
    "curves swapped": swap_curves,
    "curves' events swapped": swap_profiles,
    "curve removed": sql("DELETE FROM demur_profiles"),
}


@pytest.mark.slow
def test_an_untouched_ledger_is_whole(ledger):
    verification = ledger.verify()
    assert (
        verification.ok and verification.rows == 8 and verification.tip == ledger.tip()
    )
    assert len(verification.unknown) == 1
    assert "cut off the end" in verification.unknown[0]
    assert "rewritten" in verification.unknown[0] and "tip" in verification.unknown[0]
    assert "not known" in str(verification)
    verification = ledger.verify(ledger.tip())
    assert verification.ok and ledger.verify(str(ledger.tip())) == verification


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ledger_url", "tamper"),
    [
        *(("sqlite", name) for name in TAMPERS),
        *(  # The same code reads both.
            pytest.param("postgresql", name, marks=pytest.mark.postgres)
            if i % 5 == 0
            else pytest.param(
                "postgresql", name, marks=[pytest.mark.postgres, pytest.mark.deep]
            )
            for i, name in enumerate(TAMPERS)
        ),
    ],
    indirect=["ledger_url"],
)
def test_tampering_is_found(ledger, ledger_url, opened, tamper):
    tip = ledger.tip()
    TAMPERS[tamper](ledger_url)
    found = ledger.verify()  # the ledger that is open, without its tip
    assert not found.ok and "PROBLEM" in str(found)
    assert not ledger.verify(tip).ok
    assert not opened(ledger_url).verify().ok  # and one opened afterwards


@pytest.mark.slow
def test_a_cut_end_is_found_with_a_tip_and_named_without(ledger, ledger_url, opened):
    early, late = Tip(5, row_hash(ledger_url, 5)), ledger.tip()
    cut(ledger_url, 5)
    blind = opened(ledger_url).verify()
    assert blind.ok and "cut off the end" in blind.unknown[0]
    seeing = opened(ledger_url).verify(late)
    assert not seeing.ok and "cut off" in seeing.problems[0]
    assert opened(ledger_url).verify(early).ok
    with pytest.raises(LedgerDamaged, match="older copy"):
        opened(ledger_url, tip=late)
    opened(ledger_url, tip=early)


def row_hash(url, sequence):
    sql = f"SELECT hash FROM demur_rows WHERE sequence = {sequence}"
    ((value,),) = ask(url, sql)
    return value


def cut(url, sequence):
    """Cut the end off, and put everything derived right: totals and curves."""
    edit(url, f"DELETE FROM demur_rows WHERE sequence > {sequence}")
    rows = ask(url, "SELECT body FROM demur_rows")
    used = [json.loads(r[0]).get("profiles", {}) for r in rows]
    totals: dict[str, Fraction] = {}
    for (text,) in rows:
        for account, amount in (json.loads(text).get("spent") or [{}])[0].items():
            totals[account] = totals.get(account, Fraction(0)) + Fraction(amount)
    edit(
        url,
        "UPDATE demur_ledger SET totals = :x",
        x=json.dumps([{k: str(v) for k, v in totals.items()}]),
    )
    for (event,) in ask(url, "SELECT event FROM demur_profiles"):
        if not any(event in u for u in used):
            edit(url, "DELETE FROM demur_profiles WHERE event = :e", e=event)
    rehash(url)


@pytest.mark.slow
def test_an_edited_declaration_is_not_read_as_if_it_were_declared(
    ledger, ledger_url, opened
):
    """Neither by a listing nor by a repeat, whose key would be bound to it."""
    named = {"label": "named", "idempotency_key": "k7", "digest": "d"}
    entry = ledger.charge(says(GaussianEvent(20.0)), **named)
    edit_declaration(ledger_url)
    again = opened(ledger_url)
    for look in (
        again.entries,
        lambda: again.find("k7"),
        lambda: again.charge(says(GaussianEvent(20.0)), **named),
        lambda: again._key(entry, "d"),
        again.epsilon,
    ):
        with pytest.raises(LedgerDamaged, match="edited"):
            look()


@pytest.mark.slow
def test_what_came_after_the_tip_is_unknown(ledger, ledger_url, opened):
    early = Tip(5, row_hash(ledger_url, 5))
    cut(ledger_url, 6)
    verification = opened(ledger_url).verify(early)
    assert verification.ok and "after" in " ".join(verification.unknown)


@pytest.mark.slow
def test_a_consistent_rewrite_is_found_with_a_tip(ledger, ledger_url, opened):
    late = ledger.tip()
    change_body(ledger_url, 1, label="another")
    rehash(ledger_url)
    blind = opened(ledger_url).verify()
    assert blind.ok and "rewritten" in blind.unknown[0]
    assert not opened(ledger_url).verify(late).ok
    with pytest.raises(LedgerDamaged):
        opened(ledger_url, tip=late)


@pytest.mark.slow
def test_a_spend_lowered_everywhere_is_found_with_a_tip(ledger, ledger_url, opened):
    late = ledger.tip()
    change_body(ledger_url, 1, spent=[{"mu squared": "0"}])
    cut(ledger_url, 8)
    (problem,) = opened(ledger_url).verify().problems
    assert problem == "row 1: it costs more than was paid for it"
    assert not opened(ledger_url).verify(late).ok


# -- signatures --------------------------------------------------------------------


@pytest.fixture
def signer():
    return Ed25519PrivateKey.generate()


@pytest.fixture
def signed(new_ledger, signer):
    return fill(new_ledger(budgets={UNIT: BUDGET}, filter=RULE, signing_key=signer))


@pytest.mark.slow
def test_a_signed_ledger_is_whole(signed, ledger_url, signer, opened, tmp_path):
    verification = signed.verify()
    assert verification.ok and "signer" in " ".join(verification.unknown)
    public = chain.public_hex(signer)
    verification = signed.verify(signer=public)
    assert verification.ok and "rewritten" not in " ".join(verification.unknown)
    assert not signed.verify(signer="00" * 32).ok
    pem = tmp_path / "signer.pem"
    pem.write_bytes(
        signer.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    pem.chmod(0o600)
    assert opened(ledger_url, signing_key=pem).verify(signed.tip()).ok
    with pytest.raises(LedgerMismatch, match="signed by"):
        opened(ledger_url, signing_key=Ed25519PrivateKey.generate())


@pytest.mark.slow
def test_a_rewrite_without_the_key_is_found(signed, ledger_url, signer, opened):
    change_body(ledger_url, 1, label="another")
    rehash(ledger_url)
    verification = opened(ledger_url, signing_key=signer).verify()
    assert not verification.ok and "not signed" in verification.problems[0]


@pytest.mark.slow
@pytest.mark.parametrize("value", ["NULL", "'00'", "'zz'", f"'{'0' * 128}'"])
def test_a_wrong_signature_is_found(signed, ledger_url, value):
    edit(ledger_url, f"UPDATE demur_rows SET signature = {value} WHERE sequence = 3")
    assert "row 3: not signed" in str(signed.verify())


@pytest.mark.slow
def test_a_signature_of_another_row_is_found(signed, ledger_url):
    edit(
        ledger_url,
        "UPDATE demur_rows SET signature = (SELECT signature FROM demur_rows"
        " WHERE sequence = 1) WHERE sequence = 3",
    )
    assert not signed.verify().ok


@pytest.mark.slow
def test_a_rewrite_under_another_signer_is_refused(signed, ledger_url, signer, opened):
    """Somebody signs the whole ledger anew, with a key of his own, or with none."""
    own = Ed25519PrivateKey.generate()
    ((terms,),) = ask(ledger_url, "SELECT terms FROM demur_ledger")
    for public in (chain.public_hex(own), None):
        new = chain.canonical(json.loads(terms) | {"signer": public})
        edit(ledger_url, "UPDATE demur_ledger SET terms = :x", x=new)
        rehash(ledger_url)
        for sequence, value in ask(ledger_url, "SELECT sequence, hash FROM demur_rows"):
            edit(
                ledger_url,
                f"UPDATE demur_rows SET signature = :x WHERE sequence = {sequence}",
                x=chain.sign(own, value),
            )
        with pytest.raises(LedgerMismatch):
            opened(ledger_url, signing_key=signer)
        reader = opened(ledger_url)
        assert not reader.verify(signer=chain.public_hex(signer)).ok
        assert "whole ledger rewritten" in str(reader.verify())


@pytest.mark.slow
def test_a_signed_ledger_can_be_read_and_verified_by_others(signed, ledger_url, opened):
    reader = opened(ledger_url)
    assert reader.verify().ok and reader.epsilon() > 0
    with pytest.raises(LedgerMismatch, match="signing_key"):
        reader.charge(says(GaussianEvent(20.0)), label="x")


# -- copies and concurrent writers -------------------------------------------------


def test_a_restored_backup_is_refused(tmp_path):
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    ledger = Ledger.open(path, dataset="d", budgets={UNIT: BUDGET})
    ledger.charge(says(GaussianEvent(20.0)), label="before")
    with sqlite3.connect(path) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    ledger.charge(says(GaussianEvent(20.0)), label="after")
    tip = ledger.tip()
    ledger.close()
    shutil.copy(backup, path)
    Ledger.open(path).close()  # nobody can know without a tip
    for given in (tip, str(tip)):
        with pytest.raises(LedgerDamaged, match="still spent"):
            Ledger.open(path, tip=given)
    for wrong in ("", "x", "3", f"-1:{'a' * 64}", f"1:{'a' * 63}"):
        with pytest.raises(ValueError):
            Ledger.open(path, tip=wrong)


@pytest.mark.slow
def test_the_tip_of_an_empty_ledger(new_ledger, ledger_url, opened):
    tip = new_ledger().tip()
    assert tip.sequence == 0
    assert opened(ledger_url, tip=tip).verify(tip).ok
    with pytest.raises(LedgerDamaged):
        opened(ledger_url, tip=Tip(0, "a" * 64))


@pytest.mark.slow
def test_verify_beside_a_writer(ledger, ledger_url, opened, monkeypatch):
    """A charge that comes while the rows are being read is no problem of the ledger."""
    writer = opened(ledger_url)
    link, waiting = chain.link, [True]

    def link_and_charge(previous, text):
        if waiting and threading.current_thread() is threading.main_thread():
            waiting.clear()
            thread = threading.Thread(
                target=lambda: writer.charge(
                    says(GaussianEvent(40.0)), label="meanwhile"
                )
            )
            thread.start()
            thread.join()
        return link(previous, text)

    monkeypatch.setattr(chain, "link", link_and_charge)
    verification = ledger.verify()
    assert verification.ok, str(verification)


@pytest.mark.slow
def test_a_reading_leaves_no_entry_out(ledger, ledger_url):
    TAMPERS["declaration removed"](ledger_url)
    with pytest.raises(LedgerDamaged):
        ledger.reading()
