"""Reading needs no right to write and changes nothing; a missing right is named."""

import os
import shutil
import stat

import pytest

from demur import Ledger
from demur.core.accounting.events import GaussianEvent
from demur.errors import LedgerMismatch, LedgerRefused
from demur.ledger import export_ledger
from tests.ledger.kit import BUDGET, UNIT, edit, says

TERMS = {"dataset": "people", "budgets": {UNIT: BUDGET}}
NOISY = says(GaussianEvent(20.0))


@pytest.fixture
def used(ledger_url):
    """The address of a ledger with two entries, one of them not committed."""
    with Ledger.open(ledger_url, **TERMS) as ledger:
        entry = ledger.charge(NOISY, label="one", digest="d", idempotency_key="k")
        ledger._commit(entry, None)
        ledger.charge(NOISY, label="two", digest="d", idempotency_key="l")
    return ledger_url


def everything(url, **how):
    with Ledger.open(url, read_only=True, **how) as ledger:
        assert ledger.verify(ledger.tip()).ok
        assert ledger.find("k").label == "one"
        return export_ledger(ledger), ledger.epsilon(), ledger.declined()


def test_a_reader_reads_everything_and_writes_nothing(used):
    with Ledger.open(used) as ledger:
        as_writer = export_ledger(ledger), ledger.epsilon(), ledger.declined()
    assert everything(used) == as_writer
    with Ledger.open(used, read_only=True) as ledger:
        for write in (
            lambda: ledger.charge(NOISY, label="three"),
            lambda: ledger.reserve(NOISY, count=2, label="three"),
            lambda: ledger._commit(ledger.entries()[1], None),
            lambda: ledger.annotate(ledger.entries()[0], "audit", {"a": 1}),
        ):
            with pytest.raises(LedgerMismatch, match="opened to be read"):
                write()
    assert everything(used) == as_writer


def test_a_reader_makes_no_ledger(ledger_url, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LedgerMismatch, match="Nothing was created"):
        Ledger.open(ledger_url, read_only=True, **TERMS)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="machine: no POSIX users")
def test_a_file_that_one_may_not_write_in_a_folder_that_one_may_not_write(tmp_path):
    """As on read-only media; for root, who may write anything, as another user."""
    folder = tmp_path / "archive"
    folder.mkdir()
    with Ledger.open(folder / "ledger.db", **TERMS) as ledger:
        ledger.charge(NOISY, label="one", idempotency_key="k")
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    everything(folder / "ledger.db")  # imports all that the other user may not read
    for file in folder.iterdir():
        file.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    folder.chmod(0o555)
    try:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.getuid() == 0:
                    for above in (folder, *folder.parents):
                        if str(above).count("/") > 2:
                            above.chmod(above.stat().st_mode | 0o555)
                    os.setgid(65534)
                    os.setuid(65534)
                if not os.access(folder, os.R_OK | os.X_OK):
                    status = 77
                    return
                everything(folder / "ledger.db")
                try:
                    Ledger.open(folder / "ledger.db").charge(NOISY, label="two")
                except LedgerRefused as error:
                    status = 0 if "privilege is missing" in str(error) else 2
            finally:
                os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended == 77:
            pytest.skip("machine: other users cannot reach temporary files")
        assert ended == 0
    finally:
        folder.chmod(0o755)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_copy_is_read_beside_its_original(tmp_path):
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with Ledger.open(path, **TERMS) as ledger:
        ledger.charge(NOISY, label="one", idempotency_key="k")
        shutil.copyfile(path, copy)
        content = copy.read_bytes()
        assert everything(copy) == everything(path)
    assert copy.read_bytes() == content
    assert {p.name for p in tmp_path.iterdir()} <= {
        "ledger.db",
        "ledger.db-journal",
        "copy.db",
    }


@pytest.mark.slow
@pytest.mark.postgres
def test_what_a_role_may_not_do_is_called_that(postgres_url):
    with Ledger.open(postgres_url, **TERMS):
        pass
    edit(postgres_url, "CREATE ROLE nobody_much LOGIN")
    try:
        stranger = postgres_url.replace("demur@", "nobody_much@")
        with pytest.raises(LedgerRefused, match="privilege is missing"):
            Ledger.open(stranger)
    finally:
        edit(postgres_url, "DROP OWNED BY nobody_much", "DROP ROLE nobody_much")
