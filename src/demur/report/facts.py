"""The contents of the report as plain frozen data.

The page, the charts and the JSON inside the page are all made from one `LedgerFacts`,
so they cannot disagree. Its numbers are the ledger's own, not rounded.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from demur import __version__
from demur.audit.attacks import AttackGains, attack_gains, gains_of_entry
from demur.core import validate
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.durable import clock
from demur.ledger import Ledger, Moment, Note, Readings, Tip, entry_that_pays, over_time
from demur.report.distance import (
    SpaceCost,
    UnitCost,
    space_costs,
    unit_costs,
    unit_name,
)
from demur.report.notes import (
    AuditFacts,
    DeletionFacts,
    UtilityFacts,
    audits,
    deletions,
    utilities,
)
from demur.report.text import json_data

FORMAT = 2


@dataclass(frozen=True)
class GainFacts:
    """The most that an attack can gain from all that was charged, at one budget."""

    advantage: float
    found_at_1_in_1000: float
    found_at_1_in_100: float
    named_of_10: float
    named_of_1000: float


@dataclass(frozen=True)
class BudgetFacts:
    """One budget: what the filter counts as spent, and the tight reading."""

    name: str
    unit: str
    phrase: str
    erasure: bool
    epsilon: float
    delta: float
    spent_epsilon: float
    tight_epsilon: float | None
    gains: GainFacts | None = None


@dataclass(frozen=True)
class EntryFacts:
    """One entry; `epsilon` is its own cost at each budget, None where it has none.

    `attacks` says what an attacker can gain from it, at each budget that it covers.
    """

    sequence: int
    id: str
    time: str
    label: str
    mechanism: str
    count: int
    private: bool
    deletion: bool
    epsilon: tuple[float | None, ...]
    statement: str
    attacks: str = ""


@dataclass(frozen=True)
class DeclinedFacts:
    """A request that the ledger declined; `actor` is empty where names are left out."""

    sequence: int
    time: str
    label: str
    mechanism: str
    actor: str
    why: str


@dataclass(frozen=True)
class ChainFacts:
    """The result of verifying the chain."""

    ok: bool
    rows: int
    tip: str
    compared_with: str | None
    problems: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class LedgerFacts:
    """The contents of the whole report."""

    format: int
    issued: str
    issuer: str
    version: str
    ledger: str
    signer: str | None
    dataset: str
    filter: str
    private: bool
    testing: bool
    durable: bool
    budgets: tuple[BudgetFacts, ...]
    units: tuple[UnitCost, ...]
    spaces: tuple[SpaceCost, ...]
    moments: tuple[Moment, ...]
    utilities: tuple[UtilityFacts, ...]
    deletions: tuple[DeletionFacts, ...]
    audits: tuple[AuditFacts, ...]
    unread_notes: int
    entries: tuple[EntryFacts, ...]
    declined: tuple[DeclinedFacts, ...]
    chain: ChainFacts

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; an infinite number is the word "inf"."""
        plain: dict[str, Any] = json_data(asdict(self))
        return plain


def gather(
    ledger: Ledger,
    *,
    tip: Tip | str | None = None,
    signer: str | None = None,
    issuer: str = "",
    actors: bool = False,
) -> LedgerFacts:
    """Read the ledger once; `tip` and `signer` go to the check of the chain.

    `issuer` is who hands the report out, as it stands above the signature. With
    `actors` the facts name who asked for what was declined.
    """
    if issuer:
        validate.name(issuer=issuer)
    check = ledger.verify(tip, signer=signer)
    entries = ledger.entries()
    notes = ledger.notes()
    by_id = {entry.id: entry for entry in entries}
    readings = Readings(ledger)
    audited, unread_audits = audits(notes, by_id)
    useful, unread_utilities = utilities(notes, by_id)
    return LedgerFacts(
        format=FORMAT,
        issued=clock.now(),
        issuer=issuer,
        version=__version__,
        ledger=ledger.id,
        signer=ledger.terms.signer,
        dataset=ledger.terms.dataset,
        filter=str(ledger.terms.filter),
        private=all(entry.private for entry in entries),
        testing=ledger.terms.testing,
        durable=ledger.durable,
        budgets=budget_facts(ledger),
        units=unit_costs(ledger, readings, entries),
        spaces=space_costs(ledger, readings, entries),
        moments=over_time(ledger),
        utilities=useful,
        deletions=deletions(
            _deletion_entries(entries),
            _about(notes, "deletion"),
            lambda entry: entry_that_pays(ledger, entry),
        ),
        audits=audited,
        unread_notes=unread_audits + unread_utilities,
        entries=tuple(_entry(ledger, entry) for entry in entries),
        declined=tuple(
            DeclinedFacts(
                asked.sequence,
                asked.time,
                asked.label,
                asked.declaration.name,
                asked.actor if actors else "",
                asked.why,
            )
            for asked in ledger.declined()
        ),
        chain=ChainFacts(
            check.ok,
            check.rows,
            str(check.tip),
            None if tip is None else str(tip).strip(),
            check.problems,
            check.unknown,
        ),
    )


def budget_facts(ledger: Ledger) -> tuple[BudgetFacts, ...]:
    """Each budget with what is spent of it."""
    budgets = []
    for status in ledger.status():
        tight: float | None = None
        gains: GainFacts | None = None
        phrase = status.unit.describe()
        with contextlib.suppress(NotCovered, NotPriced):
            reading = ledger.reading(status.unit)
            tight, phrase = reading.epsilon, reading.protects
            if reading.entries:
                gains = _gain_facts(attack_gains(ledger, status.unit))
        budgets.append(
            BudgetFacts(
                name=unit_name(status.unit),
                unit=str(status.unit),
                phrase=phrase,
                erasure=isinstance(status.unit, Erasure),
                epsilon=status.budget.epsilon,
                delta=status.budget.delta,
                spent_epsilon=status.spent_epsilon,
                tight_epsilon=tight,
                gains=gains,
            )
        )
    return tuple(budgets)


def _gain_facts(gains: AttackGains) -> GainFacts:
    return GainFacts(
        gains.membership_advantage,
        gains.true_positives(0.001),
        gains.true_positives(0.01),
        gains.identification(candidates=10),
        gains.identification(candidates=1000),
    )


def _entry(ledger: Ledger, entry: Entry) -> EntryFacts:
    return EntryFacts(
        sequence=entry.sequence,
        id=entry.id,
        time=entry.time,
        label=entry.label,
        mechanism=entry.declaration.name,
        count=entry.count,
        private=entry.private,
        deletion=entry.declaration.cost.only_erasure(),
        epsilon=tuple(entry.cost_alone(promise) for promise in entry.promises),
        statement=entry.statement(paid_by=entry_that_pays(ledger, entry)),
        attacks=" ".join(gains.statement() for _, gains in gains_of_entry(entry)),
    )


def _deletion_entries(entries: list[Entry]) -> list[Entry]:
    return [e for e in entries if e.declaration.cost.covers_erasure()]


def _about(notes: tuple[Note, ...], subject: str) -> list[Note]:
    return [note for note in notes if note.about == subject]
