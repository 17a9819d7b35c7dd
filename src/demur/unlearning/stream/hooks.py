"""Callbacks at each phase and event, for a distributed or federated caller.

A hook hears *that* something happened and the counters after it, never a record, a
gradient, a parameter or a noise. It runs when the act is complete: an exception in a
hook reaches the caller, and the act stands.
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
class Happened:
    """One event: what, in which phase (after `before`), and the counters after it."""

    kind: Kind
    phase: Phase
    before: Phase
    events_seen: int
    inserts_seen: int
    deletes_seen: int
    record_id: str | None = None


Hook: TypeAlias = Callable[[Happened], None]


class Hooks:
    """Callbacks by kind; "*" hears everything.

    >>> hooks = Hooks()
    >>> hooks.on("phase", lambda happened: print(happened.phase.name))
    >>> hooks.fire(Happened("phase", Phase.LEARNING, Phase.CALIBRATION, 5, 5, 0))
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

    def fire(self, happened: Happened) -> None:
        """Call the hooks of this kind, then those of "*", in the order of `on`."""
        for kind in (happened.kind, "*"):
            for hook in self._hooks.get(kind, ()):
                hook(happened)
