"""Key store: noise keys of entries not yet committed, outside the ledger.

A key is made with its entry, which records the key's SHA-256: only that key can ever
draw for that entry, on any machine. It is wiped when the entry is committed. Only the
key of an entry with an idempotency key *and* an input digest is on disk (owner-only): a
retried task then draws the same noise for the same input. Any other key is in memory,
is handed out once and ends with the process; its entry stays spent. The store also
holds the ledger's secret, under which digests of private inputs are keyed: an unkeyed
digest in the ledger would let a reader test guesses about the data.

Keys that were handed out are known to the store, and wiped with the stored ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakSet

from demur.core.entropy import KEY_BYTES, NoiseKey
from demur.core.errors import NoiseReuse
from demur.durable import private_files

_SECRET = "input-digests"


class KeyStore:
    """Keys by entry id, in memory, and on disk where a folder is given."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._keys: dict[str, bytes] = {}
        self._kept: set[str] = set()  # of those in memory, for a repeated call
        self._handed_out: dict[str, WeakSet[NoiseKey]] = {}
        # "Take and note" is one step, so that no key is taken while others are wiped.
        self._lock = threading.Lock()

    @property
    def _memory(self) -> dict[str, bytes]:
        self._begin_anew_after_a_fork()
        return self._keys

    def _begin_anew_after_a_fork(self) -> None:
        if os.getpid() == self._process:
            return
        # A fork copied the keys: drawn here too, they would be the same noise. It may
        # have copied the lock while another thread held it.
        self._process, self._keys, self._kept = os.getpid(), {}, set()
        self._handed_out, self._lock = {}, threading.Lock()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._begin_anew_after_a_fork()
        with self._lock:
            yield

    def put(self, name: str, key: bytes, *, keep: bool) -> None:
        """Store `key` under `name`: on disk to `keep` it for a retried task."""
        if keep and self._folder is not None:
            private_files.write_new(self._path(name), key)
            return
        self._memory[name] = key
        if keep:
            self._kept.add(name)

    def take(self, name: str, *, keep: bool) -> bytes | None:
        """The key under `name`: once, or any number of times with `keep`."""
        # `pop`, so that only one thread gets it.
        key = self._memory.get(name) if keep else self._memory.pop(name, None)
        if key is not None:
            return key
        if self._folder is None or not self._path(name).exists():
            return None
        return self._read(self._path(name))

    def hand_out(
        self, name: str, make: Callable[[bytes | None], NoiseKey], *, keep: bool
    ) -> NoiseKey:
        """What `make` makes of the key under `name`, to be wiped with it."""
        with self._locked():
            key = make(self.take(name, keep=keep))
            self._handed_out.setdefault(name, WeakSet()).add(key)
        return key

    def withdraw(self, name: str) -> None:
        """Wipe what was handed out under `name`; a kept key stays for a repeat."""
        with self._locked():
            if name not in self._kept:
                self._memory.pop(name, None)
            self._wipe_handed_out(name)

    def wipe(self, name: str) -> None:
        """Overwrite and remove the key under `name`, here and where it was handed."""
        with self._locked():
            self._wipe_stored(name)
            self._wipe_handed_out(name)

    def _wipe_handed_out(self, name: str) -> None:
        for key in self._handed_out.pop(name, ()):
            key.wipe()

    def _wipe_stored(self, name: str) -> None:
        self._memory.pop(name, None)
        self._kept.discard(name)
        if self._folder is None:
            return
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError):
            private_files.overwrite(path, bytes(KEY_BYTES))
            path.unlink()

    def keyed_digest(self, input_digest: str, salt: str) -> str:
        """The digest of an input, under the ledger's secret and the entry's salt.

        Without a salt, equal inputs of two entries would look equal in the ledger.
        """
        if self._folder is None:
            secret = self._memory.setdefault(_SECRET, os.urandom(KEY_BYTES))
        else:
            path = self._path(_SECRET)
            if not path.exists():
                private_files.write_new(path, os.urandom(KEY_BYTES))
            secret = self._read(path)
        text = f"{salt}\x00{input_digest}".encode()
        return hmac.new(secret, text, hashlib.sha256).hexdigest()

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        if not re.fullmatch(r"[a-z0-9-]{1,64}", name):
            raise ValueError(f"not the name of a key: {name[:80]!r}")
        return self._folder / f"{name}.key"

    def _read(self, path: Path) -> bytes:
        key = private_files.read(path)
        if len(key) != KEY_BYTES or key == bytes(KEY_BYTES):
            raise NoiseReuse(
                f"the key {path.name} is damaged or wiped; its noise cannot be drawn."
                " The entry stays spent: charge a new one."
            )
        return key


def keys_folder() -> Path:
    """The folder for keys of ledgers on a server: DEMUR_KEYS, or the user's state."""
    chosen = os.environ.get("DEMUR_KEYS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "demur" / "keys"
