"""The writing half of a ledger: charges, draws, commits and notes.

Engines use `paid` alone (see `demur.ledger.payment`); `demur.ledger.charging` has the
steps of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demur.core import validate
from demur.core.adjacency import Unit
from demur.core.declaration import Mechanism
from demur.core.entropy import OsEntropy, Source
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.durable.chain import Tip, evidence_digest, sign
from demur.ledger.approval.requests import Decision
from demur.ledger.charging import LedgerCharging
from demur.ledger.payment import Payment
from demur.ledger.reader import Recovery
from demur.ledger.reservation import LARGEST, Reservation
from demur.ledger.rules.budget import Budget
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt


@dataclass(frozen=True)
class Unfinished:
    """An entry that was charged and not committed, and its noise key on this disk.

    Its run is under way, was interrupted or failed, or another program draws its noise
    and reports no end. With the key the run can be repeated: the same noise, no second
    charge.
    """

    entry: Entry
    key: Path | None


class LedgerWriter(LedgerCharging):
    """The writing half of `Ledger`."""

    def paid(
        self,
        mechanism: Mechanism,
        *,
        label: str,
        digest: str | None = None,
        count: int = 1,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Payment:
        """The payment for a mechanism, charged durably, with the key of its noise.

        Use it as a context: the end of the block commits the entry, an exception leaves
        it spent (`demur.ledger.payment`). A charge that does not fit is declined with
        `BudgetExceeded`.

        - `digest` binds the entry to its input, as `mechanism.digest(value)` gives it.
          It is stored under a secret key, so that nobody can test guesses against the
          ledger.
        - `count` pays for that many runs at once (`payment.reservation`).
        - The same `idempotency_key` with the same mechanism and input is the same
          entry, charged once: a restarted job finds it again.
        - `source` is the entropy of the noise: the operating system, or, in tests, a
          `Seeded` source.
        - `block_delta` is the delta that a block is priced at, where the filter has no
          better price for the event.

        If the server is lost, the charge is repeated within `Timeouts.call`, and pays
        once. After that, `LedgerUnreachable` means that nothing was spent and
        `OutcomeUnknown` that it may have been: repeat the call with the same
        idempotency key.

        >>> from demur import AddOrRemoveOne, Budget, Ledger
        >>> from demur.mechanisms import Gaussian
        >>> ledger = Ledger(Budget(epsilon=2.0, delta=1e-6), unit=AddOrRemoveOne())
        >>> count = Gaussian(4.0, {AddOrRemoveOne(): 1.0})
        >>> with ledger.paid(count, label="visitors") as payment:
        ...     noisy = count.apply([1234.0], payment.key)
        >>> round(ledger.epsilon(), 3)
        1.061
        """
        validate.count(count=count)
        if count > LARGEST:
            raise ValueError(f"count must be at most 2^40; got {count}")
        entry = self._charge(
            mechanism,
            int(count),
            label,
            digest,
            idempotency_key,
            OsEntropy() if source is None else source,
            block_delta,
        )
        return Payment(self, entry, digest)

    def charge(
        self,
        mechanism: Mechanism,
        *,
        label: str,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Entry:
        """The entry of a release whose noise another program draws.

        It is `paid` without the key, with the same arguments.
        """
        return self.paid(
            mechanism,
            label=label,
            digest=digest,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        ).entry

    def reserve(
        self,
        mechanism: Mechanism,
        *,
        count: int,
        label: str,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Reservation:
        """A reservation of `count` runs; `draw()` hands them out and stops at `count`.

        With an idempotency key a restarted job finds its reservation again, and the
        draws already made still count. The noise of the runs is drawn by another
        program, as with `charge`; `paid(..., count=...)` has a key as well.
        """
        return self.paid(
            mechanism,
            label=label,
            digest=digest,
            count=count,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        ).reservation

    def resumed(self, idempotency_key: str) -> Payment | None:
        """The payment of an earlier call with this key, to commit what it released.

        For a process that died after its release was durable elsewhere and before the
        commit. None means that there is no such entry, and that no call under way will
        write one.
        """
        entry = self.find(idempotency_key, settled=True)
        return None if entry is None else Payment(self, entry, None)

    def annotate(self, entry: Entry, about: str, facts: Mapping[str, Any]) -> None:
        """Add facts about an entry to the chain, such as an audit or a utility.

        They cost nothing and are never removed. They must be safe to publish: computed
        from releases and public data alone.
        """
        self._check_writable()
        token = secrets.token_hex(16)
        self._journal.note(entry.id, about, facts, token, self._actor)

    # -- approvals ----------------------------------------------------------------

    def approve(self, number: int, *, reason: str) -> Decision:
        """Approve the request with this number; its charge can then be repeated.

        Nobody approves what they asked for: `actor` of `open` is who decides. A second
        decision on one request is refused (`AlreadyDecided`).
        """
        self._check_writable()
        return self._journal.decide(number, True, reason, self._actor)

    def decline(self, number: int, *, reason: str) -> Decision:
        """Decline the request with this number, which nobody can charge from then on.

        Whoever made a request may decline it, to take it back.
        """
        self._check_writable()
        return self._journal.decide(number, False, reason, self._actor)

    def sign_evidence(self, content: bytes) -> str | None:
        """The signature of an evidence pack's manifest; None without a signing key.

        It signs a digest that no row has (`evidence_digest`): such a signature cannot
        be passed off as that of a row.
        """
        key = self._signer
        return None if key is None else sign(key, evidence_digest(content))

    # -- what was lost ----------------------------------------------------------

    def receipt(self, entry: Entry) -> Receipt:
        """The receipt of a charge: its row, and its place in the chain.

        Whoever keeps it can enter the charge again if the ledger's server loses it
        (`recover`). Clients of a server keep theirs by themselves, in `receipts.jsonl`
        in their folder of keys.
        """
        recent = self._acknowledged.receipt(entry.sequence, entry.id)
        if recent is not None:
            return recent
        with self._store.read() as connection:
            stored = rows.charge_by_id(connection, entry.id)
            receipt = stored and rows.receipt(connection, self.id, stored[0])
        if receipt is None:
            raise DemurError(f"{entry.label!r} is not an entry of this ledger")
        return receipt

    def recover(
        self,
        tip: Tip | str,
        *,
        receipts: Iterable[Receipt] = (),
        write_down: Mapping[Unit, Budget] | str | None = None,
    ) -> Recovery:
        """Enter again what this ledger has lost, up to the last known `tip`.

        For a standby that was promoted, or a backup that is gone on with. `receipts`
        are those of all clients (`parse_receipts`); charges among them are spent as
        before, whether they fit or not. If a row is missing among them, `write_down`
        says what the missing ones spent at most: "all" that is left, a budget for each
        unit, or "covered" if an earlier write-down was for these rows too. Until then
        whoever knows the tip, or wrote a lost row, cannot spend.
        """
        self._check_writable()
        return self._journal.recover(
            self._actor,
            Tip.parse(tip) if isinstance(tip, str) else tip,
            receipts,
            write_down,
        )

    # -- what was not finished --------------------------------------------------

    def unfinished(self) -> tuple[Unfinished, ...]:
        """The entries that were charged and never committed, in order.

        A key counts if it is in this ledger's folder of keys on this machine; another
        machine may have others.
        """
        # Names from the folder, never from the ledger: no row becomes a path.
        folder = self._keys_folder
        files = folder.glob("*.key") if folder is not None and folder.is_dir() else ()
        stored = {path.stem: path for path in files}
        with self._store.read() as connection:
            return tuple(
                Unfinished(
                    self._entry(
                        sequence,
                        body,
                        rows.declaration(connection, body["declaration"]),
                    ),
                    stored.get(body["id"]),
                )
                for sequence, body in rows.uncommitted(connection)
            )

    def wipe_key(self, entry: Entry) -> None:
        """Overwrite and remove the noise key of an entry; the entry stays spent.

        Its run can then not be repeated with the same noise, and another run is another
        charge. Nothing is written to the ledger.
        """
        self._journal.charged(entry.id)  # or it is no entry of this ledger
        self._keys.wipe(entry.id)
