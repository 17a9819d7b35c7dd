"""Evidence files: enough to check every certificate, and nothing that is secret."""

import json
import os
import re
import shutil

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core.adjacency import Erasure
from demur.core.errors import DemurError
from demur.durable.chain import public_hex
from demur.ledger import Budget, Ledger
from demur.unlearning import (
    Certificate,
    ServiceDamaged,
    ServiceMismatch,
    verify_certificate,
    verify_evidence,
)
from demur.unlearning.records import evidence
from demur.unlearning.records.commitments import commitment
from tests.ledger.conftest import postgres_url, server
from tests.unlearning.service_kit import (
    UnlearningService,
    bytes_of,
    fill,
    open_service,
    record,
    sql,
)

pytestmark = pytest.mark.slow
__all__ = ["postgres_url", "server"]
CASES = {
    "ogd": {},
    "joint": {"scope": "joint", "capacity": 9},
    "encrypted": {"mode": "ridge", "record_store": "encrypted"},
    "logistic": {"mode": "logistic", "memory_key": None},
}


def made(folder, **terms):
    """A closed service, its evidence and a certificate."""
    path, file = folder / "model.db", folder / "evidence.db"
    with open_service(path, **terms) as service:
        fill(service, range(8))
        held = service.delete(1, *record(1))
        service.delete(2, *record(2))
        service.retrain([(n, *record(n)) for n in range(3, 7)])
        fill(service, [9])
        tip = service.evidence(file)
    return path, file, held, tip


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Services by name, each made when a test first asks for it."""
    there = {}

    class Made:
        def __getitem__(self, name):
            if name not in there:
                there[name] = made(tmp_path_factory.mktemp(name), **CASES[name])
            return there[name]

    return Made()


@pytest.fixture
def ogd(cases, tmp_path):
    _, file, held, tip = cases["ogd"]
    return shutil.copy(file, tmp_path / "evidence.db"), held, tip


@pytest.mark.parametrize("case", CASES)
def test_it_is_enough_to_check_every_certificate(cases, case, tmp_path):
    _, file, held, tip = cases[case]
    alone = tmp_path / "evidence.db"
    shutil.copy(file, alone)
    alone.chmod(0o444)
    before = alone.read_bytes()
    found = verify_certificate(held, alone, record_id=1)
    assert found.ok, str(found)
    assert "holds no state" in str(found) and found.tip == tip
    whole = verify_evidence(alone, tip=tip)
    assert whole.ok and whole.tip == tip, str(whole)
    assert alone.read_bytes() == before and os.listdir(tmp_path) == ["evidence.db"]


def secrets_of(path):
    """Every word and every key that a service keeps to itself."""
    kept = sql(
        path,
        "SELECT content, name, subject_name, opening, subject_opening"
        " FROM demur_unlearning_records",
    )
    words = {word.encode() for row in kept for word in row if word}
    for column in ("secret", "memory_salt", "memory_proof"):
        (value,) = sql(path, f"SELECT {column} FROM demur_unlearning")[0]
        words |= {value.encode()} if value else set()
    (state,) = sql(path, "SELECT body FROM demur_unlearning_state")[0]
    words.add(state.partition(b"\n")[2][:64])
    for (box,) in sql(path, "SELECT body FROM demur_unlearning_boxes"):
        words.add(box)
    for name, data in bytes_of(path).items():
        if name.endswith(".key"):
            words.add(data[:32])
    return words


@pytest.mark.parametrize("case", CASES)
def test_nothing_secret_is_in_it(cases, case):
    path, file, _, _ = cases[case]
    content, secrets = file.read_bytes(), secrets_of(path)
    owner = (path.parent / "model.db.keys" / "unlearning-service.key").read_bytes()
    secrets.remove(owner)  # the id of the service
    assert len(secrets) > 12, "the search looks for something"
    assert all(any(w in d for d in bytes_of(path).values()) for w in secrets)
    secrets |= {word.hex().encode() for word in secrets}
    assert not [word for word in secrets if word in content]


@pytest.mark.parametrize("case", ["ogd", "logistic"])
def test_its_pseudonyms_cannot_be_tried(cases, case):
    """Every word in it may be an opening; all ids are known to the attacker."""
    _, file, held, _ = cases[case]
    words = {w.decode() for w in re.findall(rb"[0-9a-f]{64}", file.read_bytes())}
    assert len(words) > 30
    tried = {commitment(word, "record", n) for word in words for n in range(10)}
    assert not tried & words
    tried |= {commitment(str(held.opening), "record", n) for n in range(10)}
    assert tried & words == {held.record}, "with the holder's opening it is found"


CHANGES = {
    "a row's text": "UPDATE demur_unlearning_journal SET body ="
    " replace(body, 'insert', 'delete') WHERE sequence = 3",
    "a row": "DELETE FROM demur_unlearning_journal WHERE sequence = 4",
    "a certificate": "DELETE FROM demur_unlearning_certificates WHERE rowid = 1",
    "a certificate's text": "UPDATE demur_unlearning_certificates SET body ="
    " replace(body, '\"epsilon\": ', '\"epsilon\": 1')",
    "the terms": "UPDATE demur_unlearning_evidence SET terms ="
    " replace(terms, '1e-06', '1e-05')",
    "the end": "UPDATE demur_unlearning_evidence SET sequence = sequence - 1",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found(ogd, what):
    file, held, _ = ogd
    sql(file, CHANGES[what])
    assert not verify_evidence(file).ok
    if what != "a certificate":
        assert not verify_certificate(held, file).ok


def test_rows_that_were_cut_off_are_found_with_a_tip(ogd):
    file, held, tip = ogd
    (last,) = sql(file, "SELECT max(sequence) FROM demur_unlearning_journal")[0]
    assert last == tip.sequence
    sql(file, "DELETE FROM demur_unlearning_journal WHERE sequence = ?", last)
    sql(
        file,
        "UPDATE demur_unlearning_evidence SET sequence = ?, hash = (SELECT hash FROM"
        " demur_unlearning_journal WHERE sequence = ?)",
        last - 1,
        last - 1,
    )
    found = verify_evidence(file)
    assert found.ok and "cut off" in " ".join(found.unknown)
    assert "cut off" in " ".join(verify_evidence(file, tip=str(tip)).problems)
    assert verify_certificate(held, file).ok, "it is further up"


def test_a_service_in_anothers_place_does_not_have_its_first_tip(tmp_path):
    """Of the same terms, and with nothing learned."""
    tips = []
    for name in ("one", "other"):
        with open_service(tmp_path / f"{name}.db") as service:
            tips.append(service.status().tip)
            service.evidence(tmp_path / f"{name}.evidence")
    assert verify_evidence(tmp_path / "one.evidence", tip=tips[0]).ok
    found = verify_evidence(tmp_path / "other.evidence", tip=tips[0])
    assert "row 0 is not that of the tip" in str(found)
    with pytest.raises(ServiceDamaged):
        open_service(tmp_path / "other.db", tip=tips[0])


def test_a_ledger_that_is_not_in_it_is_named_and_can_be_given(ogd, cases):
    file, held, _ = ogd
    sql(file, "DELETE FROM demur_unlearning_evidence_ledgers")
    found = verify_certificate(held, file)
    assert found.ok and f"in the ledger {held.ledger}" in str(found)
    own = f"{cases['ogd'][0]}.ledger-1"
    found = verify_certificate(held, file, ledger=own)
    assert found.ok and "in the ledger" not in str(found)
    # The noise is checked without the ledger, too.
    assert not verify_certificate(replaced(held, sigma=held.sigma / 2), file).ok


def replaced(held, **change):
    return Certificate.from_json(json.dumps(json.loads(held.to_json()) | change))


def test_a_shared_ledger_is_not_handed_out(tmp_path):
    """It has entries of other engines."""
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    with Ledger.open(tmp_path / "shared.db", dataset="d", budgets=budgets) as ledger:
        with open_service(tmp_path / "model.db", ledger=ledger) as service:
            fill(service, range(3))
            held = service.delete(1)
            service.evidence(tmp_path / "evidence.db")
    file = tmp_path / "evidence.db"
    assert "--ledger" in str(verify_certificate(held, file))
    assert verify_evidence(file, ledger=tmp_path / "shared.db").ok


def test_evidence_of_a_signed_service(tmp_path):
    key = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
    _, file, held, _ = made(tmp_path, signing_key=key)
    public = public_hex(key)
    assert verify_certificate(held, file, signer=public).ok
    assert verify_evidence(file, signer=public).ok
    body = held.to_json().replace(held.signature, "00" * 64)
    sql(
        file,
        "UPDATE demur_unlearning_certificates SET body = ? WHERE pseudonym = ?",
        body,
        held.record,
    )
    assert "not signed" in str(verify_evidence(file, signer=public))


def test_it_is_no_service_and_replaces_no_file(ogd, tmp_path):
    file, _, _ = ogd
    with pytest.raises(ServiceMismatch, match="no deletion service"):
        UnlearningService.open(file)
    with open_service(tmp_path / "model.db") as service:
        with pytest.raises(FileExistsError):
            service.evidence(file)
        with pytest.raises(ValueError, match="no folder"):
            service.evidence(tmp_path / "nowhere" / "evidence.db")
    sql(file, "UPDATE demur_unlearning_evidence SET schema_version = 4")
    with pytest.raises(ServiceMismatch, match="the version that made it"):
        verify_evidence(file)
    sql(file, "DELETE FROM demur_unlearning_evidence")
    with pytest.raises(DemurError):
        verify_evidence(file)


def test_the_twin_that_copies_the_records_table_is_found(tmp_path, monkeypatch):
    """The search for secrets has power: a table too many is seen."""
    honest = evidence._copy

    def everything(source, target):
        honest(source, target)
        rows = source.execute(sa.text("SELECT name FROM demur_unlearning_records"))
        target.execute(sa.text("CREATE TABLE more (name TEXT)"))
        for row in rows:
            target.execute(sa.text("INSERT INTO more VALUES (:n)"), {"n": row.name})

    monkeypatch.setattr(evidence, "_copy", everything)
    path, file, _, _ = made(tmp_path, **CASES["logistic"])
    content = file.read_bytes()
    assert [word for word in secrets_of(path) if word in content]


@pytest.mark.postgres
def test_evidence_of_a_service_on_a_server(postgres_url, tmp_path):
    """Its ledger is in the same database, and is named by its address."""
    file = tmp_path / "evidence.db"
    with open_service(postgres_url, keys=tmp_path / "keys") as service:
        fill(service, range(4))
        held = service.delete(1)
        tip = service.evidence(file)
        with pytest.raises(ValueError, match="pg_dump"):
            service.backup(tmp_path / "backup")
    found = verify_certificate(held, file, record_id=1)
    assert found.ok and found.tip == tip and "--ledger" in str(found)
    assert verify_certificate(held, file, ledger=postgres_url).ok
