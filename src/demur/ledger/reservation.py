"""Reservations: many runs of a mechanism, paid for at once and drawn one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from demur.core import validate
from demur.core.entry import Entry

LARGEST = 2**40  # runs of one entry


@dataclass(frozen=True)
class Draw:
    """One run of a reservation: the entry that paid, and the number of the run."""

    entry: Entry
    index: int


class Reservation:
    """`count` runs of one mechanism; `draw()` hands them out and then declines."""

    def __init__(
        self,
        entry: Entry,
        draw_many: Callable[[Entry, int], tuple[Draw, ...]],
        drawn: Callable[[Entry], int],
    ) -> None:
        self.entry = entry
        self._draw_many = draw_many
        self._drawn = drawn

    @property
    def count(self) -> int:
        """How many draws were paid for."""
        return self.entry.count

    @property
    def drawn(self) -> int:
        """How many have been handed out, by any process."""
        return self._drawn(self.entry)

    @property
    def remaining(self) -> int:
        """How many are left."""
        return self.count - self.drawn

    def draw(self) -> Draw:
        """The next draw, durable before it returns; declines after `count`."""
        return self.draw_many(1)[0]

    def draw_many(self, count: int) -> tuple[Draw, ...]:
        """The next `count` draws in one durable row, or none if fewer are left.

        They take one transaction, so a busy client can take a thousand and use them one
        by one. Those it has not used when it ends are lost: paid, and never handed out
        again.
        """
        validate.count(count=count)
        return self._draw_many(self.entry, int(count))

    def __repr__(self) -> str:
        return f"Reservation({self.entry.label!r}, count={self.count})"
