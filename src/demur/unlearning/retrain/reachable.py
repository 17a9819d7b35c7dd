"""Everything a learner can reach: attributes, closures, classes and its modules.

The walk begins at the state and the object itself and goes breadth first, so that a
limit on its length cuts off what is far away. It follows what Python's garbage
collector follows (containers, closures, slots, caches of `functools`), the classes of
the learner, and the global variables of the modules they are defined in, with the
modules that these import. Modules of the standard library, of installed packages and
of demur are left alone, unless a class of the learner is defined there.
"""

from __future__ import annotations

import array
import gc
import io
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import numpy as np

from demur.unlearning.models.base import Mode

MOST_OBJECTS = 100_000
BYTES = (bytes, bytearray, memoryview, array.array)
BUFFERS = (io.BytesIO, io.StringIO)
_SHORTEST = 8  # bytes or characters of four numbers: names are shorter, mostly
_NOTHING_INSIDE = (type(None), bool, complex, CodeType, BuiltinFunctionType, np.dtype)
_DEMUR = __name__.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Place:
    """Something that can hold numbers, and how it is reached.

    `holder` is kept, so that its id stays its own for as long as places are compared.
    """

    name: str
    holder: object


@dataclass(frozen=True)
class Reached:
    """The places of one learner; `cut` if there were too many objects for all."""

    places: tuple[Place, ...]
    cut: bool


def reach(mode: Mode) -> Reached:
    """The places that `mode` can reach."""
    return _Walk(mode).run()


class _Walk:
    def __init__(self, mode: Mode) -> None:
        self._seen: set[int] = set()
        self._kept: list[object] = []  # ids are compared: nothing may be freed
        self._queue: deque[tuple[str, object]] = deque()
        self._family = {c.__module__ for c in type(mode).__mro__ if c is not object}
        self._home = type(mode).__module__.partition(".")[0]
        for key, value in mode.state().items():
            self._add(f"state {key!r}", value)
        self._add(type(mode).__name__, mode)
        for ancestor in type(mode).__mro__:
            if ancestor is not object:
                self._add(ancestor.__qualname__, ancestor)

    def run(self) -> Reached:
        places = []
        while self._queue and len(self._seen) <= MOST_OBJECTS:
            name, value = self._queue.popleft()
            if _holds_numbers(value):
                places.append(Place(name, value))
            for part, inner in self._inside(name, value):
                self._add(part, inner)
        return Reached(tuple(places), cut=bool(self._queue))

    def _add(self, name: str, value: object) -> None:
        if id(value) in self._seen or _is_number(value):
            return
        if isinstance(value, _NOTHING_INSIDE):
            return
        if isinstance(value, ModuleType) and not self._owns(value.__name__):
            return
        if isinstance(value, (type, FunctionType)) and not self._owns(value.__module__):
            return
        self._seen.add(id(value))
        self._kept.append(value)
        self._queue.append((name, value))

    def _owns(self, module: str | None) -> bool:
        if module is None:
            return True
        if module in self._family:
            return module.partition(".")[0] not in sys.stdlib_module_names
        top = module.partition(".")[0]
        return top != _DEMUR and (top == self._home or _written_here(module))

    def _inside(self, name: str, value: object) -> Iterator[tuple[str, object]]:
        if isinstance(value, (str, *BYTES, *BUFFERS)):
            return
        if isinstance(value, np.ndarray):
            if value.dtype.kind == "O":
                yield from _items(name, value.ravel()[:MOST_OBJECTS].tolist())
            if value.base is not None:
                yield f"{name}.base", value.base
        elif isinstance(value, Mapping):
            yield from _items(f"{name} key", _safely(value.keys))
            for key, inner in _safely(value.items):
                yield f"{name}[{_short(key)}]", inner
        elif isinstance(value, (list, tuple, deque, Set)):
            yield from _items(name, _safely(lambda: value))
        elif isinstance(value, (ModuleType, type)):
            for key, inner in list(vars(value).items()):
                if not (key.startswith("__") and key.endswith("__")):
                    yield f"{getattr(value, '__qualname__', name)}.{key}", inner
            yield from self._module_of(value)
        elif isinstance(value, FunctionType):
            yield from self._of_function(name, value)
        elif isinstance(value, MethodType):
            yield f"{name}.__self__", value.__self__
            yield name, value.__func__
        else:
            for key, inner in list(getattr(value, "__dict__", {}).items()):
                if key != "__doc__":
                    yield f"{name}.{key}", inner
            # Slots, wrappers, caches of functools, partials, generators' variables.
            yield from _items(f"{name} holds", gc.get_referents(value))

    def _of_function(
        self, name: str, function: FunctionType
    ) -> Iterator[tuple[str, object]]:
        names = function.__code__.co_freevars
        for variable, cell in zip(names, function.__closure__ or (), strict=False):
            try:
                yield f"{name} closure {variable!r}", cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        for part in (function.__defaults__, function.__kwdefaults__):
            yield f"{name} defaults", part
        yield f"{name}.__dict__", vars(function)
        yield from self._module_of(function)

    def _module_of(self, value: object) -> Iterator[tuple[str, object]]:
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        if module is not None:
            yield module.__name__, module


def numbers_in(holder: object) -> Iterator[list[float]]:
    """The plain numbers that a container or an object holds itself, in order."""
    if isinstance(holder, Mapping):
        parts: tuple[Iterable[object], ...] = (
            _safely(holder.values),
            _safely(holder.keys),
        )
    elif isinstance(holder, (ModuleType, type)):
        parts = (list(vars(holder).values()),)
    elif isinstance(holder, (list, tuple, deque, Set)):
        parts = (_safely(lambda: holder),)
    elif isinstance(holder, FunctionType):
        parts = (_closed_over(holder),)
    else:
        inside = getattr(holder, "__dict__", {})
        parts = (list(inside.values()), gc.get_referents(holder))
    for part in parts:
        numbers = [_float(value) for value in part if _is_number(value)]
        if len(numbers) > 1:
            yield numbers


def _holds_numbers(value: object) -> bool:
    if isinstance(value, (str, bytes)):
        return len(value) >= _SHORTEST
    if isinstance(value, (np.ndarray, *BYTES, *BUFFERS, int)):
        return True
    if hasattr(type(value), "__array__"):
        return True
    return next(numbers_in(value), None) is not None


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() <= 64  # a longer one is a string of bytes
    return isinstance(value, (float, np.floating, np.integer, Decimal, Fraction))


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, OverflowError):  # a Decimal that signals, a Fraction too large
        return math.nan


def _closed_over(function: FunctionType) -> list[object]:
    found: list[object] = list(function.__defaults__ or ())
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found


def _items(name: str, values: Iterable[object]) -> Iterator[tuple[str, object]]:
    for at, inner in enumerate(values):
        yield f"{name}[{at}]", inner


def _safely(listed: object) -> list:  # type: ignore[type-arg]
    """The members as a list; none where a container refuses to be read."""
    try:
        return list(listed())  # type: ignore[operator]
    except Exception:
        return []


def _short(key: object) -> str:
    text = repr(key) if isinstance(key, (str, int, float)) else type(key).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def _written_here(module: str) -> bool:
    """Whether a module is the user's own: no standard library, nothing installed."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return False
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path
