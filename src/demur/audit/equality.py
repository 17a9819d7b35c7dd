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


def differences(one: object, two: object, at: str = "result") -> Iterator[str]:
    """The places at which two objects differ; none if they are equal.

    Arrays and floats are compared bit by bit, mappings with the order of their keys,
    other objects by their attributes. Objects that cannot be read (a function created
    in each run) count as different.
    """
    yield from _compare(one, two, at, {})


def _compare(one: object, two: object, at: str, seen: Seen) -> Iterator[str]:
    if one is two or (id(one), id(two)) in seen:
        return
    # Kept alive: the id of a deleted object may be reused.
    seen[id(one), id(two)] = one, two
    if type(one) is not type(two):
        yield f"{at} (type)"
        return
    if isinstance(one, _CARRIERS) and hasattr(one, "__dict__"):
        # A subclass of a plain type can have attributes as well.
        yield from _compare(vars(one), vars(two), f"{at}.__dict__", seen)
    if isinstance(one, _PLAIN):
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
    names, others = _names(one), _names(two)
    if names != others:
        yield f"{at} (attributes)"
    elif names:
        for name in names:
            a, b = getattr(one, name), getattr(two, name)
            yield from _compare(a, b, f"{at}.{name}", seen)
    elif not _equal(one, two):
        # Without attributes, yet perhaps not empty: slots, a partial, a generator.
        states = _state(one), _state(two)
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


def _equal(one: object, two: object) -> bool:
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
