"""Seals: keyed digests of a service's states, under keys that die with the states.

Whoever knows all records but one can compute every state that the model had, with each
candidate in turn. A digest of a state from before a deletion, under a key that is still
there, would tell them which candidate it was. So each seal key is destroyed at the next
deletion, with the last state that it sealed: seals that are left in the journal say
nothing any more, and only the present state can be compared with its row.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from demur.core.entropy import Source
from demur.core.errors import KeysExposed
from demur.durable import private_files
from demur.durable.keys import KeyStore

_FILE = re.compile(r"seal-([0-9]+)\.key")


class Seals:
    """The seal keys of one service, in its folder of secrets."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self.number = folder, number
        self._store = KeyStore(folder)
        self._keys: dict[int, bytes] = {}

    @classmethod
    def create(cls, folder: Path, source: Source) -> Seals:
        """The first seal key of a new service, on disk before this returns."""
        seals = cls(folder, 0)
        seals.number = seals.make(source)
        return seals

    def make(self, source: Source) -> int:
        """Make the key for the state after a deletion, durably; its number."""
        number = self.number + 1
        self._store.wipe(_name(number))  # left by a process that was killed
        key = source.new_key()
        self._store.put(_name(number), key, keep=True)
        self._keys[number] = key
        return number

    def seal(self, digest: str, number: int | None = None) -> str | None:
        """The seal of a state; None where its key cannot be read."""
        number = self.number if number is None else number
        key = self._key(number)
        if key is None:
            return None
        return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()

    def _key(self, number: int) -> bytes | None:
        if number not in self._keys:
            path = self._folder / f"{_name(number)}.key"
            try:
                key = private_files.read_file(path)
            except (OSError, KeysExposed):  # not there, or for its owner alone
                return None
            self._keys[number] = key
        return self._keys[number]

    def destroy_others(self) -> None:
        """Destroy every key but the present one."""
        self._keys = {n: k for n, k in self._keys.items() if n == self.number}
        for path in self._folder.glob("seal-*.key"):
            found = _FILE.fullmatch(path.name)
            if found and int(found[1]) != self.number:
                self._store.wipe(path.stem)


def _name(number: int) -> str:
    return f"seal-{number}"
