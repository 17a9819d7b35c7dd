"""No noiseless value in what is handed out: searched for by value, not by name.

A secret is an array that existed before noise was added: the data, an exact statistic,
the noise itself (subtracted from the release it gives the rest away), a key. It is
looked for

- as numbers, in every array, list and float that the object leads to (`graph`),
- as bytes, in every buffer and in the object's pickle, in float64 and float32,
- as text, in repr, str and every string: a printed number of six or more digits that
  a secret rounds to.

A value counts only if it is distinctive: small whole numbers and short fractions are
everywhere, and a match says nothing. A secret without any such value cannot be searched
for, and asking is an error, not a pass.
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

from demur.testing.errors import ContractBroken
from demur.testing.graph import reachable
from demur.testing.result import require
from demur.testing.subject import Run, Subject

Array = NDArray[np.float64]

# A distinctive number needs more than this many bits of its mantissa. One that fits
# float32 (24 bits) turns up by chance once in millions: of those two are asked for.
_LEAST_BITS, _SINGLE_BITS = 18, 24
# Numbers this close are the same one, computed in another order.
_SAME = 1e-11
# Whole arrays are compared less strictly: many coordinates do not agree by chance.
_SAME_ARRAY = 1e-6
_MANY = 4
_MOST_VALUES = 2000
# A number that stands by itself: not part of a name, a digest or a time.
_NUMBER = re.compile(
    r"(?<![\w.:])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.:])"
)
_LEAST_DIGITS, _SURE_DIGITS = 6, 8
_LONGEST_TEXT = 200_000


@dataclass(frozen=True)
class Secret:
    """A value that must not leave, ready to be compared with many others."""

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
                f"{name} holds no distinctive number: a search for it would prove"
                " nothing. Use data with more digits."
            )
        return cls(name, whole, values, 1 if rich else min(2, len(values)))

    def in_numbers(self, found: Array) -> bool:
        """Whether one of the secret's numbers, or all of it, is among `found`."""
        flat = found.reshape(-1)
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

    def in_bytes(self, found: bytes) -> bool:
        """Whether one of the secret's numbers is written in `found`."""
        rich = self.values[distinctive(self.values, _SINGLE_BITS)][:_MOST_VALUES]
        if any(_written(value, found) for value in rich):
            return True
        single = self.whole.astype(np.float32)
        return single.size >= _MANY and single.tobytes() in found

    def in_text(self, found: str) -> bool:
        """Whether a number printed in `found` is one of the secret's, rounded."""
        exact, rough = _printed(found, self.values)
        return bool(exact) or len(rough) >= _MANY


def distinctive(values: Array, least: int = _LEAST_BITS) -> NDArray[np.bool_]:
    """Which numbers cannot turn up by chance: finite, with many bits in use."""
    mantissa, _ = np.frexp(np.where(np.isfinite(values), values, 0.0))
    bits = np.ldexp(mantissa, least)
    return np.isfinite(values) & (bits != np.rint(bits))


def search(
    root: object, secrets: Iterable[Secret], *, skip: Iterable[object] = ()
) -> list[str]:
    """What was found of the secrets, in words; empty if nothing was."""
    wanted = list(secrets)
    found: list[str] = []
    for one in reachable(root, skip=skip):
        for secret in wanted:
            where = _holds(one, secret)
            if where:
                found.append(f"{secret.name} in {where}")
        if len(found) > _MANY:
            break
    for kind, text in _texts(root):
        found += [f"{s.name} in its {kind}" for s in wanted if s.in_text(text)]
    packed = _pickled(root)
    if packed:
        found += [f"{s.name} in its pickle" for s in wanted if s.in_bytes(packed)]
    return list(dict.fromkeys(found))


def search_bytes(
    root: object, secrets: Mapping[str, bytes], *, skip: Iterable[object] = ()
) -> list[str]:
    """Names of the byte strings that were found in the graph or the pickle."""
    packed = _pickled(root)
    found = {name for name, secret in secrets.items() if secret in packed}
    for one in reachable(root, skip=skip):
        held = _buffer(one)
        text = one if isinstance(one, str) else ""
        found |= {
            name
            for name, secret in secrets.items()
            if (held and secret in held) or (text and secret.hex() in text)
        }
    return sorted(found)


# -- the contracts -------------------------------------------------------------------


def what_is_handed_out_holds_no_exact_value(subject: Subject) -> None:
    """No data, exact statistic or noise in the result, its pickle, repr or parts."""
    if subject.keeps_data or not subject.inputs:
        return
    run = _known(subject)
    skip = [value for value in subject.inputs.values() if value is not None]
    found = search([run.result, run.made], secrets_of(subject, run), skip=skip)
    require(not found, f"exact values were found: {'; '.join(found[:_MANY])}")


def the_ledger_holds_no_exact_value(subject: Subject) -> None:
    """No data, exact statistic or noise in any row of the ledger that paid."""
    if not subject.inputs:
        return
    run = _known(subject)
    kept = [run.ledger.entries(), run.ledger.report(), _rows(run.ledger)]
    found = search(kept, secrets_of(subject, run))
    require(not found, f"exact values were found: {'; '.join(found[:_MANY])}")


def no_noise_key_is_left_behind(subject: Subject) -> None:
    """After a release its key is nowhere: not in the result, not in the ledger."""
    if not subject.takes_source:
        return
    run = subject.seeded
    assert run.keys is not None
    require(run.keys.keys, "source was not asked for a key: it is ignored")
    if subject.keeps_data:
        return
    keys = {f"key {i}": key for i, key in enumerate(run.keys.keys)}
    found = search_bytes([run.result, run.made, run.ledger], keys, skip=[run.keys])
    require(not found, f"the noise key was found: {', '.join(found)}")


CONTRACTS = (
    what_is_handed_out_holds_no_exact_value,
    the_ledger_holds_no_exact_value,
    no_noise_key_is_left_behind,
)


def _known(subject: Subject) -> Run:
    """A release whose exact inputs are recorded, where a source can be given."""
    return subject.seeded if subject.takes_source else subject.sample


def secrets_of(subject: Subject, run: Run) -> list[Secret]:
    """The subject's data, its own secrets, and each passage's exact value and noise."""
    named = {f"the data {n}": value for n, value in subject.inputs.items()}
    named |= subject.secrets
    for i, passage in enumerate(run.tape.passages if run.tape else ()):
        exact = [part for part in passage.value if part.dtype.kind == "f"]
        for j, part in enumerate(exact):
            named[f"the exact value {i}.{j} of {passage.name}"] = part
        if isinstance(passage.released, np.ndarray) and len(exact) == 1:
            if passage.released.shape == exact[0].shape:
                noise = np.asarray(passage.released, dtype=np.float64) - exact[0]
                named[f"the noise {i} of {passage.name}"] = noise
    found: list[Secret] = []
    for name, value in named.items():
        for where, array in _numbers(value):
            with contextlib.suppress(ValueError):  # labels and other small numbers
                found.append(Secret.of(f"{name}{where}", array))
    if not found:
        raise ContractBroken("there is nothing to search for: give data with digits")
    return found


# -- one object ----------------------------------------------------------------------


def _holds(one: object, secret: Secret) -> str:
    """Where the secret is in this object alone; empty if it is not."""
    if isinstance(one, str):
        return "a string" if secret.in_text(one[:_LONGEST_TEXT]) else ""
    if isinstance(one, bool | np.bool_) or one is None:
        return ""
    held = _buffer(one)
    if held:
        return f"a {type(one).__name__}" if secret.in_bytes(held) else ""
    for part, array in _numbers(one):
        if secret.in_numbers(array):
            return f"a {type(one).__name__}{part} of shape {array.shape}"
    return ""


def _numbers(one: Any) -> Iterator[tuple[str, Array]]:
    """The numbers of one object: a scalar, an array, a flat list, a dict of arrays."""
    if isinstance(one, dict):
        for key, value in one.items():
            for part, array in _numbers(value):
                yield f"[{key!r:.40}]{part}", array
        return
    if isinstance(one, bool | str | bytes) or one is None:
        return
    if isinstance(one, list | tuple):
        plain = [x for x in one if isinstance(x, int | float)]
        if plain and len(plain) == len(one):
            yield "", np.asarray([float(x) for x in plain if abs(x) < 2**62])
        elif one and all(isinstance(x, list | tuple) for x in one):
            try:
                yield "", np.asarray(one, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                return
        return
    if not (isinstance(one, float | np.number) or hasattr(one, "__array__")):
        return
    try:
        array = np.asarray(np.ma.getdata(one))
    except Exception:  # a deleted device buffer, a lazy array that cannot be read
        return
    if array.dtype.kind in "fc":
        array = array.astype(np.complex128)
        yield "", np.ascontiguousarray(array).view(np.float64)


def _buffer(one: object) -> bytes:
    if isinstance(one, bytes | bytearray):
        return bytes(one)
    if isinstance(one, memoryview):
        return one.tobytes() if one.contiguous else b""
    getvalue = getattr(one, "getvalue", None)  # io.BytesIO, io.StringIO
    if callable(getvalue) and type(one).__module__ == "_io":
        value = getvalue()
        return value if isinstance(value, bytes) else str(value).encode()
    return b""


def _written(value: float, found: bytes) -> bool:
    number = np.float64(value)
    for signed in (number, -number):
        data = signed.tobytes()
        if data in found or data[::-1] in found:
            return True
    return False


def _texts(root: object) -> Iterator[tuple[str, str]]:
    for one in root if isinstance(root, list) else [root]:
        for kind, show in (("repr", repr), ("str", str)):
            yield kind, show(one)[:_LONGEST_TEXT]


def _pickled(root: object) -> bytes:
    """The pickles of what can be pickled; a refusal keeps every secret."""
    packed = []
    for one in root if isinstance(root, list) else [root]:
        try:
            packed.append(pickle.dumps(one))
        except Exception:  # any reason not to be pickled is a good one here
            continue
    return b"".join(packed)


def _printed(text: str, values: Array) -> tuple[set[float], set[float]]:
    """Which of `values` the text prints, to many digits and to a few.

    A few digits agree by chance now and then: several such numbers are asked for.
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
