"""Files that appear whole: written aside, then under a name that was free.

A rename replaces whatever has the name. A hard link does not: of two files that want
one name the first gets it, and the other one finds out.
"""

from __future__ import annotations

import errno
import filecmp
import os
import secrets
from collections.abc import Sequence
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


def name_all(files: Sequence[tuple[Path, Path]]) -> None:
    """Give what lies aside its names, in turn; nothing that has one is replaced."""
    taken: list[Path] = []
    try:
        for aside, place in files:
            if took_name(aside, place):
                taken.append(place)
            elif not _same(aside, place):
                raise FileExistsError(errno.EEXIST, "another file is there", str(place))
    except BaseException:
        for place in taken:
            place.unlink(missing_ok=True)
        raise


def took_name(aside: Path, place: Path) -> bool:
    """Whether the name was free, and is now that of the file aside."""
    try:
        os.link(aside, place)
    except FileExistsError:
        return False
    except OSError:
        # A file system without links. Between the look and the move another file may
        # come and be lost: it has no way to do both at once.
        if os.path.lexists(place):
            return False
        os.replace(aside, place)
    return True


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
