"""Series for charts: what a ledger spent over time, and its cost at many units.

They equal `Ledger.status` and `Ledger.reading` at each point, but the rows are read
once for all points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from demur.core.adjacency import Unit
from demur.core.errors import NotCovered, NotPriced
from demur.ledger import amounts, filters, tables
from demur.ledger import rows as journal
from demur.ledger.filters import Amounts
from demur.ledger.ledger import Ledger
from demur.ledger.reading import Group, read


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


def groups_of(ledger: Ledger) -> list[Group]:
    """Equal declarations of the ledger, with how often they were charged."""
    with ledger._store.read() as connection:
        return journal.groups(connection)


def over_units(
    ledger: Ledger,
    units: Iterable[Unit],
    delta: float,
    groups: Sequence[Group] | None = None,
) -> list[float | None]:
    """The tight epsilon at each unit; None where an entry states no cost.

    With `groups` only those entries of the ledger are read.
    """
    with ledger._store.read() as connection:
        chosen = journal.groups(connection) if groups is None else list(groups)
        profiles = journal.profiles(connection)
    epsilons: list[float | None] = []
    for unit in units:
        try:
            reading = read(chosen, unit, delta, ledger.terms.maps, profiles)
        except (NotCovered, NotPriced):
            epsilons.append(None)
        else:
            epsilons.append(reading.epsilon)
    return epsilons
