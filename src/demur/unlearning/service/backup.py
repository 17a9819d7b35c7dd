"""Backups and evidence of a service in a file, made while it runs.

A backup is a folder with the database, the service's own ledgers and, if asked for, the
keys that opening takes, all of one moment. A service that is opened from it compares
journal, ledger and seal as always: parts of two moments would be refused.

*One moment.* A ledger is charged, and a seal's key changed, between an intent and its
outcome alone (`intents`). So if no intent is open when the copying begins, and no new
one is in the journal when it ends, no charge and no change of keys came in between, and
what was copied belongs together, whichever inserts went on meanwhile. Otherwise it is
copied again.

Keys of encrypted records are never copied: erasing a key is what deletes its record.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from demur.durable import atomic_files, private_files, sqlite
from demur.ledger import Ledger, Tip, backup_ledger
from demur.unlearning.errors import ServiceBusy, ServiceMismatch
from demur.unlearning.records import evidence, journal, tables
from demur.unlearning.records.pseudonyms import opening_keys
from demur.unlearning.service.charges import ledgers_beside

_TRIES, _WAIT = 100, 0.05  # seconds between them


def backup_service(
    database: tables.ServiceStore,
    place: str | os.PathLike[str],
    *,
    keys: Path | None = None,
) -> Tip:
    """Copy a service into a new folder, whole or not at all; the tip of the copy.

    With `keys`, its folder of secrets, the backup can be opened by itself.
    """
    path, folder = database.path, Path(place).expanduser()
    if path is None:
        raise ValueError(
            "only a service in a file can be backed up like this; this one is on a"
            " server: back it up with pg_dump, and its folder of keys beside it."
            " Nothing was written."
        )
    places = [each for each in (keys, database.keys_folder) if each is not None]
    if any(folder.resolve().is_relative_to(each.resolve()) for each in places):
        raise ValueError(
            "a backup does not belong in the folder of the service's keys: name one"
            " elsewhere. Nothing was written."
        )
    if keys is not None and folder.resolve().is_relative_to(path.parent.resolve()):
        raise ValueError(
            f"a backup with keys does not belong in the folder of the service"
            f" ({path.parent}): keys that a deletion erases would stay there. Name one"
            " elsewhere. Nothing was written."
        )
    if not folder.parent.is_dir():
        raise ValueError(f"there is no folder {folder.parent}. Nothing was written.")
    if os.path.lexists(folder):
        message = "something is there already, and a backup never replaces it"
        raise FileExistsError(errno.EEXIST, message, str(folder))
    aside = atomic_files.temporary_name(folder)
    with _written_whole(folder):
        return _copy_at_one_moment(database, folder, aside, keys)


def _copy_at_one_moment(
    database: tables.ServiceStore, folder: Path, aside: Path, keys: Path | None
) -> Tip:
    """Copy until nothing was charged meanwhile; then the copy is put in its place."""
    path = database.path
    assert path is not None

    def copied(before: int) -> Tip | None:
        tip = _copy_all(path, aside, keys)
        if tip is not None and _last_intent(database) == before:
            return tip
        shutil.rmtree(aside, ignore_errors=True)
        return None

    try:
        tip = _between_operations(database, copied, "backup")
        for left in (*aside.iterdir(), aside):
            if left.is_dir():
                atomic_files.sync_folder(left)
        os.rename(aside, folder)
        atomic_files.sync_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return tip


def _between_operations(
    database: tables.ServiceStore, attempt: Callable[[int], Tip | None], call: str
) -> Tip:
    """Try while no operation is under way; None says that one began meanwhile.

    `attempt` is given the number of the last intent's row.
    """
    for _ in range(_TRIES):
        before = _last_intent(database)
        tip = None if before is None else attempt(before)
        if tip is not None:
            return tip
        time.sleep(_WAIT)
    raise ServiceBusy(
        "deletions followed each other so closely that no moment between two could be"
        f" copied: call {call}() in the process that writes, or try again later."
        " Nothing was written."
    )


@contextmanager
def _written_whole(place: Path) -> Iterator[None]:
    """A disk that cannot be written is said to be one."""
    try:
        yield
    except (sqlite3.OperationalError, sa.exc.OperationalError) as error:
        message = "it cannot be written: the disk is full, or refuses. Nothing is there"
        raise OSError(errno.EIO, message, str(place)) from error


def _last_intent(database: tables.ServiceStore) -> int | None:
    """The number of the last intent's row (0: none yet); None while one is open."""
    with database.read() as connection:
        if journal.open_intent(connection) is not None:
            return None
        last = journal.last_of(connection, ("intent",))
    return 0 if last is None else last[0].sequence


def _copy_all(path: Path, aside: Path, keys: Path | None) -> Tip | None:
    """Everything, copied now; the tip, or None if a key was just replaced."""
    aside.mkdir(0o700)
    copy = aside / path.name
    copy.touch(0o600)
    sqlite.copy_database(path, copy)
    for ledger in ledgers_beside(path):
        with Ledger.open(ledger, read_only=True) as opened:
            backup_ledger(opened, aside / ledger.name)
    store = tables.ServiceStore(str(copy), read_only=True)
    try:
        with store.read() as connection:
            at = connection.execute(sa.select(tables.state.c.sequence)).scalar_one()
            row = journal.row_at(connection, int(at))[1] if at else {"seal": 1}
            tip = journal.tip(connection)
    finally:
        store.close()
    if keys is None:
        return tip
    try:
        for name in opening_keys(keys, int(row["seal"])):
            content = private_files.read_file(keys / name)
            private_files.write_new(aside / f"{path.name}.keys" / name, content)
    except FileNotFoundError as error:
        if not keys.is_dir():
            raise ServiceMismatch(
                f"there is no folder of keys {keys}: name it (keys=). Nothing was"
                " written."
            ) from error
        return None
    return tip


class _WentOn(Exception):
    """An operation began while evidence was being written."""


def write_evidence(database: tables.ServiceStore, place: str | os.PathLike[str]) -> Tip:
    """Write an evidence file of a service; the tip of its journal.

    It has copies of the service's own ledgers, of the same moment as the journal: a
    ledger with more than its journal would look like a journal that was cut off.
    """

    def written(before: int) -> Tip | None:
        def copies() -> dict[str, bytes]:
            made = _ledger_copies(database.path)
            if _last_intent(database) != before:
                raise _WentOn
            return made

        with suppress(_WentOn), _written_whole(Path(place)):
            return evidence.write(database, copies, place)
        return None

    return _between_operations(database, written, "evidence")


def _ledger_copies(path: Path | None) -> dict[str, bytes]:
    copies: dict[str, bytes] = {}
    for ledger in [] if path is None else ledgers_beside(path):
        with (
            TemporaryDirectory() as folder,
            Ledger.open(ledger, read_only=True) as opened,
        ):
            copy = Path(folder) / "ledger.db"
            backup_ledger(opened, copy)
            copies[ledger.name.rpartition(".")[2]] = copy.read_bytes()
    return copies
