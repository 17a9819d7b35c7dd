"""Intents: journal rows written before a charge, and the outcome rows that close them.

Whatever takes a record out of the model is an operation: a deletion (`deletion`), a
copy that is published, and a new model in the model's place (`retraining`). Its charge
is durable before anything changes, even where it costs nothing: a journal from an older
copy then lacks what the ledger has, whichever way the record was removed, and opening
refuses it (`recovery.check_copies`). An intent is followed by its outcome at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from demur.durable.clock import now
from demur.unlearning.records import journal
from demur.unlearning.records.journal import Body
from demur.unlearning.service.charges import DeletionCharges
from demur.unlearning.service.state import ServiceState


def new_name(state: ServiceState) -> str:
    """A name that no other operation of this service has had or will have.

    It ends in the number of the journal's row where it begins, which no two share.
    """
    return f"{state.source.new_key()[:12].hex()}{state.tip.sequence % 2**32:08x}"


def intent(
    state: ServiceState,
    name: str,
    *,
    records: Sequence[tuple[str, int]] = (),
    requests: Mapping[str, int] | None = None,
    used: int = 0,
    used_by: Mapping[str, int] | None = None,
    deadline: str = "",
    kind: str | None = None,
    limits: str | None = None,
) -> Body:
    """The row of what is about to be done, and what it will cost.

    `used` is what it takes of the capacity, `used_by` what each person's part would
    take by itself, `limits` what the owner named for the request, as text.
    """
    named = {} if kind is None else {"kind": kind}
    named |= {} if limits is None else {"limits": limits}
    return state.row(
        "intent",
        operation=name,
        records=[list(record) for record in records],
        requests=dict(requests or {}),
        used=used,
        used_by=dict(used_by or {}),
        deadline=deadline,
        time=now(),
        **named,
    )


def abandoned(state: ServiceState, charges: DeletionCharges, name: str) -> Body:
    """The row that closes an intent, with the entry that it had paid, if it had."""
    entry = charges.find(name)
    return state.row(
        "abandon",
        operation=name,
        entry=None if entry is None else entry.id,
        ledger=charges.ledger.id,
        time=now(),
    )


def abandon(state: ServiceState, charges: DeletionCharges, name: str) -> None:
    """Close an intent that came to nothing; what it cost stays spent."""
    if state.broken:
        return  # Reopening will find the intent, or the outcome.
    with state.database.read() as connection:
        intent, tip = journal.open_intent(connection), journal.tip(connection)
    if tip != state.tip:  # Another writer has closed it: this one has lost its lock.
        state.broken = True
        state.require_usable()
    if intent is None or intent["operation"] != name:
        return  # It was interrupted after its outcome had become durable.
    with state.step():  # Nothing may follow an intent that was left open.
        state.flush(then=abandoned(state, charges, name))


@contextmanager
def replacing(state: ServiceState, charges: DeletionCharges) -> Iterator[Body]:
    """Around putting a new model in the model's place; the charge, for its first row.

    The entry is bound to the last of its rows, and so to all of them. It costs nothing
    and draws no noise.
    """
    name = new_name(state)
    state.flush(then=intent(state, name))
    try:
        payment = charges.paid(charges.prices.replacement(), name)
        entry = payment.entry
        yield {"operation": name, "entry": entry.id, "ledger": charges.ledger.id}
    except BaseException:
        abandon(state, charges, name)
        raise
    with state.step():
        payment.commit(state.tip.hash)
