"""Atomic files: written under a temporary name, then linked to a name that is free.

A rename replaces whatever has the name. A hard link does not: of two writers of one
name the first gets it, and the other gets an error. Names are given by one process at a
time in each folder, so that files that belong together come from one writer.
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


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that nobody else has."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")


def written_aside(path: Path, line: str) -> Path:
    """The path of a durable file with one line of text, beside its final place."""
    aside = temporary_name(path)
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
    """Give files written aside their names, in order, all of them in one folder.

    No file is replaced, unless with `replace`. Then the later names are removed before
    the first is given, so that a new file never stands beside an old one.
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
                if _link_if_free(aside, place):
                    taken.append(place)
                elif not _same(aside, place):
                    message = "another file is there"
                    raise FileExistsError(errno.EEXIST, message, str(place))
        except BaseException:
            for place in taken:
                place.unlink(missing_ok=True)
            raise


def link_if_free(aside: Path, place: Path) -> bool:
    """Link the file to the name `place`, if that is free; whether it was."""
    with _alone_in(place.parent):
        return _link_if_free(aside, place)


def _link_if_free(aside: Path, place: Path) -> bool:
    try:
        os.link(aside, place)
    except FileExistsError:
        return False
    except OSError:
        # A file system without links. A file that another program writes between the
        # look and the move is lost: there is no way to do both at once.
        if os.path.lexists(place):
            return False
        os.replace(aside, place)
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A lock on a folder: one process at a time names files in it.

    Without it, a writer that takes back its first name because the second was taken
    could take it from another writer, whose first file is the same.
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
