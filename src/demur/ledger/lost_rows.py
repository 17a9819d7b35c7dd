"""Lost rows: receipts that were given, each checked before anything rests on it.

A receipt may come from anybody. One that is on the chain which leads down from a known
tip is authentic, by the tip's hash; for any other only its signature says so. So every
field that a row is read by later is checked here, as strictly as the ledger writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from demur.core import validate
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import NotCovered, NotPriced
from demur.durable.chain import Tip, signed_by
from demur.ledger.approval.requests import request_id
from demur.ledger.notes import checked
from demur.ledger.reading import declaration_from_text
from demur.ledger.reservation import LARGEST
from demur.ledger.rules import amounts
from demur.ledger.rules.admission import is_paid, ways_to_pay
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows
from demur.ledger.storage.receipts import Receipt

_CHARGE = {
    "key": str,
    "label": str,
    "declaration": str,
    "count": int,
    "noise": str,
    "input": str | None,
    "idempotency_key": str | None,
    "block_delta": float | None,
    "actor": str,
    "spent": list,
    "profiles": dict,
}
_FIELDS: dict[str, dict[str, Any]] = {
    "charge": _CHARGE,
    "draw": {"index": int, "count": int, "token": str},
    "commit": {"artefact": str | None},
    "note": {"about": str, "facts": dict, "token": str, "actor": str},
    "declined": {},
    "request": {
        "label": str,
        "declaration": str,
        "count": int,
        "noise": str,
        "input": str | None,
        "block_delta": float | None,
        "charge_key": str,
        "purpose": str,
        "actor": str,
    },
    "decision": {"approved": bool, "reason": str, "actor": str},
    "recovered": {"tips": list, "token": str, "unnamed": bool},
}
# What two receipts of one entry have in common: it may have been entered again.
SAME = ("declaration", "count", "spent", "key", "label", "block_delta")
_OPTIONAL: dict[str, dict[str, Any]] = {
    "charge": {"unsafe": list, "again": int, "written_down": bool, "request": str},
    "request": {"again": int},
    "decision": {"again": int},
    "commit": {"again": int},
    "note": {"again": int},
}


@dataclass(frozen=True)
class LostCharge:
    """What it takes to enter a charge again."""

    declaration: Declaration
    spent: list[Amounts | None]
    curves: dict[str, rows.StoredProfile]


class LostRows:
    """The receipts that were given, by the hash of their rows."""

    def __init__(
        self, terms: Terms, ledger_id: str, receipts: Iterable[Receipt]
    ) -> None:
        self._by_hash: dict[str, Receipt] = {}
        self.bodies: dict[str, rows.Body] = {}
        self.charges: dict[str, LostCharge] = {}
        entries: dict[str, list[Any]] = {}  # what each entry paid for
        for receipt in receipts:
            row_hash = receipt.tip.hash
            if row_hash in self._by_hash:
                continue
            where = f"the receipt of row {receipt.sequence}"
            _check_origin(receipt, ledger_id, terms.signer, where)
            body = _checked_body(receipt, where)
            self._by_hash[row_hash], self.bodies[row_hash] = receipt, body
            if body["kind"] == "charge":
                # Before the lock is taken: a price may take a second.
                self.charges[row_hash] = _charge(terms, receipt, body, where)
                paid_for = [body[name] for name in SAME]
                if entries.setdefault(body["id"], paid_for) != paid_for:
                    raise ValueError(
                        f"{where} is of an entry of which there is another receipt,"
                        " with another text. Nothing was written."
                    )

    @property
    def first(self) -> int:
        """The number of the first row."""
        return min((r.sequence for r in self._by_hash.values()), default=2**62)

    def path(self, chain: Chain, tip: Tip) -> list[Receipt]:
        """The lost rows that lead down from the tip, as far as they are known."""
        path: list[Receipt] = []
        wanted = tip
        while not chain.has(wanted):
            receipt = self._by_hash.get(wanted.hash)
            if receipt is None or receipt.sequence != wanted.sequence:
                break
            path.append(receipt)
            wanted = receipt.follows
        return path[::-1]

    def recovered_on(self, path: Iterable[Receipt]) -> list[rows.Body]:
        """Recoveries among the rows of a path: lost, with what they accounted for."""
        bodies = [self.bodies[receipt.tip.hash] for receipt in path]
        return [body for body in bodies if body["kind"] == "recovered"]

    def lost(self, chain: Chain, tip: Tip, accounted: set[str]) -> list[Receipt]:
        """The receipts of rows that this ledger lacks, in order."""
        lost = sorted(
            (
                receipt
                for receipt in self._by_hash.values()
                if not chain.has(receipt.tip) and str(receipt.tip) not in accounted
            ),
            key=lambda receipt: receipt.sequence,
        )
        if lost and lost[-1].sequence > tip.sequence:
            raise ValueError(
                "there is a receipt of a later row than the tip: give"
                f" {lost[-1].tip} as the tip. Nothing was written."
            )
        return lost


class Chain:
    """The rows of the ledger from one on, and the lost ones it accounts for."""

    def __init__(self, connection: Connection, first: int) -> None:
        self._hashes = rows.hashes_from(connection, first)
        self._recovered = rows.recovered_tips(connection)

    def has(self, tip: Tip) -> bool:
        """Whether a row is there, or is accounted for."""
        there = self._hashes.get(tip.sequence) == tip.hash
        return there or str(tip) in self._recovered


def _check_origin(
    receipt: Receipt, ledger_id: str, signer: str | None, where: str
) -> None:
    if receipt.ledger_id != ledger_id:
        raise ValueError(
            f"{where} is of another ledger ({receipt.ledger_id[:12]}...). Nothing was"
            " written."
        )
    if receipt.sequence < 1:
        raise ValueError(f"{where} is of no row. Nothing was written.")
    if signer and not signed_by(signer, receipt.tip.hash, receipt.signature):
        raise ValueError(
            f"{where} is not signed by the ledger's signer. Nothing was written."
        )


def _checked_body(receipt: Receipt, where: str) -> rows.Body:
    """The row of a receipt, with every field as a ledger writes it."""
    body: rows.Body = json.loads(receipt.body)
    wrong = ValueError(f"{where} is no row of a ledger. Nothing was written.")
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise wrong
    fields = _FIELDS[kind] | {"id": str, "time": str}
    more = _OPTIONAL.get(kind, {})
    try:
        for name, wanted in (fields | {n: more[n] for n in more if n in body}).items():
            value = body[name]
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not isinstance(value, wanted) or (wanted is int and not whole):
                raise wrong
        if kind == "charge":
            validate.name(label=body["label"], actor=body["actor"])
            right = (
                1 <= body["count"] <= LARGEST
                and body["noise"] in ("os", "seeded")
                and all(isinstance(line, str) for line in body.get("unsafe", []))
            )
        elif kind == "request":
            validate.name(label=body["label"], actor=body["actor"])
            right = (
                1 <= body["count"] <= LARGEST
                and body["id"] == request_id(body["charge_key"])
                and digest_of_text(receipt.declaration or "") == body["declaration"]
            )
        elif kind == "decision":
            validate.name(actor=body["actor"])
            validate.text(reason=body["reason"])
            right = True
        elif kind == "draw":
            right = body["index"] >= 0 and 1 <= body["count"] <= LARGEST
        elif kind == "note":
            right = checked(body["about"], body["facts"]) is not None
        else:
            right = all(Tip.parse(text) for text in body.get("tips", []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise wrong from error
    if not right or not 0 < len(body["id"]) <= 64:
        raise wrong
    return body


def _charge(terms: Terms, receipt: Receipt, body: rows.Body, where: str) -> LostCharge:
    """A lost charge, whose spending must be its price."""
    text = receipt.declaration
    if text is None or digest_of_text(text) != body["declaration"]:
        raise ValueError(f"{where} lacks its declaration. Nothing was written.")
    try:
        declaration = declaration_from_text(text)
        spent = [s if s is None else amounts.from_data(s) for s in body["spent"]]
        ways = ways_to_pay(terms, declaration, body["count"], body["block_delta"])
    except (ValueError, TypeError, NotCovered, NotPriced) as error:
        raise ValueError(
            f"{where} cannot be priced: {error}. Nothing was written."
        ) from error
    if not is_paid(ways, spent):
        raise ValueError(
            f"{where} says that less was spent than its declaration costs. Nothing was"
            " written."
        )
    if len(spent) != len(terms.budgets) or not _are_amounts(spent):
        raise ValueError(
            f"{where} says what nobody can have spent. Nothing was written."
        )
    curves = rows.profiles_of(declaration, body["count"])
    return LostCharge(declaration, spent, curves)


def _are_amounts(spent: list[Amounts | None]) -> bool:
    """Whether the numbers are of a size that budgets have."""
    return all(
        amount is None or amount < 10**18
        for account in spent
        for amount in (account or {}).values()
    )
