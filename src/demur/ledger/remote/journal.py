"""The journal of a served ledger: every write is a call, under a name made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from demur.core.adjacency import Unit
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import DemurError, LedgerDamaged
from demur.durable.chain import Tip
from demur.ledger.approval.requests import Decision
from demur.ledger.journal import Declared, Journal, Row
from demur.ledger.reading import declaration_from_text
from demur.ledger.remote.mirror import RemoteStore
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.receipts import Receipt

# What the service knows better than its client.
_OWN = ("kind", "declaration", "actor", "unsafe")
_SAME = ("declaration", "count", "input", "noise")


class RemoteJournal(Journal):
    """What is entered in a ledger that a service keeps."""

    def __init__(
        self,
        store: RemoteStore,
        terms: Terms,
        ledger_id: str,
        acknowledged: Acknowledged,
    ) -> None:
        super().__init__(store, terms, ledger_id, None, acknowledged)
        self._caller = store.caller
        self._declarations: dict[str, Declaration] = {}

    def _write(self, call: str, **data: Any) -> Any:
        """Make a call that writes, and keep the receipts of what it wrote."""
        newest = self._acknowledged.newest
        known = None if newest is None else str(newest)
        answer = self._caller.write(call, knows=known, **data)
        self._acknowledged.keep(Receipt.from_json(r) for r in answer["receipts"])
        return answer["result"]

    def charge(
        self,
        body: rows.Body,
        text: str,
        declaration: Declaration,
        *,
        purpose: str = "",
        again: bool = False,
    ) -> Row:
        """Ask for a charge; what comes back must be for what was asked."""
        asked = {name: value for name, value in body.items() if name not in _OWN}
        sequence, row = self._write(
            "charge", declaration=declaration.to_json(), purpose=purpose, **asked
        )
        if any(row[name] != body[name] for name in _SAME):
            raise LedgerDamaged(
                "the service answered with another charge than it was asked for. Count"
                " what was asked as spent, and verify the ledger."
            )
        self._declarations[body["declaration"]] = declaration
        return sequence, row

    def commit(self, entry_id: str, artefact: str | None) -> None:
        """Bind an entry to what was released."""
        self._write("commit", entry=entry_id, artefact=artefact)

    def draw(
        self, entry_id: str, count: int, token: str, *, again: bool = False
    ) -> int:
        """Hand out runs of a reservation."""
        return int(self._write("draw", entry=entry_id, count=count, token=token))

    def note(
        self,
        entry_id: str,
        about: str,
        facts: Mapping[str, Any],
        token: str,
        actor: str,
        *,
        again: bool = False,
    ) -> None:
        """Add facts about an entry."""
        self._write("note", entry=entry_id, about=about, facts=dict(facts), token=token)

    def decide(self, number: int, approved: bool, reason: str, actor: str) -> Decision:
        """Approve or decline a request."""
        return Decision(
            **self._write("decide", number=number, approved=approved, reason=reason)
        )

    def recover(
        self,
        actor: str,
        tip: Tip,
        receipts: Iterable[Receipt],
        write_down: Mapping[Unit, Budget] | str | None,
    ) -> NoReturn:
        """Refuse: what was lost is entered again where the ledger is kept."""
        raise DemurError(
            "a served ledger is recovered where it is kept, with `demur ledger"
            " recover`. Nothing was written."
        )

    def find(self, idempotency_key: str, *, settled: bool) -> Declared | None:
        """The charge under this key."""
        row = self._caller.read("find", key=idempotency_key, settled=settled)
        if row is None:
            return None
        return int(row[0]), row[1], self.stored_declaration(row[1]["declaration"])

    def charged(self, entry_id: str) -> tuple[rows.Body, bool, Declaration]:
        """The row of a charge, whether it is committed, and its declaration."""
        body, committed = self._caller.read("charged", entry=entry_id)
        return body, bool(committed), self.stored_declaration(body["declaration"])

    def stored_declaration(self, digest: str) -> Declaration:
        """A declaration that a row names."""
        if digest not in self._declarations:
            text = self._caller.read("declaration", digest=digest)
            if digest_of_text(text) != digest:
                raise LedgerDamaged(
                    "the service answered with another declaration than the row names."
                    " Verify the ledger."
                )
            self._declarations[digest] = declaration_from_text(text)
        return self._declarations[digest]

    def drawn(self, entry_id: str) -> int:
        """How many runs of a reservation were handed out."""
        return int(self._caller.read("drawn", entry=entry_id))
