"""One operation: an intent, a charge and an outcome, by which journal and ledger agree.

Whatever takes a record out of the model is one: a deletion (`deletion`), a copy that is
published, and a new model in the model's place (`epochs`). Its charge is durable before
anything changes, even where it costs nothing: a journal from an older copy then lacks
what the ledger knows, whichever way the record had gone, and opening refuses it
(`recovery.check_copies`). An intent is followed by its outcome at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from demur.durable.clock import now
from demur.unlearning.records import journal
from demur.unlearning.records.journal import Body
from demur.unlearning.service.charges import Till
from demur.unlearning.service.state import Keeper


def new_name(keeper: Keeper) -> str:
    """A name that no other operation of this service has had or will have.

    It ends in the place of the journal where it begins, which no two share.
    """
    return f"{keeper.source.new_key()[:12].hex()}{keeper.tip.sequence % 2**32:08x}"


def intent(
    keeper: Keeper,
    name: str,
    *,
    records: Sequence[tuple[str, int]] = (),
    requests: Mapping[str, int] | None = None,
    units: int = 0,
    deadline: str = "",
) -> Body:
    """What is about to be done, and what it will cost."""
    return keeper.row(
        "intent",
        operation=name,
        records=[list(record) for record in records],
        requests=dict(requests or {}),
        units=units,
        deadline=deadline,
        time=now(),
    )


def abandoned(keeper: Keeper, till: Till, name: str) -> Body:
    """The row that closes an intent, with the entry that it had paid, if it had."""
    entry = till.find(name)
    return keeper.row(
        "abandon",
        operation=name,
        entry=None if entry is None else entry.id,
        ledger=till.ledger.id,
        time=now(),
    )


def abandon(keeper: Keeper, till: Till, name: str) -> None:
    """Close an intent that came to nothing; what it cost stays spent."""
    if keeper.broken:
        return  # Reopening will find the intent, or the outcome.
    with keeper.step():  # Nothing may follow an intent that was left open.
        keeper.flush(then=abandoned(keeper, till, name))


@contextmanager
def replacing(keeper: Keeper, till: Till) -> Iterator[Body]:
    """Around a new model in the model's place; what its first row says of the charge.

    The entry is bound to that row. It costs nothing and draws no noise.
    """
    name = new_name(keeper)
    keeper.flush(then=intent(keeper, name))
    first = keeper.tip.sequence + 1
    try:
        payment = till.paid(till.tariff.replacement(), name)
        entry = payment.entry
        yield {"operation": name, "entry": entry.id, "ledger": till.ledger.id}
    except BaseException:
        abandon(keeper, till, name)
        raise
    with keeper.step():
        with keeper.place.read() as connection:
            row, _ = journal.row_at(connection, first)
        payment.commit(row.hash)
