"""Ctrl-C and the ledger: what is paid for is not lost, and nothing is paid for twice.

Before anything is charged an interrupt stops at once. Afterwards it depends on whether
the work can be taken up again. If it can (its noise key is kept until it is committed),
it stops at once and says how. If it cannot, stopping would lose what was paid: the
first Ctrl-C is noted and the work goes on to its end; a second one stops it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.markup import escape

from demur.cli.shell import Interrupted, errors
from demur.core.adjacency import Unit
from demur.core.entry import Entry
from demur.core.errors import DemurError, LedgerMismatch
from demur.durable.store import shown_address
from demur.ledger import Budget, Ledger


class Hold:
    """Handles SIGINT for one command; `begin` when something is about to be paid."""

    def __init__(self) -> None:
        self._holding = False
        self.asked = False
        self._before: Any = None

    def begin(self) -> None:
        """From here on the first interrupt waits."""
        self._holding = True

    def cancel(self) -> None:
        """Nothing was paid after all; an interrupt that waited counts now."""
        self._holding = False
        if self.asked:
            raise KeyboardInterrupt

    def __enter__(self) -> Hold:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            return self  # a job in the background: it is not to be interrupted
        try:
            self._before = signal.signal(signal.SIGINT, self._hear)
        except ValueError:  # not the main thread: whoever runs us has the signals
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, _: int, __: FrameType | None) -> None:
        if not self._holding or self.asked:
            raise KeyboardInterrupt
        self.asked = True
        errors.print(
            "[bold]interrupt noted:[/] this is paid for already, and would be lost."
            " Going on to the end; press Ctrl-C again to stop now.",
            highlight=False,
        )


class HeldLedger(Ledger):
    """A ledger that holds interrupts back from the first charge on."""

    hold: Hold | None = None

    def _write_charge(self, *given: Any) -> Entry:
        hold, self.hold = self.hold, None  # the first charge alone
        if hold is None:
            return super()._write_charge(*given)
        hold.begin()
        try:
            return super()._write_charge(*given)
        except BaseException:
            self.hold = hold
            hold.cancel()
            raise


def open_or_make(
    ledger: str,
    *,
    dataset: str,
    budgets: Mapping[Unit, Budget],
    filter: str | None = None,
    hold: Hold | None = None,
) -> Ledger:
    """The ledger at `ledger`, or a new one with these budgets, which is told.

    A new ledger keeps its budgets also where the command is refused later, so somebody
    who asks again with another epsilon must know of it.
    """
    kind = Ledger if hold is None else HeldLedger
    try:
        found = kind.open(ledger)
    except LedgerMismatch:
        found = kind.open(ledger, dataset=dataset, budgets=budgets, filter=filter)
        for unit, budget in budgets.items():
            errors.print(
                f"a new ledger, {escape(shown_address(ledger))}: epsilon"
                f" {budget.epsilon:g} at delta {budget.delta:g} for"
                f" {escape(str(unit))}",
                highlight=False,
                soft_wrap=True,
            )
    if hold is not None:
        assert isinstance(found, HeldLedger)
        found.hold = hold
    return found


@contextmanager
def told_on_interrupt(
    open_ledger: Callable[[], Ledger] | None, go_on: Callable[[list[Entry]], str]
) -> Iterator[None]:
    """An interrupt inside says which entries were charged since, and how to go on.

    `open_ledger` opens the ledger again, if there is one: the interrupted one may be in
    the middle of something. `go_on` is told the new entries.
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
    """What new entries mean, in a sentence."""
    if not new:
        return "Nothing was spent."
    named = ", ".join(f"entry {entry.sequence} ({entry.label!r})" for entry in new)
    return f"Spent, and it stays spent: {named}."
