"""Publications of a service that answers from published copies.

In the order of `deletion`: an intent, a charge at the publications' own unit, noise
from its key, the new copy and its row in one transaction, and only then it is seen. A
copy that was not committed was never seen, and its noise cannot be drawn again; its
charge stays spent, and it counts.

A publication that falls due by itself (`Publications.every`) and finds the capacity
used up is left out: when that is follows public counts alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction

import numpy as np

from demur.core.accounting import inverse_square_up
from demur.core.accounting.events import GaussianEvent
from demur.core.entry import deletion_key
from demur.core.errors import NotCovered, NotPriced
from demur.durable.clock import now
from demur.ledger import Ledger
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.pricing.publications import PublicationPrices
from demur.unlearning.records import journal
from demur.unlearning.records.journal_rules import History
from demur.unlearning.service import intents
from demur.unlearning.service.charges import (
    DeletionCharges,
    publication_entries,
)
from demur.unlearning.service.state import ServiceState


def left(state: ServiceState, prices: PublicationPrices, ledger: Ledger) -> int:
    """How many publications are left; those of crashed attempts are used up.

    By the journal, which stays with the service when it is opened with another ledger,
    and by the ledger, which knows of charges that the journal has not recorded yet.
    """
    with state.database.read() as connection:
        recorded = journal.publications(connection)
    paid = len(publication_entries(ledger, state.id))
    return max(prices.publications.count - max(recorded, paid), 0)


def publication_problems(
    prices: PublicationPrices, history: History, ledgers: Mapping[str, Ledger]
) -> tuple[list[str], list[str]]:
    """Whether all publications stay within what the terms declare; what is not known.

    A certificate's `epsilon_in_all` rests on that, and on no person having had more
    live records than the noise is for.
    """
    publications, total, elsewhere = prices.publications, Fraction(0), 0
    problems, unknown = [], []
    for operation, (_, ledger_id) in history.publications.items():
        ledger = ledgers.get(ledger_id)
        if ledger is None:
            elsewhere += 1
            continue
        entry = ledger.find(deletion_key(history.service, operation))
        try:
            event = entry and entry.declaration.cost.at(publications.unit)
        except (NotCovered, NotPriced):
            event = None
        if not isinstance(event, GaussianEvent):
            problems.append("a publication is not in the ledger with its noise")
            break
        total += inverse_square_up(event.multiplier)
    if len(history.publications) > publications.count or total > prices.mu_squared:
        problems.append("there are more publications than the service declares")
    if history.most_live > publications.records_per_subject:
        problems.append(
            "a person had more live records than publications are priced for"
        )
    if elsewhere:
        unknown.append(f"what {elsewhere} publications cost, in ledgers not given here")
    return problems, unknown


def publish(
    state: ServiceState, charges: DeletionCharges, prices: PublicationPrices
) -> None:
    """Publish the model as it is now, with noise that is paid for first."""
    state.flush()
    assert isinstance(state.mode, PublishedAnswers)
    copy = state.mode.copy()
    if not left(state, prices, charges.ledger):
        raise CapacityExhausted(
            f"all {prices.publications.count} publications have been made: answers"
            " come from the last copy from now on. The count of a service never"
            " changes: open another for more. Nothing was spent.",
            "privacy",
            retrain_required=False,
        )
    mechanism = prices.mechanism(copy)
    operation = intents.new_name(state)
    state.flush(then=intents.intent(state, operation, kind=journal.PUBLICATION))
    try:
        payment = charges.paid(
            prices.published_copy(mechanism), operation, kind=journal.PUBLICATION
        )
        noise = mechanism.apply(np.zeros(mechanism.dimension), payment.key)
        copy.show(noise, sigma=float(mechanism.sigma), grid=float(mechanism.grid))
        row = state.row(
            "publish",
            operation=operation,
            entry=payment.entry.id,
            ledger=charges.ledger.id,
            time=now(),
        )
        state.replace(copy, [row], {})
    except BaseException:
        intents.abandon(state, charges, operation)
        raise
    payment.commit(state.tip.hash)


def publish_if_due(
    state: ServiceState,
    charges: DeletionCharges,
    prices: PublicationPrices,
    before: int,
) -> None:
    """Publish if the inserts since tick `before` bring it, and capacity is left."""
    if prices.publications.due(before, state.tick):
        # The record is learned, whatever comes of this.
        with suppress(CapacityExhausted):
            publish(state, charges, prices)
