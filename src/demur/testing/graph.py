"""Everything that can be reached from an object.

Attributes, slots, containers, closures, defaults, bound methods, partials, the frames
of generators, weak references, and whatever else Python's own collector can follow. Not
followed: modules, classes, code, and a function's globals: they are the program, not
what the object holds.
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
    seen = {id(one) for one in skip}
    # Objects made on the way (a frame's locals) must live as long as their ids do.
    kept: list[object] = []
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _PROGRAM):
            continue
        seen.add(id(one))
        kept.append(one)
        if len(kept) > _MOST_OBJECTS:
            raise RecursionError(
                f"more than {_MOST_OBJECTS} objects hang together with this one: they"
                " cannot all be searched"
            )
        yield one
        if not isinstance(one, _ATOMS):
            waiting.extend(_next(one))


def instances(root: object, kind: type[T]) -> list[T]:
    """All objects of one kind that `root` leads to."""
    return [one for one in reachable(root) if isinstance(one, kind)]


def _next(one: Any) -> Iterator[object]:
    if isinstance(one, types.FunctionType):
        yield from one.__closure__ or ()
        yield from one.__defaults__ or ()
        yield one.__kwdefaults__
        yield one.__dict__
        return
    if isinstance(one, types.FrameType):
        yield dict(one.f_locals)
        return
    if isinstance(one, types.GeneratorType):
        yield one.gi_frame
        yield one.gi_yieldfrom
    if isinstance(one, types.CoroutineType):
        yield one.cr_frame
    if isinstance(one, types.TracebackType):
        yield one.tb_frame
        yield one.tb_next
        return
    if isinstance(one, BaseException):
        yield from (one.args, one.__cause__, one.__context__, one.__traceback__)
    if isinstance(one, weakref.ref):
        yield one()
    yield from gc.get_referents(one)
    # The collector does not see slots of classes it does not track, nor instance
    # dictionaries that are still inlined into their object.
    with contextlib.suppress(AttributeError):
        yield object.__getattribute__(one, "__dict__")
    for cls in type(one).__mro__:
        for slot in vars(cls).values():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # never set
                    yield slot.__get__(one)
