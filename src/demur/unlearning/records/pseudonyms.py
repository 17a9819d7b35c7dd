"""Names of ids and digests of records, keyed, for the tables of a service.

The journal and the certificates call a record by a pseudonym. Whoever holds the folder
of a service must not be able to tell which id a deleted record had, by trying all ids
there are. So there are two kinds of service:

- one that remembers ids has a key outside of its folder (`memory_key`): the opening of
  a pseudonym (`commitments`) is HMAC-SHA256 of the id under it; the pseudonym stays;
- any other draws the opening at random. It stands with the name of the id, under a
  secret in the folder (`<path>.keys/`, owner-only), beside the pseudonym in the table
  of records, and both are erased with the record. Nothing then ties the id to what is
  left.

Digests of records are keyed with the folder's secret, and erased with them.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from demur.core.entropy import OsEntropy, Source
from demur.durable import private_files
from demur.durable.keys import KeyStore
from demur.unlearning.errors import ServiceMismatch
from demur.unlearning.records.commitments import id_bytes

_NAME = "unlearning-pseudonyms"
_OWNER = "unlearning-service"
_DOUBLE = struct.Struct("<d")
_OS = OsEntropy()


class Pseudonyms:
    """Pseudonyms of one service, under its secret."""

    def __init__(self, secret: bytes, memory: bytes | None = None) -> None:
        # Copies of a keyed HMAC are twice as fast as keying it each time.
        self._keyed = hmac.new(secret, digestmod=hashlib.sha256)
        self._names = hmac.new(memory or secret, digestmod=hashlib.sha256)
        self._memory = memory

    def remembering(self, memory: bytes | None) -> Pseudonyms:
        """The same, with ids named under the key of the service's memory."""
        copy = Pseudonyms(b"", memory)
        copy._keyed = self._keyed
        if memory is None:
            copy._names = self._keyed
        return copy

    @property
    def memory(self) -> bytes | None:
        """The key of the memory, if the service has one."""
        return self._memory

    @property
    def remembers(self) -> bool:
        """Whether names of ids stay when their records are gone."""
        return self._memory is not None

    @classmethod
    def create(cls, folder: Path, source: Source = _OS) -> Pseudonyms:
        """Pseudonyms under a new secret, on disk before this returns.

        One that is there was left by a first opening that was killed, and is taken.
        """
        KeyStore(folder).put(_name(not source.private), source.new_key(), keep=True)
        return cls.load(folder, testing=not source.private)

    @classmethod
    def load(cls, folder: Path, *, testing: bool = False) -> Pseudonyms:
        """Pseudonyms under the secret that is there."""
        name = _name(testing)
        secret = KeyStore(folder).take(name, keep=True)
        if secret is None:
            raise ServiceMismatch(
                f"the secret {name}.key is not beside the service: without it no"
                " record can be found again. Put it back; it is never made anew."
            )
        return cls(secret)

    @classmethod
    def peek(cls, folder: Path, *, testing: bool = False) -> Pseudonyms:
        """The same for a reader: nothing is tidied up on the way."""
        private_files.check_folder(folder)
        return cls(private_files.read_file(folder / f"{_name(testing)}.key"))

    def own(self) -> str:
        """The digest of the secret itself, to recognise it."""
        return _digest(self._keyed, b"secret", b"")

    def own_memory(self) -> str:
        """The digest of the key of the memory, to recognise it."""
        return _digest(self._names, b"secret", b"")

    def record(self, record_id: str | int) -> str:
        """The name of a record's id; under the key of a memory, its opening."""
        return _digest(self._names, b"record", id_bytes("record_id", record_id))

    def subject(self, subject_id: str | int) -> str:
        """The name of a person's id; under the key of a memory, its opening."""
        return _digest(self._names, b"subject", id_bytes("subject_id", subject_id))

    def masked(self, opening: str, pseudonym: str) -> str:
        """An opening as it is stored, and a stored one as it was.

        Under the key of a memory it is hidden from whoever holds the folder; without
        one, names of live ids can be tried there anyway.
        """
        if self._memory is None:
            return opening
        pad = _digest(self._names, b"opening", pseudonym.encode())
        return f"{int(opening, 16) ^ int(pad, 16):064x}"

    def alone(self, record_pseudonym: str) -> str:
        """The pseudonym of the subject of a record for which none was named."""
        return _digest(self._keyed, b"alone", record_pseudonym.encode())

    def content(self, x: ArrayLike, y: float) -> str:
        """The digest of a record as its caller gave it (-0.0 is 0.0)."""
        row = np.asarray(x, dtype="<f8") + 0.0
        data = row.tobytes() + _DOUBLE.pack(float(y) + 0.0)
        return _digest(self._keyed, b"content", data)

    def snapshot(self, content: bytes) -> str:
        """The seal of a snapshot file, which the next deletion destroys."""
        return _digest(self._keyed, b"snapshot", content)

    def __repr__(self) -> str:
        return "Pseudonyms(<secret>)"


def _digest(keyed: hmac.HMAC, kind: bytes, data: bytes) -> str:
    copy = keyed.copy()
    copy.update(kind + b"\x00" + data)
    return copy.hexdigest()


def _name(testing: bool) -> str:
    """A secret from a seed has another name: no service in use ever reads it."""
    return f"{_NAME}-for-tests" if testing else _NAME


def opening_keys(folder: Path, seal: int) -> list[str]:
    """The files in a folder of secrets that it takes to open its service."""
    names = [_name(testing) for testing in (False, True)]
    own = [f"{name}.key" for name in names if (folder / f"{name}.key").exists()]
    return [*own, f"{_OWNER}.key", f"seal-{seal}.key"]


def claim(folder: Path, service_id: str) -> None:
    """Make a folder of secrets this service's own, or refuse another's.

    Two services in one folder would erase each other's keys and snapshots.
    """
    KeyStore(folder).put(_OWNER, service_id.encode(), keep=True)  # the first one wins
    if owner(folder) != service_id:
        raise ServiceMismatch(
            "this folder holds the secrets of another service: give each a folder of"
            " its own (keys=). Nothing was changed."
        )


def owner(folder: Path) -> str | None:
    """The id of the service whose folder this is."""
    stored = KeyStore(folder).take(_OWNER, keep=True)
    return None if stored is None else stored.decode(errors="replace")
