"""A transaction that writes to a ledger: its lock, its state, and the rows it adds."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.ledger.storage import header, rows
from demur.ledger.storage.receipts import Receipt


class Writing:
    """One attempt to write: it takes the lock that all writers share.

    `again` says that the outcome of an earlier attempt is unknown.
    """

    def __init__(
        self,
        connection: Connection,
        again: bool,
        ledger_id: str,
        signer: Ed25519PrivateKey | None,
    ) -> None:
        self.connection, self.again = connection, again
        self.state = header.lock(connection)
        self.receipts: list[Receipt] = []  # of rows that this call has written
        self._ledger_id, self._signer = ledger_id, signer

    def append(
        self, body: rows.Body, totals: str | None = None, text: str | None = None
    ) -> int:
        """Add a row, and return its number.

        `totals` are the new ones, if the row changes them; `text` is the declaration of
        a charge.
        """
        previous = self.state.hash
        self.state, own, signature = rows.append(
            self.connection, self.state, body, self._signer, totals
        )
        sequence = self.state.sequence
        self.receipts.append(
            Receipt(self._ledger_id, sequence, previous, own, text, signature)
        )
        return sequence

    def found(self, sequence: int) -> None:
        """Count a row that an earlier attempt of this call has written as its own."""
        if not self.again:
            return
        receipt = rows.receipt(self.connection, self._ledger_id, sequence)
        if receipt is not None:
            self.receipts.append(receipt)
