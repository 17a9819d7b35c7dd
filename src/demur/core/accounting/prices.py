"""Prices of events: the smallest of the upper bounds on epsilon or delta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from demur.core import validate
from demur.core.accounting import events, gaussian, renyi, selection
from demur.core.accounting.composition import LossDistribution, SearchCurve
from demur.core.accounting.events import BestOf, Event
from demur.core.accounting.repetitions import SLACK, Array
from demur.core.accounting.sampled_gaussian import gaussian_stick
from demur.core.accounting.sampled_profiles import grid_exponent
from demur.core.accounting.stored_profile import Profile
from demur.core.accounting.totals import Total, as_event, event_of, total_of
from demur.core.accounting.upper_bounds import (
    PLD_LARGEST_EPSILON,
    closed_form,
    closed_form_delta,
    renyi_delta,
    renyi_epsilon,
    too_wide,
    total_divergence,
)
from demur.core.rounding import down, float_up, sum_up, up

PLD_SMALLEST_DELTA = 1e-11  # PLD tails are cut at 1e-15; stay far above.
_POINTS = 96  # Epsilons at which a profile bounds the tests of a search.
_FAR = 1e12  # No epsilon of this size means anything.
_LOWEST = 1e-9  # Where that profile ends: less makes no difference to a test.


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
    if total.searches:
        return _with_searches(total, delta, profiles or {})
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
    if total.searches:
        return _delta_with_searches(total, epsilon, profiles or {})
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


# -- searches (`accounting.selection` has the theorem) -------------------------------


@lru_cache(maxsize=1024)
def search_ratio(event: BestOf) -> float:
    """log C: what the choice of the best adds to the epsilon of one run."""
    return selection.largest_ratio(event.repetitions, _tests(event))


@lru_cache(maxsize=4096)
def search_divergence(event: BestOf, order: int) -> float | None:
    """D_order of a search, rounded up; None where that of a run is not known."""
    single = [total_divergence(total_of(each), order) for each in event.events]
    if any(one is None for one in single):
        return None
    largest = max(one for one in single if one is not None)
    if math.isinf(largest):
        return math.inf
    law = event.repetitions
    extra = selection.largest_ratio(law, _tests(event), order)
    runs = (order - 1.0) * (largest + extra)
    empty = math.log(law.nothing) if law.nothing else -math.inf
    return up(max(0.0, float(np.logaddexp(runs, empty)) / (order - 1.0)) + SLACK)


@lru_cache(maxsize=1024)
def _tests(event: BestOf) -> selection.BoundedTest:
    """T of one run: the larger of the alternatives' profiles, at some epsilons."""
    ends = [min(price(each, _reached(each)), 100.0) for each in event.events]
    ends += [e for e in (_pure_epsilon(each) for each in event.events) if e is not None]
    epsilons = np.unique([*np.linspace(0.0, max(ends), _POINTS), *ends])
    return selection.BoundedTest.of(epsilons, _largest_deltas(event, epsilons))


def _reached(event: Event, least: float = _LOWEST) -> float:
    """A delta that the event has at a finite epsilon, `least` where it is Gaussian."""
    fixed = total_of(event).delta_sum
    return min(1.0, up(float_up(fixed) + least)) if fixed else least


def _largest_deltas(event: BestOf, epsilons: Array) -> Array:
    return np.max([_deltas(each, epsilons) for each in event.events], axis=0)


def _pure_epsilon(event: Event) -> float | None:
    epsilon = price(event, 0.0)
    return epsilon if math.isfinite(epsilon) else None


def _deltas(event: Event, epsilons: Array) -> Array:
    """delta at many epsilons >= 0, the larger of both directions, rounded up."""
    total = total_of(event)
    if total.sampled or total.approx or (total.pure and total.mu_squared):
        return _grid_deltas(total, epsilons)
    if total.pure:
        # Randomised response dominates; several pure ones are no worse than their sum.
        whole = closed_form(total, 0.0)
        odds = np.expm1(np.maximum(whole - epsilons, 0.0)) * np.exp(epsilons - whole)
        return np.asarray(odds / (1.0 + math.exp(-whole)) * (1.0 + 1e-12))
    mu = up(math.sqrt(total.mu_squared))
    if len(epsilons) <= _POINTS + 2:
        return np.array([gaussian.gaussian_delta(mu, float(e)) for e in epsilons])
    return np.clip(gaussian_stick(1.0 / mu, epsilons), 0.0, 1.0)


def _grid_deltas(total: Total, epsilons: Array) -> Array:
    simple = np.array(
        [
            min(closed_form_delta(total, float(e)), renyi_delta(total, float(e)))
            for e in epsilons
        ]
    )
    if too_wide(total, 1e-6):
        return simple
    whole = _distribution(event_of(total))
    return np.minimum(simple, [whole.delta(float(e)) for e in epsilons])


@lru_cache(maxsize=64)
def _distribution(event: Event) -> LossDistribution:
    return LossDistribution(total_of(event), {})


def _search_price(event: BestOf, delta: float) -> float:
    """Epsilon of one search: that of a run at delta / E[K] and log C, or by Renyi."""
    mean = event.repetitions.mean
    left = min(1.0, down(delta / mean)) if delta else 0.0
    run = max(price(each, left) for each in event.events)
    if math.isinf(run):
        return run
    best = sum_up(run, search_ratio(event))
    if delta == 0.0 or not 1e-6 < best < PLD_LARGEST_EPSILON:
        return best
    # About the best order of a Gaussian with this epsilon, and some around it.
    middle = 1.0 + 2.0 * math.log(1.0 / delta) / best
    for order in sorted({max(2, round(middle * f)) for f in (0.6, 1.0)}):
        divergence = search_divergence(event, order) if order < 1e6 else None
        if divergence is not None and math.isfinite(divergence):
            best = min(best, renyi.to_epsilon(divergence, order, delta))
    return best


def _search_deltas(event: BestOf) -> Callable[[Array], Array]:
    """E[K] delta_Q(epsilon - log C), at most 1, for epsilons of any sign.

    Below 0 the outcome of no run counts too: p_0 - e^epsilon p_0, in both worlds.
    """
    ratio, law = search_ratio(event), event.repetitions
    mean, nothing = law.mean, law.nothing

    def deltas(epsilons: Array) -> Array:
        at = epsilons - ratio
        run = _largest_deltas(event, np.abs(at))
        # delta(-e) = 1 - e^-e (1 - delta(e)) with the directions exchanged
        run = np.where(at < 0, 1.0 - np.exp(-np.abs(at)) * (1.0 - run), run)
        empty = -np.expm1(np.minimum(epsilons, 0.0)) * nothing
        return np.asarray(np.minimum(1.0, (mean * run + empty) * (1.0 + 1e-12)))

    return deltas


def _with_searches(
    total: Total, delta: float, profiles: Mapping[Event, Profile]
) -> float:
    """Epsilon of searches and of what else there is: the least of two bounds.

    Each search at its share of delta, and all epsilons added; or one distribution.
    """
    rest = replace(total, searches={})
    others = [event_of(rest)] if rest != Total(0.0, {}, {}, {}) else []
    searches = sum(total.searches.values())
    if not others and searches == 1:
        return min(_search_price(event, delta) for event in total.searches)
    share = down(delta / (searches + len(others)))
    added = Fraction(0)
    for event, count in total.searches.items():
        added += Fraction(min(_search_price(event, share), _FAR)) * count
    for other in others:
        added += Fraction(min(price(other, share, profiles=profiles), _FAR))
    best = math.inf if added >= Fraction(_FAR) else float_up(added)
    if delta < PLD_SMALLEST_DELTA or best > PLD_LARGEST_EPSILON:
        return best
    if too_wide(rest, delta):
        return best
    return min(best, _searches_composed(total, rest, profiles).epsilon(delta))


def _delta_with_searches(
    total: Total, epsilon: float, profiles: Mapping[Event, Profile]
) -> float:
    rest = replace(total, searches={})
    alone = rest == Total(0.0, {}, {}, {})
    if alone and sum(total.searches.values()) == 1:
        (event,) = total.searches
        if _with_searches(total, 0.0, profiles) <= epsilon:
            return 0.0
        return float(_search_deltas(event)(np.array([epsilon]))[0])
    if _with_searches(total, 1e-6, profiles) > PLD_LARGEST_EPSILON:
        return 1.0
    return _searches_composed(total, rest, profiles).delta(epsilon)


def _searches_composed(
    total: Total, rest: Total, profiles: Mapping[Event, Profile]
) -> LossDistribution:
    curves = []
    for event, count in total.searches.items():
        # Past this delta only a part that no epsilon takes away is left.
        runs = max(_reached(each, 0.0) for each in event.events)
        least = min(1.0, up(event.repetitions.mean * runs + _LOWEST * 1e-3, 2))
        highest = min(_search_price(event, least), PLD_LARGEST_EPSILON)
        curves.append(SearchCurve(_search_deltas(event), highest, count))
    return LossDistribution(rest, profiles, curves)
