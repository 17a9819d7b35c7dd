"""A release: a private value and the ledger entry that paid for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from demur.core.display import Displayed
from demur.core.entry import Entry

T = TypeVar("T")


@dataclass(frozen=True)
class Release(Displayed, Generic[T]):
    """A private value and its entry; the exact value is not kept anywhere."""

    value: T
    entry: Entry

    def statement(self, *, records: int | None = None) -> str:
        """The privacy statement of the entry: one paragraph to read and sign.

        With the public number of `records` it warns when delta is not below 1/n.
        """
        return self.entry.statement(records=records)
