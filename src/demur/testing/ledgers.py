"""Ledgers that log every call, and snapshots of a ledger's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from demur.core.adjacency import Unit
from demur.core.entropy import NoiseKey, Seeded
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.ledger import Budget, Filter, Ledger
from demur.testing.result import require

# Enough epsilon for several releases of an example, and too little for any. A much
# larger epsilon would need better samplers: their distance counts e^epsilon times.
ROOMY, TIGHT = 60.0, 1e-7


class LoggingLedger(Ledger):
    """A ledger in memory that logs the order of charges, keys and commits.

    `log` holds ("charge" | "key" | "commit", entry id). The guarantee depends on the
    order: the charge first, one key for an entry, then the commit.
    """

    def __init__(
        self, epsilon: float, delta: float, unit: Unit, filter: Filter | str | None
    ) -> None:
        """A ledger with one budget."""
        self.log: list[tuple[str, str]] = []
        self.written: list[Entry] = []  # as returned, not as read back
        super().__init__(
            Budget(epsilon, delta), unit=unit, filter=filter, dataset="contract checks"
        )

    def _charge(self, *arguments: Any, **named: Any) -> Entry:
        entry = super()._charge(*arguments, **named)
        self.log.append(("charge", entry.id))
        self.written.append(entry)
        return entry

    def _key(self, entry: Entry, digest: str | None) -> NoiseKey:
        noise = super()._key(entry, digest)
        self.log.append(("key", entry.id))
        return noise

    def _commit(self, entry: Entry, artefact: str | None) -> None:
        super()._commit(entry, artefact)
        self.log.append(("commit", entry.id))


@dataclass(frozen=True)
class RecordedKeys:
    """A seeded source that records its keys, so that they can be searched for."""

    seeded: Seeded
    keys: list[bytes]
    private: ClassVar[bool] = False

    def new_key(self) -> bytes:
        """The next key of the sequence."""
        key = self.seeded.new_key()
        self.keys.append(key)
        return key


@dataclass(frozen=True)
class LedgerState:
    """Everything in a ledger that a refusal must not change.

    That a request was declined is a row of its own, which costs nothing.
    """

    rows: int
    entries: tuple[str, ...]
    totals: tuple[tuple[tuple[str, str], ...], ...]
    log: tuple[tuple[str, str], ...]


def ledger_state(ledger: LoggingLedger) -> LedgerState:
    """A snapshot of the ledger."""
    return LedgerState(
        ledger.tip().sequence - len(ledger.declined()),
        tuple(entry.id for entry in ledger.entries()),
        tuple(tuple(sorted(s.accounts.items())) for s in ledger.status()),
        tuple(ledger.log),
    )


@contextmanager
def unchanged(ledger: LoggingLedger, doing: str) -> Iterator[None]:
    """Require that the block leaves the ledger unchanged, even if it raises."""
    before = ledger_state(ledger)
    try:
        yield
    finally:
        after = ledger_state(ledger)
        require(
            after.entries == before.entries,
            f"{doing} wrote {len(after.entries) - len(before.entries)} entries",
        )
        require(after.totals == before.totals, f"{doing} changed the ledger's totals")
        require(after.rows == before.rows, f"{doing} wrote to the ledger")
        require(after.log == before.log, f"{doing} used the ledger: {after.log[-1:]}")


def check_order(ledger: LoggingLedger) -> None:
    """Charge, then one key, then the commit, for every entry of the log."""
    for entry in {entry for _, entry in ledger.log}:
        done = [step for step, whose in ledger.log if whose == entry]
        require(done[0] == "charge", f"noise before the charge: {done}")
        require(done.count("key") <= 1, f"one entry's key was taken twice: {done}")
        if "key" in done and "commit" in done:
            require(
                done.index("key") < done.index("commit"),
                f"the commit came before the noise: {done}",
            )


def declined(error: BaseException) -> bool:
    """Whether an error is a refusal of demur's own."""
    return isinstance(error, DemurError)
