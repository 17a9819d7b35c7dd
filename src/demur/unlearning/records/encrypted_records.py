"""Encrypted records, each under a key of its own: erasing the key erases the record.

A record is encrypted with ChaCha20-Poly1305 under 32 fresh bytes. Each key encrypts
exactly one record, so the nonce may be constant. Ciphertexts lie in the service's
database, keys in a file of their own (`<path>.keys/records.db`), which overwrites what
it deletes: a backup of the database cannot be read without the keys, and once a key is
erased no copy of its ciphertext can be read by anyone.

Order. A key is on disk before its ciphertext, and a ciphertext is erased before its
key: a process that is killed in between leaves a key without a ciphertext (erased on
opening), never a ciphertext that should be readable and is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from sqlalchemy.engine import Connection

from demur.core.entropy import OsEntropy, Source
from demur.durable import private_files
from demur.unlearning.errors import RecordNeeded, ServiceDamaged
from demur.unlearning.models.base import Array
from demur.unlearning.records import tables

_NONCE = bytes(12)
_OS = OsEntropy()
_metadata = sa.MetaData()
_keys = sa.Table(
    "demur_record_keys",
    _metadata,
    sa.Column("pseudonym", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.LargeBinary, nullable=False),
)


class _KeyDatabase(tables.ServiceStore):
    noun = "file of keys"


class EncryptedRecords:
    """Encrypted records and their keys."""

    def __init__(self, folder: Path, source: Source = _OS) -> None:
        self._source = source
        private_files.make_folder(folder)
        path = folder / "records.db"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        private_files.check_file(path)
        self._database = _KeyDatabase(str(path))
        self._database.create(_metadata)
        self._new_keys: list[dict[str, object]] = []
        self._new_ciphertexts: list[dict[str, object]] = []

    def encrypt(self, pseudonym: str, generation: int, x: Array, y: float) -> None:
        """Encrypt a record; it is on disk after the next `write_keys` and `write`."""
        key = self._source.new_key()
        plain = np.append(x, y).astype("<f8").tobytes()
        encrypted = ChaCha20Poly1305(key).encrypt(
            _NONCE, plain, _label(pseudonym, generation)
        )
        self._new_keys.append(
            {"pseudonym": pseudonym, "generation": generation, "key": key}
        )
        self._new_ciphertexts.append(
            {"pseudonym": pseudonym, "generation": generation, "body": encrypted}
        )

    def write_keys(self) -> None:
        """Write the keys, before the transaction of the ciphertexts."""
        if self._new_keys:
            with self._database.write() as connection:
                connection.execute(_keys.insert(), self._new_keys)
            self._new_keys = []

    def write(self, connection: Connection) -> None:
        """Write the ciphertexts, in the service's own transaction."""
        if self._new_ciphertexts:
            connection.execute(tables.encrypted_records.insert(), self._new_ciphertexts)

    def written(self) -> None:
        """Note that the transaction of the ciphertexts is durable."""
        self._new_ciphertexts = []

    def decrypt(self, connection: Connection, pseudonym: str) -> tuple[Array, float]:
        """A stored record, or `RecordNeeded`."""
        for _, x, y in self._decrypted(connection, [pseudonym]):
            return x, y
        raise RecordNeeded(
            "the record is not in the store: it was learned without one. Give its x"
            " and y. Nothing was spent."
        )

    def all_records(self, connection: Connection) -> Iterator[tuple[str, Array, float]]:
        """Every stored record: pseudonym, x, y."""
        return self._decrypted(connection, None)

    def _decrypted(
        self, connection: Connection, pseudonyms: list[str] | None
    ) -> Iterator[tuple[str, Array, float]]:
        table = tables.encrypted_records
        records = sa.select(table).order_by(table.c.pseudonym)
        keys = sa.select(_keys)
        if pseudonyms is not None:
            records = records.where(table.c.pseudonym.in_(pseudonyms))
            keys = keys.where(_keys.c.pseudonym.in_(pseudonyms))
        with self._database.read() as own:
            keys_by_record = {
                (k.pseudonym, k.generation): k.key for k in own.execute(keys)
            }
        for encrypted in connection.execute(records):
            key = keys_by_record.get((encrypted.pseudonym, encrypted.generation))
            if key is None:
                raise ServiceDamaged(
                    f"the key of the record {encrypted.pseudonym[:12]}... is gone, so"
                    " that nobody can decrypt it. Give the record's x and y."
                )
            label = _label(encrypted.pseudonym, encrypted.generation)
            try:
                plain = ChaCha20Poly1305(key).decrypt(_NONCE, encrypted.body, label)
            except InvalidTag as error:
                raise ServiceDamaged(
                    f"the encrypted record {encrypted.pseudonym[:12]}... was changed"
                ) from error
            row = np.frombuffer(plain, "<f8").astype(np.float64)
            yield encrypted.pseudonym, row[:-1], float(row[-1])

    def erase(self, deleted: Mapping[str, int]) -> None:
        """Erase the keys of these records, up to a generation; then `scrub`."""
        with self._database.write() as connection:
            for pseudonym, generation in deleted.items():
                connection.execute(
                    _keys.delete().where(
                        _keys.c.pseudonym == pseudonym, _keys.c.generation <= generation
                    )
                )

    def scrub(self) -> None:
        """Let no page and no journal hold a key that was erased."""
        self._database.scrub()

    def remove_leftovers(self, connection: Connection) -> None:
        """Erase every key without a ciphertext: a crash came between the two."""
        table = tables.encrypted_records
        records = {
            (r.pseudonym, r.generation)
            for r in connection.execute(
                sa.select(table.c.pseudonym, table.c.generation)
            )
        }
        with self._database.read() as own:
            columns = sa.select(_keys.c.pseudonym, _keys.c.generation)
            keys = {(k.pseudonym, k.generation) for k in own.execute(columns)}
        with self._database.write() as own:
            for pseudonym, generation in keys - records:
                own.execute(
                    _keys.delete().where(
                        _keys.c.pseudonym == pseudonym, _keys.c.generation == generation
                    )
                )

    def close(self) -> None:
        """Close the file of keys."""
        self._database.close()

    def __repr__(self) -> str:
        return "EncryptedRecords(<secret>)"


def _label(pseudonym: str, generation: int) -> bytes:
    return f"demur record\x00{pseudonym}\x00{generation}".encode()
