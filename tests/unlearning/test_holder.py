"""A certificate belongs to a person: its opening ties it to an id, and to no other."""

import hashlib
import hmac
import itertools
import json
import re
from dataclasses import replace

import pytest

from demur import unlearning
from demur.unlearning import Certificate, Opening, verify_certificate
from demur.unlearning.records import rows as stored
from demur.unlearning.records.commitments import commitment
from demur.unlearning.service.deletion import Deletions
from tests.unlearning.service_kit import (
    DIM,
    UnlearningService,
    bytes_of,
    fill,
    memory,
    open_service,
    record,
)

ANA, DUMMY = "Ana's order", "a dummy"


def plain(path, **terms):
    """A service that does not remember ids."""
    terms = {"mode": "ridge", "dimension": DIM, "record_store": "encrypted"} | terms
    return unlearning.UnlearningService.open(path, **terms)


@pytest.fixture(params=[None, memory], ids=["forgets", "remembers"])
def service(request, tmp_path):
    with plain(tmp_path / "model.db", memory_key=request.param) as opened:
        for number, name in enumerate([ANA, DUMMY, 7, 8, 9, 10]):
            owner = {ANA: "ana", 7: "ana"}.get(name)
            opened.insert(*record(number), record_id=name, subject_id=owner)
        yield opened


@pytest.mark.slow
def test_an_opening_ties_a_certificate_to_its_id_and_to_no_other(service, tmp_path):
    path = tmp_path / "model.db"
    held = service.delete(ANA)
    assert held.is_of(ANA) and held.is_of(subject_id="ana")
    assert held.is_of(ANA, subject_id="ana")
    assert verify_certificate(held, path, record_id=ANA, subject_id="ana").ok
    for wrong in ({"record_id": DUMMY}, {"record_id": "ana"}, {"subject_id": ANA}):
        found = verify_certificate(held, path, **wrong)
        assert not found.ok and "the opening says so" in str(found)
    assert not held.is_of(ANA, subject_id="bob")


def test_a_dummys_certificate_handed_to_somebody_else_fails(service, tmp_path):
    """Also with Ana's own opening, and with one that the operator makes up."""
    path = tmp_path / "model.db"
    anas = service.openings([ANA]).popitem()[1]
    dummy = service.delete(DUMMY)
    for opening in (dummy.opening, anas, Opening("0" * 64)):
        handed = replace(dummy, opening=opening)
        assert verify_certificate(handed, path).ok, "it is a true certificate"
        assert not verify_certificate(handed, path, record_id=ANA).ok
    with pytest.raises(ValueError, match="no opening"):
        verify_certificate(replace(dummy, opening=None), path, record_id=ANA)


@pytest.mark.slow
def test_the_twin_that_calls_a_dummys_deletion_anas_is_found(tmp_path, monkeypatch):
    """The journal has the pseudonym since the record was learned."""
    with plain(tmp_path / "model.db") as service:
        service.insert(*record(0), record_id=ANA)
        service.insert(*record(1), record_id=DUMMY)
        (anas,) = service.openings([ANA])
        honest = Deletions._certificate
        monkeypatch.setattr(
            Deletions,
            "_certificate",
            lambda *given: replace(honest(*given), record=anas),
        )
        with pytest.raises(KeyError):  # its own tables do not take it
            service.delete(DUMMY)


@pytest.mark.slow
def test_every_way_to_delete_hands_openings_over(service, tmp_path):
    first = service.delete_subject("ana")
    assert {c.is_of(subject_id="ana") for c in first} == {True}
    assert {name for name in (ANA, 7, DUMMY) for c in first if c.is_of(name)} == {
        ANA,
        7,
    }
    eighth, ninth = service.delete_many([8, 9])
    assert eighth.is_of(8) and ninth.is_of("9") and not eighth.is_of(9)
    taken = service.snapshot()
    service.insert(*record(20), record_id=20)
    (restored,) = service.restore(taken)
    assert restored.theorem == "restore" and restored.is_of(20)
    (left_out,) = service.retrain([(10, *record(5))])
    assert left_out.theorem == "retrain" and left_out.is_of(DUMMY)
    assert not left_out.is_of(subject_id=DUMMY), "no person was named"
    assert service.verify().ok


@pytest.mark.slow
def test_a_request_that_waits_gets_its_opening_in_the_end(tmp_path):
    terms = {"capacity": 1, "on_exhausted": "queue", "record_store": "encrypted"}
    path = tmp_path / "model.db"
    with open_service(path, memory_key=None, **terms) as service:
        fill(service, range(4))
        service.delete(0)
        waiting = service.delete(1)
        assert not isinstance(waiting, Certificate)
        assert [c.is_of(1) for c in service.retrain()] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("memory_key", [None, memory], ids=["forgets", "remembers"])
def test_what_a_crash_cut_short_is_handed_over_by_the_next_opening(
    tmp_path, monkeypatch, memory_key
):
    path = tmp_path / "model.db"
    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "commit", lambda *_: 1 / 0)
        patch.setattr(Deletions, "abandon", lambda *_: None)
        with open_service(path, memory_key=memory_key) as service:
            fill(service, range(3))
            with pytest.raises(ZeroDivisionError):
                service.delete(1)
    with UnlearningService.open(path, memory_key=memory_key) as service:
        (held,) = service.recovered
        assert held.is_of(1) and verify_certificate(held, path, record_id=1).ok
    with UnlearningService.open(path, memory_key=memory_key) as service:
        assert service.recovered == ()
        if memory_key is not None:  # and again, whenever it is asked for
            assert service.certificate(1).is_of(1) and service.delete(1).is_of(1)


@pytest.mark.slow
def test_an_interrupt_after_the_commit_does_not_abandon_the_deletion(
    tmp_path, monkeypatch
):
    """A row that denies it would follow its row, which `verify` does not accept."""
    honest = Deletions.commit

    def interrupted(*given):
        honest(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Deletions, "commit", interrupted)
    with plain(tmp_path / "model.db") as service:
        service.insert(*record(0), record_id=ANA)
        with pytest.raises(KeyboardInterrupt):
            service.delete(ANA)
        assert service.verify().ok and service.status().live == 0


@pytest.mark.slow
def test_a_record_that_came_back_as_another_persons(tmp_path):
    with plain(tmp_path / "model.db", memory_key=memory) as service:
        service.insert(*record(0), record_id=1, subject_id="ana")
        first = service.delete(1)
        service.insert(*record(0), record_id=1)  # the same person's
        assert service.delete(1).is_of(1, subject_id="ana")
        service.insert(*record(0), record_id=1, subject_id="bob")
        third = service.delete(1)
        assert third.is_of(1, subject_id="bob") and third.generation == 3
        assert first.is_of(1, subject_id="ana") and service.verify().ok


# -- text ------------------------------------------------------------------------------


def test_the_public_text_has_no_opening_and_the_holders_has_it(service):
    held = service.delete(ANA)
    public, own = json.loads(held.to_json()), json.loads(held.for_holder())
    assert own == public | {"opening": str(held.opening)}
    assert str(held.opening) not in held.to_json() + repr(held) + str(held)
    assert Certificate.from_json(held.for_holder()).opening == held.opening
    bare = Certificate.from_json(held.to_json())
    assert bare == held and bare.opening is None
    for ask in (bare.for_holder, lambda: bare.is_of(ANA), lambda: held.is_of()):
        with pytest.raises(ValueError):
            ask()


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + ".", "A" * 64, "0" * 130]
)
def test_what_is_no_opening_is_refused(text):
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        Opening.parse(text)


def test_a_commitment_is_hmac_and_kinds_are_apart():
    """Against the standard library, written out; ids of one kind open no other's."""
    opening = bytes(range(32))
    text = b"demur record\x00order 17"
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in opening + bytes(32)) + text)
    outer = hashlib.sha256(
        bytes(b ^ 0x5C for b in opening + bytes(32)) + inner.digest()
    )
    said = commitment(opening.hex(), "record", "order 17")
    assert said == outer.hexdigest()
    others = [
        commitment(opening.hex(), "subject", "order 17"),
        commitment(opening.hex(), "record", "order 18"),
        commitment("11" * 32, "record", "order 17"),
    ]
    assert len({said, *others}) == 4
    assert commitment(opening.hex(), "record", 7) == commitment(
        opening.hex(), "record", "7"
    )


# -- the folder ------------------------------------------------------------------------


def tied(path, ids, certificates=()):
    """Ids that somebody with the folder ties to a pseudonym in it, by trying all.

    Every word and every key in it may be the opening, or the key of one.
    """
    texts = [
        *bytes_of(path).items(),
        *(("", c.to_json().encode()) for c in certificates),
    ]
    words = {w.decode() for _, d in texts for w in re.findall(rb"[0-9a-f]{64}", d)}
    keys = {data[:32].hex() for name, data in texts if ".key" in name}
    found = set()
    kinds = ("record", "subject")
    for opening, name, kind in itertools.product(words | keys, ids, kinds):
        text = f"{kind}\x00{name}".encode()
        named = hmac.new(bytes.fromhex(opening), text, hashlib.sha256).hexdigest()
        if {commitment(each, kind, name) for each in (opening, named)} & words:
            found.add(name)
    return found


IDS = [ANA, DUMMY, "7", "8", "9", "10", "ana"]


@pytest.mark.slow
def test_the_folder_ties_no_deleted_id_to_a_certificate(service, tmp_path):
    path = tmp_path / "model.db"
    held = [service.delete(ANA), *service.delete_many([7, 8])]
    remembers = service.status().remembers
    service.close()
    # A live id is known by its name, unless the key is elsewhere.
    assert tied(path, IDS, held) == (set() if remembers else {DUMMY, "9", "10"})
    for word in str(held[0].opening).split("."):
        assert not any(word.encode() in data for data in bytes_of(path).values())


@pytest.mark.slow
def test_the_twin_that_keeps_openings_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(
        stored,
        "_ERASE_OPENINGS",
        stored.tables.records.update()
        .where(stored.tables.records.c.pseudonym == stored._AT)
        .values(live=False),
    )
    path = tmp_path / "model.db"
    with plain(path) as service:
        service.insert(*record(0), record_id=ANA, subject_id="ana")
        held = service.delete(ANA)
    assert tied(path, IDS, [held]) == {ANA, "ana"}
