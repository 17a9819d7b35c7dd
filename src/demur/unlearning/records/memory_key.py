"""The key under which a service remembers ids that were deleted.

To refuse a second deletion, to count a person's requests after their records are gone,
or to tell a returning record from a new one, a service has to remember ids. Whoever
holds its folder and the key of that memory could try every id there is. So the key is
kept outside of the folder, by whoever owns the service: in a file elsewhere, as a
passphrase, or in a keyring or a key service that a function asks. Without one, the
service forgets an id together with its record.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from demur.core.entropy import KEY_BYTES, OsEntropy
from demur.durable import private_files
from demur.unlearning.errors import ServiceMismatch

SALT_BYTES = 16
_LEAST = 16  # bytes of a key
_WORDS = 8  # letters of a passphrase
# Guessing a passphrase takes 32 MB and a tenth of a second each.
_SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": KEY_BYTES}


@dataclass(frozen=True)
class Passphrase:
    """A passphrase, in place of a key file."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) < _WORDS:
            raise ValueError(f"a passphrase has at least {_WORDS} letters")
        try:
            self.text.encode()
        except UnicodeEncodeError:  # whose text would quote it
            raise ValueError(
                "a passphrase must be text in Unicode, without halves of characters"
            ) from None


MemoryKey: TypeAlias = str | os.PathLike[str] | Passphrase | Callable[[], bytes]


def check_place(given: MemoryKey, folders: list[Path]) -> None:
    """Refuse a key file in a folder of the service, or where others could read it."""
    if isinstance(given, Passphrase) or callable(given):
        return
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            "memory_key must be a key file, a Passphrase, or a function that gives the"
            f" key; got {type(given).__name__}. Nothing was changed."
        )
    path = Path(given).expanduser().absolute()
    inside = [f for f in folders if path.resolve().is_relative_to(f.resolve())]
    if inside:
        raise ServiceMismatch(
            f"the key file {path.name!r} lies in the folder of the service"
            f" ({inside[0]}): whoever holds the folder would hold the key. Name a file"
            " elsewhere. Nothing was changed."
        )
    if path.exists():
        private_files.drop_second_name(path)
        private_files.check_file(path)
    else:
        private_files.check_folder(path.parent)


def memory_secret(
    given: MemoryKey, salt: bytes, *, folders: list[Path], create: bool
) -> bytes:
    """The secret of a service's memory, from what its owner gives.

    A key file must lie outside of the service's own `folders`; with `create` it is made
    if it is not there. The salt gives each service a secret of its own.
    """
    if isinstance(given, Passphrase):
        return hashlib.scrypt(given.text.encode(), salt=salt, **_SCRYPT)
    if callable(given):
        key = given()
    else:
        check_place(given, folders)
        path = Path(given).expanduser().absolute()
        if create and not path.exists():
            private_files.write_new(path, OsEntropy().new_key())
        try:
            key = private_files.read_file(path)
        except FileNotFoundError as error:
            raise ServiceMismatch(
                f"there is no key file {path}: the service remembers ids under it, and"
                " it is never made anew. Put it back. Nothing was changed."
            ) from error
    if not isinstance(key, bytes) or len(key) < _LEAST:
        raise ValueError(f"memory_key must be at least {_LEAST} bytes of key")
    return hmac.new(key, b"demur unlearning memory" + salt, hashlib.sha256).digest()
