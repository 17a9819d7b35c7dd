"""Verification of a ledger: every row, link, signature, price, total and profile.

Every charge is priced anew from its declaration, as the ledger's filter prices it. What
a row says was spent must be at least that: a client that wrote less is found, whoever
it was. (Whether a declaration tells the truth about what was released cannot be seen
from the ledger.) Nothing is ever refunded, so totals that fit at the end fitted at
every row before.

Rows are read in parts: a long transaction would keep writers of a file waiting. Whether
the indices of a file have the rows of its tables is one read, about half a second for
100 MiB.

The result lists what was found, and what cannot be known without an exported tip or the
signer's public key, or was left out because it takes long.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from demur.core.accounting import events
from demur.core.accounting.events import Sampled
from demur.core.cost import Fixed
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import NotCovered, NotPriced
from demur.durable import sqlite
from demur.durable.chain import Tip
from demur.ledger.chain_walk import UNREADABLE, ChainWalk, EqualCharges, PricedCharge
from demur.ledger.reading import declaration_from_text
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import PaymentOptions, is_paid, ways_to_pay
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows as journal
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore

_MOST_PROBLEMS = 50
_ROWS_AT_ONCE = 2000
_PLANS_AT_ONCE = 10  # Different sampled plans that are priced without `full`.


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
        damage = sqlite.damage_in(connection)
    problems = _of_terms(ledger.terms, terms, signer)
    if damage is not None:
        problems.append(
            f"the file is damaged, or answers as its maker likes: {damage:.100}"
        )
    if not begins:
        problems.append("the first row does not follow from id, schema and terms")
    walk = ChainWalk(terms, ledger.genesis, wanted, problems)
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
    charges: dict[tuple[PricedCharge, str], EqualCharges],
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
            if equal.approved or equal.written_down:
                continue
            declaration = declaration_from_text(declared[charge.declaration])
            if terms.needs_approval(declaration, charge.runs):
                problems.append(f"{equal.where}: it was charged without an approval")
        except (*UNREADABLE, NotCovered, NotPriced) as error:
            text = f"its price cannot be computed ({error!r:.80})"
            problems.append(f"{equal.where}: {text}")
    return problems, len(left_out)


def _takes_long(declaration: Declaration) -> bool:
    return any(
        isinstance(atom, Sampled)
        for term in declaration.cost.basic_terms()
        if isinstance(term, Fixed)
        for atom in events.single_atoms(term.event)
    )


def _of_totals(text: str, terms: Terms, walk: ChainWalk) -> list[str]:
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
