"""Payments: a charge that is in the ledger, its noise key, and its commit.

    with ledger.paid(count, label="visitors", digest=count.digest(x)) as payment:
        noisy = count.apply(x, payment.key)
        payment.released(digest_of_array(noisy))

Every engine spends through `Ledger.paid` and in no other way, in this order:

- the charge is durable before `paid` returns, or it is declined and nothing is drawn;
- the key is bound to the declaration and to the digest of the input, so that it draws
  for what was paid for and for nothing else (`core.entropy.Binding`);
- at the end of the block the entry is committed, and its key is wiped: on disk, and in
  every ledger object that shares this one's memory;
- a block that fails leaves the entry spent and uncommitted, and its key wiped. With an
  idempotency key and a digest the same call returns the same entry, with the same noise
  for the same input, and pays nothing.

A commit that fails (`LedgerUnreachable`, `OutcomeUnknown`) is raised at the end of the
block. The entry stays spent; `payment.commit()` may be called again.

A payment that outlives a block (reports that Spark draws later, deletions handed out
one by one) is used without `with` and ends with `commit`, or never: it stays spent.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import NoReturn, Protocol

from demur.core import validate
from demur.core.entropy import NoiseKey
from demur.core.entry import Entry
from demur.core.errors import DemurError, NoiseReuse
from demur.ledger.reservation import Draw, Reservation


class PayingLedger(Protocol):
    """The ledger that made a payment, as the payment sees it."""

    def _key(self, entry: Entry, digest: str | None) -> NoiseKey: ...

    def _commit(self, entry: Entry, artefact: str | None) -> None: ...

    def _abandon(self, entry: Entry) -> None: ...

    def _draw_many(self, entry: Entry, count: int) -> tuple[Draw, ...]: ...

    def _drawn(self, entry: Entry) -> int: ...


class Payment:
    """A charge that is in the ledger, and the right to draw its noise."""

    def __init__(self, ledger: PayingLedger, entry: Entry, digest: str | None) -> None:
        self._ledger, self._entry, self._digest = ledger, entry, digest
        self._lock = threading.Lock()
        self._key: NoiseKey | None = None
        self._artefact: str | None = None
        self._committed = self._failed = False

    @property
    def entry(self) -> Entry:
        """The entry that was charged."""
        return self._entry

    @property
    def key(self) -> NoiseKey:
        """The bound key of the entry's noise.

        It is handed out once, to the process that paid. With an idempotency key and a
        digest it is handed out again to a repeat of the same call, until the commit.
        """
        with self._lock:  # threads that share a payment share its key
            if self._failed:
                raise NoiseReuse(
                    f"the block of {self._entry.label!r} failed: the entry is spent and"
                    " its key wiped. Pay again; a payment with an idempotency_key and a"
                    " digest is found again and costs nothing."
                )
            if self._key is None:
                self._key = self._ledger._key(self._entry, self._digest)
            return self._key

    @property
    def reservation(self) -> Reservation:
        """The runs that the entry paid for, to be drawn one by one."""
        return Reservation(self._entry, self._ledger._draw_many, self._ledger._drawn)

    def released(self, artefact: str) -> None:
        """Name what was released, by a digest: the commit will bind the entry to it."""
        validate.name(artefact=artefact)
        with self._lock:
            if artefact != self._artefact and (self._committed or self._artefact):
                raise DemurError(
                    f"{self._entry.label!r} was already bound to"
                    f" {self._artefact or 'no artefact'!r:.80}; got {artefact!r:.80}."
                    " One entry pays for one release: pay for the other one. Nothing"
                    " more was spent."
                )
            self._artefact = artefact

    def commit(self, artefact: str | None = None) -> None:
        """Close the entry now: bind it to what was released, and wipe its key."""
        if artefact is not None:
            self.released(artefact)
        if not self._committed:
            self._ledger._commit(self._entry, self._artefact)
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
        elif not self._committed:
            with self._lock:
                self._failed = True
            self._ledger._abandon(self._entry)

    def __copy__(self) -> Payment:
        return self

    def __deepcopy__(self, _: object) -> Payment:
        return self  # a second payment would draw the noise of the entry again

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Payment cannot be pickled: its noise could be drawn twice. Pay in the"
            " process that draws."
        )

    def __repr__(self) -> str:
        return f"Payment({self._entry.label!r})"
