"""Hooks: callbacks at each phase and event, for a distributed or federated caller.

A hook is told *that* something happened and the counters after it, never a record, a
gradient, a parameter or a noise. It runs when the call is complete: an exception in a
hook reaches the caller, and what was done stays done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from demur.unlearning.stream.phase import Phase

Kind: TypeAlias = Literal[
    "calibrate", "phase", "insert", "delete", "publish", "drift", "recalibrate"
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class StreamEvent:
    """One event: what, in which phase (after `before`), and the counters after it."""

    kind: Kind
    phase: Phase
    before: Phase
    events_seen: int
    inserts_seen: int
    deletes_seen: int
    record_id: str | None = None


Hook: TypeAlias = Callable[[StreamEvent], None]


class Hooks:
    """Callbacks by kind; "*" stands for every kind.

    >>> hooks = Hooks()
    >>> hooks.on("phase", lambda event: print(event.phase.name))
    >>> hooks.fire(StreamEvent("phase", Phase.LEARNING, Phase.CALIBRATION, 5, 5, 0))
    LEARNING
    """

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def on(self, kind: str, hook: Hook) -> None:
        """Call `hook` after every event of this kind."""
        if kind != "*" and kind not in KINDS:
            raise ValueError(f"kind must be '*' or one of {KINDS}; got {kind!r}")
        if not callable(hook):
            raise TypeError(f"hook must be callable; got {type(hook).__name__}")
        self._hooks.setdefault(kind, []).append(hook)

    def fire(self, event: StreamEvent) -> None:
        """Call the hooks of this kind, then those of "*", in the order of `on`."""
        for kind in (event.kind, "*"):
            for hook in self._hooks.get(kind, ()):
                hook(event)
