"""Backups of a ledger in a file: made whole or not at all, and checked.

SQLite copies the database under its own lock, so that a backup is the ledger as it was
at one moment, whoever writes meanwhile. A backup is for the day when the ledger itself
is lost. Whoever goes on with one that lacks rows spends the budget of those rows twice:
`check_backup` says how many it lacks.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from demur.core.errors import LedgerDamaged
from demur.durable import atomic_files, sqlite
from demur.durable.chain import Tip
from demur.ledger.ledger import Ledger
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore
from demur.ledger.verification import Verification


@dataclass(frozen=True)
class BackupCheck:
    """The result of checking a backup: its own verification, and where it ends.

    - `behind_tip`: rows up to the exported tip that it lacks; negative, if it goes on
      after that tip. None without a tip.
    - `behind_ledger`: rows of the live ledger that it lacks. None without one, or if
      the backup is no beginning of that ledger, which is then among the problems.
    """

    verification: Verification
    behind_tip: int | None
    behind_ledger: int | None
    problems: tuple[str, ...]

    @property
    def tip(self) -> Tip:
        """The last row of the backup."""
        return self.verification.tip

    @property
    def ok(self) -> bool:
        """No problem was found: it may lack rows, but has none that are wrong."""
        return not self.problems


def backup_ledger(ledger: Ledger, path: str | os.PathLike[str]) -> Tip:
    """Copy a ledger in a file to a new file, and return the tip of the copy.

    The new file has its name when it is whole and durable, and not before; a file that
    is there already is never replaced. Noise keys are not part of a backup.
    """
    source, place = ledger._store.path, Path(path).expanduser()
    if source is None:
        where = (
            "on a server: back it up with pg_dump" if ledger.durable else "in memory"
        )
        raise ValueError(
            f"only a ledger in a file can be backed up like this; this one is {where}."
            " Nothing was written."
        )
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent}. Nothing was written.")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(place))
    if os.path.lexists(place):
        raise _taken(place)
    aside = atomic_files.temporary_name(place)
    try:
        sqlite.copy_database(source, aside)
        tip = _tip_of(aside)
        if not atomic_files.link_if_free(aside, place):
            raise _taken(place)
        atomic_files.sync_folder(place.parent)
    finally:
        for left in (aside, sqlite.journal_of(aside)):
            left.unlink(missing_ok=True)
    return tip


def check_backup(
    path: str | os.PathLike[str],
    *,
    tip: Tip | str | None = None,
    ledger: Ledger | None = None,
    signer: str | None = None,
    full: bool = False,
) -> BackupCheck:
    """Verify a backup, and compare its end with an exported tip and a live ledger.

    The file is opened to be read and stays as it is, byte for byte. `signer` and `full`
    are those of `Ledger.verify`.
    """
    wanted = Tip.parse(tip) if isinstance(tip, str) else tip
    with Ledger.open(os.fspath(path), read_only=True) as backup:
        end = backup.tip()
        behind_tip = None if wanted is None else wanted.sequence - end.sequence
        # A tip that it does not reach cannot be in it; that is no damage.
        reached = behind_tip is not None and behind_tip <= 0
        verification = backup.verify(
            wanted if reached else None, signer=signer, full=full
        )
    problems = list(verification.problems)
    behind_ledger = None
    if ledger is not None:
        problem = _not_a_beginning(end, ledger)
        if problem is None:
            behind_ledger = ledger.tip().sequence - end.sequence
        else:
            problems.append(problem)
    return BackupCheck(verification, behind_tip, behind_ledger, tuple(problems))


def _tip_of(path: Path) -> Tip:
    """The tip of a copy, which must begin and end as a ledger does."""
    store = LedgerStore(str(path), read_only=True)
    try:
        with store.read() as connection:
            header = Header.read(connection)
            whole = header.begins(connection) and header.ends(connection)
    finally:
        store.close()
    if not whole:
        raise LedgerDamaged(
            "this ledger does not begin or end with the rows it names, and neither"
            " would its backup. Verify it. Nothing was written."
        )
    return Tip(header.state.sequence, header.state.hash)


def _not_a_beginning(end: Tip, ledger: Ledger) -> str | None:
    """Why a chain with this end is no beginning of the ledger's; None if it is."""
    last = ledger.tip().sequence
    if end.sequence > last:
        return (
            f"the backup goes {end.sequence - last} rows beyond the ledger: the ledger"
            " was cut off or restored from an older copy, or is another one"
        )
    try:
        ledger._contains(end)
    except LedgerDamaged:
        return (
            f"row {end.sequence} of the backup is not in the ledger: it is a backup of"
            " another ledger, or one of the two was rewritten"
        )
    return None


def _taken(place: Path) -> FileExistsError:
    message = "a file is there already, and a backup never replaces one"
    return FileExistsError(errno.EEXIST, message, str(place))
