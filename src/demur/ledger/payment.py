"""The one door: what is drawn is paid for first, and closed when it is released.

    with ledger.paid(mechanism, label="visitors", digest=mechanism.digest(x)) as
    payment:
        noisy = mechanism.apply(x, payment.key)
        payment.released(digest_of_array(noisy))

Every engine spends through it and in no other way. The order is the guarantee:

- the charge is durable before `paid` returns, or it is declined: nothing is drawn;
- the key is bound to the declaration and to the digest of the input, so that it draws
  for what was paid for and for nothing else (`core.entropy.Binding`);
- at the end of the block the entry is committed, and its key is wiped everywhere;
- a block that fails leaves the entry spent and uncommitted. With an idempotency key the
  same call takes it up again, with the same noise for the same input, and pays nothing.

A payment that outlives a block (reports that Spark draws later, deletions handed out
one by one) is kept without `with` and ends with `commit`, or never: it stays spent.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from demur.core.entropy import NoiseKey
from demur.core.entry import Entry
from demur.ledger.reservation import Draw, Reservation


class Steps(Protocol):
    """What a payment asks of the ledger that it was made by."""

    def _key(self, entry: Entry, digest: str | None) -> NoiseKey: ...

    def _commit(self, entry: Entry, artefact: str | None) -> None: ...

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]: ...

    def _drawn(self, entry: Entry) -> int: ...


class Payment:
    """A charge that is written down, and the right to draw its noise."""

    def __init__(self, ledger: Steps, entry: Entry, digest: str | None) -> None:
        self.entry = entry
        self._ledger, self._digest = ledger, digest
        self._key: NoiseKey | None = None
        self._artefact: str | None = None
        self._committed = False

    @property
    def key(self) -> NoiseKey:
        """The bound key of the entry's noise.

        It is handed out once, to the process that paid. With an idempotency key and a
        digest it is handed out again to a repeat of the same call, until the commit.
        """
        if self._key is None:
            self._key = self._ledger._key(self.entry, self._digest)
        return self._key

    @property
    def reservation(self) -> Reservation:
        """The runs that the entry paid for, to be drawn one by one."""
        return Reservation(self.entry, self._ledger._draw_many, self._ledger._drawn)

    def released(self, artefact: str) -> None:
        """Name what was released, by a digest: the commit will bind the entry to it."""
        self._artefact = artefact

    def commit(self, artefact: str | None = None) -> None:
        """Close the entry now: bind it to what was released, and wipe its key."""
        if not self._committed:
            if artefact is not None:
                self._artefact = artefact
            self._ledger._commit(self.entry, self._artefact)
            self._committed = True

    def __enter__(self) -> Payment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()

    def __repr__(self) -> str:
        return f"Payment({self.entry.label!r})"
