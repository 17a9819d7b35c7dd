"""Contracts of secrets: no exact value in results or ledger, searched for by value.

A secret is an array that existed before noise was added: the data, an exact statistic,
the noise itself (which subtracted from the release gives the exact value), a key. It is
searched for

- as numbers, in every array, list and float that the object refers to (`graph`),
- as bytes, in every buffer and in the object's pickle, in float64 and float32,
- as text, in repr, str and every string: a printed number of six or more digits that
  a secret rounds to.

A value counts only if it is distinctive: small whole numbers and short fractions occur
by chance. Searching for a secret without any distinctive value is an error, not a pass.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.testing.discrete_secrets import LEAST, DiscreteSecret, whole_numbers
from demur.testing.errors import ContractBroken
from demur.testing.graph import reachable
from demur.testing.result import require
from demur.testing.subject import Run, Subject

Array = NDArray[np.float64]

# A distinctive number needs more than this many bits of its mantissa. One that fits
# float32 (24 bits) occurs by chance once in millions: of those two are required.
_LEAST_BITS, _SINGLE_BITS = 18, 24
# Numbers this close are the same one, computed in another order.
_SAME = 1e-11
# Whole arrays are compared less strictly: many coordinates do not agree by chance.
_SAME_ARRAY = 1e-6
_MANY = 4
_MOST_VALUES = 2000
# A number that is not part of a name, a digest or a time.
_NUMBER = re.compile(
    r"(?<![\w.:])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.:])"
)
_LEAST_DIGITS, _SURE_DIGITS = 6, 8
_LONGEST_TEXT = 200_000


@dataclass(frozen=True)
class Secret:
    """A value that must not be released, prepared for comparison with many others."""

    name: str
    whole: Array
    values: Array
    enough: int

    @classmethod
    def of(cls, name: str, value: Any) -> Secret:
        """The secret; a ValueError if none of its numbers is distinctive."""
        whole = np.asarray(value, dtype=np.float64).reshape(-1)
        values = np.unique(np.abs(whole[distinctive(whole)]))
        rich = distinctive(values, _SINGLE_BITS).any()
        if not values.size:
            raise ValueError(
                f"{name} holds no distinctive number, so that a search for it would"
                " show nothing: give data with more digits"
            )
        return cls(name, whole, values, 1 if rich else min(2, len(values)))

    def in_numbers(self, numbers: Array) -> bool:
        """Whether one of the secret's numbers, or all of it, is among `numbers`."""
        flat = numbers.reshape(-1)
        flat = flat[np.isfinite(flat)]
        if not flat.size:
            return False
        near = np.searchsorted(self.values, np.abs(flat))
        matched: set[float] = set()
        for shift in (-1, 0):
            other = self.values[np.clip(near + shift, 0, len(self.values) - 1)]
            matched.update(other[np.abs(np.abs(flat) - other) <= _SAME * other])
        if len(matched) >= self.enough:
            return True
        if flat.size != self.whole.size or flat.size < _MANY:
            return False
        size = float(np.abs(self.whole).max())
        return bool(np.allclose(flat, self.whole, rtol=_SAME_ARRAY, atol=1e-9 * size))

    def in_bytes(self, data: bytes) -> bool:
        """Whether one of the secret's numbers is stored in `data`."""
        rich = self.values[distinctive(self.values, _SINGLE_BITS)][:_MOST_VALUES]
        if any(_stored(value, data) for value in rich):
            return True
        single = self.whole.astype(np.float32)
        return single.size >= _MANY and single.tobytes() in data

    def in_text(self, text: str) -> bool:
        """Whether a number printed in `text` is one of the secret's, rounded."""
        exact, rough = _printed(text, self.values)
        return bool(exact) or len(rough) >= _MANY


def distinctive(values: Array, least: int = _LEAST_BITS) -> NDArray[np.bool_]:
    """Which numbers cannot occur by chance: finite, with many bits in use."""
    mantissa, _ = np.frexp(np.where(np.isfinite(values), values, 0.0))
    bits = np.ldexp(mantissa, least)
    return np.isfinite(values) & (bits != np.rint(bits))


def search(
    root: object,
    secrets: Iterable[Secret | DiscreteSecret],
    *,
    skip: Iterable[object] = (),
) -> list[str]:
    """Where the secrets are, as phrases; empty if they are nowhere."""
    wanted = list(secrets)
    places: list[str] = []
    for item in reachable(root, skip=skip):
        for secret in wanted:
            where = _holds(item, secret)
            if where:
                places.append(f"{secret.name} in {where}")
        if len(places) > _MANY:
            break
    for kind, text in _texts(root):
        places += [f"{s.name} in its {kind}" for s in wanted if s.in_text(text)]
    packed = _pickled(root)
    if packed:
        places += [f"{s.name} in its pickle" for s in wanted if s.in_bytes(packed)]
    return list(dict.fromkeys(places))


def search_bytes(
    root: object, secrets: Mapping[str, bytes], *, skip: Iterable[object] = ()
) -> list[str]:
    """Names of the byte strings that are in the graph or the pickle."""
    packed = _pickled(root)
    present = {name for name, secret in secrets.items() if secret in packed}
    for item in reachable(root, skip=skip):
        data = _buffer(item)
        text = item if isinstance(item, str) else ""
        present |= {
            name
            for name, secret in secrets.items()
            if (data and secret in data) or (text and secret.hex() in text)
        }
    return sorted(present)


# -- the contracts -------------------------------------------------------------------


def results_hold_no_exact_value(subject: Subject) -> None:
    """No data, exact statistic or noise in the result, its pickle, repr or parts."""
    if subject.keeps_data or not subject.inputs:
        return
    run = _known(subject)
    skip = [value for value in subject.inputs.values() if value is not None]
    places = search([run.result, run.spender], secrets_of(subject, run), skip=skip)
    require(not places, f"exact values were found: {'; '.join(places[:_MANY])}")


def the_ledger_holds_no_exact_value(subject: Subject) -> None:
    """No data, exact statistic or noise in any row of the ledger that paid."""
    if not subject.inputs:
        return
    run = _known(subject)
    stored = [run.ledger.entries(), run.ledger.summary(), _rows(run.ledger)]
    places = search(stored, secrets_of(subject, run))
    require(not places, f"exact values were found: {'; '.join(places[:_MANY])}")


def no_noise_key_is_left_behind(subject: Subject) -> None:
    """After a release its key is neither in the result nor in the ledger."""
    if not subject.takes_source:
        return
    run = subject.seeded
    assert run.keys is not None
    require(run.keys.keys, "source was not used: no key was taken from it")
    if subject.keeps_data:
        return
    keys = {f"key {i}": key for i, key in enumerate(run.keys.keys)}
    present = search_bytes([run.result, run.spender, run.ledger], keys, skip=[run.keys])
    require(not present, f"the noise key was found: {', '.join(present)}")


CONTRACTS = (
    results_hold_no_exact_value,
    the_ledger_holds_no_exact_value,
    no_noise_key_is_left_behind,
)


def _known(subject: Subject) -> Run:
    """A release whose exact inputs are recorded, where a source can be given."""
    return subject.seeded if subject.takes_source else subject.sample


def secrets_of(subject: Subject, run: Run) -> list[Secret | DiscreteSecret]:
    """The subject's data, its own secrets, and each use's exact value and noise."""
    named = {f"the data {n}": value for n, value in subject.inputs.items()}
    named |= subject.secrets
    for i, use in enumerate(run.tape.uses if run.tape else ()):
        exact = [part for part in use.value if part.dtype.kind == "f"]
        for j, part in enumerate(exact):
            named[f"the exact value {i}.{j} of {use.name}"] = part
        if isinstance(use.released, np.ndarray) and len(exact) == 1:
            if use.released.shape == exact[0].shape:
                noise = np.asarray(use.released, dtype=np.float64) - exact[0]
                named[f"the noise {i} of {use.name}"] = noise
    secrets: list[Secret | DiscreteSecret] = []
    for name, value in named.items():
        for where, array in _numbers(value):
            with contextlib.suppress(ValueError):  # labels and other small numbers
                secrets.append(Secret.of(f"{name}{where}", array))
    if not secrets:
        for name, value in named.items():
            with contextlib.suppress(ValueError):
                secrets.append(DiscreteSecret.of(name, value))
    if not secrets:
        raise ContractBroken(
            f"nothing to search for: give data with more digits, or at least {LEAST}"
            " whole numbers that are not all equal"
        )
    return secrets


# -- one object ----------------------------------------------------------------------


def _holds(item: object, secret: Secret | DiscreteSecret) -> str:
    """Where the secret is in this object alone; empty if it is not."""
    if isinstance(item, str):
        return "a string" if secret.in_text(item[:_LONGEST_TEXT]) else ""
    if isinstance(item, bool | np.bool_) or item is None:
        return ""
    data = _buffer(item)
    if data:
        return f"a {type(item).__name__}" if secret.in_bytes(data) else ""
    if isinstance(secret, DiscreteSecret):
        whole = whole_numbers(item)
        if whole is not None and secret.in_numbers(whole):
            return f"a {type(item).__name__} of {whole.size} numbers"
    for part, array in _numbers(item):
        if secret.in_numbers(array):
            return f"a {type(item).__name__}{part} of shape {array.shape}"
    return ""


def _numbers(item: Any) -> Iterator[tuple[str, Array]]:
    """The numbers of one object: a scalar, an array, a flat list, a dict of arrays."""
    if isinstance(item, dict):
        for key, value in item.items():
            for part, array in _numbers(value):
                yield f"[{key!r:.40}]{part}", array
        return
    if isinstance(item, bool | str | bytes) or item is None:
        return
    if isinstance(item, list | tuple):
        plain = [x for x in item if isinstance(x, int | float)]
        if plain and len(plain) == len(item):
            yield "", np.asarray([float(x) for x in plain if abs(x) < 2**62])
        elif item and all(isinstance(x, list | tuple) for x in item):
            try:
                yield "", np.asarray(item, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                return
        return
    if not (isinstance(item, float | np.number) or hasattr(item, "__array__")):
        return
    try:
        array = np.asarray(np.ma.getdata(item))
    except Exception:  # a deleted device buffer, a lazy array that cannot be read
        return
    if array.dtype.kind in "fc":
        array = array.astype(np.complex128)
        yield "", np.ascontiguousarray(array).view(np.float64)


def _buffer(item: object) -> bytes:
    if isinstance(item, bytes | bytearray):
        return bytes(item)
    if isinstance(item, memoryview):
        return item.tobytes() if item.contiguous else b""
    getvalue = getattr(item, "getvalue", None)  # io.BytesIO, io.StringIO
    if callable(getvalue) and type(item).__module__ == "_io":
        value = getvalue()
        return value if isinstance(value, bytes) else str(value).encode()
    return b""


def _stored(value: float, packed: bytes) -> bool:
    number = np.float64(value)
    for signed in (number, -number):
        data = signed.tobytes()
        if data in packed or data[::-1] in packed:
            return True
    return False


def _texts(root: object) -> Iterator[tuple[str, str]]:
    for item in root if isinstance(root, list) else [root]:
        for kind, show in (("repr", repr), ("str", str)):
            yield kind, show(item)[:_LONGEST_TEXT]


def _pickled(root: object) -> bytes:
    """The pickles of what can be pickled; the rest reveals nothing that way."""
    packed = []
    for item in root if isinstance(root, list) else [root]:
        try:
            packed.append(pickle.dumps(item))
        except Exception:  # whatever cannot be pickled reveals nothing
            continue
    return b"".join(packed)


def _printed(text: str, values: Array) -> tuple[set[float], set[float]]:
    """Which of `values` the text prints, to many digits and to a few.

    A few digits may agree by chance, so that several such numbers are required.
    """
    exact: set[float] = set()
    rough: set[float] = set()
    for token in _NUMBER.findall(text):
        mantissa = re.split("[eE]", token)[0]
        digits = len(mantissa.lstrip("+-").replace(".", "").lstrip("0"))
        shown = abs(float(token))
        if digits < _LEAST_DIGITS or not 0.0 < shown < math.inf:
            continue
        # Half a unit of the last digit shown.
        room = 0.5 * 10.0 ** (math.floor(math.log10(shown)) + 1 - digits)
        at = int(np.searchsorted(values, shown))
        for value in values[max(at - 1, 0) : at + 1]:
            if abs(value - shown) <= room * (1 + 1e-9):
                (exact if digits >= _SURE_DIGITS else rough).add(float(value))
    return exact, rough


def _rows(ledger: Any) -> list[str]:
    """Every row of the ledger as text."""
    with ledger._store.read() as connection:
        raw = connection.connection.driver_connection
        dump = getattr(raw, "iterdump", None)
        return list(dump()) if dump else []
