"""Signed certificates: whoever lacks the key can rewrite the journal, and is found."""

import dataclasses
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.durable import chain
from demur.durable.chain import canonical
from demur.ledger import Ledger
from demur.unlearning import Certificate, ServiceMismatch, verify_certificate
from demur.unlearning.records.journal import genesis
from demur.unlearning.service.certificate_verification import verify_evidence
from tests.unlearning.service_kit import (
    UnlearningService,
    fill,
    open_service,
    record,
    sql,
)

pytestmark = pytest.mark.slow
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (1, 2))
PUBLIC, WRONG = chain.public_hex(KEY), chain.public_hex(OTHER)


def made(path, **terms):
    with open_service(path, **terms) as service:
        fill(service, range(4))
        return service.delete(1)


def test_a_signed_certificate_holds_for_its_signer_alone(tmp_path):
    path = tmp_path / "model.db"
    held = made(path, signing_key=KEY)
    assert held.is_signed_by(PUBLIC) and not held.is_signed_by(WRONG)
    assert Certificate.from_json(held.to_json()) == held
    found = verify_certificate(held, path, signer=PUBLIC)
    assert found.ok and "signer" not in str(found)
    assert "give its public key" in str(verify_certificate(held, path))
    found = verify_certificate(held, path, signer=WRONG)
    assert f"not the signer {WRONG}" in str(found)
    with Ledger.open(f"{path}.ledger-1", read_only=True) as ledger:
        assert ledger.terms.signer == PUBLIC


def test_every_change_breaks_the_signature(tmp_path):
    held = made(tmp_path / "model.db", signing_key=KEY)
    told = json.loads(held.to_json())
    for name, value in told.items():
        if name in ("version", "tip", "signature") or value is None:
            continue
        if isinstance(value, str):
            forged = value[:-1] + ("0" if value[-1:] != "0" else "1")
        elif isinstance(value, list):
            forged = value[1:]
        else:
            forged = value + 1
        changed = Certificate.from_json(json.dumps(told | {name: forged}))
        assert not changed.is_signed_by(PUBLIC), name
    for change in (
        {"tip": dataclasses.replace(held.tip, sequence=held.tip.sequence + 1)},
        {"signature": None},
        {"signature": "00" * 64},
        {"signature": "not hexadecimal"},
    ):
        assert not dataclasses.replace(held, **change).is_signed_by(PUBLIC)


def rewritten(path, held):
    """Another history, consistent in itself, in which the deletion was years ago.

    What somebody does who may write to the files, without the key.
    """
    rows = sql(path, "SELECT sequence, body FROM demur_unlearning_journal ORDER BY 1")
    last = genesis(*sql(path, "SELECT service_id, terms FROM demur_unlearning")[0])
    for sequence, text in rows:
        body = json.loads(text)
        if body["op"] == "delete":
            body["certificate"]["time"] = "2020-01-01T00:00:00.000+00:00"
            held = dataclasses.replace(held, time=body["certificate"]["time"])
        text = canonical(body)
        last = chain.link(last, text)
        sql(
            path,
            "UPDATE demur_unlearning_journal SET body = ?, hash = ? WHERE sequence = ?",
            text,
            last,
            sequence,
        )
        if body["op"] == "delete":
            held = dataclasses.replace(held, tip=chain.Tip(sequence, last))
    sql(path, "UPDATE demur_unlearning SET hash = ?", last)
    sql(path, "UPDATE demur_unlearning_certificates SET body = ?", held.to_json())
    return held


def recommitted(path, forged):
    """The ledger's commit of the deletion names the new row, too."""
    place = f"{path}.ledger-1"
    last = sql(place, "SELECT sequence, hash, body FROM demur_rows ORDER BY 1")[-2:]
    (_, before, _), (sequence, _, text) = last
    text = canonical(json.loads(text) | {"artefact": forged.tip.hash})
    linked = chain.link(before, text)
    at = "WHERE sequence = ?"
    sql(place, f"UPDATE demur_rows SET body = ?, hash = ? {at}", text, linked, sequence)
    sql(place, "UPDATE demur_ledger SET hash = ?", linked)


@pytest.mark.parametrize("signed", [True, False])
def test_a_history_that_was_rewritten_without_the_key(tmp_path, signed):
    """Unsigned, it passes without its ledger, which has the hash of the row.

    Whoever writes journal, certificates and ledger can write anything.
    """
    path = tmp_path / "model.db"
    held = made(path, **({"signing_key": KEY} if signed else {}))
    forged = rewritten(path, held)
    found = verify_certificate(forged, path)
    assert not found.ok and "the ledger has another hash" in str(found)
    with UnlearningService.open(path, read_only=True) as reader:
        assert "the ledger has another hash" in str(reader.verify())
    recommitted(path, forged)
    found = verify_certificate(forged, path)
    assert found.ok is not signed
    if signed:
        assert "not signed by the signer of the service" in str(found)
        assert not verify_evidence(path).ok
        resigned = forged.signed(OTHER)
        assert not verify_certificate(resigned, path).ok
    else:
        assert "no signing key" in str(found)


def test_a_signature_where_the_service_has_no_signer_is_a_problem(tmp_path):
    path = tmp_path / "model.db"
    held = made(path)
    assert not verify_certificate(held.signed(KEY), path).ok
    assert not verify_certificate(held, path, signer=PUBLIC).ok


def test_the_key_is_fixed_and_needed_to_write(tmp_path):
    path, pem = tmp_path / "model.db", tmp_path / "key.pem"
    pem.write_bytes(
        KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    pem.chmod(0o600)
    terms = {"scope": "joint", "capacity": 3}
    with open_service(path, signing_key=pem, **terms) as service:
        fill(service, range(4))
        service.delete(0)
        service.retrain([(n, *record(n)) for n in range(1, 4)])  # a second ledger
        held = service.delete(1)
    for key, said in ((None, "give their key"), (OTHER, "is that of")):
        with pytest.raises(ServiceMismatch, match=said):
            UnlearningService.open(path, signing_key=key)
    with UnlearningService.open(path, read_only=True) as reader:
        assert reader.certificate(1) == held and reader.verify().ok
    with UnlearningService.open(path, signing_key=KEY) as service:
        assert service.verify().ok and service.terms.signer == PUBLIC
    made(tmp_path / "unsigned.db")
    with pytest.raises(ServiceMismatch, match="signed by nobody"):
        UnlearningService.open(tmp_path / "unsigned.db", signing_key=KEY)
