"""A lock around methods of objects that several threads use.

A call is several writes, and threads must not mix them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class HasLock(Protocol):
    """An object with a reentrant lock (hooks call back in the same thread)."""

    _lock: threading.RLock


Self = TypeVar("Self", bound=HasLock)
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(
    method: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], R]:
    """A method that waits for its object's lock."""

    @functools.wraps(method)
    def alone(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone
