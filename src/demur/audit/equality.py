"""Where two results differ: structure, types, text and every bit of every number.

Places are named, values never: what differs between two worlds is a secret of theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from demur.core.entry import Entry
from demur.ledger import Ledger

# Of an entry: its id, time and place in the book are new each time, in any world.
_OF_ENTRY = ("label", "declaration", "count", "noise")
_PLAIN = (str, bytes, int, bool, type(None), Enum, PurePath, type)
Seen: TypeAlias = dict[tuple[int, int], tuple[object, object]]


def differences(one: object, two: object, at: str = "result") -> Iterator[str]:
    """The places at which two objects differ; none if they are equal.

    Arrays and floats are compared bit by bit, mappings with the order of their keys,
    other objects by what they hold. What holds nothing that can be read (a function
    made anew) counts as different.
    """
    yield from _compare(one, two, at, {})


def _compare(one: object, two: object, at: str, seen: Seen) -> Iterator[str]:
    if one is two or (id(one), id(two)) in seen:
        return
    # Kept alive: the id of an object that is gone may be another one's by now.
    seen[id(one), id(two)] = one, two
    if type(one) is not type(two):
        yield f"{at} (type)"
    elif isinstance(one, _PLAIN):
        if one != two:
            yield at
    elif isinstance(one, float):
        assert isinstance(two, float)
        if struct.pack("<d", one) != struct.pack("<d", two):
            yield at
    elif _is_array(one):
        yield from _arrays(np.asarray(one), np.asarray(two), at, seen)
    elif isinstance(one, Mapping):
        assert isinstance(two, Mapping)
        if list(one) != list(two):
            yield f"{at} (keys, or their order)"
            return
        for key in one:
            yield from _compare(one[key], two[key], f"{at}[{_shown(key)}]", seen)
    elif isinstance(one, Sequence):
        assert isinstance(two, Sequence)
        if len(one) != len(two):
            yield f"{at} (length)"
            return
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            yield from _compare(a, b, f"{at}[{i}]", seen)
    else:
        yield from _objects(one, two, at, seen)


def _objects(one: Any, two: Any, at: str, seen: Seen) -> Iterator[str]:
    if isinstance(one, Ledger):
        yield from _compare(one.entries(), two.entries(), f"{at}.entries()", seen)
        return
    names: list[str] | None = None
    if isinstance(one, Entry):
        names = list(_OF_ENTRY)
    elif is_dataclass(one):
        names = [field.name for field in fields(one)]
    elif isinstance(one, FunctionType | MethodType | ModuleType):
        names = None
    elif hasattr(one, "__dict__"):
        if list(vars(one)) != list(vars(two)):
            yield f"{at} (attributes)"
            return
        names = list(vars(one))
    if names is None:
        if not _says_equal(one, two):
            yield at
        return
    for name in names:
        yield from _compare(
            getattr(one, name), getattr(two, name), f"{at}.{name}", seen
        )


def _says_equal(one: object, two: object) -> bool:
    try:
        return bool(one == two)
    except (TypeError, ValueError):
        return False


def _is_array(value: object) -> bool:
    return all(hasattr(value, name) for name in ("__array__", "dtype", "shape"))


def _arrays(
    one: np.ndarray[Any, Any],
    two: np.ndarray[Any, Any],
    at: str,
    seen: Seen,
) -> Iterator[str]:
    if one.dtype != two.dtype:
        yield f"{at} (dtype)"
    elif one.shape != two.shape:
        yield f"{at} (shape)"
    elif one.dtype.hasobject:
        yield from _compare(one.tolist(), two.tolist(), at, seen)
    elif one.tobytes() != two.tobytes():
        yield at


def _shown(key: object) -> str:
    """A key that is a short name; others may be data."""
    text = repr(key)
    return text if isinstance(key, str) and len(text) <= 40 else "..."
