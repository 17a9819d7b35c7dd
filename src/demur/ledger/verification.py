"""Verification of a ledger: every row, link, signature, total and stored profile.

The result lists what was found, and what cannot be known without an exported tip or the
signer's public key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.digest import digest_of_text
from demur.durable import chain
from demur.durable.chain import Tip
from demur.ledger import amounts, filters, tables
from demur.ledger import rows as journal
from demur.ledger.filters import Amounts
from demur.ledger.notes import checked
from demur.ledger.terms import Terms

_MOST_PROBLEMS = 50
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


def verify_rows(
    connection: Connection,
    terms: Terms,
    wanted: Tip | None,
    signer: str | None = None,
) -> Verification:
    """Follow the chain from its genesis and recompute everything that is derived."""
    ledger = tables.Header.read(connection)
    problems = _of_terms(ledger.terms, terms, signer)
    if not ledger.begins(connection):
        problems.append("the first row does not follow from id, schema and terms")
    walk = _Walk(terms, ledger.genesis, wanted, problems)
    statement = sa.select(tables.rows).order_by(tables.rows.c.sequence)
    for row in connection.execute(statement.execution_options(yield_per=2000)):
        if len(problems) >= _MOST_PROBLEMS:
            problems.append("more problems follow; stopped here")
            break
        walk.step(row)
    problems += _of_declarations(connection, walk.declarations)
    problems += _of_totals(connection, terms, walk.totals)
    problems += _of_profiles(connection, walk.profiles)
    if (ledger.sequence, ledger.hash) != (walk.sequence, walk.hash):
        problems.append(
            f"the ledger says it ends at row {ledger.sequence}; the chain ends at row"
            f" {walk.sequence}"
        )
    if wanted is not None and walk.hash_at_wanted != wanted.hash:
        problems.append(
            f"the exported tip {wanted.sequence}:{wanted.hash[:12]}... is not in this"
            " ledger: it was cut off, rewritten or restored from an older copy"
        )
        unknown: tuple[str, ...] = ()
    else:
        unknown = _unknown(terms, wanted, signer)
    return Verification(walk.sequence, walk.tip(), tuple(problems), unknown)


class _Walk:
    """The chain, row by row, and what its rows add up to."""

    def __init__(
        self, terms: Terms, genesis: str, wanted: Tip | None, problems: list[str]
    ) -> None:
        self.sequence, self.hash = 0, genesis
        self.totals: list[Amounts] = [{} for _ in terms.budgets]
        self.declarations: dict[str, str] = {}  # digest: the row that needs it
        self.profiles: dict[str, str] = {}  # event: digest of its profile
        first = wanted is not None and wanted.sequence == 0
        self.hash_at_wanted: str | None = genesis if first else None
        self._terms, self._wanted, self._problems = terms, wanted, problems
        self._paid: dict[str, int] = {}  # entry: runs that it paid for
        self._drawn: dict[str, int] = {}
        self._committed: set[str] = set()
        self._where = ""

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
        self.declarations[body["declaration"]] = self._where
        self.profiles |= body["profiles"]
        for position, spent in enumerate(body["spent"]):
            if spent is not None:
                spend = amounts.from_data(spent)
                self.totals[position] = filters.add(self.totals[position], spend)

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


def _of_declarations(connection: Connection, needed: dict[str, str]) -> list[str]:
    """Problems of the stored declarations; `needed` are digests and their rows."""
    problems, stored = [], set()
    for row in connection.execute(sa.select(tables.declarations)):
        stored.add(row.digest)
        if digest_of_text(row.body) != row.digest:
            problems.append(f"the declaration {row.digest[:12]}... was edited")
    return problems + [
        f"{where}: its declaration is missing"
        for digest, where in needed.items()
        if digest not in stored
    ]


def _of_totals(
    connection: Connection, terms: Terms, summed: list[Amounts]
) -> list[str]:
    """Problems of the stored totals, which must be the sums of the entries."""
    problems, zero = [], Fraction(0)
    texts = journal.totals(connection)
    for (unit, budget), text, total in zip(terms.budgets, texts, summed, strict=False):
        try:
            stored = amounts.from_text(text)
        except ValueError:
            problems.append(f"the totals at {unit} cannot be read")
            continue
        accounts = set(stored) | set(total)
        if any(stored.get(a, zero) != total.get(a, zero) for a in accounts):
            problems.append(f"the totals at {unit} are not the sum of the entries")
        if not filters.fits(terms.filter, budget, total):
            problems.append(f"the entries overdraw the budget at {unit}")
    if len(texts) != len(terms.budgets):
        problems.append("a budget row is missing or too many")
    return problems


def _of_profiles(connection: Connection, needed: dict[str, str]) -> list[str]:
    """Problems of the stored profiles; `needed` are events and their digests."""
    problems, stored = [], set()
    for row in connection.execute(sa.select(tables.profiles)):
        stored.add(row.event)
        if needed.get(row.event) != row.digest or not journal.is_whole(row):
            problems.append(f"the stored curve {row.event[:12]}... was edited")
    return problems + [
        f"the stored curve {event[:12]}... is missing" for event in set(needed) - stored
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
