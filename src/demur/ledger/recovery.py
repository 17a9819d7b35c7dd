"""Recovery: what is done when a ledger lacks rows that it had acknowledged.

A standby that was promoted, or a backup, ends before the ledger did. What the rows
after that end spent is still spent. Whoever wrote them has their receipts, which follow
from one another up to the last tip that anybody knows. If they reach from that tip down
to a row of this ledger, nothing is missing: every charge, draw, commit and note among
them is entered again, and the row that says so holds their texts, so that anybody can
follow the lost chain. If some are missing, the budget is written down for them as well,
and from then on no run of an entry with several is handed out after a recovery: it may
have been already.

What is entered again is spent, whether it fits the budget or not: it was released. All
of it is one transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

from sqlalchemy.engine import Connection

from demur.core.adjacency import Unit
from demur.core.digest import digest_of_text
from demur.durable import clock
from demur.durable.chain import Tip, canonical
from demur.ledger.lost_rows import SAME, Chain, LostCharge, LostRows
from demur.ledger.reader import Recovery, recovery_of
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.rules.write_down import lost_charges
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt
from demur.ledger.storage.writing import Writing

Persist = Callable[[Callable[[Writing], Recovery]], Recovery]
_COVERED = "covered"


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
    known = LostRows(terms, ledger_id, receipts)
    token = secrets.token_hex(16)

    def work(writing: Writing) -> Recovery:
        connection = writing.connection
        if writing.again:
            before = rows.with_token(connection, token, token)
            if before is not None:
                writing.found(before[0])
                return recovery_of(*before)
        chain = Chain(connection, min(known.first, tip.sequence) - 1)
        if not tip.sequence or chain.has(tip):
            raise ValueError(
                f"the ledger contains {tip}, or has recovered it: nothing up to that"
                " row is lost. Nothing was written."
            )
        path = known.path(chain, tip)
        earlier = known.recovered_on(path)  # lost as well, with what they entered
        accounted = {text for body in earlier for text in body["tips"]}
        lost = known.lost(chain, tip, accounted)
        # A lost row beside the path belongs to a chain whose end nobody knows.
        complete = bool(path) and chain.has(path[0].follows) and len(path) == len(lost)
        if not complete:
            _check_vouched(connection, write_down, path, tip)
        unnamed = not complete or any(body["unnamed"] for body in earlier)
        first = min([r.sequence for r in lost] + [writing.state.sequence + 1])
        again = _Reentry(writing, known)
        for receipt in lost:
            again.enter(receipt)
        written_down = 0
        if not complete and write_down != _COVERED:
            label = f"written down: rows {first} to {tip.sequence} were lost"
            written_down = again.write_down(terms, most, label, actor)
        if unnamed or rows.has_unnamed(connection):
            again.close_reservations()
        others = sorted(
            accounted | {str(r.tip) for r in lost if r.tip != tip}, key=_number
        )
        body: rows.Body = {
            "kind": "recovered",
            "id": token,
            "token": token,
            "tips": [*others, str(tip)],
            "after": str(path[0].follows) if complete else None,
            "rows": [receipt.body for receipt in path] if complete else None,
            "entered": again.entered,
            "written_down": written_down,
            "covered": not complete and write_down == _COVERED,
            "unnamed": unnamed,
            "actor": actor,
            "time": clock.now(),
        }
        return recovery_of(writing.append(body), body)

    return persist(work)


def _checked_write_down(
    terms: Terms, write_down: Mapping[Unit, Budget] | str | None
) -> Mapping[Unit, Budget] | None:
    if write_down is None or write_down in ("all", _COVERED):
        return None
    units = [unit for unit, _ in terms.budgets]
    if not isinstance(write_down, Mapping) or set(write_down) != set(units):
        raise ValueError(
            "write_down must be 'all', 'covered', or a budget for each unit of the"
            f" ledger ({', '.join(map(str, units))}); got {write_down!r:.80}. Nothing"
            " was written."
        )
    for part in write_down.values():
        terms.filter.check(part)  # One in which nothing fits would take nothing.
    return write_down


def _check_vouched(
    connection: Connection,
    write_down: Mapping[Unit, Budget] | str | None,
    path: list[Receipt],
    tip: Tip,
) -> None:
    """Refuse to go on without knowing, or being told, what the missing rows spent."""
    if write_down is None:
        missing = path[0].sequence - 1 if path else tip.sequence
        raise ValueError(
            f"receipts are missing: there is no receipt of row {missing}, or one leads"
            " to another end. Give the receipts of all clients (receipts.jsonl in their"
            " folders of keys), or write the budget down for what the missing rows"
            " spent: write_down='all', or {unit: Budget(...)} if somebody can vouch for"
            " it, or 'covered' if an earlier write-down was for these rows too. Nothing"
            " was written."
        )
    if write_down == _COVERED and not rows.has_unnamed(connection):
        raise ValueError(
            "write_down='covered' needs an earlier recovery that wrote the budget down."
            " Nothing was written."
        )


def _number(text: str) -> int:
    return Tip.parse(text).sequence


class _Reentry:
    """Enters rows again, and counts the charges among them."""

    def __init__(self, writing: Writing, known: LostRows) -> None:
        self.entered = 0
        self._writing, self._known = writing, known
        self._connection = writing.connection

    def enter(self, receipt: Receipt) -> None:
        """Enter one lost row again, as far as it still means something."""
        body = dict(self._known.bodies[receipt.tip.hash])
        kind, entry = body["kind"], body["id"]
        if kind == "charge":
            self._charge(receipt, body)
            return
        if kind in ("request", "decision"):
            self._approval(receipt, kind, body)
            return
        paid = rows.charge_by_id(self._connection, entry)
        if paid is None:
            return  # a declined request, or of an entry that nobody can name
        if kind == "draw":
            self._draw(entry, min(body["index"] + body["count"], paid[1]["count"]))
        elif kind == "commit":
            if rows.body_of(self._connection, entry, "commit") is None:
                self._writing.append(body | {"again": receipt.sequence})
        elif kind == "note":
            self._writing.append(body | {"again": receipt.sequence})

    def _approval(self, receipt: Receipt, kind: str, body: rows.Body) -> None:
        """Enter a request or a decision again, unless there is one of its id."""
        connection, name = self._connection, body["id"]
        if rows.row_of(connection, name, kind) is not None:
            return
        if kind == "request":
            assert receipt.declaration is not None
            rows.store_shared(connection, receipt.declaration, {})
        elif rows.row_of(connection, name, "request") is None:
            return  # on a request that nobody can name
        row = body | {"again": receipt.sequence}
        self._writing.append(row, text=receipt.declaration)

    def write_down(
        self, terms: Terms, most: Mapping[Unit, Budget] | None, label: str, actor: str
    ) -> int:
        """Charge for what nobody can name; how many rows that took."""
        totals = amounts.from_text(self._writing.state.totals)
        charges = lost_charges(terms, most, totals, "entries that were lost")
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
                "written_down": True,
                "actor": actor,
                "time": clock.now(),
            }
            self._pay(body, text, LostCharge(declaration, spent, {}))
        return len(charges)

    def close_reservations(self) -> None:
        """Hand out what is left of every reservation, to nobody."""
        for _, body in rows.of_kind(self._connection, "charge"):
            if body["count"] > 1:
                self._draw(body["id"], body["count"])

    def _charge(self, receipt: Receipt, body: rows.Body) -> None:
        there = rows.charge_by_id(self._connection, body["id"])
        if there is not None:
            if any(there[1].get(name) != body[name] for name in SAME):
                raise ValueError(
                    f"the receipt of row {receipt.sequence} is of an entry that the"
                    " ledger has, with another text. Nothing was written."
                )
            return
        key = body["idempotency_key"]
        if key is not None and rows.charge_by_key(self._connection, key) is not None:
            # Its task was repeated since then, and paid again: both are spent.
            body["idempotency_key"] = None
        body["again"] = receipt.sequence
        assert receipt.declaration is not None
        charge = self._known.charges[receipt.tip.hash]
        self._pay(body, receipt.declaration, charge)
        self.entered += 1

    def _pay(self, body: rows.Body, text: str, charge: LostCharge) -> None:
        totals = amounts.from_text(self._writing.state.totals)
        after: list[Amounts] = [
            filters.add(total, own or {})
            for total, own in zip(totals, charge.spent, strict=True)
        ]
        spent = [None if s is None else amounts.to_data(s) for s in charge.spent]
        profiles = rows.store_shared(self._connection, text, charge.curves)
        row = body | {"spent": spent, "profiles": profiles}
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
