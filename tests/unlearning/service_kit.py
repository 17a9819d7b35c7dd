"""What the tests of the deletion service share: records, services, raw looks."""

import sqlite3
from pathlib import Path
from unittest import mock

import numpy as np

from demur import unlearning
from demur.unlearning.records.seals import Seals

DIM = 4
NOISY = {"epsilon": 1.0, "delta": 1e-6}


def memory():
    """The key of the memory, as a keyring would give it."""
    return b"a key of thirty-two bytes, at most"


class UnlearningService(unlearning.UnlearningService):
    """A service that remembers ids, unless a test says otherwise."""

    @classmethod
    def open(cls, url, *, memory_key=memory, **more):
        return super().open(url, memory_key=memory_key, **more)


def plain_seals():
    """Seals that are plain digests, for a test that compares states it has seen."""
    return mock.patch.object(Seals, "seal", lambda _, digest, number=None: digest)


def record(number, dimension=DIM):
    """Record `number`, always the same."""
    rng = np.random.default_rng([17, number])
    x = rng.normal(size=dimension) / 3.0
    return x, float(np.sign(x[0] + 0.3 * rng.normal()))


def open_service(path, **terms):
    """A service; inserts in batches, as a flush takes 5 ms on a slow disk."""
    terms = {"mode": "ogd", "dimension": DIM, "durability": "batch"} | terms
    if terms["mode"] != "ridge":
        terms = NOISY | terms
    if terms["mode"] == "logistic":
        terms = {"Lambda": 5.0, "tolerance": 0.05, "capacity": 20} | terms
    return UnlearningService.open(path, **terms)


def fill(service, numbers, flush=True, **more):
    for number in numbers:
        service.insert(*record(number), record_id=number, **more)
    if flush:
        service.flush()


def sql(path, statement, *values):
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(statement, values).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


def bytes_of(path):
    """Every byte that a service has on disk, by file."""
    path = Path(path)
    found = {}
    for file in sorted(path.parent.rglob("*")):
        if file.is_file() and file.relative_to(path.parent).parts[0].startswith(
            path.name
        ):
            found[str(file.relative_to(path.parent))] = file.read_bytes()
    return found


def files_with(path, needle):
    return [name for name, data in bytes_of(path).items() if needle in data]
