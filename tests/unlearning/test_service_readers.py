"""Reading a service needs no right to write and changes nothing.

The attacks: read as another user, from read-only media, from a copy, beside a running
service; copy the main file alone; open what is no service, or a file with a log or an
interrupted write beside it. Each has a sabotaged twin.
"""

import os
import shutil
import sqlite3
import stat
import sys
import threading
from contextlib import suppress

import pytest

from demur.durable import sqlite
from demur.durable.database_files import FileKind
from demur.durable.store import Store
from demur.errors import (
    DemurError,
    KeysExposed,
    LedgerDamaged,
    LedgerMismatch,
    LedgerMissing,
    LedgerRefused,
    LedgerUnreachable,
    ServiceDamaged,
    ServiceMismatch,
)
from demur.unlearning import verify_certificate
from demur.unlearning.records import tables
from demur.unlearning.records.encrypted_records import EncryptedRecords
from demur.unlearning.records.pseudonyms import Pseudonyms
from demur.unlearning.service.state import ServiceState
from tests.unlearning.service_kit import (
    DIM,
    UnlearningService,
    fill,
    open_service,
    record,
    sql,
)


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "service"
    place.mkdir()
    return place / "model.db"


def used(path, **terms):
    """A service that has learned five records and forgotten one; its certificate."""
    with open_service(path, **terms) as service:
        fill(service, range(5))
        return service.delete(2)


def read(path, **how):
    return UnlearningService.open(path, read_only=True, **how)


def folder(path):
    """All that can be changed around a service: names, contents, modes, times."""
    found = {}
    for place in (path.parent, *sorted(path.parent.rglob("*"))):
        status = place.lstat()
        content = place.read_bytes() if place.is_file() else None
        found[place.name] = (content, status.st_mode, status.st_mtime_ns)
    return found


def everything(path, certificate, secret=True, **how):
    """All that a reader can ask; what it was told."""
    assert verify_certificate(certificate, path).ok
    with read(path, **how) as service:
        verification, status = service.verify(), service.status()
        assert verification.ok and status.deleted == 1
        assert service.ledger.find("no such key") is None and service.queue() == []
        if secret:
            assert service.certificate(2) == certificate
        else:
            with pytest.raises(ServiceMismatch, match="secret.*keys="):
                service.certificate(2)
        return status, service.published().tolist(), service.predict(record(0)[0])


MODES = [{"mode": "ogd"}, {"mode": "ridge", "record_store": "encrypted"}]


@pytest.mark.parametrize("terms", MODES)
def test_a_reader_reads_everything_and_changes_nothing(path, terms):
    certificate = used(path, **terms)
    with UnlearningService.open(path) as service:
        weights = service.published().tolist()
    before = folder(path)
    status, published, _ = everything(path, certificate)
    assert (status.live, published) == (4, weights)
    assert folder(path) == before


def test_the_look_at_the_folder_sees_what_a_writer_does(path):
    """The sabotaged twin: opened to be written, it takes the lock and its files."""
    used(path)
    path.with_name("model.db.lock").unlink()
    before = folder(path)
    UnlearningService.open(path).close()
    assert folder(path) != before


@pytest.mark.parametrize("sabotaged", ["encrypted", "secret", "tidy"])
def test_a_reader_that_makes_or_tidies_files_would_be_seen(
    path, sabotaged, monkeypatch
):
    certificate = used(path, record_store="encrypted")
    secrets = path.with_name("model.db.keys")
    if sabotaged == "encrypted":  # a reader that opens the keys of records
        (secrets / "records.db").unlink()
        honest = ServiceState.__init__

        def opens_keys(self, database, terms, pseudonyms, place, source):
            honest(self, database, terms, pseudonyms, place, source)
            EncryptedRecords(place, source)

        monkeypatch.setattr(ServiceState, "__init__", opens_keys)
    else:  # what a writer that was killed has left, a second name of the secret
        name = "unlearning-pseudonyms.key"
        os.link(secrets / name, secrets / f"{name}.1.00000000")
    before = folder(path)
    if sabotaged == "secret":  # the honest one leaves it, and is without the secret
        everything(path, certificate, secret=False)
        assert folder(path) == before
        return
    if sabotaged == "tidy":
        monkeypatch.setattr(Pseudonyms, "peek", Pseudonyms.load)
    with read(path):
        pass
    assert folder(path) != before


def test_writes_are_refused_by_name(path):
    certificate = used(path)
    x, y = record(9)
    with read(path) as service:
        before = folder(path)
        for write in (
            lambda: service.insert(x, y, record_id=9),
            lambda: service.insert_many([x], [y], record_ids=[9]),
            lambda: service.delete(1),
            lambda: service.delete_many([1]),
            lambda: service.delete_subject(1),
            service.flush,
            service.publish,
            service.process_queue,
            service.scrub,
            service.retrain,
            service.renew,
            service.snapshot,
            lambda: service.restore(path),
        ):
            with pytest.raises(LedgerMismatch, match="opened to be read.*was spent"):
                write()
        assert service.certificate(2) == certificate
    assert folder(path) == before


def test_without_the_refusal_the_file_itself_refuses(path, monkeypatch):
    """The sabotaged twin: the connection has no right to write either."""
    used(path)
    monkeypatch.setattr(ServiceState, "require_writable", ServiceState.require_usable)
    with read(path) as service:
        service._requests = None
        before = folder(path)
        with pytest.raises(LedgerRefused, match="privilege is missing"):
            service._state.block("nobody")
    assert folder(path) == before


def test_a_reader_makes_no_service(path):
    with pytest.raises(ServiceMismatch, match="no deletion service.*Nothing was"):
        read(path)
    with pytest.raises(ServiceMismatch):
        read(path, mode="ogd", dimension=DIM, epsilon=1.0, delta=1e-6)
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="machine: no POSIX users")
@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_one_may_not_write_in_a_folder_that_one_may_not_write(path, honest):
    """As on read-only media; for root, who may write anything, as another user.

    The twin has a write-ahead log, as services once had.
    """
    certificate = used(path)
    everything(path, certificate)  # imports all that the other user may not read
    if not honest:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA journal_mode=wal")
        other.close()
    for file in path.parent.iterdir():
        if file.is_file():
            file.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    path.parent.chmod(0o555)
    before = folder(path)
    try:
        ended = as_nobody(path, lambda: everything(path, certificate, secret=False))
    finally:
        after = folder(path)
        path.parent.chmod(0o755)
    if ended == 77:
        pytest.skip("machine: other users cannot reach temporary files")
    assert (ended == 0) == honest and after == before


def as_nobody(path, act):
    """Run `act` in a child without rights; 0, 1 if it failed, 77 if it could not."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                for above in path.parent.parents:
                    if str(above).count("/") > 2:
                        above.chmod(above.stat().st_mode | 0o555)
                os.setgid(65534)
                os.setuid(65534)
            if not os.access(path.parent, os.R_OK | os.X_OK):
                status = 77
                return None
            if os.getuid() == path.stat().st_uid:  # not root: the secret is one's own
                path.with_name("model.db.keys").chmod(0)
            act()
            status = 0
        except DemurError as error:
            print(error, file=sys.stderr)
        finally:
            with suppress(OSError):
                path.with_name("model.db.keys").chmod(0o700)
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.name != "posix", reason="machine: no POSIX users")
def test_a_file_that_one_may_not_read_is_called_that(path):
    """And not a file without a service: nothing is wrong with it."""
    certificate = used(path)
    path.parent.chmod(0o755)

    def refused():
        path.chmod(0) if os.getuid() == path.stat().st_uid else None
        for opening in openings(path, certificate):
            with pytest.raises(LedgerRefused, match="privilege is missing"):
                opening()

    ended = as_nobody(path, refused)
    if ended == 77:
        pytest.skip("machine: other users cannot reach temporary files")
    assert ended == 0


# -- copies ------------------------------------------------------------------------


def rows_in_a_copy(path):
    """What somebody has who copies the one file that they know of."""
    copy = path.parent.parent / "copy.db"
    shutil.copyfile(path, copy)
    try:
        connection = sqlite3.connect(f"file:{copy}?immutable=1", uri=True)
        count = "SELECT count(*) FROM demur_unlearning_journal"
        ((found,),) = connection.execute(count).fetchall()
        connection.close()
        return found
    finally:
        copy.unlink()


@pytest.mark.parametrize("journal", ["persist", "wal"])
def test_a_copy_of_the_file_has_every_acknowledged_insert(path, journal, monkeypatch):
    """The twin's are in its log, and are lost with it."""
    monkeypatch.setattr(sqlite, "JOURNAL", journal)
    with open_service(path, durability="each") as service:
        for number in range(3):
            service.insert(*record(number), record_id=number)
            expected = number + 1 if journal == "persist" else 0
            assert rows_in_a_copy(path) == expected


def test_a_copy_is_read_without_its_keys_and_with_its_ledger(path, tmp_path):
    certificate = used(path)
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    shutil.copyfile(path, copy)
    before = folder(copy)
    with read(copy) as service:  # the one file alone
        verification = service.verify()
        assert verification.ok and "ledgers not given here" in str(verification)
        assert service.status().live == 4
        with pytest.raises(LedgerMissing):
            service.ledger.entries()
    assert not verify_certificate(certificate, copy).ok
    assert folder(copy) == before
    shutil.copyfile(f"{path}.ledger-1", f"{copy}.ledger-1")
    before = folder(copy)
    everything(copy, certificate, secret=False)
    everything(copy, certificate, keys=f"{path}.keys")
    assert folder(copy) == before


def test_a_named_folder_must_have_the_secret(path, tmp_path):
    used(path)
    with pytest.raises(FileNotFoundError):
        read(path, keys=tmp_path / "nothing")
    path.with_name("model.db.keys").chmod(0o755)
    with pytest.raises(KeysExposed):
        read(path, keys=path.with_name("model.db.keys"))
    with read(path) as service:
        assert service.verify().ok
    other = tmp_path / "other.db"
    used(other)
    with pytest.raises(ServiceMismatch, match="belongs to another"):
        read(path, keys=f"{other}.keys")


def test_links_to_one_service_are_one_service(path, tmp_path):
    certificate = used(path)
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    before = folder(path)
    everything(link, certificate)
    assert folder(path) == before and [*link.parent.iterdir()] == [link]


# -- what is no service, or not in one file ----------------------------------------


def other_program(path):
    sql(path, "CREATE TABLE recipes (name TEXT)")


FOREIGN = {
    "an empty file": lambda path: path.touch(),
    "a database without tables": lambda path: sql(path, "PRAGMA user_version=1"),
    "another program's": other_program,
    "a text": lambda path: path.write_text("dear diary\n" * 500),
}


def openings(path, certificate):
    terms = {"mode": "ogd", "dimension": DIM, "epsilon": 1.0, "delta": 1e-6}
    yield lambda: UnlearningService.open(path, **terms)
    yield lambda: read(path)
    yield lambda: verify_certificate(certificate, path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return used(tmp_path_factory.mktemp("any") / "any.db")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_service_is_refused_and_left_as_it_was(path, name, certificate):
    FOREIGN[name](path)
    before = folder(path)
    for opening in openings(path, certificate):
        with pytest.raises((ServiceMismatch, LedgerDamaged), match="Nothing was"):
            opening()
    assert folder(path) == before


def test_without_the_look_an_empty_file_would_become_a_service(path, monkeypatch):
    """The sabotaged twin: an empty file is taken for a free place."""
    path.touch()
    monkeypatch.setattr(FileKind, "is_in", lambda *_: path.stat().st_size > 0)
    before = folder(path)
    with suppress(DemurError):
        open_service(path).close()
    assert folder(path) != before


def test_a_journal_without_its_service_is_a_service_taken_away(path):
    sqlite.journal_of(path).write_bytes(b"x" * 512)
    before = folder(path)
    for opening in openings(path, None):
        with pytest.raises(ServiceMismatch, match=r"'model\.db-journal'.*Nothing was"):
            opening()
    assert folder(path) == before


@pytest.mark.parametrize("honest", [True, False])
def test_a_file_with_a_log_is_not_read_and_gets_no_second_one(
    path, honest, monkeypatch
):
    """Another program's mode. The twin makes two files beside it, to read it."""
    certificate = used(path)
    other = sqlite3.connect(path, isolation_level=None)
    assert other.execute("PRAGMA journal_mode=wal").fetchone() == ("wal",)
    other.close()
    before = folder(path)
    if not honest:
        monkeypatch.setattr(sqlite, "_refuse_log", lambda _: None)
        with read(path) as service:
            assert service.status().live == 4
        assert folder(path) != before
        return
    for opening in (lambda: read(path), lambda: verify_certificate(certificate, path)):
        with pytest.raises(LedgerRefused, match="write-ahead mode.*Nothing was"):
            opening()
    assert folder(path) == before
    UnlearningService.open(path).close()  # once for writing
    everything(path, certificate)


def interrupted(path, statement):
    """A copy of file and journal, taken in the middle of a write."""
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size=1")
    writer.execute("PRAGMA cache_spill=1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute(statement)
    writer.execute("CREATE TABLE spilled AS SELECT zeroblob(1000000)")
    kept = {p: p.read_bytes() for p in (path, sqlite.journal_of(path))}
    writer.execute("ROLLBACK")
    writer.close()
    for place, content in kept.items():
        place.write_bytes(content)


def test_a_journal_that_passes_is_waited_for(path):
    """As where a running writer removes it between two looks of SQLite's."""
    used(path)
    interrupted(path, "UPDATE demur_unlearning SET used = used + 1")
    writer = threading.Timer(0.2, lambda: UnlearningService.open(path).close())
    writer.start()
    try:
        read(path)
    finally:
        writer.join()


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_an_interrupted_write_is_not_read_as_if_it_had_been_made(path, honest):
    """It is rolled back by whoever may write. The twin is without its journal."""
    certificate = used(path)
    interrupted(path, "UPDATE demur_unlearning SET used = used + 1")
    if not honest:
        sqlite.journal_of(path).unlink()
        try:
            ok = verify_certificate(certificate, path).ok
        except LedgerDamaged:  # SQLite itself may find pages that do not fit
            ok = False
        assert not ok
        return
    before = folder(path)
    for opening in (lambda: read(path), lambda: verify_certificate(certificate, path)):
        with pytest.raises(LedgerUnreachable, match="interrupted.*once for writing"):
            opening()
    assert folder(path) == before
    UnlearningService.open(path).close()
    everything(path, certificate)


TORN = {
    "the end of the journal": "DELETE FROM demur_unlearning_journal WHERE sequence > 6",
    "the state": "UPDATE demur_unlearning_state SET sequence = sequence - 1",
}


@pytest.mark.parametrize("tear", TORN)
@pytest.mark.parametrize("honest", [True, False])
def test_a_copy_taken_in_the_middle_of_a_write_is_not_served(
    path, tear, honest, monkeypatch
):
    certificate = used(path)
    sql(path, TORN[tear])
    before = folder(path)
    if honest:
        with pytest.raises(ServiceDamaged):
            read(path)
        assert verify_certificate(certificate, path).ok == ("state" in tear)
    else:
        monkeypatch.setattr(ServiceState, "_check", lambda *_: None)
        with read(path) as service:
            service.predict(record(0)[0])
    assert folder(path) == before


# -- beside a running service ------------------------------------------------------


@pytest.mark.parametrize("honest", [True, False])
def test_a_reader_follows_a_running_service(path, honest, monkeypatch):
    """The twin goes on serving the record that was deleted."""
    if not honest:
        monkeypatch.setattr(ServiceState, "_follow", lambda _: None)
    with open_service(path, scope="joint", capacity=5) as service:
        fill(service, range(5))
        with read(path) as reader:
            assert reader.status().live == 5
            service.delete(2)
            fill(service, [7])
            same = reader.published().tolist() == service.published().tolist()
            assert same == honest
            if not honest:
                return
            assert reader.status() == service.status()
            assert reader.certificate(2) == service.certificate(2)
            assert reader.ledger.id == service.ledger.id and reader.verify().ok
            service.retrain([(n, *record(n)) for n in (0, 1, 7)])
            assert reader.status() == service.status()
            assert reader.ledger.id == service.ledger.id and reader.verify().ok


def test_a_reader_sees_one_moment_of_a_service_that_is_being_written(path):
    """A write that is not committed yet is not seen; afterwards it would be."""
    certificate = used(path)
    with UnlearningService.open(path) as service:
        with service._state.database.write() as connection:
            connection.execute(tables.service.update().values(used=99))
            before = folder(path)
            everything(path, certificate)
            assert folder(path) == before
        with read(path) as reader:
            assert not reader.verify().ok


def test_readers_beside_a_writer_in_another_process(path):
    """Each reading is of one moment, and neither stops the other for good."""
    used(path)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with UnlearningService.open(path, durability="each") as service:
                for number in range(10, 40):
                    service.insert(*record(number), record_id=number)
                    if number % 5 == 0:
                        service.delete(number - 1 if number > 10 else 0)
            status = 0
        finally:
            os._exit(status)
    readings, ended = [], (0, 0)
    with read(path) as reader:
        while ended[0] == 0:
            verification = reader.verify()
            assert verification.ok, verification
            readings.append(reader.status().tick)
            ended = os.waitpid(child, os.WNOHANG)
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert reader.status().tick == 35
    assert readings == sorted(readings) and len(set(readings)) > 2


def test_a_file_that_is_replaced_under_a_reader_is_refused(path):
    used(path)
    with read(path) as service:
        shutil.copyfile(path, path.with_name("older.db"))
        path.with_name("older.db").replace(path)
        with pytest.raises(LedgerDamaged, match="deletion service.*replaced"):
            service.status()


def test_without_the_look_a_reader_would_go_on_with_the_old_file(path, monkeypatch):
    """The sabotaged twin."""
    used(path)
    monkeypatch.setattr(Store, "_check_file", lambda _: None)
    with read(path) as service:
        path.unlink()
        assert service.status().live == 4
