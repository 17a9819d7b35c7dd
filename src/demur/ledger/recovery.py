"""Recovery: what is done when a ledger lacks rows that it had acknowledged.

A standby that was promoted, or a backup, ends before the ledger did. What the rows
after that end spent is still spent. Whoever wrote them has their receipts, which follow
from one another up to the last tip that anybody knows. If they reach from that tip down
to a row of this ledger, nothing is missing: every charge, draw, commit and note among
them is entered again, and the row that says so holds their texts, so that anybody can
follow the lost chain. If some are missing, the budget is written down for them as well,
and no run of an open reservation is handed out any more: it may have been already.

What is entered again is spent, whether it fits the budget or not: it was released. All
of it is one transaction.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy.engine import Connection

from demur.core.adjacency import Unit
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.durable import clock
from demur.durable.chain import Tip, canonical, signed_by
from demur.ledger.reader import Recovery, recovery_of
from demur.ledger.reading import declaration_from_text
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import is_paid, ways_to_pay
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.rules.write_down import lost_charges
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt
from demur.ledger.storage.writing import Writing

Persist = Callable[[Callable[[Writing], "Recovery"]], "Recovery"]


def recover(
    terms: Terms,
    ledger_id: str,
    actor: str,
    persist: Persist,
    tip: Tip,
    receipts: Iterable[Receipt],
    write_down: Mapping[Unit, Budget] | str | None,
) -> Recovery:
    """Enter what was lost up to `tip`, and account for what nobody can name."""
    most = _checked_write_down(terms, write_down)
    known = _Known(terms, ledger_id, receipts)
    token = secrets.token_hex(16)

    def work(writing: Writing) -> Recovery:
        connection = writing.connection
        if writing.again:
            before = rows.with_token(connection, token, token)
            if before is not None:
                return recovery_of(*before)
        chain = _Chain(connection, min(known.first, tip.sequence) - 1)
        lost, path = known.lost(chain, tip), known.path(chain, tip)
        # A lost row beside the path belongs to a chain whose end nobody knows.
        complete = bool(path) and chain.has(_below(path[0])) and len(path) == len(lost)
        if not complete and write_down is None:
            missing = path[0].sequence - 1 if path else tip.sequence
            raise ValueError(
                f"there is no receipt of row {missing}, or not of all rows before it."
                " Give the receipts of all clients (receipts.jsonl in their folders of"
                " keys), or write the budget down for what they spent: write_down="
                "'all', or {unit: Budget(...)} if somebody can vouch for it. Nothing"
                " was written."
            )
        entry = _Entry(terms, writing, known)
        first = min([r.sequence for r in lost] + [writing.state.sequence + 1])
        for receipt in lost:
            entry.enter(receipt)
        written_down = 0
        if not complete:
            label = f"written down: rows {first} to {tip.sequence} were lost"
            written_down = entry.write_down(most, label, actor)
            entry.close_reservations()
        others = [str(r.tip) for r in lost if r.tip != tip]
        body: rows.Body = {
            "kind": "recovered",
            "id": token,
            "token": token,
            "tips": [*others, str(tip)],
            "after": str(_below(path[0])) if complete else None,
            "rows": [receipt.body for receipt in path] if complete else None,
            "entered": entry.entered,
            "written_down": written_down,
            "actor": actor,
            "time": clock.now(),
        }
        return recovery_of(writing.append(body), body)

    return persist(work)


def _checked_write_down(
    terms: Terms, write_down: Mapping[Unit, Budget] | str | None
) -> Mapping[Unit, Budget] | None:
    if write_down is None or write_down == "all":
        return None
    units = [unit for unit, _ in terms.budgets]
    if not isinstance(write_down, Mapping) or set(write_down) != set(units):
        raise ValueError(
            "write_down must be 'all', or a budget for each unit of the ledger"
            f" ({', '.join(map(str, units))}); got {write_down!r:.80}. Nothing was"
            " written."
        )
    return write_down


class _Known:
    """The receipts that were given, checked, with the price of each charge."""

    def __init__(
        self, terms: Terms, ledger_id: str, receipts: Iterable[Receipt]
    ) -> None:
        self._by_hash: dict[str, Receipt] = {}
        self.first = 2**62  # the number of the first row
        self.charges: dict[str, tuple[Declaration, list[Amounts | None]]] = {}
        for receipt in receipts:
            where = f"the receipt of row {receipt.sequence}"
            if receipt.ledger_id != ledger_id:
                raise ValueError(
                    f"{where} is of another ledger ({receipt.ledger_id[:12]}...)."
                    " Nothing was written."
                )
            row_hash = receipt.tip.hash
            signer = terms.signer
            if signer and not signed_by(signer, row_hash, receipt.signature):
                raise ValueError(
                    f"{where} is not signed by the ledger's signer. Nothing was"
                    " written."
                )
            self._by_hash[row_hash] = receipt
            self.first = min(self.first, receipt.sequence)
            body = json.loads(receipt.body)
            if body.get("kind") == "charge":
                # Before the lock is taken: a price may take a second.
                self.charges[row_hash] = _charge(terms, receipt, body, where)

    def lost(self, chain: _Chain, tip: Tip) -> list[Receipt]:
        """The receipts of rows that this ledger lacks, in order."""
        if chain.has(tip):
            raise ValueError(
                f"the ledger contains {tip}, or has recovered it: nothing up to that"
                " row is lost. Nothing was written."
            )
        given = self._by_hash.values()
        lost = sorted((r for r in given if not chain.has(r.tip)), key=_number)
        if lost and lost[-1].sequence > tip.sequence:
            raise ValueError(
                "there is a receipt of a later row than the tip: give"
                f" {lost[-1].tip} as the tip. Nothing was written."
            )
        return lost

    def path(self, chain: _Chain, tip: Tip) -> list[Receipt]:
        """The lost rows that lead down from the tip, as far as they are known."""
        path: list[Receipt] = []
        wanted = tip
        while not chain.has(wanted):
            receipt = self._by_hash.get(wanted.hash)
            if receipt is None or receipt.sequence != wanted.sequence:
                break
            path.append(receipt)
            wanted = _below(receipt)
        return path[::-1]


class _Chain:
    """The rows of the ledger from one on, and the lost ones it accounts for."""

    def __init__(self, connection: Connection, first: int) -> None:
        self._hashes = rows.hashes_from(connection, first)
        self._recovered = rows.recovered_tips(connection)

    def has(self, tip: Tip) -> bool:
        """Whether a row is there, or is accounted for."""
        there = self._hashes.get(tip.sequence) == tip.hash
        return there or str(tip) in self._recovered


def _number(receipt: Receipt) -> int:
    return receipt.sequence


def _below(receipt: Receipt) -> Tip:
    return Tip(receipt.sequence - 1, receipt.previous)


def _charge(
    terms: Terms, receipt: Receipt, body: rows.Body, where: str
) -> tuple[Declaration, list[Amounts | None]]:
    """The declaration of a lost charge and what it spent, which must be its price."""
    text = receipt.declaration
    if text is None or digest_of_text(text) != body.get("declaration"):
        raise ValueError(f"{where} lacks its declaration. Nothing was written.")
    declaration = declaration_from_text(text)
    try:
        spent = [s if s is None else amounts.from_data(s) for s in body["spent"]]
        ways = ways_to_pay(terms, declaration, body["count"], body["block_delta"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where} is no charge. Nothing was written.") from error
    if not is_paid(ways, spent):
        raise ValueError(
            f"{where} says that less was spent than its declaration costs. Nothing was"
            " written."
        )
    return declaration, spent


class _Entry:
    """The rows that a recovery adds."""

    def __init__(self, terms: Terms, writing: Writing, known: _Known) -> None:
        self.entered = 0
        self._terms, self._writing, self._known = terms, writing, known
        self._connection = writing.connection

    def enter(self, receipt: Receipt) -> None:
        """Enter one lost row again, as far as it still means something."""
        body: dict[str, Any] = json.loads(receipt.body)
        kind, entry = body["kind"], body["id"]
        if kind == "charge":
            self._charge(receipt, body)
        elif rows.charge_by_id(self._connection, entry) is None:
            return  # a declined request, or of an entry that nobody can name
        elif kind == "draw":
            self._draw(entry, body["index"] + body["count"])
        elif kind == "commit":
            if rows.body_of(self._connection, entry, "commit") is None:
                self._append(receipt, body)
        elif kind == "note":
            self._append(receipt, body)

    def write_down(
        self, most: Mapping[Unit, Budget] | None, label: str, actor: str
    ) -> int:
        """Charge for what nobody can name; how many rows that took."""
        totals = amounts.from_text(self._writing.state.totals)
        charges = lost_charges(self._terms, most, totals, "entries that were lost")
        for declaration, spent in charges:
            text = canonical(declaration.to_json())
            body = {
                "kind": "charge",
                "id": secrets.token_hex(16),
                "key": digest_of_text(secrets.token_bytes(32)),  # nobody draws for it
                "label": label,
                "declaration": digest_of_text(text),
                "count": 1,
                "noise": "os",
                "input": None,
                "idempotency_key": None,
                "block_delta": None,
                "actor": actor,
                "time": clock.now(),
            }
            self._pay(body, text, declaration, spent)
        return len(charges)

    def close_reservations(self) -> None:
        """Hand out what is left of every reservation, to nobody."""
        for _, body in rows.of_kind(self._connection, "charge"):
            if body["count"] > 1:
                self._draw(body["id"], body["count"])

    def _charge(self, receipt: Receipt, body: rows.Body) -> None:
        if rows.charge_by_id(self._connection, body["id"]) is not None:
            return
        key = body["idempotency_key"]
        if key is not None and rows.charge_by_key(self._connection, key) is not None:
            # Its task was repeated since then, and paid again: both are spent.
            body["idempotency_key"] = None
        declaration, spent = self._known.charges[receipt.tip.hash]
        body["again"] = receipt.sequence
        assert receipt.declaration is not None
        self._pay(body, receipt.declaration, declaration, spent)
        self.entered += 1

    def _pay(
        self,
        body: rows.Body,
        text: str,
        declaration: Declaration,
        spent: list[Amounts | None],
    ) -> None:
        totals = amounts.from_text(self._writing.state.totals)
        after = [
            filters.add(total, own or {})
            for total, own in zip(totals, spent, strict=True)
        ]
        curves = rows.profiles_of(declaration, body["count"])
        row = body | {
            "spent": [None if s is None else amounts.to_data(s) for s in spent],
            "profiles": rows.store_shared(self._connection, text, curves),
        }
        self._writing.append(row, amounts.to_text(after), text)

    def _draw(self, entry: str, end: int) -> None:
        """Hand out the draws of an entry up to `end`, to nobody."""
        index = rows.draws(self._connection, entry)
        if index >= end:
            return
        self._writing.append(
            {
                "kind": "draw",
                "id": entry,
                "index": index,
                "count": end - index,
                "token": secrets.token_hex(16),
                "time": clock.now(),
            }
        )

    def _append(self, receipt: Receipt, body: rows.Body) -> None:
        self._writing.append(body | {"again": receipt.sequence})
