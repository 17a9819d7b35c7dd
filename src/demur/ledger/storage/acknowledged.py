"""What a ledger has acknowledged to this process and this machine.

A ledger that lacks a row which it acknowledged was restored from an older copy, or is a
standby that had not received the row when it was promoted. What was spent is still
spent, so such a ledger is not written to until somebody has recovered the rows.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from demur.core.errors import DemurError, LedgerDamaged
from demur.durable.chain import Tip
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt, ReceiptFile
from demur.ledger.storage.writing import Writing

_RECENT = 1000  # receipts in memory, for a server that is lost before one is asked for
_CHECKED = "demur: has the newest row that was acknowledged"


class Acknowledged:
    """The newest row, the last receipts, and the file of them, if there is one."""

    def __init__(self, ledger_id: str, file: ReceiptFile | None) -> None:
        self._ledger_id, self._file = ledger_id, file
        self._newest: Tip | None = None if file is None else file.newest(ledger_id)
        self._recent: deque[Receipt] = deque(maxlen=_RECENT)

    def check(self, writing: Writing) -> None:
        """Refuse a ledger that lacks the newest row."""
        newest, connection, state = self._newest, writing.connection, writing.state
        if newest is None:
            return
        # On a server another connection may lead to another one; the same connection
        # leads to the same, which cannot lose rows. A file can be written over.
        server = connection.dialect.name == "postgresql"
        known = server and connection.info.get(_CHECKED, False)
        if known and state.sequence >= newest.sequence:
            return
        if rows.hash_at(connection, newest.sequence) != newest.hash:
            if str(newest) not in rows.recovered_tips(connection):
                raise lost(newest)
            # All up to it is accounted for: as of now, this is the newest.
            self._newest = Tip(state.sequence, state.hash)
            self._write(lambda file: file.mark_recovered(self._ledger_id))
        connection.info[_CHECKED] = True

    @property
    def newest(self) -> Tip | None:
        """The newest row that was acknowledged, as far as it is known here."""
        return self._newest

    def know(self, tip: Tip) -> None:
        """Remember a row that somebody has shown to be acknowledged."""
        if self._newest is None or tip.sequence > self._newest.sequence:
            self._newest = tip

    def keep(self, receipts: Iterable[Receipt]) -> None:
        """Keep the receipts of rows that are durable now."""
        new = list(receipts)
        if not new:
            return
        self.know(max(new, key=lambda receipt: receipt.sequence).tip)
        self._recent.extend(new)
        self._write(lambda file: file.append(new))

    def _write(self, write: Callable[[ReceiptFile], None]) -> None:
        if self._file is None:
            return
        try:
            write(self._file)
        except (OSError, DemurError) as error:
            self._file = None
            # The charge is durable, and must not look as if it had failed, also where
            # warnings are errors.
            with suppress(Warning):
                warnings.warn(
                    f"receipts are not kept on this machine: {error}. If the ledger's"
                    " server loses rows, this machine cannot enter them again.",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def receipt(self, sequence: int, entry_id: str) -> Receipt | None:
        """The receipt of a charge that this process wrote not long ago."""
        for receipt in reversed(self._recent):
            if receipt.sequence == sequence and entry_id in receipt.body:
                return receipt
        return None


def lost(tip: Tip) -> LedgerDamaged:
    """The error for a ledger that lacks a row which it acknowledged."""
    return LedgerDamaged(
        f"the ledger does not contain the row {tip}, which it had acknowledged: it was"
        " restored from an older copy, cut off or rewritten, or its server was replaced"
        " by one that had not received the row. What was spent since then is still"
        " spent. Go back to a copy that has the row, or let `demur ledger recover`"
        " enter what was lost. Nothing was spent."
    )
