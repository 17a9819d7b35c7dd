"""Files that appear whole: written aside, then under a name that was free.

A rename replaces whatever has the name. A hard link does not: of two files that want
one name the first gets it, and the other one finds out. Names are given one process at
a time in each folder: files that belong together are never of two owners.
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def aside_of(path: Path) -> Path:
    """A hidden name beside `path` that nobody else has."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")


def written_aside(path: Path, line: str) -> Path:
    """A line of text, durable, aside of where it is to be."""
    aside = aside_of(path)
    try:
        with aside.open("x") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def name_all(files: Sequence[tuple[Path, Path]], *, replace: bool = False) -> None:
    """Give what lies aside its names, in turn, all of them in one folder.

    Nothing that has a name is replaced, unless `replace` asks for it. Then the names
    that come later are free before the first is given: never new beside old.
    """
    with _alone_in(files[0][1].parent):
        if replace:
            for _, place in files[1:]:
                place.unlink(missing_ok=True)
            for aside, place in files:
                os.replace(aside, place)
            return
        taken: list[Path] = []
        try:
            for aside, place in files:
                if _took_name(aside, place):
                    taken.append(place)
                elif not _same(aside, place):
                    found = "another file is there"
                    raise FileExistsError(errno.EEXIST, found, str(place))
        except BaseException:
            for place in taken:
                place.unlink(missing_ok=True)
            raise


def took_name(aside: Path, place: Path) -> bool:
    """Whether the name was free, and is now that of the file aside."""
    with _alone_in(place.parent):
        return _took_name(aside, place)


def _took_name(aside: Path, place: Path) -> bool:
    try:
        os.link(aside, place)
    except FileExistsError:
        return False
    except OSError:
        # A file system without links. Between the look and the move the file of another
        # program may come and be lost: it has no way to do both at once.
        if os.path.lexists(place):
            return False
        os.replace(aside, place)
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Of those who name files in a folder only one at a time.

    Without it one who takes back a first name, as the second was taken, could take it
    from another who found the first to be the same as its own.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks on folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _same(aside: Path, place: Path) -> bool:
    try:
        return filecmp.cmp(aside, place, shallow=False)
    except OSError:  # a link to nowhere, or nothing that can be read
        return False


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
