"""Checking a ledger: every row, link, signature, total and stored curve.

What the check finds, and what it cannot find without an exported tip or a signer, is
part of its answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

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


@dataclass(frozen=True)
class Verification:
    """Whether a ledger is whole: what was checked, what was found, what is unknown."""

    rows: int
    tip: Tip
    problems: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No problem was found (see `unknown` for what could not be)."""
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
    """Walk the chain from its genesis and recompute everything that is derived."""
    problems: list[str] = []
    ledger = connection.execute(sa.select(tables.ledger)).one()
    genesis = digest_of_text(ledger.terms)
    if ledger.terms != terms.to_text():
        problems.append("the terms are not in canonical form")
    if signer is not None and signer != terms.signer:
        problems.append(
            f"the ledger names {terms.signer or 'no signer'}, not the signer {signer}"
        )
    previous, expected = genesis, 1
    totals: list[Amounts] = [{} for _ in terms.budgets]
    counts: dict[str, int] = {}
    draws: dict[str, int] = {}
    commits: set[str] = set()
    used: dict[str, str] = {}
    curves: dict[str, str] = {}
    at_wanted: str | None = genesis if wanted and wanted.sequence == 0 else None
    statement = sa.select(tables.rows).order_by(tables.rows.c.sequence)
    for row in connection.execute(statement.execution_options(yield_per=2000)):
        if len(problems) >= _MOST_PROBLEMS:
            problems.append("more problems follow; stopped here")
            break
        where = f"row {row.sequence}"
        if row.sequence != expected:
            problems.append(f"{where}: rows {expected} to {row.sequence - 1} missing")
        expected = row.sequence + 1
        if chain.link(previous, row.body) != row.hash:
            problems.append(f"{where}: its hash does not follow from its text")
        previous = row.hash
        if wanted and row.sequence == wanted.sequence:
            at_wanted = row.hash
        if terms.signer and not chain.signed_by(terms.signer, row.hash, row.signature):
            problems.append(f"{where}: not signed by the ledger's signer")
        try:
            body = json.loads(row.body)
            kind, entry = body["kind"], body["id"]
            columns = {
                "kind": row.kind,
                "id": row.entry_id,
                "idempotency_key": row.idempotency_key,
                "declaration": row.declaration,
                "count": row.count,
                "noise": row.noise,
            }
            if any(body.get(name) != value for name, value in columns.items()):
                problems.append(f"{where}: its columns do not repeat its text")
            if kind == "charge":
                if entry in counts:
                    problems.append(f"{where}: the entry {entry[:8]} is charged twice")
                counts[entry] = body["count"]
                used[body["declaration"]] = where
                curves |= body["profiles"]
                for position, spent in enumerate(body["spent"]):
                    if spent is not None:
                        spend = amounts.from_data(spent)
                        totals[position] = filters.add(totals[position], spend)
            elif entry not in counts:
                problems.append(f"{where}: {kind} of an unknown entry")
            elif kind == "draw":
                if body["index"] != draws.get(entry, 0):
                    problems.append(f"{where}: draw {body['index']} is out of order")
                handed_out = body.get("count", 1)
                if handed_out < 1:
                    problems.append(f"{where}: hands out {handed_out} draws")
                draws[entry] = draws.get(entry, 0) + handed_out
                if draws[entry] > counts[entry]:
                    problems.append(f"{where}: more draws than were paid for")
            elif kind == "commit":
                if entry in commits:
                    problems.append(f"{where}: committed twice")
                commits.add(entry)
            elif kind == "note":
                checked(body["about"], body["facts"])
            else:
                problems.append(f"{where}: unknown kind {str(kind)[:20]!r}")
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
        ) as error:
            problems.append(f"{where}: its text cannot be read ({error!r:.80})")
    problems += _derived(connection, terms, totals, used, curves)
    if (ledger.sequence, ledger.hash) != (expected - 1, previous):
        problems.append(
            f"the ledger says it ends at row {ledger.sequence}; the chain ends at row"
            f" {expected - 1}"
        )
    unknown = []
    if wanted is None:
        rewritten = "" if signer else ", or the whole ledger rewritten"
        unknown.append(
            f"whether rows were cut off the end{rewritten}: give an exported tip"
        )
        if terms.signer and not signer:
            unknown.append("whether the signer is the right one: give its public key")
    elif at_wanted == wanted.hash:
        unknown.append(
            f"whether rows after {wanted.sequence} were cut off"
            + ("" if signer else " or rewritten")
            + ": a newer tip would tell"
        )
    else:
        problems.append(
            f"the exported tip {wanted.sequence}:{wanted.hash[:12]}... is not in this"
            " ledger: it was cut off, rewritten or restored from an older copy"
        )
    return Verification(
        expected - 1, Tip(expected - 1, previous), tuple(problems), tuple(unknown)
    )


def _derived(
    connection: Connection,
    terms: Terms,
    totals: list[Amounts],
    used: dict[str, str],
    curves: dict[str, str],
) -> list[str]:
    """Problems of everything that follows from the rows."""
    problems = []
    said = {}
    for row in connection.execute(sa.select(tables.declarations)):
        said[row.digest] = row.body
        if digest_of_text(row.body) != row.digest:
            problems.append(f"the declaration {row.digest[:12]}... was edited")
    problems += [
        f"{where}: its declaration is missing"
        for name, where in used.items()
        if name not in said
    ]
    stored = journal.totals(connection)
    for (unit, budget), text, summed in zip(
        terms.budgets, stored, totals, strict=False
    ):
        try:
            kept = amounts.from_text(text)
        except ValueError:
            problems.append(f"the totals at {unit} cannot be read")
            continue
        accounts = set(kept) | set(summed)
        zero = Fraction(0)
        if any(kept.get(a, zero) != summed.get(a, zero) for a in accounts):
            problems.append(f"the totals at {unit} are not the sum of the entries")
        if not filters.fits(terms.filter, budget, summed):
            problems.append(f"the entries overdraw the budget at {unit}")
    if len(stored) != len(terms.budgets):
        problems.append("a budget row is missing or too many")
    there = set()
    for row in connection.execute(sa.select(tables.profiles)):
        there.add(row.event)
        if curves.get(row.event) != row.digest or not journal.is_whole(row):
            problems.append(f"the stored curve {row.event[:12]}... was edited")
    problems += [
        f"the stored curve {name[:12]}... is missing" for name in set(curves) - there
    ]
    return problems
