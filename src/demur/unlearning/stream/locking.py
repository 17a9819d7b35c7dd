"""One act at a time: a step is several writes, and two threads must not mix them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class HasLock(Protocol):
    """Anything that takes turns; the lock lets its holder act again (hooks do)."""

    _lock: threading.RLock


Self = TypeVar("Self", bound=HasLock)
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(
    act: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], R]:
    """A method that waits for its object's lock."""

    @functools.wraps(act)
    def alone(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return act(self, *args, **kwargs)

    return alone
