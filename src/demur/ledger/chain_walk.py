"""The chain of a ledger, row by row: its links, its texts, and what they add up to."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from demur.core.digest import digest_of_text
from demur.durable import chain
from demur.durable.chain import Tip
from demur.ledger.approval.requests import SAME, request_id
from demur.ledger.notes import checked
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.rules.write_down import lost_charges
from demur.ledger.storage import rows as journal

# What a row whose text was edited can raise while it is read.
UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
)


class PricedCharge(NamedTuple):
    """What decides the price of a charge: equal ones are priced once."""

    declaration: str
    runs: int
    block_delta: float | None


class EqualCharges(NamedTuple):
    """Charges that cost the same and were paid for in the same way."""

    where: str  # the first of them
    spent: list[Amounts | None]
    rows: int
    written_down: bool
    approved: bool  # or entered again after a loss, whatever became of the approval


class ChainWalk:
    """The chain, row by row, and what its rows add up to."""

    def __init__(
        self, terms: Terms, genesis: str, wanted: Tip | None, problems: list[str]
    ) -> None:
        self.sequence, self.hash = 0, genesis
        self.declarations: dict[str, str] = {}  # digest: the row that needs it
        self.profiles: dict[str, str] = {}  # event: digest of its profile
        self.charges: dict[tuple[PricedCharge, str], EqualCharges] = {}
        first = wanted is not None and wanted.sequence == 0
        self.hash_at_wanted: str | None = genesis if first else None
        self._terms, self._wanted, self._problems = terms, wanted, problems
        self.tips: set[str] = set()  # of lost rows that are accounted for
        self.followed: list[tuple[str, int, Tip]] = []  # rows that lost ones followed
        self.unnamed: list[str] = []
        self._paid: dict[str, int] = {}  # entry: runs that it paid for
        self._declared: dict[str, str] = {}  # entry: digest of its declaration
        self._written_down = self._unnamed = 0
        self._drawn: dict[str, int] = {}
        self._committed: set[str] = set()
        self._asked: dict[str, journal.Body] = {}  # requests for approval
        self._decided: dict[str, bool] = {}  # request: approved
        self._where = ""

    def totals(self, *, written_down: bool = True) -> list[Amounts]:
        """The sums of what the charges paid, exactly, with what was written down."""
        sums: list[Amounts] = [{} for _ in self._terms.budgets]
        for equal in self.charges.values():
            if equal.written_down and not written_down:
                continue
            for position, spent in enumerate(equal.spent[: len(sums)]):
                many = {k: v and v * equal.rows for k, v in (spent or {}).items()}
                sums[position] = filters.add(sums[position], many)
        return sums

    def tip(self) -> Tip:
        """Where the chain ends; a malformed hash is replaced by its digest."""
        try:
            return Tip(self.sequence, self.hash)
        except ValueError:
            return Tip(max(0, self.sequence), digest_of_text(self.hash))

    def step(self, row: Any) -> None:
        """Check the next row, and add it up."""
        self._where = f"row {row.sequence}"
        self._check_link(row)
        try:
            body = json.loads(row.body)
            self._check_columns(row, body)
            self._add(body["kind"], body["id"], body)
        except UNREADABLE as error:
            self._problem(f"its text cannot be read ({error!r:.80})")

    def _problem(self, text: str) -> None:
        self._problems.append(f"{self._where}: {text}")

    def _check_link(self, row: Any) -> None:
        expected = self.sequence + 1
        if row.sequence != expected:
            self._problem(f"rows {expected} to {row.sequence - 1} missing")
        if chain.link(self.hash, row.body) != row.hash:
            self._problem("its hash does not follow from its text")
        self.sequence, self.hash = row.sequence, row.hash
        if self._wanted and row.sequence == self._wanted.sequence:
            self.hash_at_wanted = row.hash
        signer = self._terms.signer
        if signer and not chain.signed_by(signer, row.hash, row.signature):
            self._problem("not signed by the ledger's signer")

    def _check_columns(self, row: Any, body: journal.Body) -> None:
        columns = {
            "kind": row.kind,
            "id": row.entry_id,
            "idempotency_key": row.idempotency_key,
            "declaration": row.declaration,
            "count": row.count,
            "noise": row.noise,
        }
        if any(body.get(name) != value for name, value in columns.items()):
            self._problem("its columns do not repeat its text")

    def _add(self, kind: str, entry: str, body: journal.Body) -> None:
        if kind == "charge":
            self._add_charge(entry, body)
        elif kind == "declined":
            self.declarations[body["declaration"]] = self._where
        elif kind == "recovered":
            self._add_recovery(body)
        elif kind == "request":
            self._add_request(entry, body)
        elif kind == "decision":
            self._add_decision(entry, body)
        elif entry not in self._paid:
            self._problem(f"{kind} of an unknown entry")
        elif kind == "draw":
            self._add_draw(entry, body)
        elif kind == "commit":
            if entry in self._committed:
                self._problem("committed twice")
            self._committed.add(entry)
        elif kind == "note":
            checked(body["about"], body["facts"])
        else:
            self._problem(f"unknown kind {str(kind)[:20]!r}")

    def _add_charge(self, entry: str, body: journal.Body) -> None:
        if entry in self._paid:
            self._problem(f"the entry {entry[:8]} is charged twice")
        self._paid[entry] = body["count"]
        self._declared[entry] = sys.intern(body["declaration"])
        written_down = bool(body.get("written_down", False))
        self._written_down += written_down
        self.declarations[body["declaration"]] = self._where
        self.profiles |= body["profiles"]
        charge = PricedCharge(body["declaration"], body["count"], body["block_delta"])
        approved = self._is_approved(body)
        paid = f"{written_down} {approved} {body['spent']!r}"
        equal = self.charges.get((charge, paid))
        if equal is None:
            spent = [s if s is None else amounts.from_data(s) for s in body["spent"]]
            equal = EqualCharges(self._where, spent, 0, written_down, approved)
        self.charges[charge, paid] = equal._replace(rows=equal.rows + 1)

    def _add_request(self, request: str, body: journal.Body) -> None:
        if request in self._asked:
            self._problem("its request was made before")
        if request != request_id(body["charge_key"]):
            self._problem("its request has another id than its key gives it")
        self.declarations[body["declaration"]] = self._where
        self._asked[request] = {name: body[name] for name in (*SAME, "actor")}

    def _add_decision(self, request: str, body: journal.Body) -> None:
        if request not in self._asked:
            self._problem("a decision on no request")
        elif request in self._decided:
            self._problem("a second decision on one request")
        elif body["approved"] and body["actor"] == self._asked[request]["actor"]:
            self._problem("somebody approved their own request")
        else:
            self._decided[request] = body["approved"] is True

    def _is_approved(self, body: journal.Body) -> bool:
        """Whether a charge names a request for this very charge that was approved."""
        request = body.get("request")
        if request is None:
            return False
        asked = self._asked.get(request)
        key = body["idempotency_key"]
        approved = (
            asked is not None
            and self._decided.get(request, False)
            and all(asked[name] == body[name] for name in SAME)
            and ("again" in body or (key is not None and request == request_id(key)))
        )
        if not approved and "again" in body:
            self.unnamed.append(
                "whether a charge that was entered again after a loss had been"
                f" approved ({self._where})"
            )
            return True
        if not approved:
            self._problem("it was charged under no approval of this charge")
        return approved

    def _add_recovery(self, body: journal.Body) -> None:
        """Follow the lost chain, if it is known, and look for what it held."""
        lost = [Tip.parse(text) for text in body["tips"]]
        earlier = set(self.tips)
        self.tips |= {str(tip) for tip in lost}
        written_down, self._written_down = self._written_down, 0
        if body["written_down"] != written_down:
            self._problem("what was written down for lost rows is not there")
        if body["rows"] is None:
            self._add_unnamed(body, lost[-1], written_down)
            return
        tip = Tip.parse(body["after"])
        if str(tip) not in earlier:
            self.followed.append((self._where, self.sequence, tip))
        path = set()
        for text in body["rows"]:
            tip = Tip(tip.sequence + 1, chain.link(tip.hash, text))
            path |= {str(tip), *self._check_entered(json.loads(text))}
        if tip != lost[-1] or {str(each) for each in lost} != path:
            self._problem("the lost rows do not lead to the tip that it names")

    def _add_unnamed(self, body: journal.Body, tip: Tip, written_down: int) -> None:
        """Rows were lost of which nobody has a receipt: a budget pays for them."""
        if body["covered"]:
            if not self._unnamed:
                self._problem("no earlier write-down covers these lost rows")
        elif not written_down and lost_charges(self._terms, None, self.totals(), "x"):
            self._problem("rows were lost, and the budget was not written down for it")
        self._unnamed += 1
        self.unnamed.append(
            f"what was lost up to row {tip.sequence} of another copy: the budget was"
            f" written down for it, as somebody vouched ({self._where})"
        )

    def _check_entered(self, row: journal.Body) -> list[str]:
        """Whether a lost row was entered again; the tips that it accounted for."""
        kind, entry = row["kind"], row["id"]
        entered = True
        if kind == "charge":
            now = self._paid.get(entry), self._declared.get(entry)
            entered = now == (row["count"], row["declaration"])
        elif kind == "draw":
            end = min(row["index"] + row["count"], self._paid.get(entry, 0))
            entered = self._drawn.get(entry, 0) >= end
        elif kind == "commit":
            entered = entry in self._committed
        elif kind == "request":
            entered = entry in self._asked
        elif kind == "decision":
            entered = entry in self._decided
        if not entered:
            self._problem(f"a lost {kind} of {entry[:8]} was not entered again")
        return list(row["tips"]) if kind == "recovered" else []

    def _add_draw(self, entry: str, body: journal.Body) -> None:
        before, count = self._drawn.get(entry, 0), body["count"]
        if body["index"] != before:
            self._problem(f"draw {body['index']} is out of order")
        if count < 1:
            self._problem(f"hands out {count} draws")
        self._drawn[entry] = before + count
        if self._drawn[entry] > self._paid[entry]:
            self._problem("more draws than were paid for")
