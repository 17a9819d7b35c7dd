"""Learners that keep deleted records, in many forms and places, and honest ones.

They have a module of their own: the search reads the global variables of the module
that a learner is defined in.
"""

import base64
import bz2
import functools
import gzip
import io
import itertools
import json
import pickle
import zlib
from decimal import Decimal
from fractions import Fraction

import numpy as np

from demur.unlearning.models import OGD

GLOBAL_CACHE: list = []


def npz(x):
    file = io.BytesIO()
    np.savez_compressed(file, x=x)
    return file.getvalue()


def by_feature(x):
    return {f"feature {i}": float(v) for i, v in enumerate(x)}


class Slots:
    __slots__ = ("left", "right")

    def __init__(self, x):
        self.left, self.right = x[: len(x) // 2].copy(), x[len(x) // 2 :].copy()


# What is kept of a record, as a function of it.
FORMS = {
    "array": lambda x: x.copy(),
    "list": lambda x: x.tolist(),
    "array of objects": lambda x: np.array(x.tolist(), dtype=object),
    "array with named fields": lambda x: np.rec.fromarrays([[v] for v in x]),
    "masked array": lambda x: np.ma.array(x.copy(), mask=True),
    "decimals": lambda x: [Decimal(v) for v in x.tolist()],
    "fractions": lambda x: [Fraction(v) for v in x.tolist()],
    "bytes": lambda x: x.tobytes(),
    "bytes, big-endian, after a header": lambda x: b"HDR" + x.astype(">f8").tobytes(),
    "bytes of float32": lambda x: x.astype("f4").tobytes(),
    "bits as integers": lambda x: x.copy().view(np.int64),
    "bytes one by one": lambda x: np.frombuffer(x.tobytes(), np.uint8).copy(),
    "one long integer": lambda x: int.from_bytes(x.tobytes(), "big"),
    "text": lambda x: " ".join(map(str, x)),
    "json": lambda x: json.dumps(x.tolist()),
    "json by feature, rounded": lambda x: json.dumps(
        {k: round(v, 5) for k, v in by_feature(x).items()}
    ),
    "json by number, sorted": lambda x: json.dumps(
        {str(i): v for i, v in enumerate(x.tolist())}, sort_keys=True
    ),
    "hexadecimal floats": lambda x: ",".join(v.hex() for v in x.tolist()),
    "dict by feature": by_feature,
    "dict, shuffled": lambda x: dict(sorted(by_feature(x).items(), key=lambda i: i[1])),
    "halves": lambda x: {"a": x[: len(x) // 2].tolist(), "b": tuple(x[len(x) // 2 :])},
    "halves in slots, reversed": lambda x: Slots(x[::-1]),
    "reversed": lambda x: x[::-1].copy(),
    "shifted": lambda x: x + 17.25,
    "scaled": lambda x: x * -3e-5,
    "standardised": lambda x: (x - x.mean()) / x.std(),
    "float32": lambda x: x.astype("f4"),
    "float16": lambda x: x.astype("f2"),
    "pickled array": lambda x: pickle.dumps(x),
    "pickled list": lambda x: pickle.dumps(x.tolist()),
    "pickled dict": lambda x: pickle.dumps(by_feature(x)),
    "compressed": lambda x: zlib.compress(x.tobytes()),
    "gzip of json": lambda x: gzip.compress(json.dumps(x.tolist()).encode()),
    "bz2 of a pickle": lambda x: bz2.compress(pickle.dumps(x)),
    "npz": npz,
    "base64": lambda x: base64.b64encode(x.tobytes()).decode(),
    "base64 in json": lambda x: json.dumps(
        {"v": base64.urlsafe_b64encode(x.tobytes()).decode()}
    ),
    "hexadecimal digits": lambda x: x.tobytes().hex(),
    "as keys": lambda x: {float(v): i for i, v in enumerate(x)},
    "every other number": lambda x: np.ravel([x, np.ones_like(x)], order="F"),
    "a partial": lambda x: functools.partial(print, x.tolist()),
}


class Keeps(OGD):
    """Keeps the last records, each in some form, and forgets none."""

    form = staticmethod(FORMS["array"])

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.kept = []

    def insert_many(self, X, Y):
        self.keep([type(self).form(x) for x in np.asarray(X)[-16:]])
        return super().insert_many(X, Y)

    def keep(self, records):
        self.kept = [*self.kept, *records][-16:]


class InItsClass(Keeps):
    shared: list = []

    def keep(self, records):
        self.shared.extend(records)


class InAGlobal(Keeps):
    def keep(self, records):
        GLOBAL_CACHE.extend(records)


class InADefault(Keeps):
    def keep(self, records, kept=[]):  # noqa: B006 - the fault under test
        kept.extend(records)


@functools.lru_cache
def remembered(x):
    return sum(x)


class InACachedFunction(Keeps):
    def keep(self, records):
        for record in records:
            remembered(tuple(record))


def with_a_closure():
    kept = []

    class InAClosure(Keeps):
        def keep(self, records):
            kept.extend(records)

    return InAClosure


class OGDHere(OGD):
    """An honest learner of this module."""


# -- not to be found ------------------------------------------------------------


PAD: bytes = np.random.default_rng(5).bytes(8 * 12)


class Ciphered(Keeps):
    """What the report says that it cannot find."""

    form = staticmethod(
        lambda x: bytes(a ^ b for a, b in zip(x.tobytes(), PAD, strict=True))
    )


class Mixed(Keeps):
    form = staticmethod(lambda x: x + np.cos(np.arange(12.0)))


# -- honest learners ------------------------------------------------------------

SEEDS = itertools.count()


class Honest(OGD):
    """Holds live records in some form, and drops each with its deletion."""

    form = staticmethod(lambda x: x)
    most = 1000

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.rng = np.random.default_rng(next(SEEDS))  # differs between the worlds
        self.held = []

    def insert_many(self, X, Y):
        for x in np.asarray(X):
            entry = (hash(x.tobytes()), type(self).form(x.copy()))
            if len(self.held) < self.most:
                self.held.append(entry)
            else:
                self.held[self.rng.integers(self.most)] = entry
        return super().insert_many(X, Y)

    def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
        gone = {hash(row.tobytes()) for row in np.atleast_2d(x)}
        self.held = [entry for entry in self.held if entry[0] not in gone]
        super().delete(x, y, noise, records=records, grid=grid)


class Sampling(Honest):
    """Keeps a random sample of the live records."""

    most = 8


class Compressing(Honest):
    form = staticmethod(lambda x: zlib.compress(x.astype("f4").tobytes()))


class Writing(Honest):
    form = staticmethod(lambda x: json.dumps(x.tolist()))


class Random(Honest):
    """Random numbers of every kind, and weights rounded in every way."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        rng = self.rng
        self.numbers = rng.normal(size=3000), rng.standard_cauchy(2000).astype("f4")
        self.small = rng.normal(size=2000).astype("f2"), rng.bytes(2000)
        self.whole = rng.integers(0, 2, 2000), rng.integers(-3, 4, 2000)
        self.rounded = np.round(rng.normal(size=3000), 2)
        self.walk = np.cumsum(rng.normal(size=2000))

    def forget_nothing(self, noise=None, *, grid=None):
        super().forget_nothing(noise, grid=grid)
        w = self.published()
        self.coarse = np.sign(w), np.round(7 * w / np.abs(w).max()).astype(np.int8)
        self.sparse = np.where(np.abs(w) > np.median(np.abs(w)), w, 0.0)


class Statistics(OGD):
    """Sums that a deletion takes back, up to rounding."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.sum, self.products = np.zeros(dimension), np.zeros((dimension, dimension))

    def insert_many(self, X, Y):
        self.sum, self.products = self.sum + X.sum(axis=0), self.products + X.T @ X
        return super().insert_many(X, Y)

    def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
        rows = np.atleast_2d(x)
        self.sum = self.sum - rows.sum(axis=0)
        self.products = self.products - rows.T @ rows
        super().delete(x, y, noise, records=records, grid=grid)


def rows_of(kind, n, d, rng):
    normal = rng.normal(size=(n, d))
    return {
        "normal": normal,
        "one feature dwarfs the rest": normal * 10.0 ** np.linspace(-3, 5, d),
        "whole numbers": rng.integers(0, 5, (n, d)).astype(float),
        "two levels": rng.integers(0, 2, (n, d)).astype(float),
        "one-hot": np.eye(d)[rng.integers(0, d, n)],
        "two decimals": np.round(normal, 2),
        "curves": np.sin(np.linspace(0, 3, d) + 6 * rng.random((n, 1))),
        "lines": np.linspace(0, 1, d) * normal[:, :1] + normal[:, 1:2],
        "heavy tails": rng.standard_cauchy((n, d)),
        "sparse": normal * (rng.random((n, d)) < 0.15),
    }[kind]


ROWS = tuple(
    "normal, one feature dwarfs the rest, whole numbers, two levels, one-hot,"
    " two decimals, curves, lines, heavy tails, sparse".replace(", ", ",").split(",")
)
