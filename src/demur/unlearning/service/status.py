"""Where a service stands, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demur.ledger import Tip
from demur.unlearning.records.queue import Queued
from demur.unlearning.service.state import Keeper


@dataclass(frozen=True)
class ServiceStatus:
    """Counts of records and requests, and what is left of the capacity.

    `used` counts deletions (or publications) of this epoch that were paid for,
    interrupted ones included; `pending` are inserts that are not acknowledged yet;
    `unclean` says that a reader kept old pages alive after a deletion: call `scrub()`.
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
    tip: Tip
    unclean: bool


def status_of(keeper: Keeper, waiting: Sequence[Queued]) -> ServiceStatus:
    """The status, from what the keeper knows."""
    generations = keeper.index.values()
    return ServiceStatus(
        mode=keeper.terms.mode,
        scope=keeper.terms.scope,
        epoch=keeper.epoch,
        tick=keeper.tick,
        live=sum(generation > 0 for generation in generations),
        deleted=sum(generation < 0 for generation in generations),
        queued=len(waiting),
        overdue=sum(queued.overdue for queued in waiting),
        pending=len(keeper.pending),
        used=keeper.paid,
        capacity=keeper.terms.capacity,
        tip=keeper.tip,
        unclean=keeper.unclean,
    )
