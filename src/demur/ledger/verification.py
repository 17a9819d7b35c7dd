"""Verification of a ledger: every row, link, signature, price, total and profile.

Every charge is priced anew from its declaration, as the ledger's filter prices it. What
a row says was spent must be at least that: a client that wrote less is found, whoever
it was. (Whether a declaration tells the truth about what was released cannot be seen
from the ledger.) Nothing is ever refunded, so totals that fit at the end fitted at
every row before.

Rows are read in parts: a long transaction would keep writers of a file waiting.

The result lists what was found, and what cannot be known without an exported tip or the
signer's public key, or was left out because it takes long.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from demur.core.accounting import events
from demur.core.accounting.events import Sampled
from demur.core.cost import Fixed
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import NotCovered, NotPriced
from demur.durable import chain
from demur.durable.chain import Tip
from demur.ledger.notes import checked
from demur.ledger.reading import declaration_from_text
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import PaymentOptions, is_paid, ways_to_pay
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.rules.write_down import lost_charges
from demur.ledger.storage import rows as journal
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore

_MOST_PROBLEMS = 50
_ROWS_AT_ONCE = 2000
_PLANS_AT_ONCE = 10  # Different sampled plans that are priced without `full`.
# What a row whose text was edited can raise while it is read.
_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
)


@dataclass(frozen=True)
class Verification:
    """The result of checking a ledger: its tip, the problems, and what is unknown."""

    rows: int
    tip: Tip
    problems: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No problem was found (see `unknown` for what could not be checked)."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.rows} rows checked, tip {self.tip}"]
        lines += [f"PROBLEM: {p}" for p in self.problems] or ["no problem found"]
        lines += [f"not known: {u}" for u in self.unknown]
        return "\n".join(lines)


def verify_ledger(
    store: LedgerStore,
    terms: Terms,
    wanted: Tip | None,
    signer: str | None = None,
    *,
    full: bool = False,
) -> Verification:
    """Follow the chain from its genesis and recompute everything that is derived."""
    with store.read() as connection:
        ledger = Header.read(connection)
        begins = ledger.begins(connection)
    problems = _of_terms(ledger.terms, terms, signer)
    if not begins:
        problems.append("the first row does not follow from id, schema and terms")
    walk = _Walk(terms, ledger.genesis, wanted, problems)
    last: int | None = None
    while True:
        with store.read() as connection:
            rows = journal.rows_after(connection, last, _ROWS_AT_ONCE)
            if len(rows) < _ROWS_AT_ONCE:  # What belongs to the end, in one view.
                state = Header.read(connection).state
                declared = journal.declaration_texts(connection)
                curves = journal.stored_profiles(connection)
        for row in rows:
            if len(problems) >= _MOST_PROBLEMS:
                problems.append("more problems follow; stopped here")
                break
            walk.step(row)
        if len(rows) < _ROWS_AT_ONCE:
            break
        last = rows[-1].sequence
    problems += _of_declarations(declared, walk.declarations)
    wrong, unchecked = _of_prices(terms, declared, walk.charges, full)
    problems += wrong
    problems += _of_totals(state.totals, terms, walk)
    problems += _of_profiles(curves, walk.profiles)
    if state[:2] != (walk.sequence, walk.hash):
        problems.append(
            f"the ledger says it ends at row {state.sequence}; the chain ends"
            f" at row {walk.sequence}"
        )
    problems += _of_recoveries(store, walk.followed)
    lost = wanted is not None and walk.hash_at_wanted != wanted.hash
    if wanted is not None and lost and str(wanted) not in walk.tips:
        problems.append(
            f"the exported tip {wanted.sequence}:{wanted.hash[:12]}... is not in this"
            " ledger: it was cut off, rewritten or restored from an older copy"
        )
        unknown: tuple[str, ...] = ()
    else:
        unknown = _unknown(terms, wanted, signer)
    unknown += tuple(walk.unnamed)
    if unchecked:
        unknown += (
            f"whether {unchecked} sampled plans cost what their entries say: verify in"
            " full, which takes longer",
        )
    return Verification(walk.sequence, walk.tip(), tuple(problems), unknown)


class PricedCharge(NamedTuple):
    """What decides the price of a charge: equal ones are priced once."""

    declaration: str
    runs: int
    block_delta: float | None


class _Equal(NamedTuple):
    """Charges that cost the same and were paid for in the same way."""

    where: str  # the first of them
    spent: list[Amounts | None]
    rows: int
    written_down: bool


class _Walk:
    """The chain, row by row, and what its rows add up to."""

    def __init__(
        self, terms: Terms, genesis: str, wanted: Tip | None, problems: list[str]
    ) -> None:
        self.sequence, self.hash = 0, genesis
        self.declarations: dict[str, str] = {}  # digest: the row that needs it
        self.profiles: dict[str, str] = {}  # event: digest of its profile
        self.charges: dict[tuple[PricedCharge, str], _Equal] = {}
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
        except _UNREADABLE as error:
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
        paid = f"{written_down} {body['spent']!r}"
        equal = self.charges.get((charge, paid))
        if equal is None:
            spent = [s if s is None else amounts.from_data(s) for s in body["spent"]]
            equal = _Equal(self._where, spent, 0, written_down)
        self.charges[charge, paid] = equal._replace(rows=equal.rows + 1)

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


def _of_terms(stored: str, terms: Terms, signer: str | None) -> list[str]:
    problems = []
    if stored != terms.to_text():
        problems.append("the terms are not in canonical form")
    if signer is not None and signer != terms.signer:
        problems.append(
            f"the ledger names {terms.signer or 'no signer'}, not the signer {signer}"
        )
    return problems


def _of_recoveries(
    store: LedgerStore, followed: list[tuple[str, int, Tip]]
) -> list[str]:
    """Recoveries whose lost rows do not follow from a row of this ledger."""
    if not followed:
        return []
    with store.read() as connection:
        return [
            f"{where}: the lost rows do not follow from a row of this ledger"
            for where, sequence, tip in followed
            if tip.sequence >= sequence
            or journal.hash_at(connection, tip.sequence) != tip.hash
        ]


def _of_declarations(declared: dict[str, str], needed: dict[str, str]) -> list[str]:
    """Problems of the stored declarations; `needed` are digests and their rows."""
    return [
        f"the declaration {digest[:12]}... was edited"
        for digest, text in declared.items()
        if digest_of_text(text) != digest
    ] + [
        f"{where}: its declaration is missing"
        for digest, where in needed.items()
        if digest not in declared
    ]


def _of_prices(
    terms: Terms,
    declared: dict[str, str],
    charges: dict[tuple[PricedCharge, str], _Equal],
    full: bool,
) -> tuple[list[str], int]:
    """Charges that were not paid for, and how many plans were left out."""
    problems: list[str] = []
    plans: set[PricedCharge] = set()
    left_out: set[PricedCharge] = set()
    priced: dict[PricedCharge, PaymentOptions] = {}
    for (charge, _), equal in charges.items():
        if charge.declaration not in declared:
            continue  # a problem already
        try:
            if charge not in priced:
                declaration = declaration_from_text(declared[charge.declaration])
                if _takes_long(declaration) and charge not in plans:
                    plans.add(charge)
                if charge in plans and not full and len(plans) > _PLANS_AT_ONCE:
                    left_out.add(charge)
                    continue
                priced[charge] = ways_to_pay(
                    terms, declaration, charge.runs, charge.block_delta
                )
            if not is_paid(priced[charge], equal.spent):
                problems.append(f"{equal.where}: it costs more than was paid for it")
        except (*_UNREADABLE, NotCovered, NotPriced) as error:
            text = f"its price cannot be computed ({error!r:.80})"
            problems.append(f"{equal.where}: {text}")
    return problems, len(left_out)


def _takes_long(declaration: Declaration) -> bool:
    return any(
        isinstance(atom, Sampled)
        for term in declaration.cost.terms
        if isinstance(term, Fixed)
        for atom in events.atoms(term.event)
    )


def _of_totals(text: str, terms: Terms, walk: _Walk) -> list[str]:
    """Problems of the stored totals, which must be the sums of the entries."""
    problems, zero = [], Fraction(0)
    try:
        stored = amounts.from_text(text)
    except ValueError:
        return ["the totals cannot be read"]
    if len(stored) != len(terms.budgets):
        problems.append("there are not as many totals as budgets")
    # What was written down leaves nothing, and may be more than there was.
    entries = walk.totals(written_down=False)
    for (unit, budget), own, total, named in zip(
        terms.budgets, stored, walk.totals(), entries, strict=False
    ):
        if any(own.get(a, zero) != total.get(a, zero) for a in set(own) | set(total)):
            problems.append(f"the totals at {unit} are not the sum of the entries")
        if not filters.fits(terms.filter, budget, named):
            problems.append(f"the entries overdraw the budget at {unit}")
    return problems


def _of_profiles(curves: list[Any], needed: dict[str, str]) -> list[str]:
    """Problems of the stored profiles; `needed` are events and their digests."""
    problems = [
        f"the stored curve {row.event[:12]}... was edited"
        for row in curves
        if needed.get(row.event) != row.digest or not journal.is_whole(row)
    ]
    missing = set(needed) - {row.event for row in curves}
    return problems + [
        f"the stored curve {event[:12]}... is missing" for event in missing
    ]


def _unknown(terms: Terms, wanted: Tip | None, signer: str | None) -> tuple[str, ...]:
    """What the check cannot know without a newer tip or the signer's key."""
    if wanted is not None:
        rewritten = "" if signer else " or rewritten"
        return (
            f"whether rows after {wanted.sequence} were cut off{rewritten}: a newer tip"
            " would tell",
        )
    rewritten = "" if signer else ", or the whole ledger rewritten"
    cut = f"whether rows were cut off the end{rewritten}: give an exported tip"
    if terms.signer and not signer:
        return cut, "whether the signer is the right one: give its public key"
    return (cut,)
