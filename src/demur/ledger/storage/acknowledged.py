"""What a ledger has acknowledged to this process and this machine.

A ledger that lacks a row which it acknowledged was restored from an older copy, or is a
standby that had not received the row when it was promoted. What was spent is still
spent, so such a ledger is not written to until somebody has recovered the rows.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable

from demur.core.errors import DemurError, LedgerDamaged
from demur.durable.chain import Tip
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt, ReceiptFile
from demur.ledger.storage.writing import Writing

_RECENT = 1000  # receipts in memory, for a server that is lost before one is asked for
_CHECKED = "demur: has the newest row that was acknowledged"


class Acknowledged:
    """The newest row, the last receipts, and the file of them, if there is one."""

    def __init__(self, ledger_id: str = "", file: ReceiptFile | None = None) -> None:
        self._file = file
        self._newest: Tip | None = None if file is None else file.newest(ledger_id)
        self._recent: deque[Receipt] = deque(maxlen=_RECENT)

    def check(self, writing: Writing) -> None:
        """Refuse a ledger that lacks the newest row."""
        newest, connection = self._newest, writing.connection
        if newest is None:
            return
        # Another connection may lead to another server; the same one cannot lose rows.
        known = connection.info.get(_CHECKED, False)
        if known and writing.state.sequence >= newest.sequence:
            return
        if rows.hash_at(connection, newest.sequence) != newest.hash:
            if str(newest) not in rows.recovered_tips(connection):
                raise lost(newest)
            self._newest = None  # lost, and accounted for
        connection.info[_CHECKED] = True

    def keep(self, receipts: Iterable[Receipt]) -> None:
        """Keep the receipts of rows that are durable now."""
        new = list(receipts)
        if not new:
            return
        last = max(new, key=lambda receipt: receipt.sequence)
        if self._newest is None or last.sequence > self._newest.sequence:
            self._newest = last.tip
        self._recent.extend(new)
        if self._file is None:
            return
        try:
            self._file.append(new)
        except (OSError, DemurError) as error:
            # The charge is durable, and must not look as if it had failed.
            warnings.warn(
                f"receipts are not kept on this machine: {error}. If the ledger's"
                " server loses rows, this machine cannot enter them again.",
                RuntimeWarning,
                stacklevel=2,
            )
            self._file = None

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
