"""Evidence that was rewritten, consistently, by whoever may write to it."""

import json
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.durable.chain import canonical, public_hex
from demur.ledger import Ledger
from demur.unlearning import ServiceDamaged, verify_certificate, verify_evidence
from demur.unlearning.service import backup, certificate_verification
from demur.unlearning.service.verification import LedgersBefore, payment_problems
from tests.unlearning.evidence_kit import rows_of, write_rows
from tests.unlearning.service_kit import fill, open_service, record, sql

pytestmark = pytest.mark.slow
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (1, 2))


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Three requests of one person, then two records of another in one request."""
    folder = tmp_path_factory.mktemp("service")
    with open_service(folder / "model.db") as service:
        for number in range(16):
            service.insert(
                *record(number), record_id=number, subject_id=f"p{number // 4}"
            )
        for number in range(3):
            service.delete(number)
        service.delete_many([8, 9])
        service.evidence(folder / "evidence.db")
    return folder / "evidence.db"


def rewritten(file, change, key=None):
    """Rows as `change` makes them, with hashes, certificates and end that fit."""
    changed = [
        change(body["op"], body, number) for number, body in enumerate(rows_of(file), 1)
    ]
    write_rows(file, [body for body in changed if body is not None], key)


def certificates(**values):
    """A change of every certificate; functions get the old certificate."""

    def change(op, body, _):
        if op == "delete":
            old = dict(body["certificate"])
            body["certificate"] |= {
                name: value(old) if callable(value) else value
                for name, value in values.items()
            }
        return body

    return change


def as_first_request(op, body, sequence, first={}):  # noqa: B006
    """The noise of a first request for every request of a person."""
    if op == "delete":
        told = body["certificate"]
        first.setdefault("ratio", told["sigma"] / told["shift_bound"] * (1 + 1e-9))
        first.setdefault("epsilon", told["epsilon"])
        if told["records"] == 1:
            told["sigma"] = first["ratio"] * told["shift_bound"]
            told |= {"requests": 1, "epsilon": first["epsilon"]}
            told["epsilon_so_far"] = first["epsilon"]
    return body


def without_persons(op, body, sequence):
    if op == "intent":
        body |= {"used": 0, "used_by": {}, "requests": {}}
    return certificates(requests=1)(op, body, sequence)


ONE = {}  # the first operation, for all
# By name: the change; and whether the journal by itself contradicts it.
CHANGES = {
    "request 1 each time": (certificates(requests=1), True),
    "the noise of request 1": (as_first_request, True),
    "two records for one": (
        certificates(
            records=1,
            shift_bound=lambda c: c["shift_bound"] / c["records"],
            sigma=lambda c: c["sigma"] / c["records"],
        ),
        True,
    ),
    "nothing so far": (certificates(epsilon_so_far=0.0), True),
    "another person": (certificates(subject="f" * 64), True),
    "another epoch": (certificates(epoch=7), True),
    "another tick": (certificates(tick=1), True),
    "another statement": (certificates(statement="It is erased everywhere."), True),
    "no limits": (certificates(not_covered=[]), True),
    "no accounting": (certificates(accounting="none"), True),
    "one entry for all": (
        certificates(
            operation=lambda c: ONE.setdefault("operation", c["operation"]),
            entry=lambda c: ONE.setdefault("entry", c["entry"]),
        ),
        True,
    ),
    "free, as of a retrain": (
        certificates(
            theorem="retrain", entry="", epsilon=0.0, epsilon_so_far=0.0, sigma=0.0,
            shift_bound=0.0, statement="The model was trained anew without the record.",
        ),
        True,
    ),  # fmt: skip
    "intents without persons": (without_persons, True),
    "another service": (certificates(service="0" * 32), True),
    "another ledger": (certificates(ledger="0" * 32), False),
    "another time": (certificates(time="1999-01-01T00:00:00+00:00"), False),
    "no digest": (certificates(state_digest=None), True),
    "another version": (certificates(library="9.9"), False),
    "the last request cut off": (
        lambda op, body, sequence: None if sequence > 22 else body,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_it_contradicts_itself(honest, what, tmp_path):
    """Journal and certificates were made to fit; not so the ledger in the file."""
    file = shutil.copy(honest, tmp_path / "evidence.db")
    change, by_itself = CHANGES[what]
    rewritten(file, change)
    assert not verify_evidence(file).ok
    sql(file, "DELETE FROM demur_unlearning_evidence_ledgers")
    found = verify_evidence(file)
    assert found.ok is not by_itself, str(found)
    assert by_itself or "ledger" in str(found), "what it lacks is said"


def test_rewriting_nothing_is_no_problem(honest, tmp_path):
    file = shutil.copy(honest, tmp_path / "evidence.db")
    rewritten(file, lambda op, body, sequence: body)
    found = verify_evidence(file)
    assert found.ok, str(found)


def test_a_signed_file_with_another_signer_or_without_its_end(tmp_path):
    file, other = tmp_path / "evidence.db", tmp_path / "other.db"
    with open_service(tmp_path / "model.db", signing_key=KEY) as service:
        fill(service, range(4))
        held = service.delete(1)
        service.delete(2)
        service.evidence(file)
    public = public_hex(KEY)
    for spelt in (public, public.upper(), f" {public}\n"):
        assert verify_certificate(held, file, signer=spelt).ok
    shutil.copy(file, other)
    # The end is cut off: what is left is signed, and so is the ledger, which has more.
    end = "FROM demur_unlearning_journal WHERE sequence"
    sql(other, f"DELETE {end} > 6")
    sql(other, "UPDATE demur_unlearning_evidence SET sequence = 6, hash ="
        f" (SELECT hash {end} = 6)")  # fmt: skip
    sql(
        other,
        "DELETE FROM demur_unlearning_certificates WHERE pseudonym <> ?",
        held.record,
    )
    assert "1 operations that the journal lacks" in str(verify_evidence(other))
    shutil.copy(file, other)
    ((terms,),) = sql(other, "SELECT terms FROM demur_unlearning_evidence")
    forged = canonical(json.loads(terms) | {"signer": public_hex(OTHER)})
    sql(other, "UPDATE demur_unlearning_evidence SET terms = ?", forged)
    rewritten(other, lambda op, body, sequence: body, key=OTHER)
    assert "another signer than the terms" in str(verify_evidence(other))


def test_what_is_no_evidence_is_said_to_be_damaged(honest, tmp_path):
    for statement in (
        "DROP TABLE demur_unlearning_journal",
        "DROP TABLE demur_unlearning_evidence_ledgers",
        "UPDATE demur_unlearning_evidence_ledgers SET body = 'text'",
        "UPDATE demur_unlearning_evidence SET terms = '{}'",
        "UPDATE demur_unlearning_evidence SET terms ="
        ' replace(terms, \'"epsilon":1.0\', \'"epsilon":"x"\')',
    ):
        file = shutil.copy(honest, tmp_path / "evidence.db")
        sql(file, statement)
        with pytest.raises(ServiceDamaged):
            verify_evidence(file)


def test_a_deletion_while_somebody_verifies_is_no_problem(tmp_path, monkeypatch):
    """The ledger then has an entry that the journal had not when it was read."""
    path, read = tmp_path / "model.db", certificate_verification.read_history
    with open_service(path) as service:
        fill(service, range(4))
        held = service.delete(0)

        def read_and_delete(connection):
            history = read(connection)
            connection.rollback()  # A commit waits for readers.
            service.delete(int(history.tip.sequence) // 3)
            return history

        monkeypatch.setattr(certificate_verification, "read_history", read_and_delete)
        monkeypatch.setattr(
            certificate_verification, "state_problems", lambda *_: ([], [])
        )
        found = verify_certificate(held, path)
        assert found.ok and found.rows < service.status().tip.sequence
        # and the check has power: the entries from after the journal was read
        with (
            service._state.database.read() as connection,
            Ledger.open(f"{path}.ledger-1", read_only=True) as ledger,
        ):
            history = read(connection)
            connection.rollback()
            service.delete(3)
            late = LedgersBefore.the_journal([ledger], history.service)
            assert "1 operations" in str(payment_problems(history, late, None))


@pytest.mark.parametrize("looks", [True, False])
def test_evidence_is_of_one_moment(tmp_path, monkeypatch, looks):
    """A deletion between the journal and the ledgers; the twin does not look."""
    file, copies = tmp_path / "evidence.db", backup._ledger_copies
    with open_service(tmp_path / "model.db") as service:
        fill(service, range(4))
        service.delete(0)
        waiting = [1]

        def copy(path):
            if waiting:
                service.delete(waiting.pop())
            return copies(path)

        monkeypatch.setattr(backup, "_ledger_copies", copy)
        if not looks:
            monkeypatch.setattr(backup, "_last_intent", lambda _: 0)
        service.evidence(file)
    found = verify_evidence(file)
    assert found.ok is looks, str(found)
