"""Private files: secrets in folders that their owner alone can read or change.

A secret that somebody else could have read is known to them, and one that somebody else
could have written is theirs. So owner, mode and links are checked before a byte is
believed: the folder and the file belong to the user of this process and to nobody else
(no bit for group or others), the file is a plain one, and has no second name. What is
checked is the open file itself, so that nothing can be put in its place in between.

Not checked: folders above, whose writers can take a folder away, and put one of their
own in its place, which is refused as it is not this user's; access control lists; and
the administrator of the machine. Systems without users (Windows) check nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from demur.core.errors import KeysExposed
from demur.durable.atomic_files import sync_folder

_ASIDE = re.compile(r"\.[0-9]+\.[0-9a-f]{8}")  # process and a random number
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(folder: Path) -> None:
    """Make a private folder, durably, or check the one that is there."""
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in new:  # or a crash could lose a folder with what is in it
        sync_folder(made.parent)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Refuse a folder that others can read or change; one that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        _check(folder.lstat(), folder, is_folder=True)


def check_file(path: Path) -> None:
    """Refuse a file that others can read or change, or that has a second name."""
    _check(path.lstat(), path)


def read(path: Path, *, most: int | None = None) -> bytes:
    """The content of a private file in a private folder, or `most` bytes of its end."""
    check_folder(path.parent)
    drop_second_name(path)
    return read_file(path, most=most)


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """The content of a private file, wherever it lies, or `most` bytes of its end."""
    if path.is_symlink():
        raise KeysExposed(
            f"{path} is a symbolic link, and another file may be at its end tomorrow:"
            " name the file itself. Nothing was spent."
        )
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        _check(os.fstat(descriptor), path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            if most is not None:
                file.seek(max(0, os.fstat(descriptor).st_size - most))
            return file.read()
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes) -> None:
    """Write a private file, unless its name is taken: the first writer wins.

    It is written aside and linked, so that a reader sees the whole content or none.
    """
    make_folder(path.parent)
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)  # The name is durable too, not the content alone.


def open_to_append(path: Path) -> int:
    """A descriptor that adds to a private file, which is made if it is not there."""
    make_folder(path.parent)
    how = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, how, 0o600)
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def overwrite(path: Path, content: bytes) -> None:
    """Replace the first bytes of a file where they lie, durably; follows no link."""
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "wb", closefd=True) as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def drop_second_name(path: Path) -> None:
    """Remove the name aside of a writer that was killed, or is about to remove it.

    Only a name that `write_new` gives: any other is somebody's copy, and stays. For
    files that `write_new` made; a file of the user's own keeps all of its names.
    """
    found = path.lstat()
    if found.st_nlink == 1:
        return
    for aside in path.parent.iterdir():
        ending = aside.name.removeprefix(path.name)
        if _ASIDE.fullmatch(ending):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(aside.lstat(), found):
                    aside.unlink()


def _check(found: os.stat_result, path: Path, *, is_folder: bool = False) -> None:
    if not hasattr(os, "geteuid"):
        return
    is_plain = stat.S_ISDIR if is_folder else stat.S_ISREG
    kind, mode = ("folder", "700") if is_folder else ("file", "600")
    if not is_plain(found.st_mode):
        raise KeysExposed(
            f"{path} is a link or something else, where a plain {kind} is needed for"
            " secrets. Nothing was spent."
        )
    if found.st_uid != os.geteuid():
        raise KeysExposed(
            f"{path} belongs to another user (uid {found.st_uid}), who may have read it"
            " or put it there. Use a folder of your own. Nothing was spent."
        )
    if found.st_mode & _OTHERS:
        raise KeysExposed(
            f"the {kind} {path} has mode {stat.S_IMODE(found.st_mode):03o}: others may"
            " have read or changed the secrets in it. If you know that nobody has, type"
            f" chmod {mode} '{path}'; if not, use a new one. Nothing was spent."
        )
    if not is_folder and found.st_nlink != 1:
        raise KeysExposed(
            f"{path} has {found.st_nlink} names (hard links), so that wiping or"
            " replacing it leaves a copy. Remove the others. Nothing was spent."
        )
