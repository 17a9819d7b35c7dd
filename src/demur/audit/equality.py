"""Differences between two results: structure, types, text and every bit of numbers.

Only places are named, because the values that differ between two datasets are secret.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from demur.core.entry import Entry
from demur.ledger import Ledger

# Of an entry: its id, time and place in the ledger are new in every run.
_OF_ENTRY = ("label", "declaration", "count", "noise")
_CARRIERS = (str, bytes, int, float, np.ndarray, dict, list, tuple)
_PLAIN = (str, bytes, int, bool, type(None), Enum, PurePath, type)
Seen: TypeAlias = dict[tuple[int, int], tuple[object, object]]


def differences(first: object, second: object, at: str = "result") -> Iterator[str]:
    """The places at which two objects differ; none if they are equal.

    Arrays and floats are compared bit by bit, mappings with the order of their keys,
    other objects by their attributes. Objects that cannot be read (a function created
    in each run) count as different.
    """
    yield from _compare(first, second, at, {})


def _compare(first: object, second: object, at: str, seen: Seen) -> Iterator[str]:
    if first is second or (id(first), id(second)) in seen:
        return
    # Kept alive: the id of a deleted object may be reused.
    seen[id(first), id(second)] = first, second
    if type(first) is not type(second):
        yield f"{at} (type)"
        return
    if isinstance(first, _CARRIERS) and hasattr(first, "__dict__"):
        # A subclass of a plain type can have attributes as well.
        yield from _compare(vars(first), vars(second), f"{at}.__dict__", seen)
    if isinstance(first, _PLAIN):
        if first != second:
            yield at
    elif isinstance(first, float):
        assert isinstance(second, float)
        if struct.pack("<d", first) != struct.pack("<d", second):
            yield at
    elif _is_array(first):
        yield from _arrays(np.asarray(first), np.asarray(second), at, seen)
    elif isinstance(first, Mapping):
        assert isinstance(second, Mapping)
        if list(first) != list(second):
            yield f"{at} (keys, or their order)"
            return
        for key in first:
            yield from _compare(first[key], second[key], f"{at}[{_shown(key)}]", seen)
    elif isinstance(first, Sequence):
        assert isinstance(second, Sequence)
        if len(first) != len(second):
            yield f"{at} (length)"
            return
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            yield from _compare(a, b, f"{at}[{i}]", seen)
    else:
        yield from _objects(first, second, at, seen)


def _objects(first: Any, second: Any, at: str, seen: Seen) -> Iterator[str]:
    if isinstance(first, Ledger):
        yield from _compare(first.entries(), second.entries(), f"{at}.entries()", seen)
        return
    names, others = _names(first), _names(second)
    if names != others:
        yield f"{at} (attributes)"
    elif names:
        for name in names:
            a, b = getattr(first, name), getattr(second, name)
            yield from _compare(a, b, f"{at}.{name}", seen)
    elif not _equal(first, second):
        # Without attributes, yet perhaps not empty: slots, a partial, a generator.
        states = _state(first), _state(second)
        if None in states or any(_compare(*states, at, seen)):
            yield at


def _names(value: Any) -> list[str]:
    """The names of an object's fields and other attributes."""
    if isinstance(value, Entry):
        return list(_OF_ENTRY)
    if isinstance(value, FunctionType | MethodType | ModuleType):
        return []
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    names += [name for name in getattr(value, "__dict__", ()) if name not in names]
    # Cached properties follow from the rest, and exist only where they were used.
    return [
        name
        for name in names
        if not isinstance(getattr(type(value), name, None), cached_property)
    ]


def _state(value: object) -> tuple[Any, ...] | None:
    """How an object would be pickled; None if it cannot be."""
    if isinstance(value, FunctionType | MethodType | ModuleType):
        return None
    try:
        state = value.__reduce_ex__(4)
    except Exception:  # objects refuse to be copied in many ways
        return None
    return state if isinstance(state, tuple) else None


def _equal(first: object, second: object) -> bool:
    try:
        return bool(first == second)
    except (TypeError, ValueError):
        return False


def _is_array(value: object) -> bool:
    return all(hasattr(value, name) for name in ("__array__", "dtype", "shape"))


def _arrays(
    first: np.ndarray[Any, Any],
    second: np.ndarray[Any, Any],
    at: str,
    seen: Seen,
) -> Iterator[str]:
    if first.dtype != second.dtype:
        yield f"{at} (dtype)"
    elif first.shape != second.shape:
        yield f"{at} (shape)"
    elif first.dtype.hasobject:
        yield from _compare(first.tolist(), second.tolist(), at, seen)
    elif first.tobytes() != second.tobytes():
        yield at


def _shown(key: object) -> str:
    """A key if it is a short string; other keys may be data."""
    text = repr(key)
    return text if isinstance(key, str) and len(text) <= 40 else "..."


# -- copies of results that a later run may change -------------------------------------


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy, as deep as possible; parts that cannot be copied are shared."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, a ledger or a key cannot be copied
        pass
    result: Any
    if type(value) is dict:
        memo[id(value)] = result = {}
        result.update((key, copied(part, memo)) for key, part in value.items())
    elif type(value) is list:
        memo[id(value)] = result = []
        result.extend(copied(part, memo) for part in value)
    elif type(value) is tuple:
        result = tuple(copied(part, memo) for part in value)
    elif hasattr(value, "__dict__") and not isinstance(value, Ledger):
        memo[id(value)] = result = object.__new__(type(value))
        vars(result).update((k, copied(part, memo)) for k, part in vars(value).items())
    else:
        result = value
    return result
