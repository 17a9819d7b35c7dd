"""Object graph: every object reachable from an object.

Attributes, slots, containers, closures, defaults, bound methods, partials, the frames
of generators, weak references, and whatever else Python's garbage collector follows.
Modules, classes, code and a function's globals are not followed: they are the program.
"""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_OBJECTS = 500_000
_PROGRAM = (
    types.ModuleType,
    types.CodeType,
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
)
_ATOMS = (bool, int, float, complex, str, bytes, type(None))


def reachable(root: object, *, skip: Iterable[object] = ()) -> Iterator[object]:
    """Every object that `root` leads to, once each; `skip` is not entered."""
    seen = {id(skipped) for skipped in skip}
    # Objects created on the way (a frame's locals) must live as long as their ids.
    visited: list[object] = []
    slots: dict[type, tuple[types.MemberDescriptorType, ...]] = {}
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _PROGRAM):
            continue
        seen.add(id(item))
        visited.append(item)
        if len(visited) > _MOST_OBJECTS:
            raise RecursionError(
                f"more than {_MOST_OBJECTS} objects can be reached from this one, too"
                " many to search"
            )
        yield item
        if not isinstance(item, _ATOMS):
            cls = type(item)
            if cls not in slots:
                slots[cls] = _slots(cls)
            waiting.extend(_next(item, slots[cls]))


def instances(root: object, kind: type[T]) -> list[T]:
    """All objects of one kind that `root` leads to."""
    return [item for item in reachable(root) if isinstance(item, kind)]


def _slots(cls: type) -> tuple[types.MemberDescriptorType, ...]:
    """The slots of a class and of those it derives from."""
    return tuple(
        slot
        for base in cls.__mro__
        for slot in vars(base).values()
        if isinstance(slot, types.MemberDescriptorType)
    )


def _next(item: Any, slots: tuple[types.MemberDescriptorType, ...]) -> Iterator[object]:
    if isinstance(item, types.FunctionType):
        yield from item.__closure__ or ()
        yield from item.__defaults__ or ()
        yield item.__kwdefaults__
        yield item.__dict__
        return
    if isinstance(item, types.FrameType):
        yield dict(item.f_locals)
        return
    if isinstance(item, types.GeneratorType):
        yield item.gi_frame
        yield item.gi_yieldfrom
    if isinstance(item, types.CoroutineType):
        yield item.cr_frame
    if isinstance(item, types.TracebackType):
        yield item.tb_frame
        yield item.tb_next
        return
    if isinstance(item, BaseException):
        yield from (item.args, item.__cause__, item.__context__, item.__traceback__)
    if isinstance(item, weakref.ref):
        yield item()
    yield from gc.get_referents(item)
    # The collector does not see slots of classes it does not track, nor instance
    # dictionaries that are still inlined into their object.
    with contextlib.suppress(AttributeError):
        yield object.__getattribute__(item, "__dict__")
    for slot in slots:
        with contextlib.suppress(AttributeError):  # never set
            yield slot.__get__(item)
