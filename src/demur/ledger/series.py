"""Series for charts: what a ledger spent over time, and its cost at many units.

They equal `Ledger.status` and `Ledger.reading` at each point, but the rows are read
once for all points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from demur.core.accounting.events import Event
from demur.core.adjacency import Unit
from demur.core.errors import NotCovered, NotPriced
from demur.ledger.ledger import Ledger
from demur.ledger.reading import Group, read
from demur.ledger.rules import amounts, filters
from demur.ledger.rules.filters import Amounts
from demur.ledger.storage import rows as journal
from demur.ledger.storage import tables


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
