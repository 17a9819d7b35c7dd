"""Records at rest, each under a key of its own: erasing the key erases the record.

A record is sealed with ChaCha20-Poly1305 under 32 fresh bytes. Each key seals exactly
one box, so the nonce may be constant. Boxes lie in the service's database, keys in a
file of their own (`<path>.keys/records.db`), which overwrites what it deletes: a backup
of the database cannot be read without the keys, and once a key is gone no copy of its
box can be read by anyone.

Order. A key is on disk before its box, and a box is erased before its key: whatever is
killed in between leaves a key without a box (swept away on opening), never a box that
should be readable and is not.
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
from demur.unlearning.errors import RecordNeeded, ServiceDamaged
from demur.unlearning.models.base import Array
from demur.unlearning.records import store

_NONCE = bytes(12)
_OS = OsEntropy()
_metadata = sa.MetaData()
_keys = sa.Table(
    "demur_record_keys",
    _metadata,
    sa.Column("mark", sa.String(64), primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.LargeBinary, nullable=False),
)


class Vault:
    """Sealed records and their keys."""

    def __init__(self, folder: Path, source: Source = _OS) -> None:
        self._source = source
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "records.db"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        self._place = store.ServiceStore(str(path))
        self._place.create(_metadata)
        self._waiting: list[dict[str, object]] = []
        self._boxes: list[dict[str, object]] = []

    def seal(self, mark: str, generation: int, x: Array, y: float) -> None:
        """Seal a record; it is on disk after the next `write_keys` and `write`."""
        key = self._source.new_key()
        plain = np.append(x, y).astype("<f8").tobytes()
        box = ChaCha20Poly1305(key).encrypt(_NONCE, plain, _label(mark, generation))
        self._waiting.append({"mark": mark, "generation": generation, "key": key})
        self._boxes.append({"mark": mark, "generation": generation, "body": box})

    def write_keys(self) -> None:
        """Before the transaction of the boxes."""
        if self._waiting:
            with self._place.write() as connection:
                connection.execute(_keys.insert(), self._waiting)
            self._waiting = []

    def write(self, connection: Connection) -> None:
        """The boxes, in the service's own transaction."""
        if self._boxes:
            connection.execute(store.boxes.insert(), self._boxes)

    def written(self) -> None:
        """That transaction is durable."""
        self._boxes = []

    def open(self, connection: Connection, mark: str) -> tuple[Array, float]:
        """A record that is kept, or `RecordNeeded`."""
        for found in self._opened(connection, [mark]):
            return found[1], found[2]
        raise RecordNeeded(
            "the record is not in the store: it was learned without one. Give its x"
            " and y. Nothing was spent."
        )

    def everything(self, connection: Connection) -> Iterator[tuple[str, Array, float]]:
        """Every record that is kept: mark, x, y."""
        return self._opened(connection, None)

    def _opened(
        self, connection: Connection, marks: list[str] | None
    ) -> Iterator[tuple[str, Array, float]]:
        boxes = sa.select(store.boxes).order_by(store.boxes.c.mark)
        keys = sa.select(_keys)
        if marks is not None:
            boxes = boxes.where(store.boxes.c.mark.in_(marks))
            keys = keys.where(_keys.c.mark.in_(marks))
        with self._place.read() as own:
            kept = {(k.mark, k.generation): k.key for k in own.execute(keys)}
        for box in connection.execute(boxes):
            key = kept.get((box.mark, box.generation))
            if key is None:
                raise ServiceDamaged(
                    f"the key of the record {box.mark[:12]}... is gone: its box can"
                    " never be opened again. Give the record's x and y."
                )
            label = _label(box.mark, box.generation)
            try:
                plain = ChaCha20Poly1305(key).decrypt(_NONCE, box.body, label)
            except InvalidTag as error:
                raise ServiceDamaged(
                    f"the box of the record {box.mark[:12]}... was changed"
                ) from error
            row = np.frombuffer(plain, "<f8").astype(np.float64)
            yield box.mark, row[:-1], float(row[-1])

    def erase(self, gone: Mapping[str, int]) -> None:
        """Erase the keys of these records, up to a generation; then `scrub`."""
        with self._place.write() as connection:
            for mark, generation in gone.items():
                connection.execute(
                    _keys.delete().where(
                        _keys.c.mark == mark, _keys.c.generation <= generation
                    )
                )

    def scrub(self) -> None:
        """Let no page or log hold a key that was erased."""
        self._place.scrub()

    def sweep(self, connection: Connection) -> None:
        """Erase every key that has no box: what a crash left between the two."""
        boxes = {
            (b.mark, b.generation)
            for b in connection.execute(
                sa.select(store.boxes.c.mark, store.boxes.c.generation)
            )
        }
        with self._place.read() as own:
            columns = sa.select(_keys.c.mark, _keys.c.generation)
            keys = {(k.mark, k.generation) for k in own.execute(columns)}
        with self._place.write() as own:
            for mark, generation in keys - boxes:
                own.execute(
                    _keys.delete().where(
                        _keys.c.mark == mark, _keys.c.generation == generation
                    )
                )

    def close(self) -> None:
        """Close the file of keys."""
        self._place.close()

    def __repr__(self) -> str:
        return "Vault(<secret>)"


def _label(mark: str, generation: int) -> bytes:
    return f"demur record\x00{mark}\x00{generation}".encode()
