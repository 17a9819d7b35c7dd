"""The journal, the state beside it and snapshots: what was changed is found."""

import json
import shutil

import numpy as np
import pytest

from demur.core.digest import digest_of_text
from demur.durable.chain import Tip, link
from demur.unlearning import ServiceDamaged, SnapshotRefused, verify_certificate
from demur.unlearning.records import snapshot
from demur.unlearning.records.journal import genesis
from tests.unlearning.service_kit import (
    UnlearningService,
    fill,
    open_service,
    record,
    sql,
)

ROWS = "SELECT sequence, body, hash FROM demur_unlearning_journal ORDER BY sequence"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.db"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with open_service(folder / "model.db") as service:
        fill(service, range(6))
        service.delete(1)
        service.delete_many([2, 3])
        fill(service, [1, 7])
        service.delete(1)
    return folder


@pytest.fixture
def kept(made, path):
    """A service that learned and forgot; a copy for each test."""
    shutil.copytree(made, path.parent, dirs_exist_ok=True)
    return path


def finding(path):
    with UnlearningService.open(path) as service:
        return service.verify()


def rechain(path):
    """Make the links right again, as one who rewrites history would."""
    last = genesis(*sql(path, "SELECT service_id, terms FROM demur_unlearning")[0])
    for sequence, body, _ in sql(path, ROWS):
        last = link(last, body)
        sql(
            path,
            "UPDATE demur_unlearning_journal SET hash = ? WHERE sequence = ?",
            last,
            sequence,
        )
    sql(path, "UPDATE demur_unlearning SET hash = ?, sequence = ?", last, sequence)


def test_a_journal_is_a_chain_from_its_terms(kept):
    ((service, terms, count, tip),) = sql(
        kept, "SELECT service_id, terms, sequence, hash FROM demur_unlearning"
    )
    last = digest_of_text(f"{service}\n{terms}")
    rows = sql(kept, ROWS)
    for _, body, row_hash in rows:
        last = link(last, body)
        assert row_hash == last
    assert (count, tip) == (len(rows), last)
    kinds = [json.loads(body)["op"] for _, body, _ in rows]
    assert kinds == [
        *["insert"] * 6,
        "intent",
        "delete",
        "intent",
        "delete",
        "delete",
    ] + [
        *["insert"] * 2,
        "intent",
        "delete",
    ]
    assert finding(kept).ok


def edited(body, **changes):
    return json.dumps(json.loads(body) | changes, sort_keys=True, separators=(",", ":"))


@pytest.mark.slow
@pytest.mark.parametrize("sequence", range(1, 16))
def test_every_edited_row_is_found(kept, sequence):
    ((body,),) = sql(
        kept, "SELECT body FROM demur_unlearning_journal WHERE sequence = ?", sequence
    )
    sql(
        kept,
        "UPDATE demur_unlearning_journal SET body = ? WHERE sequence = ?",
        edited(body, tick=999),
        sequence,
    )
    assert not finding(kept).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement, words",
    [
        ("DELETE FROM demur_unlearning_journal WHERE sequence = 4", "missing"),
        ("UPDATE demur_unlearning_journal SET op = 'block' WHERE sequence = 3", "kind"),
        ("UPDATE demur_unlearning_subjects SET requests = requests - 1", "requests"),
        ("DELETE FROM demur_unlearning_subjects", "requests"),
        ("UPDATE demur_unlearning SET used = 0", "epoch has used"),
        ("UPDATE demur_unlearning_records SET live = 1", "table of records"),
        ("UPDATE demur_unlearning_records SET subject = 'x'", "table of records"),
        ("UPDATE demur_unlearning_state SET tick = tick + 1", "clock of the state"),
        ("UPDATE demur_unlearning_state SET epoch = 2", "clock of the state"),
        ("DELETE FROM demur_unlearning_certificates", "certificates"),
        (
            "UPDATE demur_unlearning_certificates SET body ="
            " replace(body, '\"tick\": 6', '\"tick\": 5')",
            "tick",
        ),
    ],
)
def test_every_edited_table_is_found(kept, statement, words):
    sql(kept, statement)
    found = finding(kept)
    assert not found.ok and words in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "records SET generation = 'x'",
        "state SET tick = '[]'",
        "state SET body = '{}'",
        "state SET body = 7",
        "state SET sequence = 1e30",
        "journal SET hash = '' WHERE sequence = 15",
        "journal SET body = '[]' WHERE sequence = 15",
        "journal SET body = '{}' WHERE sequence = 15",
    ],
)
def test_what_cannot_be_read_is_damage_and_never_a_crash(kept, change):
    with UnlearningService.open(kept) as service:
        certificate = service.certificate(2)
    sql(kept, f"UPDATE demur_unlearning_{change}")
    with pytest.raises(ServiceDamaged):
        UnlearningService.open(kept)
    if "state" not in change:  # the state is secret, and no part of a certificate
        assert not verify_certificate(certificate, kept).ok


def test_a_table_without_its_row_and_a_number_without_end_are_damage(kept):
    with UnlearningService.open(kept) as service:
        certificate = service.certificate(2)
    endless = '{"op": "retrain", "records": Infinity, "new": 0}'
    change = "UPDATE demur_unlearning_journal SET op = ?, body = ? WHERE sequence = 2"
    sql(kept, change, "retrain", endless)
    found = str(verify_certificate(certificate, kept))
    assert "row 2: its text cannot be read (ValueError" in found
    sql(kept, "DELETE FROM demur_unlearning_state")
    with pytest.raises(ServiceDamaged, match="Restore a whole copy"):
        UnlearningService.open(kept)
    found = verify_certificate(certificate, kept)
    assert "the tables: what is stored cannot be read" in str(found)


def test_a_rewritten_history_is_told_by_ledger_and_certificate(kept):
    """The links were made right again: what was handed out before still tells."""
    with UnlearningService.open(kept) as service:
        certificate = service.certificate(2)
    assert verify_certificate(certificate, kept).ok
    first = "SELECT body FROM demur_unlearning_journal WHERE sequence = 2"
    ((body,),) = sql(kept, first)
    sql(
        kept,
        "UPDATE demur_unlearning_journal SET body = ? WHERE sequence = 2",
        edited(body, subject="0" * 64),
    )
    rechain(kept)
    found = verify_certificate(certificate, kept)
    assert "the journal or the certificate was changed" in str(found)
    with pytest.raises(ServiceDamaged, match="another hash for row"):
        UnlearningService.open(kept)


def test_a_state_that_is_not_the_journals_is_not_served(kept):
    ((body,),) = sql(kept, "SELECT body FROM demur_unlearning_state")
    state = snapshot.decode(body)
    state["w"] = state["w"] + 1e-9
    sql(kept, "UPDATE demur_unlearning_state SET body = ?", snapshot.encode(state))
    with pytest.raises(ServiceDamaged, match="not the one that the journal names"):
        UnlearningService.open(kept)
    sql(kept, "UPDATE demur_unlearning_state SET body = ?", b"[]\nrest")
    with pytest.raises(ServiceDamaged):
        UnlearningService.open(kept)


def test_an_older_copy_of_the_state_is_not_served(path):
    """The state from before a deletion, put back under the newer journal."""
    with open_service(path) as service:
        fill(service, range(4))
        row = sql(path, "SELECT body, sequence, tick FROM demur_unlearning_state")[0]
        service.delete(2)
    sql(
        path, "UPDATE demur_unlearning_state SET body = ?, sequence = ?, tick = ?", *row
    )
    with pytest.raises(ServiceDamaged, match="newer than the state"):
        UnlearningService.open(path)


def test_a_cut_journal_is_found(kept):
    sql(kept, "DELETE FROM demur_unlearning_journal WHERE sequence >= 15")
    with pytest.raises(ServiceDamaged):
        UnlearningService.open(kept)


def test_states_survive_their_encoding():
    state = {
        "w": np.arange(5) / 3.0,
        "n": np.array(7, dtype=np.int64),
        "m": np.array([[True, False]]),
        "big": np.arange(4, dtype=">i8").reshape(2, 2),
        "none": np.zeros((0, 3)),
    }
    back = snapshot.decode(snapshot.encode(state))
    assert set(back) == set(state)
    for name, array in state.items():
        assert np.array_equal(back[name], array) and back[name].shape == array.shape
    with pytest.raises(TypeError):
        snapshot.encode({"o": np.array([object()])})
    for damaged in (
        b"",
        b"{}",
        b"[]\nx",
        b'[["w","<f8",[3]]]\nxx',
        b'[["w","|O",[1]]]\nx',
    ):
        with pytest.raises(ServiceDamaged):
            snapshot.decode(damaged)


def test_a_snapshot_brings_back_its_moment(path):
    with open_service(path, mode="ridge") as service:
        fill(service, range(5))
        taken = service.snapshot()
        digest_then = service._state.mode.digest()
        fill(service, [5, 6])
        dropped = service.restore(taken)
        assert service._state.mode.digest() == digest_then
        assert {c.theorem for c in dropped} == {"restore"} and len(dropped) == 2
        assert service.status().live == 5
        assert service.delete(5) in dropped  # It is not in the model any more.
        fill(service, [5])
        service.delete(0, *record(0))
        assert service.verify().ok, str(service.verify())


def test_a_deletion_destroys_snapshots_and_refuses_copies_of_them(path, tmp_path):
    copy = tmp_path / "backup"
    with open_service(path) as service:
        fill(service, range(5))
        taken = service.snapshot()
        copy.write_bytes(taken.read_bytes())
        service.delete(1)
        assert not taken.exists()
        before = service.status(), service.published().tolist()
        with pytest.raises(SnapshotRefused, match="still holds what was deleted"):
            service.restore(copy)
        assert (service.status(), service.published().tolist()) == before
        fresh = service.snapshot()
        service.restore(fresh)
        assert service.verify().ok
    with open_service(path) as service:
        service.retrain([(n, *record(n)) for n in (0, 2)])
        with pytest.raises(SnapshotRefused):
            service.restore(copy)


def test_snapshots_that_a_crash_left_behind_are_burnt_on_opening(path):
    with open_service(path) as service:
        fill(service, range(5))
        taken = service.snapshot()
        kept = taken.read_bytes()
        service.delete(1)
        fresh = service.snapshot()
    taken.write_bytes(kept)
    taken.with_suffix(".4711").write_bytes(kept[:100])
    with UnlearningService.open(path):
        assert [p.name for p in taken.parent.iterdir()] == [fresh.name]


def test_snapshots_of_others_and_damaged_ones_are_refused(path, tmp_path):
    with open_service(tmp_path / "other.db") as other:
        fill(other, range(5))
        foreign = other.snapshot().read_bytes()
    with open_service(path) as service:
        fill(service, range(5))
        own = service.snapshot().read_bytes()
        tip, _, state = own.partition(b"\n")
        forged = bytearray(own)
        forged[-12] ^= 1
        bad = [foreign, own[:-3], b"", b"{}\n", tip, bytes(forged)]
        bad.append(own.replace(b'"sequence":5', b'"sequence":9'))
        for data in bad:
            (tmp_path / "bad").write_bytes(data)
            with pytest.raises(SnapshotRefused, match="Nothing"):
                service.restore(tmp_path / "bad")
        assert len(state) and isinstance(service.status().tip, Tip)


def test_an_old_state_cannot_pass_for_a_newer_one(path, tmp_path):
    """A copy from before a deletion, with another row, tick or epoch in its header."""
    with open_service(path) as service:
        fill(service, range(5))
        old = service.snapshot().read_bytes()
        service.delete(1)
        at = service.status().tip.sequence
        before = service.published().tolist()
        tip, _, state = old.partition(b"\n")
        for changes in ({"sequence": at}, {"sequence": at, "tick": 4}, {"tick": 4}):
            forged = json.dumps(json.loads(tip) | changes).encode() + b"\n" + state
            (tmp_path / "forged").write_bytes(forged)
            with pytest.raises(SnapshotRefused, match="Nothing has changed"):
                service.restore(tmp_path / "forged")
        assert service.published().tolist() == before


def test_whatever_lies_among_the_snapshots_is_burnt(path):
    with open_service(path) as service:
        fill(service, range(5))
        taken = service.snapshot()
        shutil.copy(taken, taken.with_name("backup.snapshot"))
        (taken.parent / "folder").mkdir()
        service.delete(1)
        assert [p.name for p in taken.parent.iterdir()] == ["folder"]
