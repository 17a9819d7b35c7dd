"""What the folder of a service tells of a record that was deleted: nothing more than
its certificate allows.

The attacker holds the folder (database, ledger, every key in it), knows all other
records, the order of all events, and 64 candidates for the deleted one. They replay the
model with each candidate, and look for the digests of its states and contents, under
every key that is there, among all that is stored; failing that, they take the candidate
whose model after the deletion is nearest to the stored one.
"""

import hashlib
import hmac
import itertools
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from demur import unlearning
from demur.durable.keys import KeyStore
from demur.unlearning import (
    Passphrase,
    Publications,
    UnknownRecord,
    make_mode,
    verify_certificate,
)
from demur.unlearning.errors import (
    DuplicateStaysLive,
    RecordExists,
    ServiceMismatch,
)
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.pricing.publications import PublicationPrices
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import rows as stored
from demur.unlearning.records import snapshot
from demur.unlearning.records.pseudonyms import Pseudonyms
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher
from demur.unlearning.service import certificate_verification, deletion
from tests.unlearning.service_kit import DIM, NOISY, bytes_of, record, sql

pytestmark = pytest.mark.slow

PUBLISHED = Publications(epsilon=1.0, delta=1e-6, count=4)
MODES: dict[str, dict[str, Any]] = {
    "ogd": {"mode": "ogd"} | NOISY,
    "ridge": {"mode": "ridge"},
    "encrypted": {"mode": "ridge", "record_store": "encrypted"},
    "logistic": {"mode": "logistic", "Lambda": 5.0, "tolerance": 0.05, "capacity": 9}
    | NOISY,
    "joint": {"mode": "ogd", "scope": "joint", "capacity": 4} | NOISY,
    "standardised": {"mode": "standardised_ridge"},
    "published": {"mode": "ogd", "answers": PUBLISHED} | NOISY,
    "published sums": {"mode": "ridge", "answers": PUBLISHED},
}
# Each with its records in the encrypted store, too.
STORED = {
    f"{case}, stored": terms | {"record_store": "encrypted"}
    for case, terms in MODES.items()
    if "record_store" not in terms and case != "ridge"
}
MODES |= STORED
ALIKE = ("joint", "published", *STORED)  # as others are; many times in `make deep`
SECRET = ("logistic", "published", "published sums")  # with a key elsewhere
CANDIDATES, OTHERS, AT = 64, 5, 2
CHANCE = 1e-3  # that an honest service fails the test


def rows(choice):
    """All records in order, with the deleted one among them."""
    others = [record(i) for i in range(OTHERS)]
    return [*others[:AT], record(10**6 + choice), *others[AT:]]


def service_with(path, choice, case, **more):
    """A closed service that has learned all and forgotten the one at AT."""
    terms = MODES[case] | {"dimension": DIM} | more
    with unlearning.UnlearningService.open(path, **terms) as service:
        for number, (x, y) in enumerate(rows(choice)):
            service.insert(x, y, record_id=f"person {number}")
        if "answers" in terms:  # while the record is live; everybody has that copy
            service.publish()
            if isinstance(path, Path):
                np.save(path.with_name("published.npy"), service.published())
        service.delete("person 0", *rows(choice)[0])  # while the other is live
        return service.delete(f"person {AT}", *rows(choice)[AT])


def keys_in(path):
    """Every secret in the folder, also what a wipe would have left."""
    return [data[:32] for name, data in bytes_of(path).items() if ".key" in name]


def stored_words(path):
    """Every digest that is stored, in whatever table or file."""
    found = set()
    for data in bytes_of(path).values():
        found |= set(re.findall(rb"[0-9a-f]{64}", data))
    return found


def digests(choice, case, copy):
    """What a service could have written of each of its states and of the record."""
    if copy is None:
        return _cached_digests(choice, case)
    return tuple(_digests(choice, case, copy))


@cache
def _cached_digests(choice, case):
    return tuple(_digests(choice, case, None))


def model(case):
    """The model of a service, which has learned nothing."""
    mode = make_mode(MODES[case]["mode"], DIM, **options(case))
    return PublishedAnswers(mode) if "answers" in MODES[case] else mode


def _digests(choice, case, copy):
    mode = model(case)
    x, y = rows(choice)[AT]
    for number, (point, target) in enumerate(rows(choice)):
        mode.insert(point, target)
        if number >= AT:  # the states before it tell nothing
            yield mode.digest().encode()
    if copy is not None:
        mode.restore(mode.state() | {"published": copy})
        yield mode.digest().encode()
    if mode.exact:
        forget(mode, rows(choice)[0])
        yield mode.digest().encode()
    data = (np.asarray(x, "<f8") + 0.0).tobytes() + np.array(y, "<f8").tobytes()
    yield b"content\x00" + data
    yield data


def options(case):
    names = ("Lambda", "tolerance")
    return {name: MODES[case][name] for name in names if name in MODES[case]}


def nearest(path, case, copy):
    """The candidates whose model without the record is nearest to the stored one.

    Of a copy that was published, those whose copy without noise is nearest to it.
    """
    if copy is not None:
        distances = [
            float(np.linalg.norm(silent_copy(choice, case) - copy))
            for choice in range(CANDIDATES)
        ]
        return [int(np.argmin(distances))]
    (body,) = sql(path, "SELECT body FROM demur_unlearning_state")[0]
    stored = model(case)
    try:
        stored.restore(StateCipher(None).decode(body))
    except ServiceMismatch:  # encrypted
        return range(CANDIDATES)
    theirs = stored.state()
    distances = [
        sum(float(np.abs(ours[k] - theirs[k]).sum()) for k in sorted(ours))
        for ours in (forgotten(choice, case) for choice in range(CANDIDATES))
    ]
    return [i for i, d in enumerate(distances) if d == min(distances)]


def learned(choice, case):
    """The model with all records, if this was the one that was deleted later."""
    mode = model(case)
    for x, y in rows(choice):
        mode.insert(x, y)
    return mode


@cache
def silent_copy(choice, case):
    """What would be published of that, without noise."""
    mode = learned(choice, case)
    sigma = float(PublicationPrices(PUBLISHED).mechanism(mode).sigma)
    mode.show(np.zeros(mode.statistic_size), sigma=sigma)
    return mode.published()


@cache
def forgotten(choice, case):
    """The state after the deletion, without noise, if this was the record."""
    mode = learned(choice, case)
    for number in (0, AT):
        forget(mode, rows(choice)[number])
    return mode.state()


def forget(mode, deleted):
    """The deletion without noise."""
    x, y = deleted
    silent = None if mode.exact else np.zeros(mode.size)
    if mode.needs_record:
        mode.delete(np.array([x]), np.array([y]), silent, records=1)
    else:
        mode.delete(noise=silent, records=1)


def attack(path, case, rng):
    """The candidate that the attacker names."""
    words, notes = stored_words(path), path.with_name("published.npy")
    copy = np.load(notes) if notes.exists() else None
    keys = [key for key in keys_in(path) if any(key)]
    for choice in range(CANDIDATES):
        for text in digests(choice, case, copy):
            tags = {
                hmac.new(k, text, hashlib.sha256).hexdigest().encode() for k in keys
            }
            tags |= {
                hmac.new(k, b"state\x00" + text, hashlib.sha256).hexdigest().encode()
                for k in keys
            }
            tags |= {text, hashlib.sha256(text).hexdigest().encode()}
            if tags & words:
                return choice
    return int(rng.choice(nearest(path, case, copy)))


def named(folder, case, trials, **more):
    """How often the attacker names the true record, of so many trials."""
    rng = np.random.default_rng(5)
    right = 0
    for trial in range(trials):
        choice = int(rng.integers(CANDIDATES))
        path = folder / f"{case}{trial}" / "model.db"
        path.parent.mkdir()
        service_with(path, choice, case, **more)
        right += attack(path, case, rng) == choice
    return right


def most(case, trials):
    """How often they may be right: more has a probability below CHANCE.

    (epsilon, delta): naming r has at most e^epsilon times the probability that it has
    if r was never learned, plus delta; those add up to 1 over the candidates.
    """
    epsilon, delta = promised(case)
    return int(binom.isf(CHANCE, trials, math.exp(epsilon) / CANDIDATES + delta))


@cache
def promised(case):
    """What the certificates of a service say, for all that leaves it."""
    if "answers" not in MODES[case]:
        return MODES[case].get("epsilon", 0.0), MODES[case].get("delta", 0.0)
    terms = ServiceTerms.make({}, dimension=DIM, **MODES[case])
    return DeletionPrices(terms).epsilon_in_all(), terms.delta_in_all


def key_of(case):
    """A mode with a secret point has it encrypted under a key that is elsewhere."""
    secret = case.removesuffix(", stored") in SECRET
    return (lambda: b"a key in a keyring") if secret else None


@pytest.mark.parametrize("case", [case for case in MODES if case not in ALIKE])
def test_the_folder_does_not_name_the_deleted_record(tmp_path, case):
    """A leak that names it in half of all cases is found with a probability of 0.95."""
    trials = 10 if promised(case)[0] == 0.0 else 16 if promised(case)[0] < 1.1 else 24
    limit = most(case, trials)
    assert binom.sf(limit, trials, 0.5) > 0.9
    assert named(tmp_path, case, trials, memory_key=key_of(case)) <= limit


@pytest.mark.deep
@pytest.mark.parametrize("case", MODES)
def test_the_same_many_times(tmp_path, case):
    """A leak that names it in a tenth of all cases is found as well."""
    limit = most(case, 400)
    allowed = math.exp(promised(case)[0]) / CANDIDATES
    assert binom.sf(limit, 400, 0.1 + allowed) > 0.97
    assert named(tmp_path, case, 400, memory_key=key_of(case)) <= limit


@pytest.mark.parametrize("case", ["ogd", "ridge"])
def test_the_twin_whose_seal_keys_stay_names_it(tmp_path, case, monkeypatch):
    monkeypatch.setattr(Seals, "destroy_others", lambda _: None)
    assert named(tmp_path, case, 6) == 6


def test_the_twin_that_stores_a_secret_point_names_it(tmp_path):
    """Without a key; its certificate says that the files hold the point."""
    assert named(tmp_path, "logistic", 6) == 6
    path = tmp_path / "model.db"
    certificate = service_with(path, 0, "logistic")
    assert any("hold the state" in line for line in certificate.not_covered)


def test_the_twin_that_shows_digests_of_exact_states_names_it(tmp_path, monkeypatch):
    """In the certificate of an earlier deletion, as they once stood there."""
    real = deletion.Certificate

    def with_digest(**content):
        content["state_digest"] = seen[-1].digest()
        return real(**content)

    seen = []
    noised = deletion.Deletions.noised

    def watched(self, *given):
        seen.append(noised(self, *given))
        return seen[-1]

    monkeypatch.setattr(deletion.Deletions, "noised", watched)
    monkeypatch.setattr(deletion, "Certificate", with_digest)
    assert named(tmp_path, "ridge", 6) == 6


@pytest.mark.parametrize("case", ["published", "published sums"])
def test_the_twin_that_publishes_without_noise_names_it(tmp_path, monkeypatch, case):
    show = PublishedAnswers.show
    monkeypatch.setattr(
        PublishedAnswers,
        "show",
        lambda self, noise, **more: show(self, 0.0 * noise, **more),
    )
    assert named(tmp_path, case, 2, memory_key=key_of(case)) == 2


def test_the_twin_that_keeps_the_digest_of_the_record_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        stored,
        "_END_RECORD",
        stored._END_RECORD.values(content=stored.tables.records.c.content),
    )
    assert named(tmp_path, "ridge", 6) == 6


# -- ids -------------------------------------------------------------------------------


def ids_found(path, ids):
    """Ids whose name is stored, under a key of the folder."""
    words, keys = stored_words(path), keys_in(path)
    return [
        name
        for name, key in itertools.product(ids, keys)
        if hmac.new(key, b"record\x00" + name.encode(), hashlib.sha256)
        .hexdigest()
        .encode()
        in words
    ]


IDS = [f"person {number}" for number in range(OTHERS + 1)]


@pytest.mark.parametrize("memory", [None, "a file", "a passphrase", "a keyring"])
def test_the_folder_does_not_tell_whose_record_was_deleted(tmp_path, memory):
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "model.db"
    key = {
        None: None,
        "a file": tmp_path / "elsewhere" / "ids.key",
        "a passphrase": Passphrase("a long and winding road"),
        "a keyring": lambda: b"sixteen bytes or more",
    }[memory]
    service_with(path, 0, "ridge", memory_key=key)
    found = ids_found(path, IDS)
    assert f"person {AT}" not in found
    # A live record is known by its name, unless the key is elsewhere.
    assert len(set(found)) == (OTHERS - 1 if memory is None else 0)


@pytest.mark.parametrize("remembers", [True, False])
def test_another_live_record_names_the_person(tmp_path, remembers):
    """The limit of a folder without a memory key, as its page says."""
    path = tmp_path / "model.db"
    key = {"memory_key": lambda: b"sixteen bytes or more"} if remembers else {}
    with unlearning.UnlearningService.open(
        path, mode="ridge", dimension=DIM, durability="batch", **key
    ) as service:
        for number in range(4):
            person = f"person {number // 2}"
            service.insert(*record(number), record_id=number, subject_id=person)
        held = service.delete(1, *record(1))
    columns = "SELECT subject_name, subject FROM demur_unlearning_records WHERE live"
    names = dict(sql(path, columns))
    folder = Pseudonyms.peek(path.with_name("model.db.keys"))
    found = [n for n in range(2) if names.get(folder.subject(f"person {n}"))]
    assert found == ([] if remembers else [0, 1])
    if not remembers:
        assert names[folder.subject("person 0")] == held.subject


def test_the_twin_that_keeps_the_name_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(
        stored,
        "_END_RECORD",
        stored._END_RECORD.values(name=stored.tables.records.c.name),
    )
    path = tmp_path / "model.db"
    service_with(path, 0, "ridge")
    assert f"person {AT}" in ids_found(path, IDS)


def test_a_service_without_memory_forgets_ids_and_says_so(tmp_path):
    path, (x, y) = tmp_path / "model.db", record(0)
    service_with(path, 0, "ridge")
    with unlearning.UnlearningService.open(path) as service:
        assert service.status().remembers is False
        name = f"person {AT}"
        for ask in (
            lambda: service.delete(name),
            lambda: service.delete(name, block=True),
            lambda: service.certificate(name),
        ):
            with pytest.raises((UnknownRecord, ServiceMismatch), match="remember"):
                ask()
        service.insert(x, y, record_id=name)  # a new one, as far as anybody can tell
        with pytest.raises(RecordExists):
            service.insert(x, y, record_id=name)
        assert service.delete(name, x, y).generation == 1
        assert service.verify().ok


def test_persons_are_known_while_a_record_of_theirs_is_live(tmp_path):
    path = tmp_path / "model.db"
    terms = MODES["ogd"] | {"dimension": DIM}
    with unlearning.UnlearningService.open(path, **terms) as service:
        for number in range(4):
            service.insert(*record(number), record_id=number, subject_id="ada")
    with unlearning.UnlearningService.open(path) as service:
        first = service.delete(0)
        service.insert(*record(9), record_id=9, subject_id="ada")
        second = service.delete(1)
        assert first.subject == second.subject and second.requests == 2
        assert len(service.delete_subject("ada")) == 5
        with pytest.raises(UnknownRecord):
            service.delete_subject("ada")
        service.insert(*record(5), record_id=5, subject_id="ada")
        assert service.delete(5).subject != first.subject
        assert service.verify().ok


@pytest.mark.parametrize("wrong", ["another", "none", "inside", "too short"])
def test_the_key_of_a_memory_is_checked(tmp_path, wrong):
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "model.db"
    terms = {"mode": "ridge", "dimension": DIM}
    if wrong == "inside":
        inside = path.parent / "ids.key"
        with pytest.raises(ServiceMismatch, match="whoever holds the folder"):
            unlearning.UnlearningService.open(path, memory_key=inside, **terms)
        assert not path.exists() and not inside.exists()
        return
    if wrong == "too short":
        with pytest.raises(ValueError, match="at least 16 bytes"):
            unlearning.UnlearningService.open(path, memory_key=lambda: b"k", **terms)
        assert not path.exists()
        return
    key = tmp_path / "ids.key"
    unlearning.UnlearningService.open(path, memory_key=key, **terms).close()
    given = None if wrong == "none" else Passphrase("not that one")
    with pytest.raises(ServiceMismatch, match="memory_key"):
        unlearning.UnlearningService.open(path, memory_key=given)
    with unlearning.UnlearningService.open(path, memory_key=key) as service:
        assert service.status().remembers


def test_a_copy_that_stays_live_is_pointed_out(tmp_path):
    x, y = record(0)
    terms = MODES["ridge"] | {"dimension": DIM}
    with unlearning.UnlearningService.open(tmp_path / "model.db", **terms) as service:
        for name in ("one", "two", "three"):
            service.insert(x, y, record_id=name)
        service.insert(*record(1), record_id="another")
        with pytest.warns(DuplicateStaysLive, match="^2 live records") as told:
            service.delete("one", x, y)
        assert "two" not in str(told[0].message)
        service.delete_many(["two", "three"], [x, x], [y, y])
        with pytest.raises(UnknownRecord):
            service.delete("one", x, y)
        service.delete("another", *record(1))


# -- the model that was put back -----------------------------------------------------


def put_back(path, case, learn_after=False):
    """Replace the state by the one from before the deletion; the certificate."""
    choice = 0
    mode = make_mode(MODES[case]["mode"], DIM, **options(case))
    for x, y in rows(choice):
        mode.insert(x, y)
    certificate = service_with(path, choice, case)
    if learn_after:
        with unlearning.UnlearningService.open(path) as service:
            service.insert(*record(77), record_id="later")
    old = snapshot.encode(mode.state())
    sql(path, "UPDATE demur_unlearning_state SET body = ?", old)
    return certificate


@pytest.mark.parametrize(
    ("case", "keys"), [("ogd", True), ("ogd", False), ("ridge", True)]
)
def test_verify_looks_at_the_model(tmp_path, case, keys):
    path = tmp_path / "model.db"
    certificate = put_back(path, case)
    if not keys:
        for file in (tmp_path / "model.db.keys").glob("seal-*"):
            file.unlink()
    checked = verify_certificate(certificate, path)
    assert any("not the one that the journal names" in p for p in checked.problems)


def test_what_it_cannot_look_at_is_named(tmp_path):
    path = tmp_path / "model.db"
    certificate = put_back(path, "ridge", learn_after=True)
    assert not verify_certificate(certificate, path).ok
    KeyStore(tmp_path / "model.db.keys").wipe("seal-3")
    checked = verify_certificate(certificate, path)
    assert checked.ok and "seal cannot be read" in str(checked)


def test_the_twin_that_does_not_look_is_content(tmp_path, monkeypatch):
    monkeypatch.setattr(certificate_verification, "state_problems", lambda *_: ([], []))
    certificate = put_back(tmp_path / "model.db", "ridge")
    assert verify_certificate(certificate, tmp_path / "model.db").ok
