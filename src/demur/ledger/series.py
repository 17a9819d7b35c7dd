"""Series for charts: what a ledger spent over time, and its cost at many units.

They equal `Ledger.status` and `Ledger.reading` at each point, but the rows are read
once for all points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from demur.core import validate
from demur.core.accounting.events import Event
from demur.core.adjacency import Unit
from demur.core.declaration import Mechanism, declaration_of
from demur.core.errors import BudgetExceeded, NotCovered, NotPriced
from demur.ledger.ledger import Ledger
from demur.ledger.reading import Group, read
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.admission import pay, ways_to_pay
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Amounts
from demur.ledger.rules.terms import Terms
from demur.ledger.storage import rows as journal
from demur.ledger.storage import tables

_MOST_TIMES = 20_000


@dataclass(frozen=True)
class Moment:
    """What each budget's filter counted as spent right after one charge."""

    sequence: int
    time: str
    spent_epsilon: tuple[float, ...]


def over_time(ledger: Ledger, most: int = 400) -> tuple[Moment, ...]:
    """What was spent after each charge, at `most` moments that include the last one.

    The last moment is `ledger.status()`.
    """
    statement = (
        sa.select(tables.rows.c.sequence, tables.rows.c.body)
        .where(tables.rows.c.kind == "charge")
        .order_by(tables.rows.c.sequence)
    )
    with ledger._store.read() as connection:
        rows = [(int(r.sequence), r.body) for r in connection.execute(statement)]
    terms = ledger.terms
    totals: list[Amounts] = [{} for _ in terms.budgets]
    step = max(1, -(-len(rows) // most))
    moments = []
    for i, (sequence, text) in enumerate(rows):
        body = json.loads(text)
        for position, spent in enumerate(body["spent"]):
            if spent is not None:
                spend = amounts.from_data(spent)
                totals[position] = filters.add(totals[position], spend)
        if (len(rows) - 1 - i) % step == 0:
            spent_now = tuple(
                filters.spent_epsilon(terms.filter, budget, total)
                for (_, budget), total in zip(terms.budgets, totals, strict=True)
            )
            moments.append(Moment(sequence, body["time"], spent_now))
    return tuple(moments)


class Readings:
    """What a ledger costs at many units, read from one state of it."""

    def __init__(self, ledger: Ledger) -> None:
        with ledger._store.read() as connection:
            self.groups: tuple[Group, ...] = tuple(journal.groups(connection))
            self._profiles = journal.profiles(connection)
        self._maps = ledger.terms.maps
        # Where all entries cost the same at two units, one price is both readings.
        self._known: dict[tuple[Event, float, float], float] = {}

    def epsilon(
        self, unit: Unit, delta: float, groups: Iterable[Group] | None = None
    ) -> float | None:
        """The tight epsilon at a unit; None where an entry states no cost.

        With `groups` only those entries of the ledger are read.
        """
        chosen = self.groups if groups is None else groups
        try:
            reading = read(chosen, unit, delta, self._maps, self._profiles, self._known)
        except (NotCovered, NotPriced):
            return None
        return reading.epsilon


@dataclass(frozen=True)
class Forecast:
    """How long one budget lasts if spending goes on as it did in the last `days`.

    `days_left` is None where nothing was spent lately, or nothing is left to forecast.
    """

    unit: Unit
    spent_epsilon: float
    spent_lately: float
    days: float
    days_left: float | None


def forecast(ledger: Ledger, days: float = 28.0) -> tuple[Forecast, ...]:
    """When each budget is used up, from what was spent in the last `days`.

    It goes by the filter's accounts, which add up, and not by epsilon, which does not:
    the first account that is full ends it.
    """
    terms = ledger.terms
    now = datetime.now(UTC)
    since = (now - timedelta(days=days)).isoformat(timespec="milliseconds")
    with ledger._store.read() as connection:
        charged = journal.of_kind(connection, "charge")
    totals: list[Amounts] = [{} for _ in terms.budgets]
    before: list[Amounts] = [{} for _ in terms.budgets]
    first = charged[0][1]["time"] if charged else since
    for _, body in charged:
        for position, spent in enumerate(body["spent"]):
            if spent is None:
                continue
            spend = amounts.from_data(spent)
            totals[position] = filters.add(totals[position], spend)
            if body["time"] < since:
                before[position] = filters.add(before[position], spend)
    # A ledger that is younger than that has spent in fewer days.
    age = (now - datetime.fromisoformat(max(first, since))).total_seconds() / 86_400
    span = min(days, max(1.0, age))
    forecasts = []
    for (unit, budget), total, old in zip(terms.budgets, totals, before, strict=True):
        spent_now = filters.spent_epsilon(terms.filter, budget, total)
        spent_then = filters.spent_epsilon(terms.filter, budget, old)
        forecasts.append(
            Forecast(
                unit,
                spent_now,
                max(0.0, spent_now - spent_then),
                span,
                _days_left(terms, budget, total, old, span),
            )
        )
    return tuple(forecasts)


def _days_left(
    terms: Terms, budget: Budget, total: Amounts, old: Amounts, span: float
) -> float | None:
    """How long until the first account of a budget is full, at the rate of `span`."""
    left: list[float] = []
    for account, capacity in filters.capacities(terms.filter, budget).items():
        used, earlier = total.get(account, 0), old.get(account, 0)
        if used is None:
            return 0.0
        rate = float(used - (earlier or 0)) / span
        if rate > 0:
            left.append(max(0.0, float(capacity - used) / rate))
    return min(left, default=None)


@dataclass(frozen=True)
class Projection:
    """What a ledger would read after each of `asked` more charges, as far as they fit.

    `steps` has what each budget's filter would count as spent; `tight` is the reading
    of the whole ledger after the last one that fits, None where it has none.
    """

    asked: int
    steps: tuple[tuple[float, ...], ...]
    tight: tuple[float | None, ...]


def project(ledger: Ledger, mechanism: Mechanism, times: int) -> Projection:
    """What would become of a ledger if `mechanism` were charged so many times.

    Nothing is charged and nothing is written.
    """
    validate.count(times=times)
    if times > _MOST_TIMES:
        raise ValueError(f"times must be at most {_MOST_TIMES:,}; got {times}")
    declaration, terms = declaration_of(mechanism), ledger.terms
    ways = ways_to_pay(terms, declaration, 1, None)
    totals = amounts.from_text(ledger._store.header().state.totals)
    steps: list[tuple[float, ...]] = []
    for _ in range(times):
        try:
            pay(terms, "asked about", ways, totals)
        except BudgetExceeded:
            break
        steps.append(
            tuple(
                filters.spent_epsilon(terms.filter, budget, total)
                for (_, budget), total in zip(terms.budgets, totals, strict=True)
            )
        )
    readings = Readings(ledger)
    more = Group(declaration, len(steps), len(steps), "asked about", True)
    groups = [*readings.groups, more] if steps else readings.groups
    tight = tuple(
        readings.epsilon(unit, budget.delta, groups) for unit, budget in terms.budgets
    )
    return Projection(times, tuple(steps), tight)
