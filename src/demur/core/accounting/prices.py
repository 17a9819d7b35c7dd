"""Prices of events: the smallest of the upper bounds on epsilon or delta."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from demur.core import validate
from demur.core.accounting import events
from demur.core.accounting.composition import LossDistribution
from demur.core.accounting.events import Event
from demur.core.accounting.sampled_profiles import grid_exponent
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import as_event, total_of
from demur.core.accounting.upper_bounds import (
    closed_form,
    closed_form_delta,
    renyi_delta,
    renyi_epsilon,
    too_wide,
)

PLD_SMALLEST_DELTA = 1e-11  # PLD tails are cut at 1e-15; stay far above.


def price(
    work: Event | Iterable[Event],
    delta: float,
    *,
    profiles: Mapping[Event, Profile] | None = None,
) -> float:
    """The smallest epsilon, rounded up, at which `work` is (epsilon, delta)-private.

    `profiles` may hold privacy profiles of sampled events computed before (an entry of
    the ledger keeps its own), so that a reading needs no new distribution.

    >>> from demur.core.accounting.events import GaussianEvent, Pure
    >>> round(price(GaussianEvent(1.0), delta=1e-6), 4)
    4.8866
    >>> price([Pure(0.5), Pure(0.25)], delta=0.0)
    0.75
    """
    validate.probability(delta=delta)
    if delta >= 1.0:
        return 0.0
    total = total_of(as_event(work))
    simple = closed_form(total, delta)
    if not total.sampled and (not total.mu_squared or not (total.pure or total.approx)):
        many = sum(total.pure.values()) + sum(total.approx.values())
        if many <= 1 or delta == 0.0:
            return simple
    best = min(simple, renyi_epsilon(total, delta))
    if delta < PLD_SMALLEST_DELTA or too_wide(total, delta):
        return best
    return min(best, LossDistribution(total, profiles or {}).epsilon(delta))


def delta_of(
    work: Event | Iterable[Event],
    epsilon: float,
    *,
    profiles: Mapping[Event, Profile] | None = None,
) -> float:
    """The smallest delta, rounded up, at which `work` is (epsilon, delta)-private.

    >>> from demur.core.accounting.events import Pure
    >>> delta_of(Pure(0.5), epsilon=0.5)
    0.0
    """
    validate.non_negative(epsilon=epsilon)
    total = total_of(as_event(work))
    simple = closed_form_delta(total, epsilon)
    if not total.sampled and not (total.pure or total.approx):
        return simple
    if simple == 0.0:
        return simple
    best = min(simple, renyi_delta(total, epsilon))
    if best < PLD_SMALLEST_DELTA or too_wide(total, 1e-6):
        return best
    return min(best, LossDistribution(total, profiles or {}).delta(epsilon))


def deciding_grid(event: Event, delta: float) -> float | None:
    """The step of the grid that decides the price of repeated sampled steps.

    None where another bound decides, or for an event of another form.
    """
    total = total_of(event)
    if len(events.atoms(event)) != 1 or not total.sampled:
        return None
    if delta < PLD_SMALLEST_DELTA or too_wide(total, delta):
        return None
    if price(event, delta) >= min(
        closed_form(total, delta), renyi_epsilon(total, delta)
    ):
        return None
    ((atom, count),) = total.sampled.items()
    return math.ldexp(1.0, -grid_exponent(atom, count))
