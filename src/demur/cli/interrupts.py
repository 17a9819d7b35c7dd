"""Interrupts (Ctrl-C) of commands that charge a ledger.

Before anything is charged an interrupt stops at once. Afterwards it depends on whether
the work can be resumed. If it can (its noise key is stored until the commit), it stops
at once and says how. If it cannot, stopping would lose what was paid: the first Ctrl-C
is acknowledged and the work continues to its end; a second one stops it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from demur.cli.shell import Interrupted, errors
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.ledger import Ledger


class InterruptGuard:
    """Handles SIGINT for one command; call `begin` before something is charged."""

    def __init__(self) -> None:
        self._active = False
        self.interrupted = False
        self._before: Any = None

    def begin(self) -> None:
        """From here on the first interrupt is delayed."""
        self._active = True

    def cancel(self) -> None:
        """Nothing was charged: raise an interrupt that was delayed."""
        self._active = False
        if self.interrupted:
            raise KeyboardInterrupt

    def __enter__(self) -> InterruptGuard:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            return self  # a background job, which ignores interrupts
        try:
            self._before = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # signals belong to the main thread
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _: int, __: FrameType | None) -> None:
        if not self._active or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        errors.print(
            "[bold]interrupt noted:[/] the release is paid for already and would be"
            " lost. Continuing to the end; press Ctrl-C again to stop now.",
            highlight=False,
        )


class GuardedLedger(Ledger):
    """A ledger that delays interrupts from its first charge on."""

    guard: InterruptGuard | None = None

    def _write_charge(self, *given: Any) -> Entry:
        guard, self.guard = self.guard, None  # for the first charge only
        if guard is None:
            return super()._write_charge(*given)
        guard.begin()
        try:
            return super()._write_charge(*given)
        except BaseException:
            self.guard = guard
            guard.cancel()
            raise


@contextmanager
def explain_interrupt(
    open_ledger: Callable[[], Ledger] | None, go_on: Callable[[list[Entry]], str]
) -> Iterator[None]:
    """Make an interrupt name the entries charged in the block, and how to continue.

    `open_ledger` opens the ledger again, if there is one: the interrupted one may be in
    the middle of a transaction. `go_on(new entries)` says how to continue.
    """
    before = _entries(open_ledger)
    try:
        yield
    except KeyboardInterrupt as stop:
        known = {entry.id for entry in before}
        new = [entry for entry in _entries(open_ledger) if entry.id not in known]
        raise Interrupted(f"{spent_words(new)} {go_on(new)}".strip()) from stop


def _entries(open_ledger: Callable[[], Ledger] | None) -> list[Entry]:
    if open_ledger is None:
        return []
    try:
        with open_ledger() as ledger:
            return ledger.entries()
    except (DemurError, ValueError, OSError):  # no ledger yet
        return []


def spent_words(new: list[Entry]) -> str:
    """A sentence that says which entries are spent."""
    if not new:
        return "Nothing was spent."
    named = ", ".join(f"entry {entry.sequence} ({entry.label!r})" for entry in new)
    return f"Spent: {named}. It stays spent."
