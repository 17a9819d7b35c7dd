"""Status of a deletion service: counts of records and requests, capacity left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demur.ledger import Tip
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.records.queue import QueuedRequest
from demur.unlearning.service.forecast import NoiseForecast, forecast
from demur.unlearning.service.state import ServiceState


@dataclass(frozen=True)
class ServiceStatus:
    """Counts of records and requests, and the capacity that was used.

    `used` is what requests (or publications) of this epoch have taken of the capacity,
    interrupted ones included; `pending` are inserts that are not acknowledged yet;
    `remembers` says whether ids of deleted records stay known: without a `memory_key`
    no second deletion is refused, and a person who comes back is a new one; `unclean`
    says that old pages could not be erased after a deletion: call `scrub()`.
    `publications_left` is for a service that answers from published copies; `noise` is
    what the noise of deletions does to its answers, now and after a hundred more.
    """

    mode: str
    scope: str
    epoch: int
    tick: int
    live: int
    deleted: int
    queued: int
    overdue: int
    pending: int
    used: int
    capacity: int | None
    remembers: bool
    tip: Tip
    unclean: bool
    publications_left: int | None
    noise: NoiseForecast


def status_of(
    state: ServiceState,
    waiting: Sequence[QueuedRequest],
    prices: DeletionPrices,
    publications_left: int | None,
) -> ServiceStatus:
    """The status of a service."""
    generations = state.index.values()
    return ServiceStatus(
        mode=state.terms.mode,
        scope=state.terms.scope,
        epoch=state.epoch,
        tick=state.tick,
        live=sum(generation > 0 for generation in generations),
        deleted=sum(generation < 0 for generation in generations),
        queued=len(waiting),
        overdue=sum(queued.overdue for queued in waiting),
        pending=len(state.pending),
        used=state.used,
        capacity=state.terms.capacity,
        remembers=state.terms.remembers,
        tip=state.tip,
        unclean=state.unclean,
        publications_left=publications_left,
        noise=forecast(state.mode, prices, state.used),
    )
