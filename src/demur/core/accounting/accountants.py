"""Epsilon by dp_accounting's own accountants."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from demur.core import validate
from demur.core.accounting import events
from demur.core.accounting.events import Event, Neighbours
from demur.core.accounting.translation import to_dp_event, to_relation
from demur.core.errors import NotPriced
from demur.core.rounding import down, up

if TYPE_CHECKING:
    import dp_accounting


def relation_of_accountant(accountant: dp_accounting.PrivacyAccountant) -> Neighbours:
    """The neighbouring relation that an accountant of dp_accounting was made for."""
    import dp_accounting as dpa

    if not isinstance(accountant, dpa.PrivacyAccountant):
        raise TypeError(
            "accountant must be one of dp_accounting's PrivacyAccountant; got"
            f" {type(accountant).__name__}"
        )
    for neighbours in Neighbours:
        if to_relation(neighbours) is accountant.neighboring_relation:
            return neighbours
    raise NotPriced(
        f"an accountant for {accountant.neighboring_relation} has no counterpart here."
        " Nothing was spent."
    )


def grid_of_accountant(accountant: dp_accounting.PrivacyAccountant) -> float | None:
    """The step of the losses in a new PLD accountant; None for any other kind."""
    from dp_accounting import NoOpDpEvent
    from dp_accounting.pld import PLDAccountant

    if type(accountant) is not PLDAccountant:
        return None
    new = isinstance(accountant.ledger, NoOpDpEvent)
    return float(accountant._value_discretization_interval) if new else None


def check_accountant(accountant: dp_accounting.PrivacyAccountant, event: Event) -> None:
    """Refuse an accountant that is not new or has no price for such an event.

    One that holds events already would give the epsilon of something else.
    """
    import dp_accounting as dpa

    relation_of_accountant(accountant)
    if not isinstance(accountant.ledger, dpa.NoOpDpEvent):
        raise ValueError(
            "accountant must be new; this one has composed events already, and their"
            " cost would be taken for the plan's"
        )
    if not accountant.supports(to_dp_event(event)):
        kinds = sorted({type(atom).__name__ for atom in events.atoms(event)})
        raise NotPriced(
            f"{type(accountant).__name__} has no price for {', '.join(kinds)} under"
            f" {accountant.neighboring_relation.name}. Nothing was spent."
        )


def accountant_epsilon(
    accountant: dp_accounting.PrivacyAccountant, event: Event, delta: float
) -> float:
    """The epsilon of `event` alone, by a copy of a new accountant."""
    check_accountant(accountant, event)
    alone = copy.deepcopy(accountant)
    alone.compose(to_dp_event(event))
    return float(alone.get_epsilon(delta))


def fixed_batch_epsilon(
    dataset_size: int, batch_size: int, multiplier: float, count: int, delta: float
) -> float:
    """Epsilon of `count` uniform batches without replacement, one record replaced.

    `multiplier` = sigma / the largest norm of one record's contribution. The bound is
    the Renyi one of Wang, Balle and Kasiviswanathan 2019, as dp_accounting computes
    it; it counts noise per sensitivity of the whole sum, which moves by two
    contributions.
    """
    import dp_accounting as dpa

    validate.count(dataset_size=dataset_size, batch_size=batch_size, count=count)
    validate.positive(multiplier=multiplier)
    validate.open_probability(delta=delta)
    if batch_size > dataset_size:
        raise ValueError(
            f"batch_size must be at most dataset_size; got {batch_size} of"
            f" {dataset_size}"
        )
    accountant = dpa.rdp.RdpAccountant(
        # Any set of orders gives a bound; their cost grows with the square.
        orders=[*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128],
        neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE,
    )
    accountant.compose(
        fixed_batch_dp_event(dataset_size, batch_size, multiplier, count)
    )
    return up(float(accountant.get_epsilon(delta)), 8)


def fixed_batch_dp_event(
    dataset_size: int, batch_size: int, multiplier: float, count: int
) -> dp_accounting.DpEvent:
    """The same batches as an event of dp_accounting, for a REPLACE_ONE accountant."""
    import dp_accounting as dpa

    noise = dpa.GaussianDpEvent(down(multiplier / 2))
    batch = dpa.SampledWithoutReplacementDpEvent(dataset_size, batch_size, noise)
    return dpa.SelfComposedDpEvent(batch, count)
