"""Database files: made whole under another name, and never begun in another's place.

A database in a file is made under another name and then linked to its own: there is no
moment at which a file is there without what belongs into it. So a file without that is
never filled: it may be what is left of one. Nothing is begun either where a journal or
a folder of keys says that there was one, which may only have been moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import Connection

from demur.core.errors import DemurError
from demur.durable import atomic_files, sqlite
from demur.durable.store import Store


@dataclass(frozen=True)
class FileKind:
    """What a file is asked to hold, and the error that refuses another."""

    noun: str
    table: str  # which every file of this kind has
    refusal: type[DemurError]
    earlier: str | None = None  # the table of a version that is not read any more

    def is_in(self, path: Path, *beside: Path | None) -> bool:
        """Whether a file of this kind is there, or the refusal; changes nothing.

        `beside` are folders that one of this kind has, and leaves when it is moved.
        """
        if not path.exists():
            self._refuse_remains(path, *beside)
            return False
        names = sqlite.tables_in(path, self.noun)
        if self.table in names:
            return True
        if not names:
            raise self.refusal(
                f"{path.name!r} is a file without a {self.noun}: empty, or the rest of"
                f" a copy that failed. A new {self.noun} would be a second budget."
                f" Restore the {self.noun} from its backup, or give the new one an"
                " address of its own. Nothing was changed."
            )
        what = "an earlier demur" if self.earlier in names else f"no {self.noun}"
        raise self.refusal(
            f"there are tables of {what} at this address:"
            f" {', '.join(sorted(names))[:200]}. Give the {self.noun} an address of"
            " its own. Nothing was changed."
        )

    def _refuse_remains(self, path: Path, *beside: Path | None) -> None:
        """No new one beside what another has left: it may only have been moved."""
        remains = [*sqlite.remains_of(path)]
        remains += [folder for folder in beside if folder and folder.is_dir()]
        if remains and not path.exists():  # Another process may just have made it.
            raise self.refusal(
                f"there is no {self.noun} at {path.name!r}, but something of one:"
                f" {', '.join(repr(p.name) for p in remains)}. It was moved or removed,"
                " and a new one would be a second budget. Bring it back, or remove"
                " these as well. Nothing was created."
            )


def make_whole(
    path: Path,
    store: Callable[[str], Store],
    fill: Callable[[Connection], None],
    *,
    mode: int = 0o644,
) -> None:
    """Make a database file that `fill` has filled, unless its name is taken."""
    aside = atomic_files.temporary_name(path)
    place = store(str(aside))
    try:
        aside.touch(mode, exist_ok=False)
        with place.write() as connection:
            fill(connection)
        place.close()
        atomic_files.link_if_free(aside, path)
        atomic_files.sync_folder(path.parent)
    finally:
        place.close()
        for left in (aside, sqlite.journal_of(aside)):
            left.unlink(missing_ok=True)
