"""What is stored of a record: pseudonyms, and ciphertexts whose keys can be erased."""

import sqlite3
import traceback
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from demur.core.entropy import Seeded
from demur.durable import sqlite
from demur.errors import KeysExposed, LedgerUnreachable
from demur.unlearning import RecordNeeded, ServiceBusy, ServiceDamaged, ServiceMismatch
from demur.unlearning.records import tables
from demur.unlearning.records.encrypted_records import EncryptedRecords
from demur.unlearning.records.pseudonyms import Pseudonyms, claim
from tests.unlearning.service_kit import (
    UnlearningService,
    bytes_of,
    files_with,
    fill,
    open_service,
    record,
    sql,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.db"


def key_of(path, pseudonym):
    keys = path.parent / "model.db.keys" / "records.db"
    ((key,),) = sql(
        keys, "SELECT key FROM demur_record_keys WHERE pseudonym = ?", pseudonym
    )
    return key


def test_marks_are_keyed_and_told_apart_by_their_kind(tmp_path):
    one, other = Pseudonyms.create(tmp_path / "a"), Pseudonyms.create(tmp_path / "b")
    assert Pseudonyms.load(tmp_path / "a").record("ada") == one.record("ada")
    x, y = record(1)
    for make in (
        lambda m: m.record("ada"),
        lambda m: m.subject("ada"),
        lambda m: m.content(x, y),
        lambda m: m.own(),
    ):
        assert make(one) != make(other)
    assert one.record("ada") != one.subject("ada") != one.alone(one.record("ada"))
    assert one.record(7) == one.record("7")
    assert one.content(x, y) != one.content(-x, y) != one.content(x, -y)
    assert one.content([0.0, 1.0], 1) == one.content([-0.0, 1.0], 1.0)
    assert one.content([1.0, 2.0], 3.0) != one.content([1.0], 2.0)
    with pytest.raises(ServiceMismatch, match="not beside"):
        Pseudonyms.load(tmp_path / "c")


def test_the_secret_of_the_marks_is_owner_only_and_never_made_anew(path):
    with open_service(path) as service:
        fill(service, range(2))
    secret = path.parent / "model.db.keys" / "unlearning-pseudonyms.key"
    assert secret.stat().st_mode & 0o777 == 0o600
    kept = secret.read_bytes()
    secret.unlink()
    with pytest.raises(ServiceMismatch, match="not beside"):
        UnlearningService.open(path)
    secret.write_bytes(bytes(reversed(kept)))
    secret.chmod(0o644)
    with pytest.raises(KeysExposed, match="has mode 644"):
        UnlearningService.open(path)
    secret.chmod(0o600)
    with pytest.raises(ServiceMismatch, match="belongs to another"):
        UnlearningService.open(path)
    secret.write_bytes(kept)
    with UnlearningService.open(path) as service:
        assert service.status().live == 2


def test_record_keys_that_others_can_read_are_refused(path):
    with open_service(path, mode="ridge", record_store="encrypted") as service:
        fill(service, range(2))
    keys = path.parent / "model.db.keys" / "records.db"
    keys.chmod(0o640)
    with pytest.raises(KeysExposed, match="has mode 640"):
        UnlearningService.open(path)
    keys.chmod(0o600)
    with UnlearningService.open(path) as service:
        assert service.status().live == 2


def test_two_services_never_share_their_secrets(path, tmp_path):
    """One would sweep away the other's keys: they have no record in its tables."""
    terms = {"mode": "ridge", "record_store": "encrypted", "keys": tmp_path / "keys"}
    with open_service(path, **terms) as service:
        fill(service, range(3))
    other = tmp_path / "other.db"
    with pytest.raises(ServiceMismatch, match="another service"):
        open_service(other, **terms)
    assert not other.exists()
    with pytest.raises(ServiceMismatch, match="another service"):
        claim(tmp_path / "keys", 32 * "0")
    with UnlearningService.open(path, keys=tmp_path / "keys") as service:
        assert service.delete(1).generation == 1


def test_a_service_in_use_never_takes_up_a_secret_from_a_seed(path, monkeypatch):
    """A first opening for tests that was killed leaves its secret, and no service."""
    with monkeypatch.context() as patch:
        patch.setattr(type(Path()), "touch", killed)
        with pytest.raises(KeyboardInterrupt):
            open_service(path, source=Seeded(7))
    folder, seeded = path.parent / "model.db.keys", Seeded(7).new_key()
    assert seeded in {file.read_bytes() for file in folder.iterdir()}
    with open_service(path) as service:
        fill(service, range(2))
        assert service._state.pseudonyms.own() != Pseudonyms(seeded).own()
    with UnlearningService.open(path) as service:
        assert service.delete(1).generation == 1 and service.verify().ok


def killed(*_, **__):
    raise KeyboardInterrupt


def test_no_file_holds_an_id_or_a_raw_record(path):
    """Names, features and targets are in no file, in no form of them."""
    x, y = np.array([0.1234567, -0.7654321, 0.31415926, 0.2718281]), 0.123456789
    with open_service(path, mode="ridge", record_store="encrypted") as service:
        service.insert(x, y, record_id="Ada Lovelace", subject_id="countess")
        service.flush()
        needles = [b"Ada", b"countess", x.tobytes(), np.float64(y).tobytes()]
        needles += [repr(float(value)).encode() for value in (*x, y)]
        for needle in needles:
            assert files_with(path, needle) == []
        # The search does find what is there.
        pseudonym = service._state.directory.find("Ada Lovelace")
        assert "model.db" in "".join(files_with(path, pseudonym.encode()))


def test_a_box_opens_for_its_own_key_and_label_alone(tmp_path):
    database = tables.ServiceStore(str(tmp_path / "records.db"))
    database.create(tables.metadata)
    encrypted = EncryptedRecords(tmp_path / "keys")
    x, y = record(1)
    encrypted.encrypt("a", 1, x, y)
    encrypted.encrypt("b", 1, -x, y)
    encrypted.write_keys()
    with database.write() as connection:
        encrypted.write(connection)
    encrypted.written()
    with database.read() as connection:
        opened, target = encrypted.decrypt(connection, "a")
        assert opened.tolist() == x.tolist() and target == y
        assert [pseudonym for pseudonym, _, _ in encrypted.all_records(connection)] == [
            "a",
            "b",
        ]
        with pytest.raises(RecordNeeded):
            encrypted.decrypt(connection, "c")
    with database.write() as connection:  # the ciphertext of b under the name of a
        body = connection.execute(
            sa.select(tables.encrypted_records.c.body).where(
                tables.encrypted_records.c.pseudonym == "b"
            )
        ).scalar_one()
        connection.execute(
            tables.encrypted_records.update()
            .where(tables.encrypted_records.c.pseudonym == "a")
            .values(body=body)
        )
    with database.read() as connection:
        with pytest.raises(ServiceDamaged, match="was changed"):
            encrypted.decrypt(connection, "a")
    encrypted.erase({"b": 1})
    with database.read() as connection:
        with pytest.raises(ServiceDamaged, match="key"):
            encrypted.decrypt(connection, "b")
    encrypted.close()
    database.close()


def test_deleting_erases_key_box_and_old_state_from_every_file(path):
    with open_service(path, mode="ridge", record_store="encrypted") as service:
        fill(service, range(6))
        pseudonym = service._state.directory.find(3)
        key = key_of(path, pseudonym)
        ((ciphertext,),) = sql(
            path,
            "SELECT body FROM demur_unlearning_boxes WHERE pseudonym = ?",
            pseudonym,
        )
        sums = service._state.mode.state()["sums"].tobytes()
        content = service._state.pseudonyms.content(*record(3)).encode()
        assert files_with(path, content) != []
        copy = bytes_of(path)  # a backup from before
        assert any(key in data for data in copy.values())
        assert any(sums in data for data in copy.values())
        # The backup of the database alone cannot be read, that of the keys can.
        plain = ChaCha20Poly1305(key).decrypt(
            bytes(12), ciphertext, f"demur record\0{pseudonym}\x001".encode()
        )
        assert plain == np.append(*record(3)).tobytes()
        assert not any(
            key in data for name, data in copy.items() if "records.db" not in name
        )
        service.delete(3)
        assert not service.status().unclean
        for needle in (key, ciphertext, sums, content):
            assert files_with(path, needle) == []
        assert service.delete(4).epsilon == 0.0  # the others are still there


def test_old_weights_are_in_no_file_after_a_deletion(path):
    with open_service(path) as service:
        fill(service, range(6))
        before = service.published().tobytes()
        assert files_with(path, before) != []
        service.snapshot()
        service.delete(2)
        assert files_with(path, before) == []
        assert files_with(path, service.published().tobytes()) != []


def test_the_search_finds_what_an_insecure_store_leaves(path, monkeypatch):
    """The sabotaged twin: the journal of the last commit stays."""
    monkeypatch.setattr(tables.ServiceStore, "scrub", lambda self: None)
    with open_service(path) as service:
        fill(service, range(6))
        before = service.published().tobytes()
        service.delete(2)
        assert files_with(path, before) != []


def test_a_reader_in_the_way_is_waited_for_and_then_nothing_is_done(path, monkeypatch):
    monkeypatch.setattr(sqlite, "PATIENCE_SECONDS", 0.2)
    with open_service(path) as service:
        fill(service, range(6))
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM demur_unlearning").fetchall()
        with pytest.raises(LedgerUnreachable, match="locked.*Nothing was spent"):
            service.delete(2)
        reader.close()
    with UnlearningService.open(path) as service:
        assert service.delete(2).requests == 1  # the other was never made
        assert service.verify().ok and not service.status().unclean


def test_another_writer_in_the_way_is_reported_and_made_up_for(path):
    with open_service(path) as service:
        fill(service, range(6))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ServiceBusy, match="deletion is in force"):
            service.scrub()
        assert service.status().unclean
        other.close()
        service.scrub()
        assert not service.status().unclean


def test_keys_without_records_are_swept_away_on_opening(path):
    with open_service(path, record_store="encrypted") as service:
        fill(service, range(3))
        pseudonym = service._state.directory.find(1)
    key = key_of(path, pseudonym)
    # A crash after the commit of a deletion and before the key was erased.
    sql(path, "DELETE FROM demur_unlearning_boxes WHERE pseudonym = ?", pseudonym)
    with UnlearningService.open(path):
        assert files_with(path, key) == []


def test_no_error_shows_what_was_written(path):
    """A statement that fails names its table, not its values."""
    with open_service(path, record_store="encrypted") as service:
        fill(service, range(2))
        pseudonym = service._state.directory.find(7)
        keys = path.parent / "model.db.keys" / "records.db"
        sql(keys, "INSERT INTO demur_record_keys VALUES (?, 1, x'00')", pseudonym)
        with pytest.raises(sa.exc.IntegrityError) as error:
            fill(service, [7])
        assert "demur_record_keys" in str(error.value)
        assert pseudonym not in "".join(traceback.format_exception(error.value))
