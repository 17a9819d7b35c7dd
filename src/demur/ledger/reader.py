"""The reading half of a ledger: entries, notes, readings, budget status, the chain.

Everything here follows from the rows and the terms; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy.engine import Connection

from demur.core import validate
from demur.core.adjacency import Unit
from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.display import Displayed
from demur.core.entry import Entry
from demur.core.errors import BudgetExceeded, DemurError
from demur.core.promise import Promise
from demur.core.rounding import float_down, printed_down, printed_pair
from demur.durable.chain import Tip
from demur.ledger.approval.requests import ApprovalRequest, Decision, decision_of
from demur.ledger.notes import Note
from demur.ledger.reading import Reading, read
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import pay, ways_to_pay
from demur.ledger.rules.approval import costs_alone
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows
from demur.ledger.storage.acknowledged import lost
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore
from demur.ledger.verification import Verification, verify_ledger

_LITTLE = 0.001  # a smaller share of a budget is not printed as a number


@dataclass(frozen=True)
class BudgetStatus(Displayed):
    """One budget of a ledger and what is spent of it, as the filter counts it."""

    unit: Unit
    budget: Budget
    spent_epsilon: float
    accounts: Mapping[str, str]

    @property
    def shown(self) -> tuple[str, str]:
        """What is spent and the budget, in figures for people."""
        spent, budget = printed_pair(self.spent_epsilon, self.budget.epsilon)
        return spent, "no limit" if self.budget.unlimited else budget

    @property
    def left_epsilon(self) -> float:
        """What the filter has not counted as spent, for entries like those so far."""
        if self.spent_epsilon >= self.budget.epsilon:
            return 0.0
        return float_down(Fraction(self.budget.epsilon) - Fraction(self.spent_epsilon))

    @property
    def shown_left(self) -> str:
        """What is left, in words for people; rounded down."""
        left, budget = self.left_epsilon, self.shown[1]
        if self.budget.unlimited:
            return budget
        if left == 0.0:
            return f"nothing left of {budget}"
        if left < _LITTLE * self.budget.epsilon:
            return f"almost nothing left (less than {_LITTLE:.1%} of {budget})"
        return f"{printed_down(left)} of {budget} left"

    def __str__(self) -> str:
        spent, budget = self.shown
        return f"{self.unit}: {spent} of {budget} at delta {self.budget.delta:g}"


class BudgetStatuses(tuple[BudgetStatus, ...], Displayed):
    """The budgets of a ledger, in their order."""


@dataclass(frozen=True)
class Declined:
    """A request that did not fit: what was asked, by whom, when, and why not."""

    sequence: int
    label: str
    declaration: Declaration
    count: int
    why: str
    actor: str
    time: str


@dataclass(frozen=True)
class Commit:
    """The commit of an entry: when, and the digest of what was released, if named."""

    time: str
    artefact: str | None


@dataclass(frozen=True)
class Recovery:
    """Rows that were lost and are accounted for.

    - `tip`: the last of them that anybody knew;
    - `entered`: charges that were entered again;
    - `written_down`: charges for what nobody could name;
    - `complete`: whether every lost row was known.
    """

    sequence: int
    tip: Tip
    entered: int
    written_down: int
    complete: bool
    actor: str
    time: str


def recovery_of(sequence: int, body: rows.Body) -> Recovery:
    """The recovery that a row tells of."""
    return Recovery(
        sequence,
        Tip.parse(body["tips"][-1]),
        body["entered"],
        body["written_down"],
        body["rows"] is not None,
        body["actor"],
        body["time"],
    )


class LedgerReader:
    """The reading half of `Ledger`."""

    id: str  # 32 hexadecimal digits, made with the ledger
    terms: Terms
    _store: LedgerStore

    @property
    def durable(self) -> bool:
        """Whether the ledger outlives this process."""
        return self._store.durable

    def _entry(self, sequence: int, body: rows.Body, declaration: Declaration) -> Entry:
        return Entry(
            id=body["id"],
            sequence=sequence,
            label=body["label"],
            declaration=declaration,
            count=body["count"],
            noise=body["noise"],
            time=body["time"],
            dataset=self.terms.dataset,
            durable=self.durable,
            promises=self._promises(),
            maps=self.terms.maps,
            actor=body["actor"],
            unsafe=tuple(body.get("unsafe", ())),
        )

    def _promises(self) -> tuple[Promise, ...]:
        return tuple(
            Promise(unit, budget.epsilon, budget.delta)
            for unit, budget in self.terms.budgets
        )

    def entries(self) -> list[Entry]:
        """Every charge of the ledger, in order."""
        with self._store.read() as connection:
            charged = rows.charges(connection)
        return [self._entry(*row) for row in charged]

    def entry(self, sequence: int) -> Entry:
        """The charge with this number, as `entries` and statements give it."""
        validate.count(sequence=sequence)
        with self._store.read() as connection:
            body = rows.body_at(connection, sequence, "charge")
            if body is None:
                last = Header.read(connection).state.sequence
                raise DemurError(
                    f"row {sequence} is no entry of this ledger: it is a draw, a commit"
                    f" or a note, or there is no such row. The last row is {last}."
                )
            declaration = rows.declaration(connection, body["declaration"])
        return self._entry(sequence, body, declaration)

    def commit_of(self, entry: Entry) -> Commit | None:
        """The commit of an entry; None while it is unfinished."""
        with self._store.read() as connection:
            rows.charge_row(connection, entry.id)
            body = rows.body_of(connection, entry.id, "commit")
        return None if body is None else Commit(body["time"], body["artefact"])

    def notes(
        self, entry: Entry | None = None, about: str | None = None
    ) -> tuple[Note, ...]:
        """The notes of the ledger in order: of one entry, about one subject, or all."""
        with self._store.read() as connection:
            noted = rows.of_kind(connection, "note", entry.id if entry else None)
        return tuple(
            Note(sequence, body["id"], body["about"], body["facts"], body["time"])
            for sequence, body in noted
            if about in (None, body["about"])
        )

    def declined(self) -> tuple[Declined, ...]:
        """The requests that did not fit, in order (a flood is not recorded whole)."""
        with self._store.read() as connection:
            return tuple(
                Declined(
                    sequence,
                    body["label"],
                    rows.declaration(connection, body["declaration"]),
                    body["count"],
                    body["why"],
                    body["actor"],
                    body["time"],
                )
                for sequence, body in rows.of_kind(connection, "declined")
            )

    def requests(self) -> tuple[ApprovalRequest, ...]:
        """The charges that waited or wait for approval, in order, with the decisions.

        A ledger opened with `approval=ApprovalRule(...)` has them.
        """
        with self._store.read() as connection:
            asked = rows.of_kind(connection, "request")
            decided = {
                body["id"]: decision_of(sequence, body)
                for sequence, body in rows.of_kind(connection, "decision")
            }
            return tuple(
                self._request(connection, sequence, body, decided.get(body["id"]))
                for sequence, body in asked
            )

    def _request(
        self,
        connection: Connection,
        sequence: int,
        body: rows.Body,
        decision: Decision | None,
    ) -> ApprovalRequest:
        declaration = rows.declaration(connection, body["declaration"])
        charged = rows.charge_by_key(connection, body["charge_key"])
        return ApprovalRequest(
            sequence,
            body["id"],
            body["label"],
            declaration,
            body["count"],
            body["purpose"],
            body["actor"],
            body["time"],
            costs_alone(
                self.terms.budgets, self.terms.maps, declaration, body["count"]
            ),
            self._promises(),
            self.terms.maps,
            decision,
            None if charged is None else charged[0],
        )

    def needs_approval(self, mechanism: Mechanism, *, count: int = 1) -> bool:
        """Whether a charge for `mechanism` would wait for somebody's decision."""
        return self.terms.needs_approval(declaration_of(mechanism), count)

    def recoveries(self) -> tuple[Recovery, ...]:
        """Each time that lost rows were entered again or written down, in order."""
        with self._store.read() as connection:
            recovered = rows.of_kind(connection, "recovered")
        return tuple(recovery_of(*each) for each in recovered)

    def _default_unit(self, unit: Unit | None) -> Unit:
        if unit is not None:
            return unit
        if len(self.terms.budgets) == 1:
            return self.terms.budgets[0][0]
        raise TypeError(
            "unit must be given for a ledger with several budgets: one of"
            f" {', '.join(str(u) for u, _ in self.terms.budgets)}, or any other unit"
        )

    def reading(
        self, unit: Unit | None = None, *, delta: float | None = None
    ) -> Reading:
        """The tight cost of the whole ledger at `unit` (default: its one budget's).

        If an entry states no cost at the unit, `NotCovered` names that entry. Deletions
        are never added to a privacy cost, nor the other way round.
        """
        unit = self._default_unit(unit)
        budget = dict(self.terms.budgets).get(unit)
        if delta is None:
            deltas = {b.delta for _, b in self.terms.budgets}
            if budget is None and len(deltas) > 1:
                raise TypeError(
                    f"delta must be given: {unit} has no budget in this ledger"
                )
            delta = budget.delta if budget else deltas.pop()
        validate.probability(delta=delta)
        with self._store.read() as connection:
            groups = rows.groups(connection)
            profiles = rows.profiles(connection)
        reading = read(groups, unit, delta, self.terms.maps, profiles)
        if budget is None:
            return reading
        (status,) = [s for s in self.status() if s.unit == unit]
        return replace(reading, enforced_epsilon=status.spent_epsilon)

    def epsilon(self, delta: float | None = None, unit: Unit | None = None) -> float:
        """The tight epsilon of the whole ledger at `unit` and `delta`."""
        return self.reading(unit, delta=delta).epsilon

    def status(self) -> BudgetStatuses:
        """Each budget and what the filter counts as spent of it."""
        totals = amounts.from_text(self._store.header().state.totals)
        rule = self.terms.filter
        return BudgetStatuses(
            BudgetStatus(
                unit,
                budget,
                filters.spent_epsilon(rule, budget, total),
                {
                    k: "used up" if v is None else f"{float(v):.6g}"
                    for k, v in total.items()
                },
            )
            for (unit, budget), total in zip(self.terms.budgets, totals, strict=True)
        )

    def would_fit(self, mechanism: Mechanism) -> bool:
        """Whether every budget could pay for `mechanism` now; nothing is written."""
        ways = ways_to_pay(self.terms, declaration_of(mechanism), 1, None)
        totals = amounts.from_text(self._store.header().state.totals)
        try:
            pay(self.terms, "asked about", ways, totals)
        except BudgetExceeded:
            return False
        return True

    def summary(self) -> str:
        """The ledger in a few lines of plain text."""
        lines = [f"Ledger {self.terms.dataset!r}, filter {self.terms.filter}"]
        for status in self.status():
            lines.append(f"  {status}")
        entries = self.entries()
        persons = sum(entry.declaration.per_person for entry in entries)
        if persons:
            lines.append(
                f"  {persons} of {len(entries)} entries count persons, not records:"
                " `reading` says for whom the sum holds"
            )
        lines += [f"  {e.sequence}. {e.label}" for e in entries]
        return "\n".join(lines)

    # -- trust -----------------------------------------------------------------

    def tip(self) -> Tip:
        """The tip of the chain; stored elsewhere, it shows a cut or a rewrite."""
        state = self._store.header().state
        return Tip(state.sequence, state.hash)

    def contains(self, tip: Tip) -> bool:
        """Whether a row is there, or was lost and is accounted for."""
        return self._store.contains(tip)

    def _contains(self, tip: Tip) -> None:
        if not self._store.contains(tip):
            raise lost(tip)

    def verify(
        self,
        tip: Tip | str | None = None,
        *,
        signer: str | None = None,
        full: bool = False,
    ) -> Verification:
        """The result of checking every row, link, signature, price, total and profile.

        `tip` is an exported tip; `signer` is the public key (hexadecimal) that must
        have signed every row. Without them the result lists what cannot be known. A
        ledger with many different sampled plans is priced anew with `full` only.
        """
        wanted = Tip.parse(tip) if isinstance(tip, str) else tip
        return verify_ledger(self._store, self.terms, wanted, signer, full=full)
