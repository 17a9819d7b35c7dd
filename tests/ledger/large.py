"""A large ledger that verifies, in seconds: real charges, and then many copies of them.

large.py read URL    opens the ledger and prints its reading and how long it took
"""

import json
import secrets
import sys
import time
from fractions import Fraction
from typing import Any

START = time.perf_counter()

import sqlalchemy as sa  # noqa: E402

from demur import AddOrRemoveOne, Budget, Declaration, Filter, Ledger  # noqa: E402
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Repeated  # noqa: E402
from demur.core.cost import Cost, Fixed  # noqa: E402
from demur.durable.chain import canonical, link  # noqa: E402
from demur.ledger.rules import amounts, filters  # noqa: E402
from demur.ledger.storage import header, tables  # noqa: E402

UNIT = AddOrRemoveOne()
TERMS: dict[str, Any] = {
    "dataset": "a large one",
    "budgets": {UNIT: Budget(40.0, 1e-5)},
    "filter": Filter.gaussian(blocks=0.5),
}


def gaussians(count):
    """Different releases; a hundred of each of a thousand cost about epsilon 3."""
    return [GaussianEvent(500.0 + i) for i in range(count)]


def plans(count):
    return [Repeated(PoissonGaussian(0.001, 2.0 + 0.1 * i), 1000) for i in range(count)]


def build(url, entries, distinct=1000, plan_count=10):
    """A ledger of `entries` charges: each event once, then copies of rows."""
    ledger = Ledger.open(url, **TERMS)
    for event in [*plans(plan_count), *gaussians(distinct)]:
        declaration = Declaration("a release", Cost((Fixed(UNIT, event),)))
        ledger.charge(declaration, label="the first of its kind", block_delta=1e-7)
    with ledger._store.write() as connection:
        sequence, last, totals = header.lock(connection)
        (spent,) = amounts.from_text(totals)
        rows = connection.execute(
            sa.select(tables.rows)
            .where(tables.rows.c.sequence > plan_count)
            .order_by(tables.rows.c.sequence)
        )
        models = [(dict(row), json.loads(row["body"])) for row in rows.mappings()]
        batch = []
        while sequence < entries:
            row, body = models[sequence % len(models)]
            new = body | {"id": secrets.token_hex(16), "label": f"copy {sequence + 1}"}
            text = canonical(new)
            sequence, last = sequence + 1, link(last, text)
            spent = filters.add(spent, amounts.from_data(body["spent"][0]))
            batch.append(
                row
                | {"sequence": sequence, "entry_id": new["id"], "body": text}
                | {"hash": last}
            )
            if len(batch) == 5000 or sequence == entries:
                connection.execute(tables.rows.insert(), batch)
                batch = []
        state = header.State(sequence, last, amounts.to_text([spent]))
        header.move(connection, state)
    ledger.close()


def mu_squared(entries, distinct=1000, plan_count=10):
    """The exact sum of 1/z^2 over the Gaussians of such a ledger."""
    copies = dict.fromkeys(range(distinct), 1)
    for sequence in range(distinct + plan_count, entries):
        copies[sequence % distinct] += 1
    return sum(
        (
            count / Fraction(event.multiplier) ** 2
            for event, count in zip(gaussians(distinct), copies.values(), strict=True)
        ),
        Fraction(0),
    )


def read(url):
    """Readings in this process, the first of it and a second one."""
    opened = time.perf_counter()
    ledger = Ledger.open(url)
    begin = time.perf_counter()
    first = ledger.reading()
    middle = time.perf_counter()
    again = ledger.reading()
    end = time.perf_counter()
    assert again == first
    print(
        json.dumps(
            {
                "epsilon": first.epsilon,
                "enforced": first.enforced_epsilon,
                "entries": first.entries,
                "imports": opened - START,
                "open": begin - opened,
                "first": middle - begin,
                "again": end - middle,
            }
        )
    )


if __name__ == "__main__":
    read(sys.argv[2])
